"""An open stream: read to the gate, then to the end, or closed."""

from __future__ import annotations

from abc import ABC
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any

from langchain_surerag._asking import Piece
from langchain_surerag._drafts import Draft
from surerag.errors import ServiceError
from surerag.types import Begun, Chunk, Generation, Usage

Count = Callable[[Usage], None]


class _Stream(ABC):  # noqa: B024  # what its two children share; neither verb can be abstract and sync
    """What sync and async streams share: the draft, and what became of the stream."""

    def __init__(self, draft: Draft, count: Count) -> None:
        self._draft = draft
        self._count = count
        self._asked = False
        self._ended = False
        self._used = False

    def _take(self, piece: Piece) -> None:
        self._draft.add(piece.dialect, piece.chunk)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            if self._asked:
                self._count(self._draft.usage)

    def _begun(self, n_tokens: int) -> Begun:
        return Begun(self._draft.generation(None if self._ended else n_tokens), done=self._ended, state=self)

    def _use(self) -> None:
        if self._used:
            raise ServiceError("what was begun is finished or cancelled already", hint="begin it again")
        self._used = True

    def _whole(self) -> Generation:
        return self._draft.generation()


class OpenStream(_Stream):
    """A stream that is read by blocking."""

    def __init__(self, pieces: Iterator[Piece], draft: Draft, count: Count) -> None:
        super().__init__(draft, count)
        self._pieces: Any = pieces

    def until(self, n_tokens: int) -> Begun:
        """Read the first ``n_tokens`` tokens, or all if there are fewer."""
        while self._draft.tokens < n_tokens and self._advance():
            pass
        return self._begun(n_tokens)

    def rest(self) -> Generation:
        """Read to the end."""
        self._use()
        while self._advance():
            pass
        return self._whole()

    def chunks(self) -> Generator[Chunk]:
        """Yield all text there is and will be; the last chunk has the generation."""
        self._use()
        try:
            shown = ""
            more = True
            while more:
                if piece := self._draft.shown[len(shown) :]:
                    shown += piece
                    yield Chunk(piece)
                more = self._advance()
            yield Chunk(self._draft.shown[len(shown) :], self._whole())
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading and let go of the connection; closing again does nothing."""
        self._used = True
        self._pieces.close()
        self._end()

    def _advance(self) -> bool:
        if self._ended:
            return False
        self._asked = True
        try:
            piece = next(self._pieces, None)
            if piece is not None:
                self._take(piece)
        except BaseException:
            self.close()
            raise
        if piece is None or self._draft.stopped:
            self._pieces.close()
            self._draft.end()
            self._end()
        return not self._ended


class AsyncOpenStream(_Stream):
    """A stream that is read without blocking."""

    def __init__(self, pieces: AsyncIterator[Piece], draft: Draft, count: Count) -> None:
        super().__init__(draft, count)
        self._pieces: Any = pieces

    async def until(self, n_tokens: int) -> Begun:
        """Read the first ``n_tokens`` tokens, or all if there are fewer."""
        while self._draft.tokens < n_tokens and await self._advance():
            pass
        return self._begun(n_tokens)

    async def rest(self) -> Generation:
        """Read to the end."""
        self._use()
        while await self._advance():
            pass
        return self._whole()

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield all text there is and will be; the last chunk has the generation."""
        self._use()
        try:
            shown = ""
            more = True
            while more:
                if piece := self._draft.shown[len(shown) :]:
                    shown += piece
                    yield Chunk(piece)
                more = await self._advance()
            yield Chunk(self._draft.shown[len(shown) :], self._whole())
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Stop reading and let go of the connection; closing again does nothing."""
        self._used = True
        await self._pieces.aclose()
        self._end()

    async def _advance(self) -> bool:
        if self._ended:
            return False
        self._asked = True
        try:
            piece = await anext(self._pieces, None)
            if piece is not None:
                self._take(piece)
        except BaseException:
            await self.aclose()
            raise
        if piece is None or self._draft.stopped:
            await self._pieces.aclose()
            self._draft.end()
            self._end()
        return not self._ended
