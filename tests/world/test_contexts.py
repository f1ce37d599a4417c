"""Contexts hold what was asked for: gold, noise, repetitions, contradictions."""

from __future__ import annotations

import pytest

from surerag.errors import ConfigurationError
from surerag.world import Question, World


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=4, size=120)


@pytest.fixture(scope="module")
def questions(world: World) -> tuple[Question, ...]:
    return world.questions(40)


@pytest.mark.parametrize("k", [2, 5, 10, 20])
def test_a_context_has_k_passages_gold_among_them(
    world: World, questions: tuple[Question, ...], k: int
) -> None:
    for question in questions:
        names = [p.id for p in world.context(question, k)]
        assert len(names) == len(set(names)) == k
        assert set(question.gold_passages) <= set(names)


def test_noise_has_nothing_to_do_with_the_question(world: World, questions: tuple[Question, ...]) -> None:
    for question in questions:
        needed = {world.passage[name].metadata["title"] for name in question.gold_passages}
        others = [p for p in world.context(question, 8, noise=1.0) if p.id not in question.gold_passages]
        assert not needed & {p.metadata["title"] for p in others}


def test_without_noise_distractors_are_hard(world: World, questions: tuple[Question, ...]) -> None:
    hard = 0
    for question in questions:
        needed = {world.passage[name].metadata["title"] for name in question.gold_passages}
        others = [p for p in world.context(question, 6, noise=0.0) if p.id not in question.gold_passages]
        hard += any(p.metadata["title"] in needed for p in others)
    assert hard > len(questions) * 0.8


def test_repetitions_say_the_same_in_other_words(world: World, questions: tuple[Question, ...]) -> None:
    for question in questions:
        passages = world.context(question, 10, redundancy=0.5)
        doubles = [p for p in passages if "~" in p.id]
        assert len(doubles) == 5
        for double in doubles:
            source = world.passage[double.id.split("~")[0]]
            values = [fact.value for fact in world.contexts.facts_of(source)]
            assert all(value in double.text for value in values)


def test_a_stale_passage_contradicts_and_says_that_it_is_stale(
    world: World, questions: tuple[Question, ...]
) -> None:
    for question in questions:
        stale = [p for p in world.context(question, 5, stale=True) if p.id.endswith("!stale")]
        assert len(stale) == 1
        assert question.answers[0] not in stale[0].text.split(" that ", 1)[1]
        assert stale[0].metadata["outdated"]


def test_a_lacking_context_holds_no_gold(world: World, questions: tuple[Question, ...]) -> None:
    for question in questions:
        passages = world.contexts.lacking(question, 5)
        assert len({p.id for p in passages}) == 5
        assert not {p.id for p in passages} & set(question.gold_passages)


def test_a_corpus_has_the_redundancy_asked_for(world: World, questions: tuple[Question, ...]) -> None:
    corpus = world.contexts.corpus(redundancy=0.5, stale=questions[:3])
    doubles = sum("~" in p.id for p in corpus)
    assert doubles == len(world.passages)
    assert sum(p.id.endswith("!stale") for p in corpus) == 3
    assert len({p.id for p in corpus}) == len(corpus)


@pytest.mark.parametrize("arguments", [{"k": 0}, {"noise": 1.5}, {"redundancy": -0.1}])
def test_impossible_contexts_are_refused(
    world: World, questions: tuple[Question, ...], arguments: dict[str, float]
) -> None:
    with pytest.raises(ConfigurationError):
        world.context(questions[0], **arguments)
