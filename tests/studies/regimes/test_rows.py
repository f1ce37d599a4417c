"""Rows of a regime: what the reader knew, and whether it was right, without and with retrieval."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from surerag.decisions.rows import common_signals
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError
from surerag.evaluation.serialise import to_json
from surerag.readers.scripted import ScriptedReader
from surerag.world import Hazard
from surerag.world.regimes import regime
from surerag_studies.regimes import regime_rows
from surerag_studies.regimes.rows import SIGNALS
from surerag_studies.regimes.study import RegimesStudy, like_real, regimes_study
from surerag_studies.regimes.tables import study_tables
from surerag_studies.worlds import world_of
from tests.studies.showing import numbers, shown
from tests.world.clairvoyant import clairvoyant

N = 60


@pytest.fixture(scope="module")
def encoder() -> HashingEncoder:
    return HashingEncoder()


@pytest.fixture(scope="module")
def reader() -> ScriptedReader:
    return clairvoyant(world_of(regime("namesakes"), N, 5), n=N)


def test_a_row_a_question_with_its_signals_and_both_judgements(
    reader: ScriptedReader, encoder: HashingEncoder
) -> None:
    rows = regime_rows("namesakes", N, 5, reader=reader, encoder=encoder)
    questions = world_of(regime("namesakes"), N, 5).questions(N)
    assert [row.id for row in rows] == [question.id for question in questions]
    assert all(row.labelled for row in rows)
    # A scripted reader has no log-sum-exps.
    assert set(common_signals(rows)) == set(SIGNALS) - {"energy"}
    assert {row.correct_without for row in rows} == {True, False}
    assert any(row.benefit > 0 for row in rows)


def test_kept_rows_are_not_asked_for_again(
    reader: ScriptedReader, encoder: HashingEncoder, tmp_path: Path
) -> None:
    rows = regime_rows("namesakes", N, 5, reader=reader, encoder=encoder, cache=tmp_path)

    def refuse(prompt: str) -> str:
        raise AssertionError(prompt)

    silent = ScriptedReader(refuse, name=reader.name, capabilities=reader.capabilities)
    assert regime_rows("namesakes", N, 5, reader=silent, encoder=encoder, cache=tmp_path) == rows
    # Nor are they taken for those of a regime of the same name with other shares.
    spec = regime("namesakes").spec
    other = replace(regime("namesakes"), spec=replace(spec, mix=dict(list(spec.mix.items())[:3])))
    with pytest.raises(AssertionError):
        regime_rows(other, N, 5, reader=silent, encoder=encoder, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_embedded_reader_answers_from_memory_what_has_changed(encoder: HashingEncoder) -> None:
    which = regime("changed-facts")
    rows = {row.id: row for row in regime_rows(which, 100, 5, encoder=encoder)}
    asked = world_of(which, 100, 5).questions(100)
    changed = [rows[q.id] for q in asked if q.hazard is Hazard.CHANGED]
    plain = [rows[q.id] for q in asked if q.taught and q.hazard is None]
    chains = [rows[q.id] for q in asked if q.hops == 2]
    assert sum(bool(row.correct_without) for row in changed) <= len(changed) // 3
    assert all(row.correct_without for row in plain)
    unsure = sorted(row.signals["entropy"] for row in chains)[len(chains) // 2]
    # Wrong, and as sure as of what it knows: far from what it is unsure of.
    assert sorted(row.signals["entropy"] for row in changed)[len(changed) // 2] < unsure / 3
    assert set(common_signals(tuple(rows.values()))) == set(SIGNALS)


def test_an_unknown_regime_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no regime"):
        regime_rows("yesterday", N, 5)


@pytest.fixture(scope="module")
def study(encoder: HashingEncoder) -> RegimesStudy:
    worlds = [world_of(regime(name), N, 5) for name in ("mixed", "loud-errors")]
    reader = clairvoyant(*worlds, n=N)
    return regimes_study(reader, encoder, seed=5, n=N, names=["mixed", "loud-errors"])


def test_the_study_shows_every_world_beside_the_real_reader(study: RegimesStudy) -> None:
    text = shown(study_tables(study))
    assert all(name in text for name in ("mixed", "loud-errors", "NQ", "TriviaQA"))
    assert "Carries over to a real reader" in text
    assert [claim.statement.split(":")[0] for claim in study.claims] == ["mixed", "loud-errors"]
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_every_figure_of_the_study_is_in_its_json(study: RegimesStudy) -> None:
    stored = json.loads(to_json(study))
    assert [world["name"] for world in stored["worlds"]] == ["mixed", "loud-errors"]
    known = set(numbers(stored))
    for one in (*study.worlds, *study.real):
        assert {one.without.value, one.hurts.high, one.gain.low} <= known


def test_a_regime_is_like_real_only_if_every_figure_is(study: RegimesStudy) -> None:
    nq = study.real[0]
    assert like_real(nq).holds
    assert not like_real(replace(nq, hurts=nq.without)).holds
    assert nq.wrong is not None
    assert not like_real(replace(nq, wrong=replace(nq.wrong, value=0.97))).holds
    assert not like_real(replace(nq, benefit=replace(nq.wrong, value=0.9))).holds
