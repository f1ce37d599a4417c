"""What a test catches, against the exact test enumerated; and what it needs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from surerag.decisions.paired import paired_p_value
from surerag.errors import ConfigurationError
from surerag.evaluation.ci.operating import (
    curve,
    power,
    power_of_mean,
    questions_for,
    questions_for_mean,
)
from surerag.evaluation.ci.paired import Pairs, judge_pair


def enumerated(n: int, margin: float, discordance: float, change: float) -> float:
    """Return the probability that the test itself passes, over all outcomes that weigh something."""
    gaining, total = (discordance + change) / 2 / discordance, 0.0
    for discordant in range(
        int(binom.ppf(1e-6, n, discordance)), int(binom.ppf(1 - 1e-6, n, discordance)) + 1
    ):

        def passes(gained: int, discordant: int = discordant) -> bool:
            return paired_p_value(n, discordant - gained, gained, margin) <= 0.05

        low, high = 0, discordant + 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if passes(middle) else (middle + 1, high)
        total += binom.pmf(discordant, n, discordance) * binom.sf(low - 1, discordant, gaining)
    return float(total)


@pytest.mark.parametrize(
    ("n", "margin", "discordance", "change"),
    [(200, 0.05, 0.06, 0.0), (200, 0.05, 0.06, -0.05), (200, 0.1, 0.1, -0.05)],
)
def test_power_is_that_of_the_exact_test(n, margin, discordance, change):
    assert power(n, margin, discordance, change) == pytest.approx(
        enumerated(n, margin, discordance, change), abs=0.05
    )


def test_power_grows_with_questions_and_falls_with_discordance():
    assert power(200, 0.05, 0.1) < power(400, 0.05, 0.1) < power(800, 0.05, 0.1)
    assert power(400, 0.05, 0.2) < power(400, 0.05, 0.1)


def test_where_nothing_differs_the_test_needs_as_many_as_a_margin_takes():
    assert power(58, 0.05, 0.0) == 0.0 and power(59, 0.05, 0.0) == 1.0
    assert questions_for(0.05, 0.0) == 59


@pytest.mark.parametrize(("margin", "discordance"), [(0.05, 0.1), (0.02, 0.05), (0.1, 0.3)])
def test_the_number_of_questions_is_the_least_that_does(margin, discordance):
    n = questions_for(margin, discordance)
    assert power(n, margin, discordance) >= 0.95 > power(n - 1, margin, discordance)


def test_no_number_shows_that_nothing_at_all_was_lost():
    with pytest.raises(ConfigurationError, match="nothing at all"):
        questions_for(0.0, 0.1)


def test_the_curve_is_what_the_issue_of_a_gate_is():
    points = {round(point.change, 3): point for point in curve(500, 0.05, 0.10)}
    assert points[0.0].passes > 0.95
    assert points[-0.05].passes < 0.06 and points[-0.05].fails > 0.9
    assert points[-0.1].fails > 0.99
    for point in points.values():
        assert point.passes + point.fails + point.undecided == pytest.approx(1.0)


def test_the_power_of_a_mean_is_that_of_simulated_ones():
    rng = np.random.default_rng(2)
    passed = [
        judge_pair(Pairs.of(rng.normal(0, 0.5, 100), np.zeros(100)), 0.1).outcome == "pass"
        for _ in range(600)
    ]
    assert power_of_mean(100, 0.1, 0.5) == pytest.approx(np.mean(passed), abs=0.08)
    n = questions_for_mean(0.1, 0.5)
    assert power_of_mean(n, 0.1, 0.5) >= 0.95 > power_of_mean(n - 2, 0.1, 0.5)
