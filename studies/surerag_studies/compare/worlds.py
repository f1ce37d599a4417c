"""Kinds of worlds, each with the system that is best in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from surerag.world.spec import Cell, QuestionKind, Source, WorldSpec
from surerag_studies.compare.reader import Behaviour

_S, _V = QuestionKind.SINGLE, QuestionKind.UNDER_SPECIFIED
_C, _L, _D = Source.CORE, Source.LEAD, Source.DEEP


@dataclass(frozen=True, slots=True)
class Planted:
    """A kind of world.

    Attributes:
        name: In a word or two.
        best: The system that is best in it.
        why: What was planted.
        mix: Its questions.
        reader: Its reader.
        top_n: Passages that are shown.
    """

    name: str
    best: str
    why: str
    mix: Mapping[Cell, float]
    reader: Behaviour = field(default_factory=Behaviour)
    top_n: int = 6

    @property
    def spec(self) -> WorldSpec:
        """Proportions of its worlds."""
        return WorldSpec(mix=MappingProxyType(dict(self.mix)))


KINDS = (
    Planted(
        "gate pays",
        "lazy",
        "four answers of five are known by heart or stand in a summary",
        {Cell(_S, _C): 0.35, Cell(_S, _L): 0.45, Cell(_S, _D): 0.20},
        top_n=12,
    ),
    Planted(
        "gate misleads",
        "plain",
        "the reader is sure of what it does not know",
        {Cell(_S, _C): 0.15, Cell(_S, _L): 0.15, Cell(_S, _D): 0.70},
        Behaviour(overconfident=0.6),
    ),
    Planted(
        "compression pays",
        "compressed",
        "the reader loses its way among many passages",
        {Cell(_S, _C): 0.05, Cell(_S, _L): 0.15, Cell(_S, _D): 0.80},
        Behaviour(lost=0.05),
    ),
    Planted(
        "vague queries",
        "rewrite",
        "half of the questions find nothing as they are put",
        {Cell(_V, _D): 0.40, Cell(_V, _L): 0.15, Cell(_S, _D): 0.45},
    ),
    Planted(
        "nothing helps",
        "plain",
        "questions are clear, answers stand deep in articles, and the reader finds them",
        {Cell(_S, _D): 0.95, Cell(_S, _L): 0.05},
    ),
)
"""The kinds. Nothing about them was changed after a world of the seeds below was looked at."""

SEEDS = (16001, 16002, 16003, 16004)
"""Worlds of each kind: twenty together."""
