"""One question told step by step: what each method saw, did, and what that came to.

A story is plain values, so that a terminal and a page show the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "soft", "good", "bad"]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened.

    Attributes:
        label: What it is, in a word or two.
        text: What was said, read or decided.
        tone: ``"good"`` and ``"bad"`` are for what was judged against a known answer, ``"soft"`` for what
            stands beside the point.
        bar: A share in [-1, 1] to draw beside it; None draws nothing.
    """

    label: str
    text: str
    tone: Tone = "plain"
    bar: float | None = None


@dataclass(frozen=True, slots=True)
class Chapter:
    """What one method did with the question.

    Attributes:
        method: Its name.
        asks: What it asks of the reader, as a question.
        lines: What happened, in order.
        means: What that comes to, in a sentence or two.
        cost: What it cost, in words.
    """

    method: str
    asks: str
    lines: tuple[Line, ...]
    means: str
    cost: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """A question and what five methods made of it.

    Attributes:
        question: As asked.
        gold: The right answer; empty where nobody knows it.
        chosen: By which rule the question was chosen.
        chapters: One for each method.
    """

    question: str
    gold: str
    chosen: str
    chapters: tuple[Chapter, ...]


def equally_likely(nats: float, of: str = "words") -> str:
    """Say what an entropy means.

    Args:
        nats: The entropy.
        of: What it was between.

    Example:
        >>> equally_likely(0.5)
        'about as unsure as between 1.6 equally likely words'
        >>> equally_likely(0.001), equally_likely(4.88)
        ('as good as certain', 'about as unsure as between 132 equally likely words')
    """
    number = math.exp(nats)
    if number < 1.05:
        return "as good as certain"
    return f"about as unsure as between {number:.{1 if number < 10 else 0}f} equally likely {of}"


NATS = f"Entropy is in nats. 0.5 nats: {equally_likely(0.5)}; 0 nats: certain."
"""The unit, in a sentence."""
