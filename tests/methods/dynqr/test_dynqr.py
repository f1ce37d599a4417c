"""DynQR's inference: what is asked, which answer is kept and why, and what happens when rewriting fails."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag import DynQRResult, FakeReader, UncertaintyRewriter
from surerag.errors import InputError, MissingServiceError, PromptError, RefusedError
from surerag.messages import Event, Generation, Message
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


def rewriting(text: str | Generation | BaseException, **options: Any) -> tuple[DynQRResult, list[Event]]:
    """Ask the vague question of a reader that rewrites it so."""
    events: list[Event] = []
    model = FakeReader(lambda prompt: text if prompt.startswith("Rewrite the query") else knowing(prompt))  # type: ignore[arg-type, return-value]
    rewriter = UncertaintyRewriter(model, Library(), on_event=events.append, **options)
    return rewriter.run(VAGUE), events


def test_a_certain_question_costs_one_retrieval_and_one_answer() -> None:
    model, library = reader(), Library()
    result = UncertaintyRewriter(model, library).run(CLEAR)
    assert (result.answer, result.query, result.rewritten, result.acted) == ("In Velm", CLEAR, False, False)
    assert result.uncertainty == pytest.approx(math.exp(-SURE))
    assert (library.queries, result.candidates) == ([(CLEAR, None)], ())
    assert result.usage.requests == len(model.prompts) == 1
    assert result.usage.prompt_tokens == model.usage.prompt_tokens


def test_an_uncertain_question_is_rewritten_and_the_less_uncertain_answer_is_kept() -> None:
    model, library = reader(), Library()
    events: list[Event] = []
    result = UncertaintyRewriter(model, library, top_n=2, on_event=events.append).run(VAGUE)
    assert (result.answer, result.query, result.rewritten) == ("In Velm", CLEAR, True)
    assert (result.original.answer, result.original.uncertainty) == (
        "perhaps Orun",
        pytest.approx(math.exp(-UNSURE)),
    )
    assert result.passages == (TELLING, COMMON)
    assert result.reason == "perplexity above threshold; the rewrite's answer is less uncertain"
    assert [query for query, _ in library.queries] == [VAGUE, CLEAR]
    # The reader answers the question itself, whatever was searched for.
    assert [f"Question: {VAGUE}" in prompt for prompt in model.prompts] == [True, False, True]
    assert "{question}" in model.prompts[0]
    assert [event.name for event in events] == ["dynqr.gate", "dynqr.decided"]
    assert events[-1].detail is not None
    for event in events:
        json.dumps(event.data, allow_nan=False)
    assert result.usage.requests == len(model.prompts) == 3


def test_at_the_threshold_nothing_is_rewritten() -> None:
    uncertainty = UncertaintyRewriter(reader(), Library()).run(VAGUE).original.uncertainty
    for threshold, acts in ((uncertainty, False), (math.nextafter(uncertainty, 0), True), (math.inf, False)):
        assert UncertaintyRewriter(reader(), Library(), threshold=threshold).run(VAGUE).acted == acts
    assert UncertaintyRewriter(reader(), Library(), threshold=-math.inf).run(CLEAR).acted


def test_post_verification_can_be_turned_off() -> None:
    replies = [reply("Velm", logprobs=-0.5), CLEAR, reply("Orun", logprobs=-0.9)]
    verified = UncertaintyRewriter(FakeReader(replies), Library()).run(VAGUE)
    assert (verified.answer, verified.rewritten) == ("Velm", False)
    assert [attempt.answer for attempt in verified.candidates] == ["Orun"]
    unverified = UncertaintyRewriter(FakeReader(replies), Library(), verify=False).run(VAGUE)
    assert (unverified.answer, unverified.rewritten) == ("Orun", True)


@given(st.lists(st.floats(-4.0, -0.01), min_size=2, max_size=4))
def test_verification_never_chooses_the_more_uncertain_answer(logprobs: list[float]) -> None:
    n = len(logprobs) - 1
    rewrites = [f"Ada {number}" for number in range(n)]

    class Numbered(Library):
        def retrieve(self, query: str, k: int | None) -> Any:
            return [type(TELLING)(f"About {query}.")]

    replies = [reply("a", logprobs=logprobs[0]), *rewrites, *(reply("b", logprobs=p) for p in logprobs[1:])]
    result = UncertaintyRewriter(FakeReader(replies), Numbered(), threshold=-math.inf, n_candidates=n).run(
        VAGUE
    )
    assert result.uncertainty == pytest.approx(math.exp(-max(logprobs)))


@pytest.mark.parametrize(("top_n", "passages"), [(3, (VAGUELY, TELLING, COMMON)), (2, (VAGUELY, TELLING))])
def test_expand_alternates_between_both_lists_without_duplicates(top_n: int, passages: Any) -> None:
    rewriter = UncertaintyRewriter(reader(), Library(), documents="expand", top_n=top_n)
    assert rewriter.run(VAGUE).passages == passages


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("  \n ", "the rewrite is empty"),
        (f'Query: "{VAGUE.upper()}"', "the question again"),
        (Generation("word " * 3000), "too long"),
        (Generation("Where was Ada", finish="length"), "too long"),
        (TimeoutError("too slow"), "TimeoutError"),
        ("Ada's poison", "ConnectionError"),
        (OTHER, "nothing new was retrieved"),
    ],
)
def test_a_rewrite_that_fails_leaves_the_original(text: Any, reason: str) -> None:
    result, events = rewriting(text)
    assert (result.answer, result.rewritten, result.candidates, result.acted) == (
        "perhaps Orun",
        False,
        (),
        True,
    )
    assert reason in result.reason
    assert len(result.reason) < 330
    # The same query, or the same passages, is an outcome and not a fault.
    expected = reason in ("the question again", "nothing new was retrieved")
    assert [event.name for event in events if event.warning] == ([] if expected else ["dynqr.failed"])
    assert ("dynqr.unchanged" in [event.name for event in events]) is expected


def test_what_is_misconfigured_raises_and_so_does_a_first_answer_that_fails() -> None:
    with pytest.raises(RefusedError):
        rewriting(RefusedError("no key"))
    with pytest.raises(ConnectionError):
        UncertaintyRewriter(reader(), Library()).run("poison")
    with pytest.raises(RuntimeError, match="no answer"):
        UncertaintyRewriter(FakeReader([RuntimeError("no answer")]), Library()).run(VAGUE)
    with pytest.raises(InputError):
        UncertaintyRewriter(reader(), Library()).run("  ")
    with pytest.raises(MissingServiceError, match="needs a retriever"):
        UncertaintyRewriter(reader())
    with pytest.raises(PromptError, match="slots"):
        UncertaintyRewriter(reader(), Library(), prompts={"rewrite": "Again!"})


def test_nothing_retrieved_is_answered_without_documents_with_a_warning() -> None:
    model = reader()
    events: list[Event] = []
    result = UncertaintyRewriter(model, Library(), on_event=events.append).run("What?")
    assert "dynqr.nothing_retrieved" in [event.name for event in events if event.warning]
    assert "Documents" not in model.prompts[0]
    assert result.query == CLEAR


@pytest.mark.parametrize("first", ["", "I do not know."])
def test_an_empty_or_abstaining_answer_is_never_kept_over_one_with_words(first: str) -> None:
    model = FakeReader([reply(first, logprobs=-0.001), CLEAR, reply("Velm", logprobs=-9.0)])
    result = UncertaintyRewriter(model, Library(), abstention="I do not know.").run(VAGUE)
    assert (result.original.uncertainty, result.answer, result.abstained) == (math.inf, "Velm", False)
    assert result.reason.startswith("the first answer is empty or abstains")
    assert result.to_dict()["original_uncertainty"] is None


def test_candidates_are_tried_once_each_and_the_least_uncertain_counts() -> None:
    replies = [reply("Orun", logprobs=UNSURE), "Who is Ada?", CLEAR, CLEAR, "", reply("Velm", logprobs=-0.2)]
    model, library = FakeReader(replies), Library()
    result = UncertaintyRewriter(model, library, n_candidates=4).run(VAGUE)
    assert [query for query, _ in library.queries] == [VAGUE, "Who is Ada?", CLEAR]
    # Both retrieved the same, so that it was answered once.
    assert [attempt.query for attempt in result.candidates] == ["Who is Ada?"]
    sampling = model.history[1].sampling
    assert sampling is not None
    assert (result.answer, sampling.n, sampling.temperature) == ("Velm", 4, 1.0)


def test_a_conversation_is_shown_to_reader_and_rewriter() -> None:
    model = reader()
    rewriter = FakeReader([CLEAR], name="rewriter")
    history = [Message("user", "Who is Ada?"), Message("assistant", "A painter.")]
    part = UncertaintyRewriter(model, Library(), rewriter)
    assert part.run(VAGUE, history).answer == "In Velm"
    for prompt in (*model.prompts, *rewriter.prompts):
        assert "A painter." in prompt
    assert "without the conversation above" in rewriter.prompts[0]
    assert [sampling.max_tokens for sampling in [rewriter.history[0].sampling] if sampling] == [64]
    rewriter.add(CLEAR)
    assert [result.answer for result in part.run_many([(VAGUE, history), CLEAR])] == ["In Velm", "In Velm"]


def test_the_rewrite_can_be_answered_in_place_of_the_question() -> None:
    model = reader()
    result = UncertaintyRewriter(model, Library(), answer="rewrite").run(VAGUE)
    assert (result.answer, result.query, result.rewritten) == ("In Velm", CLEAR, True)
    assert f"Question: {VAGUE}" in model.prompts[0] and f"Question: {CLEAR}" in model.prompts[2]
    assert VAGUE not in model.prompts[2]


@pytest.mark.parametrize("text", [OTHER, "Nothing has these words"])
@pytest.mark.parametrize(("logprob", "kept"), [(-0.1, True), (-2.0, False)])
def test_a_rewrite_that_finds_nothing_new_is_answered_from_the_same_passages(
    text: str, logprob: float, kept: bool
) -> None:
    model = FakeReader([reply("Orun", logprobs=UNSURE), text, reply("Velm", logprobs=logprob)])
    result = UncertaintyRewriter(model, Library(), answer="rewrite").run(VAGUE)
    [candidate] = result.candidates
    assert candidate.passages == result.original.passages == (VAGUELY, COMMON)
    assert (result.rewritten, result.query) == ((True, text) if kept else (False, VAGUE))
    # Only the question differs between the two prompts.
    assert model.prompts[2] == model.prompts[0].replace(VAGUE, text)


def test_settings_survive_json() -> None:
    part = UncertaintyRewriter(reader(), Library(), metric="ln_entropy", threshold=0.3, n_candidates=2)
    settings = json.loads(json.dumps(part.to_dict()))
    again = UncertaintyRewriter.from_dict(settings, reader=part.reader, retriever=part.retriever)
    assert again.to_dict() == part.to_dict()


@pytest.mark.filterwarnings("error")
def test_an_answer_of_infinite_perplexity_is_not_called_empty() -> None:
    model = FakeReader(lambda prompt: reply("Velm", logprobs=[-9999.0]))
    result = UncertaintyRewriter(model, Library()).run(VAGUE)
    assert (result.uncertainty, result.reason.split(";")[0]) == (math.inf, "perplexity above threshold")


@pytest.mark.parametrize("history", ["Hello", [{"role": "user", "content": "Hello"}], [("user", "Hello")]])
def test_a_history_of_something_else_than_messages_is_named(history: Any) -> None:
    with pytest.raises(InputError, match=r"expected a Message, got a (str|dict|tuple) at place 0"):
        UncertaintyRewriter(reader(), Library()).run(CLEAR, history)
