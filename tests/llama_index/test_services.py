"""Embedding models as encoders, retrievers as retrievers, nodes as passages and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import StreamingResponse
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_surerag import EmbeddingEncoder, NodeRetriever
from llama_index_surerag.evaluating import aread
from llama_index_surerag.nodes import DocumentsBehind, nodes_of, passages_of
from surerag.errors import ConfigurationError, ServiceError
from surerag.messages import Passage
from surerag.services import Encoder, Retriever
from tests.blocking import Gate, cancelled_without_trace
from tests.llama_index import corpus
from tests.llama_index.corpus import UNKNOWN


async def test_an_encoder_normalises_queries_and_documents() -> None:
    encoder = EmbeddingEncoder(MockEmbedding(embed_dim=4))
    assert isinstance(encoder, Encoder)
    for rows in (encoder.encode(["a", "b"], "query"), await encoder.aencode(["a", "b"], "document")):
        assert rows.dtype == np.float32
        assert np.allclose(rows, 0.5)


def test_an_encoder_tells_its_name_and_refuses_what_is_none() -> None:
    assert EmbeddingEncoder(MockEmbedding(embed_dim=4, model_name="mini")).name == "mini"
    assert EmbeddingEncoder(MockEmbedding(embed_dim=4)).name == "MockEmbedding"
    with pytest.raises(ConfigurationError, match="expected a LlamaIndex embedding model, got str"):
        EmbeddingEncoder("mini")


def test_a_zero_vector_is_an_error() -> None:
    class Zero(MockEmbedding):
        def _get_text_embedding(self, text: str) -> list[float]:
            return [0.0] * 4

    with pytest.raises(ServiceError, match="length 0"):
        EmbeddingEncoder(Zero(embed_dim=4)).encode(["a"], "document")


async def test_a_retriever_gives_passages_that_remember_their_nodes() -> None:
    theirs = corpus.index().as_retriever(similarity_top_k=3)
    ours = NodeRetriever(theirs)
    assert isinstance(ours, Retriever)
    expected = [(node.node_id, node.score) for node in theirs.retrieve(UNKNOWN)]
    for passages in (ours.retrieve(UNKNOWN, 3), await ours.aretrieve(UNKNOWN, 3)):
        assert [(passage.id, passage.score) for passage in passages] == expected
        assert [(node.node_id, node.score) for node in nodes_of(passages)] == expected
    assert len(ours.retrieve(UNKNOWN, 2)) == 2
    assert not [word for word in ("abstract", "page") if word in passages[0].text]


def test_scores_of_none_and_passages_of_others_come_back_as_nodes() -> None:
    [passage] = passages_of([NodeWithScore(node=TextNode(id_="a", text="b"))])
    assert passage.score is None
    [mine, theirs] = nodes_of([passage, Passage("text", id="c", score=0.5, metadata={"d": 1})])
    assert (mine.node_id, mine.score) == ("a", None)
    assert (theirs.node_id, theirs.score, theirs.get_content(), theirs.metadata) == (
        "c",
        0.5,
        "text",
        {"d": 1},
    )


async def test_an_encoding_that_is_cancelled_leaves_nothing_behind() -> None:
    gate = Gate()

    class Slow(corpus.HashEmbedding):
        def _get_text_embedding(self, text: str) -> list[float]:
            gate.wait()
            return super()._get_text_embedding(text)

    encoder = EmbeddingEncoder(Slow())
    await cancelled_without_trace(lambda: encoder.aencode(["a"], "document"), gate)


async def test_a_retrieval_that_is_cancelled_leaves_nothing_behind() -> None:
    gate = Gate()

    class Slow(BaseRetriever):
        def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
            gate.wait()
            return []

    await cancelled_without_trace(lambda: NodeRetriever(Slow()).aretrieve("q", 1), gate)


async def test_a_search_for_documents_that_is_cancelled_leaves_nothing_behind() -> None:
    gate = Gate()

    def behind(nodes: Any) -> list[TextNode]:
        gate.wait()
        return []

    await cancelled_without_trace(lambda: DocumentsBehind(behind).aof([]), gate)


async def test_a_streamed_answer_that_is_cancelled_leaves_nothing_behind() -> None:
    gate = Gate()

    def words() -> Any:
        gate.wait()
        yield "word"

    await cancelled_without_trace(lambda: aread(StreamingResponse(words())), gate)
