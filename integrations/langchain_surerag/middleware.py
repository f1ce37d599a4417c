"""L-RAG as middleware for LangChain's agents (``langchain.agents.create_agent``; extra ``agents``)."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NotRequired, cast

from langchain.agents import AgentState
from langchain.agents.middleware import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompt_values import PromptValue
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs, set_config_context
from langgraph.runtime import Runtime
from langgraph.types import Command

from langchain_surerag.documents import documents_of
from langchain_surerag.inputs import spoken_turns, standalone_question
from langchain_surerag.models import ModelReader, prompt_value, reader_from_model, reader_of
from langchain_surerag.prompts import prompt_of
from langchain_surerag.retrieval import retriever_of
from langchain_surerag.runs import TAGS, end_of_program, run_program, without_streaming
from langchain_surerag.summaries import tiers_of
from surerag import LazyRAG, LazyRAGOptions, LazyRAGResult, Passage, readers
from surerag.drivers import maybe_await, run_blocking
from surerag.effects import Effect, Program, Retrieve, handled
from surerag.errors import (
    LogprobsError,
    LogprobsRefusedError,
    MissingServiceError,
    SureragError,
    check_at_least,
    check_kind,
)
from surerag.messages import Message, Template
from surerag.prompts import REWRITE_IN_CONVERSATION, as_template, format_passages, with_abstention
from surerag.readers import (
    ANY_VOCABULARY,
    AWAITING,
    BLOCKING,
    THINKING_TOKENS,
    Blocking,
    Capabilities,
    ReplyPart,
    split_thoughts,
)
from surerag.signatures import takes_options
from surerag.text import is_abstention

AgentRequest = ModelRequest[Any]
AgentResponse = ModelResponse[Any]
Handler = Callable[[AgentRequest], Any]
"""LangChain's function from a request to a response, blocking or asynchronous."""
_NO_LIMIT = 1 << 20
"""Maximum answer length in tokens for an agent's reader; so large that only the agent's own limit applies."""


class _ToolsCalled(BaseException):
    """Ends a run of L-RAG because the model's first response calls tools.

    The class derives from BaseException, so that ``except Exception`` in L-RAG does not catch it.
    """

    def __init__(self, response: AgentResponse) -> None:
        super().__init__()
        self.response = response


class AgentReader(ModelReader):
    """A reader that calls an agent's model with the agent's conversation.

    Middleware that comes after L-RAG in the agent's list takes part in each call.

    The text of L-RAG's prompt replaces the user's question. The prompt's system messages are appended to the
    agent's system message. The agent's own token limit and temperature apply.
    """

    def __init__(
        self, request: AgentRequest, handler: Handler, options: LazyRAGOptions, vocabulary_size: int
    ) -> None:
        model = request.model.bind(**request.model_settings) if request.model_settings else request.model
        super().__init__(model, None, None, vocabulary_size, 8, THINKING_TOKENS)
        self._together = False
        self._agent, self._handler = request, handler
        # A tool call in the first response ends L-RAG, unless this response is a sample for the gate.
        self._may_call_tools = bool(options.resolved_gate.n_samples)
        self._abstention = options.first_abstention
        self._is_first = True
        self._responses: list[tuple[str, AgentResponse]] = []

    @property
    def max_tokens(self) -> int:
        """A limit so large that only the agent's own limit applies."""
        return _NO_LIMIT

    @property
    def capabilities(self) -> Capabilities:
        """The model's capabilities, but answers are generated whole: middleware cannot pause a model."""
        return replace(super().capabilities, begin="whole")

    def keywords(self, settings: Mapping[str, Any]) -> readers.Keywords:
        """Convert settings to keyword arguments of a model call, without settings that the agent decides."""
        ours = {name: value for name, value in settings.items() if value or name == "seed"}
        if ours.get("max_tokens", 0) >= _NO_LIMIT:
            del ours["max_tokens"]
        return super().keywords(ours)

    def response_to(self, result: LazyRAGResult) -> AgentResponse:
        """Return the model's response that contains the answer of ``result``."""
        # A response may begin with thoughts, which only the reader can tell from the answer.
        matching = [one for one in self._responses if one[0].endswith(result.answer)]
        if result.decision.retrieve or not matching:
            return self._responses[-1][1]
        return min(matching, key=lambda one: len(one[0]))[1]

    async def _call(
        self, request: readers.Request, keywords: readers.Keywords, calls: Any
    ) -> Sequence[ReplyPart]:
        value = prompt_value(request.prompt, request.number if request.drawn else None)
        model_request = _with_prompt(self._agent, value, len(self._agent.messages) - 1)
        settings = {**model_request.model_settings, **self.keywords(keywords)}
        model_request = model_request.override(model_settings=settings)
        response = await _respond(model_request, self._handler, request.context.config)
        message = answer_of(response)
        if message is None and not self._may_call_tools:
            raise _ToolsCalled(response)
        self._may_call_tools = True
        part = self._part(message or AIMessage(""), request)
        if message is not None:
            part = self._with_fields(part, _fields_of(message, response))
        first, self._is_first = self._is_first, False
        if (
            first
            and request.top is not None
            and part.text.strip()
            and not part.entries
            and not self._abstention
        ):
            raise LogprobsError("the model returned its first answer without log-probabilities")
        self._responses.append((split_thoughts(part.text)[1].strip(), response))
        return [part]

    def _with_fields(self, part: ReplyPart, fields: Any) -> ReplyPart:
        """Return a reply; if it has no text, its text becomes the structured answer ``fields``, as JSON.

        If a field contains the abstention, the abstention becomes the text.
        """
        if any(is_abstention(text, self._abstention) for text in _texts_in(fields)):
            token = {"token": self._abstention, "logprob": 0.0}
            entries = [{**token, "top_logprobs": [token]}] if self.capabilities.logprobs else []
            return part._replace(text=self._abstention or "", entries=entries)
        return (
            part if part.text.strip() or not fields else part._replace(text=json.dumps(fields, default=str))
        )


class LazyRetrievalState(AgentState[Any]):
    """State of an agent with :class:`LazyRetrievalMiddleware`; both attributes are emptied before each run.

    Attributes:
        context: Retrieved documents that the model saw; empty if nothing was retrieved.
        retrieval: The gate's decision, as a mapping: ``retrieve``, ``score``, ``threshold``, ``reason`` …
    """

    context: NotRequired[list[Document]]
    retrieval: NotRequired[dict[str, Any] | None]


@takes_options(LazyRAGOptions)
class LazyRetrievalMiddleware(AgentMiddleware[Any, Any, Any]):
    """Lets the agent's model answer, and retrieves only if the model is unsure of its answer (L-RAG).

    The gate (option ``gate``) decides from the model's first answer whether to retrieve. Without a retrieval,
    the first answer is returned. With a retrieval, the model answers again with the passages before the
    question; the first answer is dropped without being shown. The agent's conversation keeps the original
    question. Before the search, the model rewrites a follow-up question so that it can be understood without
    the conversation (one more call).

    Tool calls pass through unchanged. A model that reads the result of a tool also sees the passages that
    were retrieved in this run. A structured answer counts as an answer, even if LangChain implements it as a
    tool call. The middleware also retrieves if the first answer is empty, or if a fallback model gave
    the answer without log-probabilities. The gate ``"semantic_entropy"`` draws samples of the answer without
    LangChain's cache, each with its own seed, at most ``max_concurrency`` at a time. With this gate, the
    model of an agent with tools first answers once at the agent's own temperature; if this answer calls a
    tool, the tool runs, and no samples are drawn.

    The agent's state gets ``context`` and ``retrieval`` (see :class:`LazyRetrievalState`). The answer's
    message has the decision in ``response_metadata["surerag"]["retrieval"]``. Callback handlers receive the
    events of :class:`~langchain_surerag.LazyRetrievalChain`. Images and files in the user's message are kept.
    If the first answer is returned, it is streamed as one message, because LangChain gives only whole answers
    to middleware.

    Args:
        retriever: A retriever, or a runnable from a question to documents.
        summaries: Summaries of the documents, as for :class:`~langchain_surerag.LazyRetrievalChain`. Without
            summaries, the model first answers from the conversation alone; we ask it to abstain only if
            ``abstention`` is set or ``gate`` is ``"abstention"``.
        summaries_are_public: Whether every user may see every summary.
        rewrite_follow_ups: Whether a model rewrites follow-up questions for the search.
        rewriter: The model that rewrites follow-up questions; by default the agent's model.
        vocabulary_size: Number of tokens in the model's vocabulary, for the upper bound of entropies.
        **options: Options of :class:`~langchain_surerag.LazyRetrievalChain`. If ``max_tokens`` is None, the
            agent's own limit applies. The prompt ``closed_book`` is the unchanged question by default; the
            prompt ``rewrite_in_conversation`` rewrites follow-up questions.

    Raises:
        ConfigurationError: If an option is unknown or out of bounds, or ``retriever`` is not a retriever.
        MissingServiceError: If ``retriever`` is None.
        CapabilityError: When the model first answers, if the gate needs log-probabilities that the model does
            not return.
    """

    state_schema = LazyRetrievalState

    def __init__(
        self,
        retriever: RetrieverLike,
        summaries: Any = None,
        *,
        summaries_are_public: bool = False,
        rewrite_follow_ups: bool = True,
        rewriter: Any = None,
        vocabulary_size: int = ANY_VOCABULARY,
        **options: Any,
    ) -> None:
        super().__init__()
        if retriever is None:
            raise MissingServiceError("there is no retriever", hint="pass store.as_retriever()")
        check_at_least(2, vocabulary_size=vocabulary_size)
        check_kind(bool, "True or False", summaries_are_public=summaries_are_public)
        check_kind(bool, "True or False", rewrite_follow_ups=rewrite_follow_ups)
        self._rewriter = None if rewriter is None else reader_of(rewriter)
        prompts = options.pop("prompts", {})
        if isinstance(prompts, Mapping):
            prompts = {
                "closed_book": "{question}",
                "rewrite_in_conversation": REWRITE_IN_CONVERSATION,
                **prompts,
            }
            prompts = {name: prompt_of(name, prompt) for name, prompt in prompts.items()}
            rewrite = as_template("rewrite_in_conversation", prompts.pop("rewrite_in_conversation"))
            self._rewrite_prompt = rewrite.require("query") if rewrite_follow_ups else None
        self.options = LazyRAGOptions(prompts=prompts, **options)
        _ = self.options.resolved_threshold  # raises if an option does not belong to the gate
        needs_abstention = summaries is not None or self.options.resolved_gate.name == "abstention"
        if self.options.abstention is None and not needs_abstention:
            self.options = self.options.with_options(abstention=False)
        self._retriever = retriever_of(retriever)
        # An empty summary: the first answer comes from the conversation alone.
        self._summaries: Any = SimpleNamespace(retrieve=lambda query, k: [Passage("")])
        if summaries is not None:
            self._summaries, self._retriever = tiers_of(summaries, retriever, public=summaries_are_public)
        self._vocabulary_size = vocabulary_size

    def before_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """Clear the documents and the decision of an earlier run."""
        return {"context": [], "retrieval": None}

    def wrap_model_call(self, request: AgentRequest, handler: Callable[[AgentRequest], AgentResponse]) -> Any:
        """Let the model answer; if the gate says so, retrieve passages and let the model answer again."""
        return run_blocking(self._answer(request, handler, BLOCKING))

    async def awrap_model_call(
        self, request: AgentRequest, handler: Callable[[AgentRequest], Awaitable[AgentResponse]]
    ) -> Any:
        """Like ``wrap_model_call``, without blocking the event loop."""
        return await self._answer(request, handler, AWAITING)

    async def _answer(self, request: AgentRequest, handler: Handler, calls: Blocking) -> Any:
        question = request.messages[-1] if request.messages else None
        if not isinstance(question, HumanMessage) or not str(question.text).strip():
            return await maybe_await(handler(self._with_context(request)))
        if self.options.resolved_gate.n_samples and request.tools:
            unseen = without_streaming(merge_configs(ensure_config(), {"tags": TAGS["draft"]}))
            first = await _respond(request, handler, unseen)
            if answer_of(first) is None:
                return first
        reader, text = AgentReader(request, handler, self.options, self._vocabulary_size), str(question.text)
        core = LazyRAG(reader, self._retriever, self._summaries, **self.options.options())
        services = replace(core.services, rewriter=self._rewriter or reader_from_model(request.model))
        program = core.program(text)
        if (history := spoken_turns(request.messages[:-1])) and self._rewrite_prompt:
            program = _search_standalone(program, text, history, self._rewrite_prompt)
        try:
            with _client_errors():
                result = await run_program(program, services, ensure_config(), calls)
        except _ToolsCalled as called:
            return called.response
        note = result.decision.to_dict()
        update = {"context": documents_of(result.passages), "retrieval": note}
        return ExtendedModelResponse(_with_note(reader.response_to(result), note), Command(update=update))

    def _with_context(self, request: AgentRequest) -> AgentRequest:
        documents = cast("LazyRetrievalState", request.state).get("context")
        places = (at for at, one in enumerate(request.messages) if isinstance(one, HumanMessage))
        place = max(places, default=None)
        if not documents or place is None:
            return request
        context = format_passages(document.page_content for document in documents)
        question = str(request.messages[place].text)
        prompt = self.options.prompts["from_context"].render(context=context, question=question)
        return _with_prompt(
            request, prompt_value(with_abstention(prompt, self.options.abstention or None)), place
        )


@contextmanager
def _client_errors() -> Iterator[None]:
    """Raise the client's error instead of surerag's, so that other middleware recognises the error."""
    try:
        yield
    except SureragError as error:
        cause = error.__cause__
        if cause is None or isinstance(cause, SureragError) or isinstance(error, LogprobsRefusedError):
            raise
        raise cause from None


def _with_note(response: AgentResponse, note: Mapping[str, Any]) -> AgentResponse:
    message = answer_of(response)
    if message is None:
        return response
    metadata = {**message.response_metadata, "surerag": {"retrieval": note}}
    noted = message.model_copy(update={"response_metadata": metadata})
    return replace(response, result=[noted if one is message else one for one in response.result])


async def _respond(request: AgentRequest, handler: Handler, config: RunnableConfig) -> AgentResponse:
    with set_config_context(config) as context:
        response = context.run(handler, request)
        if inspect.isawaitable(response):
            response = await asyncio.create_task(maybe_await(response), context=context)
    return cast("AgentResponse", response)


def _search_standalone(
    program: Program[LazyRAGResult], question: str, history: Sequence[Message], prompt: Template
) -> Program[LazyRAGResult]:
    """Run L-RAG, but search with a query that a model has rewritten to be clear without ``history``."""

    def handle(effect: Effect[Any]) -> Program[Any]:
        if isinstance(effect, Retrieve) and effect.tier == "passages":
            alone = yield from standalone_question(question, history, prompt)
            effect = replace(effect, query=alone)
        return (yield effect)

    return handled(program, handle, end_of_program)


def answer_of(response: AgentResponse) -> AIMessage | None:
    """Return the model's answer, which may be empty; None if the model calls tools for the agent to run."""
    answers = [message for message in response.result if isinstance(message, AIMessage)]
    if not answers or isinstance(response.result[-1], ToolMessage):
        return answers[-1] if answers else None
    last = answers[-1]
    return None if last.tool_calls or (last.invalid_tool_calls and not str(last.text).strip()) else last


def _fields_of(message: AIMessage, response: AgentResponse) -> Any:
    if message.tool_calls:
        return [call["args"] for call in message.tool_calls]
    if response.structured_response is not None:
        with suppress(ValueError):
            return json.loads(split_thoughts(str(message.text))[1])
    return None


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(one)


def _with_prompt(request: AgentRequest, prompt: PromptValue, place: int) -> AgentRequest:
    """Replace the user's question, which is the message at index ``place``, by the text of ``prompt``.

    The system messages of ``prompt`` are appended to the agent's system message.
    """
    turns = prompt.to_messages()
    question, system = cast("HumanMessage", request.messages[place]), request.system_message
    text = "\n".join(str(turn.text) for turn in turns if not isinstance(turn, SystemMessage))
    rules = "\n\n".join(str(turn.text) for turn in turns if isinstance(turn, SystemMessage))
    update: dict[str, Any] = {"response_metadata": turns[-1].response_metadata}
    if text != str(question.text):
        update["content"] = _with_text(question, text)
    if rules and isinstance(content := system.content if system else "", str):
        system = SystemMessage(f"{content}\n\n{rules}".strip())
    elif rules:
        system = SystemMessage([*content, {"type": "text", "text": rules}])
    messages = list(request.messages)
    messages[place] = question.model_copy(update=update)
    return request.override(messages=messages, system_message=system)


def _with_text(question: HumanMessage, text: str) -> str | list[str | dict[Any, Any]]:
    if isinstance(question.content, str):
        return text
    others = [block for block in question.content if isinstance(block, dict) and block.get("type") != "text"]
    return [{"type": "text", "text": text}, *others]
