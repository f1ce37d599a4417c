"""A question with its gold answers; and a row: a question, and the passages that one system found for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surerag.types import Passage

ONE_SYSTEM = "contexts"
"""Name of the system where there is but one, and it was not named."""


class Question(NamedTuple):
    """A question with its gold answers.

    Attributes:
        text: As asked.
        golds: Gold answers, where there are some.
        id: Identifier; by default the text.
    """

    text: str
    golds: Sequence[str] = ()
    id: str = ""


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
