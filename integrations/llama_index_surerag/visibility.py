"""Finds out which chunks of an index a search may return to the user.

L-RAG puts a summary into the prompt only if the search may return every chunk that the summary was made from.
If the search uses an unknown class, an unknown setting, or a vector store that cannot list its nodes, surerag
cannot know what the search may return, and construction raises an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

from llama_index.core import (
    DocumentSummaryIndex,
    KeywordTableIndex,
    RAKEKeywordTableIndex,
    SimpleKeywordTableIndex,
    SummaryIndex,
    VectorStoreIndex,
)
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.data_structs import IndexDict, IndexList, KeywordTable
from llama_index.core.data_structs.document_summary import IndexDocumentSummary
from llama_index.core.indices.base import BaseIndex
from llama_index.core.postprocessor import (
    AutoPrevNextNodePostprocessor,
    LLMRerank,
    LongContextReorder,
    MetadataReplacementPostProcessor,
    NERPIINodePostprocessor,
    PIINodePostprocessor,
    PrevNextNodePostprocessor,
    SentenceEmbeddingOptimizer,
    SentenceTransformerRerank,
    SimilarityPostprocessor,
    StructuredLLMRerank,
)
from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import BaseNode, RelatedNodeInfo
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from surerag.errors import kind_of, with_article

_INDICES = (
    VectorStoreIndex,
    SummaryIndex,
    SimpleKeywordTableIndex,
    KeywordTableIndex,
    RAKEKeywordTableIndex,
    DocumentSummaryIndex,
)
"""Index classes whose search may return every chunk that the index lists."""
_SETTINGS = frozenset(
    {
        *("_index", "_vector_store", "_docstore", "_embed_model", "_similarity_top_k", "_sparse_top_k"),
        *("_hybrid_top_k", "_vector_store_query_mode", "_alpha", "_node_ids", "_doc_ids", "_filters"),
        *("_kwargs", "callback_manager", "object_map", "_verbose"),
    }
)
"""Attributes of LlamaIndex's VectorIndexRetriever; any further attribute might exclude documents."""
_FAISS = {
    "llama_index.vector_stores.faiss.base.FaissVectorStore",
    "llama_index.vector_stores.faiss.map_store.FaissMapVectorStore",
}
_COMPARISONS = (
    FilterOperator.EQ,
    FilterOperator.NE,
    FilterOperator.GT,
    FilterOperator.GTE,
    FilterOperator.LT,
    FilterOperator.LTE,
    FilterOperator.IN,
    FilterOperator.NIN,
)
"""Filter operators that mean the same in every vector store, if both values have the same type."""

_RANKING = (
    LLMRerank,
    StructuredLLMRerank,
    RankGPTRerank,
    SentenceTransformerRerank,
    LongContextReorder,
    PrevNextNodePostprocessor,
    AutoPrevNextNodePostprocessor,
    SentenceEmbeddingOptimizer,
)
"""Postprocessors that rank nodes, select nodes by relevance or add neighbours, but check no access rights."""
_RANKING_ELSEWHERE = {
    f"llama_index.postprocessor.{name}"
    for name in (
        "cohere_rerank.base.CohereRerank",
        "colbert_rerank.base.ColbertRerank",
        "flag_embedding_reranker.base.FlagEmbeddingReranker",
        "jinaai_rerank.base.JinaRerank",
        "sbert_rerank.base.SentenceTransformerRerank",
        "voyageai_rerank.base.VoyageAIRerank",
    )
}
_ALSO_FOR_SUMMARIES = (SimilarityPostprocessor, PIINodePostprocessor, NERPIINodePostprocessor)
"""Postprocessors that must also be applied to summaries."""


def reason_unknown(source: BaseRetriever | BaseIndex[Any]) -> str:
    """If surerag cannot know which nodes a search excludes, return the reason; else an empty text."""
    index: Any = source
    if isinstance(source, BaseRetriever):
        if not isinstance(source, VectorIndexRetriever) or type(source) is not VectorIndexRetriever:
            return f"{kind_of(source)} may exclude documents in its own way"
        if others := sorted(vars(source).keys() - _SETTINGS):
            return f"the retriever has attributes that LlamaIndex's class does not have: {', '.join(others)}"
        if source._kwargs:
            return f"vector_store_kwargs may exclude documents: {', '.join(source._kwargs)}"
        index = source._index
        if source.object_map or source._vector_store is not index.vector_store:
            return "the retriever has an object_map, or its vector store is not the vector store of its index"
    if type(index) not in _INDICES or _has_own_methods(index):
        return f"{kind_of(index)} may exclude documents in its own way"
    if index._object_map:
        return "the index has an object_map, which replaces the contents of its nodes"
    if type(index) is not VectorStoreIndex:
        return ""
    filters = getattr(source, "_filters", None)
    return _unknown_in_store(index.vector_store) or _unknown_in_filters(index.vector_store, filters)


def _unknown_in_filters(store: Any, filters: MetadataFilters | None) -> str:
    """Return why surerag cannot know which nodes the filters exclude; an empty text if it can know."""
    if filters is None or isinstance(store, SimpleVectorStore):
        return ""
    for item in filters.filters:
        if isinstance(item, MetadataFilters):
            if reason := _unknown_in_filters(store, item):
                return reason
        elif item.operator not in _COMPARISONS:
            return f"vector stores disagree about the meaning of the filter operator {item.operator.value!r}"
    return ""


def _unknown_in_store(store: Any) -> str:
    kind = type(store)
    name = f"{kind.__module__}.{kind.__qualname__}"
    can_list_nodes = (
        name.startswith("llama_index.vector_stores.")
        and store.stores_text
        and kind.get_nodes is not BasePydanticVectorStore.get_nodes
    )
    if _has_own_methods(store):
        return f"a method of the {kind.__name__} was replaced, and the new method may exclude documents"
    if kind is SimpleVectorStore or name in _FAISS or can_list_nodes:
        return ""
    return (
        f"{with_article(kind.__name__)} cannot list its nodes, so we cannot know which nodes it excludes or "
        "has deleted"
    )


def _has_own_methods(value: Any) -> bool:
    """Whether an attribute of ``value`` itself replaces a method of its class, as a monkey patch does."""
    return any(callable(getattr(type(value), name, None)) for name in vars(value))


def use_for_summaries(postprocessor: BaseNodePostprocessor) -> Literal["apply", "skip", "unknown"]:
    """Return whether a postprocessor of chunks must also be applied to summaries.

    ``"apply"``: The postprocessor drops nodes with low scores, or masks personal data.
    ``"skip"``: The postprocessor only ranks nodes, selects nodes by relevance or adds neighbours.
    ``"unknown"``: The class is unknown, so the postprocessor might hide or mask nodes.
    """
    kind: Any = type(postprocessor)
    if kind in _ALSO_FOR_SUMMARIES:
        return "apply"
    if kind is MetadataReplacementPostProcessor and postprocessor.target_metadata_key == "window":  # type: ignore[attr-defined]  # of this class
        return "skip"
    is_ranking = kind in _RANKING or f"{kind.__module__}.{kind.__qualname__}" in _RANKING_ELSEWHERE
    return "skip" if is_ranking else "unknown"


def listed_ids(index: BaseIndex[Any]) -> dict[str, None]:
    """Return the ids of an index's chunks, in order, without chunks that were deleted from the vector store.

    The docstore's list would be wrong: a docstore may hold deleted chunks and chunks of other indices.
    """
    struct, store = index.index_struct, getattr(index, "vector_store", None)
    match struct:
        case IndexDict() if not struct.nodes_dict and getattr(store, "stores_text", False):
            # The docstore may belong to an ingestion pipeline, which stores the documents there.
            hashed = index.docstore.get_all_document_hashes().values()
            return dict.fromkeys([*_parts_of_documents(index), *hashed])
        case IndexDict():
            names = dict.fromkeys(list(struct.nodes_dict.values()))
        case IndexList():
            names = dict.fromkeys(struct.nodes)
        case IndexDocumentSummary():
            names = dict.fromkeys(list(struct.node_id_to_summary_id))
        case KeywordTable():
            in_table = {name for ids in list(struct.table.values()) for name in ids}
            in_order = [name for name in _parts_of_documents(index) if name in in_table]
            names = dict.fromkeys([*in_order, *sorted(in_table)])
        case _:
            names = {}
    stored = None
    if isinstance(struct, IndexDict) and isinstance(store, SimpleVectorStore):
        stored = store.data.embedding_dict
    elif isinstance(struct, IndexDict):
        stored = getattr(store, "_node_id_to_faiss_id_map", None)
    return names if stored is None else {name: None for name in names if name in stored}


def _parts_of_documents(index: BaseIndex[Any]) -> list[str]:
    listed = (index.docstore.get_all_ref_doc_info() or {}).values()
    return [name for info in listed for name in info.node_ids]


class Search:
    """Decides whether a search of an index may return the chunks that a summary was made from.

    Args:
        source: The index, or a retriever that searches the index.
        restricted: Whether the retriever's filters, ``doc_ids`` and ``node_ids`` restrict the search. If
            False, the search may return every chunk in the index.
    """

    def __init__(self, source: BaseRetriever | BaseIndex[Any], *, restricted: bool = True) -> None:
        self._source = source
        self._restricted = restricted

    @property
    def filters(self) -> MetadataFilters | None:
        """The retriever's current metadata filters; None if there are none."""
        return self._setting("_filters")  # type: ignore[no-any-return]  # of LlamaIndex's retriever

    @property
    def doc_ids(self) -> list[str] | None:
        """The ids of the documents that the retriever searches; None or empty for all documents."""
        return self._setting("_doc_ids")  # type: ignore[no-any-return]  # of LlamaIndex's retriever

    def unknown(self) -> str:
        """If surerag cannot know which nodes the search excludes, return the reason; else an empty text."""
        return reason_unknown(self._source)

    def permission_for(self, summary: BaseNode) -> Literal["allowed", "denied", "outdated"]:
        """Return whether a summary may be put into the prompt: ``"allowed"``, ``"denied"`` or ``"outdated"``.

        ``"denied"``: The search excludes at least one of the chunks that the summary was made from.
        ``"outdated"``: At least one of these chunks was changed or deleted.
        """
        chunks = self._summarized_chunks(summary)
        if chunks is None:
            return "outdated"
        return "allowed" if all(self._admitted_chunks(chunks)) else "denied"

    def _setting(self, name: str) -> Any:
        return getattr(self._source, name, None) if self._restricted else None

    @property
    def _index(self) -> Any:
        return self._source if isinstance(self._source, BaseIndex) else getattr(self._source, "_index", None)

    @property
    def _store(self) -> Any:
        """The vector store if it holds the texts of the chunks; else None."""
        store = getattr(self._index, "vector_store", None) if type(self._index) is VectorStoreIndex else None
        holds_text = store is not None and store.stores_text and not isinstance(store, SimpleVectorStore)
        return store if holds_text else None

    def _summarized_chunks(self, summary: BaseNode) -> list[BaseNode] | None:
        """Return the chunks that a summary was made from; None if any of them was deleted or changed."""
        children, document = summary.child_nodes or [], summary.source_node
        if children:
            return self._same_chunks(children, document)
        if document is None:
            return None
        chunks = self._chunks_of(document.node_id)
        is_complete = chunks and _has_all_neighbours(chunks) and self._is_unchanged(document, chunks)
        return chunks if is_complete else None

    def _is_unchanged(self, document: RelatedNodeInfo, chunks: Sequence[BaseNode]) -> bool:
        """Whether the chunks were cut from the version of the document whose hash is ``document.hash``.

        If no hash of the document is recorded, the answer is True.
        """
        if document.hash is None:
            return True
        hashes = [
            self._hashes(chunk) if chunk.source_node is None else {chunk.source_node.hash} for chunk in chunks
        ]
        if all(item == {None} for item in hashes):
            hashes = [{self._index.docstore.get_document_hash(document.node_id)}]
        return all(document.hash in item for item in hashes)

    def _same_chunks(
        self, expected: Sequence[RelatedNodeInfo], document: RelatedNodeInfo | None
    ) -> list[BaseNode] | None:
        chunks = {chunk.node_id: chunk for chunk in self._current_chunks([info.node_id for info in expected])}
        if all(
            info.node_id in chunks and info.hash in (None, *self._hashes(chunks[info.node_id]))
            for info in expected
        ):
            return list(chunks.values())
        # If an index is built again, its chunks get new ids, but keep their hashes.
        current = [] if document is None else self._chunks_of(document.node_id)
        matching = [
            next((chunk for chunk in current if info.hash in self._hashes(chunk)), None) for info in expected
        ]
        same = [chunk for chunk in matching if chunk is not None]
        return same if len(same) == len(expected) else None

    def _hashes(self, chunk: BaseNode) -> set[str | None]:
        """Return the hash of a chunk, and the hash that the docstore recorded for the chunk.

        These hashes may differ after a restart, because a loaded chunk may have another hash than when it was
        saved.
        """
        return {chunk.hash, self._index.docstore.get_document_hash(chunk.node_id)}

    def _current_chunks(self, names: Collection[str]) -> list[BaseNode]:
        if not names:
            return []
        if self._store is not None:
            return list(self._store.get_nodes(node_ids=list(names), filters=None))
        listed = listed_ids(self._index)
        current = [name for name in names if name in listed]
        return list(self._index.docstore.get_nodes(current, raise_error=False))

    def _chunks_of(self, document: str) -> list[BaseNode]:
        if self._store is not None:
            only = MetadataFilters(filters=[MetadataFilter(key="doc_id", value=document)])
            return list(self._store.get_nodes(node_ids=None, filters=only))
        info = self._index.docstore.get_ref_doc_info(document)
        return self._current_chunks([document] if info is None else info.node_ids)

    def _admitted_chunks(self, chunks: Iterable[BaseNode]) -> Iterator[bool]:
        filters, documents, names = self.filters, self.doc_ids, self._setting("_node_ids")
        store = getattr(self._index, "vector_store", None)
        listed = set(names) if names else None
        passes = None
        if isinstance(store, SimpleVectorStore):
            passes = build_metadata_filter_fn(store.data.metadata_dict.__getitem__, filters)
        for chunk in chunks:
            yield (
                (listed is None or chunk.node_id in listed)
                and (not documents or chunk.ref_doc_id in documents)
                and (not filters or (passes(chunk.node_id) if passes else matches(chunk, filters) is True))
            )


def _has_all_neighbours(chunks: Sequence[BaseNode]) -> bool:
    """Whether ``chunks`` has the previous and the next chunk of each chunk, as the parser recorded them."""
    neighbours = {near.node_id for chunk in chunks for near in (chunk.prev_node, chunk.next_node) if near}
    return neighbours <= {chunk.node_id for chunk in chunks}


def matches(node: BaseNode, filters: MetadataFilters) -> bool | None:
    """Return whether a node passes filters in every vector store; None if vector stores may disagree.

    Vector stores may disagree if the node lacks a filter's key, if the value in the node and the value in the
    filter have different types, or if an operator compares parts of texts or lists.
    """
    metadata = {"doc_id": node.ref_doc_id, "ref_doc_id": node.ref_doc_id, **node.metadata}
    results = {
        matches(node, item) if isinstance(item, MetadataFilters) else _matches_filter(metadata, item)
        for item in filters.filters
    }
    if filters.condition is FilterCondition.OR:
        return True in results or (None if None in results else False)
    # The condition NOT means that no filter may match.
    required = filters.condition is not FilterCondition.NOT
    return None if None in results else results <= {required}


def _matches_filter(metadata: dict[str, Any], item: Any) -> bool | None:
    value = metadata.get(item.key)
    if value is None or item.operator not in _COMPARISONS:
        return None
    kinds = {type(other) for other in (item.value if isinstance(item.value, list) else [item.value])}
    if not kinds <= {type(value)} and not kinds | {type(value)} <= {int, float}:
        return None
    return build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[item]))("")
