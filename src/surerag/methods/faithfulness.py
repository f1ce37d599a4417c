"""Does a source say what a compression says? Sentence by sentence, by overlap or by entailment."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from surerag.effects import Program, entail
from surerag.types import Pair

Guard = Literal["overlap", "entailment", "off"]

_ENTAILMENT = 2
"""Column of an entailer's answer."""

_IDEOGRAPHS = "぀-ヿ㐀-鿿"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W_{_IDEOGRAPHS}]+")
_COMMON = frozenset(
    "a an and are as at be been by for from had has have he her his in is it its of on or she that the their "
    "they this to was were which who will with".split()
)


class Claim(NamedTuple):
    """A sentence, and the texts that might support it."""

    sentence: str
    sources: Sequence[str]


def overlap_support(sentence: str, source: str) -> float:
    """Share of a sentence's content words that a source has; 0 if it lacks one of its names or numbers.

    A name is a word with a capital letter anywhere but at the beginning of the sentence.

    Example:
        >>> overlap_support("She was born in Velm.", "Ada was born in Velm in 1815.")
        1.0
        >>> overlap_support("Ada was born in Orun.", "Ada was born in Velm in 1815.")
        0.0
    """
    found = _WORD.findall(sentence)
    there = {word.casefold() for word in _WORD.findall(source)}
    strict = [word for at, word in enumerate(found) if (at and word[:1].isupper()) or word[:1].isdigit()]
    if any(word.casefold() not in there for word in strict):
        return 0.0
    content = [word.casefold() for word in found if word.casefold() not in _COMMON]
    return sum(word in there for word in content) / len(content) if content else 1.0


def supported(claims: Sequence[Claim], guard: Guard, threshold: float) -> Program[list[bool]]:
    """Tell for each claim whether a single one of its sources supports it.

    Args:
        claims: Sentences, each with its sources.
        guard: ``"overlap"`` compares words; ``"entailment"`` asks the entailer, all pairs at once; ``"off"``
            believes everything.
        threshold: Smallest share of words, or probability of entailment, that supports.
    """
    if guard == "off" or not claims:
        return [True] * len(claims)
    if guard == "overlap":
        return [_best(claim, overlap_support) >= threshold for claim in claims]
    pairs = [Pair(source, claim.sentence) for claim in claims for source in claim.sources]
    judged = iter((yield from entail(pairs))[:, _ENTAILMENT])
    return [max(float(next(judged)) for _ in claim.sources) >= threshold for claim in claims]


def _best(claim: Claim, measure: Callable[[str, str], float]) -> float:
    return max(measure(claim.sentence, source) for source in claim.sources)
