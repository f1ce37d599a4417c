"""How requests get to the server and answers back: retries, refusals, errors, counts."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from surerag.errors import ConfigurationError, RefusedError, ServiceError
from surerag.messages import Usage
from surerag.readers.hosted.clients import Clients
from surerag.readers.hosted.failures import explained, refused, said, sdk_errors
from surerag.readers.hosted.knowledge import Knowledge, kept
from surerag.readers.hosted.limits import Meter, aread, read
from surerag.readers.hosted.parse import Api, Draft, choices_of, usage_of
from surerag.readers.hosted.requests import Ask
from surerag.readers.hosted.responses import chat_answer, chat_piece
from surerag.readers.hosted.retry import RetryPolicy
from surerag.readers.hosted.secrets import secrets_of_body, without_secrets
from surerag.readers.hosted.stream import (
    AsyncEvents,
    AsyncGuard,
    AsyncOpenStream,
    Events,
    Guard,
    OpenStream,
    Report,
    checked,
)
from surerag.readers.hosted.text import Json, json_of
from surerag.readers.refusals import Understood
from surerag.readers.usage import UsageCount

if TYPE_CHECKING:
    import httpx

R = TypeVar("R")

_NAMED = frozenset({"model", "messages", "prompt", "input", "stream"})
"""Fields that are no parameters: no word of a refusal is about them."""

_ROUNDS = 8
"""How often one request is put in other words, at most; a service names one parameter at a time."""


@dataclass
class _Trial:
    """A request in the words of the moment, and what the service said against them.

    Attributes:
        ask: What is asked.
        arguments: The whole body, before it is put in the service's words.
        kept: Fields that cannot be left out.
        understood: What the service is taken to refuse.
        reasons: Its words, by the field that is left out for them.
        refusal: What it said against this form; None if it said nothing.
        round: How many forms were tried before.
    """

    ask: Ask
    arguments: Mapping[str, Any]
    kept: frozenset[str]
    understood: Understood
    reasons: Mapping[str, str] = field(default_factory=dict)
    refusal: str | None = None
    round: int = 0


class Transport:
    """Sends requests to one server.

    Args:
        clients: The SDK's clients for it.
        policy: When to ask again.
        extra_body: Further fields of every body, as the user gave them: they win over all others.
        told: Further fields of every body that we give, and leave out where the service refuses them.
        known: What is known of the model.
    """

    def __init__(
        self,
        clients: Clients,
        policy: RetryPolicy,
        extra_body: Mapping[str, Any],
        told: Mapping[str, Any],
        known: Knowledge,
    ) -> None:
        self.clients = clients
        self.told = dict(told)
        self._counted = UsageCount()
        self._policy = policy
        self._extra_body = dict(extra_body)
        self._lost: list[str] = []
        self._known = known
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
        return self._retrying(ask, lambda: self._learning(ask, self._answer))

    async def aask(self, ask: Ask) -> Json:
        """Like ``ask``, over the async client."""

        async def attempt() -> Json:
            return await self._alearning(ask, self._aanswer)

        return await self._aretrying(ask, attempt)

    def open(self, ask: Ask, draft: Callable[[], Draft], use: Callable[[OpenStream], R]) -> R:
        """Open a stream and use it; both are done again if they fail in a way that may pass.

        Args:
            ask: What to ask.
            draft: Makes the answer that is to be filled.
            use: What to do with the stream.
        """

        def attempt(trial: _Trial) -> R:
            meter = Meter(self.clients.limits)
            events = Events(self._send(trial, meter), meter, _piece_of(ask.api))
            return use(OpenStream(events, self._guard(trial), draft(), self._report))

        return self._retrying(ask, lambda: self._learning(ask, attempt))

    async def aopen(
        self, ask: Ask, draft: Callable[[], Draft], use: Callable[[AsyncOpenStream], Awaitable[R]]
    ) -> R:
        """Like ``open``, over the async client."""

        async def attempt(trial: _Trial) -> R:
            meter = Meter(self.clients.limits)
            events = AsyncEvents(await self._asend(trial, meter), meter, _piece_of(ask.api))
            return await use(AsyncOpenStream(events, self._aguard(trial), draft(), self._report))

        async def patiently() -> R:
            return await self._alearning(ask, attempt)

        return await self._aretrying(ask, patiently)

    @property
    def _report(self) -> Report:
        return Report(self.count, self._known.saw)

    def _answer(self, trial: _Trial) -> Json:
        meter = Meter(self.clients.limits)
        response = self._send(trial, meter)
        guard = self._guard(trial)
        try:
            if not trial.ask.body.get("stream"):
                body = guard(lambda: read(response, meter))
                answer: Json = guard(lambda: self._checked(trial.ask.api, body))
                return answer
            events = Events(response, meter, _piece_of(trial.ask.api))
            return {"events": list(iter(lambda: guard(events.read), None))}
        finally:
            response.close()

    async def _aanswer(self, trial: _Trial) -> Json:
        meter = Meter(self.clients.limits)
        response = await self._asend(trial, meter)
        guard = self._aguard(trial)
        try:
            if not trial.ask.body.get("stream"):
                body = await guard(aread(response, meter))
                answer: Json = self._guard(trial)(lambda: self._checked(trial.ask.api, body))
                return answer
            events = AsyncEvents(response, meter, _piece_of(trial.ask.api))
            found = []
            while (event := await guard(events.read())) is not None:
                found.append(event)
            return {"events": found}
        finally:
            await response.aclose()

    def _checked(self, api: Api, body: bytes) -> Json:
        text = body.decode(errors="replace").strip()
        answer: Any = json_of(text) if text else None
        if api == "responses":
            answer = chat_answer(answer)
        if isinstance(answer, Mapping):
            checked(answer)
        choices_of(answer)
        self.count(usage_of(answer))
        found: Json = answer
        return found

    def _learning(self, ask: Ask, attempt: Callable[[_Trial], R]) -> R:
        """Do what a request is for, in other words if the service refuses the first ones."""
        trial = self._first_trial(ask)
        while True:
            try:
                result = attempt(trial)
            except RefusedError:
                following = self._next_trial(trial)
                if following is None:
                    raise
                trial = following
            else:
                # Only words that the service then took are kept for later requests.
                self._keep(trial)
                return result

    async def _alearning(self, ask: Ask, attempt: Callable[[_Trial], Awaitable[R]]) -> R:
        trial = self._first_trial(ask)
        while True:
            try:
                result = await attempt(trial)
            except RefusedError:
                following = self._next_trial(trial)
                if following is None:
                    raise
                trial = following
            else:
                self._keep(trial)
                return result

    def _first_trial(self, ask: Ask) -> _Trial:
        if self._lost:
            raise ConfigurationError(
                f"extra_body held secrets under {', '.join(self._lost)}, which a pickle does not keep",
                hint="build the reader anew where it is used",
            )
        arguments = _overlaid({**self.told, **ask.body}, self._extra_body)
        needed = (kept(ask.sampling) if ask.kept is None else ask.kept) | set(self._extra_body)
        self._known.require(arguments, needed)
        return _Trial(ask, arguments, needed, self._known.understood)

    def _next_trial(self, trial: _Trial) -> _Trial | None:
        """Return other words for a request; None if there are none."""
        if trial.refusal is None or trial.round >= _ROUNDS:
            return None
        known = trial.understood.joined(self._known.understood)
        if known != trial.understood:
            # Another request has learnt in the meantime.
            return replace(trial, understood=known, refusal=None, round=trial.round + 1)
        sent = {name: value for name, value in trial.arguments.items() if name not in _NAMED}
        learnt = trial.understood.learnt(trial.refusal, sent, trial.kept)
        if learnt is None:
            return None
        reasons = dict.fromkeys(
            learnt.dropped - trial.understood.dropped, self.clients.without_key(trial.refusal)[:300]
        )
        return replace(
            trial,
            understood=learnt,
            reasons={**trial.reasons, **reasons},
            refusal=None,
            round=trial.round + 1,
        )

    def _keep(self, trial: _Trial) -> None:
        if trial.round:
            self._known.learnt(trial.understood, trial.reasons)
        if trial.ask.sampling is not None:
            self._known.tell(trial.arguments, trial.ask.sampling)

    def _send(self, trial: _Trial, meter: Meter) -> httpx.Response:
        """Send a body and return the response, its own body unread."""

        def step() -> httpx.Response:
            body = trial.understood.render(trial.arguments)
            opening = _method(self.clients.client(), trial.ask)(**_for_sdk(body))
            response: httpx.Response | None = None
            try:
                with meter.running():
                    response = opening.__enter__().http_response
            except BaseException:
                # It may be there, and too late.
                if response is not None:
                    response.close()
                raise
            return response

        response: httpx.Response = self._guard(trial)(step)
        return response

    async def _asend(self, trial: _Trial, meter: Meter) -> httpx.Response:
        async def step() -> httpx.Response:
            body = trial.understood.render(trial.arguments)
            opening = _method(self.clients.async_client(), trial.ask)(**_for_sdk(body))
            response: httpx.Response | None = None
            try:
                async with meter.arunning():
                    response = (await opening.__aenter__()).http_response
            except BaseException:
                if response is not None:
                    await response.aclose()
                raise
            return response

        response: httpx.Response = await self._aguard(trial)(step())
        return response

    def _failure(self, error: Exception, trial: _Trial) -> ServiceError:
        """Return our error for one of the SDK's; keep the service's words where others may do."""
        trial.refusal = said(error) if refused(error) else None
        return explained(error, self.clients.host, trial.arguments, self.clients.without_key)

    def _guard(self, trial: _Trial) -> Guard:
        def guard(step: Callable[[], Any]) -> Any:
            try:
                return step()
            except sdk_errors() as error:
                failure = self._failure(error, trial)
            raise failure

        return guard

    def _aguard(self, trial: _Trial) -> AsyncGuard:
        async def guard(step: Awaitable[Any]) -> Any:
            try:
                return await step
            except sdk_errors() as error:
                failure = self._failure(error, trial)
            raise failure

        return guard

    def _retrying(self, ask: Ask, once: Callable[[], R]) -> R:
        def attempt() -> R:
            with self.clients.flow.observed():
                return once()

        if not ask.patient:
            return attempt()
        import tenacity

        return tenacity.Retrying(sleep=_weakly(self.clients.pause), **self._policy.settings())(attempt)

    async def _aretrying(self, ask: Ask, once: Callable[[], Awaitable[R]]) -> R:
        async def attempt() -> R:
            with self.clients.flow.observed():
                return await once()

        if not ask.patient:
            return await attempt()
        import tenacity

        return await tenacity.AsyncRetrying(sleep=_weakly(self.clients.apause), **self._policy.settings())(
            attempt
        )


def _weakly(pause: Callable[[float], R]) -> Callable[[float], R]:
    """Return a method that does not hold its object: a retrying is a reference cycle."""
    method = weakref.WeakMethod(pause)

    def call(seconds: float) -> R:
        held = method()
        if held is None:
            raise ReferenceError("the clients are gone")
        return held(seconds)

    return call


def _method(client: Any, ask: Ask) -> Any:
    """Return the SDK's method for a request, whose response we read ourselves.

    The SDK's own stream is a reference cycle around an open connection, which only the garbage collector
    takes apart.
    """
    resources = {"chat": "chat.completions", "completions": "completions", "responses": "responses"}
    resource = client
    for name in resources[ask.api].split("."):
        resource = getattr(resource, name)
    return resource.with_streaming_response.create


def _piece_of(api: Api) -> Callable[[Json], Json]:
    return chat_piece if api == "responses" else _as_it_is


def _as_it_is(piece: Json) -> Json:
    return piece


def _overlaid(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with further fields; of options for the chat template, each wins for itself."""
    found = {**body, **extra}
    ours, theirs = body.get("chat_template_kwargs"), extra.get("chat_template_kwargs")
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        found["chat_template_kwargs"] = {**ours, **theirs}
    return found


def _for_sdk(body: Mapping[str, Any]) -> dict[str, Any]:
    """Set apart the parameters: the SDK's methods know some of them by name, and pass all on in this way."""
    extra = {key: value for key, value in body.items() if key not in _NAMED}
    return {**{key: value for key, value in body.items() if key in _NAMED}, "extra_body": extra}
