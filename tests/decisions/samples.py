"""Samples and policies that several tests build on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from surerag.decisions.policy import Identity, Policy
from surerag.decisions.rows import DecisionRow


def policy(threshold: float, identity: Identity | None = None, **changes: Any) -> Policy:
    """Return a policy of the budget target, as calibration would have made it."""
    given: dict[str, Any] = {"target": "budget", "max_loss": None, "budget": 0.3, "confidence": 0.95}
    given |= {"n": 100, "rate": 0.2, "verdict": "holds", "identity": identity or Identity(), **changes}
    return Policy(threshold=threshold, **given)


def rows_of(
    signals: Sequence[float], without: Sequence[float], with_: Sequence[float], name: str = "doubt"
) -> list[DecisionRow]:
    """Return rows with one signal."""
    triples = zip(signals, without, with_, strict=True)
    return [DecisionRow({name: float(s)}, float(a), float(b)) for s, a, b in triples]


def world(
    rng: np.random.Generator,
    n: int,
    *,
    mends: float = 0.2,
    spoils: float = 0.1,
    told: float = 0.0,
    right: float = 0.5,
) -> list[DecisionRow]:
    """Return questions on which acting mends and spoils, with a signal that tells more or less of it."""
    kind = rng.choice(3, size=n, p=[mends, spoils, 1 - mends - spoils])
    known = rng.random(n) < right
    without = np.where(kind == 0, 0.0, np.where(kind == 1, 1.0, known))
    with_ = np.where(kind == 0, 1.0, np.where(kind == 1, 0.0, known))
    signals = rng.standard_normal(n) + told * ((kind == 0).astype(float) - (kind == 1))
    return rows_of(signals.tolist(), without.tolist(), with_.tolist())
