"""Whether an answer is right: rules that a trace names, so that others can judge its answers again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from surerag.errors import ConfigurationError
from surerag.measures import exact_match, normalize_answer, token_f1
from surerag.methods.functions import name_of

Judge = str | Callable[[str, Sequence[str]], bool | float]
"""``"contains"`` (a gold answer's words stand in the answer, in a row, after the usual normalisation),
``"in_accuracy"`` (the same, words or parts of them), ``"exact_match"``, ``"token_f1"``; or a function of an
answer and its gold answers."""


def contains_gold(answer: str, golds: Sequence[str]) -> bool:
    """Whether the words of a gold answer stand in an answer, in a row, after normalisation.

    Example:
        >>> contains_gold("He was born in the city of Velm.", ["Velm"]), contains_gold("Velmar", ["Velm"])
        (True, False)
    """
    said = f" {normalize_answer(answer)} "
    return any(wanted in said for gold in golds if (wanted := f" {normalize_answer(gold)} ").strip())


def in_accuracy(answer: str, golds: Sequence[str]) -> bool:
    """Whether a gold answer stands in an answer after normalisation, be it as a part of other words.

    The in-accuracy of "Adaptive Retrieval Without Self-Knowledge?" (arXiv 2501.12835).

    Example:
        >>> in_accuracy("Velmar", ["Velm"]), in_accuracy("Orun", ["Velm"])
        (True, False)
    """
    said = normalize_answer(answer)
    return any(wanted in said for gold in golds if (wanted := normalize_answer(gold)))


JUDGES: Final[Mapping[str, Callable[[str, Sequence[str]], bool | float]]] = {
    "contains": contains_gold,
    "in_accuracy": in_accuracy,
    "exact_match": exact_match,
    "token_f1": token_f1,
}


def judge_name(judge: Judge) -> str:
    """Return how a trace names a rule; a function goes by its own name, and cannot be applied again."""
    return judge if isinstance(judge, str) else f"custom: {name_of(judge)}"


def judge_of(judge: Judge) -> Callable[[str, Sequence[str]], bool | float]:
    """Return a rule as a function.

    Raises:
        ConfigurationError: If its name is unknown.
    """
    if not isinstance(judge, str):
        return judge
    if judge not in JUDGES:
        raise ConfigurationError(
            f"judge must be {', '.join(JUDGES)} or a function, got {judge!r}",
            hint="a function takes an answer and its gold answers",
        )
    return JUDGES[judge]
