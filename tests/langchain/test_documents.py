"""Documents that come out: plain ones, copied deeply, with the ids that they had, fit to be written down."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline, EmbeddingsFilter
from langchain_community.document_transformers import EmbeddingsRedundantFilter
from langchain_core.documents import Document
from langchain_core.load import dumps, loads
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from langchain_surerag import (
    ClusterCompressor,
    LazyRetrievalChain,
    RAGState,
    UncertaintyRewriteRetriever,
    retrieval_node,
    summaries_of,
)
from surerag import FakeReader
from surerag.encoders import HashingEncoder
from tests.langchain.conftest import HashEmbeddings

SHORT = "Ada was born in Velm."
LONG = f"{SHORT} Bo came much later, and stayed in Tarn for a good many years."


class Counting(HashEmbeddings):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.texts += texts
        return super().embed_documents(texts)


def compressor() -> ClusterCompressor:
    return ClusterCompressor(FakeReader(lambda _: SHORT), HashingEncoder(), pass_below=0)


def test_a_filter_after_the_compressor_sees_what_it_made() -> None:
    seen = Counting()
    # The first filter leaves the vectors of whole documents in a class of its own.
    pipeline = DocumentCompressorPipeline(
        transformers=[
            EmbeddingsRedundantFilter(embeddings=HashEmbeddings(), similarity_threshold=0.999),
            compressor(),
            EmbeddingsFilter(embeddings=seen, k=1),
        ]
    )
    [kept] = pipeline.compress_documents([Document(LONG, id="ada")], "Where was Ada born?")
    assert kept.page_content == SHORT
    assert seen.texts == [SHORT]


def test_compressed_documents_are_plain() -> None:
    class Mine(Document):
        vector: tuple[float, ...] = (1.0,)

    [compressed] = compressor().compress_documents([Mine(LONG)], "Where?")
    assert type(compressed) is Document
    whole = ClusterCompressor(FakeReader([]), HashingEncoder(), pass_below=9999)
    [passed] = whole.compress_documents([Mine(LONG)], "Where?")
    assert isinstance(passed, Mine)


def test_ids_are_none_where_there_were_none() -> None:
    found = compressor().compress_documents([Document(LONG), Document(LONG, id="b")], "Where?")
    sources = [source["id"] for document in found for source in document.metadata["compressed_from"]]
    assert sorted(sources, key=str) == [None, "b"]
    index = summaries_of([Document(LONG), Document(LONG, id="b")], embeddings=HashEmbeddings())
    chain = LazyRetrievalChain(FakeReader(["Velm"], entropy=0.0), RunnableLambda(lambda _: []), index)
    assert sorted((one.id for one in chain.invoke("Where?")["context"]), key=str) == [None, "b"]


def test_metadata_is_copied_to_the_bottom() -> None:
    lock = threading.Lock()
    given = Document(LONG, metadata={"tags": ["a", {"b": [1]}], "lock": lock})
    for part in (compressor(), ClusterCompressor(FakeReader([]), HashingEncoder(), pass_below=9999)):
        [found] = part.compress_documents([given], "Where?")
        found.metadata["tags"][1]["b"].append(2)
        assert found.metadata["lock"] is lock
    assert given.metadata["tags"] == ["a", {"b": [1]}]


def decided() -> UncertaintyRewriteRetriever:
    return UncertaintyRewriteRetriever(
        FakeReader(lambda _: "Velm"), RunnableLambda(lambda _: [Document(LONG, id="a")])
    )


def test_decisions_are_written_down_and_read_again() -> None:
    [found] = decided().invoke("Where?")
    again = loads(dumps(found), allowed_objects="core")
    assert again == found
    assert again.metadata["uncertainty_rewrite"] == {**found.metadata["uncertainty_rewrite"]}
    # Another decision about the same document is equal to one that was read again.
    [other] = decided().invoke("Where was Ada born?")
    assert other.metadata["uncertainty_rewrite"] == again.metadata["uncertainty_rewrite"]
    assert other.metadata["uncertainty_rewrite"] != {"kept": "original"}


async def test_decisions_survive_checkpoints() -> None:
    graph = StateGraph(RAGState).add_node("retrieve", retrieval_node(decided())).add_edge(START, "retrieve")
    app = graph.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    state = await app.ainvoke({"question": "Where?"}, config)
    [kept] = (await app.aget_state(config)).values["context"]
    assert kept == state["context"][0]
    assert kept.metadata["uncertainty_rewrite"]["kept"] == "original"


@pytest.mark.parametrize("entropy", [0.0, 9.0])
def test_what_answered_is_the_context(entropy: float) -> None:
    chain = LazyRetrievalChain(
        FakeReader(lambda _: "Velm", entropy=entropy),
        RunnableLambda(lambda _: [Document("Orun.", id="orun")]),
        summaries_of([Document(LONG, id="ada")], embeddings=HashEmbeddings()),
    )
    output = chain.invoke({"input": "Where?"})
    assert [one.id for one in output["context"]] == ["ada", "orun"][: 1 + (entropy > 1)]


def test_the_compression_retriever_hands_on_plain_documents() -> None:
    retriever = ContextualCompressionRetriever(
        base_compressor=compressor(), base_retriever=RunnableLambda(lambda _: [Document(LONG)])
    )
    assert [document.page_content for document in retriever.invoke("Where?")] == [SHORT]
