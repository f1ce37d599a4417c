"""A row of an evaluation: one question, and the passages that one system found for it."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.types import Passage

ONE_SYSTEM = "contexts"
"""Name of the system where there is but one, and it was not named."""


@dataclass(frozen=True, slots=True)
class Row:
    """One question, and what one system found for it.

    Attributes:
        id: Of the question; the same for all systems.
        system: Name of the system.
        question: As asked.
        golds: Gold answers, at least one.
        contexts: What the reader is shown after each step of the system's work; most have one step.
    """

    id: str
    system: str
    question: str
    golds: tuple[str, ...]
    contexts: tuple[tuple[Passage, ...], ...]
