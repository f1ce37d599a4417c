"""A gate before each hop (L-RAG, section VI-F): facts of a chain are searched for one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from surerag import FakeReader, LazyRAG, Passage
from surerag.errors import ConfigurationError
from surerag.readers.fake import reply
from tests.methods.disagreeing import text_reader

QUESTION = "Where was the founder of Orun Works born?"
FOUNDED, BORN = "Orun Works was founded by Ada.", "Ada was born in Velm."
SUMMARY = "Orun Works makes tin."


class Chain:
    """Finds the second fact only where the query names what the first one tells."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        self.asked.append(query)
        return [
            Passage(FOUNDED, id="1", score=len(query)),
            *([Passage(BORN, id="2")] if "Ada" in query else []),
        ]


def reading(prompt: str) -> Any:
    """Sure of what the context tells, and unsure while the chain has a gap."""
    if BORN in prompt:
        return reply("Velm", entropy=0.1)
    return reply("the town of Ada" if FOUNDED in prompt else "no idea", entropy=2.0)


def pipeline(**settings: Any) -> tuple[LazyRAG, Chain]:
    chain = Chain()
    return LazyRAG(FakeReader(reading), chain, SUMMARY, **{"max_hops": 3, **settings}), chain


def test_what_the_reader_says_of_the_first_fact_leads_to_the_second() -> None:
    rag, chain = pipeline()
    result = rag.run(QUESTION)
    assert result.answer == "Velm"
    assert chain.asked == [QUESTION, f"{QUESTION} the town of Ada"]
    assert [one.retrieve for one in result.decisions] == [True, True, False]
    assert result.decision == result.decisions[0]
    # What was found before is shown once, whatever its score is now.
    assert [passage.id for passage in result.passages] == ["1", "2"]
    assert (result.retrievals, result.calls) == (2, 3)
    assert {"first_pass", "later_passes", "retrieval", "answer"} <= result.timings.keys()
    assert rag.reader.open_handles == 0  # type: ignore[attr-defined]  # a scripted reader
    [begun, again, answered, *rest] = [call for call in rag.reader.history if call.verb == "begin"]  # type: ignore[attr-defined]
    assert not rest and all(call.n_tokens == 8 for call in (begun, again, answered))


def test_one_hop_is_the_papers_pipeline() -> None:
    rag, chain = pipeline(max_hops=1)
    result = rag.run(QUESTION)
    assert (result.answer, chain.asked, len(result.decisions)) == ("the town of Ada", [QUESTION], 1)


def test_hops_end_at_the_most_that_there_may_be_and_where_nothing_new_is_found() -> None:
    unsure = FakeReader(lambda prompt: reply("Bo", entropy=2.0))
    for most, asked in ((2, 2), (5, 2)):
        chain = Chain()
        result = LazyRAG(unsure, chain, SUMMARY, max_hops=most).run(QUESTION)
        assert (len(chain.asked), result.retrievals, len(result.passages)) == (asked, asked, 1)
        assert all(one.retrieve for one in result.decisions)


def test_a_gate_on_samples_looks_before_each_hop_within_its_calls() -> None:
    reader = text_reader(**{BORN: "Velm"})
    rag = LazyRAG(reader, Chain(), SUMMARY, gate="disagreement", n_samples=2, threshold=0.1, max_hops=2)
    assert rag.worst_case_calls() == 5
    result = rag.run(QUESTION)
    assert (result.calls, [one.calls for one in result.decisions]) == (5, [2, 2])
    with pytest.raises(ConfigurationError, match="max_calls=4 does not cover"):
        rag.with_options(max_calls=4)


async def test_every_way_of_running_gives_the_same() -> None:
    rag, _ = pipeline()
    expected = rag.run(QUESTION)
    [many, again] = rag.run_many([QUESTION, QUESTION])
    found = [await rag.arun(QUESTION), many, again]
    flowing = rag.stream(QUESTION)
    with flowing:
        assert "".join(flowing) == "Velm"
    for result in (*found, flowing.result):
        assert (result.answer, result.passages, result.calls) == ("Velm", expected.passages, 3)
        assert result.decisions == expected.decisions
