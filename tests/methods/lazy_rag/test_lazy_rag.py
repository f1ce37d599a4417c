"""L-RAG on a fake reader: what is asked, what is shown, and what happens when something fails."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from surerag import AbstentionGate, DisagreementGate, EntropyGate, FakeReader, LazyRAG, Passage
from surerag.calibration import AbstentionPolicy, scope_of
from surerag.errors import (
    ConfigurationError,
    InputError,
    LogprobsError,
    LogprobsRefusedError,
    MissingServiceError,
    PromptError,
    RefusedError,
    TransientServiceError,
)
from surerag.messages import Event, Generation, Message, Prompt, Template
from surerag.readers.fake import reply
from surerag.readers.protocol import BegunGeneration
from tests.methods.lazy_rag.corpus import Corpus

SUMMARY = "Ada is a {painter}."
DETAIL = "Ada was born in Velm. {question}"
UNKNOWN = "I do not know."


def pipeline(reader: FakeReader, **options: Any) -> tuple[LazyRAG, Corpus, Corpus]:
    corpus, summaries = Corpus(DETAIL, "Other.", "More.", "Last."), Corpus(SUMMARY, "Bo is a sculptor.")
    return LazyRAG(reader, corpus, summaries, **options), corpus, summaries


def test_a_sure_reader_answers_from_the_summaries_and_nothing_is_generated_twice() -> None:
    reader = FakeReader(["in the town of Velm by the river Orun, they say"], entropy=0.2)
    rag, corpus, summaries = pipeline(reader, threshold=0.5, n_tokens=4, n_summaries=2)
    result = rag.run("Where?")
    assert result.answer == "in the town of Velm by the river Orun, they say"
    assert (result.decision.retrieve, result.decision.score) == (False, pytest.approx(0.2))
    assert (corpus.queries, result.passages, summaries.queries) == ([], (), [("Where?", 2)])
    assert [call.verb for call in reader.history] == ["begin", "rest"]
    assert reader.usage.completion_tokens == result.usage.completion_tokens == 11
    assert "Context: Ada is a {painter}.\nBo is a sculptor.\n" in reader.prompts[0]


def test_an_unsure_reader_stops_after_n_tokens_and_answers_from_summaries_and_passages() -> None:
    reader = FakeReader(["perhaps it was somewhere in the north", "Velm"], entropy=2.0)
    rag, corpus, _ = pipeline(reader, threshold=0.5, n_tokens=3, top_n=2)
    result = rag.run("Where?")
    assert (result.answer, result.decision.retrieve, corpus.queries) == ("Velm", True, [("Where?", 2)])
    assert [passage.id for passage in result.passages] == ["p0", "p1"]
    assert [call.verb for call in reader.history] == ["begin", "close", "generate"]
    assert reader.usage.completion_tokens == result.usage.completion_tokens == 3 + 1
    assert (reader.open_handles, result.usage.requests) == (0, 2)
    first, second = reader.prompts
    assert "Additional details" not in first
    assert f"[1] {DETAIL}\n[2] Other." in second
    assert second.index(SUMMARY) < second.index("Additional details") < second.index(DETAIL)


def test_a_text_that_is_summary_and_passage_is_shown_once() -> None:
    reader = FakeReader(["perhaps", "Velm"], entropy=2.0)
    summaries, passages = Corpus(f" {DETAIL}", SUMMARY), Corpus(DETAIL, "Other.")
    result = LazyRAG(reader, passages, summaries).run("Where?")
    assert (len(result.summaries), len(result.passages)) == (2, 2)
    assert (reader.prompts[1].count(DETAIL), reader.prompts[1].count(SUMMARY)) == (1, 1)
    alone = FakeReader(["perhaps", "Velm"], entropy=2.0)
    LazyRAG(alone, passages, Corpus(DETAIL)).run("Where?")
    assert (alone.prompts[1].count(DETAIL), "Additional details" in alone.prompts[1]) == (1, False)


@pytest.mark.parametrize(("score", "retrieve"), [(0.5, False), (math.nextafter(0.5, 1), True)])
def test_at_the_threshold_the_gate_stays_shut(score: float, retrieve: bool) -> None:
    rag, _, _ = pipeline(FakeReader(["Velm"] * 2, entropy=score), threshold=0.5)
    assert rag.run("Where?").decision.retrieve is retrieve


def test_samples_that_agree_are_the_answer_and_nothing_more_is_asked() -> None:
    reader = FakeReader(["Orun", "Velm", "in Velm", "Velm", "Velm"], logprob=None)
    rag, corpus, _ = pipeline(reader, gate="semantic_entropy", threshold=0.65)
    result = rag.run("Where?")
    assert (result.answer, result.decision.retrieve, corpus.queries) == ("Velm", False, [])
    assert result.decision.score == pytest.approx(0.5004, abs=1e-4)
    [call] = reader.history
    assert call.sampling is not None
    assert (call.sampling.n, call.sampling.temperature, call.sampling.trace) == (5, 1.0, "optional_entropy")
    assert result.usage.requests == 5
    reader.add("Velm", "Orun", "Tarn", "Bo", "Ket", "in Tarn")
    assert rag.run("Where?").answer == "in Tarn"


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (reply("", entropy=0.0), "empty first answer"),
        (reply("a b c d e f", entropy=0.0), "the first answer was cut off at max_tokens"),
        (reply(UNKNOWN, entropy=0.0), "the first answer abstains"),
    ],
)
@pytest.mark.parametrize(
    "gate",
    [
        "entropy",
        "semantic_entropy",
        "abstention",
        EntropyGate(aggregate="max"),
        EntropyGate(aggregate="greatest_3"),
    ],
)
def test_an_answer_that_is_none_leads_to_a_search_however_sure_the_reader_is(
    first: Any, reason: str, gate: Any
) -> None:
    def answer(prompt: str) -> Any:
        return "Velm" if DETAIL in prompt else first

    rag, _, _ = pipeline(FakeReader(answer), gate=gate, abstention=UNKNOWN, max_tokens=5)
    result = rag.run("Where?")
    assert (result.answer, result.decision.retrieve, result.decision.reason) == ("Velm", True, reason)


@pytest.mark.parametrize("gate", ["entropy", "margin", "abstention"])
def test_the_first_pass_may_abstain_and_the_second_is_not_asked_to(gate: str) -> None:
    reader = FakeReader([reply(UNKNOWN, entropy=0.0), "Velm"])
    rag, _, _ = pipeline(reader, gate=gate)
    result = rag.run("Where?")
    assert (result.answer, result.decision.reason) == ("Velm", "the first answer abstains")
    assert (UNKNOWN in reader.prompts[0], UNKNOWN in reader.prompts[1]) == (True, False)


def test_the_users_abstention_is_asked_for_in_both_passes() -> None:
    reader = FakeReader([reply("Je ne sais pas.", entropy=0.0), "je ne sais pas"])
    rag, _, _ = pipeline(reader, abstention="Je ne sais pas.")
    result = rag.run("Where?")
    assert (result.decision.retrieve, result.abstained) == (True, True)
    assert all("Je ne sais pas." in prompt and UNKNOWN not in prompt for prompt in reader.prompts)


def test_the_papers_first_pass_is_not_asked_to_abstain() -> None:
    reader = FakeReader([reply(UNKNOWN, entropy=0.0)])
    rag, _, _ = pipeline(reader, abstention=False)
    result = rag.run("Where?")
    assert (result.answer, result.decision.retrieve, result.abstained) == (UNKNOWN, False, False)
    assert UNKNOWN not in reader.prompts[0]


def test_the_gate_abstention_needs_text_and_one_call() -> None:
    reader = FakeReader(["Velm", UNKNOWN, "Orun"], logprob=None)
    rag, _, _ = pipeline(reader, gate="abstention")
    known, unknown = rag.run("Where?"), rag.run("Where?")
    assert (known.answer, known.decision.retrieve, known.usage.requests) == ("Velm", False, 1)
    assert known.decision.reason == "the first answer does not abstain"
    assert (unknown.answer, unknown.decision.retrieve, unknown.usage.requests) == ("Orun", True, 2)
    reader.add("Velm", "Velm")
    assert rag.with_options(threshold=-math.inf).run("Where?").decision.retrieve


def test_an_abstention_whose_search_finds_nothing_is_the_answer() -> None:
    reader = FakeReader([UNKNOWN, UNKNOWN], entropy=0.0)
    result = LazyRAG(reader, Corpus(), SUMMARY).run("Where?")
    assert (result.answer, result.abstained, result.passages) == (UNKNOWN, True, ())
    assert reader.prompts[0] == reader.prompts[1]


@pytest.mark.parametrize(
    "gate", [EntropyGate(n_tokens=n) for n in (1, 2, 3, 8)] + [AbstentionGate(n_tokens=1)]
)
@pytest.mark.parametrize("first", [UNKNOWN, "I do not know. No summary says so, as far as I can see."])
def test_a_stream_never_shows_the_abstention_of_the_first_pass(gate: Any, first: str) -> None:
    rag, _, _ = pipeline(FakeReader([reply(first, entropy=0.0), "in Velm"]), gate=gate)
    with rag.stream("Where?") as stream:
        assert "".join(stream) == "in Velm"


def test_an_answer_that_only_begins_like_the_abstention_is_not_generated_twice() -> None:
    reader = FakeReader(["I painted it in Velm."], entropy=0.1)
    rag, _, _ = pipeline(reader, n_tokens=1)
    result = rag.run("Where?")
    assert (result.answer, result.decision.score) == ("I painted it in Velm.", pytest.approx(0.1))
    assert [call.verb for call in reader.history] == ["begin", "rest"]


@pytest.mark.parametrize(("aggregate", "score"), [("max", 3.0), ("greatest_3", 3.2 / 3)])
def test_the_largest_entropies_stop_the_answer_as_soon_as_they_are_above_the_threshold(
    aggregate: Any, score: float
) -> None:
    words = "a b c d e f g h i j"
    early = [0.1, 3.0, *[0.1] * 8]
    late = [*[0.1] * 9, 3.0]
    gate = EntropyGate(aggregate=aggregate, n_tokens=4)
    for entropies, verbs in (
        (early, ["begin", "close", "generate"]),
        (late, ["begin", "rest", "generate"]),
    ):
        reader = FakeReader([reply(words, entropy=entropies), "Velm"])
        rag, _, _ = pipeline(reader, gate=gate)
        result = rag.run("Where?")
        assert (result.answer, result.decision.score) == ("Velm", pytest.approx(score))
        assert [call.verb for call in reader.history] == verbs
        assert reader.usage.completion_tokens == (4 if entropies is early else 10) + 1
    reader = FakeReader([reply(words, entropy=0.1)])
    rag, _, _ = pipeline(reader, gate=gate)
    assert (rag.run("Where?").answer, reader.open_handles) == (words, 0)


def test_an_answer_that_turns_out_empty_leads_to_a_search() -> None:
    class Vanishing(BegunGeneration):
        def rest(self) -> Generation:
            return reply("")

    class VanishingReader(FakeReader):
        def begin(self, prompts: Any, n_tokens: int, sampling: Any) -> list[BegunGeneration]:
            return [Vanishing(begun.partial) for begun in super().begin(prompts, n_tokens, sampling)]

    reader = VanishingReader(["one two three", "Velm"], entropy=0.1)
    rag, _, _ = pipeline(reader, n_tokens=1)
    result = rag.run("Where?")
    assert (result.answer, result.decision.reason) == ("Velm", "empty first answer")


def test_an_answer_cut_off_at_its_limit_says_so_with_a_warning() -> None:
    events: list[Event] = []
    rag, _, _ = pipeline(FakeReader(["a b c d e"], entropy=0.1), n_tokens=2, max_tokens=4)
    rag.on_event = events.append
    assert rag.run("Where?").finish == "length"
    assert [event.name for event in events if event.warning] == ["lazy_rag.cut_off"]


@pytest.mark.parametrize(
    "error",
    [TransientServiceError("busy"), LogprobsError("null"), TimeoutError("slow"), ConnectionError("x")],
)
def test_a_first_pass_that_fails_retrieves_with_a_warning(error: Exception) -> None:
    events: list[Event] = []
    rag, _, _ = pipeline(FakeReader([error, "Velm"]))
    rag.on_event = events.append
    result = rag.run("Where?")
    assert (result.answer, result.decision.retrieve, result.decision.score) == ("Velm", True, None)
    assert result.decision.reason.startswith(f"the first pass failed: {type(error).__name__}")
    assert [event.name for event in events if event.warning] == ["lazy_rag.gate"]
    assert SUMMARY in rag.reader.prompts[-1]  # type: ignore[union-attr]


def test_a_bad_log_probability_frees_what_was_begun() -> None:
    reader = FakeReader([reply("a b c", entropy=None), "Velm"])
    rag, _, _ = pipeline(reader, n_tokens=1)
    assert rag.run("Where?").decision.reason.startswith("the first pass failed: LogprobsError")
    assert reader.open_handles == 0


def test_summaries_that_fail_are_left_out() -> None:
    class Broken:
        def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
            raise ConnectionError("index is down")

    reader = FakeReader(["Velm"])
    result = LazyRAG(reader, Corpus(DETAIL), Broken()).run("Where?")
    assert (result.answer, result.summaries) == ("Velm", ())
    assert f"Context: [1] {DETAIL}" in reader.prompts[0]
    unsure = FakeReader(["a b c d e f g h i j k"], entropy=2.0)
    with pytest.raises(ConnectionError, match="index is down"):
        LazyRAG(unsure, Broken(), SUMMARY).run("Where?")
    assert unsure.open_handles == 0


@pytest.mark.parametrize(
    "error", [RefusedError("no key"), LogprobsRefusedError("never"), PromptError("slot")]
)
def test_what_is_misconfigured_raises(error: Exception) -> None:
    rag, corpus, _ = pipeline(FakeReader([error, "Velm"]))
    with pytest.raises(type(error)):
        rag.run("Where?")
    assert corpus.queries == []


def test_nothing_retrieved_leaves_the_summaries_with_a_warning_and_never_an_empty_context() -> None:
    events: list[Event] = []
    reader = FakeReader(["unsure", "still unsure", "unsure", "Velm"], entropy=2.0)
    rag = LazyRAG(reader, Corpus(), SUMMARY, on_event=events.append)
    assert rag.run("Where?").answer == "still unsure"
    assert [(event.name, event.warning) for event in events] == [
        ("lazy_rag.gate", False),
        ("lazy_rag.nothing_retrieved", True),
        ("lazy_rag.answering", False),
    ]
    assert f"Context: {SUMMARY}\n" in reader.prompts[1]
    found_none = LazyRAG(FakeReader(["Velm"], entropy=0.0), Corpus(), Corpus()).run("Where?")
    assert (found_none.answer, found_none.decision.reason) == ("Velm", "no summary was found")


def test_one_dissenting_sample_leads_to_a_search_by_default() -> None:
    rag, corpus, _ = pipeline(FakeReader(["Orun", *["Velm"] * 5], logprob=None), gate="semantic_entropy")
    assert rag.run("Where?").decision.retrieve
    assert len(corpus.queries) == 1


def test_where_no_summary_is_found_there_is_a_search_however_sure_the_reader_is() -> None:
    reader = FakeReader(["Velm"], entropy=0.0)
    corpus = Corpus("Ada was born in Velm.")
    result = LazyRAG(reader, corpus, Corpus()).run("Where?")
    assert (result.decision.retrieve, result.decision.reason) == (True, "no summary was found")
    [prompt] = reader.prompts
    assert "Ada was born in Velm." in prompt


def test_events_hold_plain_values_and_the_plan() -> None:
    events: list[Event] = []
    rag, _, _ = pipeline(FakeReader(["Velm", "Velm"], entropy=2.0))
    result = rag.with_options(on_event=events.append).run("Where?")
    gate, answering = json.loads(json.dumps([dict(event.data) for event in events]))
    assert (gate["score"], gate["retrieve"]) == (pytest.approx(2.0), True)
    assert answering["passages"] == ["p0", "p1", "p2", "p3"]
    plan = events[1].detail
    assert (plan.decision, plan.passages, plan.summaries) == (
        result.decision,
        result.passages,
        result.summaries,
    )


class Policy:
    """A calibrated threshold."""

    threshold = 0.4

    def __init__(self, scope: dict[str, str]) -> None:
        self.scope = scope

    def check(self, component: Any) -> None:
        if scope_of(component) != self.scope:
            raise ConfigurationError("calibrated for another")


def test_a_policy_is_refused_where_it_was_calibrated_for_another() -> None:
    rag, _, _ = pipeline(FakeReader(["Velm"] * 9, entropy=0.5))
    policy = Policy(scope_of(rag))
    assert rag.with_options(threshold=policy).run("Where?").decision.retrieve is True
    for change in (
        {"gate": "margin"},
        {"n_tokens": 3},
        {"reader": FakeReader(name="other")},
        {"prompts": {"closed_book": "Say: {question}"}},
    ):
        with pytest.raises(ConfigurationError, match="calibrated for another"):
            rag.with_options(threshold=policy, **change)


def test_samples_that_never_differ_warn_once() -> None:
    reader = FakeReader(lambda prompt: "Velm", logprob=None)
    rag, _, _ = pipeline(reader, gate="semantic_entropy", n_samples=2)
    questions = ["Where?"] * 45
    with pytest.warns(UserWarning, match="20 questions in a row, all sampled answers agree") as caught:
        list(map(rag.run, questions))
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"retriever": None}, MissingServiceError, "needs a retriever"),
        ({"summaries": None}, MissingServiceError, "needs summaries"),
        ({"reader": None}, MissingServiceError, "needs a reader"),
        ({"reader": "gpt-4o"}, ConfigurationError, "expected a reader"),
        ({"retriever": [Passage("x")]}, ConfigurationError, "must be a Retriever"),
        ({"summaries": " "}, InputError, "summary is empty"),
        ({"gate": "doubt"}, ConfigurationError, "gate should be 'entropy', 'margin', 'semantic_entropy'"),
        (
            {"gate": "abstention", "abstention": False},
            ConfigurationError,
            "a prompt that demands an abstention",
        ),
        (
            {"gate": AbstentionGate(), "abstention": False},
            ConfigurationError,
            "a prompt that demands an abstention",
        ),
        ({"gate": "margin", "n_samples": 3}, ConfigurationError, "n_samples is for the gate"),
        ({"gate": {"name": "margin", "bits": 8}}, ConfigurationError, "gate margin has no setting 'bits'"),
        ({"gate": DisagreementGate(), "n_samples": 3}, ConfigurationError, "n_samples is for the gate"),
        ({"threshold": math.nan}, ConfigurationError, "threshold must be a number"),
        ({"threshold": "1"}, ConfigurationError, "threshold must be a number"),
        (
            {"threshold": AbstentionPolicy(1.0, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))},
            ConfigurationError,
            "which answers to withhold.* Pass a ThresholdPolicy",
        ),
        ({"top_n": 0}, ConfigurationError, "top_n should be greater"),
        ({"abstention": "…"}, ConfigurationError, "abstention is empty"),
        ({"prompts": {"from_context": "Q: {question}"}}, PromptError, "slots"),
        ({"mode": "strong"}, ConfigurationError, "has no option 'mode'"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    services = {"reader": FakeReader(["Velm"]), "retriever": Corpus(DETAIL), "summaries": SUMMARY}
    with pytest.raises(error, match=match):
        LazyRAG(**{**services, **options})


class InTurns:
    """A template of one's own that makes a conversation."""

    name = "in_turns"
    text = "Be brief. {question}"

    def require(self, *slots: str) -> Template:
        assert slots == ("question",)
        return self

    def render(self, **values: str) -> Prompt:
        return (Message("system", "Be brief."), Message("user", values["question"]))


def test_a_template_of_ones_own_may_make_a_conversation() -> None:
    reader = FakeReader(["Velm"])
    rag = LazyRAG(reader, Corpus(), Corpus(), prompts={"closed_book": InTurns()})
    assert rag.run("Where {now}?").answer == "Velm"
    assert "Be brief." in reader.prompts[0] and "Where {now}?" in reader.prompts[0]
    assert rag.to_dict()["prompts"]["closed_book"] == InTurns.text


def test_a_lone_surrogate_is_replaced_before_it_reaches_a_model() -> None:
    reader = FakeReader(["unsure", "Velm"], entropy=2.0)
    LazyRAG(reader, Corpus("Velm \ud800"), SUMMARY).run("Where \udcff?")
    for prompt in reader.prompts:
        prompt.encode()


@pytest.mark.parametrize("question", ["", "  \n", None, ["Where?"]])
def test_what_is_no_question_is_refused(question: Any) -> None:
    rag, _, _ = pipeline(FakeReader(["Velm"]))
    with pytest.raises(InputError):
        rag.run(question)


@pytest.mark.parametrize("gate", ["margin", EntropyGate(n_tokens=3, estimate="upper"), DisagreementGate()])
def test_settings_survive_json_and_pickles(gate: Any) -> None:
    rag, corpus, summaries = pipeline(
        FakeReader(["Velm"] * 9, name="model-x"),
        gate=gate,
        threshold=math.inf,
        prompts={"closed_book": "Say: {question}"},
    )
    settings = json.loads(json.dumps(rag.to_dict()))
    assert settings["reader"] == "model-x"
    again = LazyRAG.from_dict(settings, reader=rag.reader, retriever=corpus, summaries=summaries)
    assert again.to_dict() == rag.to_dict()
    assert again.resolved_gate == rag.resolved_gate
    assert pickle.loads(pickle.dumps(rag)).run("Where?").answer == "Velm"
