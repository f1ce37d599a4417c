"""The monitor: quiet where nothing changed, loud where something did, and the same after a restart."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from surerag.decisions.monitor import Alarm, Monitor

from surerag import FakeReader, LazyRAG, Passage, UncertaintyRewriter
from surerag.decisions.policy import Identity
from surerag.decisions.rows import DecisionRow
from surerag.errors import ConfigurationError, InputError
from surerag.readers.fake import reply
from tests.decisions.samples import policy


def made(rng: np.random.Generator, **settings: Any) -> Monitor:
    mine = policy(0.5, target="loss", max_loss=0.02, budget=None)
    return Monitor(mine, rng.standard_normal(200).tolist(), seed=int(rng.integers(1e6)), **settings)


def test_false_alarms_are_as_rare_as_stated() -> None:
    rng = np.random.default_rng(1)
    alarmed = 0
    for _ in range(60):
        monitor = made(rng, false_alarms=0.2)
        for value in rng.standard_normal(400):
            monitor.decide(float(value))
            benefit = int(rng.choice([-1, 0, 1], p=[0.05, 0.89, 0.06]))
            monitor.judge(float(value), float(benefit < 0), float(benefit > 0))
        alarmed += bool(monitor.alarms)
    assert alarmed / 60 <= 0.2 + 2.33 * math.sqrt(0.16 / 60)


def test_a_shift_of_the_signal_is_found_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(2)
    heard: list[Alarm] = []
    monitor = made(rng, on_alarm=heard.append)
    for value in rng.standard_normal(300):
        monitor.decide(float(value))
    assert heard == []
    with caplog.at_level(logging.WARNING, logger="surerag"):
        for value in rng.standard_normal(300) + 1:
            monitor.decide(float(value))
    assert {alarm.watched for alarm in heard} == {"signal", "rate"} == {one.watched for one in monitor.alarms}
    assert all(300 < alarm.n < 450 and alarm.evidence >= alarm.limit == 60 for alarm in heard)
    rate = next(alarm for alarm in heard if alarm.watched == "rate")
    assert rate.expected is not None and rate.observed is not None and rate.observed > rate.expected
    assert len([record for record in caplog.records if "no longer as calibrated" in record.message]) == 2


def test_losses_on_audited_questions_are_found() -> None:
    rng = np.random.default_rng(3)
    monitor = made(rng)
    for _ in range(200):
        monitor.judge(-1.0, correct_without=0.0, correct_with=float(rng.random() < 0.3))
    assert [alarm.watched for alarm in monitor.alarms] == ["loss"]
    assert (monitor.alarms[0].expected, monitor.alarms[0].observed) == (0.02, pytest.approx(0.3, abs=0.15))
    acting = made(rng)
    for _ in range(200):
        acting.judge(2.0, correct_without=0.0, correct_with=1.0)
    assert acting.alarms == ()


def test_a_random_share_is_audited_by_acting() -> None:
    rng = np.random.default_rng(4)
    monitor = made(rng, audit_share=0.1)
    decisions = [monitor.decide(float(value)) for value in np.full(2000, -5.0)]
    assert all(one.act == one.audit for one in decisions)
    assert sum(one.audit for one in decisions) == pytest.approx(200, abs=45)
    assert monitor.decide(None).act


def test_state_goes_on_where_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    monitor, values = made(rng), [*rng.standard_normal(100), *(rng.standard_normal(200) + 1)]
    for value in values[:150]:
        monitor.decide(float(value))
    monitor.decide(None)
    monitor.judge(-1.0, 0.0, 1.0)
    monitor.save(tmp_path / "monitor.json")
    json.loads((tmp_path / "monitor.json").read_text(), parse_constant=pytest.fail)
    again = Monitor.load(tmp_path / "monitor.json")
    assert again.to_dict() == monitor.to_dict()
    assert [again.decide(float(v)) for v in values[150:]] == [monitor.decide(float(v)) for v in values[150:]]
    assert again.to_dict() == monitor.to_dict()
    assert again.alarms == monitor.alarms != ()
    (tmp_path / "x.json").write_text('{"policy": 3}')
    with pytest.raises(InputError, match="expected the state of a monitor"):
        Monitor.load(tmp_path / "x.json")
    with pytest.raises(InputError, match="holds no monitor"):
        Monitor.load(tmp_path / "none.json")


def test_memory_does_not_grow_with_the_stream() -> None:
    rng = np.random.default_rng(6)
    monitor = made(rng)
    sizes = []
    for _ in range(2):
        for value in rng.standard_normal(3000):
            monitor.decide(float(value))
        sizes.append(len(monitor.to_dict()["signals"]))
    assert sizes[1] < 1.3 * sizes[0]


class Corpus:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage("Detail.")]


def test_a_monitor_listens_to_components() -> None:
    reader = FakeReader(lambda _: reply("Velm", entropy=2.0, logprobs=-1.0), name="one")
    for component in (
        LazyRAG(reader, Corpus(), "Summary.", threshold=1.0),
        UncertaintyRewriter(reader, Corpus(), threshold=1.0),
    ):
        monitor = Monitor(policy(1.0), [0.1] * 100)
        component.with_options(on_event=monitor.watch).run_many(["Where?"] * 100)
        assert monitor.n == 100
        assert {alarm.watched for alarm in monitor.alarms} == {"signal", "rate"}


def test_a_monitor_counts_a_question_once_however_often_it_retrieves() -> None:
    class Growing:
        def retrieve(self, query: str, k: int | None) -> list[Passage]:
            return [Passage(f"Found for {query}.")]

    reader = FakeReader(lambda _: reply("Velm", entropy=2.0), name="one")
    monitor = Monitor(policy(1.0), [2.0] * 100)
    rag = LazyRAG(reader, Growing(), "Summary.", threshold=1.0, max_hops=3, on_event=monitor.watch)
    assert [result.retrievals for result in rag.run_many(["Where?", "When?"])] == [3, 3]
    assert monitor.n == 2


def test_rows_are_a_reference_and_bad_settings_are_refused() -> None:
    mine = policy(0.5, Identity(signal="doubt"))
    rows = [DecisionRow({"doubt": 0.1}), DecisionRow({"doubt": math.inf})]
    assert Monitor(mine, rows).n == 0
    with pytest.raises(InputError, match="no signal 'doubt'"):
        Monitor(mine, [DecisionRow({"other": 0.1})])
    with pytest.raises(InputError, match="no reference"):
        Monitor(mine, [])
    with pytest.raises(ConfigurationError, match="false_alarms must be"):
        Monitor(mine, rows, false_alarms=5)
    with pytest.raises(InputError, match="correct_with must be"):
        Monitor(mine, rows).judge(0.1, 0.0, 2.0)
