"""BLEU: how many of an answer's n-grams stand in a gold answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from surerag.measures.answers import normalize_answer

_ORDERS = 4


def bleu(answer: str, golds: Sequence[str]) -> float:
    """Largest sentence BLEU over the gold answers, in [0, 1] (Papineni et al., 2002).

    Words are those of exact match. Orders above one are smoothed by adding one (Lin and Och, 2004): as it was
    defined, for whole corpora, BLEU is 0 for every answer of fewer than four words.

    Example:
        >>> bleu("the Orun", ["Orun"]), bleu("Velm", ["Orun"])
        (1.0, 0.0)
        >>> round(bleu("river by Orun", ["river Orun"]), 3)
        0.577
    """
    return max(
        (_bleu(normalize_answer(answer).split(), normalize_answer(gold).split()) for gold in golds),
        default=0.0,
    )


def _bleu(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    logs = 0.0
    for order in range(1, _ORDERS + 1):
        said, wanted = _grams(answer, order), _grams(gold, order)
        smoothing = int(order > 1)
        common = (said & wanted).total() + smoothing
        if not common:
            return 0.0
        logs += math.log(common / (said.total() + smoothing))
    return math.exp(logs / _ORDERS + min(0.0, 1 - len(gold) / len(answer)))


def _grams(words: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[at : at + order]) for at in range(len(words) - order + 1))
