"""Regimes: worlds in which something misleads, as it does in real corpora, in shares that are known.

In today's world (`world.SPEC`) the reader's doubt tells almost everything: what it was not taught it
is unsure of, and retrieval never hurts. A real reader is often wrong and sure of it, retrieval spoils some of
its right answers, and where it would help doubt hardly tells. Each regime has one main reason for that, and a
little of others, so that its records look like those of a real reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from surerag.errors import ConfigurationError
from world.spec import SPEC, Cell, Hazard, QuestionKind, Source, WorldSpec

_S, _V, _T = QuestionKind.SINGLE, QuestionKind.UNDER_SPECIFIED, QuestionKind.TWO_HOP
_C, _L, _D = Source.CORE, Source.LEAD, Source.DEEP
_H = Hazard


@dataclass(frozen=True, slots=True)
class Regime:
    """A kind of world.

    Attributes:
        name: As the command line takes it.
        summary: What misleads in it.
        spec: The proportions of its worlds: ``World(seed, spec=regime("namesakes").spec)``.
    """

    name: str
    summary: str
    spec: WorldSpec


def _regime(name: str, summary: str, mix: Mapping[Cell, float]) -> Regime:
    return Regime(name, summary, WorldSpec(mix=MappingProxyType(dict(mix))))


# Shares were chosen on the records of seeds 101 to 104 and 9301, and are reported on others.
_REGIMES = (
    _regime(
        "changed-facts",
        "Facts have changed since the reader learnt them, and it answers from memory.",
        {
            Cell(_S, _C): 0.20,
            Cell(_S, _C, _H.OUTDATED_LEAD): 0.14,
            Cell(_S, _L): 0.09,
            Cell(_S, _D, _H.CHANGED): 0.14,
            Cell(_S, _L, _H.CHANGED): 0.06,
            Cell(_S, _L, _H.LOUD): 0.17,
            Cell(_S, _D, _H.OUTDATED_LEAD): 0.08,
            Cell(_T, _D): 0.08,
            Cell(_V, _D): 0.04,
        },
    ),
    _regime(
        "outdated-summaries",
        "Summaries say what used to be so; passages deeper in the article say what is.",
        {
            Cell(_S, _C): 0.14,
            Cell(_S, _C, _H.OUTDATED_LEAD): 0.10,
            Cell(_S, _L): 0.16,
            Cell(_S, _L, _H.LOUD): 0.18,
            Cell(_S, _D): 0.02,
            Cell(_S, _D, _H.OUTDATED_LEAD): 0.26,
            Cell(_T, _D): 0.08,
            Cell(_V, _D): 0.06,
        },
    ),
    _regime(
        "altered-copies",
        "Passages have near-duplicates with one detail changed.",
        {
            Cell(_S, _C): 0.12,
            Cell(_S, _C, _H.ALTERED): 0.06,
            Cell(_S, _C, _H.OUTDATED_LEAD): 0.12,
            Cell(_S, _L): 0.10,
            Cell(_S, _L, _H.ALTERED): 0.26,
            Cell(_S, _L, _H.LOUD): 0.02,
            Cell(_S, _D, _H.ALTERED): 0.04,
            Cell(_S, _D, _H.OUTDATED_LEAD): 0.20,
            Cell(_T, _D): 0.05,
            Cell(_V, _D): 0.03,
        },
    ),
    _regime(
        "loud-errors",
        "Pages that repeat the question and answer it wrongly, or not at all, outrank those that answer it.",
        {
            Cell(_S, _C): 0.12,
            Cell(_S, _C, _H.LOUD): 0.07,
            Cell(_S, _C, _H.OUTDATED_LEAD): 0.10,
            Cell(_S, _L): 0.17,
            Cell(_S, _L, _H.LOUD): 0.16,
            Cell(_S, _D, _H.LOUD): 0.06,
            Cell(_S, _D, _H.CROWDED): 0.08,
            Cell(_S, _D, _H.CHANGED): 0.08,
            Cell(_S, _D, _H.OUTDATED_LEAD): 0.16,
        },
    ),
    _regime(
        "namesakes",
        "Two articles bear one name, and the reader is shown that of the other.",
        {
            Cell(_S, _C): 0.12,
            Cell(_S, _C, _H.OUTDATED_LEAD): 0.12,
            Cell(_S, _L, _H.NAMESAKE): 0.38,
            Cell(_S, _L, _H.LOUD): 0.13,
            Cell(_S, _D, _H.OUTDATED_LEAD): 0.15,
            Cell(_T, _D): 0.06,
            Cell(_V, _D): 0.04,
        },
    ),
    _regime(
        "mixed",
        "A little of everything that misleads.",
        {
            Cell(_S, _C): 0.12,
            Cell(_S, _C, _H.OUTDATED_LEAD): 0.10,
            Cell(_S, _L): 0.10,
            Cell(_S, _L, _H.ALTERED): 0.08,
            Cell(_S, _L, _H.LOUD): 0.12,
            Cell(_S, _L, _H.NAMESAKE): 0.10,
            Cell(_S, _L, _H.CHANGED): 0.04,
            Cell(_S, _D, _H.CROWDED): 0.04,
            Cell(_S, _D, _H.CHANGED): 0.06,
            Cell(_S, _D, _H.OUTDATED_LEAD): 0.16,
            Cell(_T, _D): 0.05,
            Cell(_V, _D): 0.03,
        },
    ),
)

REGIMES: Mapping[str, Regime] = MappingProxyType({one.name: one for one in _REGIMES})
"""All regimes by name; today's world is not among them."""

TODAY = Regime("today", "Nothing misleads: the reader doubts what it does not know.", SPEC)
"""The world as it is without any hazard."""


def regime(name: str) -> Regime:
    """Return a regime by its name; ``"today"`` is the world without any.

    Raises:
        ConfigurationError: If there is none of that name.

    Example:
        >>> regime("namesakes").summary
        'Two articles bear one name, and the reader is shown that of the other.'
    """
    found = TODAY if name == TODAY.name else REGIMES.get(name)
    if found is None:
        raise ConfigurationError(
            f"there is no regime {name!r}", hint=f"there are {', '.join((TODAY.name, *REGIMES))}"
        )
    return found
