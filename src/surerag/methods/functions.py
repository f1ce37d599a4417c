"""Functions of a user's own, in the place of a gate or a metric."""

from __future__ import annotations

import math

import numpy as np

from surerag.errors import ConfigurationError


def name_of(function: object) -> str:
    """Return what a function goes by; an object that can be called goes by its class.

    Example:
        >>> name_of(len)
        'len'
    """
    return getattr(function, "__name__", type(function).__name__)


def number_from(value: object, owner: str) -> float:
    """Return what a function gave as a number; infinite is one, and not a number is none.

    Args:
        value: What it returned.
        owner: What the function is, such as ``"the metric len"``.

    Raises:
        ConfigurationError: If it is something else.

    Example:
        >>> number_from(3, "the metric len")
        3.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or math.isnan(value):
        raise ConfigurationError(
            f"{owner} returned {value!r} where a number was expected",
            hint="return a number for every answer, larger for a less certain one",
        )
    return float(value)
