"""What DENSE costs at most, and what it says of a context that it has too few calls for."""

from __future__ import annotations

import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from surerag import DenseEvaluator
from surerag.messages import Event
from tests.methods.dense_rag.script import QUESTION, LongerEntails, Shown, distinct, passages, script


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    k=st.integers(1, 6),
    budget=st.none() | st.integers(1, 80),
    mask=st.booleans(),
)
def test_no_context_costs_more_than_was_said(seed: int, k: int, budget: int | None, mask: bool) -> None:
    def answer(context: Shown) -> str:
        return "xyz"[: zlib.crc32(f"{seed} {context}".encode()) % 4]

    reader, entailer = script(answer), LongerEntails()
    dense = DenseEvaluator(reader, entailer, mask=mask, max_calls=budget)
    result = dense.run(QUESTION, passages("abcdef"[:k]))
    asked = len(reader.prompts) + len(entailer.asked)
    assert asked == result.calls.total <= dense.worst_case_calls(k)
    assert budget is None or dense.worst_case_calls(k) <= budget
    whole = DenseEvaluator(script(answer), LongerEntails(), mask=mask).run(QUESTION, passages("abcdef"[:k]))
    assert result.out_of_calls or result.labels == whole.labels
    assert len(result.chunks) == k


def test_the_bound_is_reached() -> None:
    for k in (1, 3, 6):
        for mask in (False, True):
            dense = DenseEvaluator(script(distinct), LongerEntails(), mask=mask)
            result = dense.run(f"{QUESTION} {k}", passages("abcdef"[:k]))
            assert result.calls.total == dense.worst_case_calls(k)


def test_chunks_that_nothing_is_left_for_are_untested_and_that_is_told() -> None:
    events: list[Event] = []
    # Two of four chunks: two rephrasings, three answers, six judgements.
    dense = DenseEvaluator(script(distinct), LongerEntails(), max_calls=12, on_event=events.append)
    result = dense.run(QUESTION, passages("abcd"))
    assert result.labels == ("uncertain", "uncertain", "untested", "untested")
    assert (result.calls.total, len(result.answers), result.out_of_calls) == (11, 3, True)
    assert [chunk.passage.text for chunk in result.chunks] == list("abcd")
    assert result.chunks[3].rephrased.outcome == "untested"
    [warning] = [event for event in events if event.warning]
    assert warning.name == "dense.out_of_calls"
    assert (warning.data["tested"], warning.data["chunks"], warning.data["max_calls"]) == (2, 4, 12)
    assert result.to_dict()["out_of_calls"] is True


def test_labels_that_nothing_is_left_for_stay_uncertain() -> None:
    dense = DenseEvaluator(script(distinct), LongerEntails(), mask=True, max_calls=11 + 3)
    assert dense.run(QUESTION, passages("ab")).labels == ("necessary", "uncertain")


def test_one_call_gives_the_answer_alone() -> None:
    result = DenseEvaluator(script({}), LongerEntails(), max_calls=1).run(QUESTION, passages("ab"))
    assert (result.answer, result.calls.total, result.certain) == ("A", 1, False)


def test_what_is_known_already_costs_no_calls() -> None:
    dense = DenseEvaluator(script(distinct), LongerEntails(), max_calls=9)
    assert dense.run(QUESTION, passages("ab")).out_of_calls
    dense.prepare(passages("ab"))
    assert not dense.run(QUESTION, passages("ab")).out_of_calls
