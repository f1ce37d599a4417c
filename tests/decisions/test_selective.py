"""An answer or none: the risk among what is answered stays within its bound."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from surerag.decisions.rows import DecisionRow
from surerag.decisions.selective import AnswerPolicy, SelectiveAnswer, calibrate_answers, risk_coverage
from surerag.errors import ConfigurationError, InputError


def answered(rng: np.random.Generator, n: int, *, told: float = 2.0) -> list[DecisionRow]:
    """Answers of which six in ten are right, with a doubt that tells more or less of it."""
    right = rng.random(n) < 0.6
    doubt = rng.standard_normal(n) - told * right
    return [DecisionRow({"doubt": float(d)}, None, bool(r)) for d, r in zip(doubt, right, strict=True)]


def test_the_risk_among_answers_is_broken_as_seldom_as_promised() -> None:
    rng = np.random.default_rng(1)
    truth = answered(rng, 20_000)
    doubt = np.array([row.signals["doubt"] for row in truth])
    right = np.array([bool(row.correct_with) for row in truth])
    broken, coverage = 0, []
    for _ in range(200):
        policy = calibrate_answers("doubt", answered(rng, 250), max_risk=0.2, confidence=0.9)
        given = doubt <= policy.threshold
        broken += bool(given.any() and (~right[given]).mean() > 0.2)
        coverage.append(given.mean())
    assert broken / 200 <= 0.1 + 2.33 * math.sqrt(0.09 / 200)
    assert np.mean(coverage) > 0.4


def test_where_nothing_tells_right_from_wrong_nothing_is_answered() -> None:
    policy = calibrate_answers("doubt", answered(np.random.default_rng(2), 250, told=0.0), max_risk=0.1)
    assert (policy.feasible, policy.coverage, policy.risk, policy.needed) == (False, 0.0, None, 51)
    assert "infeasible at n = 250" in policy.promise
    assert SelectiveAnswer(policy).select("Velm", -9.0).abstained


def test_planted_unanswerable_questions_are_refused() -> None:
    """A third of the questions have no answer: whatever is said is wrong, and said with doubt."""
    rng = np.random.default_rng(3)

    def asked(n: int) -> tuple[list[DecisionRow], np.ndarray]:
        planted = rng.random(n) < 1 / 3
        right = ~planted & (rng.random(n) < 0.95)
        doubt = rng.normal(0, 0.4, n) + 2.0 * planted
        return [DecisionRow({"doubt": d}, None, bool(r)) for d, r in zip(doubt, right, strict=True)], planted

    policy = calibrate_answers("doubt", asked(400)[0], max_risk=0.15)
    fresh, planted = asked(1000)
    selective = SelectiveAnswer(policy, refusal="No source says so.")
    shown = [selective.select("An answer", row.signals["doubt"]) for row in fresh]
    refused = np.array([one.abstained for one in shown])
    assert refused[planted].mean() > 0.95
    assert refused[~planted].mean() < 0.25
    assert {one.text for one in shown} == {"An answer", "No source says so."}


def test_probabilities_are_calibrated() -> None:
    rng = np.random.default_rng(4)
    policy = calibrate_answers("doubt", answered(rng, 1000), max_risk=0.2)
    fresh = answered(rng, 5000)
    told = np.array([policy.probability(row.signals["doubt"]) for row in fresh])
    right = np.array([bool(row.correct_with) for row in fresh])
    for low, high in ((0, 0.3), (0.3, 0.7), (0.7, 1.01)):
        inside = (told >= low) & (told < high)
        assert right[inside].mean() == pytest.approx(told[inside].mean(), abs=0.08)
    assert policy.probability(math.inf) <= policy.probability(0.0) <= policy.probability(-math.inf)


def test_over_refusals_and_unsupported_answers_are_counted_apart() -> None:
    rows = [DecisionRow({"p": p}, None, right) for p, right in ((1, True), (2, False), (3, True), (4, False))]
    curve = risk_coverage("p", rows)
    assert [(one.coverage, one.risk) for one in curve] == [(0.25, 0), (0.5, 0.5), (0.75, 1 / 3), (1, 0.5)]
    assert [one.over_refused for one in curve] == [0.25, 0.25, 0, 0]
    assert [one.unsupported for one in curve] == [0, 0.25, 0.25, 0.5]


def test_silence_is_never_an_answer() -> None:
    policy = calibrate_answers("p", [DecisionRow({"p": i}, None, True) for i in range(200)], max_risk=0.1)
    assert policy.coverage == 1.0
    selective = SelectiveAnswer(policy)
    assert not selective.select("Velm", 3.0).abstained
    assert selective.select("  ", 3.0).abstained
    assert selective.select("Velm", None).abstained


def test_a_policy_is_numbers_in_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for policy in (
        calibrate_answers("doubt", answered(rng, 250), max_risk=0.2),
        calibrate_answers("doubt", answered(rng, 20), max_risk=0.2),
    ):
        policy.save(tmp_path / "answers.json")
        assert AnswerPolicy.load(tmp_path / "answers.json") == policy
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(InputError, match=r"holds no answer policy: expected an answer policy, found list"):
        AnswerPolicy.load(tmp_path / "x.json")


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"max_risk must be in \(0, 1\), got 1"):
        calibrate_answers("p", [DecisionRow({"p": 1.0}, None, True)], max_risk=1)
    with pytest.raises(InputError, match="1 of 1 answers without acting were not judged"):
        calibrate_answers("p", [DecisionRow({"p": 1.0}, None, True)], max_risk=0.1, answer="without")
    with pytest.raises(ConfigurationError, match="refusal is empty"):
        SelectiveAnswer(calibrate_answers("p", [DecisionRow({"p": 1.0}, None, True)], max_risk=0.5), " ")
