"""How requests get to the server and answers back: retries, refusals, errors, counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from surerag.errors import ServiceError
from surerag.readers.openai.clients import Clients
from surerag.readers.openai.failures import explained, refused, said, sdk_errors
from surerag.readers.openai.parse import Json, Wanted, choices_of, usage_of
from surerag.readers.openai.requests import Ask, Dialect
from surerag.readers.openai.retry import RetryPolicy
from surerag.readers.openai.stream import AsyncGuard, AsyncOpenStream, Guard, OpenStream, as_json
from surerag.types import Usage

R = TypeVar("R")

_NOT_IN_SDK = frozenset({"top_k", "prompt_logprobs", "add_generation_prompt", "continue_final_message"})


class Transport:
    """Sends requests to one server.

    Args:
        clients: The SDK's clients for it.
        policy: When to ask again.
        extra_body: Further fields of every body.
    """

    def __init__(self, clients: Clients, policy: RetryPolicy, extra_body: Mapping[str, Any]) -> None:
        self.clients = clients
        self.usage = Usage()
        self._policy = policy
        self._extra_body = dict(extra_body)
        self._dialect = Dialect()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def count(self, usage: Usage) -> None:
        """Add to the totals."""
        with self._lock:
            self.usage += usage

    def ask(self, ask: Ask) -> Json:
        """Send one request and return its answer; for a streamed one, its ``events``."""
        return self._retrying(ask, lambda: self._answer(ask))

    async def aask(self, ask: Ask) -> Json:
        """Like ``ask``, over the async client."""

        async def attempt() -> Json:
            return await self._aanswer(ask)

        return await self._aretrying(ask, attempt)

    def open(self, ask: Ask, wanted: Wanted, use: Callable[[OpenStream], R]) -> R:
        """Open a stream and use it; both are done again if they fail in a way that may pass."""

        def attempt() -> R:
            guard = self._guard(ask)
            return use(OpenStream(self._send(ask), guard, wanted, self.count))

        return self._retrying(ask, attempt)

    async def aopen(self, ask: Ask, wanted: Wanted, use: Callable[[AsyncOpenStream], Awaitable[R]]) -> R:
        """Like ``open``, over the async client."""

        async def attempt() -> R:
            guard = self._aguard(ask)
            return await use(AsyncOpenStream(await self._asend(ask), guard, wanted, self.count))

        return await self._aretrying(ask, attempt)

    def _answer(self, ask: Ask) -> Json:
        answer = self._send(ask)
        if ask.body.get("stream"):
            return {"events": self._guard(ask)(lambda: [as_json(event) for event in answer])}
        return self._checked(answer.text)

    async def _aanswer(self, ask: Ask) -> Json:
        answer = await self._asend(ask)
        if ask.body.get("stream"):
            return {"events": await self._aguard(ask)(_collected(answer))}
        return self._checked(answer.text)

    def _checked(self, text: str) -> Json:
        try:
            answer: Any = json.loads(text.strip() or "null")
        except ValueError:
            answer = text
        choices_of(answer)
        checked: Json = answer
        self.count(usage_of(checked))
        return checked

    def _send(self, ask: Ask) -> Any:
        """Send a body, in other words if the server refuses these; return what the SDK returns."""
        while True:
            body = self._dialect.render({**ask.body, **self._extra_body})
            try:
                return _method(self.clients.client(), ask)(**_for_sdk(body, self._extra_body))
            except sdk_errors() as error:
                failure = self._understood(error, ask, body)
            if failure is not None:
                raise failure

    async def _asend(self, ask: Ask) -> Any:
        while True:
            body = self._dialect.render({**ask.body, **self._extra_body})
            try:
                return await _method(self.clients.async_client(), ask)(**_for_sdk(body, self._extra_body))
            except sdk_errors() as error:
                failure = self._understood(error, ask, body)
            if failure is not None:
                raise failure

    def _understood(self, error: Exception, ask: Ask, sent: Mapping[str, Any]) -> ServiceError | None:
        """Return what went wrong, or None if the request should go out again in other words."""
        if refused(error) and self._dialect.learn(said(error), sent):
            return None
        return explained(error, self.clients.host, ask.body, self.clients.without_key)

    def _guard(self, ask: Ask) -> Guard:
        def guard(step: Callable[[], Any]) -> Any:
            try:
                return step()
            except sdk_errors() as error:
                failure = explained(error, self.clients.host, ask.body, self.clients.without_key)
            raise failure

        return guard

    def _aguard(self, ask: Ask) -> AsyncGuard:
        async def guard(step: Awaitable[Any]) -> Any:
            try:
                return await step
            except sdk_errors() as error:
                failure = explained(error, self.clients.host, ask.body, self.clients.without_key)
            raise failure

        return guard

    def _retrying(self, ask: Ask, attempt: Callable[[], R]) -> R:
        if not ask.patient:
            return attempt()
        import tenacity

        return tenacity.Retrying(**self._policy.settings())(attempt)

    async def _aretrying(self, ask: Ask, attempt: Callable[[], Awaitable[R]]) -> R:
        if not ask.patient:
            return await attempt()
        import tenacity

        return await tenacity.AsyncRetrying(**self._policy.settings())(attempt)


def _method(client: Any, ask: Ask) -> Any:
    """Return the SDK's method for a request; whole answers come raw, because we read them ourselves."""
    resource = client.chat.completions if ask.api == "chat" else client.completions
    return resource.create if ask.body.get("stream") else resource.with_raw_response.create


def _for_sdk(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Set apart the fields that the SDK's methods do not take by name."""
    unknown = {key: value for key, value in body.items() if key in _NOT_IN_SDK or key in extra}
    known = {key: value for key, value in body.items() if key not in unknown}
    return {**known, "extra_body": unknown} if unknown else known


async def _collected(events: Any) -> list[Json]:
    return [as_json(event) async for event in events]
