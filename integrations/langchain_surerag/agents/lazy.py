"""L-RAG for agents: the model answers, and retrieval comes in only where it is unsure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, NotRequired

from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
)
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.retrievers import RetrieverLike
from langgraph.types import Command

from langchain_surerag._holding import Hold
from langchain_surerag.agents.asking import AsyncHandler, Handler, answer_of, awithin, with_note, within
from langchain_surerag.documents import documents_of
from langchain_surerag.entropies import VOCABULARY, asks_for_entropy, generation_of
from langchain_surerag.prompts import PromptLike, for_core
from langchain_surerag.services import retriever_of
from surerag import FirstPass, Gate, GateDecision, LazyRAGOptions, PromptSet
from surerag.clustering import meaning_clusters
from surerag.errors import ConfigurationError, MissingServiceError
from surerag.measures import same_answer
from surerag.messages import Generation, Passage, Template, as_messages
from surerag.prompts import FROM_CONTEXT, format_passages
from surerag.readers.threads import in_thread


class LazyRetrievalState(AgentState[Any]):
    """What an agent knows of its last retrieval.

    Attributes:
        context: Documents that the model was shown; empty where it needed none.
        retrieval: The gate's decision, as a mapping: ``retrieve``, ``signal``, ``threshold``, ``reason`` …
    """

    context: NotRequired[list[Document]]
    retrieval: NotRequired[dict[str, Any]]


class _Draft(NamedTuple):
    """What to ask so that the gate can decide, and who waits to see the answer."""

    request: ModelRequest[Any]
    hold: Hold


class _Verdict(NamedTuple):
    """The gate's decision, None where there was nothing to decide; and the draft that is the answer."""

    decision: GateDecision | None
    kept: int | None


class LazyRetrievalMiddleware(AgentMiddleware[Any, Any, Any]):
    """Lets the agent's model answer, and retrieves only when it is unsure of what it says (L-RAG).

    The model answers the user's message with log-probabilities. Where the gate stays shut, that is the
    answer, and it streams as one. Where it opens, the draft is thrown away unseen, passages are retrieved
    for the user's message, and the model answers once more with them before the question. The conversation
    in the agent's state keeps the question as it was asked. A model that calls a tool, or reads what one
    returned, is left alone.

    The state gets ``context`` and ``retrieval``; the message tells the decision in
    ``response_metadata["surerag"]["retrieval"]``. Images and the like in the user's message are shown with
    the passages, too.

    Args:
        retriever: A retriever, or a runnable from a question to documents; or one of surerag.
        gate: As for :class:`~langchain_surerag.LazyRetrievalChain`: ``"entropy"``, ``"margin"``,
            ``"disagreement"`` (for models without log-probabilities; it asks ``n_samples`` times), or a gate.
        threshold: Retrieve iff the gate's signal exceeds this; None is the gate's own.
        gate_tokens: Tokens that the gate looks at.
        n_samples: Answers that the gate ``"disagreement"`` compares.
        top_n: Passages to show, at most; None shows all that the retriever returns.
        prompt: How to show them: a prompt with the slots ``context`` and ``question``.
        vocabulary_size: Tokens that the model can emit, where only the likeliest are listed.

    Raises:
        ConfigurationError: If a setting is out of range, or the retriever is none.
        CapabilityError: At the first answer, if the model cannot give what the gate needs.

    Example:
        >>> from langchain_core.runnables import RunnableLambda
        >>> lazy = LazyRetrievalMiddleware(RunnableLambda(lambda question: []), threshold=0.8)
        >>> lazy.threshold
        0.8
    """

    state_schema = LazyRetrievalState

    def __init__(
        self,
        retriever: RetrieverLike,
        *,
        gate: Any = "entropy",
        threshold: Any = None,
        gate_tokens: int = 8,
        n_samples: int = 5,
        top_n: int | None = None,
        prompt: PromptLike | None = None,
        vocabulary_size: int = VOCABULARY,
    ) -> None:
        super().__init__()
        if retriever is None:
            raise MissingServiceError("there is no retriever", hint="pass store.as_retriever()")
        self.options = LazyRAGOptions(
            gate=gate, threshold=threshold, gate_tokens=gate_tokens, n_samples=n_samples, top_n=top_n
        )
        self.threshold = self.options.boundary()
        self._gate: Gate = self.options.gate_in_force
        if self._gate.look.same_meaning == "entailment":
            raise ConfigurationError(
                "an agent has no entailer", hint='use same_meaning="words", or a function of two answers'
            )
        self._retriever = retriever_of(retriever)
        self._prompt = _prompt(prompt)
        self._vocabulary_size = vocabulary_size

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        """Answer, and if unsure retrieve and answer again."""
        question = _asked(request.messages)
        if question is None:
            return handler(request)
        looked = [_Draft(one, Hold()) for one in self._looking(request)]
        drafts = [within("gate", hold, handler, one) for one, hold in looked]
        decision, kept = self._decided(request, drafts)
        for place, (_, hold) in enumerate(looked):
            (hold.keep if place == kept else hold.drop)()
        if kept is not None:
            return _told(drafts[kept], decision, [])
        passages = self._shown(self._retriever.retrieve(question.text, self.options.rules.top_n))
        answer = within("answer", None, handler, self._informed(request, question, passages))
        return _told(answer, decision, passages)

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> Any:
        """Like ``wrap_model_call``, without blocking the event loop."""
        question = _asked(request.messages)
        if question is None:
            return await handler(request)
        looked = [_Draft(one, Hold()) for one in self._looking(request)]
        drafts = await asyncio.gather(*(awithin("gate", hold, handler, one) for one, hold in looked))
        decision, kept = self._decided(request, drafts)
        for place, (_, hold) in enumerate(looked):
            await (hold.akeep if place == kept else hold.adrop)()
        if kept is not None:
            return _told(drafts[kept], decision, [])
        passages = self._shown(await self._aretrieved(question.text))
        answer = await awithin("answer", None, handler, self._informed(request, question, passages))
        return _told(answer, decision, passages)

    async def _aretrieved(self, question: str) -> Sequence[Passage]:
        aretrieve = getattr(self._retriever, "aretrieve", None)
        if aretrieve is None:
            return await in_thread(self._retriever.retrieve, question, self.options.rules.top_n)
        found: Sequence[Passage] = await aretrieve(question, self.options.rules.top_n)
        return found

    def _shown(self, found: Sequence[Passage]) -> list[Passage]:
        return list(found)[: self.options.rules.top_n]

    def _looking(self, request: ModelRequest[Any]) -> list[ModelRequest[Any]]:
        """Return what to ask so that the gate can decide; the first answer is the one that may be kept."""
        look = self._gate.look
        settings = dict(request.model_settings)
        if look.needs != "none":
            settings |= asks_for_entropy(request.model)
        if not look.n_samples:
            return [request.override(model_settings=settings)]
        sampled = request.override(model_settings={**settings, "temperature": look.temperature})
        first = [request.override(model_settings=settings)] if look.n_tokens != 0 else []
        return [*first, *[sampled] * look.n_samples]

    def _decided(self, request: ModelRequest[Any], drafts: Sequence[ModelResponse[Any]]) -> _Verdict:
        """Let the gate decide. A model that calls a tool has decided for itself."""
        messages = [message for draft in drafts if (message := answer_of(draft)) is not None]
        if answer_of(drafts[0]) is None:
            return _Verdict(None, 0)
        look = self._gate.look
        greedy = [self._read(request, one) for one in messages[: look.n_tokens != 0]]
        samples = [Generation(str(one.text).strip()) for one in messages[len(greedy) :]]
        same = look.same_meaning if callable(look.same_meaning) else same_answer
        matrix = [[same(a.text, b.text) for b in samples] for a in samples]
        clusters = tuple(meaning_clusters(matrix).tolist()) if samples else ()
        seen = FirstPass(greedy[0] if greedy else None, tuple(samples), clusters)
        decision = self._gate.decide(seen, self.threshold)
        if decision.retrieve:
            return _Verdict(decision, None)
        # Of samples, one that means what most of them mean.
        typical = None if greedy else messages[clusters.index(max(clusters, key=clusters.count))]
        places = [place for place, draft in enumerate(drafts) if answer_of(draft) is typical]
        return _Verdict(decision, places[0] if places else 0)

    def _read(self, request: ModelRequest[Any], message: AIMessage) -> Generation:
        if self._gate.look.needs == "none":
            return Generation(str(message.text).strip())
        return generation_of(message, model=request.model, vocabulary_size=self._vocabulary_size)

    def _informed(
        self, request: ModelRequest[Any], question: HumanMessage, passages: Sequence[Passage]
    ) -> ModelRequest[Any]:
        """Show passages before the question, in this request alone."""
        shown = format_passages(passage.text for passage in passages)
        turns = as_messages(self._prompt.render(context=shown, question=str(question.text)))
        rules = [turn.content for turn in turns if turn.role == "system"]
        asked = "\n".join(turn.content for turn in turns if turn.role != "system")
        system = request.system_message
        if rules:
            known = [str(system.text)] if system is not None else []
            system = SystemMessage("\n\n".join([*known, *rules]))
        last = question.model_copy(update={"content": _with_text(question, asked)})
        return request.override(messages=[*request.messages[:-1], last], system_message=system)


def _prompt(given: PromptLike | None) -> Template:
    own = PromptSet(from_context=FROM_CONTEXT)
    found: PromptSet = own if given is None else own.replaced(for_core({"from_context": given}))
    return found["from_context"]


def _asked(messages: Sequence[AnyMessage]) -> HumanMessage | None:
    """Return the user's message, if it is the user's turn that is to be answered."""
    last = messages[-1] if messages else None
    return last if isinstance(last, HumanMessage) and str(last.text).strip() else None


def _with_text(question: HumanMessage, text: str) -> str | list[str | dict[Any, Any]]:
    """Return a message's content with another text; images and whatever else is in it stay."""
    if isinstance(question.content, str):
        return text
    others = [block for block in question.content if isinstance(block, dict) and block.get("type") != "text"]
    return [{"type": "text", "text": text}, *others]


def _told(
    response: ModelResponse[Any], decision: GateDecision | None, passages: Sequence[Passage]
) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
    message = answer_of(response)
    if decision is None:
        return response
    note = asdict(decision)
    if message is not None:
        response = with_note(response, message, "retrieval", note)
    update = {"context": documents_of(passages), "retrieval": note}
    return ExtendedModelResponse(response, Command(update=update))
