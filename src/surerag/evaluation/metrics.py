"""Scores of an answer by its references, in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from surerag.errors import ConfigurationError
from surerag.measures import contains, exact_match, token_f1

Metric = Callable[[str, Sequence[str]], float]
"""From an answer and its references to a score in [0, 1]."""

METRICS: Mapping[str, Metric] = {"exact_match": exact_match, "f1": token_f1, "contains": contains}
ALIASES: Mapping[str, str] = {"accuracy": "contains", "em": "exact_match"}
"""Further names that a gate may use."""


def resolve_metrics(metrics: Sequence[str] | Mapping[str, Metric]) -> dict[str, Metric]:
    """Return metrics by name."""
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
