"""What of a compression is let through: length, support by sources, and the token budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surerag import ClusterCompressor, FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import MissingServiceError
from surerag.messages import Event, Pair
from surerag.text import estimated_tokens
from tests.methods.edc2.cases import ADA, AGAIN, BO, QUESTION, RIVER, compressor, passages, quoting


def test_clusters_that_would_not_gain_go_through_as_they_are() -> None:
    tool, reader = compressor(first_cluster_size=1, pass_below=14)
    result = tool.run(QUESTION, passages(ADA, BO, RIVER + " Ada."))
    assert [report.outcome for report in result.clusters] == ["passed", "compressed"]
    assert result.clusters[0].reason == "too short to gain"
    assert len(reader.prompts) == 1


def test_a_compression_longer_than_its_sources_is_refused() -> None:
    long = f"{ADA} {ADA}"
    tool, _ = compressor([long])
    given = passages(ADA, BO[:20])
    result = tool.run(QUESTION, given)
    assert list(result.passages) == given
    assert result.clusters[0].reason == "longer than its sources"
    assert compressor([long], refuse_longer=False)[0].run(QUESTION, given).passages[0].text == long


def test_garbage_is_refused_and_what_is_made_up_is_taken_out() -> None:
    events: list[Event] = []
    given = passages(ADA, BO)
    result = compressor(["Xq zz Qrk wlp."], on_event=events.append)[0].run(QUESTION, given)
    assert list(result.passages) == given
    assert [event.name for event in events if event.warning] == [
        "cluster_compression.fallback",
        "cluster_compression.unsupported",
    ]
    mixed = compressor(lambda p: quoting(p) if AGAIN in p else "Xq zz Qrk wlp.", first_cluster_size=2)[0]
    result = mixed.run(QUESTION, passages(ADA, BO, AGAIN, RIVER))
    assert [p.id for p in result.passages] == ["p0"]
    assert result.dropped[0].reason == "no source supports the compression"
    made_up = "Ada was born in Velm. Ada died in Paris."
    result = compressor([made_up])[0].run(QUESTION, given)
    assert result.passages[0].text == "Ada was born in Velm."
    assert result.clusters[0].removed == ("Ada died in Paris.",)
    flagged = compressor([made_up], guard_action="flag")[0].run(QUESTION, given)
    assert flagged.passages[0].text == made_up
    assert flagged.passages[0].metadata["unsupported"] == ["Ada died in Paris."]
    assert compressor([made_up], guard="off")[0].run(QUESTION, given).passages[0].text == made_up


class WordEntailer:
    """Entailed is what ends in the same word."""

    name = "words"

    def __init__(self) -> None:
        self.asked: list[Pair] = []

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        self.asked += pairs
        same = [float(p.premise.rstrip(".").endswith(p.hypothesis.rstrip(".").split()[-1])) for p in pairs]
        return np.array([[1 - value, 0, value] for value in same])


def test_an_entailer_may_be_the_guard() -> None:
    entailer = WordEntailer()
    tool = ClusterCompressor(
        FakeReader(["She lived all her life. She left."]), HashingEncoder(), entailer, guard="entailment",
        pass_below=0,
    )  # fmt: skip
    result = tool.run(QUESTION, passages(ADA, BO))
    assert result.passages[0].text == "She lived all her life."
    assert [(pair.premise, pair.hypothesis) for pair in entailer.asked][:2] == [
        (ADA, "She lived all her life."),
        (BO, "She lived all her life."),
    ]
    with pytest.raises(MissingServiceError, match="entailer"):
        ClusterCompressor(FakeReader(), guard="entailment")


def test_the_budget_holds_for_all_that_is_returned() -> None:
    two = "Ada the painter was born in Velm. They say it was long ago."
    tool, _ = compressor([two, BO], first_cluster_size=1, budget=8, guard="off", refuse_longer=False)
    result = tool.run(QUESTION, passages(ADA, BO))
    assert [p.text for p in result.passages] == ["Ada the painter was born in Velm."]
    assert result.tokens_after == 8
    assert result.dropped == ((("p1",), "over the token budget"),)


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(1, 80), st.integers(0, 3))
def test_the_budget_holds_whatever_comes(lengths: list[int], budget: int, kind: int) -> None:
    replies: list[Callable[[str], str]] = [
        quoting, lambda _: "", lambda p: p[-40:], lambda _: "Ada. Bo. Velm was here. " * 3,
    ]  # fmt: skip
    tool, _ = compressor(replies[kind], budget=budget, guard="off")
    given = passages(*("Ada " * length for length in lengths))
    result = tool.run(QUESTION, given)
    assert result.tokens_after <= budget
    assert result.tokens_after == sum(estimated_tokens(p.text) for p in result.passages)
    reported = [at for report in result.clusters for at in report.members]
    assert sorted(reported) == list(range(len(given)))


def test_tokens_are_counted_as_told() -> None:
    given = passages(ADA, BO)
    counted = compressor(count_tokens=len)[0].run(QUESTION, given)
    assert counted.tokens_before == len(ADA) + len(BO)
    shown = compressor(show=lambda passage: f"From {passage.text}")[0].run(QUESTION, given)
    assert shown.tokens_before == compressor()[0].run(QUESTION, given).tokens_before + 2

    class Counting(FakeReader):
        def count_tokens(self, text: str) -> int:
            return 7

    tool = ClusterCompressor(Counting(quoting), HashingEncoder(), pass_below=0)
    assert tool.run(QUESTION, given).tokens_before == 14
