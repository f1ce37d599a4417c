"""When clusters yield nothing, or the reader fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from surerag import ClusterCompressor, FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import CapabilityError, ServiceError
from surerag.messages import Event
from surerag.prompts import NOTHING_TO_EXTRACT
from tests.drivers.local_reader import LocalReader
from tests.methods.edc2.cases import ADA, AGAIN, BO, QUESTION, RIVER, compressor, passages, quoting


def test_when_every_cluster_yields_nothing_the_originals_come_back_with_a_warning() -> None:
    events: list[Event] = []
    tool, _ = compressor(lambda _: NOTHING_TO_EXTRACT, first_cluster_size=1)
    given = passages(BO, ADA, RIVER)
    result = tool.with_options(on_event=events.append).run(QUESTION, given)
    assert list(result.passages) == given
    assert all(kept is original for kept, original in zip(result.passages, given, strict=True))
    assert result.fell_back
    assert [event.name for event in events if event.warning] == ["cluster_compression.fallback"]
    empty = compressor(lambda _: NOTHING_TO_EXTRACT, first_cluster_size=1, all_empty="nothing")[0].run(
        QUESTION, given
    )
    assert (empty.passages, empty.tokens_after) == ((), 0)


def test_nothing_from_all_that_was_asked_brings_the_originals_back_though_a_short_one_passed() -> None:
    tool, _ = compressor(lambda _: "", first_cluster_size=2, pass_below=8)
    given = passages(ADA, AGAIN, "Rain, wind.")
    assert list(tool.run(QUESTION, given).passages) == given


def test_a_compression_cut_at_its_limit_leaves_the_passages_as_they_are_with_one_warning() -> None:
    events: list[Event] = []
    whole = "Ada was born in Velm."
    tool, _ = compressor(
        lambda prompt: whole if AGAIN in prompt else f"{whole} Ada the painter was born long",
        first_cluster_size=1,
        max_tokens=8,
        all_empty="nothing",
    )
    given = passages(ADA, AGAIN, f"{BO} Ada knew him.")
    result = tool.with_options(on_event=events.append).run(QUESTION, given)
    cut = [report for report in result.clusters if report.trouble == "truncated"]
    assert cut
    assert result.truncated == len(cut)
    assert {report.outcome for report in cut} == {"passed"}
    assert all(given[at] in result.passages for report in cut for at in report.members)
    [warning] = [event for event in events if event.warning]
    assert warning.name == "cluster_compression.truncated"
    assert warning.data["truncated"] == len(cut)
    assert "max_tokens=8" in warning.data["reason"]
    assert sum(reply.generation is not None for reply in result.clusters) == result.calls, "it was paid for"
    assert tool.with_options(max_tokens=64).run(QUESTION, given).truncated == 0


class Flaky(FakeReader):
    """Fails whenever a prompt mentions Bo."""

    def generate(self, prompts: Sequence[Any], sampling: Any) -> Any:
        if any("Bo" in str(prompt) for prompt in prompts):
            raise ServiceError("overloaded")
        return super().generate(prompts, sampling)


@pytest.mark.parametrize("reader", [Flaky(quoting), LocalReader(quoting)], ids=["api", "local"])
def test_a_reader_that_fails_on_one_cluster_costs_only_that_one(reader: Any) -> None:
    events: list[Event] = []
    tool = ClusterCompressor(reader, HashingEncoder(), first_cluster_size=1, pass_below=0)
    given = passages(ADA, f"{BO} poison", RIVER)
    result = tool.with_options(on_event=events.append).run(QUESTION, given)
    outcomes = {report.sources: report.outcome for report in result.clusters}
    assert outcomes[("p0",)] == "compressed" or outcomes[("p0", "p2")] == "compressed"
    [warning] = [event for event in events if event.warning]
    assert "p1" in warning.data["sources"]
    assert "reader failed" in warning.data["reason"]
    assert given[1] in result.passages


def test_a_reader_that_fails_always_leaves_everything_as_it_was_or_raises_where_asked_to() -> None:
    given = passages(ADA, BO, RIVER)

    def fail(prompt: str) -> str:
        raise ServiceError("down")

    reader = FakeReader(fail)
    result = ClusterCompressor(reader, HashingEncoder(), pass_below=0).run(QUESTION, given)
    assert list(result.passages) == given
    assert not result.fell_back
    with pytest.raises(ServiceError, match="down"):
        ClusterCompressor(reader, HashingEncoder(), pass_below=0, on_failure="raise").run(QUESTION, given)


def test_a_mistake_in_the_pipeline_is_no_failure_to_fall_back_from() -> None:
    def refuse(prompt: str) -> str:
        raise CapabilityError("this reader cannot")

    with pytest.raises(CapabilityError):
        compressor(refuse)[0].run(QUESTION, passages(ADA, BO))
