"""Middleware for LangChain's agents: retrieve when unsure, and mark answers that are unsure.

For ``langchain.agents.create_agent`` (``pip install "surerag[agents]"``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NotRequired, cast

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
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables.config import ensure_config, merge_configs, set_config_context
from langgraph.runtime import Runtime
from langgraph.types import Command

from langchain_surerag.calls import Awaiting, Blocking, Calls
from langchain_surerag.documents import documents_of
from langchain_surerag.entropy import entropy_of
from langchain_surerag.models import reader_from_model
from langchain_surerag.prompts import prompt_of
from langchain_surerag.retrieval import retriever_of
from langchain_surerag.runs import TAGS, settled, without_streaming
from surerag import FirstPass, Gate, GateDecision, LazyRAGOptions, Passage, Services
from surerag.drivers import complete
from surerag.effects import retrieve
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    InputError,
    LogprobsError,
    MissingServiceError,
    ServiceError,
)
from surerag.measures import equivalence_clusters, same_answer
from surerag.messages import Generation, SamplingParams, TraceKind, as_messages
from surerag.prompts import format_passages
from surerag.readers.logprobs import ANY_VOCABULARY

Request = ModelRequest[Any]
Response = ModelResponse[Any]
Reply = str | AIMessage | None
OnUncertain = Callable[[str, AIMessage], Reply | Awaitable[Reply]]

NOTES = "surerag"
"""Key in a message's ``response_metadata`` for what middleware notes about it."""

logger = logging.getLogger("surerag")


class _Model:
    """The agent's model as a middleware calls it.

    Args:
        handler: LangChain's function from a request to a response, blocking or asynchronous.
        calls: The same choice for what else is called.
    """

    def __init__(self, handler: Callable[[Request], Any], calls: Calls) -> None:
        self._handler = handler
        self._calls = calls

    async def answer(self, request: Request) -> Response:
        """Answer a request for everybody to see."""
        return cast("Response", await settled(self._handler(request)))

    async def draft(self, request: Request) -> Response:
        """Answer a request with what may be dropped: no handler that streams sees it."""
        config = without_streaming(merge_configs(ensure_config(), {"tags": TAGS["draft"]}))
        with set_config_context(config) as context:
            response = context.run(self._handler, request)
            if inspect.isawaitable(response):
                response = await asyncio.create_task(settled(response), context=context)
        return cast("Response", response)

    async def drafts(self, requests: Sequence[Request]) -> list[Response]:
        """Answer several requests with drafts."""
        return await self._calls.each(self.draft, requests, len(requests))

    async def retrieve(self, query: str, k: int | None, services: Services) -> list[Passage]:
        """Return passages, ``k`` at most."""
        return (await self._calls.run(ensure_config(), retrieve(query, k), services))[:k]


class _Middleware(AgentMiddleware[Any, Any, Any]):
    """A middleware whose way to answer is a coroutine, for blocking and asynchronous agents."""

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Any:
        """Answer as the class says."""
        return complete(self._answer(request, _Model(handler, Blocking())))

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[Response]]
    ) -> Any:
        """Like ``wrap_model_call``, without blocking the event loop."""
        return await self._answer(request, _Model(handler, Awaiting()))

    @abstractmethod
    async def _answer(self, request: Request, model: _Model) -> Any:
        """Answer a request."""


class LazyRetrievalState(AgentState[Any]):
    """State of an agent that retrieves lazily.

    Attributes:
        context: Documents that the model was shown; empty where it needed none.
        retrieval: The gate's decision, as a mapping: ``retrieve``, ``score``, ``threshold``, ``reason`` …
    """

    context: NotRequired[list[Document]]
    retrieval: NotRequired[dict[str, Any]]


class LazyRetrievalMiddleware(_Middleware):
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
        self._services = Services(retriever=retriever_of(retriever))
        self._vocabulary_size = vocabulary_size

    async def _answer(self, request: Request, model: _Model) -> Any:
        question = request.messages[-1] if request.messages else None
        if not isinstance(question, HumanMessage) or not str(question.text).strip():
            return await model.answer(request)
        drafts = await model.drafts(self._draft_requests(request))
        answers = [answer_of(draft) for draft in drafts]
        if answers[0] is None:
            return drafts[0]
        # Of further samples, those without words say nothing.
        spoken = [place for place, one in enumerate(answers) if place == 0 or (one and one.text.strip())]
        decision, place = self._decide(request, [cast("AIMessage", answers[place]) for place in spoken])
        if not decision.retrieve:
            return _with_decision(drafts[spoken[place]], decision, [])
        passages = await model.retrieve(str(question.text), self.options.top_n, self._services)
        response = await model.answer(self._informed(request, question, passages))
        return _with_decision(response, decision, passages)

    def _draft_requests(self, request: Request) -> list[Request]:
        """Return what to ask so that the gate can decide."""
        if self._gate.needs != "text":
            request = _traced(request, 'LazyRetrievalMiddleware(…, gate="semantic_entropy")')
        if not self._gate.n_samples:
            return [request]
        sampled = request.override(model_settings={**request.model_settings, "temperature": 1.0})
        return [sampled] * self._gate.n_samples

    def _decide(self, request: Request, messages: Sequence[AIMessage]) -> tuple[GateDecision, int]:
        """Return the gate's decision, and the place of the answer where it stays shut."""
        if not str(messages[0].text).strip():
            return self._gate.decide(None, None, self.threshold), 0
        try:
            samples = [self._generation(request, message) for message in messages]
        except ServiceError as error:
            logger.warning("lazy_rag.unmeasured: %s", error)
            flaw = f"the answer could not be measured: {error}"
            return self._gate.decide(None, None, self.threshold, flaw), 0
        place, first_pass = 0, FirstPass(samples[0])
        if self._gate.n_samples:
            same = [[same_answer(one.text, other.text) for other in samples] for one in samples]
            clusters = equivalence_clusters(same).tolist()
            place = clusters.index(max(clusters, key=clusters.count))
            first_pass = FirstPass(samples[place], tuple(samples), tuple(clusters))
        flaw = "the first answer was cut off" if samples[place].finish in ("length", "content_filter") else ""
        score, interval = self._gate.score(first_pass), self._gate.interval(first_pass)
        return self._gate.decide(score, interval, self.threshold, flaw), place

    def _generation(self, request: Request, message: AIMessage) -> Generation:
        trace: TraceKind = "none" if self._gate.needs == "text" else "entropy"
        reader = reader_from_model(request.model, vocabulary_size=self._vocabulary_size)
        return reader.read(message, SamplingParams(trace=trace))

    def _informed(self, request: Request, question: HumanMessage, passages: Sequence[Passage]) -> Request:
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


class UncertaintyMiddleware(_Middleware):
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

    async def _answer(self, request: Request, model: _Model) -> Any:
        measured = _traced(request, "a model that returns log-probabilities")
        if self.larger_model is None:
            return self._noted(request, await model.answer(measured))
        draft = self._noted(request, await model.draft(measured))
        if not _is_uncertain(draft.result[-1]):
            return draft
        return await model.answer(request.override(model=self.larger_model))

    def after_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Pass an uncertain answer to ``on_uncertain``."""
        reply = self._reply(state)
        if inspect.iscoroutine(reply):
            reply.close()
            raise ConfigurationError(
                "on_uncertain is a coroutine function, and the agent was called synchronously",
                hint="call it with ainvoke or astream, or pass a plain function",
            )
        return _replacement(state, cast("Reply", reply))

    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Like ``after_model``, awaiting ``on_uncertain`` if it is to be awaited."""
        return _replacement(state, await settled(self._reply(state)))

    def _reply(self, state: Mapping[str, Any]) -> Reply | Awaitable[Reply]:
        """Return what ``on_uncertain`` says of the last message, or None if there is nothing to ask."""
        messages = state["messages"]
        if self.on_uncertain is None or not messages or not _is_uncertain(messages[-1]):
            return None
        questions = [one for one in messages if isinstance(one, HumanMessage)]
        return self.on_uncertain(str(questions[-1].text) if questions else "", messages[-1])

    def _noted(self, request: Request, response: Response) -> Response:
        message = answer_of(response)
        if message is None:
            return response
        note: dict[str, Any] = {"threshold": self.threshold}
        if not str(message.text).strip():
            note |= {"uncertain": True, "reason": "empty answer"}
            return _with_note(response, message, "uncertainty", note)
        try:
            entropy = entropy_of(
                message,
                n_tokens=self._n_tokens,
                family=reader_from_model(request.model).family,
                vocabulary_size=self._vocabulary_size,
            )
            values = asdict(entropy)
            note |= {"entropy": values.pop("mean"), **values, "uncertain": entropy.mean > self.threshold}
        except (LogprobsError, InputError) as error:
            logger.warning("uncertainty.unmeasured: %s", error)
            note |= {"uncertain": None, "reason": str(error)}
        return _with_note(response, message, "uncertainty", note)


def _traced(request: Request, instead: str) -> Request:
    """Return the request with settings by which its model returns log-probabilities with alternatives."""
    reader = reader_from_model(request.model)
    if not reader.capabilities.logprobs:
        raise CapabilityError(
            f"the agent's model {reader.described} gives text only, and log-probabilities are needed",
            hint=f"use {instead}, or another model; {reader.family.advice}",
        )
    settings = reader.keywords({"logprobs": True, "top_logprobs": reader.top_logprobs})
    return request.override(model_settings={**request.model_settings, **settings})


def answer_of(response: Response) -> AIMessage | None:
    """Return the model's answer, which may be empty; None where it calls tools."""
    last = response.result[-1] if response.result else None
    if not isinstance(last, AIMessage) or not all(isinstance(one, AIMessage) for one in response.result):
        return None
    is_call = last.tool_calls or (last.invalid_tool_calls and not str(last.text).strip())
    return None if is_call else last


def _with_note(response: Response, message: AIMessage, name: str, note: Mapping[str, Any]) -> Response:
    """Return a response whose message has a note in its metadata."""
    earlier = message.response_metadata.get(NOTES) or {}
    metadata = {**message.response_metadata, NOTES: {**earlier, name: note}}
    noted = message.model_copy(update={"response_metadata": metadata})
    return replace(response, result=[noted if one is message else one for one in response.result])


def _with_decision(
    response: Response, decision: GateDecision, passages: Sequence[Passage]
) -> ExtendedModelResponse[Any]:
    note, message = decision.to_dict(), answer_of(response)
    if message is not None:
        response = _with_note(response, message, "retrieval", note)
    update = {"context": documents_of(passages), "retrieval": note}
    return ExtendedModelResponse(response, Command(update=update))


def _with_text(question: HumanMessage, text: str) -> str | list[str | dict[Any, Any]]:
    """Return a message's content with another text; images and whatever else is in it stay."""
    if isinstance(question.content, str):
        return text
    others = [block for block in question.content if isinstance(block, dict) and block.get("type") != "text"]
    return [{"type": "text", "text": text}, *others]


def _is_uncertain(message: Any) -> bool:
    notes = getattr(message, "response_metadata", {}).get(NOTES) or {}
    return bool((notes.get("uncertainty") or {}).get("uncertain"))


def _replacement(state: Mapping[str, Any], reply: Reply) -> dict[str, Any] | None:
    """Return the update that puts a reply in the last message's place; the state knows it by its id."""
    if reply is None:
        return None
    message = state["messages"][-1]
    other = AIMessage(reply) if isinstance(reply, str) else reply
    metadata = {**message.response_metadata, **other.response_metadata}
    note = {**message.response_metadata[NOTES]["uncertainty"], "uncertain": False, "replaced": True}
    metadata[NOTES] = {**metadata[NOTES], "uncertainty": note}
    return {"messages": [other.model_copy(update={"id": message.id, "response_metadata": metadata})]}
