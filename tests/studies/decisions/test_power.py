"""What a promise costs: how much a valid test may pass, and what other rules would have chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from surerag.decisions.paired import paired_p_value
from surerag.decisions.rows import Outcomes
from surerag_studies.decisions.power import (
    OUTCOMES,
    betting,
    hoeffding_bentkus,
    normal,
    normal_without_two,
    size_of,
    sizes,
    two_starts,
)


def sample(*changes: int, n: int = 250) -> tuple[np.ndarray, Outcomes]:
    """Questions in the order of their signals: 1 is mended by acting, -1 spoiled; the others stay right."""
    benefit = np.zeros(n)
    benefit[: len(changes)] = changes
    without = np.where(benefit > 0, 0.0, 1.0)
    return np.arange(n, dtype=float), Outcomes(without, without + benefit)


def test_sizes_are_the_largest_over_all_shares_of_discordant_questions() -> None:
    assert size_of(lambda mended, spoiled: mended <= 1, 250, 0.02) == pytest.approx(
        stats.binom.cdf(1, 250, 0.02)
    )
    told = {row.outcomes: row.size for row in sizes(250, 0.02)}
    assert list(told)[: len(OUTCOMES)] == list(OUTCOMES)
    assert told["at most 2 mended, 2:0 among them"] == pytest.approx(stats.binom.cdf(2, 250, 0.02))
    assert told["these, and 2:1 or better"] < 0.05 < told["these, and 3:3, 4:4 or better"]
    # The certified rule spends nearly all of its level, and the normal approximation more than twice as much.
    assert 0.045 < told["what the certified rule passes"] <= 0.05 < told["the same, less 2:0"]
    assert told["what the normal approximation passes"] > 0.12


def test_the_normal_approximation_passes_what_no_valid_test_may() -> None:
    signals, outcomes = sample(1, 1, 0, 0, -1)
    assert paired_p_value(250, 2, 0, 0.02) > 0.05
    assert normal(signals, outcomes, 0.05, 0.02) > 100
    assert normal_without_two(signals, outcomes, 0.05, 0.02) == 0.0
    # Where nothing is lost first, the two agree.
    assert normal(*sample(-1, 1, 1), 0.05, 0.02) == normal_without_two(*sample(-1, 1, 1), 0.05, 0.02) > 100


def test_a_second_start_goes_past_what_stops_the_first() -> None:
    early = sample(1, 1, -1, -1, -1, 1, -1, -1, -1)
    assert two_starts(*early, 0.05, 0.02) >= 125
    assert two_starts(*sample(*[1] * 40), 0.05, 0.02) == -math.inf


def test_other_valid_p_values_choose_less() -> None:
    signals, outcomes = sample()
    assert betting(signals, outcomes, 0.05, 0.02) == 249
    assert hoeffding_bentkus(signals, outcomes, 0.05, 0.02) == -math.inf
