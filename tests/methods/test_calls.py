"""What a question costs at most: said before, never exceeded, and bounded where a user says so."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surerag import Adaptive, FakeReader, LazyRAG, Passage, SePer, UncertaintyRewriter
from surerag.component import Component
from surerag.errors import ConfigurationError
from surerag.messages import Event, Pair
from surerag.methods.calls import CallBudget
from surerag.readers.fake import reply

QUESTION = "Where was the painter born?"
WORDS = ("Velm", "Orun", "Tarn", "in Velm", "", "by the river")


class Judge:
    """Says by chance whether one statement entails another, and counts."""

    name = "chance"

    def __init__(self) -> None:
        self.pairs = 0

    def entail(self, pairs: Sequence[Pair]) -> Any:
        self.pairs += len(pairs)
        draws = [zlib.crc32(f"{a}|{b}".encode()) % 3 for a, b, _ in pairs]
        return np.eye(3)[draws]


def asked_of(reader: FakeReader) -> int:
    """Count the answers that were asked for, those that failed included."""
    each = {"generate": lambda call: call.sampling.n, "begin": lambda _: 1, "stream": lambda _: 1}
    return sum(each[call.verb](call) * len(call.prompts) for call in reader.history if call.verb in each)


class Corpus:
    """Finds something else for every query."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage(f"{query} {at}", id=f"{query} {at}") for at in range(3)]


def chancy(seed: int, fails: bool = False) -> FakeReader:
    """Say something by chance, with a certainty by chance; where wanted, fail now and then."""
    said = 0

    def answer(prompt: str) -> Any:
        nonlocal said
        said += 1
        drawn = zlib.crc32(f"{seed} {said} {prompt}".encode())
        if fails and said > 1 and drawn % 11 == 0:
            return TimeoutError("busy")
        if prompt.startswith("Rewrite"):
            return f"Where was Ada born, {drawn % 4}?"
        return reply(WORDS[drawn % len(WORDS)], logprobs=-(drawn % 30) / 10, entropy=(drawn % 30) / 10)

    return FakeReader(answer)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    metric=st.sampled_from(["perplexity", "ln_entropy", "disagreement"]),
    meaning=st.sampled_from(["words", "entailment"]),
    candidates=st.integers(1, 4),
    samples=st.integers(2, 4),
    budget=st.none() | st.integers(1, 60),
    fails=st.booleans(),
)
def test_a_rewriter_costs_no_more_than_was_said(
    seed: int, metric: Any, meaning: Any, candidates: int, samples: int, budget: int | None, fails: bool
) -> None:
    judge, reader = Judge(), chancy(seed, fails)
    judges = metric == "disagreement" and meaning == "entailment"
    chosen = {"metric": metric, "same_meaning": meaning, "candidates": candidates, "n_samples": samples}

    def build(most: int | None) -> UncertaintyRewriter:
        entailer = judge if judges else None
        return UncertaintyRewriter(
            reader, Corpus(), entailer=entailer, threshold=0.3, max_calls=most, **chosen
        )  # fmt: skip

    least = build(None).calls_of_an_answer
    if budget is not None and budget < least:
        with pytest.raises(ConfigurationError, match=f"max_calls={budget} does not cover"):
            build(budget)
        return
    rewriter = build(budget)
    try:
        result = rewriter.run(QUESTION)
    except TimeoutError:
        # SamplingParams failed before there was any answer.
        result = None
    assert asked_of(reader) + judge.pairs <= rewriter.worst_case_calls()
    if budget is not None:
        assert rewriter.worst_case_calls() <= budget
    if result is not None and budget is None:
        assert not result.out_of_calls


def test_the_rewriters_bound_is_reached() -> None:
    numbered = iter(range(1000))

    def answer(prompt: str) -> Any:
        number = next(numbered)
        return f"Where was number {number}?" if prompt.startswith("Rewrite") else f"answer {number}"

    judge, reader = Judge(), FakeReader(answer)
    rewriter = UncertaintyRewriter(
        reader, Corpus(), entailer=judge, metric="disagreement", same_meaning="entailment", n_samples=3,
        candidates=2, threshold=-1.0,
    )  # fmt: skip
    result = rewriter.run(QUESTION)
    assert asked_of(reader) + judge.pairs == rewriter.worst_case_calls() == 10 + 2 * 11
    assert result.costs.calls + result.costs.judgements == 32


def rewriter_with(most: int) -> tuple[Any, FakeReader, list[Event]]:
    events: list[Event] = []
    numbered = iter(range(1000))
    reader = FakeReader(
        lambda p: reply(f"Where was {next(numbered)}?" if p.startswith("Rewrite") else "Velm", logprobs=-2.0)
    )
    rewriter = UncertaintyRewriter(
        reader, Corpus(), candidates=4, max_calls=most, on_event=events.append
    )  # fmt: skip
    return rewriter.run(QUESTION), reader, [event for event in events if event.warning]


def test_a_rewriter_tries_as_many_rewrites_as_it_has_calls_for() -> None:
    result, reader, [warning] = rewriter_with(6)
    assert (len(result.candidates), result.costs.calls, asked_of(reader)) == (2, 5, 5)
    assert result.out_of_calls
    assert warning.name == "uncertainty_rewriting.out_of_calls"
    assert (warning.data["max_calls"], warning.data["candidates"]) == (6, 2)


def test_without_calls_for_a_rewrite_the_first_answer_is_kept() -> None:
    result, reader, [warning] = rewriter_with(2)
    assert (result.kept, result.rewritten, asked_of(reader)) == ("original", None, 1)
    assert [step.outcome for step in result.steps] == ["rewrite", "out of calls"]
    assert warning.data["candidates"] == 0
    result, _, warnings = rewriter_with(9)
    assert (result.out_of_calls, warnings) == (False, [])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    gate=st.sampled_from(["entropy", "margin", "disagreement"]),
    mode=st.sampled_from(["lazy", "strong", "none"]),
    meaning=st.sampled_from(["words", "entailment"]),
    samples=st.integers(2, 5),
    budget=st.none() | st.integers(1, 30),
)
def test_lazy_retrieval_costs_no_more_than_was_said(
    seed: int, gate: Any, mode: Any, meaning: Any, samples: int, budget: int | None
) -> None:
    judge, reader = Judge(), chancy(seed)
    chosen: dict[str, Any] = {"gate": gate, "mode": mode}
    if gate == "disagreement":
        chosen |= {"same_meaning": meaning, "n_samples": samples}
    entailer = judge if gate == "disagreement" and meaning == "entailment" and mode == "lazy" else None
    if gate == "disagreement" and meaning == "entailment" and mode != "lazy":
        chosen["same_meaning"] = "words"
    least = {"lazy": 2 if gate != "disagreement" else samples + 1}.get(mode, 1)

    def build() -> LazyRAG:
        return LazyRAG(reader, Corpus(), "A summary.", entailer, max_calls=budget, **chosen)

    if budget is not None and budget < least:
        with pytest.raises(ConfigurationError, match="does not cover the gate"):
            build()
        return
    rag = build()
    result = rag.run(QUESTION)
    assert asked_of(reader) + judge.pairs <= rag.worst_case_calls()
    assert asked_of(reader) + judge.pairs == result.calls
    assert budget is None or rag.worst_case_calls() <= budget


def test_a_gate_without_calls_to_judge_its_samples_retrieves_and_says_so() -> None:
    events: list[Event] = []
    judge = Judge()
    numbered = iter(range(100))
    reader = FakeReader(lambda _: f"answer {next(numbered)}", logprob=None, entropy=None)
    rag = LazyRAG(
        reader, Corpus(), "A summary.", judge, gate="disagreement", same_meaning="entailment", n_samples=4,
        max_calls=16, on_event=events.append,
    )  # fmt: skip
    result = rag.run(QUESTION)
    assert judge.pairs == 0
    assert (result.decision.retrieve, result.decision.signal, result.out_of_calls) == (True, None, True)
    assert (result.calls, result.retrievals) == (5, 1)
    [warning] = [event for event in events if event.warning]
    assert (warning.name, warning.data["max_calls"]) == ("lazy_rag.out_of_calls", 16)
    # One call more, and it judges.
    assert not rag.with_options(max_calls=17).run(QUESTION).out_of_calls
    assert judge.pairs == 12


@pytest.mark.parametrize("kernel", ["soft", "hard"])
@pytest.mark.parametrize("adaptive", [None, Adaptive(width=0.01, first=2)])
def test_sepers_bound_is_reached_by_a_reader_that_never_says_the_same(kernel: Any, adaptive: Any) -> None:
    judge = Judge()
    numbered = iter(range(10_000))
    reader = FakeReader(lambda _: f"answer {next(numbered)}")
    seper = SePer(reader, judge, kernel=kernel, adaptive=adaptive, n_samples=6)
    seper.run(QUESTION, ["Velm", "Orun"], [Passage("Ada.")])
    assert asked_of(reader) + judge.pairs == seper.worst_case_calls(1, 2)


def test_every_component_says_what_it_costs() -> None:
    import surerag

    named = [getattr(surerag, name) for name in surerag.__all__]
    found = [one for one in named if isinstance(one, type) and issubclass(one, Component)]
    assert len(found) == 7
    assert all(one.worst_case_calls is not Component.worst_case_calls for one in found)
    bounded = {one.__name__ for one in found if "max_calls" in one.OPTIONS}
    assert {one.__name__ for one in found} - bounded == {"SemanticChunker", "SePer"}


def test_calls_that_are_held_are_nobody_elses() -> None:
    budget = CallBudget(5)
    budget.held = 2
    assert (budget.left, budget.affords(3), budget.short) == (3, True, False)
    assert (budget.within(2, each=2), budget.short) == (1, True)
    assert CallBudget(None).within(10**9) == 10**9
