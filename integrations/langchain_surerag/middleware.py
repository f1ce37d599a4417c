"""Middleware for LangChain's agents: retrieve when unsure, and mark answers that are unsure.

For ``langchain.agents.create_agent`` (``pip install "surerag[agents]"``).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompt_values import PromptValue
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config, merge_configs, set_config_context
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import PrivateAttr

from langchain_surerag.calls import Awaiting, Blocking, Calls
from langchain_surerag.documents import documents_of
from langchain_surerag.entropy import entropy_of
from langchain_surerag.inputs import spoken_turns, standalone_question
from langchain_surerag.models import ModelReader, reader_from_model, with_advice
from langchain_surerag.prompts import prompt_of
from langchain_surerag.retrieval import retriever_of
from langchain_surerag.runs import TAGS, changed_effects, settled, without_streaming
from langchain_surerag.summaries import admitted_summaries
from surerag import LazyRAG, LazyRAGOptions, LazyRAGResult, Passage
from surerag.drivers import complete
from surerag.effects import Effect, Program, Retrieve
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    InputError,
    LogprobsError,
    LogprobsRefusedError,
    MissingServiceError,
    SureragError,
)
from surerag.messages import Message
from surerag.readers.logprobs import ANY_VOCABULARY
from surerag.readers.protocol import Capabilities
from surerag.readers.thinking import THINKING_TOKENS, split_thoughts
from surerag.text import is_abstention

Request = ModelRequest[Any]
Response = ModelResponse[Any]
Handler = Callable[[Request], Any]
"""LangChain's function from a request to a response, blocking or asynchronous."""

Reply = str | AIMessage | None
OnUncertain = Callable[[str, AIMessage], Reply | Awaitable[Reply]]

NOTES = "surerag"
"""Key in a message's ``response_metadata`` for what middleware notes about it."""

_NO_LIMIT = 1 << 20
"""Tokens of an agent's answer, at most, as far as a gate is concerned."""

logger = logging.getLogger("surerag")


async def _respond(request: Request, handler: Handler, config: RunnableConfig) -> Response:
    """Call the agent's model under a config."""
    with set_config_context(config) as context:
        response = context.run(handler, request)
        if inspect.isawaitable(response):
            response = await asyncio.create_task(settled(response), context=context)
    return cast("Response", response)


class _Middleware(AgentMiddleware[Any, Any, Any]):
    """A middleware whose way to answer is a coroutine, for blocking and asynchronous agents."""

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Any:
        """Answer as the class says."""
        return complete(self._answer(request, handler, Blocking()))

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[Response]]
    ) -> Any:
        """Like ``wrap_model_call``, without blocking the event loop."""
        return await self._answer(request, handler, Awaiting())

    @abstractmethod
    async def _answer(self, request: Request, handler: Handler, calls: Calls) -> Any:
        """Answer a request."""


class _ToolsCalled(BaseException):
    """Ends a first pass in which the model calls tools; as ``GeneratorExit``, it is no failure to handle."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class AgentModel(RunnableBindingBase[Any, Any]):  # type: ignore[no-redef]  # it has a field named kwargs
    """The agent's model as a runnable that answers in the conversation, through all inner middleware.

    A prompt's text takes the place of the question's, and its rules stand behind the system message.
    """

    _request: Request = PrivateAttr()
    _handler: Handler = PrivateAttr()
    _may_call_tools: bool = PrivateAttr()
    _abstention: str | None = PrivateAttr()
    _responses: dict[str, Response] = PrivateAttr(default_factory=dict)

    def __init__(
        self, request: Request, handler: Handler, *, may_call_tools: bool, abstention: str | None
    ) -> None:
        super().__init__(bound=request.model, kwargs=request.model_settings)
        self._request, self._handler, self._abstention = request, handler, abstention
        self._may_call_tools = may_call_tools

    def invoke(self, input: Any, config: RunnableConfig | None = None, **settings: Any) -> AIMessage:
        """Answer a prompt."""
        return complete(self.ainvoke(input, config, **settings))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **settings: Any) -> AIMessage:
        """Answer a prompt without blocking the event loop."""
        request = self._with_prompt(input)
        request = request.override(model_settings={**request.model_settings, **settings})
        response = await _respond(request, self._handler, config or ensure_config())
        message = answer_of(response)
        if message is None and not self._may_call_tools:
            raise _ToolsCalled(response)
        self._may_call_tools = True
        message = message or AIMessage("")
        if message.tool_calls and not str(message.text).strip():
            held = [call["args"] for call in message.tool_calls]
            # A structured answer abstains in one of its fields.
            abstains = any(is_abstention(text, self._abstention) for text in _texts_in(held))
            content = self._abstention if abstains else json.dumps(held, sort_keys=True, default=str)
            message = message.model_copy(update={"content": content})
        self._responses.pop(text := split_thoughts(str(message.text))[1].strip(), None)
        self._responses[text] = response
        return message

    def response_to(self, result: LazyRAGResult) -> Response:
        """Return the response that a result's answer came with: after retrieval the last one."""
        if not result.decision.retrieve and result.answer in self._responses:
            return self._responses[result.answer]
        # Before the answer may stand thoughts that nothing but the reader knows as such.
        kept = [] if result.decision.retrieve else self._responses.items()
        same = [response for text, response in kept if text.endswith(result.answer)]
        return same[0] if same else list(self._responses.values())[-1]

    def _with_prompt(self, prompt: PromptValue) -> Request:
        turns, request = prompt.to_messages(), self._request
        question, system = cast("HumanMessage", request.messages[-1]), request.system_message
        text = "\n".join(str(turn.text) for turn in turns if not isinstance(turn, SystemMessage))
        rules = "\n\n".join(str(turn.text) for turn in turns if isinstance(turn, SystemMessage))
        update: dict[str, Any] = {"response_metadata": turns[-1].response_metadata}
        if text != str(question.text):
            update["content"] = _with_text(question, text)
        if rules and isinstance(said := system.content if system else "", str):
            system = SystemMessage(f"{said}\n\n{rules}".strip())
        elif rules:
            system = SystemMessage([*said, {"type": "text", "text": rules}])
        messages = [*request.messages[:-1], question.model_copy(update=update)]
        return request.override(messages=messages, system_message=system)


class AgentReader(ModelReader):
    """Reads an agent's model, whose length of answers and temperature are the agent's own."""

    @property
    def max_tokens(self) -> int:
        """No limit but the agent's own."""
        return _NO_LIMIT

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do, in whole answers."""
        return replace(super().capabilities, begin="whole")

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return as keywords of a call what the method sets and the agent does not."""
        ours = {name: value for name, value in settings.items() if value or name == "seed"}
        if ours.get("max_tokens", 0) >= _NO_LIMIT:
            del ours["max_tokens"]
        return super().keywords(ours)


class _NoSummaries:
    """Tier 1 of an agent that has none: the first pass answers in the conversation alone."""

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Return no summary."""
        return []


class LazyRetrievalState(AgentState[Any]):
    """State of an agent that retrieves lazily; each run of the agent begins without either.

    Attributes:
        context: Documents that the model was shown; empty where it needed none.
        retrieval: The gate's decision, as a mapping: ``retrieve``, ``score``, ``threshold``, ``reason`` …
    """

    context: NotRequired[list[Document]]
    retrieval: NotRequired[dict[str, Any] | None]


class LazyRetrievalMiddleware(_Middleware):
    """Lets the agent's model answer, and retrieves only when it is unsure of what it writes (L-RAG).

    The core's L-RAG runs over the agent's model. Where the gate stays shut, the first answer stands. Where it
    opens, that answer is dropped and nobody sees it; passages are retrieved, and the model answers once more
    with them before the question. The agent's conversation keeps the question as it was; a follow-up is
    searched as the model rewrites it to stand alone (one more call, where the gate opened).

    A model that calls a tool, or reads the result of one, is left alone; a structured answer is an answer,
    also where LangChain has the model call a tool for it. An empty answer, or one without log-probabilities,
    as a fallback model or a structured answer may be, opens the gate. Samples of the gate
    ``"semantic_entropy"`` are drawn past LangChain's cache and with a seed each, as many at a time as
    ``max_concurrency`` allows; an agent with tools answers once before, at its own temperature, and a tool
    that it calls then is the one that runs.

    The state gets ``context`` and ``retrieval``; the message has the decision in
    ``response_metadata["surerag"]["retrieval"]``, and the chain's events reach callback handlers. Images and
    files in the user's message stay.

    Args:
        retriever: A retriever, or a runnable from a question to documents.
        summaries: Tier 1, as for the chain. Without it the first answer comes from the conversation alone,
            and is asked to abstain only where ``abstention`` is set or ``gate`` is ``"abstention"``.
        vocabulary_size: Tokens that the model can emit; bounds the entropy from above.
        **options: Those of :class:`~langchain_surerag.LazyRetrievalChain`. Lengths are the agent's own where
            ``max_tokens`` is None; the prompt ``closed_book`` is the question as it stands.

    Raises:
        ConfigurationError: If an option is unknown or out of bounds, or the retriever is none.
        CapabilityError: At the first answer, if the model cannot give what the gate needs.

    Example:
        >>> from langchain_core.runnables import RunnableLambda
        >>> lazy = LazyRetrievalMiddleware(RunnableLambda(lambda question: []), threshold=0.8)
        >>> lazy.options.threshold
        0.8
    """

    state_schema = LazyRetrievalState

    def __init__(
        self,
        retriever: RetrieverLike,
        summaries: Any = None,
        *,
        vocabulary_size: int = ANY_VOCABULARY,
        **options: Any,
    ) -> None:
        super().__init__()
        if retriever is None:
            raise MissingServiceError("there is no retriever", hint="pass store.as_retriever()")
        prompts = {"closed_book": "{question}", **options.pop("prompts", {})}
        options["prompts"] = {name: prompt_of(name, prompt) for name, prompt in prompts.items()}
        self.options = LazyRAGOptions(**options)
        _ = self.options.resolved_threshold  # raises where an option is not the gate's
        asks = summaries is not None or self.options.resolved_gate.name == "abstention"
        if self.options.abstention is None and not asks:
            self.options = self.options.with_options(abstention=False)
        self._retriever = retriever_of(retriever)
        self._summaries = _NoSummaries() if summaries is None else admitted_summaries(summaries, retriever)
        self._vocabulary_size = vocabulary_size

    def before_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """Begin without the documents and the decision of an earlier run."""
        return {"context": [], "retrieval": None}

    async def _answer(self, request: Request, handler: Handler, calls: Calls) -> Any:
        question = request.messages[-1] if request.messages else None
        if not isinstance(question, HumanMessage) or not str(question.text).strip():
            return await settled(handler(request))
        text, sampled = str(question.text), bool(self.options.resolved_gate.n_samples)
        if sampled and request.tools:
            first = await _respond(request, handler, _draft_config())
            if answer_of(first) is None:
                return first
        abstention = self.options.first_abstention
        model = AgentModel(request, handler, may_call_tools=sampled, abstention=abstention)
        reader = AgentReader(model, None, None, self._vocabulary_size, 8, THINKING_TOKENS)
        with with_advice(reader):
            core = LazyRAG(reader, self._retriever, self._summaries, **self.options.options())
        services = replace(core.services, rewriter=reader_from_model(request.model))
        program = _search_standalone(core.program(text), text, spoken_turns(request.messages[:-1]))
        try:
            result = await calls.run(ensure_config(), program, services)
        except _ToolsCalled as called:
            return called.response
        except SureragError as error:
            cause = error.__cause__
            if cause is None or isinstance(cause, SureragError) or isinstance(error, LogprobsRefusedError):
                raise
            # Other middleware retries, or asks another model, by the error of the model's own client.
            raise cause from None
        response, note = model.response_to(result), result.decision.to_dict()
        if message := answer_of(response):
            response = _with_note(response, message, "retrieval", note)
        update = {"context": documents_of(result.passages), "retrieval": note}
        return ExtendedModelResponse(response, Command(update=update))


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(one)


def _search_standalone(
    program: Program[LazyRAGResult], question: str, history: Sequence[Message]
) -> Program[LazyRAGResult]:
    """Run a program whose search is for a question that stands alone after its conversation."""

    def changed(effect: Effect) -> Program[Effect]:
        if not isinstance(effect, Retrieve) or effect.tier != "passages":
            return effect
        alone = yield from standalone_question(question, history, role="rewriter")
        return replace(effect, query=alone)

    return changed_effects(program, changed) if history else program


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

    async def _answer(self, request: Request, handler: Handler, calls: Calls) -> Any:
        measured = _traced(request)
        if self.larger_model is None:
            return self._noted(request, await settled(handler(measured)))
        draft = self._noted(request, await _respond(measured, handler, _draft_config()))
        if not any(map(_is_uncertain, draft.result)):
            return draft
        return await settled(handler(request.override(model=self.larger_model)))

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


def _draft_config() -> RunnableConfig:
    """Return this context's config for an answer that may be dropped: no handler that streams sees it."""
    return without_streaming(merge_configs(ensure_config(), {"tags": TAGS["draft"]}))


def _traced(request: Request) -> Request:
    """Return the request with settings by which its model returns log-probabilities with alternatives."""
    reader = reader_from_model(request.model)
    if not reader.capabilities.logprobs:
        raise CapabilityError(
            f"the agent's model {reader.described} gives text only, and log-probabilities are needed",
            hint=f"use another model; {reader.family.advice}",
        )
    settings = reader.keywords({"logprobs": True, "top_logprobs": reader.top_logprobs})
    return request.override(model_settings={**request.model_settings, **settings})


def answer_of(response: Response) -> AIMessage | None:
    """Return the model's answer, which may be empty; None where it calls tools that the agent is to run.

    A call that has its result in the response already is LangChain's way to a structured answer.
    """
    answers = [message for message in response.result if isinstance(message, AIMessage)]
    if not answers or isinstance(response.result[-1], ToolMessage):
        return answers[-1] if answers else None
    last = answers[-1]
    return None if last.tool_calls or (last.invalid_tool_calls and not str(last.text).strip()) else last


def _with_note(response: Response, message: AIMessage, name: str, note: Mapping[str, Any]) -> Response:
    """Return a response whose message has a note in its metadata."""
    earlier = message.response_metadata.get(NOTES) or {}
    metadata = {**message.response_metadata, NOTES: {**earlier, name: note}}
    noted = message.model_copy(update={"response_metadata": metadata})
    return replace(response, result=[noted if one is message else one for one in response.result])


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
