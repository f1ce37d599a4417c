"""Middleware for LangChain's agents: retrieve when unsure, and mark answers that are unsure.

For ``langchain.agents.create_agent`` (``pip install "surerag[agents]"``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NotRequired, TypeVar, cast

from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
)
from langchain.chat_models import init_chat_model
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables.config import ensure_config, merge_configs, set_config_context
from langgraph.runtime import Runtime
from langgraph.types import Command

from langchain_surerag.documents import documents_of
from langchain_surerag.entropy import entropy_of, trace_of_message
from langchain_surerag.families import Family, family_of, leaves
from langchain_surerag.prompts import prompt_of
from langchain_surerag.retrieval import retriever_of
from langchain_surerag.runs import TAGS, without_streaming
from surerag import FirstPass, Gate, GateDecision, LazyRAGOptions, Passage
from surerag.errors import CapabilityError, ConfigurationError, InputError, LogprobsError, MissingServiceError
from surerag.measures import same_answer
from surerag.messages import Generation, as_messages
from surerag.prompts import format_passages
from surerag.readers.logprobs import ANY_VOCABULARY
from surerag.readers.threads import in_thread

T = TypeVar("T")
Handler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
Reply = str | AIMessage | None
OnUncertain = Callable[[str, AIMessage], Reply | Awaitable[Reply]]

NOTES = "surerag"
"""Key in a message's ``response_metadata`` for what middleware notes about it."""

logger = logging.getLogger("surerag")


class LazyRetrievalState(AgentState[Any]):
    """State of an agent that retrieves lazily.

    Attributes:
        context: Documents that the model was shown; empty where it needed none.
        retrieval: The gate's decision, as a mapping: ``retrieve``, ``score``, ``threshold``, ``reason`` …
    """

    context: NotRequired[list[Document]]
    retrieval: NotRequired[dict[str, Any]]


class LazyRetrievalMiddleware(AgentMiddleware[Any, Any, Any]):
    """Lets the agent's model answer, and retrieves only when it is unsure of what it writes (L-RAG).

    The model answers the user's message with log-probabilities. Where the gate stays shut, that is the
    answer. Where it opens, the draft is dropped and nobody sees it; passages are retrieved for the user's
    message, and the model answers once more with them before the question. The conversation in the agent's
    state keeps the question as it was. A model that calls a tool, or reads the result of one, is left alone.
    An empty answer, or one without log-probabilities, as a fallback model may give it, opens the gate.

    The state gets ``context`` and ``retrieval``; the message has the decision in
    ``response_metadata["surerag"]["retrieval"]``. Images and files in the user's message stay.

    Args:
        retriever: A retriever, or a runnable from a question to documents.
        prompt: How to show passages: a prompt with the slots ``context`` and ``question``.
        vocabulary_size: Tokens that the model can emit; bounds the entropy from above.
        **options: ``gate``, ``threshold``, ``n_tokens``, ``n_samples`` and ``top_n``, as for
            :class:`~langchain_surerag.LazyRetrievalChain`.

    Raises:
        ConfigurationError: If an option is unknown or out of bounds, or the retriever is none.
        CapabilityError: At the first answer, if the model cannot give what the gate needs.

    Example:
        >>> from langchain_core.runnables import RunnableLambda
        >>> lazy = LazyRetrievalMiddleware(RunnableLambda(lambda question: []), threshold=0.8)
        >>> lazy.threshold
        0.8
    """

    OPTIONS = ("gate", "threshold", "n_tokens", "n_samples", "top_n")

    state_schema = LazyRetrievalState

    def __init__(
        self,
        retriever: RetrieverLike,
        *,
        prompt: Any = None,
        vocabulary_size: int = ANY_VOCABULARY,
        **options: Any,
    ) -> None:
        super().__init__()
        if retriever is None:
            raise MissingServiceError("there is no retriever", hint="pass store.as_retriever()")
        unknown = sorted(set(options) - set(self.OPTIONS))
        if unknown:
            raise ConfigurationError(
                f"LazyRetrievalMiddleware has no option {unknown[0]!r}",
                hint=f"it takes {', '.join((*self.OPTIONS, 'prompt', 'vocabulary_size'))}",
            )
        prompts = {} if prompt is None else {"from_context": prompt_of("from_context", prompt)}
        self.options = LazyRAGOptions(**options, prompts=prompts)
        self.threshold = self.options.resolved_threshold
        self._gate: Gate = self.options.resolved_gate
        self._retriever = retriever_of(retriever)
        self._vocabulary_size = vocabulary_size

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        """Answer, and if unsure retrieve and answer again."""
        question = _question(request.messages)
        if question is None:
            return handler(request)
        drafts = [_as_draft(handler, draft) for draft in self._draft_requests(request)]
        decision, answer = self._decide(request, drafts)
        if answer is not None:
            return _noted(answer, decision, [])
        passages = self._limited(self._retriever.retrieve(question.text, self.options.top_n))
        return _noted(handler(self._informed(request, question, passages)), decision, passages)

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> Any:
        """Like ``wrap_model_call``, without blocking the event loop."""
        question = _question(request.messages)
        if question is None:
            return await handler(request)
        requests = self._draft_requests(request)
        drafts = await asyncio.gather(*(_as_adraft(handler, draft) for draft in requests))
        decision, answer = self._decide(request, drafts)
        if answer is not None:
            return _noted(answer, decision, [])
        aretrieve = getattr(self._retriever, "aretrieve", None)
        if aretrieve is None:
            results = await in_thread(self._retriever.retrieve, question.text, self.options.top_n)
        else:
            results = await aretrieve(question.text, self.options.top_n)
        passages = self._limited(results)
        return _noted(await handler(self._informed(request, question, passages)), decision, passages)

    def _limited(self, passages: Sequence[Passage]) -> list[Passage]:
        return list(passages)[: self.options.top_n]

    def _draft_requests(self, request: ModelRequest[Any]) -> list[ModelRequest[Any]]:
        """Return what to ask so that the gate can decide."""
        settings = dict(request.model_settings)
        if self._gate.needs != "text":
            settings |= entropy_settings(request.model, 'LazyRetrievalMiddleware(…, gate="semantic_entropy")')
        if not self._gate.n_samples:
            return [request.override(model_settings=settings)]
        return [request.override(model_settings={**settings, "temperature": 1.0})] * self._gate.n_samples

    def _decide(
        self, request: ModelRequest[Any], drafts: Sequence[ModelResponse[Any]]
    ) -> tuple[GateDecision | None, ModelResponse[Any] | None]:
        """Return the gate's decision, and the draft that is the answer, if one is.

        A model that calls a tool has decided for itself.
        """
        messages = [answer_of(draft) for draft in drafts]
        if messages[0] is None:
            if _is_empty(drafts[0]):
                return self._gate.decide(None, None, self.threshold, "empty first answer"), None
            return None, drafts[0]
        answers = [(draft, one) for draft, one in zip(drafts, messages, strict=True) if one is not None]
        try:
            generations = [self._generation(request, message) for _, message in answers]
        except (LogprobsError, InputError) as error:
            logger.warning("lazy_rag.unmeasured: %s", error)
            flaw = f"the answer could not be measured: {error}"
            return self._gate.decide(None, None, self.threshold, flaw), None
        chosen, first_pass = generations[0], FirstPass(generations[0])
        if self._gate.n_samples:
            clusters = _clusters([one.text for one in generations])
            chosen = generations[clusters.index(max(clusters, key=clusters.count))]
            first_pass = FirstPass(chosen, tuple(generations), tuple(clusters))
        score = self._gate.score(first_pass)
        reason = "the first answer was cut off" if chosen.finish == "length" else ""
        decision = self._gate.decide(score, self._gate.interval(first_pass), self.threshold, reason)
        place = next(index for index, one in enumerate(generations) if one is chosen)
        return decision, None if decision.retrieve else answers[place][0]

    def _generation(self, request: ModelRequest[Any], message: AIMessage) -> Generation:
        trace = None
        if self._gate.needs != "text":
            trace = trace_of_message(
                message, family=_family(request.model), vocabulary_size=self._vocabulary_size
            )
        cut = message.response_metadata.get("finish_reason") in ("length", "content_filter")
        return Generation(str(message.text).strip(), trace=trace, finish="length" if cut else "stop")

    def _informed(
        self, request: ModelRequest[Any], question: HumanMessage, passages: Sequence[Passage]
    ) -> ModelRequest[Any]:
        """Show passages before the question, in this request alone."""
        if not passages:
            return request
        context = format_passages(passage.text for passage in passages)
        prompt = self.options.prompts["from_context"].render(context=context, question=str(question.text))
        turns = as_messages(prompt)
        rules = [turn.content for turn in turns if turn.role == "system"]
        text = "\n".join(turn.content for turn in turns if turn.role != "system")
        system = request.system_message
        if rules:
            before = [str(system.text)] if system is not None else []
            system = SystemMessage("\n\n".join([*before, *rules]))
        last = question.model_copy(update={"content": _with_text(question, text)})
        return request.override(messages=[*request.messages[:-1], last], system_message=system)


class UncertaintyMiddleware(AgentMiddleware[Any, Any, Any]):
    """Notes on each answer of the agent's model how uncertain it was, and acts where it was uncertain.

    Every answer in words has its entropy in ``response_metadata["surerag"]["uncertainty"]``: ``entropy``
    (mean, in nats), ``lower``, ``upper``, ``largest``, ``n_tokens``, ``threshold`` and ``uncertain``. An
    empty answer is uncertain. One without log-probabilities, as a fallback model may give it, passes with
    ``uncertain`` None and the ``reason``. Tool calls are left alone.

    Args:
        threshold: An answer is uncertain if its mean entropy exceeds this, in nats.
        larger_model: Asked in the first one's place where that is uncertain, before anybody sees the answer:
            a chat model, or a name for ``init_chat_model``.
        on_uncertain: Called with the question and an answer that stays uncertain; it may return a text or a
            message in its place. It runs in a step of its own, where LangGraph's ``interrupt`` may wait for a
            person. In asynchronous graphs it may be a coroutine function.
        n_tokens: Read so many tokens from the beginning; None reads all.
        vocabulary_size: Tokens that the model can emit; bounds the entropy from above.

    Raises:
        ConfigurationError: If a setting is out of bounds.
        CapabilityError: At the first answer, if the agent's model gives no log-probabilities.
    """

    def __init__(
        self,
        *,
        threshold: float = 1.0,
        larger_model: BaseChatModel | str | None = None,
        on_uncertain: OnUncertain | None = None,
        n_tokens: int | None = None,
        vocabulary_size: int = ANY_VOCABULARY,
    ) -> None:
        super().__init__()
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not threshold >= 0:
            raise ConfigurationError(f"threshold must be a number of nats, 0 or more, got {threshold!r}")
        if n_tokens is not None and n_tokens < 1:
            raise ConfigurationError(f"n_tokens must be at least 1, got {n_tokens!r}")
        self.threshold = threshold
        self.larger_model = init_chat_model(larger_model) if isinstance(larger_model, str) else larger_model
        self.on_uncertain = on_uncertain
        self._n_tokens = n_tokens
        self._vocabulary_size = vocabulary_size

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        """Measure the answer; where it is uncertain, ask the larger model."""
        measured = self._measured(request)
        if self.larger_model is None:
            return self._noted(request, handler(measured))
        draft = self._noted(request, _as_draft(handler, measured))
        return handler(self._larger(request)) if _is_uncertain(draft.result[-1]) else draft

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> Any:
        """Like ``wrap_model_call``, without blocking the event loop."""
        measured = self._measured(request)
        if self.larger_model is None:
            return self._noted(request, await handler(measured))
        draft = self._noted(request, await _as_adraft(handler, measured))
        return await handler(self._larger(request)) if _is_uncertain(draft.result[-1]) else draft

    def after_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Pass an uncertain answer to ``on_uncertain``."""
        uncertain = self._uncertain(state)
        if uncertain is None or self.on_uncertain is None:
            return None
        reply = self.on_uncertain(*uncertain)
        if inspect.isawaitable(reply):
            if inspect.iscoroutine(reply):
                reply.close()
            raise ConfigurationError(
                "on_uncertain is a coroutine function, and the agent was called synchronously",
                hint="call it with ainvoke or astream, or pass a plain function",
            )
        return _replacement(uncertain[1], reply)

    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Like ``after_model``, awaiting ``on_uncertain`` if it is to be awaited."""
        uncertain = self._uncertain(state)
        if uncertain is None or self.on_uncertain is None:
            return None
        reply = self.on_uncertain(*uncertain)
        return _replacement(uncertain[1], await reply if inspect.isawaitable(reply) else reply)

    def _measured(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        settings = entropy_settings(request.model, "a model that returns log-probabilities")
        return request.override(model_settings={**request.model_settings, **settings})

    def _larger(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        return request.override(model=cast("BaseChatModel", self.larger_model))

    def _noted(self, request: ModelRequest[Any], response: ModelResponse[Any]) -> ModelResponse[Any]:
        message = answer_of(response)
        note: dict[str, Any] = {"threshold": self.threshold}
        if _is_empty(response):
            [empty] = response.result
            note |= {"uncertain": True, "reason": "empty answer"}
            return _with_note(response, cast("AIMessage", empty), "uncertainty", note)
        if message is None:
            return response
        try:
            entropy = entropy_of(
                message,
                n_tokens=self._n_tokens,
                family=_family(request.model),
                vocabulary_size=self._vocabulary_size,
            )
            values = asdict(entropy)
            note |= {"entropy": values.pop("mean"), **values, "uncertain": entropy.mean > self.threshold}
        except (LogprobsError, InputError) as error:
            logger.warning("uncertainty.unmeasured: %s", error)
            note |= {"uncertain": None, "reason": str(error)}
        return _with_note(response, message, "uncertainty", note)

    def _uncertain(self, state: Mapping[str, Any]) -> tuple[str, AIMessage] | None:
        messages = state["messages"]
        last = messages[-1] if messages else None
        if not isinstance(last, AIMessage) or not _is_uncertain(last):
            return None
        question = next((one for one in reversed(messages) if isinstance(one, HumanMessage)), None)
        return "" if question is None else str(question.text), last


def entropy_settings(model: Any, instead: str) -> dict[str, Any]:
    """Return the settings by which a chat model returns log-probabilities with alternatives.

    Raises:
        CapabilityError: If it gives none.
    """
    family = _family(model)
    if family.logprobs is None:
        names = ", ".join(dict.fromkeys(leaf.class_name for leaf in leaves(model)))
        raise CapabilityError(
            f"the agent's model {names} gives text only, and log-probabilities are needed",
            hint=f"use {instead}, or another model; {family.advice}",
        )
    settings = {"logprobs": True, "top_logprobs": family.most_top}
    return family.keywords(settings, next(iter(leaves(model))).model)


def _clusters(answers: Sequence[str]) -> list[int]:
    """Return the cluster of each answer: that of the first one with the same words, up to their form."""
    firsts: list[str] = []
    clusters: list[int] = []
    for answer in answers:
        same = next((place for place, first in enumerate(firsts) if same_answer(first, answer)), len(firsts))
        if same == len(firsts):
            firsts.append(answer)
        clusters.append(same)
    return clusters


def _family(model: Any) -> Family:
    return family_of(tuple(leaves(model)), None)


def _as_draft(handler: Callable[[Any], T], request: ModelRequest[Any]) -> T:
    """Ask for a text that may be dropped: no handler that streams sees it."""
    config = without_streaming(merge_configs(ensure_config(), {"tags": TAGS["draft"]}))
    with set_config_context(config) as context:
        return context.run(handler, request)


async def _as_adraft(handler: Callable[[Any], Awaitable[T]], request: ModelRequest[Any]) -> T:
    """Like :func:`_as_draft`, without blocking the event loop."""

    async def ask() -> T:
        return await handler(request)

    config = without_streaming(merge_configs(ensure_config(), {"tags": TAGS["draft"]}))
    with set_config_context(config) as context:
        return await asyncio.get_running_loop().create_task(ask(), context=context)


def answer_of(response: ModelResponse[Any]) -> AIMessage | None:
    """Return the model's answer in words; None where it calls tools."""
    messages = [one for one in response.result if isinstance(one, AIMessage)]
    if len(messages) != len(response.result) or not messages:
        return None
    last = messages[-1]
    return None if last.tool_calls or not str(last.text).strip() else last


def _is_empty(response: ModelResponse[Any]) -> bool:
    """Whether the model neither answered nor called a tool."""
    message = response.result[0] if len(response.result) == 1 else None
    if not isinstance(message, AIMessage) or message.tool_calls or message.invalid_tool_calls:
        return False
    return not str(message.text).strip()


def _with_note(
    response: ModelResponse[Any], message: AIMessage, name: str, note: Mapping[str, Any]
) -> ModelResponse[Any]:
    """Return a response whose message has a note in its metadata."""
    earlier = message.response_metadata.get(NOTES) or {}
    metadata = {**message.response_metadata, NOTES: {**earlier, name: note}}
    noted = message.model_copy(update={"response_metadata": metadata})
    return replace(response, result=[noted if one is message else one for one in response.result])


def _noted(
    response: ModelResponse[Any], decision: GateDecision | None, passages: Sequence[Passage]
) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
    if decision is None:
        return response
    note = decision.to_dict()
    message = answer_of(response)
    if message is not None:
        response = _with_note(response, message, "retrieval", note)
    return ExtendedModelResponse(
        response, Command(update={"context": documents_of(passages), "retrieval": note})
    )


def _question(messages: Sequence[AnyMessage]) -> HumanMessage | None:
    """Return the user's message, if it is the user's turn that is to be answered."""
    last = messages[-1] if messages else None
    return last if isinstance(last, HumanMessage) and str(last.text).strip() else None


def _with_text(question: HumanMessage, text: str) -> str | list[str | dict[Any, Any]]:
    """Return a message's content with another text; images and whatever else is in it stay."""
    if isinstance(question.content, str):
        return text
    others = [block for block in question.content if isinstance(block, dict) and block.get("type") != "text"]
    return [{"type": "text", "text": text}, *others]


def _is_uncertain(message: BaseMessage) -> bool:
    notes = message.response_metadata.get(NOTES) or {}
    return bool((notes.get("uncertainty") or {}).get("uncertain"))


def _replacement(message: AIMessage, reply: Reply) -> dict[str, Any] | None:
    """Return the update that puts a reply in an answer's place; the state knows it by its id."""
    if reply is None:
        return None
    other = AIMessage(reply) if isinstance(reply, str) else reply
    metadata = {**message.response_metadata, **other.response_metadata}
    notes = metadata.get(NOTES) or {}
    note = {**(notes.get("uncertainty") or {}), "uncertain": False, "replaced": True}
    changes = {"id": message.id, "response_metadata": {**metadata, NOTES: {**notes, "uncertainty": note}}}
    return {"messages": [other.model_copy(update=changes)]}
