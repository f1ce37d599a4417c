"""The study of decisions: what it counts, and that its tables print what was found."""

from __future__ import annotations

import json

import numpy as np
import pytest

from surerag.evaluation.serialise import to_json
from surerag_studies.decisions import study as module
from surerag_studies.decisions.sources import Kind, Source, simulated
from surerag_studies.decisions.study import _auroc, _gain, decision_study
from surerag_studies.decisions.tables import study_tables
from tests.studies.showing import shown

TOLD = Kind("told", 0.5, 0.5, 0.1, 2.0)


@pytest.fixture(scope="module")
def world() -> Source:
    drawn = simulated(TOLD, 500, np.random.default_rng(3))
    return Source("world", False, drawn.names, drawn.signals, drawn.without, drawn.with_)


@pytest.fixture(scope="module")
def found(world: Source) -> module.DecisionStudy:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "KINDS", (TOLD,))
        patched.setattr(module, "LARGE", 4000)
        patched.setattr(module, "STREAM", 700)
        return decision_study(None, seed=1, splits=20, streams=10, worlds=[world])


def test_the_certified_rule_keeps_its_promise_and_the_largest_on_the_sample_does_not(
    found: module.DecisionStudy,
) -> None:
    rows = {(row.source, row.confidence, row.rule): row for row in found.promises}
    certified, largest = rows["told", 0.95, "certified"], rows["told", 0.95, "sample's largest"]
    assert certified.broken <= 0.05 + certified.error < largest.broken
    assert largest.rate < certified.rate
    assert certified.broken_on_rest is None and rows["world", 0.95, "certified"].broken_on_rest is not None
    assert rows["told", 0.95, "Hoeffding-Bentkus"].rate == 1.0
    assert ("told", 0.9, "betting") not in rows and ("told", 0.9, "normal approx.") in rows
    assert 0 < certified.best_rate < certified.rate


def test_gates_answers_and_streams_are_those_of_the_sources(found: module.DecisionStudy) -> None:
    assert [(row.source, row.signal) for row in found.gates] == [
        ("world", "doubt"),
        ("world", "benefit, cross-fitted"),
    ]
    doubt = found.gates[0]
    assert doubt.auroc_wrong > 0.85 and doubt.shown and doubt.gains[1][0] > 5
    assert {row.max_risk for row in found.answers} == set(module.RISKS)
    for row in found.answers:
        assert row.broken <= 0.05 + 2 * (0.05 * 0.95 / row.splits) ** 0.5
        assert row.coverage == 0 or row.risk <= row.max_risk
    none, *shifted = found.monitors
    assert (none.shift, none.streams, none.delay is None or none.alarms > 0) == (0, 10, True)
    assert shifted[-1].alarms == 1.0 and 0 < shifted[-1].delay < 200


def test_the_tables_print_what_was_found(found: module.DecisionStudy) -> None:
    text = shown(study_tables(found), width=200)
    for row in found.promises:
        assert row.rule in text
    assert "12.21 %" in text and f"{100 * found.promises[0].rate:.1f} %" in text
    assert json.loads(to_json(found))["splits"] == 20


def test_a_gain_is_that_of_acting_at_exactly_the_rate_though_signals_are_equal() -> None:
    benefit = np.array([1.0, 1.0, 0.0, 0.0] * 50)
    # The upper half has one signal: at 25 %, half of it acts.
    values = np.array([1.0, 1.0, 0.0, 0.0] * 50)
    assert _gain(values, benefit, 0.25)[0] == pytest.approx(12.5)
    assert _gain(values, benefit, 0.5)[0] == pytest.approx(25.0)
    assert _gain(np.zeros(200), benefit, 0.75)[0] == pytest.approx(0.0)
    distinct = np.arange(200.0)
    assert _gain(distinct, (distinct >= 150).astype(float), 0.25)[0] == pytest.approx(100 * 0.25 * 0.75)


def test_auroc_counts_pairs_and_half_of_ties() -> None:
    assert _auroc(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True])) == 0.875
