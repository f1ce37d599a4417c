"""The SDK's clients, and how many requests may be under way."""

from __future__ import annotations

import asyncio
import contextvars
import importlib.util
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

from surerag.errors import ConfigurationError, MissingExtraError
from surerag.readers.closing import close_when_dropped, when_loop_ends
from surerag.readers.hosted.flow import AsyncSlots, Flow, Slots
from surerag.readers.hosted.limits import Limits, async_error_hooks, error_hooks
from surerag.readers.hosted.loops import trusted
from surerag.readers.hosted.secrets import masked, secrets_of_url, without_credentials
from surerag.readers.hosted.sockets import keep_deadlines
from surerag.readers.threads import renew_after_fork

if TYPE_CHECKING:
    import httpx
    from openai import AsyncOpenAI, OpenAI

T = TypeVar("T")
R = TypeVar("R")

_holds_slot: contextvars.ContextVar[bool] = contextvars.ContextVar("surerag_holds_slot", default=False)
"""Whether the work in this context has a turn of the limit on requests."""

_OPENAI = "https://api.openai.com/v1"


class _InLoop(NamedTuple):
    """What belongs to one event loop: its connections, its share of requests, and its last act."""

    client: AsyncOpenAI
    slots: AsyncSlots
    last_act: AsyncGenerator[None] | None


class Clients:
    """Clients for one server, made when first needed; a pickle keeps their settings, and no key or password.

    Sync calls share one limit; async calls have one for each event loop, and a client of its own there,
    because connections belong to the loop that opened them. What the server can take is learnt together.

    Args:
        base_url: The API's root; None for the environment's, or OpenAI itself.
        api_key: None for the environment's.
        timeout: Seconds to wait for an answer, or for the next piece of a stream.
        max_concurrency: Requests under way at most; fewer where the server takes fewer.
        limits: What the server may take for one answer.
        client: The user's own sync client.
        async_client: The user's own async client.

    Raises:
        MissingExtraError: If the openai SDK is not installed.
        ConfigurationError: If OpenAI itself is to be asked without a key.
    """

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        *,
        timeout: float,
        max_concurrency: int,
        limits: Limits,
        client: OpenAI | None,
        async_client: AsyncOpenAI | None,
    ) -> None:
        if importlib.util.find_spec("openai") is None or importlib.util.find_spec("tenacity") is None:
            raise MissingExtraError(
                "OpenAIReader needs the openai SDK", hint='run: pip install "surerag[openai]"'
            )
        given = client or async_client
        own_url = str(given.base_url) if given else os.environ.get("OPENAI_BASE_URL")
        self.base_url = base_url or own_url or _OPENAI
        self._timeout = timeout
        self._max_concurrency = max_concurrency
        self.limits = limits
        self._wake(api_key or (given.api_key if given else None), client, async_client)

    def _wake(self, key: str | None, client: OpenAI | None, async_client: AsyncOpenAI | None) -> None:
        given = key or os.environ.get("OPENAI_API_KEY")
        self._key = given or self._no_key()
        self._secrets = {*secrets_of_url(self.base_url), *([given] if given else [])}
        self._given, self._given_async = client, async_client
        self._connect_anew()
        _all.add(self)

    def _connect_anew(self) -> None:
        """Begin without connections: those of a parent process are its own."""
        self._made: OpenAI | None = None
        self._in_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _InLoop] = WeakKeyDictionary()
        self.flow = Flow(self._max_concurrency)
        self._slots = Slots(self.flow)
        self._lock = threading.Lock()

    def _no_key(self) -> str:
        if self.host == urlsplit(_OPENAI).hostname:
            raise ConfigurationError("there is no API key", hint="set OPENAI_API_KEY, or pass api_key=…")
        return "none"

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: self.__dict__[name] for name in ("_timeout", "_max_concurrency", "limits")}
        return {**kept, "base_url": without_credentials(self.base_url)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        own_url = os.environ.get("OPENAI_BASE_URL", "")
        if without_credentials(own_url) == self.base_url:
            self.base_url = own_url
        self._wake(None, None, None)

    def __repr__(self) -> str:
        return f"Clients({self.host!r})"

    @property
    def host(self) -> str:
        """Host and port of the server, without credentials."""
        parts = urlsplit(self.base_url)
        return (parts.hostname or "server") + (f":{parts.port}" if parts.port else "")

    @property
    def address(self) -> str:
        """Host, port and path of the API; what follows a ``?`` is left out, as it may be a credential."""
        return self.host + self.without_key(urlsplit(self.base_url).path.rstrip("/"))

    def without_key(self, text: str) -> str:
        """Return a text with the key and other credentials taken out: servers quote them in errors."""
        return masked(text, self._secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        """Take further secrets out of texts."""
        self._secrets |= set(secrets)

    def client(self) -> OpenAI:
        """Return the sync client."""
        if self._given is not None:
            return self._given.with_options(max_retries=0)
        with self._lock:
            if self._made is None:
                from openai import DefaultHttpxClient, OpenAI

                http = DefaultHttpxClient(event_hooks=error_hooks(self.limits), limits=self._pool())
                self._made = OpenAI(**self._settings(), http_client=keep_deadlines(http))
                close_when_dropped(self, self._made.close)
            return self._made

    def async_client(self) -> AsyncOpenAI:
        """Return the async client of the running event loop."""
        return self._here().client

    def close(self) -> None:
        """Close the sync client that was made here; another is made when it is needed."""
        with self._lock:
            client, self._made = self._made, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the running loop's async client that was made here, and the sync one."""
        self.close()
        with self._lock:
            here = self._in_loops.pop(asyncio.get_running_loop(), None)
        if here is not None and here.last_act is not None:
            await here.last_act.aclose()

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Work on all items, as many at once as the limit allows; results in order."""

        def limited(item: T) -> R:
            with self._slots:
                token = _holds_slot.set(True)
                try:
                    return work(item)
                finally:
                    _holds_slot.reset(token)

        if len(items) < 2:
            return [limited(item) for item in items]
        with ThreadPoolExecutor(min(self._max_concurrency, len(items)), "surerag-openai") as pool:
            futures = [pool.submit(contextvars.copy_context().run, limited, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    async def aeach(self, work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
        """Like ``each``, in the running event loop."""
        slots = self._here().slots

        async def limited(item: T) -> R:
            async with slots:
                # Each task has a context of its own.
                _holds_slot.set(True)
                return await work(item)

        tasks = [asyncio.ensure_future(limited(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def pause(self, seconds: float) -> None:
        """Wait before asking again, and leave the turn to others meanwhile."""
        with self._slots.left() if _holds_slot.get() else nullcontext():
            time.sleep(seconds)

    async def apause(self, seconds: float) -> None:
        """Like ``pause``, in the running event loop."""
        async with self._here().slots.left() if _holds_slot.get() else nullcontext():
            await asyncio.sleep(seconds)

    def _here(self) -> _InLoop:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._in_loops:
                # A client holds on to its loop. One that was closed without its last act is let go here.
                for closed in [other for other in self._in_loops if other.is_closed()]:
                    del self._in_loops[closed]
                slots = AsyncSlots(self.flow)
                if self._given_async is not None:
                    given = self._given_async.with_options(max_retries=0)
                    self._in_loops[loop] = _InLoop(given, slots, None)
                else:
                    client = self._new_async_client()
                    self._in_loops[loop] = _InLoop(client, slots, when_loop_ends(client.close))
            return self._in_loops[loop]

    def _new_async_client(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        # The SDK's own one would close itself in whichever loop runs when it is collected.
        http = DefaultAsyncHttpxClient(
            event_hooks=async_error_hooks(self.limits), verify=trusted(), limits=self._pool()
        )
        return AsyncOpenAI(**self._settings(), http_client=http)

    def _pool(self) -> httpx.Limits:
        """Return how many connections there may be: as many are kept as requests may be under way."""
        import httpx

        # Streams that were begun and wait hold a connection beside them.
        most = max(1000, 4 * self._max_concurrency)
        return httpx.Limits(max_connections=most, max_keepalive_connections=self._max_concurrency)

    def _settings(self) -> dict[str, Any]:
        return {
            "base_url": self.base_url,
            "api_key": self._key,
            "timeout": self._timeout,
            "max_retries": 0,
        }


_all: WeakSet[Clients] = WeakSet()


def _connect_anew() -> None:
    for clients in _all:
        clients._connect_anew()


renew_after_fork(_connect_anew)
