"""Our measures on what uqlm has recorded: semantic entropies of answers, and scores of log-probabilities.

Figures and answers are those of cvs-health/uqlm (Apache-2.0), commits in brackets:
``tests/data/scorers/semanticentropy_results_file.json`` (888c5c831c6c), ``tests/test_entropy_utils.py``
(fa031ae69723). ``tests/data/scorers/whitebox_results_file.json`` was read from a copy (kunumi/uqlm_clean,
750f72e4b9f2). Where a figure of ours differs, the test's docstring says why.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

from surerag.measures import (
    answer_weights,
    discrete_semantic_entropy,
    equivalence_clusters,
    lowest_probability,
    perplexity,
    same_answer,
    semantic_entropy,
)


class Recorded(NamedTuple):
    """A question's answer and five samples, as recorded.

    Attributes:
        answers: The answer, then the samples.
        entropy: ``entropy_values``.
        confidence: ``confidence_scores``.
        meant: The classes of meaning that the recorded entropy is that of, in the answers' order.
        by_words: Entropy of the classes that ``same_answer`` finds.
    """

    answers: tuple[str, ...]
    entropy: float
    confidence: float
    meant: tuple[int, ...]
    by_words: float


_WORKED = "After buying the cookies, he still has $3, so the cost is $6 - $3 = $3. Therefore it is $3."
"""In our words, a recorded sample of twelve lines that works the sum out, and ends in "… is $3."."""

RECORDED = (
    Recorded(("5", "5", "5", "5", "5", "5 miles"), 0.0, 1.0, (0, 0, 0, 0, 0, 0), 0.0),
    Recorded(
        ("$3", "$9", "$6", _WORKED, "$6", "$9"),
        1.3296613488547582,
        0.25790187148969435,
        (0, 1, 2, 3, 2, 1),
        math.log(3),
    ),
    Recorded(
        ("12", "12", "36", "12", "12", "36"),
        0.6365141682948128,
        0.644754678724236,
        (0, 0, 1, 0, 0, 1),
        0.6365141682948128,
    ),
    Recorded(
        ("308", "308", "308", "308", "315", "308"),
        0.45056120886630463,
        0.7485370014199393,
        (0, 0, 0, 0, 1, 0),
        0.45056120886630463,
    ),
    Recorded(
        ("35", "32.5", "32", "32.5", "30.", "32"),
        0.8675632284814612,
        0.5158037429793888,
        (0, 1, 1, 1, 2, 1),
        1.3296613488547582,
    ),
)

LOGPROBS = (
    ([-2.165027217415627e-05], 0.9999783499621913, 0.9999783499621913),
    ([-0.00045426786527968943], 0.9995458352987451, 0.9995458352987451),
    (
        [
            -0.024325532838702202, -1.9361264946837764e-07, 0.0, -0.2779192626476288, 0.0, 0.0,
            -9.088346359931165e-07,
        ],
        0.9577409109786664,
        0.7573579661229575,
    ),
    ([-0.1616811454296112, -0.029750484973192215], 0.9087222244198528, 0.8507124148411718),
    ([-0.0549161359667778], 0.9465645273438675, 0.9465645273438675),
)  # fmt: skip


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row.answers[0])
def test_semantic_entropy_of_the_recorded_classes(row: Recorded) -> None:
    """``SemanticEntropy`` (discrete), the answer counted among the samples: all five figures, the same.

    The file records no classes; these are the ones that each figure is the entropy of, up to which answers
    are in them. Its confidence is 1 − H / log 6.
    """
    found = discrete_semantic_entropy(row.meant)
    assert found == pytest.approx(row.entropy, abs=1e-12)
    assert 1 - found / math.log(len(row.answers)) == pytest.approx(row.confidence, abs=1e-9)


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row.answers[0])
def test_semantic_entropy_of_classes_by_words(row: Recorded) -> None:
    """With our judge that takes no model, three of the five agree; the other two differ for a reason each.

    - "$3" and twelve lines that end in "Therefore … is $3": uqlm's entailment model holds them for
      different, at 1.330; by words the short answer stands in the long one, at log 3 = 1.099.
    - "32.5" and "32": the entailment model holds them for the same, at 0.868; by words they differ, at 1.330.
    """
    same = [[same_answer(first, second) for second in row.answers] for first in row.answers]
    assert discrete_semantic_entropy(equivalence_clusters(same)) == pytest.approx(row.by_words, abs=1e-12)


@pytest.mark.parametrize(("logprobs", "normalised", "smallest"), LOGPROBS)
def test_scores_of_log_probabilities(logprobs: list[float], normalised: float, smallest: float) -> None:
    """``normalized_probability`` is 1 / perplexity, ``min_probability`` exp of minus our lowest probability.

    Ours grow with doubt, theirs with confidence; they hold the same.
    """
    assert 1 / perplexity(logprobs) == pytest.approx(normalised, rel=1e-12)
    assert math.exp(-lowest_probability(logprobs)) == pytest.approx(smallest, rel=1e-12)


@pytest.mark.parametrize(("probabilities", "theirs"), [([0.0, 1.0], 0.0), ([0.5, 0.5], math.log(2))])
def test_entropy_of_class_probabilities(probabilities: list[float], theirs: float) -> None:
    """``compute_semantic_entropy``: 0 and log 2. The same."""
    assert semantic_entropy(probabilities, [0, 1]) == pytest.approx(theirs)


def test_likelihoods_that_underflow_and_those_that_are_missing() -> None:
    """``normalize_cluster_probabilities`` of three zeros: a uniform distribution; of NaN: NaN.

    Ours take log-likelihoods, which do not underflow, so that what is known of their ratio is kept; where
    one is missing they raise, and refuse weights that do not sum to one.
    """
    assert answer_weights("abc", [-9000.0] * 3).tolist() == pytest.approx([1 / 3] * 3)
    assert answer_weights("ab", [-9000.0, -9000.0 + math.log(3)]).tolist() == pytest.approx([0.25, 0.75])
    with pytest.raises(ValueError, match="finite"):
        answer_weights("ab", [math.nan, -1.0])
    with pytest.raises(ValueError, match="summing to one"):
        semantic_entropy(np.zeros(3), [0, 1, 2])
