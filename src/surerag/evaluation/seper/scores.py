"""Every measure of Table 2 on the same samples: its level in one context; utility is a difference of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from surerag.evaluation.seper.asking import Samples
from surerag.measures import answer_weights, exact_match, semantic_entropy, seper_soft, token_f1
from surerag.measures.rouge import rouge_l
from surerag.measures.seper import Weights

Level = Callable[[Samples, Sequence[str]], float]
"""From the samples in one context, and the accepted answers, the short form first, to a level."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A way to tell what a context is worth: its level with the context, minus that without.

    Attributes:
        label: As tables show it.
        level: Larger is better; uncertainties are negated.
        ours: Whether it is a form of SePer, rather than something to compare with.
    """

    label: str
    level: Level
    ours: bool = False


def belief(
    samples: Samples, _: Sequence[str] = (), *, weights: Weights = "distinct", hard: bool = False
) -> float:
    """Return SePer in one context."""
    shares = answer_weights(samples.texts, samples.logs, weights)
    kernel = samples.matches if hard else samples.degrees
    return seper_soft(shares, kernel[:, None])


def _mean(measure: Callable[[str, Sequence[str]], float], samples: Samples, golds: Sequence[str]) -> float:
    """Return the mean over the samples, as in section 4.1.2."""
    return float(np.mean([measure(text, golds) for text in samples.texts]))


def _short(measure: Callable[[str, Sequence[str]], float], samples: Samples, answers: Sequence[str]) -> float:
    """Compare with the short form alone: what datasets give, and what SePer's own gold answer is here."""
    return _mean(measure, samples, answers[:1])


def _certainty(samples: Samples, _: Sequence[str]) -> float:
    # An answer's mean log-probability; the mean of its negative is the Monte Carlo entropy.
    return float(samples.logs.mean())


def _negative_perplexity(samples: Samples, _: Sequence[str]) -> float:
    return -float(np.exp(-samples.logs).mean())


def _negative_semantic_entropy(samples: Samples, _: Sequence[str]) -> float:
    return -semantic_entropy(answer_weights(samples.texts, samples.logs), samples.clusters)


_WEIGHTS: tuple[Weights, ...] = ("distinct", "official", "frequency")

BASELINES: tuple[Measure, ...] = (
    Measure("Exact match", partial(_short, exact_match)),
    Measure("Exact match, all forms", partial(_mean, exact_match)),
    Measure("Token F1", partial(_short, token_f1)),
    Measure("ROUGE-L", partial(_short, rouge_l)),
    Measure("Perplexity", _negative_perplexity),
    Measure("Entropy", _certainty),
    Measure("Semantic entropy", _negative_semantic_entropy),
)
OURS: tuple[Measure, ...] = tuple(
    Measure(
        f"ΔSePer {'hard' if hard else 'soft'}, {weights}",
        partial(belief, weights=weights, hard=hard),
        ours=True,
    )
    for hard in (True, False)
    for weights in _WEIGHTS
)
SOFT_DEFAULT, HARD_DEFAULT = "ΔSePer soft, distinct", "ΔSePer hard, distinct"
FAIR = tuple(measure.label for measure in BASELINES if measure.label != "Exact match, all forms")
"""Baselines that know no more than ΔSePer does: one short gold answer."""
