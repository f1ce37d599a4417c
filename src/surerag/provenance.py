"""Where the words of a text stand in the texts that it was made of: citations that survive a compression."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from surerag.tokens import UNSPACED

PROVENANCE_KEY = "provenance"
"""Metadata of a text that was made of others: its stretches, as :func:`written` tells them."""

Match = Literal["exact", "normalised", "joining", "unsourced"]

_TOKEN = re.compile(rf"(?P<letter>[{UNSPACED}])|(?P<word>[^\W{UNSPACED}]+)|[^\w\s]")
_ALIKE = str.maketrans("\u2018\u2019\u201a\u201c\u201d\u201e\u2010\u2011\u2012\u2013\u2014", "'''\"\"\"-----")
"""Quotation marks and dashes, by their plain forms."""

_FEWEST = 3.0
"""Words in a row that are no chance; fewer count where they are a whole sentence."""

_LETTER = 0.5
"""What a character counts for, as a word, in scripts that put no spaces between words."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a text, and where it comes from.

    Attributes:
        start: Its first character in the text.
        end: One past its last.
        match: ``"exact"``: the source has it letter for letter; ``"normalised"``: but for white space, case
            and the form of quotation marks; ``"joining"``: no word is in it; ``"unsourced"``: no source has
            it.
        source: Which source, by its position; None where there is none.
        source_start: Its first character in that source's text.
        source_end: One past its last.
    """

    start: int
    end: int
    match: Match
    source: int | None = None
    source_start: int | None = None
    source_end: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what can be written as JSON; a stretch without a source has no keys for it."""
        told: dict[str, Any] = {"start": self.start, "end": self.end, "match": self.match}
        if self.source is not None:
            told |= {
                "source": self.source,
                "source_start": self.source_start,
                "source_end": self.source_end,
            }
        return told

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Stretch:
        """Return a stretch from what :meth:`to_dict` or :func:`written` wrote."""
        return cls(**{name: value for name, value in told.items() if name != "id"})


def written(stretches: Iterable[Stretch], ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return stretches as metadata have them: in terms of JSON, each with the ``id`` of its source.

    Args:
        stretches: Of one text.
        ids: Of its sources, in their order.

    Example:
        >>> written(trace_back("Tin melts.", ["Tin melts."]), ["a"])[0]["id"]
        'a'
    """
    return [{**one.to_dict(), **({} if one.source is None else {"id": ids[one.source]})} for one in stretches]


def trace_back(text: str, sources: Sequence[str], sentences: Sequence[str] = ()) -> tuple[Stretch, ...]:
    """Map every character of a text to the source that it was taken from.

    Words are followed as far as they stand in a row in one source, three at least, or a whole sentence of
    the text. Where several sources say the same, the first is named, or one that says it letter for letter.
    Time and memory grow with the length of the texts, whatever is in them.

    Args:
        text: What was made of the sources, such as a compression.
        sources: Their texts, best first.
        sentences: Sentences of the text, verbatim and in order; these count however short they are.

    Returns:
        Stretches in order, without gaps: together they are the text.

    Example:
        >>> found = trace_back("Ada was born in Velm. She sang well.", ["In 1815, Ada was born in Velm."])
        >>> [(stretch.match, stretch.source_start, stretch.source_end) for stretch in found]
        [('exact', 9, 30), ('joining', None, None), ('unsourced', None, None), ('joining', None, None)]
    """
    tokens = _tokens(text)
    whole = _token_spans(text, tokens, sentences)
    found: list[Stretch] = []
    end = 0
    for run in _tiling(tokens, _Followed(sources), whole):
        start = tokens[run.first].start
        found += _between(text, tokens, end, start)
        end = tokens[run.last].end
        found.append(_sourced(text, start, end, run, sources))
    return (*found, *_between(text, tokens, end, len(text)))


class _Token(NamedTuple):
    """A word, a letter of an unspaced script, or a mark; ``form`` is what it is compared by."""

    start: int
    end: int
    form: str
    words: float


def _tokens(text: str) -> list[_Token]:
    return [
        _Token(
            *match.span(),
            unicodedata.normalize("NFKC", match[0]).translate(_ALIKE).casefold(),
            {"letter": _LETTER, "word": 1.0}.get(match.lastgroup or "", 0.0),
        )
        for match in _TOKEN.finditer(text)
    ]


def _token_spans(text: str, tokens: Sequence[_Token], sentences: Sequence[str]) -> dict[int, set[int]]:
    """Return where sentences, and the whole text, begin, by where they end, in tokens.

    Each stands there with the marks around it, which its source need not have, and without them.
    """
    starts = {token.start: at for at, token in enumerate(tokens)}
    ends = {token.end: at + 1 for at, token in enumerate(tokens)}
    spans = [(0, len(tokens))]
    place = 0
    for sentence in map(str.strip, sentences):
        at = text.find(sentence, place) if sentence else -1
        if at < 0:
            continue
        place = at + len(sentence)
        if at in starts and place in ends:
            spans.append((starts[at], ends[place]))
    found: dict[int, set[int]] = {}
    for first, last in spans:
        words = [at for at in range(first, last) if tokens[at].words]
        if words:
            found.setdefault(last, set()).add(first)
            found.setdefault(words[-1] + 1, set()).add(words[0])
    return found


class _Run(NamedTuple):
    """Tokens of the text, first and last, that stand in a row in a source, and where there."""

    first: int
    last: int
    source: int
    source_start: int
    source_end: int


class _Followed:
    """All rows of tokens of the sources, as a suffix automaton: a text is followed in linear time."""

    def __init__(self, sources: Sequence[str]) -> None:
        self.places: list[tuple[int, _Token]] = []
        self._next: list[dict[str, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._seen_at = [-1]
        last = 0
        for number, source in enumerate(sources):
            for token in _tokens(source):
                last = self._extend(last, token.form)
                self.places.append((number, token))
            # No row reaches from one source into the next: no token has this form.
            last = self._extend(last, f"\n{number}")
            self.places.append((number, _Token(0, 0, "", 0.0)))

    def _extend(self, last: int, form: str) -> int:
        made = self._state({}, self._length[last] + 1, len(self.places))
        at = last
        while at >= 0 and form not in self._next[at]:
            self._next[at][form] = made
            at = self._link[at]
        if at < 0:
            self._link[made] = 0
            return made
        other = self._next[at][form]
        if self._length[at] + 1 == self._length[other]:
            self._link[made] = other
            return made
        clone = self._state(dict(self._next[other]), self._length[at] + 1, self._seen_at[other])
        self._link[clone] = self._link[other]
        self._link[other] = self._link[made] = clone
        while at >= 0 and self._next[at].get(form) == other:
            self._next[at][form] = clone
            at = self._link[at]
        return made

    def _state(self, following: dict[str, int], length: int, seen_at: int) -> int:
        self._next.append(following)
        self._link.append(0)
        self._length.append(length)
        self._seen_at.append(seen_at)
        return len(self._next) - 1

    def rows(self, tokens: Sequence[_Token]) -> list[tuple[int, int]]:
        """Return how long the longest row is that ends with each token, and where in the sources it ends."""
        found: list[tuple[int, int]] = []
        state = length = 0
        for token in tokens:
            while state and token.form not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            if token.form in self._next[state]:
                state = self._next[state][token.form]
                length += 1
            found.append((length, self._seen_at[state]))
        return found


def _tiling(tokens: Sequence[_Token], followed: _Followed, whole: Mapping[int, set[int]]) -> list[_Run]:
    """Cover a text with rows of its sources: the fewest words left out, then marks, then rows."""
    rows = followed.rows(tokens)
    words = [0.0]
    for token in tokens:
        words.append(words[-1] + token.words)
    boundaries = sorted({*whole, *(first for starts in whole.values() for first in starts)})
    cost: list[tuple[float, int, int]] = [(0.0, 0, 0)]
    begun: list[int | None] = [None]
    for end, ((length, _), token) in enumerate(zip(rows, tokens, strict=True), start=1):
        left_out, marks, pieces = cost[-1]
        best, start = (left_out + token.words, marks + (token.words == 0), pieces), None
        for first in _starts(end, end - length, words, whole, boundaries):
            left_out, marks, pieces = cost[first]
            if (left_out, marks, pieces + 1) < best:
                best, start = (left_out, marks, pieces + 1), first
        cost.append(best)
        begun.append(start)
    found: list[_Run] = []
    end = len(tokens)
    while end:
        start = begun[end]
        if start is None:
            end -= 1
            continue
        last = rows[end - 1][1]
        number, closing = followed.places[last]
        opening = followed.places[last - (end - start) + 1][1]
        found.append(_Run(start, end - 1, number, opening.start, closing.end))
        end = start
    return found[::-1]


def _starts(
    end: int, earliest: int, words: Sequence[float], whole: Mapping[int, set[int]], boundaries: Sequence[int]
) -> list[int]:
    """Return where a row that ends here may begin.

    As early as it can, or so much later that what stands before it is a row of its own, or a sentence.
    """
    found = []
    at = earliest
    while at < end and words[end] - words[at] >= _FEWEST:
        found.append(at)
        if words[at] - words[earliest] >= _FEWEST:
            break
        at += 1
    place = bisect_left(boundaries, earliest)
    if place < len(boundaries) and words[end] - words[min(boundaries[place], end)] >= _FEWEST:
        found.append(boundaries[place])
    return found + [first for first in whole.get(end, ()) if first >= earliest]


def _sourced(text: str, start: int, end: int, run: _Run, sources: Sequence[str]) -> Stretch:
    """Name the source of a row: one that says it letter for letter, if there is one."""
    piece = text[start:end]
    if sources[run.source][run.source_start : run.source_end] == piece:
        return Stretch(start, end, "exact", run.source, run.source_start, run.source_end)
    for number, source in enumerate(sources):
        at = source.find(piece)
        if at >= 0:
            return Stretch(start, end, "exact", number, at, at + len(piece))
    return Stretch(start, end, "normalised", run.source, run.source_start, run.source_end)


def _between(text: str, tokens: Sequence[_Token], start: int, end: int) -> list[Stretch]:
    """Return what no source has, from its first word to its last, and what joins it to the rest."""
    words = [token for token in tokens if token.words and start <= token.start and token.end <= end]
    if not words:
        return [Stretch(start, end, "joining")] if end > start else []
    cuts = [(start, words[0].start), (words[0].start, words[-1].end), (words[-1].end, end)]
    kinds: tuple[Match, ...] = ("joining", "unsourced", "joining")
    return [
        Stretch(first, last, kind) for (first, last), kind in zip(cuts, kinds, strict=True) if last > first
    ]
