"""Non-inferiority: what is shown, what is not, and how often that is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from surerag.decisions.paired import paired_p_value
from surerag.errors import InputError
from surerag.evaluation.ci.paired import LEAST, Pairs, judge_mean, judge_pair, tango_z


def outcomes(lost: int, gained: int, n: int) -> Pairs:
    right = n // 2
    first = [1] * right + [0] * lost + [1] * gained + [0] * (n - right - lost - gained)
    second = [1] * right + [1] * lost + [0] * gained + [0] * (n - right - lost - gained)
    return Pairs.of(first, second)


def test_a_bare_difference_decides_nothing():
    assert judge_pair(outcomes(3, 3, 40), 0.05).outcome == "undecided"
    assert judge_pair(outcomes(0, 0, 10), 0.05).outcome == "undecided"


def test_a_bound_is_shown_to_hold_a_loss_is_shown_or_neither_is():
    assert judge_pair(outcomes(10, 10, 500), 0.05).outcome == "pass"
    assert judge_pair(outcomes(40, 5, 500), 0.05).outcome == "fail"
    assert judge_pair(outcomes(60, 45, 500), 0.05).outcome == "undecided"


def test_a_small_loss_inside_the_margin_passes_even_where_it_is_shown():
    found = judge_pair(outcomes(8, 0, 500), 0.05)
    assert found.outcome == "pass" and found.high < 0


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (10, 10), (3, 20), (40, 5)])
def test_the_lower_bound_is_that_of_the_test_that_decides(lost, gained):
    pairs = outcomes(lost, gained, 500)
    for margin in (0.03, 0.05):
        found = judge_pair(pairs, margin)
        assert (found.outcome == "pass") == (found.low > -margin), margin


@pytest.mark.parametrize("discordance", [0.06, 0.1])
def test_a_loss_of_the_margin_passes_as_rarely_as_promised(discordance):
    rng, n, margin, runs = np.random.default_rng(16), 120, 0.05, 2000
    shares = [(discordance + margin) / 2, (discordance - margin) / 2, 1 - discordance]
    counts, times = np.unique(rng.multinomial(n, shares, size=runs)[:, :2], axis=0, return_counts=True)
    passed = sum(
        int(many)
        for (lost, gained), many in zip(counts.tolist(), times, strict=True)
        # That it is this test which decides, the test above says.
        if paired_p_value(n, lost, gained, margin) <= 0.05
    )
    # One-sided, five standard errors above five in a hundred at most.
    assert passed / runs < 0.05 + 5 * math.sqrt(0.05 * 0.95 / runs)


def test_a_gain_that_is_demanded_has_to_be_shown():
    assert judge_pair(outcomes(5, 60, 500), -0.02).outcome == "pass"
    assert judge_pair(outcomes(5, 5, 500), -0.02).outcome == "fail"
    assert judge_pair(outcomes(5, 15, 500), -0.02).outcome == "undecided"


def test_tango_is_symmetric_and_zero_at_the_estimate():
    assert tango_z(100, 12, 7, 0.05) == pytest.approx(0.0)
    assert tango_z(100, 12, 7, 0.1) > 0 > tango_z(100, 12, 7, 0.0)
    assert tango_z(100, 7, 12, -0.1) == pytest.approx(-tango_z(100, 12, 7, 0.1), abs=1e-9)


def test_measurements_on_a_scale_are_tested_by_t():
    rng = np.random.default_rng(3)
    plain = rng.uniform(size=300)
    near = plain + rng.normal(0, 0.1, size=300)
    assert judge_pair(Pairs.of(near, plain), 0.05).outcome == "pass"
    assert judge_pair(Pairs.of(near - 0.1, plain), 0.05).outcome == "fail"
    found = judge_pair(Pairs.of(near, plain), 0.05)
    differences = near - plain
    assert found.method == "t" and found.spread == pytest.approx(differences.std(ddof=1))
    assert found.difference == pytest.approx(differences.mean())


def test_costs_are_compared_as_ratios():
    plain = np.random.default_rng(5).uniform(80, 120, size=100)
    half = Pairs.of(plain / 2, plain).turned()
    assert judge_pair(half, 0.0, factor=0.6).outcome == "pass"
    assert judge_pair(half, 0.0, factor=0.4).outcome == "fail"


def test_a_few_measurements_on_a_scale_say_nothing():
    values = np.full(LEAST - 1, 0.5)
    assert judge_pair(Pairs.of(values, values), 0.05).outcome == "undecided"
    assert judge_mean(Pairs.of(values, values), 0.1).outcome == "undecided"


def test_a_share_against_a_number_is_exact():
    right = Pairs.of([1] * 90 + [0] * 10, [0] * 100)
    # The exact binomial tail: 90 of 100 or more, where 82 % is the truth, is 2.0 %; where 85 % is, 9.9 %.
    assert judge_mean(right, 0.82).outcome == "pass"
    assert judge_mean(right, 0.85).outcome == "undecided"
    assert judge_mean(right, 0.96).outcome == "fail"


def test_counters_equal_lists():
    rng = np.random.default_rng(9)
    a, b = rng.normal(1e4, 1, 1000), rng.normal(1e4, 1, 1000)
    pairs = Pairs.of(a, b)
    for factor in (1.0, 0.7):
        assert pairs.difference(factor) == pytest.approx((a - factor * b).mean())
        assert pairs.spread(factor) == pytest.approx((a - factor * b).std(ddof=1), rel=1e-4)
    assert pairs.lost == (a < b).sum() and pairs.gained == (a > b).sum()


def test_no_common_question_is_refused():
    with pytest.raises(InputError, match="no question"):
        judge_pair(Pairs(), 0.05)
