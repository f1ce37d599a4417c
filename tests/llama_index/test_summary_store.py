"""Summaries in a vector store of the user's own, filled in a stream; and how many are held in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.schema import BaseNode, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from pydantic import PrivateAttr

from llama_index_surerag import LazyRetrievalQueryEngine, summaries_of
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, HashEmbedding


class Store(BasePydanticVectorStore):
    """Keeps texts, as Qdrant, Chroma and their like do."""

    stores_text: bool = True
    asked: bool = True
    _nodes: dict[str, BaseNode] = PrivateAttr(default_factory=dict)
    _added: list[int] = PrivateAttr(default_factory=list)

    @property
    def client(self) -> Any:
        return None

    def add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        self._added.append(len(nodes))
        self._nodes |= {node.node_id: node for node in nodes}
        return [node.node_id for node in nodes]

    def get_nodes(self, node_ids: list[str] | None = None, filters: Any = None) -> list[BaseNode]:
        if not self.asked:
            raise NotImplementedError
        return [self._nodes[name] for name in node_ids or () if name in self._nodes]

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        self._nodes = {name: node for name, node in self._nodes.items() if node.ref_doc_id != ref_doc_id}

    def query(self, query: VectorStoreQuery, **_: Any) -> VectorStoreQueryResult:
        nodes = list(self._nodes.values())
        scores = np.array([node.embedding for node in nodes]) @ np.array(query.query_embedding)
        best = np.argsort(-scores, kind="stable")[: query.similarity_top_k]
        return VectorStoreQueryResult(
            nodes=[nodes[place] for place in best],
            similarities=[float(scores[place]) for place in best],
            ids=[nodes[place].node_id for place in best],
        )


def pieces(number: int, store: Store, ahead: list[int]) -> Iterator[BaseNode]:
    """Yield two nodes of each document, and note how far they are ahead of the store."""
    for place in range(number):
        ahead.append(place - len(store._nodes))
        whole = Document(id_=str(place), text=f"Number {place} is here. It stays. It waits.")
        for part in ("is here. It stays.", "It waits."):
            node = TextNode(text=f"Number {place} {part}")
            node.relationships["1"] = whole.as_related_node_info()  # type: ignore[index]  # SOURCE
            yield node


def test_a_stream_goes_into_a_store_some_at_a_time() -> None:
    store, ahead = Store(), list[int]()
    tier: Any = summaries_of(pieces(600, store, ahead), embed_model=HashEmbedding(), store=store)
    assert (store._added, max(ahead)) == ([256, 256, 88], 256)
    assert len(tier.retrieve("Number 599", None)) < 600
    assert store._nodes["599:summary"].get_content() == "Number 599 is here. It stays."
    assert store._nodes["599:summary"].ref_doc_id == "599"
    summaries_of(pieces(610, store, []), embed_model=HashEmbedding(), store=store)
    assert store._added[3:] == [10], "what is there is not embedded again"


def test_a_store_that_cannot_be_asked_is_written_over() -> None:
    store = Store(asked=False)
    for _ in range(2):
        summaries_of(corpus.documents(), embed_model=HashEmbedding(), store=store)
    assert (store._added, len(store._nodes)) == ([3, 3], 3)


@pytest.mark.parametrize("place", ["memory", "store"])
async def test_an_engine_answers_from_either(place: str) -> None:
    store = Store() if place == "store" else None
    tier = summaries_of(corpus.documents(), embed_model=HashEmbedding(), n_summaries=1, store=store)
    engine = LazyRetrievalQueryEngine.from_args(
        corpus.index(),
        corpus.Knowing([corpus.answer(corpus.LEADS["ada"])] * 2),
        summaries=tier,
        n_summaries=1,
    )
    for response in (engine.query(KNOWN), await engine.aquery(KNOWN)):
        assert "Velm" in str(response)
        assert response.metadata["summary_ids"] == ["ada:summary"]


def test_what_a_store_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="SimpleVectorStore keeps vectors without texts"):
        summaries_of(corpus.documents(), embed_model=HashEmbedding(), store=SimpleVectorStore())
    with pytest.raises(ConfigurationError, match="BaseEmbedding of LlamaIndex, not a HashingEncoder"):
        summaries_of(corpus.documents(), embed_model=HashingEncoder(), store=Store())
    with pytest.raises(InputError, match="no document with text"):
        summaries_of(iter([Document(text=" ")]), embed_model=HashEmbedding(), store=Store())
    with pytest.raises(ConfigurationError, match="made of a str"):
        summaries_of(iter(["text"]), embed_model=HashEmbedding(), store=Store())  # type: ignore[arg-type]  # refused


def test_too_many_summaries_are_refused_before_any_is_made() -> None:
    read = []

    def stream() -> Iterator[Document]:
        for place in range(10**9):
            read.append(place)
            yield Document(id_=str(place), text="Tin melts.")

    with pytest.raises(ConfigurationError, match=r"more than 5 summaries.*DiskSummaryIndex.*store"):
        summaries_of(stream(), embed_model=HashEmbedding(), max_summaries=5)
    assert len(read) == 6
    assert summaries_of(corpus.documents(), embed_model=HashEmbedding(), max_summaries=3)


def test_an_index_that_is_too_large_is_refused_and_one_that_becomes_so_is_followed_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def engine(most: int) -> Any:
        index = VectorStoreIndex(corpus.nodes(), embed_model=HashEmbedding())
        return index, LazyRetrievalQueryEngine.from_args(
            index, corpus.Knowing(["yes"] * 9), max_summaries=most
        )

    with pytest.raises(ConfigurationError, match="more than 2 summaries"):
        engine(2)
    index, lazy = engine(3)
    index.insert(Document(id_="new", text="Copper is new. It is red."))
    with caplog.at_level(logging.WARNING, logger="surerag"):
        for _ in range(2):
            assert "new:summary" in lazy.query("Copper is new").metadata["summary_ids"]
    assert sum("more than 3 summaries" in record.message for record in caplog.records) == 1
