"""Worlds that mislead do so exactly where they say, and leave everything else as it is."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType

import pytest

from surerag.errors import ConfigurationError
from surerag.world import Cell, Hazard, Question, QuestionKind, Source, World, WorldSpec, is_correct
from surerag.world.core import core_facts
from surerag.world.regimes import REGIMES, TODAY, regime

SINGLE = QuestionKind.SINGLE
EVERYTHING = WorldSpec(
    mix=MappingProxyType(
        {
            Cell(SINGLE, Source.CORE): 0.1,
            Cell(SINGLE, Source.CORE, Hazard.OUTDATED_LEAD): 0.1,
            Cell(SINGLE, Source.CORE, Hazard.LOUD): 0.05,
            Cell(SINGLE, Source.LEAD): 0.1,
            Cell(SINGLE, Source.LEAD, Hazard.ALTERED): 0.1,
            Cell(SINGLE, Source.LEAD, Hazard.LOUD): 0.1,
            Cell(SINGLE, Source.LEAD, Hazard.NAMESAKE): 0.1,
            Cell(SINGLE, Source.LEAD, Hazard.CHANGED): 0.05,
            Cell(SINGLE, Source.DEEP, Hazard.CHANGED): 0.1,
            Cell(SINGLE, Source.DEEP, Hazard.CROWDED): 0.05,
            Cell(SINGLE, Source.DEEP, Hazard.OUTDATED_LEAD): 0.1,
            Cell(QuestionKind.TWO_HOP, Source.DEEP): 0.05,
        }
    )
)


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=6, size=160, spec=EVERYTHING)


@pytest.fixture(scope="module")
def questions(world: World) -> tuple[Question, ...]:
    return world.questions(300)


def of(questions: tuple[Question, ...], hazard: Hazard, source: Source | None = None) -> list[Question]:
    found = [q for q in questions if q.hazard is hazard and source in (None, q.source)]
    assert found
    return found


def test_the_mix_is_that_of_the_spec(questions: tuple[Question, ...]) -> None:
    cells = Counter(Cell(q.kind, q.source, q.hazard) for q in questions)
    assert cells == {cell: round(300 * share) for cell, share in EVERYTHING.mix.items()}


def test_gold_passages_tell_the_answer_and_misleading_ones_another(
    world: World, questions: tuple[Question, ...]
) -> None:
    for question in questions:
        answer = question.answers[0]
        for name in question.utilities:
            if question.hops == 1:
                assert answer in world.passage[name].text
        for name in question.misleading:
            claims = world.contexts.claims_of(world.passage[name])
            about = [f for f in claims if f.entity == question.entity and f.value in world.passage[name].text]
            assert any(
                f.relation.value is question.value_kind and not is_correct(question, f.value) for f in about
            )


def test_every_hazard_but_change_and_crowding_has_passages_that_mislead(
    questions: tuple[Question, ...],
) -> None:
    for question in questions:
        expected = question.hazard not in (None, Hazard.CHANGED, Hazard.CROWDED)
        assert bool(question.misleading) == expected, question


def test_what_has_changed_is_remembered_as_it_was(world: World, questions: tuple[Question, ...]) -> None:
    taught = {(fact.entity, fact.value) for fact in core_facts().values()}
    for question in of(questions, Hazard.CHANGED):
        assert question.recalled is not None
        assert (question.entity, question.recalled) in taught
        assert not is_correct(question, question.recalled)
        assert not question.taught
        assert set(question.utilities.values()) == {1.0}
    assert all(q.recalled is None for q in questions if q.hazard is not Hazard.CHANGED)


def test_an_outdated_summary_says_what_was_and_deeper_passages_what_is(
    world: World, questions: tuple[Question, ...]
) -> None:
    for question in of(questions, Hazard.OUTDATED_LEAD):
        [lead] = [world.passage[name] for name in question.misleading]
        assert lead.metadata["part"] == "lead"
        assert len(question.utilities) == 2
        assert all(world.passage[name].metadata["part"] == "deep" for name in question.utilities)
        assert set(question.utilities.values()) == {0.0 if question.source is Source.CORE else 1.0}


def test_altered_copies_differ_from_the_original_in_one_detail(
    world: World, questions: tuple[Question, ...]
) -> None:
    for question in of(questions, Hazard.ALTERED):
        [gold] = [world.passage[name].text for name in question.gold_passages]
        copies = {world.passage[name].text for name in question.misleading}
        assert len(copies) == 1
        words = [text.replace(".", " ").replace(",", " ").split() for text in (gold, *copies)]
        [(was, now)] = [pair for pair in zip(*words, strict=True) if len(set(pair)) == 2]
        assert was == question.answers[0]
        assert not is_correct(question, now)


def test_loud_errors_repeat_the_question_and_crowding_pages_answer_nothing(
    world: World, questions: tuple[Question, ...]
) -> None:
    for question in of(questions, Hazard.LOUD):
        texts = [world.passage[name].text for name in question.misleading]
        assert len(texts) == 2
        assert all("?" in text or text.startswith("Tell me") for text in texts)
    for question in of(questions, Hazard.CROWDED):
        about = [p for p in world.passages if p.metadata["title"] == question.entity]
        silent = [p for p in about if not world.contexts.facts_of(p) and not world.contexts.claims_of(p)]
        assert len(silent) >= 3
        assert not any(question.answers[0] in p.text for p in silent)


def test_a_namesake_has_an_article_of_its_own_under_the_same_name(
    world: World, questions: tuple[Question, ...]
) -> None:
    for question in of(questions, Hazard.NAMESAKE):
        titled = [d for d in world.documents if d.title == question.entity]
        assert len(titled) == len({d.id for d in titled}) == 2
        assert len({d.lead for d in titled}) == 2
        home = {world.passage[n].metadata["document"] for n in question.gold_passages}
        other = {world.passage[n].metadata["document"] for n in question.misleading}
        assert home.isdisjoint(other)


def test_passages_and_documents_have_ids_of_their_own(world: World) -> None:
    assert len({p.id for p in world.passages}) == len(world.passages)
    assert len({d.id for d in world.documents}) == len(world.documents)
    for document in world.documents:
        assert all(p.metadata["document"] == document.id for p in document.passages)


def test_chains_rest_on_nothing_that_misleads(world: World) -> None:
    for question in world.questions(15, [QuestionKind.TWO_HOP]):
        assert question.hazard is None
        assert not question.misleading


def test_a_world_that_misleads_is_the_same_for_the_same_seed(questions: tuple[Question, ...]) -> None:
    again = World(seed=6, size=160, spec=EVERYTHING)
    assert again.questions(300) == questions
    assert World(seed=7, size=160, spec=EVERYTHING).questions(300) != questions


def test_a_paraphrase_of_what_misleads_misleads(world: World, questions: tuple[Question, ...]) -> None:
    for question in of(questions, Hazard.LOUD):
        passage = world.passage[question.misleading[0]]
        [claim] = world.contexts.claims_of(passage)
        assert claim.value in world.contexts.paraphrase(passage).text


@pytest.mark.parametrize("name", [*REGIMES, TODAY.name])
def test_a_regime_has_questions_of_all_its_cells(name: str) -> None:
    which = regime(name)
    assert sum(which.spec.mix.values()) == pytest.approx(1.0)
    world = World(seed=8, size=120, spec=which.spec)
    cells = Counter(Cell(q.kind, q.source, q.hazard) for q in world.questions(300))
    assert set(cells) == set(which.spec.mix)


def test_today_misleads_nobody() -> None:
    questions = World(seed=8, size=60).questions(80)
    assert {q.hazard for q in questions} == {None}
    assert not any(q.misleading or q.recalled for q in questions)


def test_an_unknown_regime_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="namesakes"):
        regime("namesake")


@pytest.mark.parametrize(
    ("cell", "share", "message"),
    [
        (Cell(SINGLE, Source.LEAD), -0.1, "share"),
        (Cell(QuestionKind.TWO_HOP, Source.DEEP, Hazard.LOUD), 0.1, "no hazards"),
        (Cell(SINGLE, Source.CORE, Hazard.CHANGED), 0.1, "cannot go with"),
        (Cell(SINGLE, Source.LEAD, Hazard.OUTDATED_LEAD), 0.1, "cannot go with"),
    ],
)
def test_a_mix_that_no_world_can_hold_is_refused(cell: Cell, share: float, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WorldSpec(mix={cell: share})
