"""How requests get to the server and answers back: retries, refusals, errors, counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from surerag.errors import ConfigurationError, ServiceError
from surerag.readers.openai.clients import Clients
from surerag.readers.openai.failures import explained, refused, said, sdk_errors
from surerag.readers.openai.limits import Meter, aread, read
from surerag.readers.openai.parse import Json, Wanted, choices_of, json_of, usage_of
from surerag.readers.openai.requests import Ask, Dialect
from surerag.readers.openai.retry import RetryPolicy
from surerag.readers.openai.secrets import secrets_of_body, without_secrets
from surerag.readers.openai.stream import (
    AsyncEvents,
    AsyncGuard,
    AsyncOpenStream,
    Events,
    Guard,
    OpenStream,
)
from surerag.readers.usage import UsageCount
from surerag.types import Usage

if TYPE_CHECKING:
    import httpx

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
        self._counted = UsageCount()
        self._policy = policy
        self._extra_body = dict(extra_body)
        self._lost: list[str] = []
        self._dialect = Dialect()
        clients.hide(secrets_of_body(extra_body))

    def __getstate__(self) -> dict[str, Any]:
        kept = without_secrets(self._extra_body)
        lost = [name for name, value in self._extra_body.items() if kept.get(name) != value]
        return {**self.__dict__, "_extra_body": kept, "_lost": [*self._lost, *lost]}

    @property
    def usage(self) -> Usage:
        """What was asked and answered so far."""
        return self._counted.total

    def count(self, usage: Usage) -> None:
        """Add to the totals."""
        self._counted.add(usage)

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
            meter = Meter(self.clients.limits)
            events = Events(self._send(ask, meter), meter)
            return use(OpenStream(events, self._guard(ask), wanted, self.count, _limit(ask)))

        return self._retrying(ask, attempt)

    async def aopen(self, ask: Ask, wanted: Wanted, use: Callable[[AsyncOpenStream], Awaitable[R]]) -> R:
        """Like ``open``, over the async client."""

        async def attempt() -> R:
            meter = Meter(self.clients.limits)
            events = AsyncEvents(await self._asend(ask, meter), meter)
            return await use(AsyncOpenStream(events, self._aguard(ask), wanted, self.count, _limit(ask)))

        return await self._aretrying(ask, attempt)

    def _answer(self, ask: Ask) -> Json:
        meter = Meter(self.clients.limits)
        response = self._send(ask, meter)
        guard = self._guard(ask)
        try:
            if not ask.body.get("stream"):
                return self._checked(guard(lambda: read(response, meter)))
            events = Events(response, meter)
            return {"events": list(iter(lambda: guard(events.read), None))}
        finally:
            response.close()

    async def _aanswer(self, ask: Ask) -> Json:
        meter = Meter(self.clients.limits)
        response = await self._asend(ask, meter)
        guard = self._aguard(ask)
        try:
            if not ask.body.get("stream"):
                return self._checked(await guard(aread(response, meter)))
            events = AsyncEvents(response, meter)
            found = []
            while (event := await guard(events.read())) is not None:
                found.append(event)
            return {"events": found}
        finally:
            await response.aclose()

    def _checked(self, body: bytes) -> Json:
        text = body.decode(errors="replace").strip()
        answer: Any = json_of(text) if text else None
        choices_of(answer)
        checked: Json = answer
        self.count(usage_of(checked))
        return checked

    def _send(self, ask: Ask, meter: Meter) -> httpx.Response:
        """Send a body, in other words if the server refuses these; return the response, its body unread."""
        dialect = self._dialect
        while True:
            body = self._body(ask, dialect)
            try:
                opening = _method(self.clients.client(), ask)(**_for_sdk(body, self._extra_body))
                with meter.running():
                    response: httpx.Response = opening.__enter__().http_response
            except sdk_errors() as error:
                dialect, failure = self._understood(error, ask, body, dialect)
            else:
                # Only words that the server then took are kept for later requests.
                self._dialect = dialect
                return response
            if failure is not None:
                raise failure

    async def _asend(self, ask: Ask, meter: Meter) -> httpx.Response:
        dialect = self._dialect
        while True:
            body = self._body(ask, dialect)
            try:
                opening = _method(self.clients.async_client(), ask)(**_for_sdk(body, self._extra_body))
                async with meter.arunning():
                    response: httpx.Response = (await opening.__aenter__()).http_response
            except sdk_errors() as error:
                dialect, failure = self._understood(error, ask, body, dialect)
            else:
                self._dialect = dialect
                return response
            if failure is not None:
                raise failure

    def _body(self, ask: Ask, dialect: Dialect) -> dict[str, Any]:
        if self._lost:
            raise ConfigurationError(
                f"extra_body held secrets under {', '.join(self._lost)}, which a pickle does not keep",
                hint="build the reader anew where it is used",
            )
        return dialect.render({**ask.body, **self._extra_body})

    def _understood(
        self, error: Exception, ask: Ask, sent: Mapping[str, Any], dialect: Dialect
    ) -> tuple[Dialect, ServiceError | None]:
        """Return other words for the request, or what went wrong."""
        learnt = dialect.learnt(said(error), sent) if refused(error) else None
        if learnt is not None:
            return learnt, None
        return dialect, explained(error, self.clients.host, ask.body, self.clients.without_key)

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
    """Return the SDK's method for a request, whose response we read ourselves.

    The SDK's own stream is a reference cycle around an open connection, which only the garbage collector
    takes apart.
    """
    resource = client.chat.completions if ask.api == "chat" else client.completions
    return resource.with_streaming_response.create


def _limit(ask: Ask) -> int | None:
    limit = ask.body.get("max_tokens")
    return limit if isinstance(limit, int) else None


def _for_sdk(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Set apart the fields that the SDK's methods do not take by name."""
    unknown = {key: value for key, value in body.items() if key in _NOT_IN_SDK or key in extra}
    known = {key: value for key, value in body.items() if key not in unknown}
    return {**known, "extra_body": unknown} if unknown else known
