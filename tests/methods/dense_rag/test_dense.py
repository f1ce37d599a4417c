"""DENSE: hand-worked scores and labels, costs, and models that misbehave."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag import DenseEvaluator, DenseOptions, FakeReader, Passage
from surerag.entailment import ExactEntailer, JudgeEntailer
from surerag.errors import ConfigurationError, InputError, MissingServiceError, ServiceError
from surerag.measures import semantic_entropy
from surerag.messages import Event
from surerag.readers.fake import reply as fake_reply
from tests.methods.dense_rag.script import QUESTION, LongerEntails, distinct, kind, passages, script, shown


def labelled(*services: Any, **options: Any) -> DenseEvaluator:
    return DenseEvaluator(*services, **{"label_chunks": True, **options})


def test_a_context_that_is_understood_scores_zero_exactly_and_asks_no_judge() -> None:
    entailer = LongerEntails()
    result = labelled(script({}), entailer).run(QUESTION, passages("abcde"))
    assert (result.score, result.certain, result.labels) == (0.0, True, ("certain",) * 5)
    assert np.array_equal(result.links, np.ones((6, 6)))
    assert (entailer.asked, result.calls, result.usage.requests) == ([], 11, 11)


@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_answers_that_all_differ_score_log_k_plus_one_and_cost_the_most(k: int) -> None:
    result = labelled(script(distinct), ExactEntailer()).run(QUESTION, passages("abcdefghij"[:k]))
    assert result.score == pytest.approx(math.log(k + 1), abs=1e-15)
    assert (result.certain, set(result.labels), result.calls) == (False, {"necessary"}, k**2 + 6 * k + 1)


def test_one_of_five_chunks_is_not_understood() -> None:
    result = labelled(script({"abc'de": "B"}), ExactEntailer()).run(QUESTION, passages("abcde"))
    # Five answers are linked to five, one to itself alone.
    assert result.score == pytest.approx((5 * math.log(6 / 5) + math.log(6)) / 6)
    assert result.answers == ("A", "A", "A", "B", "A", "A")
    assert result.labels == ("certain", "certain", "unnecessary", "certain", "certain")
    assert [chunk.link for chunk in result.chunks] == [1, 1, 0, 1, 1]
    chunk = result.chunks[2]
    assert (chunk.rephrased, chunk.answer, chunk.masked_answer) == ("c'", "B", "A")


def literal(answers: dict[str, str], context: str) -> tuple[float, list[str]]:
    """Algorithm 1 and Eq. 5 to 10 for equality as entailment, line by line."""
    contexts = [context] + [context[:at] + x + "'" + context[at + 1 :] for at, x in enumerate(context)]
    replies = [answers[c] for c in contexts]
    total = 0.0
    for one in replies:
        degree = sum(float(one == other) for other in replies)
        total -= math.log(degree / len(replies))
    labels = []
    for at, one in enumerate(replies[1:]):
        masked = answers[context[:at] + context[at + 1 :]]
        labels.append(
            "certain" if one == replies[0] else "unnecessary" if masked == replies[0] else "necessary"
        )
    return total / len(replies), labels


@given(st.integers(1, 4), st.integers(0, 10**6))
def test_it_equals_algorithm_1_line_by_line(k: int, seed: int) -> None:
    context = "abcd"[:k]
    variants = product(*[(x, x + "'", "") for x in context])
    rng = np.random.default_rng(seed)
    answers = {"".join(variant): "XYZ"[rng.integers(3)] for variant in variants}

    def reply(seen: tuple[str, ...]) -> str:
        return answers["".join(seen)]

    reader = script(reply)
    closed = answers[""]
    ask = reader._default
    reader._default = lambda prompt: closed if prompt.startswith("Answer the question.\n") else ask(prompt)  # type: ignore[misc,operator]
    result = labelled(reader, ExactEntailer()).run(QUESTION, passages(context))
    score, labels = literal(answers, context)
    assert result.score == pytest.approx(score, abs=1e-12)
    assert list(result.labels) == labels


@given(st.lists(st.sampled_from("VWXYZ"), min_size=2, max_size=9))
def test_with_answers_in_groups_it_is_the_entropy_of_the_groups(texts: list[str]) -> None:
    # Appendix D: both measures run from 0 to log(k + 1); where entailment is an equivalence they are one.
    letters = "abcdefgh"[: len(texts) - 1]
    edits = {letters[:at] + x + "'" + letters[at + 1 :]: texts[at + 1] for at, x in enumerate(letters)}
    result = DenseEvaluator(script({letters: texts[0], **edits}), ExactEntailer()).run(
        QUESTION, passages(letters)
    )
    assert result.answers == tuple(texts)
    expected = semantic_entropy([1 / len(texts)] * len(texts), ["VWXYZ".index(text) for text in texts])
    assert result.score == pytest.approx(expected, abs=1e-12)


def test_half_a_link_leaves_a_chunk_necessary() -> None:
    # "A, B" entails "A" and not the other way round, so that w is one half.
    result = labelled(script({"a'b": "A, B", "b": "A, B"}), LongerEntails()).run(QUESTION, passages("ab"))
    assert result.links == ((1, 0.5, 1), (0.5, 1, 0.5), (1, 0.5, 1))
    assert result.score == pytest.approx(-(2 * math.log(2.5 / 3) + math.log(2 / 3)) / 3)
    assert result.labels == ("necessary", "certain")


@pytest.mark.parametrize(
    ("answer", "settings", "truncated", "empty"),
    [("It was in the north", {"max_tokens": 2}, 4, 0), ("", {}, 0, 4)],
)
def test_answers_that_are_alike_because_they_are_cut_or_empty_are_not_certain(
    answer: str, settings: dict[str, int], truncated: int, empty: int
) -> None:
    events: list[Event] = []
    reader = script(lambda _: answer)
    evaluator = DenseEvaluator(reader, ExactEntailer(), on_event=events.append, **settings)
    result = evaluator.run(QUESTION, passages("abc"))
    assert (result.score, result.certain) == (0.0, False)
    assert (result.truncated, result.empty) == (truncated, empty)
    [warning] = [event for event in events if event.warning]
    assert (warning.name, warning.data["truncated"], warning.data["empty"]) == (
        "dense.not_conclusive",
        truncated,
        empty,
    )


@pytest.mark.parametrize("outcome", ["empty", "cut", "unchanged"])
def test_a_rephrasing_that_cannot_be_used_leaves_the_chunk_as_it_is(outcome: str) -> None:
    cut = replace(fake_reply("b and a"), finish="length")

    def rephrase(text: str) -> object:
        return text + "'" if text != "b" else {"empty": " ", "cut": cut, "unchanged": "B\n"}[outcome]

    events: list[Event] = []
    evaluator = labelled(script({}, rephrase=rephrase), ExactEntailer(), on_event=events.append)
    result = evaluator.run(QUESTION, passages("ab"))
    assert [(chunk.outcome, chunk.rephrased) for chunk in result.chunks] == [
        ("rephrased", "a'"),
        (outcome, "b"),
    ]
    warned = [event.data["ids"] for event in events if event.warning]
    assert warned == ([] if outcome == "unchanged" else [["id-b"]])
    # A cut rephrasing is asked for again, another one is not; equal contexts are answered once.
    assert evaluator.run(QUESTION, passages("ab")).calls == (3 if outcome == "cut" else 2)


def test_without_any_rephrasing_there_is_no_certainty() -> None:
    result = labelled(script({}, rephrase=lambda text: text), ExactEntailer()).run(QUESTION, passages("ab"))
    assert (result.score, result.certain) == (0.0, False)


def test_a_chunk_is_rephrased_once_for_all_components_that_share_a_cache() -> None:
    reader = script({})
    first = labelled(reader, ExactEntailer())
    first.run(QUESTION, passages("abca"))
    first.with_options(label_chunks=False).run("When?", passages("ca"))
    labelled(reader, ExactEntailer(), rephrasings=first.rephrasings).run(QUESTION, passages("ab"))
    assert sum(kind(prompt) == "rephrase" for prompt in reader.prompts) == 3
    other = FakeReader(lambda prompt: "x", name="other")
    labelled(other, ExactEntailer(), rephrasings=first.rephrasings).run(QUESTION, passages("a"))
    assert any(kind(prompt) == "rephrase" for prompt in other.prompts)


def test_the_only_chunk_masked_is_no_context() -> None:
    reader = script({"a'": "B"})
    labelled(reader, ExactEntailer()).run(QUESTION, passages("a"))
    assert reader.prompts[-1] == DenseOptions.PROMPTS["closed_book"].render(question=QUESTION)


def test_edits_follow_the_original_from_last_to_first() -> None:
    reader = script({})
    labelled(reader, ExactEntailer()).run(QUESTION, passages("abc"))
    answered = ["".join(shown(prompt)) for prompt in reader.prompts if kind(prompt) == "answer"]
    assert answered == ["abc", "abc'", "ab'c", "a'bc"]


@pytest.mark.parametrize("max_calls", [5, 11, 17, 22, 28, 100])
def test_calls_are_bounded_and_what_is_untested_is_marked(max_calls: int) -> None:
    events: list[Event] = []
    reader = script(distinct)
    evaluator = labelled(reader, ExactEntailer(), max_calls=max_calls, on_event=events.append)
    result = evaluator.run(QUESTION, passages("abc"))
    assert result.calls <= max_calls
    assert result.out_of_calls == (max_calls < 28) == any(e.name == "dense.out_of_calls" for e in events)
    tested = sum(label != "untested" for label in result.labels)
    assert tested == {5: 1, 11: 2, 17: 2, 22: 3, 28: 3, 100: 3}[max_calls]
    assert len(result.answers) == tested + 1


@pytest.mark.parametrize(
    ("said", "link"),
    [("entailment", 1), ("**ENTAILMENT**!", 1), ("The first entails the second", 1), ("neutral", 0)],
)
def test_a_judge_in_words(said: str, link: float) -> None:
    judge = JudgeEntailer(FakeReader(default=said))
    assert DenseEvaluator(script({"a'b": "B"}), judge).run(QUESTION, passages("ab")).links[0] == (1, link, 1)


@pytest.mark.parametrize("said", ["not entailment", "entailment or neutral", "yes", "", "42 %$ {x}"])
def test_a_judge_that_cannot_be_used_is_no_measurement(said: str) -> None:
    with pytest.raises(ServiceError, match="2 of 2 replies"):
        DenseEvaluator(script({"a'b": "B"}), FakeReader(default=said)).run(QUESTION, passages("ab"))


@pytest.mark.parametrize("rows", [np.full((2, 3), np.nan), np.zeros((2, 2)), np.array([[0.2, 0.4, 0.4]] * 2)])
def test_no_judgement_is_an_error_and_a_tie_no_entailment(rows: Any) -> None:
    class Strange(LongerEntails):
        def entail(self, pairs: object) -> Any:
            return rows

    evaluator = DenseEvaluator(script({"a'": "B"}), Strange())
    if rows.sum() == 2:
        assert evaluator.run(QUESTION, passages("a")).links[0][1] == 0
    else:
        with pytest.raises(ServiceError, match="three finite probabilities"):
            evaluator.run(QUESTION, passages("a"))


def test_options_survive_a_dictionary_and_a_pickle() -> None:
    reader, entailer = FakeReader(["x"]), ExactEntailer()
    evaluator = labelled(reader, entailer, threshold=0.3, max_tokens=9)
    again = DenseEvaluator.from_dict(evaluator.to_dict(), reader=reader, entailer=entailer)
    assert again.to_dict() == evaluator.to_dict()
    assert pickle.loads(pickle.dumps(evaluator)).to_dict() == evaluator.to_dict()


def test_what_cannot_be_measured_is_refused() -> None:
    evaluator = labelled(script({}), ExactEntailer())
    for question, context in (("", "a"), (QUESTION, ""), (QUESTION, " ")):
        with pytest.raises(InputError):
            evaluator.run(question, passages(context))
    with pytest.raises(ConfigurationError, match="max_calls"):
        labelled(script({}), ExactEntailer(), max_calls=4)
    with pytest.raises(MissingServiceError, match="reader"):
        labelled(None, ExactEntailer())
    with pytest.raises(ConfigurationError, match="takes no prompt"):
        labelled(script({}), ExactEntailer(), prompts={"entailment": "{question} {premise} {hypothesis}"})
    down = script({}, rephrase=lambda _: ServiceError("down"))
    with pytest.raises(ServiceError, match="down"):
        labelled(down, ExactEntailer()).run(QUESTION, passages("a"))


def test_braces_and_slots_in_documents_are_text() -> None:
    reader = script({})
    labelled(reader, ExactEntailer()).run("{passages}?", [Passage("{question} {0} {{x}}")])
    assert any("[1] {question} {0} {{x}}" in prompt for prompt in reader.prompts)
