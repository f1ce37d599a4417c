"""Intervals and tests against hand-worked values, scipy and what must hold of any data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from surerag.errors import InputError
from surerag.evaluation.comparison.significance import holm, mean_with_interval, permutation_p, wilcoxon_p


def test_bootstrap_interval_is_near_the_t_interval_where_that_holds() -> None:
    values = np.random.default_rng(1).normal(0.2, 0.5, size=400)
    found = mean_with_interval(values)
    low, high = stats.t.interval(0.95, 399, values.mean(), stats.sem(values))
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.005)
    assert mean_with_interval(values) == found
    with pytest.raises(InputError):
        mean_with_interval([])


def test_permutation_by_hand() -> None:
    # Signs of 1, 2, 4, 8: only all alike reach a sum of 15.
    assert permutation_p([1, 2, 4, 8]) == 2 / 16
    assert permutation_p([1, -1]) == 1.0
    assert permutation_p([0.0, 0.0]) == 1.0
    assert permutation_p([0.1, 0.2, 0.3, 0.0]) == permutation_p([0.1, 0.2, 0.3]) == 0.25


def test_random_signs_agree_with_scipy_and_never_give_zero() -> None:
    values = np.random.default_rng(2).normal(0.15, 0.5, size=60)
    theirs = stats.permutation_test(
        (values,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=10_000, rng=3
    )
    assert permutation_p(values) == pytest.approx(theirs.pvalue, abs=0.01)
    assert permutation_p(np.ones(60)) == pytest.approx(1 / 10_001)


def test_permutation_keeps_its_level() -> None:
    rng = np.random.default_rng(4)
    found = [permutation_p(rng.normal(size=10)) for _ in range(400)]
    assert np.mean([p < 0.05 for p in found]) < 0.08


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_monotone_and_between_single_and_bonferroni(p_values: list[float]) -> None:
    corrected = holm(p_values)
    for p, c in zip(p_values, corrected, strict=True):
        assert p <= c <= max(1.0, len(p_values) * p)
    order = np.argsort(p_values, kind="stable")
    assert np.all(np.diff(np.array(corrected)[order]) >= 0)
    assert min(corrected) == pytest.approx(min(1.0, min(p_values) * len(p_values)))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.02, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])
    assert holm([]) == []


def test_wilcoxon_takes_zeros() -> None:
    assert 0 < wilcoxon_p([0.0, 0.5, 0.25, 0.0, 0.75, 0.1, -0.05]) < 1
