"""What a provider's client returned, for what LangChain leaves out of the answers it makes of it.

Some integrations ask for log-probabilities and then drop them. They are picked up from the client, on the
way into LangChain: a copy of the model gets a stand-in for its client, which does what it does and notes what
came.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

OVERHEARD = "overheard"
"""Under which name what was overheard stands in an answer's metadata."""

Entries = list[dict[str, Any]]
"""Log-probabilities in the form in which OpenAI's chat API has them, one entry a token."""


class Overheard:
    """Log-probabilities of one request, as they came in.

    Args:
        read: Returns those in one answer, or one event of a stream, of the client.
    """

    def __init__(self, read: Callable[[Any], Entries]) -> None:
        self._read = read
        self._entries: Entries = []

    def hear(self, answer: Any) -> Any:
        """Note what an answer holds, and return it."""
        self._entries += self._read(answer)
        return answer

    def take(self) -> Entries:
        """Return what came since this was last asked."""
        entries, self._entries = self._entries, []
        return entries


class Listening:
    """Stands in for a client: everything is as it is there, and what some of its methods return is heard.

    Args:
        client: The client, or a part of it.
        overheard: Who listens.
        methods: Paths of the methods from here, such as ``("models", "generate_content")``.
    """

    def __init__(self, client: Any, overheard: Overheard, *methods: tuple[str, ...]) -> None:
        self._client = client
        self._overheard = overheard
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        rest = [path[1:] for path in self._methods if path[0] == name]
        if not rest:
            return found
        return Listening(found, self._overheard, *rest) if rest[0] else self._heard(found)

    def _heard(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **arguments: Any) -> Any:
            return _Heard.of(method(*args, **arguments), self._overheard)

        return call


class _Heard:
    """What a client returned: an answer, a raw answer to be parsed, a stream, or something to await."""

    def __init__(self, found: Any, overheard: Overheard) -> None:
        self._found = found
        self._overheard = overheard

    @classmethod
    def of(cls, found: Any, overheard: Overheard) -> Any:
        if hasattr(found, "__await__"):
            return cls._awaited(found, overheard)
        if hasattr(found, "__next__") or hasattr(found, "__anext__") or hasattr(found, "http_response"):
            return cls(found, overheard)
        return overheard.hear(found)

    @classmethod
    async def _awaited(cls, found: Any, overheard: Overheard) -> Any:
        return cls.of(await found, overheard)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)

    def parse(self) -> Any:
        return self._overheard.hear(self._found.parse())

    def __iter__(self) -> Iterator[Any]:
        for event in self._found:
            yield self._overheard.hear(event)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for event in self._found:
            yield self._overheard.hear(event)

    def __enter__(self) -> _Heard:
        if isinstance(self._found, AbstractContextManager):
            self._found.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        if isinstance(self._found, AbstractContextManager):
            self._found.__exit__(*raised)

    async def __aenter__(self) -> _Heard:
        if isinstance(self._found, AbstractAsyncContextManager):
            await self._found.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        if isinstance(self._found, AbstractAsyncContextManager):
            await self._found.__aexit__(*raised)
