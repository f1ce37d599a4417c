"""DENSE: hand-worked scores and labels, what it costs, and what it does with models that misbehave."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag import DenseCache, DenseEvaluator, DenseOptions, FakeReader, Passage
from surerag.entailment import ExactEntailer, JudgeEntailer
from surerag.errors import ConfigurationError, InputError, MissingServiceError, ServiceError
from surerag.measures import semantic_entropy
from surerag.messages import Event
from surerag.methods.dense.algorithm import says_yes
from surerag.prompts import PromptTemplate
from surerag.readers.fake import reply as scripted_reply
from tests.methods.dense_rag.script import QUESTION, LongerEntails, distinct, kind, passages, script, shown


def labelled(*services: Any, **options: Any) -> DenseEvaluator:
    return DenseEvaluator(*services, **{"mask": True, **options})


def test_a_context_that_is_understood_scores_zero_exactly_and_asks_no_judge() -> None:
    entailer = LongerEntails()
    result = labelled(script({}), entailer).run(QUESTION, passages("abcde"))
    assert (result.score, result.certain) == (0.0, True)
    assert result.labels == ("certain",) * 5
    assert np.array_equal(result.links, np.ones((6, 6)))
    assert entailer.asked == []
    assert (result.calls.rephrasings, result.calls.answers, result.calls.total) == (5, 6, 11)


@pytest.mark.parametrize("k", range(1, 11))
def test_answers_that_all_differ_score_log_k_plus_one_and_cost_the_most(k: int) -> None:
    reader = script(distinct)
    result = labelled(reader, ExactEntailer()).run(QUESTION, passages("abcdefghij"[:k]))
    assert result.score == pytest.approx(math.log(k + 1), abs=1e-15)
    assert not result.certain
    assert set(result.labels) == {"necessary"}
    assert result.calls.total == k**2 + 6 * k + 1
    assert (result.calls.answers, result.calls.judgements) == (2 * k + 1, k * (k + 1) + 2 * k)


def test_one_of_five_chunks_is_not_understood() -> None:
    result = labelled(script({"abc'de": "B"}), ExactEntailer()).run(QUESTION, passages("abcde"))
    # Five answers are linked to five, one to itself alone.
    assert result.score == pytest.approx((5 * math.log(6 / 5) + math.log(6)) / 6)
    assert result.answers == ("A", "A", "A", "B", "A", "A")
    assert result.labels == ("certain", "certain", "unnecessary", "certain", "certain")
    assert [chunk.link for chunk in result.chunks] == [1, 1, 0, 1, 1]
    reading = result.chunks[2]
    assert (reading.rephrased.text, reading.answer, reading.masked_answer) == ("c'", "B", "A")


def test_answers_cut_at_the_limit_are_counted_and_told_of() -> None:
    events: list[Event] = []
    # Two answers of four are too long, and one of those without a chunk.
    reader = script({"a'bc": "B and more", "ab'c": "C and more", "bc": "D and more"})
    result = labelled(reader, ExactEntailer(), max_tokens=2, on_event=events.append).run(
        QUESTION, passages("abc")
    )
    assert result.truncated == 3
    assert result.to_dict()["truncated"] == 3
    told = [event for event in events if event.name == "dense.truncated"]
    assert all(event.warning for event in told)
    assert [(event.data["truncated"], event.data["answers"]) for event in told] == [(2, 4), (1, 2)]
    assert {event.data["max_tokens"] for event in told} == {2}
    assert labelled(reader, ExactEntailer()).run(QUESTION, passages("abc")).truncated == 0


def test_labels_say_what_the_answer_without_a_chunk_says() -> None:
    reader = script({"a'bc": "B", "bc": "C", "ab'c": "B", "ac": "A"})
    result = labelled(reader, ExactEntailer()).run(QUESTION, passages("abc"))
    assert result.labels == ("necessary", "unnecessary", "certain")
    assert [chunk.masked_answer for chunk in result.chunks] == ["C", "A", None]
    assert [chunk.masked_link for chunk in result.chunks] == [0, 1, None]


@pytest.mark.parametrize("half", ["necessary", "unnecessary"])
def test_half_a_link(half: str) -> None:
    # "A, B" entails "A" and not the other way round, so that w is one half.
    reader = script({"a'b": "A, B", "b": "A, B"})
    result = labelled(reader, LongerEntails(), half=half).run(QUESTION, passages("ab"))  # type: ignore[arg-type]
    assert result.links == ((1, 0.5, 1), (0.5, 1, 0.5), (1, 0.5, 1))
    assert result.score == pytest.approx(-(2 * math.log(2.5 / 3) + math.log(2 / 3)) / 3)
    assert result.labels == (half, "certain")


@given(st.lists(st.sampled_from("VWXYZ"), min_size=2, max_size=9))
def test_with_answers_in_groups_it_is_the_entropy_of_the_groups(texts: list[str]) -> None:
    # Appendix D: both measures run from 0 to log(k + 1); where entailment is an equivalence they are one.
    letters = "abcdefgh"[: len(texts) - 1]
    said = {
        letters[:at] + letter + "'" + letters[at + 1 :]: texts[at + 1] for at, letter in enumerate(letters)
    }
    reader = script({letters: texts[0], **said})
    result = DenseEvaluator(reader, ExactEntailer()).run(QUESTION, passages(letters))
    assert result.answers == tuple(texts)
    expected = semantic_entropy([1 / len(texts)] * len(texts), ["VWXYZ".index(text) for text in texts])
    assert result.score == pytest.approx(expected, abs=1e-12)
    assert 0 <= result.score <= math.log(len(texts)) + 1e-12
    assert (result.score == 0) == (len(set(texts)) == 1)


def test_without_masking_uncertain_chunks_stay_uncertain_and_cost_nothing() -> None:
    result = DenseEvaluator(script({"a'b": "B"}), ExactEntailer()).run(QUESTION, passages("ab"))
    assert result.labels == ("uncertain", "certain")
    assert result.calls.answers == 3


def test_the_only_chunk_masked_is_no_context() -> None:
    reader = script({"a'": "B"})
    labelled(reader, ExactEntailer()).run(QUESTION, passages("a"))
    assert reader.prompts[-1] == DenseOptions.PROMPTS["closed_book"].render(question=QUESTION)


def test_edits_follow_the_original_from_last_to_first() -> None:
    reader = script({})
    labelled(reader, ExactEntailer()).run(QUESTION, passages("abc"))
    asked = [
        [("".join(shown(p))) for p in call.prompts]
        for call in reader.history
        if kind(call.prompts[0]) == "answer"
    ]
    # This reader is no local model: a server's cache shall have the original before its edits come.
    assert asked == [["abc"], ["abc'", "ab'c", "a'bc"]]


def test_a_chunk_is_rephrased_once_per_corpus() -> None:
    reader = script({})
    dense = labelled(reader, ExactEntailer())
    assert dense.prepare(passages("abcab")) == 5
    dense.run(QUESTION, passages("ab"))
    dense.with_options(mask=False).run("When?", passages("ca"))
    assert sum(kind(prompt) == "rephrase" for prompt in reader.prompts) == 3


def test_links_are_known_to_the_cache_for_the_same_question_only() -> None:
    entailer, cache = LongerEntails(), DenseCache()
    for question in ("Where?", "Where?", "When?"):
        labelled(script({"a'b": "B"}), entailer, cache=cache).run(question, passages("ab"))
    assert [pair.question for pair in entailer.asked] == ["Where?", "Where?", "When?", "When?"]


def test_another_model_or_prompt_knows_nothing_of_it() -> None:
    cache = DenseCache()
    labelled(script({}), ExactEntailer(), cache=cache).run(QUESTION, passages("a"))
    other = FakeReader(lambda prompt: "x", name="other")
    assert labelled(other, ExactEntailer(), cache=cache).run(QUESTION, passages("a")).calls.rephrasings == 1
    prompts = {"rephrase": PromptTemplate("mine", "Rewrite this. Text: {passage}")}
    again = labelled(script({}), ExactEntailer(), cache=cache, prompts=prompts)
    assert again.run(QUESTION, passages("a")).calls.rephrasings == 1


@pytest.mark.parametrize("outcome", ["empty", "cut", "unchanged"])
def test_a_rephrasing_that_cannot_be_used_leaves_the_chunk_as_it_is(outcome: str) -> None:
    def rephrase(text: str) -> object:
        if text != "b":
            return text + "'"
        return {"empty": " ", "cut": replace(scripted_reply("b and a"), finish="length"), "unchanged": "b"}[
            outcome
        ]

    events: list[Event] = []
    dense = labelled(script({}, rephrase=rephrase), ExactEntailer(), on_event=events.append)
    result = dense.run(QUESTION, passages("ab"))
    assert [chunk.rephrased.outcome for chunk in result.chunks] == ["rephrased", outcome]
    assert result.chunks[1].rephrased.text == "b"
    assert result.calls.answers == 2, "an equal context is asked about once"
    warned = [event.data["ids"] for event in events if event.name == "dense.not_rephrased" and event.warning]
    assert warned == ([] if outcome == "unchanged" else [["id-b"]])
    again = dense.run(QUESTION, passages("ab"))
    assert again.calls.rephrasings == (1 if outcome == "cut" else 0)


def test_without_any_rephrasing_there_is_no_certainty() -> None:
    events: list[Event] = []
    dense = labelled(script({}, rephrase=lambda text: text), ExactEntailer(), on_event=events.append)
    result = dense.run(QUESTION, passages("ab"))
    assert (result.score, result.certain) == (0.0, False)
    assert "dense.untested" in [event.name for event in events if event.warning]


@pytest.mark.parametrize(
    ("said", "link", "unparsed"),
    [
        ("entailment", 1, 0),
        ("Entailment.", 1, 0),
        ("**ENTAILMENT**!", 1, 0),
        ("The first entails the second", 1, 0),
        ("neutral", 0, 0),
        ("CONTRADICTION", 0, 0),
        ("not entailment", 0, 2),
        ("entailment or neutral", 0, 2),
        ("yes", 0, 2),
        ("", 0, 2),
        ("42 %$ {x}", 0, 2),
    ],
)
def test_a_judge_in_its_own_words_is_never_silently_taken_for_entailment(
    said: str, link: float, unparsed: int
) -> None:
    judge = JudgeEntailer(FakeReader(default=said))
    result = DenseEvaluator(script({"a'b": "B"}), judge).run(QUESTION, passages("ab"))
    assert result.links[0] == (1, link, 1)
    assert judge.unparsed == unparsed


def test_a_threshold_for_entailment_and_a_tie() -> None:
    class Unsure(LongerEntails):
        def entail(self, pairs: object) -> np.ndarray:
            return np.array([[0.2, 0.4, 0.4]] * len(pairs))  # type: ignore[arg-type]

    reader = script({"a'": "B"})
    assert DenseEvaluator(reader, Unsure()).run(QUESTION, passages("a")).links[0][1] == 0
    eager = DenseEvaluator(reader, Unsure(), entailment_threshold=0.4)
    assert eager.run(QUESTION, passages("a")).links[0][1] == 1


@pytest.mark.parametrize("rows", [np.full((2, 3), np.nan), np.zeros((2, 2))])
def test_what_is_no_judgement_is_an_error(rows: np.ndarray) -> None:
    class Broken(LongerEntails):
        def entail(self, pairs: object) -> np.ndarray:
            return rows

    with pytest.raises(ServiceError, match="three probabilities"):
        labelled(script({"a'": "B"}), Broken()).run(QUESTION, passages("a"))


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("Yes.", True),
        ("**NO**", False),
        ("no, it is missing", False),
        ("yes and no", None),
        ("noon", None),
        ("", None),
    ],
)
def test_yes_or_no(said: str, verdict: bool | None) -> None:
    assert says_yes(said) is verdict


def test_braces_and_slots_in_documents_are_text() -> None:
    reader = script({})
    labelled(reader, ExactEntailer()).run("{passages}?", [Passage("{question} {0} {{x}}")])
    assert any("[1] {question} {0} {{x}}" in prompt for prompt in reader.prompts)


def test_inputs_stay_as_they_are() -> None:
    given = passages("ab")
    result = labelled(script({"a'b": "B"}), ExactEntailer()).run(QUESTION, given)
    assert all(mine is yours for mine, yours in zip(result.passages, given, strict=True))
    assert given == passages("ab")


async def test_sync_async_and_many_agree() -> None:
    def dense() -> DenseEvaluator:
        return labelled(script({"a'bc": "B", "bc": "C"}), ExactEntailer())

    cases = [(f"{QUESTION} {number}", passages("abc")) for number in range(3)]
    alone = [dense().run(*case) for case in cases]
    assert [await dense().arun(*case) for case in cases] == alone
    many = dense().run_many(cases)
    assert [result.score for result in many] == [result.score for result in alone]
    assert [r.labels for r in await dense().arun_many(cases)] == [r.labels for r in alone]


def test_options_survive_a_dictionary_and_a_pickle() -> None:
    reader, entailer = FakeReader(["x"]), ExactEntailer()
    dense = labelled(reader, entailer, threshold=0.3, half="unnecessary", max_tokens=9)
    again = DenseEvaluator.from_dict(dense.to_dict(), reader=reader, entailer=entailer)
    assert again.to_dict() == dense.to_dict()
    assert pickle.loads(pickle.dumps(dense)).to_dict() == dense.to_dict()
    with pytest.raises(ConfigurationError, match="unknown"):
        DenseEvaluator.from_dict({"colour": 1}, reader=reader, entailer=entailer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": -1}, "threshold"),
        ({"half": "maybe"}, "half"),
        ({"entailment_threshold": 0}, "entailment_threshold"),
    ],
)
def test_options_out_of_bounds(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        labelled(script({}), ExactEntailer(), **change)  # type: ignore[arg-type]


def test_what_cannot_be_measured_is_refused() -> None:
    dense = labelled(script({}), ExactEntailer())
    for question, context in (("", "a"), (QUESTION, ""), (QUESTION, " ")):
        with pytest.raises(InputError):
            dense.run(question, passages(context))
    with pytest.raises(MissingServiceError, match="reader"):
        labelled(None, ExactEntailer())


def test_a_failing_reader_is_an_error() -> None:
    down = script({}, rephrase=lambda _: ServiceError("down"))
    with pytest.raises(ServiceError, match="down"):
        labelled(down, ExactEntailer()).run(QUESTION, passages("a"))
