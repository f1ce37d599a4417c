"""What LangChain's parts cost at most: known before, and bounded by an option that the core said once."""

from __future__ import annotations

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever

from langchain_surerag import ClusterCompressor, LazyRetrievalChain, UncertaintyRewriter
from surerag import FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError
from tests.langchain.dense_cases import Heard, Store, documents, texts, tool
from tests.methods.dense_rag.script import QUESTION, distinct, script


async def test_a_refiner_stops_at_its_bound_with_what_it_has_and_says_so() -> None:
    reader = script(distinct, sufficient=lambda _: "no")
    # Three rephrasings, four answers, twelve judgements, and whether the context suffices.
    refiner = tool(reader, max_calls=20, rounds=4)
    assert refiner.worst_case_calls(6) == refiner.core.worst_case_calls(6) == 20
    heard = Heard()
    retriever = ContextualCompressionRetriever(base_compressor=refiner, base_retriever=Store())
    found = retriever.invoke(QUESTION, {"callbacks": [heard]})
    assert texts(found) == "abc"
    assert {(d.metadata["dense"]["stopped"], d.metadata["dense"]["calls"]) for d in found} == {("budget", 20)}
    told = [data for name, data in zip(heard.names, heard.data, strict=True) if name.endswith("out_of_calls")]
    assert [(data["max_calls"], data["calls"]) for data in told] == [(20, 20)]
    another = tool(reader, max_calls=20, rounds=4)
    assert (await another.arefine(documents(), QUESTION)).out_of_calls


def test_a_part_that_is_given_calls_for_nothing_hands_on_the_first_documents(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = tool(max_calls=1).compress_documents(documents(), QUESTION)
    assert texts(found) == "abc"
    assert [d.metadata["dense"]["stopped"] for d in found] == ["budget"] * 3
    assert "context_refiner.out_of_calls" in caplog.text


def test_every_part_says_its_bound() -> None:
    reader = FakeReader()
    chain = LazyRetrievalChain(reader, Store(), "A summary.")
    rewriter = UncertaintyRewriter(reader, Store(), candidates=2)
    compressor = ClusterCompressor(reader, HashingEncoder(), bridging=1)
    for part, passages in ((chain, 0), (rewriter, 0), (compressor, 20), (tool(), 20)):
        assert part.worst_case_calls(passages) == part.core.worst_case_calls(passages) > 1
        assert part.model_copy(update={"max_calls": 19}).worst_case_calls(passages) <= 19
    with pytest.raises(ConfigurationError, match="max_calls=1 does not cover the gate"):
        chain.model_copy(update={"max_calls": 1})
    with pytest.raises(ConfigurationError, match="max_calls must be at least 1"):
        rewriter.max_calls = 0
