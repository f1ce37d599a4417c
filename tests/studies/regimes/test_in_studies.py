"""The studies in a regime, and what their tables say of a real reader."""

from __future__ import annotations

import json

import pytest

from surerag.encoders import HashingEncoder
from surerag.evaluation.serialise import to_json
from surerag.world import Hazard, World
from surerag.world.regimes import REGIMES, TODAY, Regime, regime
from surerag_studies.dense_rag.cases import needed_facts
from surerag_studies.dense_rag.study import dense_study
from surerag_studies.dense_rag.tables import study_tables as dense_tables
from surerag_studies.dynqr.study import dynqr_study
from surerag_studies.dynqr.tables import study_tables as dynqr_tables
from surerag_studies.edc2.contexts import Cell, Condition, draw
from surerag_studies.edc2.study import compression_study
from surerag_studies.edc2.tables import study_tables as edc2_tables
from surerag_studies.lazy_rag.study import lazy_rag_study
from surerag_studies.lazy_rag.tables import study_tables as lazy_rag_tables
from surerag_studies.seper.contexts import Role, known_contexts
from surerag_studies.seper.study import seper_study
from surerag_studies.seper.tables import study_tables as seper_tables
from surerag_studies.transfer import carrying
from surerag_studies.worlds import world_of
from tests.studies.dense_rag.truthful import truthful
from tests.studies.dynqr.searching import searching
from tests.studies.seper.knowing import KnowingReader
from tests.studies.showing import shown
from tests.world.clairvoyant import clairvoyant

N = 60
NAMESAKES = regime("namesakes")
SAYS = "Carries over to a real reader:"


def worlds(which: Regime) -> list[World]:
    return [world_of(which, N, seed) for seed in (5, 6)]


def as_printed(text: str) -> str:
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    return " ".join(text.split())


def test_l_rag_counts_what_misleads_apart() -> None:
    reader = clairvoyant(*worlds(NAMESAKES), n=N)
    study = lazy_rag_study(reader, HashingEncoder(), seed=5, n=N, regime=NAMESAKES).study
    text = as_printed(shown(lazy_rag_tables(study)))
    assert "L-RAG on the closed world, regime namesakes, seed 5" in text
    kinds = {row.kind: row for row in study.kinds}
    assert {"lead, namesake", "deep, outdated summary", "single-hop, core"} <= kinds.keys()
    assert json.loads(to_json(study))["regime"] == "namesakes"
    # Tables I to III, by kind, separation, sweep, two of gates, and claims.
    assert text.count(SAYS) == 8


def test_dynqr_is_asked_in_the_worlds_of_the_regime() -> None:
    reader = searching(*worlds(NAMESAKES), n=N)
    study = dynqr_study(reader, HashingEncoder(), seed=5, n=N, regime=NAMESAKES)
    text = as_printed(shown(dynqr_tables(study)))
    assert "DynQR on the closed world, regime namesakes, seed 5" in text
    assert study.regime == "namesakes"
    asked = [question.id for question in world_of(NAMESAKES, N, 5).questions(N)]
    assert [record.id for record in study.records] == asked
    assert text.count(SAYS) == 8


def test_seper_measures_what_another_answer_is_worth() -> None:
    world = world_of(regime("loud-errors"), N, 5)
    study = seper_study(KnowingReader(world), HashingEncoder(), seed=5, n=N, regime=regime("loud-errors"))
    text = as_printed(shown(seper_tables(study)))
    assert "SePer on the closed world, regime loud-errors, seed 5" in text
    rows = {(row.questions, row.role): row for row in study.roles}
    misled = rows["single-hop", Role.MISLEADING.value]
    assert misled.utility == 0.0
    assert misled.delta.value < rows["single-hop", Role.GOLD.value].delta.value
    assert text.count(SAYS) == 7


def test_contexts_that_mislead_are_kept_apart_from_other_distractors() -> None:
    world = world_of(regime("mixed"), N, 5)
    questions = world.questions(N, ["single-hop"])
    for question in questions:
        contexts = known_contexts(world, question)
        misled = [c for c in contexts if c.role is Role.MISLEADING]
        assert len(misled) == bool(question.misleading)
        assert all(c.utility == 0.0 and c.passages[0].id == question.misleading[0] for c in misled)
        others = [p.id for c in contexts if c.role is not Role.MISLEADING for p in c.passages]
        assert not set(others) & set(question.misleading)
    assert any(question.hazard is Hazard.NAMESAKE for question in questions)


def test_todays_world_has_its_usual_size_whatever_is_asked() -> None:
    assert repr(world_of(TODAY, 10, 3)) == repr(World(seed=3))
    assert world_of(NAMESAKES, 10, 3).size < world_of(NAMESAKES, 800, 3).size < World(seed=3).size


def test_a_table_keeps_its_own_caption_above_what_carries_over() -> None:
    from surerag.evaluation.formatting import plain_table

    table = plain_table("A")
    table.caption = "Its own."
    assert str(carrying(table, None, "sizes").caption) == (
        "Its own.\nCarries over to a real reader: nothing here. Does not: sizes."
    )


def test_edc2_puts_what_misleads_into_its_contexts() -> None:
    world = world_of(NAMESAKES, N, 5)
    questions = [question for question in world.questions(N) if question.misleading]
    assert questions
    for question in questions:
        noisy = {one.id for one in draw(world, question, Condition("noise", 5, 0.8))}
        assert noisy & set(question.misleading) and set(question.gold_passages) <= noisy
        clean = [one.id for one in draw(world, question, Condition("noise", 5, 0.0))]
        assert not set(clean) & set(question.misleading)
    reader = clairvoyant(world, n=N)
    grid = (Cell(Condition("noise", 5, 0.8), ("plain", "dynamic")),)
    study = compression_study(reader, HashingEncoder(), seed=5, n=20, grid=grid, large=None, regime=NAMESAKES)
    text = as_printed(shown(edc2_tables(study)))
    assert "EDC²-RAG on the closed world, regime namesakes, seed 5" in text
    assert study.regime == "namesakes"


def test_dense_is_measured_on_corpora_that_mislead() -> None:
    loud = regime("loud-errors")
    world = world_of(loud, 24, 5)
    study = dense_study(truthful(world, 24), HashingEncoder(), seed=5, n=24, entailment="exact", regime=loud)
    text = " ".join(shown(dense_tables(study)).split())
    assert "DENSE-RAG on the closed world, regime loud-errors, seed 5" in text
    assert (study.regime, study.n) == ("loud-errors", 24)
    assert study.corpus > len(world.passages)


@pytest.mark.parametrize("name", REGIMES)
def test_every_question_of_a_regime_says_which_facts_it_needs(name: str) -> None:
    world = world_of(regime(name), N, 5)
    for question in world.questions(N):
        facts = needed_facts(world, question)
        assert len(facts) == question.hops and facts[-1].value == question.answers[0]
