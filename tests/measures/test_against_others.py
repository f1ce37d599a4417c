"""Our measures on the inputs and figures of two other packages' tests.

lm-polygraph (IINemo/lm-polygraph, MIT): ``test/test_estimator_numerics.py`` (bcc817b5387a) and
``test/test_semantic_entropy.py`` (a57e4f147c0a). uqlm (cvs-health/uqlm, Apache-2.0):
``tests/data/scorers/semanticentropy_results_file.json`` (888c5c831c6c), and
``whitebox_results_file.json`` of a copy (kunumi/uqlm_clean, 750f72e4b9f2).
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from surerag.measures import (
    answer_weights,
    discrete_semantic_entropy,
    length_normalized_entropy,
    lowest_probability,
    perplexity,
    semantic_entropy,
    token_entropy,
)


def entropy_of(*probabilities: float) -> float:
    return -sum(p * math.log(p) for p in probabilities)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (math.log(perplexity([-1.0, -2.0, -3.0])), 2.0),  # theirs is not exponentiated
        (math.log(perplexity([-4.0, -2.0])), 3.0),
        (lowest_probability([-1.0, -2.0]), 2.0),
        (length_normalized_entropy([[-1.0, -1.0], [-2.0] * 3]), 1.5),
        (length_normalized_entropy([[-3.0], [-3.0] * 3]), 3.0),
        (float(token_entropy(np.log([0.25, 0.75]))), entropy_of(0.25, 0.75)),
        (discrete_semantic_entropy([0, 0, 1]), entropy_of(2 / 3, 1 / 3)),
        (discrete_semantic_entropy([0, 0, 1, 1]), math.log(2)),
    ],
)
def test_figures_of_lm_polygraph(ours: float, theirs: float) -> None:
    assert ours == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("texts", "probabilities", "classes"),
    [
        ("abc", [0.1, 0.2, 0.7], (0.3, 0.7)),
        ("aac", [0.3, 0.3, 0.7], (0.3, 0.7)),  # equal answers count once
        ("abc", [1e-13, 2e-13, 1e-13], (0.75, 0.25)),
    ],
)
def test_semantic_entropy_of_lm_polygraph(
    texts: str, probabilities: list[float], classes: tuple[float, float]
) -> None:
    """``SemanticEntropy(direct)``; its default averages over samples, and so differs from SePer's Eq. 5."""
    weights = answer_weights(texts, np.log(probabilities), "probability")
    assert semantic_entropy(weights / weights.sum(), [0, 0, 1]) == pytest.approx(entropy_of(*classes))


@pytest.mark.parametrize(
    ("classes", "theirs"),
    [
        ((0, 0, 0, 0, 0, 0), 0.0),
        ((0, 1, 2, 3, 2, 1), 1.3296613488547582),
        ((0, 0, 1, 0, 0, 1), 0.6365141682948128),
        ((0, 0, 0, 0, 1, 0), 0.45056120886630463),
        ((0, 1, 1, 1, 2, 1), 0.8675632284814612),
    ],
)
def test_semantic_entropies_that_uqlm_recorded(classes: tuple[int, ...], theirs: float) -> None:
    """The file records no classes; these are the ones that each figure is the entropy of."""
    assert discrete_semantic_entropy(classes) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(
    ("logprobs", "normalised", "smallest"),
    [
        ([-2.165027217415627e-05], 0.9999783499621913, 0.9999783499621913),
        (
            [-0.0243255328387022, -1.93612649468e-07, 0.0, -0.2779192626476288, 0.0, 0.0, -9.0883463599e-07],
            0.9577409109786664,
            0.7573579661229575,
        ),
        ([-0.1616811454296112, -0.029750484973192215], 0.9087222244198528, 0.8507124148411718),
    ],
)
def test_scores_that_uqlm_recorded(logprobs: list[float], normalised: float, smallest: float) -> None:
    """``normalized_probability`` is 1 / perplexity, ``min_probability`` exp of minus our lowest one."""
    assert 1 / perplexity(logprobs) == pytest.approx(normalised, rel=1e-12)
    assert math.exp(-lowest_probability(logprobs)) == pytest.approx(smallest, rel=1e-12)
