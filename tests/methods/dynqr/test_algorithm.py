"""DynQR's inference: what is asked, what is kept and why, and what happens when rewriting goes wrong."""

from __future__ import annotations

import json
import logging
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag import DynQRResult, FakeReader, Passage, UncertaintyRewriter
from surerag.errors import InputError
from surerag.messages import Event, Generation, Message
from surerag.methods.dynqr.rewrites import alternated
from surerag.readers.fake import reply
from tests.methods.dynqr.painter import (
    CLEAR,
    COMMON,
    OTHER,
    SURE,
    TELLING,
    UNSURE,
    VAGUE,
    VAGUELY,
    Library,
    knowing,
    reader,
)


def outcomes(result: DynQRResult) -> list[tuple[str, str]]:
    return [(step.name, step.outcome) for step in result.steps]


def rewriting(said: str | Generation | BaseException, **settings: Any) -> tuple[DynQRResult, list[Event]]:
    """Ask the vague question of a reader that rewrites it so."""

    def answer(prompt: str) -> Any:
        return said if prompt.startswith("Rewrite the query") else knowing(prompt)

    events: list[Event] = []
    rewriter = UncertaintyRewriter(FakeReader(answer), Library(), on_event=events.append, **settings)
    return rewriter.run(VAGUE), events


def test_a_certain_question_costs_one_retrieval_and_one_answer() -> None:
    asked, library = reader(), Library()
    result = UncertaintyRewriter(asked, library).run(CLEAR)
    assert (result.answer, result.query, result.kept) == ("In Velm", CLEAR, "original")
    assert result.uncertainty == pytest.approx(math.exp(-SURE))
    assert outcomes(result) == [("gate", "stop")]
    assert library.asked == [(CLEAR, None)]
    assert len(asked.history) == len(asked.prompts) == result.costs.calls == 1
    assert (result.costs.retrievals, result.costs.answers, result.costs.rewrites) == (1, 1, 0)
    assert (result.costs.prompt_tokens, result.costs.completion_tokens) == (
        asked.usage.prompt_tokens,
        asked.usage.completion_tokens,
    )


def test_an_uncertain_question_is_rewritten_and_the_less_uncertain_answer_is_kept() -> None:
    asked, library = reader(), Library()
    events: list[Event] = []
    result = UncertaintyRewriter(asked, library, top_n=2, on_event=events.append).run(VAGUE)
    assert (result.answer, result.query, result.kept) == ("In Velm", CLEAR, "rewritten")
    assert result.original.answer == "perhaps Orun"
    assert result.original.uncertainty == pytest.approx(math.exp(-UNSURE))
    assert result.passages == (TELLING, COMMON)
    assert outcomes(result) == [("gate", "rewrite"), ("rewrite", "rewritten"), ("verify", "rewritten")]
    assert all(step.reason for step in result.steps)
    assert [query for query, _ in library.asked] == [VAGUE, CLEAR]
    # The reader is asked the question as it was put, whatever was searched for.
    assert [f"Question: {VAGUE}" in prompt for prompt in asked.prompts] == [True, False, True]
    assert "{question}" in asked.prompts[0]
    assert [event.name for event in events] == ["uncertainty_rewriting.gate", "uncertainty_rewriting.decided"]
    assert events[-1].detail is result
    for event in events:
        json.dumps(event.data, allow_nan=False)
    assert result.costs.calls == len(asked.prompts) == 3
    assert result.costs.prompt_tokens == asked.usage.prompt_tokens
    assert result.costs.completion_tokens == asked.usage.completion_tokens


def test_the_threshold_is_the_largest_uncertainty_that_is_left_alone() -> None:
    uncertainty = UncertaintyRewriter(reader(), Library()).run(VAGUE).original.uncertainty
    for threshold, acts in ((uncertainty, False), (math.nextafter(uncertainty, 0), True), (math.inf, False)):
        assert UncertaintyRewriter(reader(), Library(), threshold=threshold).run(VAGUE).acted == acts
    always = UncertaintyRewriter(reader(), Library(), threshold=-math.inf).run(CLEAR)
    assert always.acted


def test_post_verification_keeps_the_original_and_can_be_turned_off() -> None:
    worse = FakeReader([reply("Velm", logprobs=-0.5), CLEAR, reply("Orun", logprobs=-0.9)])
    kept = UncertaintyRewriter(worse, Library()).run(VAGUE)
    assert (kept.answer, kept.kept, outcomes(kept)[-1]) == ("Velm", "original", ("verify", "original"))
    assert kept.rewritten is not None
    assert (kept.rewritten.query, kept.rewritten.answer) == (CLEAR, "Orun")
    worse.add(reply("Velm", logprobs=-0.5), CLEAR, reply("Orun", logprobs=-0.9))
    taken = UncertaintyRewriter(worse, Library(), verify=False).run(VAGUE)
    assert (taken.answer, taken.kept) == ("Orun", "rewritten")


def test_expand_alternates_between_both_lists_without_duplicates() -> None:
    result = UncertaintyRewriter(reader(), Library(), documents="expand", top_n=3).run(VAGUE)
    assert result.passages == (VAGUELY, TELLING, COMMON)
    assert UncertaintyRewriter(reader(), Library(), documents="expand", top_n=2).run(VAGUE).passages == (
        VAGUELY,
        TELLING,
    )
    # Without a number, there are as many as the longer list has.
    assert len(UncertaintyRewriter(reader(), Library(), documents="expand").run(VAGUE).passages) == 2


@given(
    st.lists(st.sampled_from("abcdef"), unique=True),
    st.lists(st.sampled_from("abcdef"), unique=True),
    st.integers(1, 8),
)
def test_alternation(first: list[str], second: list[str], k: int) -> None:
    found = [p.text for p in alternated([Passage(t) for t in first], [Passage(t) for t in second], k)]
    assert len(found) == len(set(found)) == min(k, len({*first, *second}))
    # Each list's own order is kept among what the other one does not have.
    for mine, other in ((first, second), (second, first)):
        own = [text for text in found if text in mine and text not in other]
        assert own == [text for text in mine if text not in other][: len(own)]
    if first and second and first[0] != second[0]:
        assert found[:2] == [first[0], second[0]][:k]


@pytest.mark.parametrize(
    ("said", "outcome", "reason"),
    [
        ("", "unusable", "empty"),
        ("  \n ", "unusable", "empty"),
        ('""', "unusable", "empty"),
        (VAGUE, "unusable", "unchanged"),
        (f'Query: "{VAGUE.upper()}"', "unusable", "unchanged"),
        (Generation("word " * 3000), "unusable", "too long"),
        (Generation("Where was Ada", finish="length"), "unusable", "too long"),
        (TimeoutError("too slow"), "failed", "rewriting failed: TimeoutError: too slow"),
        ("Ada's poison", "failed", "retrieving failed: ConnectionError"),
    ],
)
def test_a_useless_or_failing_rewriter_leaves_the_original(
    said: Any, outcome: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "surerag"):
        result, events = rewriting(said)
    assert (result.answer, result.kept, result.rewritten) == ("perhaps Orun", "original", None)
    assert outcomes(result) == [("gate", "rewrite"), ("rewrite", outcome)]
    assert reason in result.steps[1].reason
    assert len(result.steps[1].reason) < 300
    [warning] = [event for event in events if event.warning]
    assert warning.name == f"uncertainty_rewriting.{outcome}"
    assert warning.name in caplog.text
    assert result.costs.retrievals == (2 if "retrieving" in reason else 1)


def test_a_failure_is_raised_on_request_and_before_there_is_an_answer() -> None:
    with pytest.raises(TimeoutError):
        rewriting(TimeoutError("too slow"), on_failure="raise")
    with pytest.raises(ConnectionError):
        UncertaintyRewriter(reader(), Library()).run("poison")
    broken = FakeReader([RuntimeError("no answer")])
    with pytest.raises(RuntimeError, match="no answer"):
        UncertaintyRewriter(broken, Library()).run(VAGUE)
    with pytest.raises(InputError):
        UncertaintyRewriter(reader(), Library()).run("  ")


@pytest.mark.parametrize(
    "said",
    [
        CLEAR,
        f'"{CLEAR}"',
        f"Rewritten query: {CLEAR}",
        f"**Output:**\n{CLEAR}".replace("*", ""),
        "Where was\n Ada born?",
        f"“{CLEAR}”",
        f"Here is the rewritten query: {CLEAR}",
    ],
)
def test_a_rewrite_is_taken_out_of_its_wrapping(said: str) -> None:
    assert rewriting(said)[0].query == CLEAR


def test_the_same_passages_again_cost_no_second_answer() -> None:
    asked = FakeReader(lambda prompt: OTHER if "Rewrite" in prompt else reply("Orun", logprobs=UNSURE))
    result = UncertaintyRewriter(asked, Library()).run(VAGUE)
    assert outcomes(result) == [("gate", "rewrite"), ("rewrite", "same passages")]
    assert (result.costs.answers, result.costs.retrievals, result.kept) == (1, 2, "original")


def test_nothing_found_is_answered_without_documents_and_said() -> None:
    asked = reader()
    events: list[Event] = []
    result = UncertaintyRewriter(asked, Library(), on_event=events.append).run("What?")
    assert "uncertainty_rewriting.nothing_retrieved" in [event.name for event in events if event.warning]
    assert "Documents" not in asked.prompts[0]
    assert result.query == CLEAR


def test_an_empty_answer_is_never_kept_over_one_with_words() -> None:
    result = UncertaintyRewriter(FakeReader([reply(""), CLEAR, reply("Velm", logprobs=-9.0)]), Library())
    found = result.run(VAGUE)
    assert (found.original.uncertainty, found.answer) == (math.inf, "Velm")
    assert found.steps[0].reason == "empty first answer"
    assert found.to_dict()["original_uncertainty"] is None


def test_candidates_are_tried_once_each_and_the_least_uncertain_counts() -> None:
    said = ["Who is Ada?", CLEAR, CLEAR, ""]
    replies = [reply("Orun", logprobs=UNSURE), *said, reply("Velm", logprobs=-0.2)]
    asked, library = FakeReader(replies), Library()
    result = UncertaintyRewriter(asked, library, candidates=4).run(VAGUE)
    assert [query for query, _ in library.asked] == [VAGUE, "Who is Ada?", CLEAR]
    # Both found the same, so that it was answered once.
    assert [attempt.query for attempt in result.candidates] == ["Who is Ada?"]
    assert (result.answer, result.costs.rewrites, result.costs.answers) == ("Velm", 4, 2)
    assert asked.history[1].sampling is not None
    assert (asked.history[1].sampling.n, asked.history[1].sampling.temperature) == (4, 1.0)


def test_a_candidate_whose_retrieval_fails_is_dropped_alone(caplog: pytest.LogCaptureFixture) -> None:
    said = ["Ada's poison", CLEAR]
    replies = [reply("Orun", logprobs=UNSURE), *said, reply("Velm", logprobs=SURE)]
    library = Library()
    events: list[Event] = []
    rewriter = UncertaintyRewriter(FakeReader(replies), library, candidates=2, on_event=events.append)
    with caplog.at_level(logging.WARNING, "surerag"):
        result = rewriter.run(VAGUE)
    assert (result.answer, result.query, len(result.candidates)) == ("Velm", CLEAR, 1)
    assert result.steps[1].reason == "answered with 1 of 2 rewrites; retrieving failed with 1"
    [warning] = [event for event in events if event.warning]
    assert warning.name == "uncertainty_rewriting.candidate_failed"
    assert warning.name in caplog.text
    assert warning.data["query"] == "Ada's poison"
    assert warning.data["reason"].startswith("retrieving failed: ConnectionError")
    # A search that fails was paid for as well.
    assert result.costs.retrievals == len(library.asked) == 3


def test_a_candidate_that_fails_is_dropped_even_if_the_others_bring_nothing_new() -> None:
    replies = [reply("Orun", logprobs=UNSURE), "Ada's poison", OTHER]
    events: list[Event] = []
    rewriter = UncertaintyRewriter(FakeReader(replies), Library(), candidates=2, on_event=events.append)
    result = rewriter.run(VAGUE)
    assert outcomes(result) == [("gate", "rewrite"), ("rewrite", "same passages")]
    assert OTHER in result.steps[1].reason
    assert [event.name for event in events if event.warning] == ["uncertainty_rewriting.candidate_failed"]


def test_where_every_candidate_fails_the_original_stands_and_is_warned_of_once() -> None:
    replies = [reply("Orun", logprobs=UNSURE), "Ada's poison", "poison"]
    events: list[Event] = []
    rewriter = UncertaintyRewriter(FakeReader(replies), Library(), candidates=2, on_event=events.append)
    result = rewriter.run(VAGUE)
    assert (result.kept, outcomes(result)[-1]) == ("original", ("rewrite", "failed"))
    assert [event.name for event in events if event.warning] == ["uncertainty_rewriting.failed"]
    with pytest.raises(ConnectionError):
        UncertaintyRewriter(
            FakeReader([reply("Orun", logprobs=UNSURE), CLEAR, "poison"]),
            Library(),
            candidates=2,
            on_failure="raise",
        ).run(VAGUE)


def test_a_conversation_is_shown_to_reader_and_rewriter() -> None:
    asked = reader()
    history = [
        Message("assistant", "Hello!"),
        Message("user", "Do you know the painter Ada?"),
        Message("assistant", "I do."),
    ]

    def answer(prompt: str) -> Generation:
        return reply(CLEAR) if "without the conversation above" in prompt else knowing(prompt)

    asked = FakeReader(answer)
    result = UncertaintyRewriter(asked, Library()).run("Where was the painter born, then?", history=history)
    assert (result.query, result.answer) == (CLEAR, "In Velm")
    assert all("the painter Ada?\nI do.\n" in prompt for prompt in asked.prompts)
    assert not any("Hello!" in prompt for prompt in asked.prompts)


generations = st.builds(
    lambda words, mean: reply(" ".join(words), logprobs=mean),
    st.lists(st.sampled_from(["Velm", "Orun", "Tarn"]), max_size=3),
    st.floats(-4, 0),
)
rewrites = st.one_of(
    st.sampled_from(["", VAGUE, CLEAR, "Who is Ada?", "Ada's poison", "painter " * 100, "nothing here"]),
    st.just(TimeoutError),
)


@given(
    answers=st.lists(generations, min_size=4, max_size=4),
    said=st.lists(rewrites, min_size=3, max_size=3),
    candidates=st.integers(1, 3),
    documents=st.sampled_from(["substitute", "expand"]),
    threshold=st.floats(0.5, 5),
)
def test_post_verification_never_returns_the_more_uncertain_answer(
    answers: list[Generation], said: list[Any], candidates: int, documents: Any, threshold: float
) -> None:
    left, spoken = iter(answers), iter(said)

    def script(prompt: str) -> Any:
        return next(spoken) if prompt.startswith("Rewrite the query") else next(left)

    asked, library = FakeReader(script), Library()
    rewriter = UncertaintyRewriter(
        asked, library, documents=documents, threshold=threshold, candidates=candidates, top_n=3
    )
    result = rewriter.run(VAGUE)
    attempts = [result.original, *result.candidates]
    assert result.uncertainty == min(attempt.uncertainty for attempt in attempts)
    assert result.acted == (result.original.uncertainty > threshold)
    assert result.acted or not result.candidates
    assert result.chosen in attempts
    # What it says that it cost is what was asked.
    assert result.costs.retrievals == len(library.asked)
    assert result.costs.answers == sum(
        "The answer is:" in prompt for call in asked.history for prompt in call.prompts
    )
    assert result.costs.answers == len(attempts)


async def test_sync_async_and_batch_are_equal() -> None:
    questions = [VAGUE, CLEAR, "What?", OTHER]
    rewriter = UncertaintyRewriter(reader(), Library(), documents="expand")
    expected = [rewriter.run(question) for question in questions]
    assert [await rewriter.arun(question) for question in questions] == expected
    assert rewriter.run_many(questions) == await rewriter.arun_many(questions) == expected


def test_settings_come_back_and_nothing_living_is_in_them() -> None:
    rewriter = UncertaintyRewriter(
        reader(), Library(), documents="expand", threshold=1.5, stop=("\n",), candidates=2
    )
    plain = json.loads(json.dumps(rewriter.to_dict()))
    again = UncertaintyRewriter.from_dict(plain, reader=rewriter.reader, retriever=rewriter.retriever)
    assert again.to_dict() == rewriter.to_dict()
    assert again.run(VAGUE).to_dict() == rewriter.run(VAGUE).to_dict()
    assert (plain["reader"], "rewriter" in plain) == ("scripted", False)
    scripted = UncertaintyRewriter(FakeReader(["Velm"]), Library())
    assert pickle.loads(pickle.dumps(scripted)).run(CLEAR).answer == "Velm"


def test_passages_come_through_as_they_are() -> None:
    before = replace(TELLING)
    result = UncertaintyRewriter(reader(), Library()).run(VAGUE)
    assert result.passages[0] == before
    assert (result.passages[0].id, result.passages[0].score) == ("ada", 0.9)
