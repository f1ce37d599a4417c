"""Answers on their way: an open stream, read to its first tokens, then continued or closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from langchain_surerag.answers import Answer
from langchain_surerag.runs import AnswerRun
from surerag.errors import ServiceError
from surerag.messages import Chunk, Generation, PartialGeneration, Usage
from surerag.readers.pieces import TrimmedPieces


class OpenStream:
    """An answer that is read as far as somebody wants it.

    Args:
        pieces: What the model streams.
        answer: Where it is collected.
        run: Shows a draft that became the answer; None where the model's own run is shown.
        count: Adds to the reader's usage.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[Any],
        answer: Answer,
        run: AnswerRun | None,
        count: Callable[[Usage], None],
    ) -> None:
        self._pieces = pieces
        self._answer = answer
        self._run = run
        self._count = count
        self._trimmed = TrimmedPieces()
        self._position = 0
        self._text = ""
        self._ended = self._used = False

    async def until(self, n_tokens: int) -> PartialGeneration:
        """Read the first ``n_tokens`` tokens, or all if there are fewer."""
        while not self._ended and self._answer.n_tokens() < n_tokens:
            await self._advance()
        generation = self._answer.generation() if self._ended else self._answer.beginning(n_tokens)
        return PartialGeneration(generation, done=self._ended, state=self)

    async def rest(self) -> Generation:
        """Read to the end."""
        return cast("Generation", [chunk async for chunk in self.chunks()][-1].generation)

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield all text; the last chunk has the generation."""
        if self._used:
            raise ServiceError("what was begun is finished or cancelled already", hint="begin it again")
        self._used = True
        try:
            while True:
                if piece := self._next():
                    if self._run is not None:
                        await self._run.token(piece)
                    yield Chunk(piece)
                if self._ended:
                    break
                await self._advance()
            if self._run is not None:
                await self._run.end()
            yield Chunk("", self._answer.generation())
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop reading, and close the connection; again does nothing."""
        self._used = True
        await self._pieces.aclose()

    async def _advance(self) -> None:
        """Read a piece; after the last one, what the answer still holds back."""
        try:
            piece = await anext(self._pieces, None)
            self._text += self._trimmed.feed(self._answer.end() if piece is None else self._answer.add(piece))
            self._ended = piece is None or self._answer.stopped
            if self._ended:
                self._count(self._answer.usage)
        except BaseException:
            await self.close()
            raise

    def _next(self) -> str:
        """Return what can be shown by now, and was not yet."""
        text = self._answer.text.strip() if self._answer.stopped else self._text
        piece = text[self._position :]
        self._position += len(piece)
        return piece
