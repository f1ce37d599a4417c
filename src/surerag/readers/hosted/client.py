"""One asynchronous client on one background event loop, for sync and async methods of a reader.

The openai SDK retries, obeys Retry-After, times out and reads streams. This module adds, for each request, a
maximum size of the response and a deadline. It refuses redirects to other servers, raises errors of surerag,
and makes a new event loop and client in a forked process.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import weakref
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from surerag.errors import ConfigurationError, RefusedError, ServiceError, SureragError, extra
from surerag.readers.calls import renew_after_fork
from surerag.readers.failures import secrets_in, service_error
from surerag.readers.logprobs import excerpt

if TYPE_CHECKING:
    import httpx
    from openai import AsyncOpenAI

R = TypeVar("R")
Json = Mapping[str, Any]

MAX_BYTES = 64 * 2**20
"""Maximum size of one response after decompression."""
MAX_ERROR_BYTES = 2**16
"""Maximum bytes that are read of a response that reports an error."""
_STEP = 2**16
"""Bytes to decompress at a time."""
DEADLINE = 10
"""Maximum total time of one request, retries and reading included, as a multiple of the time-out."""
_OPENAI = "https://api.openai.com/v1"
_HINTS = {
    401: "set OPENAI_API_KEY, or pass api_key=…",
    403: "set OPENAI_API_KEY, or pass api_key=…",
    404: "check the model's name, and that base_url ends with the API's root, such as …/v1",
}
_NOT_COMPATIBLE_HINT = "check that base_url ends with the API's root, such as http://localhost:8000/v1"

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_of_parent: list[object] = []
"""Event loops and clients of the parent process. A forked child keeps them open here, because closing them
would write to the parent's connections."""


def background_loop() -> asyncio.AbstractEventLoop:
    """Return this process's event loop for all requests; the loop runs in a daemon thread."""
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
    """Run a coroutine on the background loop, and await its result in another event loop.

    If the caller is cancelled, the coroutine is cancelled too.
    """
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, background_loop()))


def run_soon(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a finaliser's coroutine on the background loop without waiting; ignore its failure."""

    async def quietly() -> None:
        with suppress(Exception):
            await coroutine

    asyncio.run_coroutine_threadsafe(quietly(), background_loop())


class ReportedError(Exception):
    """A failure that a server reports in a response with status 200."""

    def __init__(self, body: object) -> None:
        super().__init__(str(body))
        self.body = body


class Client:
    """Sends the requests of one reader; all coroutines of the client run on the background loop."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        timeout: float,
        max_retries: int,
        max_concurrency: int,
        *,
        own: AsyncOpenAI | None,
        secrets: Json,
    ) -> None:
        openai = _sdk()
        if own is not None and not isinstance(own, openai.AsyncOpenAI):
            raise ConfigurationError(
                f"client must be an openai.AsyncOpenAI, got {type(own).__name__}",
                hint="pass an AsyncOpenAI; the reader's sync methods use it, too",
            )
        if own is not None:
            base_url, api_key = str(own.base_url), own.api_key
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI).rstrip("/")
        self._key = _checked_key(api_key)
        self._timeout = timeout
        self._max_retries = max_retries
        self._max_concurrency = max_concurrency
        self._own = own
        self._body_secrets = tuple(secrets_in(secrets))
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
                "a reader with a client of your own cannot be pickled",
                hint="make the reader with base_url in place of client",
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
    def max_retries(self) -> int:
        """Maximum number of times that a failed request is sent again."""
        return self._max_retries if self._own is None else self._own.max_retries

    @property
    def address(self) -> str:
        """Address that requests are sent to, without credentials."""
        parts = urlsplit(self.base_url)
        return f"{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"

    async def turn(self) -> asyncio.Semaphore:
        """Return the semaphore that limits concurrent requests; after a fork, make one for the new loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._own is not None and self._loop is not None:
                raise ConfigurationError(
                    "this reader's own client was used before the process was forked",
                    hint="make a new client in the forked process",
                )
            if self._client is not None:
                _of_parent.append(self._client)
            self._loop, self._client = loop, None
            self._turns = asyncio.Semaphore(self._max_concurrency)
        return self._turns

    async def post(self, body: Json) -> Json:
        """Send one request and return the whole answer."""
        async with await self.turn():
            return await self._guarded(self._post(body), self._timeout * DEADLINE)

    async def stream(self, body: Json) -> AsyncGenerator[Json]:
        """Yield the pieces of a stream; the deadline does not include the caller's time between pieces."""
        async with await self.turn():
            http, events = await self._guarded(self._open(body), self._timeout * DEADLINE)
        loop, left = asyncio.get_running_loop(), self._timeout * DEADLINE
        try:
            while True:
                async with await self.turn():
                    started = loop.time()
                    piece = await self._guarded(_next(events), left)
                left -= loop.time() - started
                if piece is None:
                    return
                yield piece
        finally:
            # On another loop (in a forked process) the connection belongs to the parent process.
            if loop is asyncio.get_running_loop():
                await http.aclose()

    async def aclose(self) -> None:
        """Close the client, unless the user passed it in; the next request makes a new client."""
        client, self._client = self._client, None
        if client is not None and self._own is None and self._loop is asyncio.get_running_loop():
            await client.close()

    async def _post(self, body: Json) -> Json:
        async with self._create(body) as response:
            return checked(await self._json(_limited(response.http_response)))

    async def _open(self, body: Json) -> tuple[httpx.Response, AsyncIterator[object]]:
        response = await self._create({**body, "stream": True}).__aenter__()
        http = _limited(response.http_response)
        try:
            if "event-stream" not in http.headers.get("content-type", "event-stream"):
                raise malformed(checked(await self._json(http)))
            return http, await response.parse(to=_sdk().AsyncStream[object])
        except BaseException:
            await http.aclose()
            raise

    def _create(self, body: Json) -> Any:
        """Return the SDK's context manager, which sends the request and leaves the response's body unread."""
        client = self._client = self._client or self._own_or_new()
        fields = dict(body)
        typed = {
            name: fields.pop(name) for name in ("model", "messages", "prompt", "stream") if name in fields
        }
        completions = client.chat.completions if "messages" in typed else client.completions
        return completions.with_streaming_response.create(**typed, extra_body=fields)

    def _own_or_new(self) -> Any:
        if self._own is not None:
            return self._own
        openai = _sdk()
        http = openai.DefaultAsyncHttpxClient(
            timeout=self._timeout,
            limits=openai.DEFAULT_CONNECTION_LIMITS,
            headers={"Accept-Encoding": "gzip, deflate"},
            event_hooks={"response": [partial(_admit, self.address)]},
        )
        weakref.finalize(self, _close_later, background_loop(), http).atexit = False
        return openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._resolved_key(),
            timeout=self._timeout,
            max_retries=self._max_retries,
            http_client=http,
        )

    def _resolved_key(self) -> str:
        key = self._key or _checked_key(os.environ.get("OPENAI_API_KEY"))
        if key is None and self.base_url == _OPENAI:
            raise ConfigurationError("there is no API key for OpenAI", hint=_HINTS[401])
        return key or "none"

    async def _json(self, response: httpx.Response) -> Any:
        """Read and parse a response; an HTML page raises RefusedError, because the address is no API."""
        data = await response.aread()
        with suppress(ValueError, RecursionError):
            return json.loads(data)
        if data.lstrip()[:1] == b"<":
            raise RefusedError(
                f"{self.address} is not an OpenAI-compatible server: it sent the page {excerpt(data)}",
                hint=_NOT_COMPATIBLE_HINT,
            )
        raise malformed(data.decode("utf-8", "replace"))

    async def _guarded(self, coroutine: Coroutine[Any, Any, R], seconds: float) -> R:
        try:
            async with asyncio.timeout(seconds):
                return await coroutine
        except Exception as error:
            # If surerag raised an error about the response, that error is the cause of the SDK's error.
            ours = error.__cause__ if isinstance(error.__cause__, SureragError) else error
            failure = service_error(ours, self.address, self.secrets(), _HINTS)
        # The failure is raised outside the handler. Otherwise, the client's error, which holds the API key,
        # would be its context.
        raise failure

    def secrets(self) -> Iterator[str]:
        """Yield the secrets that no error may show."""
        yield from secrets_in(self.base_url)
        yield from secrets_in(dict(self._own.default_headers) if self._own is not None else {})
        yield from self._body_secrets
        yield from (key for key in (self._key, os.environ.get("OPENAI_API_KEY")) if key)


async def _next(events: AsyncIterator[object]) -> Json | None:
    piece = await anext(events, None)
    return None if piece is None else checked(piece)


async def _admit(address: str, response: httpx.Response) -> None:
    """Limit the size of a response, and refuse a redirect to another server."""
    requested = response.request.url
    try:
        _limited(response)
        target = requested.join(response.headers["location"]) if response.has_redirect_location else requested
        if (target.scheme, target.host, target.port) != (requested.scheme, requested.host, requested.port):
            raise RefusedError(
                f"{address} redirects to another server, {target.scheme}://{target.netloc.decode()}; nothing "
                "was sent there",
                hint="if the other server may receive prompts, pass its address as base_url",
            )
    except SureragError as error:
        # The SDK takes any error that is not its own for a lost connection, and sends the request again.
        raise _sdk().OpenAIError(str(error)) from error


def _limited(response: httpx.Response) -> httpx.Response:
    """Limit the size of a decompressed response: it is decompressed here in small steps, not by httpx."""
    import httpx

    if "x-limited" in response.extensions:
        return response
    response.extensions["x-limited"] = True
    stream: Any = response.stream
    decoded = _decoder(response.headers.pop("content-encoding", "identity"))

    class Limited(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for raw in stream:
                for piece in decoded(raw):
                    size += len(piece)
                    if response.status_code >= 400 and size > MAX_ERROR_BYTES:
                        return
                    if size > MAX_BYTES:
                        raise ServiceError(f"the server's answer is larger than {MAX_BYTES / 2**20:g} MiB")
                    yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Limited()
    return response


def _decoder(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """Return a function that decompresses a piece of a body, at most ``_STEP`` bytes at a time."""
    if encoding == "identity":
        return lambda raw: iter((raw,))
    if encoding not in ("gzip", "deflate"):
        raise ServiceError(
            f"the server's answer is compressed as {encoding!r}, which was not requested",
            hint="have the server, or the proxy before it, obey Accept-Encoding",
        )
    inflater = zlib.decompressobj(wbits=47)  # gzip or zlib, as the first bytes say

    def inflated(raw: bytes) -> Iterator[bytes]:
        while piece := inflater.decompress(raw, _STEP):
            yield piece
            raw = inflater.unconsumed_tail

    return inflated


def checked(answer: Any) -> Json:
    """Return an answer or piece of a stream; raise an error if it is no JSON object or reports a failure."""
    if not isinstance(answer, Mapping):
        raise malformed(answer)
    if error := answer.get("error"):
        raise ReportedError(error)
    return answer


def malformed(answer: object) -> ServiceError:
    """Return the error for an answer that does not follow OpenAI's format."""
    text = "an empty answer" if answer in (None, "", {}) else f"the answer {excerpt(answer)}"
    return ServiceError(
        f"the server returned {text}, where a JSON object with choices was expected",
        hint=_NOT_COMPATIBLE_HINT,
    )


def public_fields(body: Json) -> dict[str, Any]:
    """Return a body without the fields that hold secrets.

    Example:
        >>> public_fields({"repeat_penalty": 1.0, "auth": {"api_key": "k"}, "max_tokens": 3})
        {'repeat_penalty': 1.0, 'max_tokens': 3}
    """
    return {key: value for key, value in body.items() if not any(secrets_in({key: value}))}


def _checked_key(key: str | None) -> str | None:
    """Strip white space from an API key, and raise an error if no HTTP header can carry the key."""
    key = key.strip() if key else None
    if key and not all("!" <= character <= "~" for character in key):
        raise ConfigurationError(
            "the API key holds characters that no HTTP header can carry",
            hint="pass only the key, without quotes or other text around it",
        )
    return key or None


def _check_url(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        public_url = re.sub(r"//[^/@]*@", "//", base_url).partition("?")[0]
        raise ConfigurationError(
            f"base_url must be an http or https address, got {public_url!r}",
            hint="give the API's root, such as http://localhost:8000/v1",
        )


def _sdk() -> Any:
    with extra("openai"):
        import openai
    return openai


def _close_later(loop: asyncio.AbstractEventLoop, http: httpx.AsyncClient) -> None:
    """Close a dropped client's connections on the event loop that opened them; a finaliser calls this."""
    if loop is _loop:
        loop.call_soon_threadsafe(lambda: loop.create_task(http.aclose()))
    else:
        _of_parent.append(http)
