"""Show what a method of surerag does in LangChain's traces: tagged model calls, events, and answers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from uuid import uuid4

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.callbacks.manager import adispatch_custom_event, dispatch_custom_event
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
    merge_configs,
    set_config_context,
)
from langchain_core.tracers.base import AsyncBaseTracer, BaseTracer

from surerag import Services
from surerag.drivers import arun, maybe_await, run
from surerag.effects import ContinueGeneration, Effect, Generate, Program, StartGeneration, handled
from surerag.errors import SureragError
from surerag.messages import Event
from surerag.readers import Blocking

T = TypeVar("T")
Purpose = Literal["draft", "step", "answer"]
"""The purpose of a request: a draft that may be dropped, an intermediate step, or the answer itself."""
PURPOSE: ContextVar[Purpose | None] = ContextVar("langchain_surerag_purpose", default=None)
_MESSAGE_IDS: ContextVar[list[str] | None] = ContextVar("langchain_surerag_message_ids", default=None)
TAGS: dict[Purpose, list[str]] = {
    "draft": ["nostream", "surerag:draft"],
    "step": ["nostream", "surerag:step"],
    "answer": ["surerag:answer"],
}
"""Tags of requests. LangGraph's ``stream_mode="messages"`` does not show runs with the tag ``nostream``."""


def purpose_of(effect: Effect[Any]) -> Purpose:
    """Return the purpose of a request.

    ``"answer"``: the text that is returned. ``"draft"``: one of several samples, or a first answer that may
    be dropped. ``"step"``: anything else.
    """
    match effect:
        case StartGeneration():
            return "draft"
        case Generate(answer=True) | ContinueGeneration(answer=True):
            return "answer"
        case Generate(sampling=sampling) if sampling.n > 1:
            return "draft"
        case _:
            return "step"


def end_of_program(error: BaseException) -> BaseException | None:
    """Return the one of ``error`` and its cause that ends a generator or interrupts LangGraph, or None."""
    graphs: Any = sys.modules.get("langgraph.errors")
    kinds = GeneratorExit if graphs is None else (GeneratorExit, graphs.GraphBubbleUp)
    return next((one for one in (error, error.__cause__) if isinstance(one, kinds)), None)


def with_purposes(program: Program[T]) -> Program[T]:
    """Wrap a method's generator, so that :data:`PURPOSE` holds the purpose of the effect being handled."""

    def handle(effect: Effect[Any]) -> Program[Any]:
        PURPOSE.set(purpose_of(effect))
        return (yield effect)

    return handled(program, handle, end_of_program)


def request_config(purpose: Purpose | None) -> RunnableConfig:
    """Return the current config for one request, with the tags of the request's purpose."""
    config = ensure_config()
    if purpose is None:
        return config
    tagged = merge_configs(config, {"tags": TAGS[purpose]})
    if purpose == "answer" and (ids := _MESSAGE_IDS.get()) is not None:
        tagged = merge_configs(tagged, {"callbacks": [_MessageIds(ids)]})
    return without_streaming(tagged) if purpose == "draft" else tagged


def collect_message_ids() -> list[str]:
    """Return a list that will get the ids of answers that are streamed in this ``contextvars`` context.

    LangGraph shows each message id once. So if a chain returns its answer under the id of the streamed
    answer, LangGraph does not show the answer twice.
    """
    ids: list[str] = []
    _MESSAGE_IDS.set(ids)
    return ids


class _MessageIds(BaseCallbackHandler):
    run_inline = True

    def __init__(self, ids: list[str]) -> None:
        self._ids = ids

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        messages = (getattr(one, "message", None) for row in response.generations for one in row)
        self._ids += [message.id for message in messages if message is not None and message.id]


class _WithoutTokens:
    """Passes every event of a model call, except streamed tokens, to another callback handler."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._handler == other)

    def __hash__(self) -> int:
        return hash(self._handler)

    def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        pass


def without_streaming(config: RunnableConfig) -> RunnableConfig:
    """Return a config whose callback handlers, except tracers, receive no streamed tokens."""
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        quiet = callbacks.copy()
        quiet.handlers = _without_tokens(quiet.handlers)
        quiet.inheritable_handlers = _without_tokens(quiet.inheritable_handlers)
        return {**config, "callbacks": quiet}
    return {**config, "callbacks": _without_tokens(callbacks)} if callbacks else config


def _without_tokens(handlers: Iterable[Any]) -> list[Any]:
    return [
        handler if isinstance(handler, BaseTracer | AsyncBaseTracer) else _WithoutTokens(handler)
        for handler in handlers
        # Handlers of LangGraph and astream_events are left out, because they stream to a user.
        if not hasattr(handler, "tap_output_iter")
    ]


class AnswerRun:
    """Reports an answer to LangChain as a model's run: first the tokens, and at the end the whole text."""

    def __init__(self, prompt: str, calls: Blocking) -> None:
        self._calls = calls
        self._config = merge_configs(ensure_config(), {"tags": TAGS["answer"]})
        self._prompt = prompt
        self._id = uuid4()
        self._text = ""
        self._run: Any = None

    @property
    def is_watched(self) -> bool:
        """Whether a callback handler may show streamed text to a user; a tracer only records the text."""
        handlers = manager_of(self._config, self._calls).handlers
        return any(
            hasattr(one, "tap_output_iter") or not isinstance(one, BaseTracer | AsyncBaseTracer)
            for one in handlers
        )

    async def token(self, piece: str) -> None:
        """Report a piece of the answer; a draft that is generated only for the gate is not reported."""
        if self._run is None:
            if PURPOSE.get() == "step":
                return
            messages, manager = [[HumanMessage(self._prompt)]], manager_of(self._config, self._calls)
            [self._run] = await maybe_await(
                manager.on_chat_model_start({}, messages, run_id=self._id, name="surerag:answer")
            )
        self._text += piece
        message = AIMessageChunk(content=piece, id=f"run-{self._id}")
        await maybe_await(self._run.on_llm_new_token(piece, chunk=ChatGenerationChunk(message=message)))

    async def end(self) -> None:
        """Report the end of the run."""
        if self._run is not None:
            message = AIMessage(self._text, id=f"run-{self._id}")
            result = LLMResult(generations=[[ChatGeneration(message=message)]])
            await maybe_await(self._run.on_llm_end(result))
            if (ids := _MESSAGE_IDS.get()) is not None:
                ids.append(f"run-{self._id}")


async def stream_whole(text: str, ids: Sequence[str], calls: Blocking) -> None:
    """Report a whole answer in one piece if no answer was streamed, that is, if ``ids`` is empty."""
    if text and not ids:
        run = AnswerRun("", calls)
        await run.token(text)
        await run.end()


def listener_of(config: RunnableConfig) -> Callable[[Event], None]:
    """Return a function that sends a method's events to the callback handlers of the config's run."""

    def listen(event: Event) -> None:
        if has_run(config):
            dispatch_custom_event(event.name, dict(event.data), config=config)

    return listen


class AsyncListener:
    """Sends a method's events to the async callback handlers of a traced run, in a background task."""

    def __init__(self, config: RunnableConfig) -> None:
        self._config = config
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def __call__(self, event: Event) -> None:
        """Queue an event."""
        self._events.put_nowait(event)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._hand_on())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._events.put_nowait(None)
        if kind is not None and not issubclass(kind, Exception):
            self._task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(self._task, return_exceptions=kind is not None)

    async def wait_for_delivery(self) -> None:
        """Wait until every event so far has reached its handlers."""
        await self._events.join()

    async def _hand_on(self) -> None:
        failure: Exception | None = None
        while (event := await self._events.get()) is not None:
            try:
                if has_run(self._config):
                    await adispatch_custom_event(event.name, dict(event.data), config=self._config)
            except Exception as error:
                failure = failure or error
            finally:
                self._events.task_done()
        if failure is not None:
            raise failure


def has_run(config: RunnableConfig) -> bool:
    """Whether the config has a run that events can belong to; LangChain rejects events without a run."""
    return getattr(config.get("callbacks"), "parent_run_id", None) is not None


@contextmanager
def errors_of_client_class() -> Iterator[None]:
    """Give an error that is raised in this context a second class: the class of the client's error.

    ``with_fallbacks(…, exceptions_to_handle=(RateLimitError,))`` and ``with_retry`` then catch the error.
    """
    try:
        yield
    except SureragError as error:
        cause = error.__cause__
        if cause is None or isinstance(cause, SureragError) or not isinstance(cause, Exception):
            raise
        failure = _error_of_both_classes(error, cause)
    else:
        return
    raise failure from cause


def _error_of_both_classes(error: SureragError, cause: Exception) -> SureragError:
    try:
        kinds: tuple[Any, Any] = type(error), type(cause)
        kind = _class_of_both(*kinds)
        both: SureragError = kind.__new__(kind, *error.args)
    except TypeError:  # Python cannot derive a class from some pairs of C classes
        return error
    vars(both).update({**vars(cause), **vars(error)})
    return both.with_traceback(error.__traceback__)


@lru_cache(maxsize=256)
def _class_of_both(ours: type[SureragError], theirs: type[Exception]) -> type[SureragError]:
    if issubclass(ours, theirs):
        return ours

    def reduce(self: SureragError) -> tuple[Any, ...]:
        return _rebuild_error, (ours, self.args, {"message": self.message, "hint": self.hint})

    return type(ours.__name__, (ours, theirs), {"__module__": ours.__module__, "__reduce__": reduce})


def _rebuild_error(
    kind: type[SureragError], arguments: tuple[Any, ...], carried: dict[str, Any]
) -> SureragError:
    """Restore a pickled error with the class ``kind``; its former class was made at run time."""
    error = kind.__new__(kind, *arguments)
    vars(error).update(carried)
    return error


def manager_of(config: RunnableConfig, calls: Blocking) -> Any:
    """Return the config's callback manager, for blocking or for awaited calls."""
    if calls.prefix:
        return get_async_callback_manager_for_config(config)
    return get_callback_manager_for_config(config)


async def run_program(program: Program[T], services: Services, config: RunnableConfig, calls: Blocking) -> T:
    """Run the generator of a RAG method below the traced run of ``config``, and return its result."""
    program = with_purposes(program)
    if not calls.prefix:
        with errors_of_client_class(), set_config_context(config) as context:
            return context.run(run, program, services, on_event=listener_of(config))
    async with AsyncListener(config) as listener:
        with errors_of_client_class(), set_config_context(config) as context:
            work = arun(program, services, on_event=listener)
            return await asyncio.create_task(work, context=context)
