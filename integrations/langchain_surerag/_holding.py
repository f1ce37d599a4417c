"""A draft is shown once it is known to be the answer; until then, those who show tokens have to wait.

A gate's first pass is one open stream. If the gate stays shut, that stream goes on and is the answer; else it
is thrown away. Handlers that show tokens as they come (LangGraph's, those of ``astream_events``, a user's
own) get them when this is settled, or never. Tracers record; nothing is kept from them.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

from langchain_core.callbacks import (
    AsyncCallbackHandler,
    BaseCallbackHandler,
    BaseCallbackManager,
    Callbacks,
)
from langchain_core.callbacks.manager import ahandle_event, handle_event
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.tracers.base import AsyncBaseTracer, BaseTracer
from langchain_core.tracers.context import _configure_hooks

from langchain_surerag._passes import ANSWER, GATE, NOSTREAM

_IGNORED = {"on_chat_model_start": "ignore_chat_model", "on_retry": "ignore_retry"}


class _Event(NamedTuple):
    name: str
    given: tuple[Any, ...]
    named: dict[str, Any]


class Hold:
    """What is kept from the handlers of one draft.

    Every verb may be called again; the first one counts.
    """

    def __init__(self) -> None:
        self.verdict: Literal["pending", "kept", "dropped"] = "pending"
        self._held: dict[int, _Held] = {}
        self._lock = threading.Lock()

    def over(self, callbacks: Callbacks) -> Callbacks:
        """Return callbacks in which those who show tokens are kept waiting."""
        if callbacks is None or self.verdict != "pending":
            return callbacks
        if not isinstance(callbacks, BaseCallbackManager):
            return self._wrapped(callbacks)
        manager = callbacks.copy()
        manager.handlers = self._wrapped(manager.handlers)
        manager.inheritable_handlers = self._wrapped(manager.inheritable_handlers)
        return manager

    def keep(self) -> None:
        """Show what there is; what follows is shown as it comes."""
        self._tell("kept")

    def drop(self) -> None:
        """Show none of it."""
        self._tell("dropped")

    async def akeep(self) -> None:
        """Like :meth:`keep`, awaiting handlers."""
        await self._atell("kept")

    async def adrop(self) -> None:
        """Like :meth:`drop`, awaiting handlers."""
        await self._atell("dropped")

    def _tell(self, verdict: Literal["kept", "dropped"]) -> None:
        for held in self._settled(verdict):
            for event in held.release():
                handle_event([held.handler], event.name, _ignored(event.name), *event.given, **event.named)

    async def _atell(self, verdict: Literal["kept", "dropped"]) -> None:
        for held in self._settled(verdict):
            for event in held.release():
                await ahandle_event(
                    [held.handler], event.name, _ignored(event.name), *event.given, **event.named
                )

    def _settled(self, verdict: Literal["kept", "dropped"]) -> list[_Held]:
        with self._lock:
            if self.verdict != "pending":
                return []
            self.verdict = verdict
            return list(self._held.values())

    def _wrapped(self, handlers: Sequence[BaseCallbackHandler]) -> list[BaseCallbackHandler]:
        hooked = {id(hook[0].get()) for hook in _configure_hooks}
        return [
            self._wrap(handler) if _shows(handler) and id(handler) not in hooked else handler
            for handler in handlers
        ]

    def _wrap(self, handler: BaseCallbackHandler) -> BaseCallbackHandler:
        streams = isinstance(handler, _StreamingCallbackHandler)
        kind: type[_Held]
        if isinstance(handler, AsyncCallbackHandler):
            kind = _AsyncStreamHeld if streams else _AsyncHeld
        else:
            kind = _StreamHeld if streams else _Held
        # One for all places where a handler stands: it is told once.
        return self._held.setdefault(id(handler), kind(handler, self))


def _ignored(name: str) -> str:
    return _IGNORED.get(name, "ignore_llm")


def _shows(handler: BaseCallbackHandler) -> bool:
    """Whether a handler may show tokens as they come, rather than record them."""
    if isinstance(handler, _StreamingCallbackHandler):
        return True
    if isinstance(handler, BaseTracer | AsyncBaseTracer | _Held):
        return False
    own = type(handler).on_llm_new_token
    return own not in (BaseCallbackHandler.on_llm_new_token, AsyncCallbackHandler.on_llm_new_token)


class _Held(BaseCallbackHandler):
    """Stands before a handler and lets through what may be known already.

    A handler of a stream learns of the run only when it is settled what it is, so that its tags are right
    from the start; any other learns of it at once, and waits for the tokens.
    """

    def __init__(self, handler: BaseCallbackHandler, hold: Hold) -> None:
        self.handler: Any = handler
        self.raise_error = handler.raise_error
        self.run_inline = handler.run_inline
        self._hold = hold
        self._whole = isinstance(handler, _StreamingCallbackHandler)
        self._events: list[_Event] = []

    @property
    def ignore_llm(self) -> bool:
        return bool(self.handler.ignore_llm)

    @property
    def ignore_chat_model(self) -> bool:
        return bool(self.handler.ignore_chat_model)

    @property
    def ignore_retry(self) -> bool:
        return bool(self.handler.ignore_retry)

    def on_llm_start(self, *given: Any, **named: Any) -> Any:
        return self._pass("on_llm_start", given, named)

    def on_chat_model_start(self, *given: Any, **named: Any) -> Any:
        return self._pass("on_chat_model_start", given, named)

    def on_llm_new_token(self, *given: Any, **named: Any) -> Any:
        return self._pass("on_llm_new_token", given, named)

    def on_llm_end(self, *given: Any, **named: Any) -> Any:
        return self._pass("on_llm_end", given, named)

    def on_llm_error(self, *given: Any, **named: Any) -> Any:
        return self._pass("on_llm_error", given, named)

    def on_retry(self, *given: Any, **named: Any) -> Any:
        return self._pass("on_retry", given, named)

    def release(self) -> list[_Event]:
        """Return what waited, as it is to be told now."""
        events, self._events = self._events, []
        return [told for event in events if (told := self._told(event)) is not None]

    def _pass(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        told = self._now(_Event(name, given, named))
        return None if told is None else getattr(self.handler, name)(*told.given, **told.named)

    def _now(self, event: _Event) -> _Event | None:
        """Return an event that may pass now; what may not waits, or is gone."""
        if self._hold.verdict != "pending":
            return self._told(event)
        if self._whole or event.name == "on_llm_new_token":
            self._events.append(event)
            return None
        return event

    def _told(self, event: _Event) -> _Event | None:
        if self._hold.verdict == "dropped":
            return None if event.name == "on_llm_new_token" else event
        if not self._whole:
            return event
        named = dict(event.named)
        if named.get("tags") is not None:
            named["tags"] = [*(tag for tag in named["tags"] if tag not in (NOSTREAM, GATE)), ANSWER]
        if named.get("name") == GATE:
            named["name"] = ANSWER
        return event._replace(named=named)


class _AsyncHeld(_Held):
    """The same before a handler that awaits."""

    async def on_llm_start(self, *given: Any, **named: Any) -> Any:
        return await self._apass("on_llm_start", given, named)

    async def on_chat_model_start(self, *given: Any, **named: Any) -> Any:
        return await self._apass("on_chat_model_start", given, named)

    async def on_llm_new_token(self, *given: Any, **named: Any) -> Any:
        return await self._apass("on_llm_new_token", given, named)

    async def on_llm_end(self, *given: Any, **named: Any) -> Any:
        return await self._apass("on_llm_end", given, named)

    async def on_llm_error(self, *given: Any, **named: Any) -> Any:
        return await self._apass("on_llm_error", given, named)

    async def on_retry(self, *given: Any, **named: Any) -> Any:
        return await self._apass("on_retry", given, named)

    async def _apass(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        told = self._pass(name, given, named)
        return await told if inspect.isawaitable(told) else told


class _StreamHeld(_Held):
    """The same before a handler for whose sake models stream."""

    def tap_output_iter(self, run_id: UUID, output: Any) -> Any:
        return self.handler.tap_output_iter(run_id, output)

    def tap_output_aiter(self, run_id: UUID, output: Any) -> Any:
        return self.handler.tap_output_aiter(run_id, output)


class _AsyncStreamHeld(_AsyncHeld, _StreamHeld):
    """Both."""
