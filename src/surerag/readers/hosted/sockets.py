"""What a synchronous call reads from its server, each read ended at the deadline of the answer.

A timeout of httpx is for each read. Headers that come a byte at a time keep every one of them, and the caller
gets no word in between: the deadline has to stand where the bytes are read.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx


class _Until(threading.local):
    """When the step that this thread waits for has to be over, by the monotonic clock."""

    moment = math.inf


_until = _Until()
_SLACK = 0.01
"""Seconds by which a read may end after its deadline, so that it never ends before."""


@contextmanager
def reads_end(moment: float) -> Iterator[None]:
    """Have every read of this thread end at a moment of the monotonic clock, in seconds."""
    before, _until.moment = _until.moment, min(moment, _until.moment)
    try:
        yield
    finally:
        _until.moment = before


def keep_deadlines(client: httpx.Client) -> httpx.Client:
    """Have a client of ours read under :func:`reads_end`, through proxies, too.

    httpcore takes a network backend, which httpx does not pass on; where another httpx keeps its pool
    otherwise, its own timeouts are left.
    """
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if backend is not None:
            pool._network_backend = _timely()(backend)  # type: ignore[union-attr]
    return client


@functools.cache
def _timely() -> type[Any]:
    import httpcore

    class Timely(httpcore.NetworkBackend):
        """Another backend, whose connections end their reads in time."""

        def __init__(self, backend: httpcore.NetworkBackend) -> None:
            self._backend = backend

        def connect_tcp(self, *arguments: Any, **settings: Any) -> httpcore.NetworkStream:
            return Stream(self._backend.connect_tcp(*arguments, **settings))

        def connect_unix_socket(self, *arguments: Any, **settings: Any) -> httpcore.NetworkStream:
            return Stream(self._backend.connect_unix_socket(*arguments, **settings))

        def sleep(self, seconds: float) -> None:
            self._backend.sleep(seconds)

    class Stream(httpcore.NetworkStream):
        """Another connection, whose reads end in time."""

        def __init__(self, stream: httpcore.NetworkStream) -> None:
            self._stream = stream

        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            left = _until.moment - time.monotonic() + _SLACK
            if left <= 0:
                raise httpcore.ReadTimeout("the answer's deadline has passed")
            if left < (math.inf if timeout is None else timeout):
                timeout = left
            return self._stream.read(max_bytes, timeout)

        def write(self, buffer: bytes, timeout: float | None = None) -> None:
            self._stream.write(buffer, timeout)

        def close(self) -> None:
            self._stream.close()

        def start_tls(self, *arguments: Any, **settings: Any) -> httpcore.NetworkStream:
            return Stream(self._stream.start_tls(*arguments, **settings))

        def get_extra_info(self, info: str) -> Any:
            return self._stream.get_extra_info(info)

    return Timely
