"""Algorithm 3: what leaves, what comes, when it stops, and that it always does."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from surerag import DenseRefiner, DenseRefinerResult, FakeReader, Passage, SemanticChunker, run
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, InputError, MissingServiceError, ServiceError
from surerag.messages import Event
from surerag.methods.dense.refinement import worst_case_calls
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


def ids(result: DenseRefinerResult) -> str:
    return "".join(passage.text for passage in result.passages)


def contexts(result: DenseRefinerResult) -> list[str]:
    return ["".join(passage.text for passage in one.measured.passages) for one in result.rounds]


def test_noise_leaves_and_what_is_lacking_comes() -> None:
    events: list[Event] = []
    found = passages(LETTERS)
    result = refiner(script(MENDED), on_event=events.append).run(QUESTION, found)
    assert contexts(result) == ["abc", "ace"]
    first, last = result.rounds
    assert first.measured.labels == ("certain", "unnecessary", "necessary")
    assert [passage.text for passage in first.removed] == ["b"]
    [added] = first.added
    assert (added.passage.text, added.near.text) == ("e", "c")
    assert added.similarity == pytest.approx(1 / np.sqrt(1.01), abs=1e-5)
    assert (last.measured.score, last.sufficient, last.best) == (0.0, True, True)
    assert (result.stopped, result.answer, result.score, ids(result)) == ("satisfied", "A", 0.0, "ace")
    assert all(passage in found for passage in result.passages)
    assert [event.data["number"] for event in events if event.name == "context_refiner.round"] == [1, 2]
    assert events[-1].name == "context_refiner.refined"
    assert events[-1].detail == result
    assert found == passages(LETTERS)


def test_a_certain_question_keeps_its_answer_and_costs_no_more_than_the_measure() -> None:
    reader = script({}, sufficient=lambda _: "no")
    result = refiner(reader).run(QUESTION, passages(LETTERS))
    assert (result.stopped, ids(result), result.calls.evaluations) == ("certain", "abc", 0)
    result = refiner(reader, only_uncertain=False).run(QUESTION, passages(LETTERS))
    assert (result.stopped, result.rounds[0].sufficient) == ("unchanged", False)
    assert result.rounds[0].note == "nothing is unnecessary, and no chunk is necessary"


def test_only_removing() -> None:
    result = refiner(script(MENDED), remove_only=True, encoder=None).run(QUESTION, passages(LETTERS))
    assert contexts(result) == ["abc", "ac"]
    assert not result.rounds[0].added


def test_refilling_by_certain_chunks() -> None:
    result = refiner(script(MENDED), refill="certain").run(QUESTION, passages(LETTERS))
    assert contexts(result) == ["abc", "acd"]


def test_without_self_evaluation_certainty_alone_decides() -> None:
    reader = script(MENDED, sufficient=lambda _: "no")
    result = refiner(reader, self_evaluation=False).run(QUESTION, passages(LETTERS))
    assert (result.stopped, result.calls.evaluations) == ("satisfied", 0)
    assert all(one.sufficient is None for one in result.rounds)


def test_stop_on_either_takes_the_context_that_met_it() -> None:
    said = {**MENDED, "a'ce": "B", "ac'e": "C", "ace'": "D"}
    reader = script(said, sufficient=lambda context: "yes" if "e" in context else "no")
    result = refiner(reader, variant="paper").run(QUESTION, passages(LETTERS))
    assert (result.stopped, ids(result), len(result.rounds)) == ("satisfied", "ace", 2)
    assert result.rounds[1].measured.score > result.rounds[0].measured.score
    stricter = refiner(reader, rounds=2).run(QUESTION, passages(LETTERS))
    assert (stricter.stopped, ids(stricter)) == ("rounds", "abc")


@pytest.mark.parametrize(("keep", "kept"), [("sufficient", "abc"), ("lowest", "ace")])
def test_what_was_judged_sufficient_gives_way_only_to_what_is(keep: str, kept: str) -> None:
    reader = script(MENDED, sufficient=lambda context: "no" if "e" in context else "yes")
    result = refiner(reader, keep=keep, rounds=2).run(QUESTION, passages(LETTERS))
    assert (result.stopped, ids(result)) == ("rounds", kept)


def test_an_unclear_self_evaluation_counts_as_no_and_warns() -> None:
    events: list[Event] = []
    reader = script(MENDED, sufficient=lambda _: "perhaps")
    result = refiner(reader, rounds=2, on_event=events.append).run(QUESTION, passages(LETTERS))
    assert [one.sufficient for one in result.rounds] == [False, False]
    assert [event.warning for event in events if event.name == "dense.unclear_evaluation"] == [True, True]


def test_a_context_never_becomes_empty() -> None:
    # Each chunk confuses, and none is needed.
    reader = script({"a'bc": "B", "ab'c": "C", "abc'": "D"}, sufficient=lambda _: "no")
    result = refiner(reader).run(QUESTION, passages(LETTERS))
    assert contexts(result)[:2] == ["abc", "a"]
    assert ids(result)


def test_room_is_respected() -> None:
    reader = script(distinct, sufficient=lambda _: "no")
    result = refiner(reader, top_n=2, max_chunks=3, rounds=9).run(QUESTION, passages(LETTERS))
    assert contexts(result)[:2] == ["ab", "abd"]
    assert (result.stopped, result.rounds[-1].note) == ("unchanged", "the context is full")


def test_the_retriever_is_asked_for_more_once() -> None:
    class Retriever:
        def __init__(self) -> None:
            self.asked: list[tuple[str, int]] = []

        def retrieve(self, query: str, k: int) -> list[Passage]:
            self.asked.append((query, k))
            return passages("cde")

    retriever = Retriever()
    result = refiner(script(MENDED), retriever=retriever, more=7).run(QUESTION, passages("abc"))
    assert contexts(result) == ["abc", "ace"]
    assert (retriever.asked, result.retrievals) == ([(QUESTION, 7)], 1)


def test_vectors_that_passages_carry_need_no_encoder() -> None:
    found = [
        Passage(passage.text, embedding=tuple(map(float, ROWS[passage.text])))
        for passage in passages(LETTERS)
    ]
    result = refiner(script(MENDED), encoder=None).run(QUESTION, found)
    assert contexts(result) == ["abc", "ace"]
    with pytest.raises(MissingServiceError, match="encoder"):
        refiner(script(MENDED), encoder=None).run(QUESTION, passages(LETTERS))


def test_uncertain_documents_are_cut_anew() -> None:
    document = Passage("Ada was born in Velm. Tin melts easily. Velm lies on the Orun.", id="doc")
    found = [Passage("Ada was born in", id="doc#0"), Passage("Velm. Tin melts", id="doc#1")]
    reader = script(lambda context: "Velm" if "Ada was born in Velm." in context else distinct(context))
    chunker = SemanticChunker(HashingEncoder(), similarity_threshold=0.9)
    whole = DenseRefiner(reader, ExactEntailer(), chunker=chunker, top_n=2, max_chunks=4)
    result = whole.run("Where was Ada born?", found, [document])
    assert result.rounds[0].rechunked
    assert result.rounds[1].measured.passages[0].id == "doc@0:21"
    assert result.rounds[1].measured.passages[0].metadata["document"] == "doc"
    assert not any(one.rechunked for one in result.rounds[1:])
    plain = whole.run("Where was Ada born?", found)
    assert not any(one.rechunked for one in plain.rounds)


class Behind:
    """Finds one document, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        self.asked += 1
        return [Passage("Ada was born in Velm. Tin melts easily. Velm lies on the Orun.", id="doc")]


@pytest.mark.parametrize("understood", [False, True])
def test_documents_are_asked_for_only_where_the_question_is_uncertain(understood: bool) -> None:
    found = [Passage("Ada was born in", id="doc#0"), Passage("Velm. Tin melts", id="doc#1")]
    knows = "Ada" if understood else "Ada was born in Velm."
    reader = script(lambda context: "Velm" if understood or knows in context else distinct(context))
    chunker = SemanticChunker(HashingEncoder(), similarity_threshold=0.9)
    whole = DenseRefiner(reader, ExactEntailer(), chunker=chunker, top_n=2)
    behind = Behind()
    services = replace(whole.services, documents=behind)
    result = run(whole.program("Where was Ada born?", found, "ask"), services)
    assert behind.asked == (not understood)
    assert any(one.rechunked for one in result.rounds) == (not understood)


def test_chunking_only_moves_an_uncertain_question_to_semantic_chunks_for_good() -> None:
    document = Passage("Ada was born in Velm. Tin melts easily. Velm lies on the Orun.", id="doc")
    found = [Passage("Ada was born in", id="doc#0"), Passage("Velm. Tin melts", id="doc#1")]
    reader = script(distinct)
    chunker = SemanticChunker(HashingEncoder(), similarity_threshold=0.9)
    only = DenseRefiner(reader, ExactEntailer(), chunker=chunker, top_n=2, chunking_only=True)
    result = only.run("Where was Ada born?", found, [document])
    # The chunks stay although they are no better understood, and nothing is pruned, refilled or evaluated.
    assert (result.stopped, len(result.rounds)) == ("chunked", 2)
    assert [passage.metadata["document"] for passage in result.passages] == ["doc", "doc"]
    assert result.best is result.rounds[1] and not any(one.removed or one.added for one in result.rounds)
    assert all(one.sufficient is None for one in result.rounds)
    assert only.run("Where was Ada born?", found).stopped == "unchanged"


def test_a_failure_at_first_leaves_the_original_documents() -> None:
    events: list[Event] = []
    down = script({}, rephrase=lambda _: ServiceError("down"))
    found = passages(LETTERS)
    result = refiner(down, on_event=events.append).run(QUESTION, found)
    assert (result.stopped, result.answer, result.score, result.rounds) == ("failed", None, None, ())
    assert list(result.passages) == found[:3]
    assert result.failure == "ServiceError: down"
    assert [event.data["kept"] for event in events if event.warning] == ["original context"]
    with pytest.raises(ServiceError, match="down"):
        refiner(down, on_failure="raise").run(QUESTION, found)


def test_a_failure_later_leaves_the_best_so_far() -> None:
    class Broken(Letters):
        def encode(self, texts: Any, kind: str) -> NDArray[np.float32]:
            raise ServiceError("no vectors")

    result = refiner(script(MENDED), encoder=Broken()).run(QUESTION, passages(LETTERS))
    assert (result.stopped, ids(result), result.answer) == ("failed", "abc", "A")
    assert result.rounds[0].note == "broken off"
    assert result.calls.total > 0


def test_nothing_to_refine() -> None:
    for found in ([], [Passage(" ", id="blank")]):
        result = refiner(script({})).run(QUESTION, found)
        assert (result.stopped, list(result.passages), result.answer) == ("empty", found, None)
    with pytest.raises(InputError):
        refiner(script({})).run(" ", passages("a"))


def test_the_worst_case_is_reached_and_bounds_one_measurement() -> None:
    reader = script(distinct, sufficient=lambda _: "no")
    for k in (1, 2, 5):
        one = refiner(reader, top_n=k, rounds=1)
        assert one.run(f"{QUESTION} {k}", passages("abcdef"[:k])).calls.total == worst_case_calls(k, 1)
        assert worst_case_calls(k, 1) == k**2 + 3 * k + 2
    # Two rounds over the same number of chunks: one left, one came.
    assert worst_case_calls(5, 2) == 2 * 57 - 15


def test_a_budget_is_kept_and_what_there_is_by_then_is_returned() -> None:
    reader = script(distinct, sufficient=lambda _: "no")
    events: list[Event] = []
    given = passages(LETTERS)
    result = refiner(reader, max_calls=19, on_event=events.append).run(QUESTION, given)
    assert (result.stopped, result.out_of_calls, result.calls.total) == ("budget", True, 0)
    assert (result.passages, result.answer) == (tuple(given[:3]), None)
    [warning] = [event for event in events if event.warning]
    assert (warning.name, warning.data["max_calls"]) == ("context_refiner.out_of_calls", 19)
    result = refiner(reader, max_calls=20).run(QUESTION, passages(LETTERS))
    assert (result.stopped, result.calls.total, result.rounds[0].note) == (
        "budget",
        20,
        "no calls are left to label chunks",
    )
    result = refiner(reader, max_calls=40, cache=refiner(reader).cache).run(QUESTION, passages(LETTERS))
    assert result.stopped == "budget"
    assert result.calls.total <= 40


SAID = ["yes", "no", "A", "B", "C", "a long answer of several words", "", "entailment", "{x} [1] 42"]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 9),
    k=st.integers(1, 4),
    grow=st.integers(0, 3),
    rounds=st.integers(1, 6),
    budget=st.none() | st.integers(1, 120),
    options=st.fixed_dictionaries(
        {
            "variant": st.sampled_from(["default", "paper"]),
            "refill": st.sampled_from(["necessary", "certain"]),
            "remove_only": st.booleans(),
            "self_evaluation": st.booleans(),
            "only_uncertain": st.booleans(),
        }
    ),
    fails=st.booleans(),
)
def test_it_ends_within_its_budget_whatever_the_reader_says(
    seed: int,
    count: int,
    k: int,
    grow: int,
    rounds: int,
    budget: int | None,
    options: dict[str, Any],
    fails: bool,
) -> None:
    def reply(prompt: str) -> Any:
        drawn = zlib.crc32(f"{seed} {prompt}".encode())
        if fails and drawn % 23 == 0:
            return ServiceError("by chance")
        return f"{SAID[drawn % len(SAID)]} {drawn % 3 if kind(prompt) != 'evaluate' else ''}"

    reader = FakeReader(reply)
    mending = refiner(
        reader,
        top_n=k,
        max_chunks=k + grow,
        rounds=rounds,
        max_calls=budget,
        encoder=HashingEncoder(16),
        **options,
    )
    found = passages("abcdefghi"[:count])
    result = mending.run(QUESTION, found)
    assert 0 < len(result.passages) <= k + grow
    # A failed request was made for all its prompts.
    assert len(reader.prompts) <= mending.worst_case_calls(count) <= mending.worst_case_calls()
    assert result.calls.total <= mending.worst_case_calls(count)
    assert result.calls.total <= worst_case_calls(k + grow, rounds)
    asked = result.calls.rephrasings + result.calls.answers + result.calls.evaluations
    assert asked <= len(reader.prompts)
    assert fails or asked == len(reader.prompts)
    assert len(result.rounds) <= rounds
    assert (result.stopped == "failed") == bool(result.failure)
    gone: set[str] = set()
    for one in result.rounds:
        shown = {passage.text for passage in one.measured.passages}
        assert not shown & gone, "a chunk came back"
        gone |= {passage.text for passage in one.removed}
    if result.best is not None:
        assert result.best in result.rounds
        assert result.best.best
        assert result.passages == result.best.measured.passages
        assert all(passage in found for passage in result.passages)
    else:
        assert list(result.passages) == found[:k]


def test_without_bounds_of_its_own_it_ends_with_its_candidates() -> None:
    reader = script(distinct, sufficient=lambda _: "no")
    result = refiner(reader, rounds=1000, max_chunks=1000, top_n=1).run(QUESTION, passages(LETTERS))
    assert result.stopped == "unchanged"
    assert result.rounds[-1].note == "no candidate is left"


async def test_sync_async_and_many_agree() -> None:
    cases = [(f"{QUESTION} {number}", passages(LETTERS)) for number in range(3)]

    def plain(result: DenseRefinerResult) -> Any:
        return [(one.measured.labels, one.measured.score, one.note) for one in result.rounds], ids(result)

    alone = [plain(refiner(script(MENDED)).run(*case)) for case in cases]
    assert [plain(await refiner(script(MENDED)).arun(*case)) for case in cases] == alone
    assert [plain(result) for result in refiner(script(MENDED)).run_many(cases)] == alone
    assert [plain(result) for result in await refiner(script(MENDED)).arun_many(cases)] == alone


def test_options_survive_a_dictionary_and_bad_ones_are_refused() -> None:
    reader = script({})
    mending = refiner(reader, stop_rule="either", rounds=2, remove_only=True)
    again = DenseRefiner.from_dict(
        mending.to_dict(), reader=reader, entailer=ExactEntailer(), encoder=Letters()
    )
    assert again.to_dict() == mending.to_dict()
    bad = [
        {"top_n": 0}, {"rounds": 0}, {"max_calls": 0}, {"max_chunks": 2}, {"variant": "x"},
        {"stop_rule": "x"}, {"keep": "x"}, {"refill": "x"}, {"on_failure": "x"}, {"half": "x"},
    ]  # fmt: skip
    for change in bad:
        with pytest.raises(ConfigurationError):
            refiner(reader, **change)
    with pytest.raises(ConfigurationError, match="same encoder"):
        refiner(reader, chunker=SemanticChunker(HashingEncoder()))
