"""The SDK's clients, and how many requests may be under way."""

from __future__ import annotations

import asyncio
import contextvars
import importlib.util
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from surerag.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

T = TypeVar("T")
R = TypeVar("R")

_OPENAI = "https://api.openai.com/v1"


class _InLoop(NamedTuple):
    """What belongs to one event loop: its connections, and its share of requests."""

    client: AsyncOpenAI
    slots: asyncio.Semaphore


class Clients:
    """Clients for one server, made when first needed; a pickle keeps their settings, not the key.

    Sync calls share one limit; async calls have one for each event loop, and a client of its own there,
    because connections belong to the loop that opened them.

    Args:
        base_url: The API's root; None for the environment's, or OpenAI itself.
        api_key: None for the environment's.
        timeout: Seconds to wait for an answer, or for the next piece of a stream.
        max_concurrency: Requests under way at most.
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
        self._wake(api_key or (given.api_key if given else None), client, async_client)

    def _wake(self, key: str | None, client: OpenAI | None, async_client: AsyncOpenAI | None) -> None:
        self._key = key or os.environ.get("OPENAI_API_KEY") or self._no_key()
        self._given, self._given_async = client, async_client
        self._made: OpenAI | None = None
        self._in_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _InLoop] = WeakKeyDictionary()
        self._slots = threading.BoundedSemaphore(self._max_concurrency)
        self._lock = threading.Lock()

    def _no_key(self) -> str:
        if self.host == urlsplit(_OPENAI).hostname:
            raise ConfigurationError("there is no API key", hint="set OPENAI_API_KEY, or pass api_key=…")
        return "none"

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("base_url", "_timeout", "_max_concurrency")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._wake(None, None, None)

    def __repr__(self) -> str:
        return f"Clients({self.host!r})"

    @property
    def host(self) -> str:
        """Host and port of the server, without credentials."""
        parts = urlsplit(self.base_url)
        return (parts.hostname or "server") + (f":{parts.port}" if parts.port else "")

    def without_key(self, text: str) -> str:
        """Return a text with the key taken out: servers quote it in errors."""
        return text.replace(self._key, "[key]") if len(self._key) > 4 else text

    def client(self) -> OpenAI:
        """Return the sync client."""
        if self._given is not None:
            return self._given.with_options(max_retries=0)
        with self._lock:
            if self._made is None:
                from openai import OpenAI

                self._made = OpenAI(**self._settings())
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
        if here is not None and self._given_async is None:
            await here.client.close()

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Work on all items, as many at once as the limit allows; results in order."""

        def limited(item: T) -> R:
            with self._slots:
                return work(item)

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
                return await work(item)

        tasks = [asyncio.ensure_future(limited(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def _here(self) -> _InLoop:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._in_loops:
                self._in_loops[loop] = _InLoop(
                    self._new_async_client(), asyncio.Semaphore(self._max_concurrency)
                )
            return self._in_loops[loop]

    def _new_async_client(self) -> AsyncOpenAI:
        if self._given_async is not None:
            return self._given_async.with_options(max_retries=0)
        from openai import AsyncOpenAI

        return AsyncOpenAI(**self._settings())

    def _settings(self) -> dict[str, Any]:
        return {
            "base_url": self.base_url,
            "api_key": self._key,
            "timeout": self._timeout,
            "max_retries": 0,
        }
