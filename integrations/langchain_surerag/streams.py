"""Answers on their way: an open stream, read to its first tokens, then continued or closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

from langchain_core.runnables.config import ensure_config

from langchain_surerag.answers import Answer
from langchain_surerag.runs import PURPOSE, AnswerRun
from surerag.errors import ServiceError
from surerag.messages import Chunk, Generation, PartialGeneration, Usage
from surerag.readers.pieces import TrimmedPieces


class _Stream:
    """What sync and async streams share.

    Args:
        pieces: What the model streams.
        answer: Where it is collected.
        prompt: What was asked, for the run that shows a draft as the answer.
        count: Adds to the reader's usage.
    """

    def __init__(self, pieces: Any, answer: Answer, prompt: str, count: Callable[[Usage], None]) -> None:
        self._pieces = pieces
        self._answer = answer
        self._count = count
        self._run = AnswerRun(prompt, ensure_config()) if PURPOSE.get() == "draft" else None
        self._trimmed = TrimmedPieces()
        self._position = 0
        self._text = ""
        self._ended = self._used = False

    def _take(self, piece: Any) -> None:
        """Take a chunk; None says that nothing follows."""
        self._text += self._trimmed.feed(self._answer.end() if piece is None else self._answer.add(piece))
        self._ended = piece is None or self._answer.stopped
        if self._ended:
            self._count(self._answer.usage)

    def _next(self) -> str:
        """Return what can be shown by now, and was not yet."""
        text = self._text if not self._answer.stopped else self._answer.text.strip()
        piece = text[self._position :]
        self._position += len(piece)
        return piece

    def _partial(self, n_tokens: int) -> PartialGeneration:
        generation = self._answer.generation() if self._ended else self._answer.beginning(n_tokens)
        return PartialGeneration(generation, done=self._ended, state=self)

    def _use(self) -> None:
        if self._used:
            raise ServiceError("what was begun is finished or cancelled already", hint="begin it again")
        self._used = True


class OpenStream(_Stream):
    """A stream that is read by blocking."""

    def until(self, n_tokens: int) -> PartialGeneration:
        """Read the first ``n_tokens`` tokens, or all if there are fewer."""
        while not self._ended and self._answer.n_tokens() < n_tokens:
            self._advance()
        return self._partial(n_tokens)

    def rest(self) -> Generation:
        """Read to the end."""
        return cast("Generation", [*self.chunks()][-1].generation)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all text; the last chunk has the generation."""
        self._use()
        try:
            while True:
                if piece := self._next():
                    if self._run is not None:
                        self._run.token(piece)
                    yield Chunk(piece)
                if self._ended:
                    break
                self._advance()
            if self._run is not None:
                self._run.end()
            yield Chunk("", self._answer.generation())
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading, and close the connection; again does nothing."""
        self._used = True
        self._pieces.close()

    def _advance(self) -> None:
        try:
            self._take(next(self._pieces, None))
        except BaseException:
            self.close()
            raise


class AsyncOpenStream(_Stream):
    """A stream that is read without blocking."""

    async def until(self, n_tokens: int) -> PartialGeneration:
        """Read the first ``n_tokens`` tokens, or all if there are fewer."""
        while not self._ended and self._answer.n_tokens() < n_tokens:
            await self._advance()
        return self._partial(n_tokens)

    async def rest(self) -> Generation:
        """Read to the end."""
        return cast("Generation", [chunk async for chunk in self.chunks()][-1].generation)

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield all text; the last chunk has the generation."""
        self._use()
        try:
            while True:
                if piece := self._next():
                    if self._run is not None:
                        await self._run.atoken(piece)
                    yield Chunk(piece)
                if self._ended:
                    break
                await self._advance()
            if self._run is not None:
                await self._run.aend()
            yield Chunk("", self._answer.generation())
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop reading, and close the connection; again does nothing."""
        self._used = True
        await self._pieces.aclose()

    async def _advance(self) -> None:
        try:
            self._take(await anext(self._pieces, None))
        except BaseException:
            await self.close()
            raise
