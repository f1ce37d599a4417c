"""From records to findings, tables and JSON."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from surerag.evaluation.serialise import to_json
from surerag_studies.dynqr.analysis import MAX_LOSS, calibrated, gold_rows, kind_rows, sweep
from surerag_studies.dynqr.records import ALWAYS, Record, outcome_of
from surerag_studies.dynqr.results import DynQRStudy, Row, TrainingStudy
from surerag_studies.dynqr.study import training_claims
from surerag_studies.dynqr.tables import study_tables
from surerag_studies.dynqr.training import Examined, Held, stage_rows
from tests.studies.dynqr.imagined import imagined_records, imagined_study
from tests.studies.showing import numbers, shown


def examined(stage: str, doubts: list[float], right: list[bool], triplets: int = 0) -> Examined:
    held = [Held(True, flag, doubt, flag) for doubt, flag in zip(doubts, right, strict=True)]
    return Examined(stage, tuple(held), triplets, seconds=12.0)


def imagined_training() -> TrainingStudy:
    steps = [(2.0, 0.1), (1.9, 0.15), (1.5, 0.6), (1.2, 0.9)]
    names = ["original query", "base", "distilled", "aligned, uncertainty"]
    stages = [
        examined(
            name, [math.exp(doubt + 0.01 * (i % 3)) for i in range(60)], [i < 60 * share for i in range(60)]
        )
        for name, (doubt, share) in zip(names, steps, strict=True)
    ]
    others = [replace(stages[3], stage=f"aligned, {name}", triplets=9) for name in ("answer", "relevance")]
    rows = stage_rows(stages[:3], [replace(stages[3], triplets=17), *others])
    return TrainingStudy("small", "imagined", 300, 400, 60, 8, rows.stages, rows.rewards, 600.0)


@pytest.fixture(scope="module")
def study() -> DynQRStudy:
    return imagined_study(training=imagined_training())


def row(study: DynQRStudy, label: str, documents: str | None = "substitute") -> Row:
    [found] = [one for one in study.rows if (one.label, one.documents) == (label, documents)]
    return found


def test_rows_are_the_records_under_each_setting(study: DynQRStudy) -> None:
    records, threshold = study.records, study.thresholds[0].threshold.value
    right = [outcome_of(record, threshold, "substitute").attempt.correct for record in records]
    assert row(study, "DynQR").accuracy.count == sum(right)
    assert row(study, "DynQR").rewritten == pytest.approx(
        sum(record.original.uncertainty["perplexity"] > threshold for record in records) / len(records)
    )
    always = row(study, "Always rewrite")
    assert always.accuracy.count == sum((r.substitute or r.original).correct for r in records)
    assert always.calls == 2
    assert always.retrievals == 1
    assert always.rewritten == 1
    assert row(study, "Direct", None).retrievals == 0
    assert row(study, "Original query", None).against_original.value == 0
    # Each part left out alone: the same questions are rewritten without verification, all without the gate.
    assert row(study, "w/o verification").rewritten == row(study, "DynQR").rewritten
    assert row(study, "w/o pre-check").rewritten == 1
    vague, clear = row(study, "DynQR").vague, row(study, "DynQR").clear
    assert vague is not None
    assert clear is not None
    assert vague.n + clear.n == len(records)
    assert vague.count + clear.count == sum(right)


def test_claims_hold_for_a_reader_whose_doubt_tells(study: DynQRStudy) -> None:
    assert [claim.statement for claim in study.claims if not claim.holds] == []
    assert len(study.claims) == 12


def test_claims_fail_for_a_reader_that_is_surest_when_wrong() -> None:
    def overconfident(record: Record) -> Record:
        def turned(attempt: Any) -> Any:
            if attempt is None:
                return None
            return replace(attempt, uncertainty={m: -u for m, u in attempt.uncertainty.items()})

        names = ("original", "substitute", "expand", "golden")
        return replace(record, **{name: turned(getattr(record, name)) for name in names})

    records = [overconfident(record) for record in imagined_records()]
    held = {claim.statement: claim.holds for claim in imagined_study(records).claims}
    assert not next(holds for statement, holds in held.items() if "Figure 3" in statement)
    assert not next(holds for statement, holds in held.items() if "(substitute)" in statement)


def test_kinds_share_the_questions_out(study: DynQRStudy) -> None:
    rows = {one.kind: one for one in study.kinds}
    assert list(rows) == ["under-specified", "clear", "single-hop", "two-hop"]
    assert rows["clear"].n == rows["single-hop"].n + rows["two-hop"].n
    assert rows["under-specified"].n + rows["clear"].n == len(study.records)
    only = [record for record in study.records if record.kind == "two-hop"]
    assert [one.kind for one in kind_rows(only, 1.2)] == ["clear"]


def test_the_sweep_runs_from_rewriting_all_to_rewriting_none(study: DynQRStudy) -> None:
    points = {point.threshold: point for point in study.sweep}
    assert {1.0, 1.1, 1.2, 1.3, 1.4} <= set(points)
    assert [point.threshold for point in study.sweep] == sorted(points)
    assert study.sweep[0].rewritten.value == 1
    assert study.sweep[0].substitute == row(study, "w/o pre-check").accuracy
    assert study.sweep[-1].rewritten.value == 0
    assert study.sweep[-1].expand == row(study, "Original query", None).accuracy


def test_an_answer_without_a_word_is_rewritten_at_every_threshold() -> None:
    records = imagined_records(60)
    silent = dict.fromkeys(records[0].original.uncertainty, math.inf)
    records[0] = replace(records[0], original=replace(records[0].original, uncertainty=silent, correct=False))
    assert sweep(records)[-1].rewritten.count == 1
    json.loads(to_json(imagined_study(records)), parse_constant=pytest.fail)


def test_calibration_takes_the_careful_end_and_keeps_the_loss_small() -> None:
    records = imagined_records(500, seed=3)
    for metric in ("perplexity", "energy"):
        found = calibrated(records, "substitute", metric)
        assert found.threshold.value == found.threshold.low <= found.threshold.high
        always = [outcome_of(record, ALWAYS, "substitute", metric).attempt.correct for record in records]
        assert found.reference == pytest.approx(sum(always) / len(always))
        assert found.accuracy >= found.reference - MAX_LOSS
        assert 0 < found.rate < 1
    # Energies are those of the other metrics, shifted: the same questions are above the threshold.
    assert (
        calibrated(records, "substitute", "energy").rate
        == calibrated(records, "substitute", "perplexity").rate
    )


def test_figure_three_counts_falls_among_those_that_lacked_a_gold_passage(study: DynQRStudy) -> None:
    changed = [record for record in study.records if record.golden is not None]
    total = gold_rows(study.records)[0]
    assert (total.kind, total.falls.n) == ("all", len(changed))
    assert total.falls.count == sum(
        record.golden.uncertainty["perplexity"] < record.original.uncertainty["perplexity"]
        for record in changed
        if record.golden is not None
    )
    assert total.change.value == pytest.approx(total.after - total.before)
    assert sum(one.falls.n for one in gold_rows(study.records)[1:]) == total.falls.n


def test_stages_are_compared_with_the_one_before_and_rewards_with_the_distilled() -> None:
    training = imagined_training()
    assert [one.stage for one in training.stages][-1] == "aligned, uncertainty"
    changes = [one.against_previous for one in training.stages]
    assert changes[0] is None
    assert [round(change.value, 6) for change in changes[1:] if change is not None] == [-0.1, -0.4, -0.3]
    for other in training.rewards:
        assert other.against_previous is not None
        assert other.against_previous.value == pytest.approx(-0.3)
    assert [claim.holds for claim in training_claims(training)] == [True] * 3


def test_queries_without_two_answers_leave_nothing_to_compare() -> None:
    silent = examined("base", [math.inf, math.inf], [False, False])
    rows = stage_rows([silent, silent, silent], [silent])
    assert [one.against_previous for one in rows.stages] == [None] * 4
    training = TrainingStudy("b", "t", 1, 1, 2, 8, rows.stages, rows.rewards, 1.0)
    assert [claim.holds for claim in training_claims(training)][:2] == [False, False]
    assert "n/a" not in shown(study_tables(imagined_study(imagined_records(80), training)))


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_the_terminal(study: DynQRStudy, width: int) -> None:
    text = shown(study_tables(study), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_every_number_shown_is_in_the_json(study: DynQRStudy) -> None:
    stored = json.loads(to_json(study))
    del stored["records"]
    known = {
        text
        for number in numbers(stored)
        for scale in (1, 100, 1 / 60)
        for text in (f"{abs(number) * scale:.{digits}f}" for digits in range(5))
    }
    text = shown(study_tables(study), 200)
    body = re.sub(r"seed \d+|\(cf\.[^)]*\)|\((Figure|Table) \d\)", "", text).replace(",", "")
    missing = [token for token in re.findall(r"\d+(?:\.\d+)?", body) if token not in known]
    assert missing == []
