"""From records to findings, on records made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

from surerag.evaluation.lazy_rag.analysis import lazy_pass, thresholds
from surerag.evaluation.lazy_rag.results import Pass, Record
from tests.evaluation.synthetic import imagined_records, imagined_study


def record(entropy: float, *, first: bool, strong: bool = True) -> Record:
    return Record(
        id="q",
        kind="lead",
        entropy=entropy,
        first=Pass(first, 70, 70, 12),
        none=Pass(False, 20, 20, 3),
        standard=Pass(True, 110, 110, 4),
        strong=Pass(strong, 165, 165, 5),
        oracle=Pass(True, 120, 120, 4),
    )


def test_gate_that_stays_shut_costs_the_first_pass_alone() -> None:
    assert lazy_pass(record(0.4, first=True), tau=0.4, gate_tokens=8) == Pass(True, 70, 70, 12)


def test_gate_that_opens_has_read_both_prompts_and_wasted_its_tokens() -> None:
    opened = lazy_pass(record(0.4, first=False), tau=0.39, gate_tokens=8)
    assert opened == Pass(correct=True, answer_tokens=165, prompt_tokens=235, completion_tokens=13)


def test_wasted_tokens_are_no_more_than_there_were() -> None:
    short = replace(record(1.0, first=False), first=Pass(False, 70, 70, 3))
    assert lazy_pass(short, tau=0.5, gate_tokens=8).completion_tokens == 8


def test_lazy_rows_lie_between_first_pass_and_strong() -> None:
    study = imagined_study()
    rows = {row.label: row for row in study.modes}
    chosen = rows["L-RAG (calibrated)"]
    assert chosen.tau == 0.6
    assert rows["Summaries only"].accuracy.value < chosen.accuracy.value <= rows["Strong RAG"].accuracy.value
    assert chosen.retrieval is not None
    assert 0 < chosen.retrieval.value < 1
    assert rows["Oracle"].retrieval is None


def test_sweep_ends_at_strong_and_at_summaries_only() -> None:
    study = imagined_study()
    rows = {row.label: row for row in study.modes}
    assert study.sweep[0].retrieval.value == 1
    assert study.sweep[0].accuracy == rows["Strong RAG"].accuracy
    assert study.sweep[-1].retrieval.value == 0
    assert study.sweep[-1].accuracy == rows["Summaries only"].accuracy
    assert study.monotone


def test_table_three_is_the_papers() -> None:
    published = imagined_study().latency.published
    assert [[round(saving) for saving in row.savings] for row in published] == [
        [-34, -10, 30],
        [2, 80, 210],
        [42, 180, 410],
    ]
    assert [round(row.break_even or 0) for row in published] == [625, 192, 109]


def test_gate_that_always_opens_never_breaks_even() -> None:
    study = imagined_study([replace(one, entropy=one.entropy + 9) for one in imagined_records()])
    assert {row.break_even for row in study.latency.measured} == {None}


def test_claims_hold_for_a_reader_that_knows_what_it_knows() -> None:
    assert [claim.holds for claim in imagined_study().claims] == [True] * 5


def test_claims_fail_for_a_reader_that_is_surest_when_wrong() -> None:
    overconfident = [
        replace(one, entropy=2.0 + one.entropy if one.first.correct else one.entropy / 100)
        for one in imagined_records()
    ]
    study = imagined_study(overconfident)
    separation, _, inferior, *_ = study.claims
    assert study.separation is not None
    assert study.separation.auroc.value < 0.1
    assert not separation.holds
    assert not inferior.holds
    assert study.noninferiority.value < -0.1


def test_silent_first_pass_always_retrieves_and_has_no_entropy_to_compare() -> None:
    records = [*imagined_records(), record(math.inf, first=False)]
    study = imagined_study(records)
    assert study.separation is not None
    assert study.separation.n_high + study.separation.n_low == len(records) - 1
    assert study.sweep[-1].retrieval.count == 1


def test_reader_that_is_never_wrong_has_nothing_to_separate() -> None:
    study = imagined_study([record(0.1 * number, first=True) for number in range(10)])
    assert study.separation is None
    assert not study.claims[0].holds


def test_thresholds_cover_the_papers_and_the_entropies_seen() -> None:
    found = thresholds([record(value, first=True) for value in (0.01, 0.02, 0.03)])
    assert {0.0, 0.5, 1.0, 1.5, 0.01, 0.02, 0.03} <= set(found)
    assert list(found) == sorted(found)
