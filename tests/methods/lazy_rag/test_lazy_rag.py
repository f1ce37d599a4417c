"""L-RAG on a scripted reader: what is asked, what is shown, what it costs."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag import FakeReader, LazyRAG, Passage
from surerag.errors import CapabilityError, ConfigurationError, InputError, MissingServiceError, PromptError
from surerag.messages import Event, Message, Prompt, Template
from tests.methods.lazy_rag.corpus import Corpus

SUMMARY = "Ada is a {painter}."
DETAIL = "Ada was born in Velm. {question}"


def pipeline(reader: FakeReader, **settings: Any) -> tuple[LazyRAG, Corpus, Corpus]:
    corpus, summaries = Corpus(DETAIL, "Other.", "More.", "Last."), Corpus(SUMMARY, "Bo is a sculptor.")
    return LazyRAG(reader, corpus, summaries, **settings), corpus, summaries


def test_a_sure_reader_answers_from_the_summary_and_nothing_is_retrieved_or_said_twice() -> None:
    reader = FakeReader(["in the town of Velm by the river Orun, they say"], entropy=0.2)
    rag, corpus, summaries = pipeline(reader, threshold=0.5, gate_tokens=4, n_summaries=2)
    result = rag.run("Where?")
    assert result.answer == "in the town of Velm by the river Orun, they say"
    assert (result.decision.retrieve, result.decision.signal) == (False, pytest.approx(0.2))
    assert (corpus.asked, result.retrievals, result.passages) == ([], 0, ())
    assert summaries.asked == [("Where?", 2)]
    assert [call.verb for call in reader.history] == ["begin", "finish"]
    assert reader.tokens_emitted == result.completion_tokens == 11
    [prompt] = reader.prompts
    assert "Context: Ada is a {painter}.\nBo is a sculptor.\n" in prompt
    assert set(result.timings) == {"summaries", "first_pass", "answer"}


def test_an_unsure_reader_stops_after_n_tokens_and_starts_again_with_what_was_retrieved() -> None:
    reader = FakeReader(["perhaps it was somewhere in the north", "Velm"], entropy=2.0)
    rag, corpus, _ = pipeline(reader, threshold=0.5, gate_tokens=3, top_n=2)
    result = rag.run("Where?")
    assert result.answer == "Velm"
    assert result.decision.retrieve is True
    assert corpus.asked == [("Where?", 2)]
    assert [passage.id for passage in result.passages] == ["p0", "p1"]
    assert [call.verb for call in reader.history] == ["begin", "cancel", "generate"]
    assert reader.tokens_emitted == 3 + 1 == result.completion_tokens
    assert reader.open_handles == 0
    first, second = reader.prompts
    assert "Additional details" not in first
    assert f"[1] {DETAIL}\n[2] Other." in second
    assert second.index(SUMMARY) < second.index("Additional details") < second.index(DETAIL)


@pytest.mark.parametrize(
    ("mode", "retrievals", "summarised", "shown"),
    [("none", 0, 0, []), ("standard", 1, 0, [DETAIL]), ("strong", 1, 1, [SUMMARY, DETAIL])],
)
def test_baselines_of_table_one(mode: Any, retrievals: int, summarised: int, shown: list[str]) -> None:
    reader = FakeReader(["Velm"])
    rag, corpus, summaries = pipeline(reader, mode=mode)
    result = rag.run("Where?")
    assert (len(corpus.asked), len(summaries.asked), result.retrievals) == (
        retrievals,
        summarised,
        retrievals,
    )
    [prompt] = reader.prompts
    assert [text for text in (SUMMARY, DETAIL) if text in prompt] == shown
    assert result.decision.reason == f"mode {mode}"


def test_the_oracle_reads_the_gold_passages() -> None:
    reader = FakeReader(["Velm"])
    rag, corpus, _ = pipeline(reader, mode="oracle")
    result = rag.run("Where?", oracle=[Passage("Gold.", id="g")])
    assert "Context: [1] Gold.\n" in reader.prompts[0]
    assert (corpus.asked, [passage.id for passage in result.passages], result.retrievals) == ([], ["g"], 0)
    with pytest.raises(InputError, match="gold passages"):
        rag.run("Where?")
    with pytest.raises(InputError, match="gold passages"):
        rag.with_options(mode="standard").run("Where?", oracle=[])


def test_a_gate_on_every_step_sees_the_whole_answer() -> None:
    reader = FakeReader(["a b c d e f g h i j", "short"], entropy=2.0)
    rag, _, _ = pipeline(reader, aggregate="max", gate_tokens=2, max_tokens=9)
    rag.run("Where?")
    assert reader.history[0].n_tokens == 9


def test_nothing_retrieved_falls_back_to_the_summary_with_a_warning() -> None:
    events: list[Event] = []
    reader = FakeReader(["unsure", "still unsure"], entropy=2.0)
    rag = LazyRAG(reader, Corpus(), SUMMARY)
    result = rag.with_options(on_event=events.append).run("Where?")
    assert [(event.name, event.warning) for event in events] == [
        ("lazy_rag.gate", False),
        ("lazy_rag.nothing_retrieved", True),
        ("lazy_rag.answering", False),
    ]
    assert result.answer == "still unsure"
    assert f"Context: {SUMMARY}\n" in reader.prompts[1]


def test_nothing_at_all_to_show_is_never_an_empty_context() -> None:
    reader = FakeReader(["Velm"])
    LazyRAG(reader, Corpus(), mode="standard").run("Where?")
    assert "Context" not in reader.prompts[0]


def test_a_retriever_that_fails_raises_and_frees_the_first_pass() -> None:
    class Broken:
        def retrieve(self, query: str, k: int) -> Sequence[Passage]:
            raise ConnectionError("index is down")

    reader = FakeReader(["a b c d e f g h i j k"], entropy=2.0)
    with pytest.raises(ConnectionError, match="index is down"):
        LazyRAG(reader, Broken(), SUMMARY).run("Where?")
    assert reader.open_handles == 0


def test_events_hold_plain_values() -> None:
    events: list[Event] = []
    rag, _, _ = pipeline(FakeReader(["Velm", "Velm"], entropy=2.0))
    rag.with_options(on_event=events.append).run("Where?")
    data = json.loads(json.dumps([dict(event.data) for event in events]))
    assert data[0]["signal"] == pytest.approx(2.0)
    assert data[1]["passages"] == ["p0", "p1", "p2", "p3"]


@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 6)), min_size=1, max_size=6),
    st.floats(0.0, 3.0),
)
def test_every_way_of_running_gives_the_same(script: list[tuple[float, int]], tau: float) -> None:
    """Sync, async, many and streamed; the entropy of an answer is a function of its prompt."""
    questions = [f"question {i} {entropy} {length}" for i, (entropy, length) in enumerate(script)]

    def reader() -> FakeReader:
        return FakeReader(lambda prompt: f"answer to {len(prompt)} " * (1 + len(prompt) % 3))

    def rag() -> LazyRAG:
        return pipeline(reader(), threshold=tau)[0]

    def key(result: Any) -> tuple[Any, ...]:
        return result.answer, result.decision, result.passages, result.prompt_tokens, result.completion_tokens

    alone = [key(rag().run(question)) for question in questions]
    assert [key(result) for result in rag().run_many(questions)] == alone
    assert [key(asyncio.run(rag().arun(question))) for question in questions] == alone
    assert [key(result) for result in asyncio.run(rag().arun_many(questions))] == alone
    for question, expected in zip(questions, alone, strict=True):
        stream = rag().stream(question)
        assert "".join(stream).strip() == expected[0]
        assert key(stream.result) == expected


def test_missing_services_and_settings_that_cannot_work_fail_at_construction() -> None:
    reader = FakeReader(["Velm"])
    with pytest.raises(MissingServiceError, match="needs a retriever"):
        LazyRAG(reader)
    with pytest.raises(MissingServiceError, match="needs summaries"):
        LazyRAG(reader, Corpus())
    with pytest.raises(CapabilityError, match="log-probabilities"):
        LazyRAG(FakeReader(["Velm"], logprob=None, entropy=None), Corpus(), SUMMARY)
    with pytest.raises(ConfigurationError, match="expected a reader"):
        LazyRAG("gpt-4o", Corpus(), SUMMARY)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be a Retriever"):
        LazyRAG(reader, [Passage("x")], SUMMARY)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="mode must be one of"):
        LazyRAG(reader, Corpus(), SUMMARY, mode="eager")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="top_n must be"):
        LazyRAG(reader, Corpus(), SUMMARY, top_n=0)
    with pytest.raises(PromptError, match="slots"):
        LazyRAG(FakeReader(["Velm"]), mode="none", prompts={"from_context": "Q: {question}"})
    with pytest.raises(InputError, match="summary is empty"):
        LazyRAG(reader, Corpus(), " ")


class InTurns:
    """A template of one's own, that makes a conversation."""

    name = "in_turns"
    text = "Be brief. {question}"

    def require(self, *slots: str) -> Template:
        assert slots == ("question",)
        return self

    def render(self, **values: str) -> Prompt:
        return (Message("system", "Be brief."), Message("user", values["question"]))


def test_a_template_of_ones_own_may_make_a_conversation() -> None:
    asked: list[Prompt] = []

    class Noting(FakeReader):
        def generate(self, prompts: Sequence[Prompt], sampling: Any) -> Any:
            asked.extend(prompts)
            return super().generate(prompts, sampling)

    rag = LazyRAG(Noting(["Velm"]), mode="none", prompts={"closed_book": InTurns()})
    assert rag.run("Where {now}?").answer == "Velm"
    assert asked == [(Message("system", "Be brief."), Message("user", "Where {now}?"))]
    assert rag.to_dict()["prompts"]["closed_book"] == InTurns.text


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(question: str) -> None:
    rag, _, _ = pipeline(FakeReader(["Velm"]))
    with pytest.raises(InputError, match="question is empty"):
        rag.run(question)


def test_a_reader_without_entropies_serves_modes_without_a_gate() -> None:
    reader = FakeReader(["Velm"], logprob=None, entropy=None)
    assert LazyRAG(reader, Corpus(DETAIL), mode="standard").run("Where?").answer == "Velm"


def test_settings_survive_a_round_trip_without_what_is_alive() -> None:
    prompts = {"closed_book": "Say: {question}"}
    rag, corpus, _ = pipeline(
        FakeReader(["Velm"], name="model-x"), threshold=0.7, stop=("\n",), prompts=prompts
    )
    plain = json.loads(json.dumps(rag.to_dict()))
    assert plain["reader"] == "model-x"
    again = LazyRAG.from_dict(plain, reader=FakeReader(["Velm"]), retriever=corpus, summaries=SUMMARY)
    assert again.to_dict() == {**rag.to_dict(), "reader": "scripted"}
    with pytest.raises(ConfigurationError, match="unknown settings"):
        LazyRAG.from_dict({**plain, "taus": 1}, reader=FakeReader([]), retriever=corpus, summaries=SUMMARY)


def test_a_pipeline_can_be_pickled_with_services_that_can() -> None:
    rag = LazyRAG(FakeReader(["Velm"]), Corpus(DETAIL), SUMMARY, threshold=0.3)
    assert pickle.loads(pickle.dumps(rag)).run("Where?").answer == "Velm"
