"""An answer while it arrives: text that may be shown, and the generation at the end."""

from __future__ import annotations

from dataclasses import replace

from langchain_core.outputs import Generation as Answer

from langchain_surerag._dialects import Dialect
from surerag.readers.openai.parse import Draft as Parsed
from surerag.readers.pieces import TrimmedPieces, cut_at_stop
from surerag.types import Generation, Sampling, Usage


class Draft:
    """Chunks of one answer, or the whole of it, joined and checked.

    Log-probabilities are read by the code that reads them for OpenAIReader, so both say the same. Stop
    texts are kept to here as well: models without the keyword ignore it.

    Args:
        sampling: Limits of the answer.
        traced: Whether the answer shall carry log-probabilities.
    """

    def __init__(self, sampling: Sampling, *, traced: bool) -> None:
        self._stop = sampling.stop
        self._traced = traced
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
            self._parsed = Parsed(dialect.wanted(traced=self._traced))
        with dialect.blamed():
            self._parsed.feed(dialect.choice(answer))
        counted = dialect.usage(answer)
        if counted.prompt_tokens or counted.completion_tokens:
            self._parsed.usage = counted
        before = cut_at_stop(self._parsed.text, self._stop)
        if before is not None:
            self._parsed.text, self._parsed.finish, self.stopped = before, "stop", True
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
