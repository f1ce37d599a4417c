"""What a setting of the method makes of recorded answers, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.types import Passage
from surerag_studies.dynqr.asking import with_gold
from surerag_studies.dynqr.records import ALWAYS, Attempted, Cost, Record, always, outcome_of


def tried(perplexity: float, *, correct: bool = False, tokens: int = 100) -> Attempted:
    uncertainty: dict[Any, float] = {"perplexity": perplexity, "lowest_probability": -perplexity}
    return Attempted("an answer", correct, 0.0, uncertainty, Cost(0, 1, tokens, 2))


RECORD = Record(
    id="q",
    kind="under-specified",
    question="Where does the fox come from?",
    rewrite="Where was Ada born?",
    rewriting="rewritten",
    writing=Cost(0, 1, 30, 7),
    direct=tried(3.0),
    original=tried(1.5, tokens=100),
    substitute=tried(1.1, correct=True, tokens=110),
    expand=tried(1.6, correct=True, tokens=120),
    golden=None,
)


def test_an_answer_at_the_threshold_stands_and_costs_one_search_and_one_call() -> None:
    found = outcome_of(RECORD, 1.5, "substitute")
    assert (found.attempt, found.acted, found.replaced) == (RECORD.original, False, False)
    assert found.cost == Cost(1, 1, 100, 2)


def test_a_less_uncertain_second_answer_is_kept_and_everything_is_paid() -> None:
    found = outcome_of(RECORD, 1.4, "substitute")
    assert (found.attempt, found.acted, found.replaced) == (RECORD.substitute, True, True)
    assert found.cost == Cost(2, 3, 100 + 30 + 110, 2 + 7 + 2)


def test_post_verification_keeps_the_original_and_can_be_left_out() -> None:
    assert outcome_of(RECORD, 1.4, "expand").attempt == RECORD.original
    assert outcome_of(RECORD, 1.4, "expand", verify=False).attempt == RECORD.expand
    assert outcome_of(RECORD, 1.4, "expand").cost == outcome_of(RECORD, 1.4, "expand", verify=False).cost


def test_each_metric_has_its_own_order() -> None:
    # By this metric the rewrite's answer is the more uncertain one.
    assert outcome_of(RECORD, ALWAYS, "substitute", "lowest_probability").attempt == RECORD.original
    assert outcome_of(RECORD, ALWAYS, "expand", "lowest_probability").attempt == RECORD.expand


@pytest.mark.parametrize(("rewriting", "searches"), [("unusable", 1), ("same passages", 2)])
def test_a_rewrite_that_brings_nothing_costs_its_writing_and_perhaps_a_search(
    rewriting: Any, searches: int
) -> None:
    nothing = replace(RECORD, rewriting=rewriting, substitute=None)
    found = outcome_of(nothing, 1.0, "substitute", verify=False)
    assert (found.attempt, found.acted, found.replaced) == (RECORD.original, True, False)
    assert found.cost == Cost(searches, 2, 130, 9)


def test_rewriting_always_never_pays_for_a_first_answer() -> None:
    assert always(RECORD, "substitute").cost == Cost(1, 2, 140, 9)
    # Expanding needs what the original query finds as well.
    assert always(RECORD, "expand").cost == Cost(2, 2, 150, 9)
    nothing = replace(RECORD, rewriting="unusable", substitute=None, expand=None)
    assert always(nothing, "expand").cost == Cost(1, 2, 130, 9)
    assert always(nothing, "substitute").attempt == RECORD.original


@given(st.floats(1, 4), st.one_of(st.none(), st.floats(1, 4)), st.floats(0.5, 4), st.floats(0.5, 4))
def test_a_higher_threshold_never_costs_more_nor_verification_certainty(
    first: float, second: float | None, low: float, high: float
) -> None:
    record = replace(RECORD, original=tried(first), substitute=None if second is None else tried(second))
    low, high = sorted((low, high))
    small, large = outcome_of(record, low, "substitute"), outcome_of(record, high, "substitute")
    assert small.acted >= large.acted
    assert small.cost.calls >= large.cost.calls
    assert small.attempt.uncertainty["perplexity"] <= first


@given(st.integers(1, 6), st.sets(st.integers(0, 8), min_size=1, max_size=2), st.text(max_size=5))
def test_exactly_one_passage_gives_way_to_a_missing_gold_one(k: int, gold: set[int], name: str) -> None:
    passages = [Passage(str(place), id=str(place)) for place in range(9)]
    found, golden = passages[:k], [passages[place] for place in sorted(gold)]
    changed = with_gold(found, golden, name)
    if gold <= set(range(k)):
        assert changed is None
        return
    assert changed is not None
    differing = [(old, new) for old, new in zip(found, changed, strict=True) if old != new]
    [(_, new)] = differing
    assert new in golden
    assert new not in found
    assert changed == with_gold(found, golden, name)
    assert found == passages[:k]
