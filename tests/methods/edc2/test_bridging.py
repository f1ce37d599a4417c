"""Clusters that yielded nothing, asked again with what the others yielded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag import ClusterCompressor, FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, ServiceError
from surerag.messages import Event
from surerag.prompts import NOTHING_TO_EXTRACT
from tests.drivers.local_reader import LocalReader
from tests.methods.edc2.cases import compressor, passages

QUESTION = "What does the governor of the birthplace of Ada play?"
BORN = "Ada was born in the old town of Velm."
GOVERNED = "Velm is governed by Quill, who is seldom there."
PLAYS = "On feast days Quill plays the cornet."
RIVER = "The Orun is a river in the north, cold and wide and slow."
STEPS = {"Ada": BORN, "Velm": GOVERNED, "Quill": PLAYS}
ALONE: dict[str, Any] = {"clustering": "single"}


def documents(prompt: str) -> list[str]:
    return [line.split("] ", 1)[1] for line in prompt.splitlines() if line.startswith("[")]


def following(prompt: str) -> str:
    """Extract what mentions Ada, and what mentions a name that was extracted."""
    found = [text for text in documents(prompt) if "Ada" in text]
    for text in documents(prompt) * 2:
        if text not in found and any(name in text for name in ("Velm", "Quill") if name in " ".join(found)):
            found.append(text)
    return " ".join(found) or NOTHING_TO_EXTRACT


def kept(result: Any) -> list[str]:
    return [passage.text for passage in result.passages]


def test_the_second_step_is_found_beside_the_first_and_every_call_is_counted() -> None:
    tool, reader = compressor(following, bridging=1, **ALONE)
    given = passages(GOVERNED, BORN, RIVER)
    result = tool.run(QUESTION, given)
    assert kept(result) == [GOVERNED, BORN]
    assert [len(call.prompts) for call in reader.history] == [3, 2]
    again = reader.prompts[3:]
    assert f"Question: {QUESTION}\nDocuments:\n[1] {BORN}\n[2] {GOVERNED}\n" in again[0]
    assert f"[1] {BORN}\n[2] {RIVER}\n" in again[1]
    assert result.calls == 5
    assert [(report.outcome, len(report.earlier)) for report in result.clusters] == [
        ("compressed", 1),
        ("compressed", 0),
        ("dropped", 1),
    ]
    replies = [g for r in result.clusters for g in (*r.earlier, r.generation) if g is not None]
    assert len(replies) == 5
    assert result.prompt_tokens == sum(reply.prompt_tokens for reply in replies)
    assert result.completion_tokens == sum(reply.completion_tokens for reply in replies)
    assert [source["id"] for source in result.passages[0].metadata["compressed_from"]] == ["p0"]
    plain = compressor(following, **ALONE)[0].run(QUESTION, given)
    assert (kept(plain), plain.calls) == ([BORN], 3)


@pytest.mark.parametrize(("bridging", "steps", "calls"), [(0, 1, 4), (1, 2, 7), (2, 3, 9), (9, 3, 10)])
def test_it_goes_on_as_long_as_something_new_is_found(bridging: int, steps: int, calls: int) -> None:
    tool, _ = compressor(following, bridging=bridging, **ALONE)
    result = tool.run(QUESTION, passages(BORN, GOVERNED, PLAYS, RIVER))
    assert kept(result) == [BORN, GOVERNED, PLAYS][:steps]
    assert result.calls == calls


def test_without_evidence_or_without_a_silent_cluster_nothing_is_asked_again() -> None:
    silent, reader = compressor(lambda _: NOTHING_TO_EXTRACT, bridging=3, **ALONE)
    given = passages(BORN, RIVER)
    result = silent.run(QUESTION, given)
    assert (list(result.passages), result.fell_back, len(reader.prompts)) == (given, True, 2)
    telling, reader = compressor(lambda prompt: documents(prompt)[-1], bridging=3, **ALONE)
    assert kept(telling.run(QUESTION, given)) == [BORN, RIVER]
    assert len(reader.prompts) == 2


def test_what_went_through_as_it_was_is_evidence_too() -> None:
    tool, reader = compressor(following, bridging=1, pass_below=9, **ALONE)
    result = tool.run(QUESTION, passages("Ada was born in Velm.", GOVERNED))
    assert kept(result) == ["Ada was born in Velm.", GOVERNED]
    assert [len(call.prompts) for call in reader.history] == [1, 1]
    assert not result.fell_back


def test_only_what_a_cluster_itself_says_is_taken_from_it() -> None:
    def repeating(prompt: str) -> str:
        """Beside the evidence: says it again, makes something up, and says something true."""
        if documents(prompt) == [GOVERNED]:
            return NOTHING_TO_EXTRACT
        return BORN if documents(prompt) == [BORN] else f"{BORN.upper()} Ada knew Paris. {GOVERNED}"

    tool, _ = compressor(repeating, bridging=1, **ALONE)
    [_, report] = tool.run(QUESTION, passages(BORN, GOVERNED)).clusters
    assert (report.text, report.removed) == (GOVERNED, ("Ada knew Paris.",))
    echo, _ = compressor(
        lambda prompt: NOTHING_TO_EXTRACT if documents(prompt) == [RIVER] else BORN, bridging=1, **ALONE
    )
    result = echo.run(QUESTION, passages(BORN, RIVER))
    assert result.dropped == ((("p1",), "nothing relevant"),)


def test_a_reader_that_fails_when_asked_again_leaves_the_originals_with_a_warning() -> None:
    def failing(prompt: str) -> str:
        if len(documents(prompt)) > 1 and RIVER in prompt:
            raise ServiceError("overloaded")
        return following(prompt)

    events: list[Event] = []
    tool, _ = compressor(failing, bridging=1, **ALONE)
    given = passages(BORN, GOVERNED, RIVER)
    result = tool.with_options(on_event=events.append).run(QUESTION, given)
    assert kept(result) == [BORN, GOVERNED, RIVER]
    assert result.passages[2] is given[2]
    assert result.calls == 3 + 2 * 2
    [warning] = [event for event in events if event.warning]
    assert warning.name == "cluster_compression.failed"
    # The first reply about the river was read and paid for, though the second never came.
    assert result.prompt_tokens == sum(
        g.prompt_tokens for r in result.clusters for g in (*r.earlier, r.generation) if g is not None
    )
    assert [len(report.earlier) for report in result.clusters] == [0, 1, 1]
    with pytest.raises(ServiceError):
        compressor(failing, bridging=1, on_failure="raise", **ALONE)[0].run(QUESTION, given)


def test_one_by_one_and_many_at_once_sync_and_async_are_equal() -> None:
    texts = (GOVERNED, RIVER, BORN, PLAYS)
    cases = [(f"{QUESTION} {at}", passages(*texts[: at % 5])) for at in range(9)]
    results = []
    for reader in (FakeReader(following), LocalReader(following)):
        tool = ClusterCompressor(reader, HashingEncoder(), pass_below=0, bridging=2, **ALONE)
        ways = [
            [tool.run(query, found) for query, found in cases],
            tool.run_many(cases),
            asyncio.run(tool.arun_many(cases)),
            [asyncio.run(tool.arun(query, found)) for query, found in cases],
        ]
        # Each reader counts tokens in its own way.
        assert len({tuple(result.prompt_tokens for result in way) for way in ways}) == 1
        results += ways
    shown = [[(r.passages, r.calls, r.dropped) for r in result] for result in results]
    assert all(other == shown[0] for other in shown)
    assert any(len(found) == 3 for found, *_ in shown[0])


@given(
    st.lists(st.text("abc .", min_size=1, max_size=12), min_size=1, max_size=12),
    st.lists(st.sampled_from(["", NOTHING_TO_EXTRACT, "a b.", "c a."]), min_size=7, max_size=7),
    st.sampled_from(["dynamic", "random", "single"]),
)
def test_what_the_first_pass_finds_stays(texts: list[str], replies: Sequence[str], clustering: Any) -> None:
    def reply(prompt: str) -> str:
        return replies[len(prompt) % 7]

    settings: dict[str, Any] = {"clustering": clustering, "guard": "off", "refuse_longer": False}
    once = compressor(reply, **settings)[0].run(QUESTION, passages(*texts))
    more = compressor(reply, bridging=2, **settings)[0].run(QUESTION, passages(*texts))
    pairs = list(zip(once.clusters, more.clusters, strict=True))
    assert all(now == before for before, now in pairs if before.outcome == "compressed")
    assert more.calls == once.calls + sum(len(report.earlier) for report in more.clusters)
    assert more.fell_back <= once.fell_back


def test_bridging_is_a_number_of_passes() -> None:
    with pytest.raises(ConfigurationError, match="bridging must be at least 0"):
        compressor(bridging=-1)
    assert ClusterCompressor(FakeReader(), bridging=1).to_dict()["bridging"] == 1
