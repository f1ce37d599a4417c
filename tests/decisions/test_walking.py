"""Walking through many thresholds at a time finds what testing each of them finds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from surerag.decisions import gain, walking
from surerag.decisions.gain import gain_at
from surerag.decisions.paired import bets, betting_p_value, paired_p_value
from surerag.decisions.rows import Outcomes
from surerag.decisions.search import SLIP, bounded_loss, bounded_rate
from surerag.decisions.walking import sorted_steps, steps_of

LEVEL, LOSS = 0.05, 0.03


def sample(seed: int, n: int = 400, *, graded: bool = False) -> tuple[np.ndarray, Outcomes]:
    """Draw questions whose first answer is the worse, the larger the signal is."""
    rng = np.random.default_rng(seed)
    signals = np.round(rng.gamma(1.0, 1.0, n), 1 if seed % 3 == 0 else 6)
    signals[: seed % 4] = math.inf
    without = (rng.random(n) > np.clip(signals / 8, 0, 0.9)).astype(float)
    with_ = np.where(rng.random(n) < 0.9, without, (rng.random(n) > 0.3).astype(float))
    return signals, Outcomes(np.round(without * rng.random(n), 2) if graded else without, with_)


def one_by_one(signals: np.ndarray, outcomes: Outcomes) -> float:
    steps, found = sorted_steps(signals, outcomes), -math.inf
    for at, threshold in enumerate(steps.thresholds.tolist()):
        counts = round(float(steps.mended[at])), round(float(steps.spoiled[at]))
        if paired_p_value(len(signals), *counts, LOSS, SLIP * LEVEL) > LEVEL:
            break
        found = threshold
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_threshold_is_that_of_testing_each(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    signals, outcomes = sample(seed)
    expected = one_by_one(signals, outcomes)
    assert bounded_loss(signals, outcomes, LOSS, LEVEL) == expected
    monkeypatch.setattr(walking, "MANY", 20)
    assert not steps_of(signals, outcomes).whole
    assert bounded_loss(signals, outcomes, LOSS, LEVEL) == expected


def test_of_many_questions_few_thresholds_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(*given: float) -> float:
        asked.append(1)
        return paired_p_value(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("surerag.decisions.search.paired_p_value", counted)
    signals, outcomes = sample(1, 20_000)
    threshold = bounded_loss(signals, outcomes, LOSS, LEVEL)
    assert math.isfinite(threshold) and len(asked) < 400


def test_some_steps_count_what_all_of_them_count(monkeypatch: pytest.MonkeyPatch) -> None:
    signals, outcomes = sample(3, 1000)
    whole = steps_of(signals, outcomes)
    monkeypatch.setattr(walking, "MANY", 20)
    some = steps_of(signals, outcomes)
    assert 1 < len(some.thresholds) < len(whole.thresholds)
    at = np.searchsorted(whole.thresholds, some.thresholds)
    for name in ("thresholds", "kept", "mended", "spoiled"):
        assert getattr(some, name).tolist() == getattr(whole, name)[at].tolist()
    assert some.thresholds[-1] == whole.thresholds[-1]


def test_bets_may_come_in_parts() -> None:
    losses = np.random.default_rng(0).random(1000) - 0.6
    parts = np.split(losses, [100, 101, 700])
    assert bets(parts, 1000, 0.1, 0.95) == pytest.approx(betting_p_value(losses, 0.1, 0.95))


def test_blocks_of_scores_certify_about_what_testing_each_does(monkeypatch: pytest.MonkeyPatch) -> None:
    acts = 0
    for seed in range(6):
        signals, outcomes = sample(seed, 3000, graded=True)
        outcomes = Outcomes(outcomes.without, np.minimum(outcomes.without + 0.05, 1.0))
        each = bounded_loss(signals, outcomes, 0.1, LEVEL)
        with monkeypatch.context() as patched:
            patched.setattr(walking, "MANY", 20)
            patched.setattr(walking, "_SETTING", 200)
            blocks = bounded_loss(signals, outcomes, 0.1, LEVEL)
        finite = np.isfinite(signals)
        acts += math.isfinite(blocks)
        assert (signals[finite] <= blocks).mean() == pytest.approx((signals[finite] <= each).mean(), abs=0.1)
    assert acts


def test_blocks_of_scores_break_their_promise_as_seldom_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    # Signals say nothing: whoever does not act up to a signal of s loses s times what acting brings.
    monkeypatch.setattr(walking, "MANY", 20)
    monkeypatch.setattr(walking, "_SETTING", 100)
    found = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        without = np.round(rng.random(900), 2) * 0.8
        with_ = np.minimum(without + (rng.random(900) < 0.4) * 0.5, 1.0)
        found.append(bounded_loss(rng.random(900), Outcomes(without, with_), 0.05, 0.1))
    true_gain = _mean_gain()
    broken = sum(threshold * true_gain > 0.05 for threshold in found)
    assert broken <= 300 * 0.1 + 3 * math.sqrt(300 * 0.09)
    assert sum(math.isfinite(threshold) for threshold in found) > 250


def _mean_gain() -> float:
    rng = np.random.default_rng(12345)
    without = np.round(rng.random(2_000_000), 2) * 0.8
    return float((np.minimum(without + (rng.random(2_000_000) < 0.4) * 0.5, 1.0) - without).mean())


@pytest.mark.parametrize("budget", [0.0, 0.1, 0.5, 0.97, 1.0])
def test_a_budget_is_that_of_testing_each(budget: float) -> None:
    from scipy.stats import binom

    signals, _ = sample(2)
    steps = sorted_steps(signals)
    failing = np.flatnonzero(binom.cdf(steps.n - steps.kept, steps.n, budget) > LEVEL)
    first = int(failing[-1]) + 1 if len(failing) else 0
    expected = float(steps.thresholds[first]) if first < len(steps.thresholds) else math.inf
    assert bounded_rate(signals, budget, LEVEL) == (-math.inf if budget >= 1 else expected)


@pytest.mark.parametrize("graded", [False, True])
def test_a_gain_of_many_questions_is_that_of_each(graded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    signals, outcomes = sample(5, 2000, graded=graded)
    each = gain_at(signals, outcomes, 1.0)
    monkeypatch.setattr(gain, "DIRECT", 500)
    many = gain_at(signals, outcomes, 1.0)
    assert many.value == pytest.approx(each.value, abs=1e-12)
    # A thousand draws of each: their 95 % quantiles differ by a few in a hundred.
    assert many.upper - many.lower == pytest.approx(each.upper - each.lower, rel=0.06)
