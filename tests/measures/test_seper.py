"""SePer by hand: weights, soft and hard kernels, one and several gold answers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from surerag.measures import answer_weights, auroc, semantic_entropy, seper_hard, seper_soft

ANSWERS = ["Velm", "Velm", "Velm", "Orun", "Toren"]
LOGS = np.log([0.5, 0.5, 0.5, 0.3, 0.2])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("probability", [0.5, 0, 0, 0.3, 0.2]),
        ("horvitz-thompson", [0.4396, 0, 0, 0.3071, 0.2533]),
        ("official", [0.25, 0.25, 0.25, 0.15, 0.1]),
        ("frequency", [0.2] * 5),
    ],
)
def test_weights(rule: Any, expected: list[float]) -> None:
    assert answer_weights(ANSWERS, LOGS, rule) == pytest.approx(expected, abs=1e-4)


def test_a_belief_of_thirty_percent_comes_out_near_sixteen_under_the_official_weights() -> None:
    """Seven samples of a belief of .70 and three of one of .30: likely answers count twice over."""
    answers = ["yes"] * 7 + ["no"] * 3
    logs = np.log([0.7] * 7 + [0.3] * 3)
    means_no = [[0.0]] * 7 + [[1.0]] * 3
    found = {rule: seper_soft(answer_weights(answers, logs, rule), means_no) for rule in _RULES}
    assert found["probability"] == pytest.approx(0.30)
    assert found["horvitz-thompson"] == pytest.approx(0.307, abs=1e-3)
    assert found["frequency"] == pytest.approx(0.30)
    assert found["official"] == pytest.approx(0.09 / (0.09 + 0.49), abs=1e-6)


_RULES: tuple[Any, ...] = ("horvitz-thompson", "probability", "official", "frequency")


def test_an_answer_that_came_once_in_ten_does_not_weigh_as_much_as_one_that_came_nine_times() -> None:
    logs = np.log([0.9] * 9 + [1e-30])
    assert answer_weights("A" * 9 + "B", logs) == pytest.approx([0.9] + [0.0] * 8 + [0.1])
    assert answer_weights("ab", [-2000.0, -1000.0]) == pytest.approx([0.5, 0.5])
    assert answer_weights("aa", [0.0, 0.0]) == pytest.approx([1.0, 0.0])


def test_before_they_are_normalised_the_default_weights_are_unbiased() -> None:
    p = np.array([0.6, 0.3, 0.1])
    mean = np.zeros(3)
    for drawn in product(range(3), repeat=4):
        unbiased = np.isin(range(3), drawn) * p / (1 - (1 - p) ** 4)
        mean += np.prod(p[list(drawn)]) * unbiased
        shares = answer_weights(drawn, np.log(p[list(drawn)]))
        assert np.bincount(drawn, shares, 3) == pytest.approx(unbiased / unbiased.sum())
    assert mean == pytest.approx(p)


def test_probabilities_may_sum_to_more_than_one_by_rounding_only() -> None:
    assert answer_weights("ab", np.log([0.9, 0.11]), "probability").sum() == pytest.approx(1)
    for rule in _RULES[:2]:
        with pytest.raises(ValueError, match="end tokens"):
            answer_weights("ab", np.log([0.9, 0.5]), rule)


def test_soft_by_hand() -> None:
    weights = answer_weights(ANSWERS, LOGS, "probability")
    entailment = [[0.9], [0.9], [0.9], [0.2], [0.1]]
    assert seper_soft(weights, entailment) == pytest.approx(0.5 * 0.9 + 0.3 * 0.2 + 0.2 * 0.1, abs=1e-6)


def test_several_golds_by_hand() -> None:
    entailment = [[1.0, 0.0], [0.0, 0.8]]
    weights = [0.6, 0.4]
    assert seper_soft(weights, entailment, "max") == pytest.approx(0.6)
    assert seper_soft(weights, entailment, "mean") == pytest.approx((0.6 + 0.32) / 2)
    assert seper_soft(weights, entailment, "any") == pytest.approx(0.6 + 0.32)


def test_ten_answers_that_all_match_one_of_two_golds_are_full_belief() -> None:
    """The authors' code scores this case 0.5, by an index error; all belief is on the first gold."""
    entailment = np.tile([1.0, 0.0], (10, 1))
    assert seper_soft(np.full(10, 0.1), entailment) == pytest.approx(1.0)
    assert seper_hard(np.full(10, 0.1), np.zeros(10), [[True, False]]) == pytest.approx(1.0)


def test_hard_by_hand() -> None:
    weights = [0.4, 0.1, 0.3, 0.2]
    clusters = [0, 1, 0, 2]
    matches = [[True, False], [False, True], [False, True]]
    assert seper_hard(weights, clusters, matches) == pytest.approx(0.7)
    assert seper_hard(weights, clusters, matches, "mean") == pytest.approx(0.5)
    assert seper_hard(weights, clusters, matches, "any") == pytest.approx(1.0)
    assert seper_hard(weights, [0] * 4, [[False]]) == 0.0
    assert seper_hard(weights, [0] * 4, [[True]]) == pytest.approx(1.0)


def test_semantic_entropy_by_hand() -> None:
    assert semantic_entropy([0.5, 0.5], [0, 0]) == 0.0
    assert semantic_entropy([0.5, 0.5], [0, 1]) == pytest.approx(np.log(2))
    assert semantic_entropy([0.2, 0.3, 0.5], [1, 0, 1]) == pytest.approx(
        -0.7 * np.log(0.7) - 0.3 * np.log(0.3)
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: answer_weights([], None),
        lambda: answer_weights("ab", None),
        lambda: answer_weights("ab", [0.0, np.nan]),
        lambda: seper_soft([0.5, 0.5], [[1.0]]),
        lambda: seper_soft([0.5, 0.6], [[1.0], [1.0]]),
        lambda: seper_soft([1.0], np.empty((1, 0))),
        lambda: seper_hard([1.0], [1], [[True]]),
        lambda: semantic_entropy([1.0], [0, 1]),
    ],
)
def test_what_does_not_fit_is_refused(call: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|must|needed"):
        call()


@pytest.mark.parametrize("rule", ["horvitz-thompson", "probability", "official"])
def test_a_probability_that_no_float_holds_is_the_smallest_weight(rule: Any) -> None:
    weights = answer_weights("ABB", [-9999.0, -1.0, -1.0], rule)
    assert (weights[0] > 0, np.isfinite(weights).all()) == (True, True)


def test_unknown_weights_are_refused() -> None:
    unknown: Any = "paper"
    with pytest.raises(ValueError, match=r"weights must be one of horvitz-thompson, .* got 'paper'"):
        answer_weights("AB", np.log([0.5, 0.2]), unknown)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: semantic_entropy([0.4, 0.2], [0, 1]), r"sum to one, got the sum 0\.6"),
        (lambda: semantic_entropy([0.5, 0.5], [0]), r"shapes \(2,\) and \(1,\)"),
        (
            lambda: answer_weights("AB", None),
            "log-likelihoods .* needed for the weights 'horvitz-thompson', got None",
        ),
        (lambda: answer_weights("AB", [-1.0]), r"expected 2 log-likelihoods, .* got shape \(1,\)"),
        (lambda: answer_weights("AB", [-1.0, np.inf]), r"expected finite .* got \[-1\.0, inf\]"),
        (lambda: seper_hard([1.0], [0], [True]), r"\[C, references\], got shape \(1,\)"),
        (lambda: seper_hard([1.0], [2], [[True]]), "got numbers from 2 to 2"),
        (lambda: seper_soft([-0.1, 0.6], [[1], [1]]), "must not be negative"),
        (lambda: seper_soft([0.6, 0.6], [[1], [1]]), r"got the sum 1\.2"),
        (lambda: auroc([np.nan, 1.0], [True, False]), "got NaN"),
    ],
)
def test_an_error_names_the_condition_that_failed(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
