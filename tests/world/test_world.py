"""A world is exact: its questions, passages and utilities say the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from surerag.errors import ConfigurationError
from surerag.world import QuestionKind, Source, World, is_correct
from surerag.world.core import core_facts
from surerag.world.language import count_words

DIGEST = """
import hashlib
from surerag.world import World
world = World(seed=5, size=80)
parts = [d.text for d in world.documents] + [repr(q) for q in world.questions(150)]
parts += [p.text for q in world.questions(20) for p in world.context(q, 6, redundancy=0.3, stale=True)]
print(hashlib.sha256("\\n".join(parts).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=3)


def test_same_seed_same_bytes_in_processes_that_hash_differently() -> None:
    digests = set()
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_seeds_differ_but_share_the_core() -> None:
    one, two = World(seed=1, size=60), World(seed=2, size=60)
    assert set(core_facts().values()) <= set(one.facts)
    assert set(core_facts().values()) <= set(two.facts)
    assert set(one.facts) - set(core_facts().values()) != set(two.facts) - set(core_facts().values())


def test_mix_is_that_of_the_spec(world: World) -> None:
    questions = world.questions(2000)
    assert len({q.text for q in questions}) == len({q.id for q in questions}) == 2000
    sources = Counter(q.source for q in questions)
    kinds = Counter(q.kind for q in questions)
    assert sources == {Source.LEAD: 600, Source.CORE: 300, Source.DEEP: 1100}
    assert kinds[QuestionKind.TWO_HOP] == kinds[QuestionKind.UNDER_SPECIFIED] == 500


def test_passages_are_of_the_promised_length_and_name_their_entity(world: World) -> None:
    for passage in world.passages:
        assert 15 <= count_words(passage.text) <= 30
        for sentence in passage.text.split(".")[:-1]:
            assert passage.metadata["title"] in sentence


def test_gold_passages_tell_the_answer(world: World) -> None:
    for question in world.questions(600):
        texts = [world.passage[name].text for name in question.gold_passages]
        assert question.answers[0] in texts[-1]
        assert len(texts) == question.hops
        if question.kind is not QuestionKind.UNDER_SPECIFIED:
            assert question.entity in question.text and question.entity in texts[0]
        parts = {world.passage[name].metadata["part"] for name in question.gold_passages}
        if question.source is Source.LEAD:
            assert parts == {"lead"}
        if question.source is Source.DEEP:
            assert "deep" in parts


def test_utilities_add_up_to_what_a_reader_can_gain(world: World) -> None:
    for question in world.questions(300):
        assert sum(question.utilities.values()) == (0.0 if question.taught else 1.0)
        assert set(question.utilities) == set(question.gold_passages)


def test_a_two_hop_question_does_not_name_its_intermediate_entity(world: World) -> None:
    for question in world.questions(100, ["two-hop"]):
        middle = str(world.passage[question.gold_passages[1]].metadata["title"])
        assert middle in world.passage[question.gold_passages[0]].text
        assert middle not in question.text


def test_a_rewrite_names_what_a_vague_question_does_not(world: World) -> None:
    for question in world.questions(100, ["under-specified"]):
        assert question.rewrite is not None
        assert question.entity in question.rewrite
        assert question.entity not in question.text


def test_unanswerable_questions_are_answered_nowhere(world: World) -> None:
    for question in world.questions(50, ["unanswerable"]):
        assert not world.is_told(question)
        assert not question.answers and not question.utilities
        assert not is_correct(question, "anything")


def test_held_out_phrasings_are_never_trained_ones(world: World) -> None:
    trained = {q.text for q in world.questions(200, ["single-hop"], sources=["core"], phrasing="trained")}
    held_out = {q.text for q in world.questions(200, ["single-hop"], sources=["core"], phrasing="held-out")}
    assert not trained & held_out


@pytest.mark.parametrize("size", [0, 39, 10_000])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ConfigurationError, match="fresh articles"):
        World(seed=0, size=size)


def test_more_questions_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="larger world"):
        World(seed=0, size=40).questions(50_000)
