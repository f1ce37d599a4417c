"""Thresholds from a sample."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag import LazyRAG, ScriptedReader, UncertaintyRewriter
from surerag.calibration import Calibration, CalibrationWarning, calibrate_threshold
from surerag.errors import ConfigurationError, InputError
from tests.methods.lazy_rag.corpus import Corpus

samples = st.lists(
    st.tuples(st.floats(0.1, 3).map(lambda value: round(value, 1)), st.booleans(), st.booleans()),
    min_size=1,
    max_size=30,
)


@given(samples, st.floats(0, 1))
def test_a_budget_is_met_and_no_smaller_threshold_meets_it(sample: list[Any], budget: float) -> None:
    signals = np.array([row[0] for row in sample])
    tau = calibrate_threshold(signals, budget=budget, resamples=0).threshold
    assert (signals > tau).mean() <= budget + 1e-9
    smaller = [value for value in {0.0, *signals} if value < tau]
    assert all((signals > value).mean() > budget for value in smaller)


@given(samples, st.floats(0, 0.3))
def test_a_bound_on_the_loss_holds_at_the_threshold_and_below_it(sample: list[Any], max_loss: float) -> None:
    signals, without, with_ = (np.array(column, dtype=float) for column in zip(*sample, strict=True))
    found = calibrate_threshold(
        signals, max_loss=max_loss, correct_without=without, correct_with=with_, resamples=0
    )

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
    few, many = (calibrate_threshold(rng.exponential(size=n), budget=0.5, seed=1) for n in (30, 3000))
    assert few.lower <= few.threshold <= few.upper
    assert many.upper - many.lower < (few.upper - few.lower) / 3
    assert many.lower < math.log(2) < many.upper


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"signals": [1.0]}, ConfigurationError),
        ({"signals": [1.0], "budget": 0.5, "max_loss": 0.1}, ConfigurationError),
        ({"signals": [1.0], "budget": 1.5}, ConfigurationError),
        ({"signals": [1.0], "max_loss": 0.1}, ConfigurationError),
        ({"signals": [], "budget": 0.5}, InputError),
        ({"signals": [math.nan], "budget": 0.5}, InputError),
        ({"signals": [1.0, 2.0], "max_loss": 0, "correct_with": [1], "correct_without": [1, 0]}, InputError),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        calibrate_threshold(**arguments)


def test_a_pipeline_is_calibrated_saved_and_warns_with_another_reader(tmp_path: Path) -> None:
    def script(prompt: str) -> Any:
        from surerag.readers._script import reply

        right = "easy" in prompt or "Additional" in prompt
        return reply("Velm" if right else "Orun", entropy=0.1 if "easy" in prompt else 2.0)

    rag = LazyRAG(ScriptedReader(script, name="one"), Corpus("Detail."), "Summary.")
    questions = ["easy 1", "hard 1", "easy 2", "hard 2"]
    found = rag.calibrate(questions, [["Velm"]] * 4, max_loss=0.0)
    assert (found.threshold, found.rate, found.accuracy, found.reference) == (
        pytest.approx(0.1),
        0.5,
        1.0,
        1.0,
    )
    assert rag.calibrate(questions, budget=0.5).threshold == pytest.approx(0.1)

    found.save(tmp_path / "tau.json")
    loaded = Calibration.load(tmp_path / "tau.json")
    assert loaded == found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrated = rag.with_options(threshold=loaded)
    assert [result.decision.retrieve for result in calibrated.run_many(questions)] == [
        False,
        True,
        False,
        True,
    ]
    with pytest.warns(CalibrationWarning, match="reader 'one'"):
        LazyRAG(ScriptedReader(script, name="two"), Corpus("Detail."), "Summary.", threshold=loaded)
    with pytest.warns(CalibrationWarning, match="signal"):
        rag.with_options(threshold=loaded, gate_tokens=3)


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"tau": 1}')
    with pytest.raises(InputError, match="no calibration"):
        Calibration.load(tmp_path / "x.json")


@pytest.mark.parametrize("method", [LazyRAG, UncertaintyRewriter])
@pytest.mark.parametrize(
    ("questions", "golds", "limits", "error", "told"),
    [
        (["a", "b"], None, {}, ConfigurationError, "exactly one of budget and max_loss"),
        (["a", "b"], None, {"budget": 0.5, "max_loss": 0.1}, ConfigurationError, "exactly one"),
        (["a", "b"], None, {"budget": 50}, ConfigurationError, r"lies in \[0, 1\], got 50"),
        (["a", "b"], None, {"max_loss": 0.1}, ConfigurationError, "needs gold answers"),
        (["a", "b"], [["x"]], {"max_loss": 0.1}, InputError, "each of 2 questions, got 1"),
        ([], [], {"max_loss": 0.1}, InputError, "no questions"),
    ],
)
def test_what_cannot_be_calibrated_costs_nothing(
    method: Any, questions: Any, golds: Any, limits: Any, error: Any, told: str
) -> None:
    reader = ScriptedReader(["an answer"])
    with pytest.raises(error, match=told):
        method(reader, Corpus("a passage"), **({"summaries": "s"} if method is LazyRAG else {})).calibrate(
            questions, golds, **limits
        )
    assert reader.prompts == []
