"""Clients lent to an LLM for one request: what it sends is put right, and its stream can be ended.

So an LLM's own methods are called, and its callbacks, retries and rate limit stay in force, while what its
constructor would send regardless (a temperature, a limit) is ours to change, or to leave out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any, NamedTuple

from llama_index_surerag._manners import Manners
from surerag.messages import SamplingParams
from surerag.readers.hosted.limits import Limits, abound, bound


class Body(NamedTuple):
    """A request's body, in two parts.

    Attributes:
        fixed: What is sent as the LLM built it: the prompt, the model, options that are no concern of ours.
        parameters: What the service may refuse, and is then left out.
    """

    fixed: Mapping[str, Any]
    parameters: Mapping[str, Any]


class Asking(NamedTuple):
    """How one request is to be put.

    Attributes:
        manners: What the LLM's service takes.
        sampling: What the method asks for.
        edit: Turns the body that an LLM built into what is asked for.
        limits: What the service may take for one answer.
    """

    manners: Manners
    sampling: SamplingParams
    edit: Callable[[dict[str, Any]], Body]
    limits: Limits


class Line(NamedTuple):
    """A sync stream of an LLM's responses, and the client that can end it."""

    stream: Any
    client: LentClient | None = None

    def hang_up(self) -> None:
        """End the stream; what comes after counts for nothing, errors included."""
        if self.client is None:
            # Of an LLM that is not known from within: all that can be done is to close it.
            close = getattr(self.stream, "close", None)
            if close is not None:
                close()
            return
        self.client.ended = True
        with suppress(Exception):
            for _ in self.stream:
                pass


class AsyncLine(NamedTuple):
    """An async stream of an LLM's responses, and the client that can end it."""

    stream: Any
    client: LentAsyncClient | None = None

    async def hang_up(self) -> None:
        """End the stream; what comes after counts for nothing, errors included."""
        if self.client is None:
            aclose = getattr(self.stream, "aclose", None)
            if aclose is not None:
                await aclose()
            return
        self.client.ended = True
        with suppress(Exception):
            async for _ in self.stream:
                pass


class StandIn:
    """Stands in for an object, of which one attribute is ours.

    Args:
        target: The object.
        **ours: What is ours of it, by name.
    """

    def __init__(self, target: Any, **ours: Any) -> None:
        self._target = target
        self.__dict__.update(ours)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def standing_in(client: Any, path: tuple[str, ...], wrapped: Callable[[Any], Any]) -> Any:
    """Return a client whose method at a path is wrapped.

    Args:
        client: The SDK's client.
        path: Names that lead to the method, such as ``("messages", "create")``.
        wrapped: Given the object that has the method, returns what to call in its place.
    """
    [name, *further] = path
    if not further:
        return StandIn(client, **{name: wrapped(client)})
    inner = standing_in(getattr(client, name), tuple(further), wrapped)
    return StandIn(client, **{name: inner})


class LentClient:
    """Stands in for OpenAI's sync client during one request.

    Args:
        client: The SDK's client.
        asking: How the request is to be put.
    """

    def __init__(self, client: Any, asking: Asking) -> None:
        self.ended = False
        self._asking = asking
        self.completions = SimpleNamespace(create=self._of(lambda: client.completions))
        self.chat = SimpleNamespace(
            completions=SimpleNamespace(create=self._of(lambda: client.chat.completions))
        )
        self.responses = SimpleNamespace(create=self._of(lambda: client.responses))

    def _of(self, resource: Callable[[], Any]) -> Any:
        def create(**body: Any) -> Any:
            # An LLM sends its request only when its stream is read; that may be in order to end it.
            if self.ended:
                return iter(())
            manners, sampling, edit, _ = self._asking
            fixed, parameters = edit(body)
            whole = self._streamed if body.get("stream") else self._whole
            return manners.send(parameters, sampling, lambda given: whole(resource(), {**fixed, **given}))

        return create

    def _whole(self, resource: Any, body: dict[str, Any]) -> Any:
        with resource.with_streaming_response.create(**body) as response:
            bound(response.http_response, self._asking.limits)
            return _checked(response.parse())

    def _streamed(self, resource: Any, body: dict[str, Any]) -> Iterator[Any]:
        pieces = resource.create(**body)
        bound(pieces.response, self._asking.limits)
        try:
            # A refusal may come inside the stream; then its first piece is an error.
            return self._read(pieces, list(islice(pieces, 1)))
        except BaseException:
            pieces.close()
            raise

    def _read(self, pieces: Any, first: list[Any]) -> Iterator[Any]:
        try:
            for piece in chain(first, pieces):
                yield piece
                if self.ended:
                    return
        finally:
            pieces.close()


class LentAsyncClient:
    """Stands in for OpenAI's async client during one request.

    Args:
        client: The SDK's client.
        asking: How the request is to be put.
    """

    def __init__(self, client: Any, asking: Asking) -> None:
        self.ended = False
        self._asking = asking
        self.completions = SimpleNamespace(create=self._of(lambda: client.completions))
        self.chat = SimpleNamespace(
            completions=SimpleNamespace(create=self._of(lambda: client.chat.completions))
        )
        self.responses = SimpleNamespace(create=self._of(lambda: client.responses))

    def _of(self, resource: Callable[[], Any]) -> Any:
        async def create(**body: Any) -> Any:
            if self.ended:
                return _nothing()
            manners, sampling, edit, _ = self._asking
            fixed, parameters = edit(body)
            whole = self._streamed if body.get("stream") else self._whole
            return await manners.asend(
                parameters, sampling, lambda given: whole(resource(), {**fixed, **given})
            )

        return create

    async def _whole(self, resource: Any, body: dict[str, Any]) -> Any:
        async with resource.with_streaming_response.create(**body) as response:
            abound(response.http_response, self._asking.limits)
            return _checked(await response.parse())

    async def _streamed(self, resource: Any, body: dict[str, Any]) -> AsyncIterator[Any]:
        pieces = await resource.create(**body)
        abound(pieces.response, self._asking.limits)
        try:
            first = await anext(aiter(pieces), None)
            return self._read(pieces, [] if first is None else [first])
        except BaseException:
            await pieces.close()
            raise

    async def _read(self, pieces: Any, first: list[Any]) -> AsyncIterator[Any]:
        try:
            for piece in first:
                yield piece
                if self.ended:
                    return
            async for piece in pieces:
                yield piece
                if self.ended:
                    return
        finally:
            await pieces.close()


class ErrorInside(Exception):  # noqa: N818  # named for where it was found
    """An error that a service reported in an answer of status 200.

    Attributes:
        code: The status that it stands for.
    """

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.code = error.get("code") if isinstance(error, Mapping) else None


def _checked(answer: Any) -> Any:
    """Return an answer, unless it is none: a router passes a provider's error on within one.

    Raises:
        ErrorInside: If it is an error.
    """
    error = (getattr(answer, "model_extra", None) or {}).get("error")
    if error and not getattr(answer, "choices", None):
        raise ErrorInside(error)
    return answer


async def _nothing() -> AsyncIterator[Any]:
    pieces: tuple[Any, ...] = ()
    for piece in pieces:
        yield piece
