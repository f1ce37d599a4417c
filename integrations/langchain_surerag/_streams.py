"""Answers on their way from a LangChain model: open streams, and what came of them so far."""

from __future__ import annotations

from abc import ABC
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from langchain_core.outputs import Generation as Answer

from langchain_surerag._asking import Call, Piece
from langchain_surerag.dialects import Dialect
from surerag.errors import ServiceError, ThinkingBudgetError
from surerag.messages import Chunk, Generation, PartialGeneration, SamplingParams, Usage
from surerag.readers.closing import HangUp, close_in_loop_when_dropped, close_when_dropped
from surerag.readers.failures import refusals
from surerag.readers.hosted.parse import Draft as Parsed
from surerag.readers.hosted.parse import UnforeseenThoughtsError
from surerag.readers.pieces import TrimmedPieces


class Draft:
    """Chunks of one answer, or the whole of it, joined and checked, its thoughts told from it.

    They are read by the code that reads them for OpenAIReader, so both say the same. Stop texts are kept to
    here as well: models without the keyword ignore it.

    Args:
        sampling: Limits of the answer, and what it shall carry.
        streamed: Whether it comes in chunks.
    """

    def __init__(self, sampling: SamplingParams, *, streamed: bool = False) -> None:
        self._sampling = sampling
        self._streamed = streamed
        self._dialect: Dialect | None = None
        self._parsed: Parsed | None = None
        self._trimmed = TrimmedPieces()
        self.shown = ""

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of the model that answers; None before it began to."""
        return self._dialect

    @property
    def tokens(self) -> int:
        """Tokens of the answer that came so far."""
        return self._parsed.tokens if self._parsed is not None else 0

    @property
    def stopped(self) -> bool:
        """Whether it ended here, whatever may follow."""
        return self._parsed is not None and self._parsed.full

    @property
    def thought(self) -> bool:
        """Whether it was thought about first."""
        return self._parsed is not None and self._parsed.thought

    @property
    def opened(self) -> bool:
        """Whether its prompt opened the thoughts, and only their end is marked."""
        return self._parsed is not None and self._parsed.opened

    @property
    def usage(self) -> Usage:
        """What the server counted, else what was seen."""
        if self._parsed is None:
            return Usage(1)
        counted = self._parsed.usage
        seen = self._parsed.wanted.logprobs or counted.completion_tokens or counted.thinking_tokens
        if seen:
            return self._parsed.spent()
        return Usage(1, counted.prompt_tokens, cached_tokens=counted.cached_tokens)

    def add(self, dialect: Dialect, answer: Answer) -> None:
        """Take a chunk, or a whole answer.

        Raises:
            LogprobsError: If log-probabilities are wanted, and are missing or malformed.
        """
        if self._parsed is None:
            self._dialect = dialect
            wanted = dialect.wanted(self._sampling.trace)
            beyond = dialect.budget > 0 or dialect.least_tokens > self._sampling.max_tokens
            limited = self._streamed or wanted.logprobs or beyond
            self._parsed = Parsed(
                wanted,
                limit=self._sampling.max_tokens if limited else None,
                stop=self._sampling.stop,
                opened=dialect.opened,
                budget=dialect.budget,
            )
        counted = dialect.usage(answer)
        if counted != Usage(1):
            self._parsed.usage = counted
        choice = dialect.choice(answer)
        if not self._streamed:
            # Models that know no reasons to end still end.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        self._feed(choice)

    def end(self) -> None:
        """Say that nothing follows, and show what was held back.

        Raises:
            ThinkingBudgetError: If the answer ended before it began.
        """
        if self._parsed is not None:
            if self._parsed.finish is None:
                self._feed({"text": "", "finish_reason": "stop"})
            self.generation()

    def generation(self, first: int | None = None) -> Generation:
        """Return the answer; of one that still grows, its ``first`` tokens.

        Raises:
            LogprobsError: If log-probabilities do not cover the text, or cannot be ones.
            ThinkingBudgetError: If the answer ended before it began.
        """
        if self._parsed is None or self._dialect is None:
            return Generation("", finish="stop")
        with self._dialect.blamed():
            generation = self._parsed.generation(first)
        if self._streamed and generation.finish != "partial":
            generation = replace(generation, text=self.shown)
        counted = self._parsed.usage.completion_tokens + self._parsed.usage.thinking_tokens
        if not self._parsed.wanted.logprobs and not counted:
            # Pieces are no tokens.
            generation = replace(generation, completion_tokens=0)
        return generation

    def _feed(self, choice: Mapping[str, Any]) -> None:
        if self._parsed is not None and self._dialect is not None:
            with self._dialect.blamed():
                self.shown += self._trimmed.feed(self._parsed.feed(choice))


@dataclass(frozen=True)
class Source:
    """Where a stream comes from, and who is to know of it.

    Attributes:
        open: Asks for it, anew each time.
        call: Makes what says what a request is for, and stops it; anew each time.
        sampling: What is asked for.
        count: Adds to the reader's totals.
        saw: Notes what an answer showed of its model's thinking; says whether to ask again, knowing it.
        name: Of the model, for messages.
    """

    open: Callable[[Call], Any]
    call: Callable[[], Call]
    sampling: SamplingParams
    count: Callable[[Usage], None]
    saw: Callable[[Draft], bool]
    name: str

    def draft(self) -> Draft:
        """Return an empty answer."""
        return Draft(self.sampling, streamed=True)


_UNFORESEEN = (ThinkingBudgetError, UnforeseenThoughtsError)
"""What shows only from its answer that a model thinks: asked again, it is asked and read as one that does."""


class _Stream(ABC):  # noqa: B024  # what its two children share; neither verb can be abstract and sync
    """What sync and async streams share: the draft, and what became of the stream."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._draft = source.draft()
        self._hang_up: HangUp
        self._call: Call
        self._asked = False
        self._ended = False
        self._used = False
        self._shown = ""

    def _take(self, piece: Piece | None) -> bool:
        """Take what came; say whether nothing is to follow."""
        if piece is not None:
            self._draft.add(piece.dialect, piece.chunk)
        if piece is not None and not self._draft.stopped:
            return False
        self._draft.end()
        self._source.saw(self._draft)
        return True

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
                self._source.count(self._draft.usage)

    def _begin_again(self) -> bool:
        """Whether to ask once more; not if what was shown turned out to be thoughts."""
        if self._shown or not self._source.saw(self._draft):
            return False
        self._hang_up()
        self._source.count(self._draft.usage)
        self._draft = self._source.draft()
        return True

    def _next(self) -> str:
        """Return what may be shown by now, and was not yet."""
        piece = self._draft.shown[len(self._shown) :]
        self._shown += piece
        return piece

    def _begun(self, n_tokens: int) -> PartialGeneration:
        return PartialGeneration(
            self._draft.generation(None if self._ended else n_tokens), done=self._ended, state=self
        )

    def _use(self) -> None:
        if self._used:
            raise ServiceError("what was begun is finished or cancelled already", hint="begin it again")
        self._used = True

    def _whole(self) -> Generation:
        return self._draft.generation()


class OpenStream(_Stream):
    """A stream that is read by blocking."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._open()

    def until(self, n_tokens: int) -> PartialGeneration:
        """Read the first ``n_tokens`` tokens, or all if there are fewer."""
        while self._draft.tokens < n_tokens and self._advance():
            pass
        return self._begun(n_tokens)

    def rest(self) -> Generation:
        """Read to the end."""
        self._use()
        self._keep()
        while self._advance():
            pass
        return self._whole()

    def chunks(self) -> Generator[Chunk]:
        """Yield all text there is and will be; the last chunk has the generation."""
        self._use()
        try:
            self._keep()
            more = True
            while more:
                if piece := self._next():
                    yield Chunk(piece)
                more = self._advance()
            yield Chunk(self._next(), self._whole())
        finally:
            self.close()

    def drop(self) -> None:
        """Show none of it, and have the model's run end well."""
        self._used = True
        if self._call.hold is not None:
            self._call.hold.drop()
        if not self._ended:
            self._wind_up()
        self._end()

    def _open(self) -> None:
        self._call = self._source.call()
        self._pieces: Iterator[Piece] = self._source.open(self._call)
        self._hang_up = close_when_dropped(self, cast("Any", self._pieces).close)

    def _advance(self) -> bool:
        if self._ended:
            return False
        self._asked = True
        try:
            with refusals(self._source.name):
                piece = next(self._pieces, None)
            if self._take(piece):
                if piece is not None:
                    self._wind_up()
                self._end()
        except BaseException as error:
            if isinstance(error, _UNFORESEEN) and self._begin_again():
                self._open()
                return True
            self.close()
            raise
        return not self._ended

    def _keep(self) -> None:
        if self._call.hold is not None:
            self._call.hold.keep()

    def _wind_up(self) -> None:
        """Have the model come to its end at once: nothing more is read from its server."""
        self._call.stopped = True
        with suppress(Exception):
            for _ in self._pieces:
                pass


class AsyncOpenStream(_Stream):
    """A stream that is read without blocking."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._open()

    async def until(self, n_tokens: int) -> PartialGeneration:
        """Read the first ``n_tokens`` tokens, or all if there are fewer."""
        while self._draft.tokens < n_tokens and await self._advance():
            pass
        return self._begun(n_tokens)

    async def rest(self) -> Generation:
        """Read to the end."""
        self._use()
        await self._keep()
        while await self._advance():
            pass
        return self._whole()

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield all text there is and will be; the last chunk has the generation."""
        self._use()
        try:
            await self._keep()
            more = True
            while more:
                if piece := self._next():
                    yield Chunk(piece)
                more = await self._advance()
            yield Chunk(self._next(), self._whole())
        finally:
            self.close()

    async def drop(self) -> None:
        """Show none of it, and have the model's run end well."""
        self._used = True
        if self._call.hold is not None:
            await self._call.hold.adrop()
        if not self._ended:
            await self._wind_up()
        self._end()

    def _open(self) -> None:
        self._call = self._source.call()
        self._pieces: AsyncIterator[Piece] = self._source.open(self._call)
        self._hang_up = close_in_loop_when_dropped(self, cast("Any", self._pieces).aclose)

    async def _advance(self) -> bool:
        if self._ended:
            return False
        self._asked = True
        try:
            with refusals(self._source.name):
                piece = await anext(self._pieces, None)
            if self._take(piece):
                if piece is not None:
                    await self._wind_up()
                self._end()
        except BaseException as error:
            if isinstance(error, _UNFORESEEN) and self._begin_again():
                self._open()
                return True
            self.close()
            raise
        return not self._ended

    async def _keep(self) -> None:
        if self._call.hold is not None:
            await self._call.hold.akeep()

    async def _wind_up(self) -> None:
        """Have the model come to its end at once: nothing more is read from its server."""
        self._call.stopped = True
        with suppress(Exception):
            async for _ in self._pieces:
                pass
