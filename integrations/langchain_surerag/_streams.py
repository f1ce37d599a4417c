"""Answers on their way from a LangChain model: open streams, and what came of them so far."""

from __future__ import annotations

from abc import ABC
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from dataclasses import replace
from typing import Any, cast

from langchain_core.outputs import Generation as Answer

from langchain_surerag._asking import Piece
from langchain_surerag.dialects import Dialect
from surerag.errors import ServiceError
from surerag.readers.closing import HangUp, close_in_loop_when_dropped, close_when_dropped
from surerag.readers.failures import refusals
from surerag.readers.openai.parse import Draft as Parsed
from surerag.readers.pieces import TrimmedPieces, cut_at_stop
from surerag.types import Begun, Chunk, Generation, Sampling, Usage


class Draft:
    """Chunks of one answer, or the whole of it, joined and checked.

    Log-probabilities are read by the code that reads them for OpenAIReader, so both say the same. Stop
    texts are kept to here as well: models without the keyword ignore it.

    Args:
        sampling: Limits of the answer, and what it shall carry.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._stop = sampling.stop
        self._traced = False
        self._dialect: Dialect | None = None
        self._parsed: Parsed | None = None
        self._trimmed = TrimmedPieces()
        self._fed = 0
        self.shown = ""
        self.stopped = False

    @property
    def tokens(self) -> int:
        """Tokens that came so far."""
        return self._parsed.tokens if self._parsed is not None else 0

    @property
    def usage(self) -> Usage:
        """What the server counted, else what was seen."""
        if self._parsed is None:
            return Usage(1)
        counted = self._parsed.usage
        seen = self.tokens if self._traced else 0
        return Usage(1, counted.prompt_tokens, counted.completion_tokens or seen)

    def add(self, dialect: Dialect, answer: Answer) -> None:
        """Take a chunk.

        Raises:
            LogprobsError: If log-probabilities are wanted, and are missing or malformed.
        """
        if self._parsed is None:
            self._dialect = dialect
            wanted = dialect.wanted(self._sampling.trace)
            self._traced = wanted.logprobs
            self._parsed = Parsed(wanted, limit=self._sampling.max_tokens if wanted.logprobs else None)
        with dialect.blamed():
            self._parsed.feed(dialect.choice(answer))
        counted = dialect.usage(answer)
        if counted.prompt_tokens or counted.completion_tokens:
            self._parsed.usage = counted
        before = cut_at_stop(self._parsed.text, self._stop)
        if before is not None:
            self._parsed.text, self._parsed.finish, self.stopped = before, "stop", True
        self.stopped = self.stopped or self._parsed.full
        # What may yet turn out to be the beginning of a stop text is held back.
        held = 0 if self.stopped else max((len(stop) - 1 for stop in self._stop), default=0)
        self._show(len(self._parsed.text) - held)

    def end(self) -> None:
        """Say that nothing follows, and show what was held back."""
        if self._parsed is not None:
            # Models that know no reasons to end still end.
            self._parsed.finish = self._parsed.finish or "stop"
            self._show(len(self._parsed.text))

    def generation(self, first: int | None = None) -> Generation:
        """Return the answer; of one that still grows, its ``first`` tokens.

        Raises:
            LogprobsError: If log-probabilities do not cover the text, or cannot be ones.
        """
        if self._parsed is None or self._dialect is None:
            return Generation("", finish="stop")
        with self._dialect.blamed():
            generation = self._parsed.generation(first)
        if generation.finish != "partial":
            generation = replace(generation, text=self.shown)
        if not self._traced:
            generation = replace(generation, completion_tokens=self._parsed.usage.completion_tokens)
        return generation

    def _show(self, until: int) -> None:
        if self._parsed is not None and until > self._fed:
            self.shown += self._trimmed.feed(self._parsed.text[self._fed : until])
            self._fed = until


Count = Callable[[Usage], None]


class _Stream(ABC):  # noqa: B024  # what its two children share; neither verb can be abstract and sync
    """What sync and async streams share: the draft, and what became of the stream."""

    def __init__(self, draft: Draft, count: Count, name: str) -> None:
        self._draft = draft
        self._count = count
        self._name = name
        self._hang_up: HangUp
        self._asked = False
        self._ended = False
        self._used = False

    def _take(self, piece: Piece) -> None:
        self._draft.add(piece.dialect, piece.chunk)

    def close(self) -> None:
        """Stop reading, and let the connection be closed where that is safe; again does nothing.

        It awaits nothing, so that a finaliser may call it.
        """
        self._used = True
        self._end()

    def _end(self) -> None:
        self._hang_up()
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

    def __init__(self, pieces: Iterator[Piece], draft: Draft, count: Count, name: str) -> None:
        super().__init__(draft, count, name)
        self._pieces = pieces
        self._hang_up = close_when_dropped(self, cast("Any", pieces).close)

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

    def _advance(self) -> bool:
        if self._ended:
            return False
        self._asked = True
        try:
            with refusals(self._name):
                piece = next(self._pieces, None)
            if piece is not None:
                self._take(piece)
        except BaseException:
            self.close()
            raise
        if piece is None or self._draft.stopped:
            self._draft.end()
            self._end()
        return not self._ended


class AsyncOpenStream(_Stream):
    """A stream that is read without blocking."""

    def __init__(self, pieces: AsyncIterator[Piece], draft: Draft, count: Count, name: str) -> None:
        super().__init__(draft, count, name)
        self._pieces = pieces
        self._hang_up = close_in_loop_when_dropped(self, cast("Any", pieces).aclose)

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
            self.close()

    async def _advance(self) -> bool:
        if self._ended:
            return False
        self._asked = True
        try:
            with refusals(self._name):
                piece = await anext(self._pieces, None)
            if piece is not None:
                self._take(piece)
        except BaseException:
            self.close()
            raise
        if piece is None or self._draft.stopped:
            self._draft.end()
            self._end()
        return not self._ended
