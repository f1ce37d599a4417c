"""From a gate's report to findings, on records made by hand."""

from __future__ import annotations

from dataclasses import replace

from tests.evaluation.gate.imagined import imagined_records, record
from tests.studies.lazy_rag.imagined import imagined_study


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


def test_reader_that_is_never_wrong_has_nothing_to_separate() -> None:
    study = imagined_study([record(0.1 * number, first=True) for number in range(10)])
    assert study.separation is None
    assert not study.claims[0].holds
