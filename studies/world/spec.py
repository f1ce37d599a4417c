"""The mix of a world, decided before any result is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from surerag.errors import ConfigurationError
from world.lexicon import Kind


class QuestionKind(StrEnum):
    """How a question is put, and what it takes to answer it."""

    SINGLE = "single-hop"
    TWO_HOP = "two-hop"
    UNDER_SPECIFIED = "under-specified"
    UNANSWERABLE = "unanswerable"


class Source(StrEnum):
    """Where the answer is to be had: nearest place first."""

    CORE = "core"
    LEAD = "lead"
    DEEP = "deep"
    NOWHERE = "nowhere"


class Hazard(StrEnum):
    """What can make a reader answer a question wrongly, and be sure of it."""

    CHANGED = "changed since"
    OUTDATED_LEAD = "outdated summary"
    ALTERED = "altered copies"
    LOUD = "loud errors"
    CROWDED = "crowded out"
    NAMESAKE = "namesake"


class Cell(NamedTuple):
    """A kind of question with a source, and what misleads about it.

    Attributes:
        kind: How it is put.
        source: Where the answer is to be had.
        hazard: What misleads; None where everything that is told is so.
    """

    kind: QuestionKind
    source: Source
    hazard: Hazard | None = None


_MIX = {
    Cell(QuestionKind.SINGLE, Source.LEAD): 0.20,
    Cell(QuestionKind.SINGLE, Source.CORE): 0.10,
    Cell(QuestionKind.SINGLE, Source.DEEP): 0.20,
    Cell(QuestionKind.TWO_HOP, Source.DEEP): 0.25,
    Cell(QuestionKind.UNDER_SPECIFIED, Source.LEAD): 0.10,
    Cell(QuestionKind.UNDER_SPECIFIED, Source.CORE): 0.05,
    Cell(QuestionKind.UNDER_SPECIFIED, Source.DEEP): 0.10,
}
_KIND_SHARES = {
    Kind.PERSON: 0.43,
    Kind.CITY: 0.16,
    Kind.COMPANY: 0.13,
    Kind.FILM: 0.16,
    Kind.RIVER: 0.08,
    Kind.COUNTRY: 0.04,
}


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """The frozen proportions of a world.

    Attributes:
        mix: Share of each cell among the questions; by default 30 % answerable from a lead, 15 % from the
            taught core, 55 % only from a deeper passage; a quarter two-hop, a quarter under-specified. Cells
            with hazards decide, too, about how many of the world's facts something misleads.
        kinds: Share of each kind of entity among the fresh articles.
        untold: Share of the deeper facts that no article tells, so that they can be asked in vain.
    """

    mix: Mapping[Cell, float] = field(default_factory=lambda: MappingProxyType(_MIX))
    kinds: Mapping[Kind, float] = field(default_factory=lambda: MappingProxyType(_KIND_SHARES))
    untold: float = 0.06

    def __post_init__(self) -> None:
        """Refuse what no world can hold.

        Raises:
            ConfigurationError: If a share is negative, or a hazard does not go with its cell.
        """
        for cell, share in self.mix.items():
            if share < 0:
                raise ConfigurationError(f"the share of {cell} is {share}", hint="shares are 0 or more")
            if cell.hazard is not None and cell.kind in (QuestionKind.TWO_HOP, QuestionKind.UNANSWERABLE):
                raise ConfigurationError(
                    f"{cell.kind} questions have no hazards, found {cell.hazard}",
                    hint="give hazards to single-hop and under-specified questions",
                )
            if cell.hazard is not None and cell.source not in _PLACES[cell.hazard]:
                raise ConfigurationError(
                    f"the hazard {cell.hazard!r} cannot go with the source {cell.source!r}",
                    hint=f"it goes with {', '.join(sorted(_PLACES[cell.hazard]))}",
                )


_PLACES: Mapping[Hazard, frozenset[Source]] = MappingProxyType(
    {
        # The reader remembers what used to be so: the answer is to be had from the article alone.
        Hazard.CHANGED: frozenset({Source.LEAD, Source.DEEP}),
        # The lead says what used to be so: the answer is to be had from deeper passages, or from memory.
        Hazard.OUTDATED_LEAD: frozenset({Source.DEEP, Source.CORE}),
        Hazard.ALTERED: frozenset({Source.LEAD, Source.DEEP, Source.CORE}),
        Hazard.LOUD: frozenset({Source.LEAD, Source.DEEP, Source.CORE}),
        Hazard.CROWDED: frozenset({Source.LEAD, Source.DEEP, Source.CORE}),
        Hazard.NAMESAKE: frozenset({Source.LEAD, Source.DEEP}),
    }
)
"""Where the answer to a question with each hazard can be had."""


SPEC = WorldSpec()
DEFAULT_SIZE = 440
