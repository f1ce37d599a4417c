"""The queries of each stage, and what rewriters are measured by."""

from __future__ import annotations

import math

import pytest

from surerag import ScriptedReader
from surerag.encoders import HashingEncoder
from surerag.world.world import World
from surerag_studies.dynqr.study import index_world
from surerag_studies.dynqr.training import TrainingPlan, draw_queries, examine
from tests.studies.dynqr.searching import searching

PLAN = TrainingPlan(distil=40, align=60, held_out=50)


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return [World(seed=seed, size=120) for seed in (3, 5, 6)]


def test_no_stage_learns_what_is_held_out_nor_a_query_twice(worlds: list[World]) -> None:
    held_out, first, second = worlds
    found = draw_queries(held_out, first, second, PLAN)
    assert (len(found.held_out), len(found.distil), len(found.align)) == (50, 40, 60)
    held = {(question.entity, question.rewrite) for question in found.held_out}
    for question in (*found.distil, *found.align):
        assert (question.entity, question.rewrite) not in held
    texts = [question.text for question in (*found.held_out, *found.distil, *found.align)]
    assert len(set(texts)) == len(texts)
    assert all(question.rewrite for question in (*found.held_out, *found.distil))
    assert found == draw_queries(held_out, first, second, PLAN)


def test_a_good_rewriter_is_told_from_a_bad_one(worlds: list[World]) -> None:
    world = worlds[0]
    questions = world.questions(60)
    vague = [question for question in questions if question.rewrite]
    reader, index = searching(world, n=60), index_world(world, HashingEncoder())
    good = examine(vague, reader, reader, index, False)
    assert all(item.usable and item.clear for item in good)
    silent = examine(vague, reader, ScriptedReader(lambda _: ""), index, False)
    none = examine(vague, reader, None, index, False)
    # A reply that is no query leaves the original query in its place.
    assert silent == none
    assert not any(item.usable or item.clear for item in silent)
    wrong = examine(vague, reader, ScriptedReader(lambda _: "What is the weather?"), index, False)
    assert all(item.usable and not item.clear for item in wrong)
    for other in (silent, wrong):
        assert sum(item.correct for item in good) > sum(item.correct for item in other) + len(vague) / 3
        assert sum(item.uncertainty for item in good) < sum(item.uncertainty for item in other)


def test_an_answer_without_a_word_is_infinitely_uncertain(worlds: list[World]) -> None:
    vague = worlds[0].questions(5, ["under-specified"])
    index = index_world(worlds[0], HashingEncoder())
    found = examine(vague, ScriptedReader(lambda _: ""), None, index, False)
    assert {item.uncertainty for item in found} == {math.inf}
