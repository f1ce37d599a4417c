"""The bootstrap rule of the closed world's studies, which promises nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from surerag.decisions.bootstrap import bootstrap_threshold

from surerag.errors import ConfigurationError, InputError

samples = st.lists(
    st.tuples(st.floats(0.1, 3).map(lambda value: round(value, 1)), st.booleans(), st.booleans()),
    min_size=1,
    max_size=30,
)


@given(samples, st.floats(0, 0.3))
def test_a_bound_on_the_loss_holds_at_the_threshold_and_below_it(sample: list[Any], max_loss: float) -> None:
    signals, without, with_ = (np.array(column, dtype=float) for column in zip(*sample, strict=True))
    found = bootstrap_threshold(signals, without, with_, max_loss, resamples=0)

    def loss(tau: float) -> float:
        return float(with_.mean() - np.where(signals > tau, with_, without).mean())

    observed = sorted(set(signals))
    assert all(
        loss(value) <= max_loss + 1e-9
        for value in observed
        if value <= found.threshold and found.threshold > 0
    )
    following = [value for value in observed if value > found.threshold]
    if following:
        assert loss(following[0]) > max_loss
    assert found.rate == pytest.approx((signals > found.threshold).mean())
    assert found.reference == pytest.approx(with_.mean())


def test_the_interval_covers_the_estimate_and_narrows_with_the_sample() -> None:
    rng = np.random.default_rng(0)

    def found(n: int) -> Any:
        signals = rng.random(n)
        return bootstrap_threshold(signals, signals < 0.5, np.ones(n), 0.1, seed=1)

    few, many = found(30), found(3000)
    assert few.lower <= few.threshold <= few.upper
    assert many.upper - many.lower < (few.upper - few.lower) / 3
    assert many.lower < 0.6 < many.upper


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([1.0], [1], [1], 1.5), ConfigurationError),
        (([], [], [], 0.5), InputError),
        (([math.nan], [1], [1], 0.5), InputError),
        (([1.0, 2.0], [1], [1, 0], 0.0), InputError),
    ],
)
def test_bad_input_is_refused(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        bootstrap_threshold(*arguments)
