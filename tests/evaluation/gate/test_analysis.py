"""From records to what a gate does, on records made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

from surerag.evaluation.gate.analysis import lazy_pass, thresholds
from surerag.evaluation.gate.results import Pass
from tests.evaluation.gate.imagined import imagined_records, imagined_report, record


def test_gate_that_stays_shut_costs_the_first_pass_alone() -> None:
    assert lazy_pass(record(0.4, first=True), threshold=0.4, gate_tokens=8) == Pass(True, 70, 70, 12)


def test_gate_that_opens_has_read_both_prompts_and_wasted_its_tokens() -> None:
    opened = lazy_pass(record(0.4, first=False), threshold=0.39, gate_tokens=8)
    expected = Pass(correct=True, answer_tokens=165, prompt_tokens=235, completion_tokens=13, calls=2)
    assert opened == expected


def test_wasted_tokens_are_no_more_than_there_were() -> None:
    short = replace(record(1.0, first=False), first=Pass(False, 70, 70, 3))
    assert lazy_pass(short, threshold=0.5, gate_tokens=8).completion_tokens == 8


def test_lazy_rows_lie_between_first_pass_and_strong() -> None:
    report = imagined_report()
    rows = {row.label: row for row in report.modes}
    chosen = rows["L-RAG (calibrated)"]
    assert chosen.threshold == 0.6
    assert rows["Summaries only"].accuracy.value < chosen.accuracy.value <= rows["Strong RAG"].accuracy.value
    assert chosen.retrieval is not None
    assert 0 < chosen.retrieval.value < 1
    assert rows["Oracle"].retrieval is None


def test_sweep_ends_at_strong_and_at_summaries_only() -> None:
    report = imagined_report()
    rows = {row.label: row for row in report.modes}
    assert report.sweep[0].retrieval.value == 1
    assert report.sweep[0].accuracy == rows["Strong RAG"].accuracy
    assert report.sweep[-1].retrieval.value == 0
    assert report.sweep[-1].accuracy == rows["Summaries only"].accuracy


def test_silent_first_pass_always_retrieves_and_has_no_entropy_to_compare() -> None:
    records = [*imagined_records(), record(math.inf, first=False)]
    report = imagined_report(records)
    assert report.separation is not None
    assert report.separation.n_high + report.separation.n_low == len(records) - 1
    assert report.sweep[-1].retrieval.count == 1


def test_thresholds_cover_the_papers_and_the_entropies_seen() -> None:
    found = thresholds([record(value, first=True) for value in (0.01, 0.02, 0.03)])
    assert {0.0, 0.5, 1.0, 1.5, 0.01, 0.02, 0.03} <= set(found)
    assert list(found) == sorted(found)
