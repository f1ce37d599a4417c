"""How the studies write estimates and differences, in tables and in claims."""

from __future__ import annotations

import math

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.statistics import Estimate


def interval(found: Estimate | PairedDifference, digits: int = 3, sign: str = "") -> str:
    """Write an estimate with its interval; n/a where there is none.

    Example:
        >>> interval(Estimate(0.5, 0.25, 0.75), 2, "+")
        '+0.50 [+0.25, +0.75]'
    """
    if not math.isfinite(found.value):
        return "n/a"
    return f"{found.value:{sign}.{digits}f} [{found.low:{sign}.{digits}f}, {found.high:{sign}.{digits}f}]"


def points(found: Estimate | PairedDifference, digits: int = 1, unit: str = "") -> str:
    """Write a difference of shares with its interval, in percentage points.

    Example:
        >>> points(PairedDifference(0.05, 0.01, 0.0912, 0.02), unit=" points")
        '+5.0 points [+1.0, +9.1]'
    """
    value, low, high = (f"{100 * end:+.{digits}f}" for end in (found.value, found.low, found.high))
    return f"{value}{unit} [{low}, {high}]"
