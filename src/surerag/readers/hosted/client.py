"""One asynchronous client on one background event loop, for verbs of either kind.

The openai SDK retries, obeys Retry-After, times out and reads streams. Added here: a limit of bytes and one
deadline for each request, errors of surerag that show no key, and a new loop and client in a forked process.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from surerag.errors import (
    ConfigurationError,
    LogprobsRefusedError,
    MissingExtraError,
    RefusedError,
    ServiceError,
    SureragError,
    TransientServiceError,
)
from surerag.readers.failures import PASSING_HINT, REFUSED_HINT, TOO_LONG_HINT, kind_of, status_of
from surerag.readers.logprobs import NO_LOGPROBS_HINT, shown, without_surrogates
from surerag.readers.threads import renew_after_fork

if TYPE_CHECKING:
    import httpx
    from openai import AsyncOpenAI

R = TypeVar("R")
Json = Mapping[str, Any]

MAX_BYTES = 64 * 2**20
"""Size of one response at most."""

DEADLINE = 10
"""How many times the time-out one request may take in all, retries and reading included."""

_OPENAI = "https://api.openai.com/v1"
_SECRET_NAME = re.compile(
    r"(?i)(^|[_.-])((api|access|auth|secret|private|session|refresh|id)?[_-]?(key|token)|secret|passw(or)?d|authorization|auth|bearer|credentials?)$"
)
_HINTS = {
    401: "set OPENAI_API_KEY, or pass api_key=…",
    403: "set OPENAI_API_KEY, or pass api_key=…",
    404: "check the model's name, and that base_url ends with the API's root, such as …/v1",
}
_NOT_COMPATIBLE_HINT = "check that base_url ends with the API's root, such as http://localhost:8000/v1"

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_of_parent: list[object] = []
"""Loops and clients of a parent process: closed here, they would speak on its connections."""


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process that all requests run on, in a daemon thread."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="surerag-requests", daemon=True).start()
        return _loop


def _renew() -> None:
    global _lock, _loop
    _of_parent.append(_loop)
    _lock, _loop = threading.Lock(), None


renew_after_fork(_renew)


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on the background loop and wait for its result."""
    future = asyncio.run_coroutine_threadsafe(coroutine, background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def arun(coroutine: Coroutine[Any, Any, R]) -> R:
    """Like :func:`run`, from another event loop; cancelling the caller cancels the request."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, background_loop()))


async def each(coroutines: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
    """Await several at once, on the background loop; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class ToldError(Exception):
    """A failure that a server reports within an answer of status 200."""

    def __init__(self, body: object) -> None:
        super().__init__(str(body))
        self.body = body


class Client:
    """Sends requests of one reader; every coroutine here belongs to the background loop."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        *,
        timeout: float,
        max_retries: int,
        max_concurrency: int,
        own: AsyncOpenAI | None,
        secrets: Json,
    ) -> None:
        openai = _sdk()
        if own is not None and not isinstance(own, openai.AsyncOpenAI):
            raise ConfigurationError(
                f"client is a {type(own).__name__}",
                hint="pass an openai.AsyncOpenAI, also for the sync verbs",
            )
        if own is not None:
            base_url, api_key = str(own.base_url), own.api_key
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI).rstrip("/")
        self._key = _checked_key(api_key)
        self._timeout = timeout
        self._max_retries = max_retries
        self._max_concurrency = max_concurrency
        self._own = own
        self._body_secrets = tuple(_secrets_of(secrets))
        _check_url(self.base_url)
        if own is None:
            self._resolved_key()
        self._reset()

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: AsyncOpenAI | None = None
        self._turns = asyncio.Semaphore(self._max_concurrency)

    def __getstate__(self) -> dict[str, Any]:
        if self._own is not None:
            raise ConfigurationError(
                "a reader with a client of your own cannot be pickled", hint="pass base_url"
            )
        return {
            **self.__dict__,
            "base_url": f"{urlsplit(self.base_url).scheme}://{self.address}",
            "_key": None,
            "_body_secrets": (),
            "_loop": None,
            "_client": None,
            "_turns": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def address(self) -> str:
        """Where requests go, without credentials."""
        parts = urlsplit(self.base_url)
        return f"{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"

    async def turn(self) -> asyncio.Semaphore:
        """Return what limits requests under way; on a new loop after a fork."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._own is not None and self._loop is not None:
                raise ConfigurationError(
                    "this reader's own client was used before the process was forked", hint="make it anew"
                )
            _of_parent.append(self._client)
            self._loop, self._client = loop, None
            self._turns = asyncio.Semaphore(self._max_concurrency)
        return self._turns

    async def post(self, body: Json) -> Json:
        """Send one request and return the whole answer.

        Raises:
            ServiceError: If there is none.
        """
        async with await self.turn():
            return await self._guarded(self._post(body), self._timeout * DEADLINE, body)

    async def open(self, body: Json) -> EventStream:
        """Send a request for a stream and return it once its first byte is there.

        Raises:
            ServiceError: If there is none.
        """
        async with await self.turn():
            return await self._guarded(self._open(body), self._timeout * DEADLINE, body)

    async def aclose(self) -> None:
        """Close the client, unless it is the user's own; the next request makes another."""
        client, self._client = self._client, None
        if client is not None and self._own is None and self._loop is asyncio.get_running_loop():
            await client.close()

    async def _post(self, body: Json) -> Json:
        async with self._create(body) as response:
            return checked(self._json(await _bytes_of(response.http_response)))

    async def _open(self, body: Json) -> EventStream:
        from openai import AsyncStream

        manager = self._create({**body, "stream": True})
        response = await manager.__aenter__()
        http = response.http_response
        try:
            if "event-stream" not in http.headers.get("content-type", "event-stream"):
                raise malformed(checked(self._json(await _bytes_of(http))))
            http.stream = _limited(http.stream)
            events = await response.parse(to=AsyncStream[object])
        except BaseException:
            await http.aclose()
            raise
        return EventStream(self, http, cast("AsyncStream[object]", events), body)

    def _create(self, body: Json) -> Any:
        """Return the SDK's context manager of a response that is still to be read."""
        client = self._client = self._client or self._own_or_new()
        fields = dict(body)
        known = {
            name: fields.pop(name) for name in ("model", "messages", "prompt", "stream") if name in fields
        }
        completions = client.chat.completions if "messages" in known else client.completions
        return completions.with_streaming_response.create(**known, extra_body=fields)

    def _own_or_new(self) -> AsyncOpenAI:
        if self._own is not None:
            return self._own
        openai = _sdk()
        http = openai.DefaultAsyncHttpxClient(
            timeout=self._timeout,
            limits=openai.DEFAULT_CONNECTION_LIMITS,
        )
        client: AsyncOpenAI = openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._resolved_key(),
            timeout=self._timeout,
            max_retries=self._max_retries,
            http_client=http,
        )
        weakref.finalize(self, _close_later, background_loop(), http).atexit = False
        return client

    def _resolved_key(self) -> str:
        key = self._key or _checked_key(os.environ.get("OPENAI_API_KEY"))
        if key is None and self.base_url == _OPENAI:
            raise ConfigurationError("there is no API key for OpenAI", hint=_HINTS[401])
        return key or "none"

    def _json(self, data: bytes) -> Any:
        """Parse what the server sent.

        Raises:
            RefusedError: If it is a page for people.
            ServiceError: If it is no JSON, or none that can be read.
        """
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            pass
        if data.lstrip()[:1] == b"<":
            raise RefusedError(
                f"{self.address} is not an OpenAI-compatible server: it sent the page {shown(data)}",
                hint=_NOT_COMPATIBLE_HINT,
            )
        raise malformed(data.decode("utf-8", "replace"))

    async def _guarded(self, coroutine: Coroutine[Any, Any, R], seconds: float, body: Json) -> R:
        """Await one step of a request within its deadline, errors turned into ours."""
        try:
            async with asyncio.timeout(seconds):
                return await coroutine
        except SureragError as error:
            failure: Exception = error
        except Exception as error:
            failure = self._explained(error, body)
        # Outside, so that the client's error, which holds the request and its key, is not behind ours.
        raise failure

    def _explained(self, error: Exception, body: Json) -> ServiceError:
        """Return our error for one of the SDK's."""
        cause = error.__cause__ or error
        message = self.masked(said(error) if getattr(error, "body", None) else str(cause) or str(error))[
            :300
        ].rstrip(". ")
        kind, status = kind_of(error, message), status_of(error)
        answered = f"{self.address} answered {status}: {message}" if status else ""
        if "logprob" in message.lower() and "logprobs" in body and kind is RefusedError:
            return LogprobsRefusedError(
                f"{self.address} gives no log-probabilities: {message}", hint=NO_LOGPROBS_HINT
            )
        if kind is TransientServiceError and not status:
            if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
                return kind(f"{self.address} did not answer in time", hint=PASSING_HINT)
            return kind(f"the connection to {self.address} failed: {message}", hint=PASSING_HINT)
        if kind is TransientServiceError:
            return kind(answered, hint=PASSING_HINT)
        if kind is RefusedError:
            return kind(
                answered or f"{self.address} cannot be asked: {type(cause).__name__}: {message}",
                hint=_HINTS.get(status or 0, REFUSED_HINT),
            )
        if kind is not ServiceError:
            return kind(f"the prompt does not fit the model's window: {message}", hint=TOO_LONG_HINT)
        if status or getattr(error, "body", None) is not None:
            return kind(answered or f"{self.address} failed while it answered: {message}")
        sent = self.masked(shown(getattr(error, "doc", None) or getattr(error, "object", None) or message))
        return kind(f"{self.address} sent a reply that cannot be read ({type(error).__name__}): {sent}")

    def masked(self, text: str) -> str:
        """Return a text without the secrets that this client holds."""
        for secret in sorted(set(self._secrets()), key=len, reverse=True):
            if len(secret) >= 8:
                text = text.replace(secret, "[key]")
            elif secret:
                text = re.sub(rf"(?<![\w-]){re.escape(secret)}(?![\w-])", "[key]", text)
        return without_surrogates(text)

    def _secrets(self) -> Iterator[str]:
        parts = urlsplit(self.base_url)
        headers = dict(self._own.default_headers) if self._own is not None else {}
        yield from (unquote(secret) for secret in (parts.password, parts.username) if secret)
        yield from (value for _, value in parse_qsl(parts.query))
        yield from (str(value) for name, value in headers.items() if _SECRET_NAME.search(name))
        yield from self._body_secrets
        yield from (key for key in (self._key, os.environ.get("OPENAI_API_KEY")) if key)


class EventStream:
    """The pieces of an open stream; the pauses of whoever reads it do not count towards its deadline."""

    def __init__(
        self, client: Client, response: httpx.Response, events: AsyncIterator[object], body: Json
    ) -> None:
        self._client = client
        self._response = response
        self._events = events
        self._body = body
        self._left = client._timeout * DEADLINE
        self.loop = asyncio.get_running_loop()

    async def next(self) -> Json | None:
        """Return the next piece, waiting for it; None behind the last one.

        Raises:
            ServiceError: If the stream fails, or holds something else.
        """
        started = self.loop.time()
        try:
            piece = await self._client._guarded(anext(self._events, None), self._left, self._body)
        except ServiceError:
            await self.aclose()
            raise
        self._left -= self.loop.time() - started
        if piece is not None and not isinstance(piece, Mapping):
            raise malformed(piece)
        return piece if piece is None else checked(piece)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._response.aclose()


async def _bytes_of(response: httpx.Response) -> bytes:
    """Read a response's body, up to the limit."""
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) > MAX_BYTES:
            raise _too_large()
    return bytes(data)


def _limited(stream: httpx.AsyncByteStream) -> httpx.AsyncByteStream:
    """Return the body of a response, up to the limit."""
    import httpx

    class Limited(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for piece in stream:
                size += len(piece)
                if size > MAX_BYTES:
                    raise _too_large()
                yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    return Limited()


def _too_large() -> ServiceError:
    return ServiceError(f"the server's answer is larger than {MAX_BYTES // 2**20} MiB")


def checked(answer: Any) -> Json:
    """Return an answer, or a piece of one, that reports no failure.

    Raises:
        ToldError: If it does.
        ServiceError: If it is no JSON object.
    """
    if not isinstance(answer, Mapping):
        raise malformed(answer)
    if error := answer.get("error"):
        raise ToldError(error)
    return answer


def malformed(answer: object) -> ServiceError:
    """Return the error for an answer that is no OpenAI-compatible one."""
    text = "an empty answer" if answer in (None, "", {}) else f"the answer {shown(answer)}"
    return ServiceError(
        f"the server returned {text}, where a JSON object with choices was expected",
        hint=_NOT_COMPATIBLE_HINT,
    )


def said(error: BaseException) -> str:
    """Return what a server said about a failure; a router's words, and those of the service behind it."""
    body = getattr(error, "body", None)
    words = list(dict.fromkeys(_words(body)))
    return ": ".join(words) if words else str(body or error)


def _words(body: object) -> Iterator[str]:
    if not isinstance(body, Mapping):
        return
    inner = body.get("error")
    detail = inner if isinstance(inner, Mapping) else body
    yield from (str(detail[key]) for key in ("code", "message", "detail") if detail.get(key))
    if detail.get("param") and detail.get("code") in ("unsupported_parameter", "unknown_parameter"):
        yield f"unsupported parameter {detail['param']}"
    metadata = detail.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("raw"), str):
        yield metadata["raw"]


def _secrets_of(body: object, name: str = "") -> Iterator[str]:
    """Yield the texts that a body holds under names of secrets."""
    if isinstance(body, Mapping):
        for key, value in body.items():
            yield from _secrets_of(value, name if _SECRET_NAME.search(name) else str(key))
    elif isinstance(body, str) and _SECRET_NAME.search(name):
        yield body


def without_secrets(body: Json) -> dict[str, Any]:
    """Return a body without the fields that hold secrets, also where they stand within others.

    Example:
        >>> without_secrets({"repeat_penalty": 1.0, "auth": {"api_key": "k"}, "max_tokens": 3})
        {'repeat_penalty': 1.0, 'max_tokens': 3}
    """
    return {
        key: without_secrets(value) if isinstance(value, Mapping) else value
        for key, value in body.items()
        if not _SECRET_NAME.search(key)
    }


def _checked_key(key: str | None) -> str | None:
    """Return a key without white space around it, as where it was read from a file.

    Raises:
        ConfigurationError: If no HTTP header can carry it; the message does not show it.
    """
    key = key.strip() if key else None
    if key and not all("!" <= character <= "~" for character in key):
        raise ConfigurationError(
            "the API key holds characters that no HTTP header can carry", hint="pass the key alone"
        )
    return key or None


def _check_url(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        shown_url = re.sub(r"//[^/@]*@", "//", base_url).partition("?")[0]
        raise ConfigurationError(
            f"base_url must be an http or https address, got {shown_url!r}",
            hint="give the API's root, such as http://localhost:8000/v1",
        )


def _sdk() -> Any:
    try:
        import openai
    except ImportError:
        raise MissingExtraError(
            "OpenAIReader needs the openai SDK", hint='run: pip install "surerag[openai]"'
        ) from None
    return openai


def _close_later(loop: asyncio.AbstractEventLoop, http: httpx.AsyncClient) -> None:
    """Close the connections of a client that was dropped, in their own loop; called by a finaliser."""
    if loop is _loop:
        loop.call_soon_threadsafe(lambda: loop.create_task(http.aclose()))
    else:
        _of_parent.append(http)
