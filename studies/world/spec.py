"""The mix of a world, decided before any result is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from studies.world.lexicon import Kind


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


class Cell(NamedTuple):
    """A kind of question, with the place that holds its answer."""

    kind: QuestionKind
    source: Source


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
            taught core, 55 % only from a deeper passage; a quarter two-hop, a quarter under-specified.
        kinds: Share of each kind of entity among the fresh articles.
        untold: Share of the deeper facts that no article tells, so that they can be asked in vain.
    """

    mix: Mapping[Cell, float] = field(default_factory=lambda: MappingProxyType(_MIX))
    kinds: Mapping[Kind, float] = field(default_factory=lambda: MappingProxyType(_KIND_SHARES))
    untold: float = 0.06


SPEC = WorldSpec()
DEFAULT_SIZE = 440
