"""Scores of an answer by its references, in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from surerag.errors import ConfigurationError
from surerag.measures import exact_match, normalize_answer, same_answer, token_f1

Metric = Callable[[str, Sequence[str]], float]
"""From an answer and its references to a score in [0, 1]."""


def contains(answer: str, references: Sequence[str]) -> bool:
    """Return whether the words of a reference stand in the answer, in a row, after normalisation.

    Example:
        >>> contains("She was born in Velm, by the Orun.", ["Velm"]), contains("308", ["3"])
        (True, False)
    """
    length = len(normalize_answer(answer))
    return any(
        0 < len(normalize_answer(reference)) <= length and same_answer(answer, reference)
        for reference in references
    )


METRICS: Mapping[str, Metric] = {"exact_match": exact_match, "f1": token_f1, "contains": contains}
ALIASES: Mapping[str, str] = {"accuracy": "contains", "em": "exact_match"}
"""Further names that a gate may use."""


def resolve_metrics(metrics: Sequence[str] | Mapping[str, Metric]) -> dict[str, Metric]:
    """Return metrics by name.

    Raises:
        ConfigurationError: If a name is unknown, or there are none.
    """
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if not metrics:
        raise ConfigurationError("there are no metrics", hint=f"choose of {', '.join(METRICS)}")
    names = [ALIASES.get(name, name) for name in ([metrics] if isinstance(metrics, str) else metrics)]
    for name in names:
        if name not in METRICS:
            raise ConfigurationError(
                f"there is no metric {name!r}",
                hint=f"choose of {', '.join(METRICS)}, or pass a mapping from names to functions",
            )
    return {name: METRICS[name] for name in names}
