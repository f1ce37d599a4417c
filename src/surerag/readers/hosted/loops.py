"""One client in several event loops: connections belong to the loop that opened them.

A pool of connections that two loops use at the same time wakes the tasks of one from the other. The one does
not notice, and they wait for ever. So each loop has connections of its own, closed when it ends.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import threading
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from surerag.readers.closing import when_loop_ends

if TYPE_CHECKING:
    import httpx
    from openai import AsyncOpenAI

_DEFAULTS = frozenset({"AsyncHttpxClientWrapper", "_AsyncHttpxClientWrapper"})
"""Classes of the HTTP clients that the SDK and langchain-openai make where a user gives none."""


class _Connections(NamedTuple):
    """An HTTP client of one event loop, and what closes it when the loop ends."""

    http: httpx.AsyncClient
    last_act: AsyncGenerator[None]


class _InLoops:
    """In place of an HTTP client, one of each event loop's own, for as long as the first one is there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakKeyDictionary[httpx.AsyncClient, _Connections]
        ] = WeakKeyDictionary()

    def of(self, http: httpx.AsyncClient) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._loops:
                # A client holds on to its loop. One that was closed without its last act is let go here.
                for closed in [other for other in self._loops if other.is_closed()]:
                    del self._loops[closed]
                self._loops[loop] = WeakKeyDictionary()
            here = self._loops[loop]
            if http not in here:
                own = _like(http)
                here[http] = _Connections(own, when_loop_ends(own.aclose))
            return here[http].http


_in_loops = _InLoops()


def client_of_this_loop(client: AsyncOpenAI) -> AsyncOpenAI:
    """Return a user's client with connections of the running event loop's own.

    A client over an HTTP client of the user's own is returned as it is: how that is made is for the user to
    say, and it serves one event loop at a time.

    Args:
        client: It has to be kept for as long as what is returned is used.
    """
    http = client._client
    return client.copy(http_client=_in_loops.of(http)) if type(http).__name__ in _DEFAULTS else client


def _like(http: httpx.AsyncClient) -> httpx.AsyncClient:
    from openai import DefaultAsyncHttpxClient

    # The SDK's own one would close itself in whichever loop runs when it is collected.
    return DefaultAsyncHttpxClient(base_url=http.base_url, timeout=http.timeout, verify=trusted())


@functools.cache
def trusted() -> ssl.SSLContext:
    """Return the certificates that HTTP clients trust by default, read once: that takes time and memory."""
    import httpx

    return httpx.create_ssl_context()
