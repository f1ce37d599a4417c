"""Summaries of a stream of documents in a vector store of the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, islice

from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from llama_index_surerag._summary_tier import Summarizing, Whole, document_id, summary_of, whole_of
from llama_index_surerag.services import NodeRetriever, retriever_of
from surerag.errors import ConfigurationError
from surerag.services import Encoder

_AT_ONCE = 256
"""Documents that are summarized, embedded and stored at once."""


def stored(
    nodes: Iterable[BaseNode],
    summarize: Summarizing,
    embed_model: BaseEmbedding | Encoder | None,
    store: BasePydanticVectorStore,
    n_summaries: int | None,
) -> NodeRetriever:
    """Add the summaries that a store does not have yet, some at a time, and search it.

    Args:
        nodes: Documents, or nodes; those of one document follow each other.
        summarize: Makes summaries of documents.
        embed_model: Embeds them, and queries.
        store: Where they go.
        n_summaries: How many a search finds; the index' own default if left out.

    Raises:
        ConfigurationError: If the store does not keep texts, or the embedding model is not LlamaIndex's.
        InputError: If a summary has no text.
    """
    if not store.stores_text:
        raise ConfigurationError(
            f"{type(store).__name__} keeps vectors without texts, which would have to be held in memory",
            hint="pass a store with stores_text, or keep summaries in a surerag.retrieval.DiskSummaryIndex",
        )
    if embed_model is not None and not isinstance(embed_model, BaseEmbedding):
        raise ConfigurationError(
            f"a store is searched with a BaseEmbedding of LlamaIndex, not a {type(embed_model).__name__}",
            hint="pass one as embed_model=…; a surerag.retrieval.DiskSummaryIndex takes any encoder",
        )
    index = VectorStoreIndex.from_vector_store(store, embed_model)
    # A document's nodes are let go of before the next one's are read.
    wholes = (whole_of(parts) for _, same in groupby(nodes, document_id) if (parts := _with_text(same)))
    while batch := list(islice(wholes, _AT_ONCE)):
        _add(batch, summarize, store, index)
    return NodeRetriever(retriever_of(index, n_summaries))


def _add(
    wholes: Sequence[Whole], summarize: Summarizing, store: BasePydanticVectorStore, index: VectorStoreIndex
) -> None:
    by_id = {f"{whole.plain.id}:summary": whole for whole in wholes}
    try:
        known = {node.node_id for node in store.get_nodes(node_ids=list(by_id))}
    except NotImplementedError:
        # It cannot be asked; most stores then write over what has the same id.
        known = set()
    fresh = [whole for name, whole in by_id.items() if name not in known]
    if fresh:
        summaries = map(summary_of, fresh, summarize(fresh))
        index.insert_nodes([summary.origin for summary in summaries])


def _with_text(nodes: Iterable[BaseNode]) -> list[BaseNode]:
    return [node for node in nodes if node.get_content().strip()]
