"""What LlamaIndex's parts cost at most: known before, and bounded by an option that the core said once."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine

from llama_index_surerag import (
    ClusterCompressorPostprocessor,
    LazyRetrievalQueryEngine,
    UncertaintyRewriteQueryEngine,
)
from surerag import FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError
from tests.llama_index.dense_cases import Found, letter_nodes, texts, tool, warnings
from tests.methods.dense_rag.script import QUESTION, distinct, script


async def test_a_refiner_stops_at_its_bound_with_what_it_has_and_says_so(spans: Any) -> None:
    reader = script(distinct, sufficient=lambda _: "no")
    # Three rephrasings, four answers, twelve judgements, and whether the context suffices.
    refiner = tool(reader, max_calls=20, rounds=4)
    assert refiner.worst_case_calls(6) == refiner.core.worst_case_calls(6) == 20
    engine = RetrieverQueryEngine.from_args(
        Found(letter_nodes()), llm=MockLLM(), node_postprocessors=[refiner]
    )
    found = engine.query(QUESTION).source_nodes
    assert texts(found) == "abc"
    assert {node.metadata["dense"]["stopped"] for node in found} == {"budget"}
    [told] = warnings()
    assert (told.name, told.data["max_calls"], told.data["calls"]) == ("context_refiner.out_of_calls", 20, 20)
    another = tool(reader, max_calls=20, rounds=4)
    assert (await another.arefine(letter_nodes(), QUESTION)).out_of_calls


def test_a_part_that_is_given_calls_for_nothing_hands_on_the_first_nodes(spans: Any) -> None:
    found = tool(max_calls=1).postprocess_nodes(letter_nodes(), query_str=QUESTION)
    assert texts(found) == "abc"
    assert [event.name for event in warnings()] == ["context_refiner.out_of_calls"]


def test_every_part_says_its_bound() -> None:
    reader = FakeReader()
    compressor = ClusterCompressorPostprocessor(reader, HashingEncoder(), bridging=1)
    for part in (compressor, tool()):
        assert part.worst_case_calls(20) == part.core.worst_case_calls(20) > 1
        assert part.model_copy(update={"max_calls": 2}).worst_case_calls(20) == 2
    engine = LazyRetrievalQueryEngine.from_args(
        Found(letter_nodes()), reader, summaries="A summary.", max_calls=2
    )  # fmt: skip
    assert engine.core.worst_case_calls() == 2
    with pytest.raises(ConfigurationError, match="max_calls=1 does not cover the gate"):
        LazyRetrievalQueryEngine.from_args(Found(letter_nodes()), reader, summaries="A summary.", max_calls=1)
    rewriting = UncertaintyRewriteQueryEngine.from_args(
        Found(letter_nodes()), reader, candidates=3, max_calls=5
    )
    assert rewriting.core.worst_case_calls() == 5
