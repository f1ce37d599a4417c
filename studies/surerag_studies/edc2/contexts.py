"""Contexts of known noise and redundancy, in order of similarity to the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.types import Passage
from surerag.world.questions import Question
from surerag.world.world import World
from surerag_studies.asking import RememberingEncoder

Method = Literal["plain", "single", "dynamic", "bridged", "whole", "average", "random"]
"""Plain RAG; each passage compressed alone; Algorithm 1; the same with ``bridging=1``, which is ours, and
with τ=20, the largest of Table 6: one cluster up to top-k 20; the controls of Table 4."""

_HALF = 0.5
"""Share of the passages that do not help which have nothing to do with the question; the rest are hard: other
facts of the same entity, or the same relation of others."""

OURS: tuple[Method, ...] = ("plain", "dynamic", "bridged")
ALONE: tuple[Method, ...] = (*OURS, "single")
ALL: tuple[Method, ...] = (*ALONE, "whole", "average", "random")


@dataclass(frozen=True, slots=True)
class Condition:
    """One column of a table.

    Attributes:
        kind: ``"noise"``: the share of passages that do not help, the others telling in many words what the
            question needs (Tables 2 and 4). ``"redundancy"``: the share that says in other words what
            another one says (Table 3).
        top_k: Passages in the context.
        level: The share.
    """

    kind: Literal["noise", "redundancy"]
    top_k: int
    level: float


class Cell(NamedTuple):
    """A condition, and the methods that are run under it."""

    condition: Condition
    methods: tuple[Method, ...]


GRID: tuple[Cell, ...] = (
    *(Cell(Condition("noise", k, level), ALONE if level else OURS) for k in (5, 10) for level in (0.0, 0.8)),
    Cell(Condition("noise", 20, 0.4), OURS),
    Cell(Condition("noise", 20, 0.8), ALL),
    *(Cell(Condition("redundancy", 20, level), OURS) for level in (0.0, 0.8, 0.95)),
)
"""What is run: ours against plain RAG everywhere, the costly baselines where noise is high. So chosen, 500
questions take some thirty-five minutes on one core. Without noise, twenty passages are the gold ones in many
words, and so they are at 95 % redundancy: such contexts are counted once, as redundant ones."""

LARGE = Cell(Condition("noise", 100, 0.4), OURS)
"""More than the embedded reader's window holds; plain RAG reads as far as it reaches."""


def draw(world: World, question: Question, condition: Condition) -> list[Passage]:
    """Draw a context that holds what the question needs.

    Args:
        world: The question's world.
        question: Answered by some passage of it.
        condition: What the context is to be like; where a share leaves no room for the passages that the
            question needs, these stay.
    """
    k, gold = condition.top_k, len(question.gold_passages)
    least = max(gold, k - round(condition.level * k), 1)
    if condition.kind == "noise":
        drawn = list(world.context(question, k, noise=_HALF, redundancy=(least - gold) / k))
        return _misled(world, question, drawn, k - least)
    distinct = world.context(question, least, noise=_HALF)
    doubles = [world.contexts.paraphrase(distinct[at % least], at // least + 1) for at in range(k - least)]
    return [*distinct, *doubles]


def _misled(world: World, question: Question, drawn: list[Passage], noise: int) -> list[Passage]:
    """Put a passage that answers the question wrongly, if there is one, in the place of one of no help."""
    if not question.misleading or not noise or {one.id for one in drawn} & set(question.misleading):
        return drawn
    # A passage in other words is called after the one it repeats.
    helping = [one.id.partition("~")[0] in question.gold_passages for one in drawn]
    if all(helping):
        return drawn
    at = helping.index(False)
    return [*drawn[:at], world.passage[question.misleading[0]], *drawn[at + 1 :]]


def ranked(
    contexts: Sequence[Sequence[Passage]], questions: Sequence[str], vectors: RememberingEncoder
) -> list[list[Passage]]:
    """Return contexts in order of similarity to their questions, each passage with its vector."""
    vectors.encode([passage.text for context in contexts for passage in context], "document")
    asked = vectors.encode(questions, "query")
    return [_ranked(context, vector, vectors) for context, vector in zip(contexts, asked, strict=True)]


def _ranked(
    context: Sequence[Passage], query: NDArray[np.float32], vectors: RememberingEncoder
) -> list[Passage]:
    rows = vectors.encode([passage.text for passage in context], "document")
    order = np.argsort([-float(row @ query) for row in rows], kind="stable")
    return [replace(context[at], embedding=tuple(map(float, rows[at]))) for at in order]
