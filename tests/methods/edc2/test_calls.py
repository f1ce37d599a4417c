"""Calls: a bound that is known before, and a bound that is set."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from surerag import ClusterCompressor, FakeReader
from surerag.encoders import HashingEncoder
from surerag.messages import Event, Pair
from surerag.prompts import NOTHING_TO_EXTRACT
from tests.methods.edc2.cases import ADA, AGAIN, BO, QUESTION, RIVER, passages, quoting


class CountingEntailer:
    """Believes every other pair, and counts."""

    name = "counting"

    def __init__(self) -> None:
        self.pairs = 0

    def entail(self, pairs: list[Pair]) -> Any:
        self.pairs += len(pairs)
        return np.array([[0.0, 0.0, 1.0] if len(pair.premise) % 2 else [0.0, 1.0, 0.0] for pair in pairs])


class Flaky:
    """Replies by turns: nothing, a quotation, a failure."""

    def __init__(self, pattern: list[int]) -> None:
        self.pattern = pattern
        self.asked = 0

    def __call__(self, prompt: str) -> Any:
        kind = self.pattern[self.asked % len(self.pattern)]
        self.asked += 1
        return [NOTHING_TO_EXTRACT, quoting(prompt), "Ada. Bo. Velm.", TimeoutError("busy")][kind]


@given(
    pattern=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    number=st.integers(0, 14),
    bridging=st.integers(0, 3),
    options=st.fixed_dictionaries(
        {
            "max_calls": st.none() | st.integers(1, 30),
            "clustering": st.sampled_from(["dynamic", "single", "random", "average"]),
            "first_cluster_size": st.sampled_from([1, 2, 3, "auto"]),
            "guard": st.sampled_from(["off", "overlap", "entailment"]),
            "all_empty": st.sampled_from(["original", "nothing"]),
        }
    ),
)
@settings(max_examples=150, deadline=None)
def test_no_question_costs_more_calls_than_was_said(
    pattern: list[int], number: int, bridging: int, options: dict[str, Any]
) -> None:
    entailer, flaky = CountingEntailer(), Flaky(pattern)
    tool = ClusterCompressor(
        FakeReader(flaky), HashingEncoder(), entailer, pass_below=0, bridging=bridging, **options
    )
    given = passages(*[f"{text} {at}" for at, text in enumerate([ADA, AGAIN, BO, RIVER] * 4)][:number])
    result = tool.run(QUESTION, given)
    # A request of several prompts that fails at once was made for all of them.
    assert flaky.asked <= result.calls
    assert entailer.pairs == result.judgements
    assert result.calls + result.judgements <= tool.worst_case_calls(number)
    if options["max_calls"] is not None:
        assert tool.worst_case_calls(number) <= options["max_calls"]
    assert sorted(at for report in result.clusters for at in report.members) == list(range(number))


def test_the_bound_is_reached() -> None:
    for number in (1, 4, 9):
        reader = FakeReader(lambda _: TimeoutError("busy"))
        tool = ClusterCompressor(reader, clustering="single", pass_below=0)
        assert tool.run(QUESTION, passages(*[f"{ADA} {at}" for at in range(number)])).calls == (
            tool.worst_case_calls(number)
        )


def told_of(**options: Any) -> tuple[ClusterCompressor, FakeReader, list[Event]]:
    events: list[Event] = []
    reader = FakeReader(quoting)
    tool = ClusterCompressor(
        reader, HashingEncoder(), clustering="single", pass_below=0, on_event=events.append, **options
    )
    return tool, reader, events


def test_over_the_bound_the_best_are_compressed_and_the_rest_go_through() -> None:
    tool, reader, events = told_of(max_calls=2)
    given = passages(ADA, AGAIN, BO, RIVER)
    result = tool.run(QUESTION, given)
    assert reader.usage.requests == result.calls == 2
    assert [report.outcome for report in result.clusters] == ["compressed", "compressed", "passed", "passed"]
    assert result.passages[2:] == (given[2], given[3])
    assert (result.out_of_calls, result.unasked) == (True, 2)
    [warning] = [event for event in events if event.warning]
    assert warning.name == "cluster_compression.out_of_calls"
    assert (warning.data["max_calls"], warning.data["calls"]) == (2, 2)


def test_within_the_bound_nothing_is_said() -> None:
    tool, _, events = told_of(max_calls=4)
    result = tool.run(QUESTION, passages(ADA, AGAIN, BO, ADA + RIVER))
    assert (result.out_of_calls, result.unasked, result.calls) == (False, 0, 4)
    assert not any(event.warning for event in events)


def test_what_cannot_be_checked_any_more_gives_way_to_its_sources() -> None:
    entailer = CountingEntailer()
    tool = ClusterCompressor(
        FakeReader(quoting), HashingEncoder(), entailer, clustering="single", pass_below=0,
        guard="entailment", max_calls=3,
    )  # fmt: skip
    given = passages(ADA, AGAIN)
    result = tool.run(QUESTION, given)
    assert (result.calls, result.judgements, entailer.pairs) == (2, 1, 1)
    assert result.clusters[1].reason == "no calls were left to check it"
    assert result.passages[-1] == given[1]


def test_consensus_and_judgement_keep_the_calls_that_they_need() -> None:
    for most in (1, 2, 3, 4):
        tool, reader, _ = told_of(max_calls=most)
        assert tool.answer(QUESTION, passages(ADA, AGAIN, BO)).answer
        assert reader.usage.requests <= most
        tool, reader, _ = told_of(max_calls=most)
        tool.judge(QUESTION, passages(ADA, AGAIN, BO))
        assert reader.usage.requests <= most
