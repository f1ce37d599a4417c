"""The three relations between two statements, in the order of every array of probabilities here."""

from __future__ import annotations

from typing import Final

CONTRADICTION: Final = 0
NEUTRAL: Final = 1
ENTAILMENT: Final = 2
LABELS: Final = ("contradiction", "neutral", "entailment")
