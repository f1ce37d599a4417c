"""Algorithm 3: what leaves, what comes, when it stops, and that it always does."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from surerag import DenseRefiner, DenseRefinerResult, FakeReader, Passage, SemanticChunker
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, InputError, MissingServiceError, ServiceError
from surerag.messages import Event
from tests.methods.dense_rag.script import (
    LETTERS,
    MENDED,
    QUESTION,
    ROWS,
    Letters,
    distinct,
    kind,
    passages,
    script,
)


def refiner(reader: FakeReader, **changes: Any) -> DenseRefiner:
    return DenseRefiner(
        reader, ExactEntailer(), **{"encoder": Letters(), "top_n": 3, "max_chunks": 6, **changes}
    )


def texts(result: DenseRefinerResult) -> str:
    return "".join(passage.text for passage in result.passages)


def contexts(result: DenseRefinerResult) -> list[str]:
    return ["".join(passage.text for passage in one.measured.passages) for one in result.rounds]


def no(_: Any) -> str:
    return "no"


def test_noise_leaves_and_what_is_lacking_comes() -> None:
    events: list[Event] = []
    candidates = passages(LETTERS)
    result = refiner(script(MENDED), on_event=events.append).run(QUESTION, candidates)
    assert contexts(result) == ["abc", "ace"]
    first, last = result.rounds
    assert first.measured.labels == ("certain", "unnecessary", "necessary")
    assert [[p.text for p in change] for change in (first.removed, first.added)] == [["b"], ["e"]]
    assert (last.measured.score, last.sufficient, last.best) == (0.0, True, True)
    assert (result.stopped, result.answer, result.score, texts(result)) == ("satisfied", "A", 0.0, "ace")
    assert all(passage in candidates for passage in result.passages)
    assert (events[-1].name, result.usage.requests) == ("dense_refiner.refined", result.calls)
    assert candidates == passages(LETTERS)


def test_a_certain_question_keeps_its_context_without_an_evaluation() -> None:
    reader = script({}, sufficient=no)
    result = refiner(reader).run(QUESTION, passages(LETTERS))
    assert (result.stopped, texts(result), result.rounds[0].sufficient) == ("certain", "abc", None)
    assert not any(kind(prompt) == "evaluate" for prompt in reader.prompts)


def test_a_sufficient_context_gives_way_only_to_another_such_one() -> None:
    reader = script(MENDED, sufficient=lambda context: "no" if "e" in context else "yes")
    result = refiner(reader, max_rounds=2).run(QUESTION, passages(LETTERS))
    assert (result.stopped, texts(result)) == ("rounds", "abc")


def test_a_context_of_empty_answers_is_never_the_best() -> None:
    said = {**MENDED, **dict.fromkeys(["ace", "a'ce", "ac'e", "ace'"], "")}
    result = refiner(script(said, sufficient=no), max_rounds=2).run(QUESTION, passages(LETTERS))
    assert [one.measured.score for one in result.rounds][1] == 0.0
    assert (texts(result), result.answer) == ("abc", "A")


def test_an_unclear_self_evaluation_counts_as_no_with_a_warning() -> None:
    events: list[Event] = []
    reader = script(MENDED, sufficient=lambda _: "perhaps")
    result = refiner(reader, max_rounds=2, on_event=events.append).run(QUESTION, passages(LETTERS))
    assert [one.sufficient for one in result.rounds] == [False, False]
    assert [event.name for event in events if event.warning] == ["dense.unclear_evaluation"] * 2


def test_a_context_never_becomes_empty_and_never_too_large() -> None:
    # Each chunk confuses, and none is needed.
    reader = script({"a'bc": "B", "ab'c": "C", "abc'": "D"}, sufficient=no)
    assert contexts(refiner(reader).run(QUESTION, passages(LETTERS)))[:2] == ["abc", "a"]
    result = refiner(script(distinct, sufficient=no), top_n=2, max_chunks=3, max_rounds=9).run(
        QUESTION, passages(LETTERS)
    )
    assert (contexts(result)[:2], result.stopped) == (["ab", "abd"], "unchanged")


def test_the_retriever_is_asked_for_more_once() -> None:
    calls: list[tuple[str, int | None]] = []

    class Retriever:
        def retrieve(self, query: str, k: int | None) -> list[Passage]:
            calls.append((query, k))
            return passages("cde")

    result = refiner(script(MENDED), retriever=Retriever()).run(QUESTION, passages("abc"))
    assert (contexts(result), calls) == (["abc", "ace"], [(QUESTION, 12)])


def test_vectors_of_passages_need_no_encoder() -> None:
    embedded = [Passage(p.text, embedding=tuple(map(float, ROWS[p.text]))) for p in passages(LETTERS)]
    assert contexts(refiner(script(MENDED), encoder=None).run(QUESTION, embedded)) == ["abc", "ace"]
    with pytest.raises(MissingServiceError, match="encoder"):
        refiner(script(MENDED), encoder=None).run(QUESTION, passages(LETTERS))


def test_documents_of_uncertain_questions_are_cut_anew() -> None:
    document = Passage("Ada was born in Velm. Tin melts easily. Velm lies on the Orun.", id="doc")
    pieces = [Passage("Ada was born in", id="doc#0"), Passage("Velm. Tin melts", id="doc#1")]
    reader = script(lambda context: "Velm" if "Ada was born in Velm." in context else distinct(context))
    chunker = SemanticChunker(HashingEncoder(), similarity_threshold=0.9)
    component = DenseRefiner(reader, ExactEntailer(), chunker=chunker, top_n=2, max_chunks=4)
    result = component.run("Where was Ada born?", pieces, [document])
    assert [one.rechunked for one in result.rounds][:2] == [True, False]
    assert result.rounds[1].measured.passages[0].id == "doc@0:21"
    assert result.rounds[1].measured.passages[0].metadata["document"] == "doc"
    assert not any(one.rechunked for one in component.run("Where was Ada born?", pieces).rounds)


def test_a_failure_leaves_the_original_or_the_best_context() -> None:
    events: list[Event] = []
    down = script({}, rephrase=lambda _: ServiceError("down"))
    candidates = passages(LETTERS)
    result = refiner(down, on_event=events.append).run(QUESTION, candidates)
    assert (result.stopped, result.answer, result.score, result.rounds) == ("failed", None, None, ())
    assert (list(result.passages), result.failure) == (
        candidates[:3],
        "ServiceError: a service sent a reply that cannot be used",
    )
    assert [event.name for event in events if event.warning] == ["dense_refiner.failed"]
    with pytest.raises(ServiceError, match="down"):
        refiner(down, on_failure="raise").run(QUESTION, candidates)

    class Broken(Letters):
        def encode(self, texts: Any, kind: str) -> NDArray[Any]:
            raise ServiceError("no vectors")

    result = refiner(script(MENDED), encoder=Broken()).run(QUESTION, candidates)
    assert (result.stopped, texts(result), result.answer) == ("failed", "abc", "A")


def test_nothing_to_refine() -> None:
    for empty in ([], [Passage(" ", id="blank")]):
        result = refiner(script({})).run(QUESTION, empty)
        assert (result.stopped, list(result.passages), result.answer) == ("empty", empty, None)
    with pytest.raises(InputError):
        refiner(script({})).run(" ", passages("a"))


@pytest.mark.parametrize(
    ("max_calls", "calls", "rounds"), [(19, 0, 0), (20, 20, 1), (28, 20, 1), (29, 29, 1)]
)
def test_a_budget_is_kept_with_a_warning(max_calls: int, calls: int, rounds: int) -> None:
    events: list[Event] = []
    reader = script(distinct, sufficient=no)
    context = passages(LETTERS)
    result = refiner(reader, max_calls=max_calls, on_event=events.append).run(QUESTION, context)
    assert (result.stopped, result.calls, len(result.rounds)) == ("calls", calls, rounds)
    assert result.passages == tuple(context[:3])
    [warning] = [event for event in events if event.warning]
    assert (warning.name, warning.data["max_calls"]) == ("dense_refiner.out_of_calls", max_calls)


REPLIES = ["yes", "no", "A", "B", "C", "a long answer of several words", "", "entailment", "{x} [1] 42"]


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 9),
    k=st.integers(1, 4),
    grow=st.integers(0, 3),
    rounds=st.integers(1, 6),
    budget=st.none() | st.integers(1, 120),
    stop=st.sampled_from(["both", "either", "certain", "sufficient"]),
    fails=st.booleans(),
)
def test_it_ends_within_its_budget_whatever_the_reader_says(
    seed: int, count: int, k: int, grow: int, rounds: int, budget: int | None, stop: Any, fails: bool
) -> None:
    def reply(prompt: str) -> Any:
        drawn = zlib.crc32(f"{seed} {prompt}".encode())
        if fails and drawn % 23 == 0:
            return ServiceError("by chance")
        return f"{REPLIES[drawn % len(REPLIES)]} {drawn % 3 if kind(prompt) != 'evaluate' else ''}"

    component = refiner(
        FakeReader(reply),
        top_n=k,
        max_chunks=k + grow,
        max_rounds=rounds,
        max_calls=budget,
        stop=stop,
        encoder=HashingEncoder(16),
    )
    candidates = passages("abcdefghi"[:count])
    result = component.run(QUESTION, candidates)
    assert 0 < len(result.passages) <= k + grow
    n = k + grow
    assert result.calls <= min(budget or 10**9, rounds * (n**2 + 6 * n + 2) - 3 * n)
    assert len(result.rounds) <= rounds
    assert (result.stopped == "failed") == bool(result.failure)
    gone: set[str] = set()
    for one in result.rounds:
        seen = {passage.text for passage in one.measured.passages}
        assert not seen & gone, "a chunk came back"
        gone |= {passage.text for passage in one.removed}
    assert result.passages == (result.best.measured.passages if result.best else tuple(candidates[:k]))


def test_without_limits_it_ends_with_its_candidates() -> None:
    reader = script(distinct, sufficient=no)
    encoder = Letters()
    refining = refiner(reader, encoder=encoder, max_rounds=1000, max_chunks=1000, top_n=1)
    result = refining.run(QUESTION, passages(LETTERS))
    assert result.stopped == "unchanged"
    assert len(result.rounds) > 2
    assert sorted(text for texts in encoder.asked for text in texts) == sorted(LETTERS)


def test_options_survive_a_dictionary_and_bad_ones_are_refused() -> None:
    reader = script({})
    component = refiner(reader, max_rounds=2)
    again = DenseRefiner.from_dict(
        component.to_dict(), reader=reader, entailer=ExactEntailer(), encoder=Letters()
    )
    assert again.to_dict() == component.to_dict()
    bad = [{"top_n": 0}, {"max_rounds": 0}, {"max_calls": 0}, {"max_chunks": 2}, {"on_failure": "x"}]
    for change in bad:
        with pytest.raises(ConfigurationError):
            refiner(reader, **change)
    with pytest.raises(ConfigurationError, match="same encoder"):
        refiner(reader, chunker=SemanticChunker(HashingEncoder()))
