"""ROUGE-L: how much of a gold answer stands in an answer, in order."""

from __future__ import annotations

from collections.abc import Sequence

from surerag.measures.answers import normalize_answer


def rouge_l(answer: str, golds: Sequence[str]) -> float:
    """Largest F-measure of the longest common subsequence of words over the gold answers, in [0, 1].

    Words are those of exact match: lower case, without punctuation and English articles. Precision and recall
    count the same (Lin, 2004, Eq. 2 to 4, with β = 1).

    Example:
        Of "river by Orun" and "by the river Orun", two words stand in the same order.

        >>> round(rouge_l("river by Orun", ["by the river Orun"]), 3)
        0.667
    """
    return max(
        (_f(normalize_answer(answer).split(), normalize_answer(gold).split()) for gold in golds), default=0.0
    )


def _f(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    return 2 * _longest_common(answer, gold) / (len(answer) + len(gold))


def _longest_common(first: list[str], second: list[str]) -> int:
    lengths = [0] * (len(second) + 1)
    for word in first:
        above = 0
        for at, other in enumerate(second, start=1):
            above, lengths[at] = (
                lengths[at],
                above + 1 if word == other else max(lengths[at], lengths[at - 1]),
            )
    return lengths[-1]
