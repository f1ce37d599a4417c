"""How long an answer may take in all, and how large it may be."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from surerag.errors import ConfigurationError, ServiceError
from surerag.readers.hosted.retry import DeadlineError
from surerag.readers.hosted.sockets import reads_end

if TYPE_CHECKING:
    import httpx

DEADLINE = 600.0
"""Seconds; a long answer of a slow model on a CPU is done by then."""

MAX_BYTES = 64 * 2**20
"""About 30,000 tokens with 20 alternatives each; a longer answer comes in a stream, or is none."""

_MAX_ERROR_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server may take for one answer.

    Attributes:
        deadline: Seconds from sending the request to the end of its answer, without pauses of ours.
        max_bytes: Size of the answer, after decompression.

    Raises:
        ConfigurationError: If one of them is not above zero.
    """

    deadline: float = DEADLINE
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise ConfigurationError(f"deadline must be above 0 seconds, got {self.deadline!r}")
        if not self.max_bytes > 0:
            raise ConfigurationError(f"max_bytes must be above 0, got {self.max_bytes!r}")


class Meter:
    """What one answer has taken so far. The time between two reads is the caller's own, and not counted."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._spent = 0.0
        self._bytes = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a step that waits for the server; a read that takes too long is broken off.

        Raises:
            DeadlineError: If the answer has taken too long by now.
        """
        with self._counted(), reads_end(time.monotonic() + self._limits.deadline - self._spent):
            yield

    @contextmanager
    def _counted(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        except Exception:
            self._waited(started)
            raise
        self._waited(started)

    @asynccontextmanager
    async def arunning(self) -> AsyncIterator[None]:
        """Like ``running``; a step that takes too long is broken off."""
        left = self._limits.deadline - self._spent
        timeout = asyncio.timeout(left if left < math.inf else None)
        try:
            async with timeout:
                with self._counted():
                    yield
        except TimeoutError:
            if not timeout.expired():
                raise
            self._late()

    def received(self, chunk: bytes | None) -> bytes | None:
        """Count what was received.

        Raises:
            ServiceError: If the answer is too large by now.
        """
        self._bytes += len(chunk or b"")
        if self._bytes > self._limits.max_bytes:
            raise ServiceError(
                f"the server's answer is larger than {self._limits.max_bytes:,} bytes",
                hint="raise max_bytes if that is what you asked for",
            )
        return chunk

    def _waited(self, since: float) -> None:
        self._spent += time.monotonic() - since
        if self._spent > self._limits.deadline:
            self._late()

    def _late(self) -> NoReturn:
        raise DeadlineError(
            f"the server had not finished its answer after {self._limits.deadline:g} s",
            hint="raise deadline, or ask for fewer tokens",
        )


def read(response: httpx.Response, meter: Meter) -> bytes:
    """Read a whole body within its limits."""
    chunks = response.iter_bytes()
    body = bytearray()
    while (chunk := _next(chunks, meter)) is not None:
        body += chunk
    return bytes(body)


def _next(chunks: Iterator[bytes], meter: Meter) -> bytes | None:
    with meter.running():
        return meter.received(next(chunks, None))


async def aread(response: httpx.Response, meter: Meter) -> bytes:
    """Like :func:`read`, for a response of the async client."""
    chunks = response.aiter_bytes()
    body = bytearray()
    async with meter.arunning():
        while (chunk := meter.received(await anext(chunks, None))) is not None:
            body += chunk
    return bytes(body)


def bound(response: httpx.Response, limits: Limits) -> None:
    """Keep a response of the sync client, whose body is still unread, within limits.

    Whoever reads it (the SDK, for a framework) gets our error where it goes beyond.
    """
    response.stream = _bounded()(response.stream, Meter(limits))


def abound(response: httpx.Response, limits: Limits) -> None:
    """Like :func:`bound`, for a response of the async client."""
    response.stream = _abounded()(response.stream, Meter(limits))


def error_hooks(limits: Limits) -> dict[str, list[Any]]:
    """Return hooks for an HTTP client of ours, by which errors are cut: the SDK reads them to their end."""

    def cut(response: httpx.Response) -> None:
        if response.is_error:
            response.stream = _bounded()(response.stream, Meter(limits), _MAX_ERROR_BYTES)

    return {"response": [cut]}


def async_error_hooks(limits: Limits) -> dict[str, list[Any]]:
    """Like :func:`error_hooks`, for an async client."""

    async def cut(response: httpx.Response) -> None:
        if response.is_error:
            response.stream = _abounded()(response.stream, Meter(limits), _MAX_ERROR_BYTES)

    return {"response": [cut]}


@functools.cache
def _bounded() -> type[Any]:
    import httpx

    class Bounded(httpx.SyncByteStream):
        """A body that raises where it goes beyond its limits, and ends where it is to be cut."""

        def __init__(self, stream: Any, meter: Meter, cut: float = math.inf) -> None:
            self._stream = stream
            self._meter = meter
            self._cut = cut

        def __iter__(self) -> Iterator[bytes]:
            chunks, size = iter(self._stream), 0
            while size < self._cut and (chunk := _next(chunks, self._meter)) is not None:
                size += len(chunk)
                yield chunk

        def close(self) -> None:
            self._stream.close()

    return Bounded


@functools.cache
def _abounded() -> type[Any]:
    import httpx

    class Bounded(httpx.AsyncByteStream):
        """Like the sync one."""

        def __init__(self, stream: Any, meter: Meter, cut: float = math.inf) -> None:
            self._stream = stream
            self._meter = meter
            self._cut = cut

        async def __aiter__(self) -> AsyncIterator[bytes]:
            chunks, size = aiter(self._stream), 0
            while size < self._cut and (chunk := await self._next(chunks)) is not None:
                size += len(chunk)
                yield chunk

        async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
            async with self._meter.arunning():
                return self._meter.received(await anext(chunks, None))

        async def aclose(self) -> None:
            await self._stream.aclose()

    return Bounded
