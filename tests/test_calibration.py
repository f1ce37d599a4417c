"""Calibration: the guarantee holds as often as stated, and where there is none the policy says so."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surerag import calibration
from surerag.calibration import (
    AbstentionPolicy,
    CalibrationRow,
    CalibrationWarning,
    betting_p_value,
    calibrate_abstention,
    calibrate_threshold,
    paired_p_value,
)
from surerag.certainty import certainty_of
from surerag.errors import ConfigurationError, InputError
from surerag.evaluation import evaluate
from surerag.messages import Passage, TokenTrace
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.lazy_rag.component import FixedSummary, LazyRAG
from surerag.readers.fake import FakeReader


def rows_of(
    uncertainty: Sequence[float], without: Sequence[float], with_: Sequence[float]
) -> list[CalibrationRow]:
    return [CalibrationRow(*map(float, row)) for row in zip(uncertainty, without, with_, strict=True)]


def draw(
    rng: np.random.Generator, n: int, *, repairs: float = 0.2, spoils: float = 0.1, informs: float = 0.0
) -> list[CalibrationRow]:
    """Questions on which a search repairs and spoils, with an uncertainty that informs about it or not."""
    kind = rng.choice(3, size=n, p=[repairs, spoils, 1 - repairs - spoils])
    right = rng.random(n) < 0.5
    without = np.where(kind == 0, 0.0, np.where(kind == 1, 1.0, right))
    with_ = np.where(kind == 0, 1.0, np.where(kind == 1, 0.0, right))
    return rows_of(rng.standard_normal(n) + informs * ((kind == 0) * 1.0 - (kind == 1)), without, with_)


def loss_of(rows: list[CalibrationRow], threshold: float) -> float:
    return float(
        np.mean([(r.score_with - r.score_without) * (r.uncertainty <= threshold) for r in rows])  # type: ignore[operator]
    )


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize(
    "kind",
    [
        {"repairs": 0.12, "spoils": 0.1},
        {"informs": 1.0},
        {"informs": -1.0},
        {"repairs": 0.1, "spoils": 0.0},
    ],
    ids=["useless", "useful", "perverse", "no harm"],
)
def test_the_guarantee_is_broken_as_seldom_as_stated(confidence: float, kind: dict[str, float]) -> None:
    rng = np.random.default_rng(7)
    truth = draw(rng, 20_000, **kind)
    samples = [draw(rng, 250, **kind) for _ in range(40)]
    broken = sum(
        loss_of(truth, calibrate_threshold(rows, confidence=confidence).threshold) > 0.02 for rows in samples
    )
    allowed = 1 - confidence
    assert broken / 40 <= allowed + 2.33 * math.sqrt(allowed * confidence / 40)


def in_documents(rng: np.random.Generator, values: Any, size: int = 10) -> Any:
    """Return values, shape [n, …], of which seven in ten are those of the document's first question."""
    n = len(values)
    common = rng.random(n) < math.sqrt(0.5)
    return np.where(common[(..., *[None] * (values.ndim - 1))], values[np.arange(n) // size * size], values)


def test_guarantees_hold_for_questions_about_few_documents() -> None:
    """Taken as independent, 14 and 19 in 100 such calibrations break theirs."""
    rng, broken = np.random.default_rng(0), np.zeros(2)
    for _ in range(60):
        kind = in_documents(rng, rng.choice(3, size=500, p=[0.12, 0.02, 0.86]))
        right, uncertainty = rng.random(500) < 0.5, rng.random(500)
        without, with_ = np.where(kind == 2, right, kind == 1), np.where(kind == 2, right, kind == 0)
        for grouped in (True, False):
            rows = [
                CalibrationRow(float(u), float(a), float(b), group=f"document {i // 10}" if grouped else "")
                for i, (u, a, b) in enumerate(zip(uncertainty, without, with_, strict=True))
            ]
            threshold = calibrate_threshold(rows, max_loss=0.05).threshold
            broken[int(grouped)] += (
                max(threshold, 0) * 0.1 > 0.05
            )  # it skips this share, and loses a tenth of that
    assert broken[1] <= 3 + 2.33 * math.sqrt(60 * 0.05 * 0.95) < broken[0]


def test_a_bounded_risk_holds_for_questions_about_few_documents() -> None:
    rng, broken = np.random.default_rng(1), np.zeros(2)
    wrong_below = 0.15  # of the answers up to the threshold, whatever it is
    for _ in range(80):
        right = in_documents(rng, rng.random(250) < 1 - wrong_below, 20)
        for grouped in (True, False):
            rows = [
                CalibrationRow(
                    float(rng.random()), float(one), group=f"document {i // 20}" if grouped else ""
                )
                for i, one in enumerate(right)
            ]
            broken[int(grouped)] += calibrate_abstention(rows, max_risk=0.145).threshold > 0
    assert broken[1] <= 4 + 2.33 * math.sqrt(80 * 0.05 * 0.95)


def test_graded_scores_are_bounded_by_betting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncertainties inform about nothing: a threshold at the quantile s loses s times the mean benefit."""
    monkeypatch.setattr(calibration, "TEST_EACH", 300)
    monkeypatch.setattr(calibration, "_SET_ASIDE", 100)
    for n in (250, 600):  # each threshold is tested, and a grid
        thresholds = []
        for seed in range(80):
            rng = np.random.default_rng(seed)
            without = np.round(rng.random(n), 2) * 0.5
            rows = rows_of(rng.random(n), without, without + 0.5 * (rng.random(n) < 0.4))
            thresholds.append(calibrate_threshold(rows, max_loss=0.08, confidence=0.9).threshold)
        broken = sum(0.2 * threshold > 0.08 for threshold in thresholds)
        assert broken / 80 <= 0.1 + 2.33 * math.sqrt(0.09 / 80)
        assert sum(math.isfinite(threshold) for threshold in thresholds) > 40


@pytest.mark.parametrize("graded", [False, True])
def test_of_many_uncertainties_a_grid_is_tested(graded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = []
    for name in ("paired_p_value", "betting_p_value"):
        monkeypatch.setattr(calibration, name, lambda *values: tests.append(values) or 0.0)
    rows = [CalibrationRow(i / 10_000, 0.5 if graded else 1.0, 1.0) for i in range(10_000)]
    assert calibrate_threshold(rows).threshold > 0.9
    assert len(tests) <= 1000


def test_the_exact_test_has_power_where_few_answers_differ() -> None:
    assert paired_p_value(500, 3, 2, 0.02) < 0.005  # a loss of 0.2 points on the sample
    assert paired_p_value(250, 6, 1, 0.02) == 1.0
    assert paired_p_value(250, 1, 40, -0.05) < 0.01 < 0.5 < paired_p_value(250, 1, 12, -0.05)
    assert paired_p_value(250, 0, 5, 0.0) == 1 / 32
    assert betting_p_value(np.zeros(250), 0.02) < 0.05


def test_the_exact_test_keeps_its_level() -> None:
    """At a true loss equal to the bound, at most five samples in a hundred are called better."""
    rng = np.random.default_rng(0)
    for repaired, spoiled in ((0.02, 0.0), (0.06, 0.04), (0.26, 0.24), (0.1, 0.1), (0.05, 0.1)):
        counts = rng.multinomial(250, [repaired, spoiled, 1 - repaired - spoiled], 2000)
        bound = round(repaired - spoiled, 9)
        rejected = np.mean([paired_p_value(250, int(a), int(b), bound) <= 0.05 for a, b, _ in counts])
        assert rejected <= 0.05 + 2.33 * math.sqrt(0.05 * 0.95 / 2000)


def test_the_first_threshold_that_fails_ends_the_search() -> None:
    benefit = [1.0] * 100 + [-1.0] * 100 + [0.0] * 400
    rows = rows_of(range(600), [b < 0 for b in benefit], [b > 0 for b in benefit])
    assert calibrate_threshold(rows, max_loss=0.02).rate > 0.95


def test_a_sample_that_is_too_small_says_how_many_would_do() -> None:
    rng = np.random.default_rng(3)
    rows = draw(rng, 100, repairs=0.02, spoils=0.02)
    policy = calibrate_threshold(rows)
    assert (policy.verdict, policy.threshold, policy.rate) == ("infeasible", -math.inf, 1.0)
    assert policy.needed is not None and policy.needed >= 149
    assert (
        f"no guarantee is possible with 100 questions; about {policy.needed:,} would be needed"
        in policy.guarantee
    )
    useless = calibrate_threshold(rows_of([1] * 300, [0] * 300, [1] * 300))
    assert useless.needed is None and "more questions of this kind would not help" in useless.guarantee


def test_a_gain_is_shown_only_where_there_is_one() -> None:
    policy = calibrate_threshold(rows_of(range(400), [i < 300 for i in range(400)], [True] * 400))
    assert policy.verdict == "holds" and policy.gain.interval is not None and policy.gain.interval.lower > 0.1
    assert "Gain over searching or rewriting for a random 24 % of the questions" in policy.guarantee
    rng = np.random.default_rng(5)
    assert [calibrate_threshold(draw(rng, 250)).verdict for _ in range(60)].count("holds") <= 3
    same = calibrate_threshold(rows_of(range(300), [1] * 300, [1] * 300))
    assert same.verdict == "no gain shown" and "[" not in same.guarantee  # no interval of no width


def test_the_interval_of_a_gain_covers_zero_although_the_threshold_was_selected() -> None:
    rng = np.random.default_rng(11)
    above = 0
    for _ in range(100):
        uncertainty, benefit = rng.standard_normal(200), rng.choice([-1.0, 0, 1], size=200, p=[0.1, 0.7, 0.2])
        gains = [
            calibration._gain(uncertainty, benefit, np.arange(200), at, 0.95)
            for at in np.quantile(uncertainty, [0.2, 0.4, 0.6, 0.8])
        ]
        above += max(gains, key=lambda gain: gain.value).interval.lower > 0
    assert above / 100 <= 0.06


def test_a_policy_is_refused_for_another_reader_gate_retriever_or_setting() -> None:
    scope = {"reader": "llama", "gate": "entropy of 8 tokens", "retriever": "index", "settings": "abc"}
    policy = calibrate_threshold(rows_of(range(300), [1] * 300, [1] * 300), component=scope)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.check(scope)
        policy.check(scope | {"retriever": ""})  # a retriever without a name
    for part in ("reader", "gate", "retriever", "settings"):
        with pytest.raises(ConfigurationError, match=f"calibrated for the {part} "):
            policy.check(scope | {part: "another"})
    with pytest.warns(
        CalibrationWarning, match="not record the gate, retriever and settings of.* the same gate"
    ):
        replace(policy, scope={"reader": "llama"}).check(scope)


def test_a_policy_warns_once_of_each_part_at_the_users_line() -> None:
    policy = AbstentionPolicy(0.5, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1), scope={"reader": "r"})
    certainty = certainty_of(TokenTrace(("Velm",), (-0.1,)), scope={"reader": "r", "prompt": "p"})
    more = replace(certainty, scope={**certainty.scope, "settings": "s"})
    with pytest.warns(CalibrationWarning, match="not record the prompt of .* the same prompt$") as warned:
        [policy.select("Velm", one) for one in (certainty, certainty, more)]
    assert [str(one.message).split()[6] for one in warned] == ["prompt", "settings"]
    assert {one.filename for one in warned} == {__file__}


def test_an_infeasible_policy_says_that_it_always_searches() -> None:
    rag = LazyRAG(FakeReader(lambda prompt: "Velm", entropy=0.1), FixedSummary("Velm"), "Ada lives in Velm.")
    policy = calibrate_threshold(rows_of(range(25), [1] * 25, [1] * 25), component=rag)
    for kind in (LazyRAG, UncertaintyRewriter):
        policy = replace(policy, scope={})
        options = {"summaries": "Ada."} if kind is LazyRAG else {}
        with pytest.warns(CalibrationWarning, match="would be needed. This policy always searches") as warned:
            component = kind(rag.reader, rag.retriever, threshold=policy, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CalibrationWarning)
            result = component.with_options(max_tokens=9).run("Where?")
        assert [one.filename for one in warned if "always" in str(one.message)] == [__file__]
        reason = result.decision.reason if kind is LazyRAG else result.reason
        assert "always" in reason
        assert "inf" not in reason


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("policy", r"holds an? \w+Policy\. Load it with \w+Policy\.load\("),
        (
            "question,answer",
            "not a policy: expected .*Policy, found a text without JSON. Make the file with",
        ),
        ("", "found an empty file"),
        ("[1]", "found a list"),
        ("API_KEY=sk-secret", "found a text without JSON"),
        ('{"threshold": "sk-secret"}', "is not a policy"),
        ('{"a": 1}', "found no threshold"),
        (b"\xff", "found bytes that are not text"),
        (None, "cannot be read: Is a directory"),
    ],
)
@pytest.mark.parametrize("kind", [AbstentionPolicy, calibration.ThresholdPolicy])
def test_a_file_that_holds_no_such_policy_is_named(
    kind: Any, content: str | bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.json"
    if content is None:
        path.mkdir()
    elif content != "policy":
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif kind is AbstentionPolicy:
        calibrate_threshold(rows_of(range(25), [1] * 25, [1] * 25)).save(path)
    else:
        calibrate_abstention(rows_of(range(25), [1] * 25, [1] * 25), max_risk=0.2).save(path)
    with pytest.raises(InputError, match=message) as refused:
        kind.load(path)
    assert "secret" not in str(refused.value)
    assert "pydantic" not in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("suffix", ["threshold", "abstention"])
def test_policies_are_read_back_from_json(suffix: str, tmp_path: Path) -> None:
    path, rng = tmp_path / "policy.json", np.random.default_rng(5)
    for rows in (draw(rng, 250, informs=1.0), draw(rng, 20)):
        if suffix == "threshold":
            policy: Any = calibrate_threshold(rows, component={"reader": "llama"})
        else:
            policy = calibrate_abstention(rows, max_risk=0.2)
        policy.save(path)
        assert type(policy).load(path) == policy
    written = json.loads(path.read_text())
    for text in (
        None,
        "[]",
        "{}",
        json.dumps(written | {"threshold": "x"}),
        json.dumps(written | {"more": 1}),
    ):
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        with pytest.raises(InputError) as refused:
            type(policy).load(path)
        assert "pydantic" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_loss": 0}, r"max_loss must be in \(0, 1\]"),
        ({"confidence": 1}, "confidence must be in"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        calibrate_threshold(rows_of([1], [1], [1]), **options)


def test_a_threshold_takes_scores() -> None:
    with pytest.raises(InputError, match="none of 3 rows has a score"):
        calibrate_threshold([CalibrationRow(float(i)) for i in range(3)])


@pytest.mark.parametrize("values", [(math.nan,), ("1",), (1.0, 2.0), (1.0, None, -0.1)])
def test_rows_hold_numbers(values: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="expected a number"):
        CalibrationRow(*values)


@pytest.mark.parametrize("other", [(0.5, 1, 1), {"uncertainty": 0.5}])
def test_rows_of_another_kind_are_named(other: Any) -> None:
    with pytest.raises(
        InputError, match=f"expected a CalibrationRow, got a {type(other).__name__} at place 0"
    ):
        calibrate_threshold([other])
    rows = [CalibrationRow(0.5, 1, 1)] * 3
    assert calibrate_threshold(iter(rows)) == calibrate_threshold(rows)  # type: ignore[arg-type]


def test_scores_that_say_nothing_are_warned_of() -> None:
    for rare, common in ((5, 0.0), (0, 0.0)):
        rows = [CalibrationRow(i, common, float(i < rare)) for i in range(200)]
        with pytest.warns(CalibrationWarning, match=rf"^only {rare} of 200 .* \(metrics="):
            calibrate_threshold(rows)
    with pytest.warns(CalibrationWarning, match="only 0 of 200 questions were answered right"):
        calibrate_abstention([CalibrationRow(i, 0.0) for i in range(200)], max_risk=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrate_threshold([CalibrationRow(i, 0.0, float(i < 20)) for i in range(200)])


class Corpus:
    """A retriever without a name."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage("Velm")]


def test_a_policy_of_a_pipeline_serves_that_pipeline_alone() -> None:
    """A policy from a component's run is its threshold; another reader, gate or prompt refuses it."""
    rag = LazyRAG(FakeReader(lambda prompt: "Velm"), FixedSummary("Velm"), "Ada was born in Velm.")
    ends = {f"lazy@{end}": rag.with_options(threshold=float(end)) for end in ("inf", "-inf")}
    run = evaluate(ends, [(f"Where, {place}?", "Velm") for place in range(160)])
    policy = calibrate_threshold(run, component=rag)
    assert policy.n == 160
    assert rag.with_options(threshold=policy).run("Where?").decision.retrieve is False
    for change in (
        {"reader": FakeReader(["Velm"], name="another")},
        {"gate": "margin"},
        {"top_n": 2},
        {"retriever": Corpus()},
    ):
        with pytest.raises(ConfigurationError, match="the policy was calibrated for"):
            rag.with_options(threshold=policy, **change)


def answers(rng: np.random.Generator, n: int, *, informs: float = 2.0) -> list[CalibrationRow]:
    """Answers of which six in ten are right."""
    right = rng.random(n) < 0.6
    return [
        CalibrationRow(float(u), float(r))
        for u, r in zip(rng.standard_normal(n) - informs * right, right, strict=True)
    ]


def test_the_risk_among_answers_is_broken_as_seldom_as_stated() -> None:
    rng = np.random.default_rng(1)
    truth = answers(rng, 20_000)
    uncertainty = np.array([row.uncertainty for row in truth])
    right = np.array([row.score_without for row in truth]) == 1
    broken, coverage = 0, []
    for _ in range(200):
        policy = calibrate_abstention(answers(rng, 250), max_risk=0.2, confidence=0.9)
        given = uncertainty <= policy.threshold
        broken += bool(given.any() and (~right[given]).mean() > 0.2)
        coverage.append(given.mean())
    assert broken / 200 <= 0.1 + 2.33 * math.sqrt(0.09 / 200)
    assert np.mean(coverage) > 0.4


def test_abstention_begins_with_the_most_certain_answers() -> None:
    """Of 250 answers some tenth can be given at a risk of a tenth: ten tests at a tenth saw it in 18 %."""
    rng = np.random.default_rng(8)
    policies = [calibrate_abstention(answers(rng, 250), max_risk=0.1) for _ in range(40)]
    assert sum(policy.coverage > 0 for policy in policies) > 24
    easy = [CalibrationRow(float(i), float(i % 10 > 0)) for i in range(250)]
    assert calibrate_abstention(easy, max_risk=0.2).coverage == 1.0  # nine in ten are right everywhere


def test_probabilities_are_calibrated() -> None:
    rng = np.random.default_rng(4)
    policy = calibrate_abstention(answers(rng, 1000), max_risk=0.2)
    fresh = answers(rng, 5000)
    probability = np.array([policy.select("Velm", row.uncertainty).probability for row in fresh])
    right = np.array([row.score_without for row in fresh])
    for low, high in ((0, 0.3), (0.3, 0.7), (0.7, 1.01)):
        inside = (probability >= low) & (probability < high)
        assert right[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.08)
    least, middle, most = (policy.select("Velm", at).probability for at in (math.inf, 0.0, -math.inf))
    assert least <= middle <= most and least < most


@pytest.mark.parametrize("copies", [1, 4])
def test_where_uncertainty_tells_nothing_no_probability_is_told(copies: int) -> None:
    """A fit in the sample called the surest .84 where .60 were right. Copies of a question are one group."""
    rng, surest, withheld, samples = np.random.default_rng(5), [], 0, 150
    for _ in range(samples):
        once = answers(rng, 60, informs=0.0)
        rows = [replace(row, group=str(number)) for number, row in enumerate(once) for _ in range(copies)]
        policy = calibrate_abstention(rows, max_risk=0.2)
        told = policy.probability_at(min(row.uncertainty for row in rows))
        withheld += told is None
        assert (told is None) == (policy.knots == ()) == bool(policy.withheld)
        surest.append(np.mean([row.score_without for row in rows]) if told is None else told)
    assert withheld / samples >= 0.95 - 2.33 * math.sqrt(0.95 * 0.05 / samples)
    assert np.mean(surest) - 0.6 <= 2.33 * np.std(surest) / math.sqrt(samples)


@pytest.mark.parametrize("informs", [0.7, 2.0])
def test_the_probability_of_the_surest_is_not_above_the_truth(informs: float) -> None:
    rng, told = np.random.default_rng(6), []
    truth = answers(rng, 50_000, informs=informs)
    cut = np.quantile([row.uncertainty for row in truth], 0.1)
    right = np.mean([row.score_without for row in truth if row.uncertainty <= cut])
    for _ in range(60):
        policy = calibrate_abstention(answers(rng, 200, informs=informs), max_risk=0.2)
        if policy.knots:
            told.append(
                np.mean(
                    [policy.probability_at(row.uncertainty) for row in truth[:500] if row.uncertainty <= cut]
                )
            )
    assert len(told) > 50
    assert right - 0.08 <= np.mean(told) <= right + 2.33 * np.std(told) / math.sqrt(len(told))


def test_empty_answers_do_not_make_an_uncertainty_tell() -> None:
    rng = np.random.default_rng(7)
    rows = [*answers(rng, 200, informs=0.0), *(CalibrationRow(math.inf, 0.0) for _ in range(100))]
    policy = calibrate_abstention(rows, max_risk=0.2)
    assert policy.probability_at(0.0) is None and policy.probability_at(math.inf) == 0.0
    assert policy.auroc is not None and policy.auroc.n == 200
    assert "certainty does not clearly predict wrong answers: the AUROC is" in policy.withheld
    assert "with 200 answers, and its interval contains 0.5" in policy.withheld
    assert calibration.AbstentionPolicy.from_dict(policy.to_dict()) == policy


def test_nothing_is_answered_where_uncertainty_does_not_inform() -> None:
    policy = calibrate_abstention(answers(np.random.default_rng(2), 250, informs=0.0), max_risk=0.1)
    assert (policy.threshold, policy.coverage, policy.risk) == (-math.inf, 0.0, None)
    assert "no guarantee is possible with 250 questions" in policy.guarantee
    assert policy.select("Velm", -9.0).abstained


@pytest.mark.parametrize("groups", [1000, 20])
def test_an_impossible_guarantee_is_warned_of_with_what_would_help(groups: int) -> None:
    rows = [CalibrationRow(i / 100, float(i < 60), group=str(i % groups)) for i in range(100)]
    with pytest.warns(CalibrationWarning) as caught:
        policy = calibrate_abstention(rows, max_risk=0.01)
    assert [str(one.message) for one in caught] == [policy.guarantee] and caught[0].filename == __file__
    risk, needed = policy.possible_risk, policy.needed
    assert risk is not None and needed is not None and needed > 400
    assert f"possible max_risk is {risk:g}. For max_risk=0.01, at least about {needed:,} " in policy.guarantee
    assert calibrate_abstention(rows, max_risk=risk).threshold > -math.inf
    assert calibrate_abstention(rows, max_risk=risk - 0.01).threshold == -math.inf
    spread = [CalibrationRow(i / needed, float(i < 0.6 * needed), group=str(i)) for i in range(needed)]
    assert groups < 1000 or calibrate_abstention(spread, max_risk=0.01).threshold > -math.inf
    hopeless = calibrate_abstention([replace(row, uncertainty=0.5) for row in rows], max_risk=0.3)
    assert hopeless.needed is None and "questions would not help: even the surest" in hopeless.guarantee
    assert calibration.AbstentionPolicy.from_dict(policy.to_dict()) == policy


def test_about_half_of_the_samples_with_the_needed_number_of_questions_allow_a_guarantee() -> None:
    rng, allowed = np.random.default_rng(9), []
    while len(allowed) < 60:
        policy = calibrate_abstention(answers(rng, 100), max_risk=0.1)
        if policy.needed is not None:
            again = calibrate_abstention(answers(rng, policy.needed), max_risk=0.1)
            allowed.append(again.threshold > -math.inf)
    assert 0.25 < np.mean(allowed) < 0.75


def test_an_empty_answer_and_an_abstention_are_withheld() -> None:
    with pytest.warns(CalibrationWarning, match="all answers to 200 questions are right, so the sample"):
        policy = calibrate_abstention([CalibrationRow(i, 1) for i in range(200)], max_risk=0.1)
    assert policy.coverage == 1.0 and "100 % are answered" in policy.guarantee
    assert policy.threshold == math.inf and policy.to_dict()["threshold"] == "Infinity"
    assert policy.select("Velm", math.inf).abstained, "it has no words"
    assert not policy.select("Velm", 3.0).abstained
    for answer, uncertainty in (("  ", 3.0), ("Velm", None), ("i do not know", 3.0)):
        assert policy.select(answer, uncertainty, "I do not know.").abstained
    assert policy.select("", None).probability == 0.0
    assert policy.select("Velm", 1e9).probability is None, (
        "no wrong answer shows what a high uncertainty means"
    )
    with pytest.raises(ConfigurationError):
        policy.select("Velm", 3.0, " ")
    with pytest.raises(ConfigurationError, match=r"max_risk must be in \(0, 1\), got 1"):
        calibrate_abstention([CalibrationRow(1.0, 1)], max_risk=1)
    with pytest.raises(InputError, match="none of 1 row has a score"):
        calibrate_abstention([CalibrationRow(1.0)], max_risk=0.1)
    with pytest.raises(InputError, match="no rows"):
        calibrate_abstention([], max_risk=0.1)
    with pytest.raises(InputError, match="all 30 uncertainties are infinite"):
        calibrate_abstention([CalibrationRow(math.inf, i % 2) for i in range(30)], max_risk=0.1)


@pytest.mark.parametrize("kind", [calibration.AbstentionPolicy, calibration.ThresholdPolicy])
@pytest.mark.parametrize("content", ["question,answer\nWhere?,Velm\n", "", "{"])
def test_a_file_that_is_no_policy_is_named_with_how_to_make_one(
    kind: Any, content: str, tmp_path: Path
) -> None:
    path = tmp_path / "questions.csv"
    path.write_text(content)
    made = r"calibrate_\w+\(rows.*\)\.save\(path\)"
    with pytest.raises(InputError, match=rf"questions\.csv is not a policy: .*[Mm]ake the file with {made}"):
        kind.load(path)


def test_a_policy_whose_threshold_is_no_number_is_refused() -> None:
    """It would be above no uncertainty and below none, and so never act."""
    rows = [CalibrationRow(number, 1.0, 1.0) for number in range(200)]
    values = calibrate_threshold(rows).to_dict()
    with pytest.raises(InputError, match="threshold that is NaN"):
        calibration.ThresholdPolicy.from_dict({**values, "threshold": "nan"})
