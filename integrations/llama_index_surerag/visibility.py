"""Finds out which chunks of an index a search may return now.

L-RAG's tier 1 shows a summary only if the search may return each chunk that the summary was made of. We
refuse what we cannot analyse: a user's own class, an unknown setting, a store that cannot list its nodes.
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

_INDICES = (
    VectorStoreIndex,
    SummaryIndex,
    SimpleKeywordTableIndex,
    KeywordTableIndex,
    RAKEKeywordTableIndex,
    DocumentSummaryIndex,
)
"""Indices whose search may return every chunk that they list."""
_SETTINGS = frozenset(
    {
        *("_index", "_vector_store", "_docstore", "_embed_model", "_similarity_top_k", "_sparse_top_k"),
        *("_hybrid_top_k", "_vector_store_query_mode", "_alpha", "_node_ids", "_doc_ids", "_filters"),
        *("_kwargs", "callback_manager", "object_map", "_verbose"),
    }
)
"""Attributes of a VectorIndexRetriever that we know; any other attribute may leave documents out."""
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
"""Operators that mean the same in every vector store, if both values are of one type."""

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
"""Postprocessors that only rank or select by relevance; they do not hide confidential text."""
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
_ALIKE_FOR_SUMMARIES = (SimilarityPostprocessor, PIINodePostprocessor, NERPIINodePostprocessor)
"""Postprocessors that treat a summary in the same way as a chunk."""


def reason_unknown(source: BaseRetriever | BaseIndex[Any]) -> str:
    """Return why we cannot know which nodes a search excludes; an empty text if we can know this."""
    index: Any = source
    if isinstance(source, BaseRetriever):
        if not isinstance(source, VectorIndexRetriever) or type(source) is not VectorIndexRetriever:
            return f"a {type(source).__name__} may leave documents out in its own way"
        if others := sorted(vars(source).keys() - _SETTINGS):
            return f"the retriever has attributes that LlamaIndex does not know: {', '.join(others)}"
        if source._kwargs:
            return f"vector_store_kwargs may leave documents out: {', '.join(source._kwargs)}"
        index = source._index
        if source.object_map or source._vector_store is not index.vector_store:
            return "the retriever has an object_map, or another vector store than its index"
    if type(index) not in _INDICES or _has_own_methods(index):
        return f"a {type(index).__name__} may leave documents out in its own way"
    if index._object_map:
        return "the index has an object_map, which replaces the contents of its nodes"
    if type(index) is not VectorStoreIndex:
        return ""
    filters = getattr(source, "_filters", None)
    return _unknown_in_store(index.vector_store) or _unknown_in_filters(index.vector_store, filters)


def _unknown_in_filters(store: Any, filters: MetadataFilters | None) -> str:
    """Return why we cannot know which nodes filters exclude; we can for LlamaIndex's in-memory store."""
    if filters is None or isinstance(store, SimpleVectorStore):
        return ""
    for one in filters.filters:
        if isinstance(one, MetadataFilters):
            if found := _unknown_in_filters(store, one):
                return found
        elif one.operator not in _COMPARISONS:
            return f"what the operator {one.operator.value!r} leaves out differs between vector stores"
    return ""


def _unknown_in_store(store: Any) -> str:
    kind = type(store)
    name = f"{kind.__module__}.{kind.__qualname__}"
    can_be_asked = (
        name.startswith("llama_index.vector_stores.")
        and store.stores_text
        and kind.get_nodes is not BasePydanticVectorStore.get_nodes
    )
    if _has_own_methods(store):
        return f"a method of the {kind.__name__} was replaced, which may leave documents out"
    if kind is SimpleVectorStore or name in _FAISS or can_be_asked:
        return ""
    return f"a {kind.__name__} cannot tell which nodes it would leave out, or has deleted"


def _has_own_methods(value: Any) -> bool:
    """Whether a method of an object's class was replaced in the object."""
    return any(callable(getattr(type(value), name, None)) for name in vars(value))


def effect_on_summaries(postprocessor: BaseNodePostprocessor) -> Literal["alike", "none", "unknown"]:
    """Return how a postprocessor of chunks must be applied to summaries.

    ``"alike"`` means: as to chunks. ``"none"`` means: not at all, because it selects by relevance or adds
    neighbours.
    """
    kind: Any = type(postprocessor)
    if kind in _ALIKE_FOR_SUMMARIES:
        return "alike"
    if kind is MetadataReplacementPostProcessor and postprocessor.target_metadata_key == "window":  # type: ignore[attr-defined]  # of this class
        return "none"
    is_ranking = kind in _RANKING or f"{kind.__module__}.{kind.__qualname__}" in _RANKING_ELSEWHERE
    return "none" if is_ranking else "unknown"


def listed_ids(index: BaseIndex[Any]) -> dict[str, None]:
    """Return the ids of the chunks that an index lists and its vector store has not deleted, in order.

    A docstore may be shared with other indices, and may hold deleted chunks.
    """
    struct, store = index.index_struct, getattr(index, "vector_store", None)
    match struct:
        case IndexDict() if not struct.nodes_dict and getattr(store, "stores_text", False):
            # The docstore may belong to an ingestion pipeline, which keeps the documents there.
            hashed = index.docstore.get_all_document_hashes().values()
            return dict.fromkeys([*_parts_of_documents(index), *hashed])
        case IndexDict():
            names = dict.fromkeys(list(struct.nodes_dict.values()))
        case IndexList():
            names = dict.fromkeys(struct.nodes)
        case IndexDocumentSummary():
            names = dict.fromkeys(list(struct.node_id_to_summary_id))
        case KeywordTable():
            held = {name for found in list(struct.table.values()) for name in found}
            in_order = [name for name in _parts_of_documents(index) if name in held]
            names = dict.fromkeys([*in_order, *sorted(held)])
        case _:
            names = {}
    there = None
    if isinstance(struct, IndexDict) and isinstance(store, SimpleVectorStore):
        there = store.data.embedding_dict
    elif isinstance(struct, IndexDict):
        there = getattr(store, "_node_id_to_faiss_id_map", None)
    return names if there is None else {name: None for name in names if name in there}


def _parts_of_documents(index: BaseIndex[Any]) -> list[str]:
    listed = (index.docstore.get_all_ref_doc_info() or {}).values()
    return [name for info in listed for name in info.node_ids]


class Search:
    """A search with known settings, which tells the chunks that it may return now.

    Args:
        source: The index, or a retriever of it.
        restricted: Whether the retriever's filters, ``doc_ids`` and ``node_ids`` apply; if not, every chunk
            in the index may be returned.
    """

    def __init__(self, source: BaseRetriever | BaseIndex[Any], *, restricted: bool = True) -> None:
        self._source = source
        self._restricted = restricted

    @property
    def filters(self) -> MetadataFilters | None:
        """The current filters."""
        return self._setting("_filters")  # type: ignore[no-any-return]  # of LlamaIndex's retriever

    @property
    def doc_ids(self) -> list[str] | None:
        """The ids of the documents that are searched now; None or empty for all documents."""
        return self._setting("_doc_ids")  # type: ignore[no-any-return]  # of LlamaIndex's retriever

    def unknown(self) -> str:
        """Return why we cannot know which nodes the search excludes now; empty if we can know this."""
        return reason_unknown(self._source)

    def verdict(self, summary: BaseNode) -> Literal["shown", "denied", "outdated"]:
        """Return whether the search may return every chunk of a summary, and whether all are unchanged."""
        chunks = self._chunks_behind(summary)
        if chunks is None:
            return "outdated"
        return "shown" if all(self._admitted_chunks(chunks)) else "denied"

    def _setting(self, name: str) -> Any:
        return getattr(self._source, name, None) if self._restricted else None

    @property
    def _index(self) -> Any:
        return self._source if isinstance(self._source, BaseIndex) else getattr(self._source, "_index", None)

    @property
    def _store(self) -> Any:
        """The vector store if it holds the texts itself, else None."""
        store = getattr(self._index, "vector_store", None) if type(self._index) is VectorStoreIndex else None
        holds_text = store is not None and store.stores_text and not isinstance(store, SimpleVectorStore)
        return store if holds_text else None

    def _chunks_behind(self, summary: BaseNode) -> list[BaseNode] | None:
        """Return the chunks that a summary was made of; None if a chunk was deleted or changed."""
        made_of, document = summary.child_nodes or [], summary.source_node
        if made_of:
            return self._same_chunks(made_of, document)
        if document is None:
            return None
        found = self._chunks_of(document.node_id)
        whole = found and _has_all_neighbours(found) and self._is_unchanged(document, found)
        return found if whole else None

    def _is_unchanged(self, document: RelatedNodeInfo, chunks: Sequence[BaseNode]) -> bool:
        """Whether the chunks of a document are of the document with this hash."""
        if document.hash is None:
            return True
        hashes = [
            self._hashes(chunk) if chunk.source_node is None else {chunk.source_node.hash} for chunk in chunks
        ]
        if all(one == {None} for one in hashes):
            hashes = [{self._index.docstore.get_document_hash(document.node_id)}]
        return all(document.hash in one for one in hashes)

    def _same_chunks(
        self, made_of: Sequence[RelatedNodeInfo], document: RelatedNodeInfo | None
    ) -> list[BaseNode] | None:
        """Return the chunks with these ids and hashes; None if a chunk was deleted or changed."""
        held = {chunk.node_id: chunk for chunk in self._held_chunks([one.node_id for one in made_of])}
        if all(
            one.node_id in held and one.hash in (None, *self._hashes(held[one.node_id])) for one in made_of
        ):
            return list(held.values())
        # An index that was built again gives its chunks new ids.
        found = [] if document is None else self._chunks_of(document.node_id)
        alike = [next((chunk for chunk in found if one.hash in self._hashes(chunk)), None) for one in made_of]
        same = [chunk for chunk in alike if chunk is not None]
        return same if len(same) == len(made_of) else None

    def _hashes(self, chunk: BaseNode) -> set[str | None]:
        """Return a chunk's current hash, and its hash before a restart, if the index has it."""
        return {chunk.hash, self._index.docstore.get_document_hash(chunk.node_id)}

    def _held_chunks(self, names: Collection[str]) -> list[BaseNode]:
        """Return the chunks with these ids that the index holds now."""
        if not names:
            return []
        if self._store is not None:
            return list(self._store.get_nodes(node_ids=list(names), filters=None))
        listed = listed_ids(self._index)
        kept = [name for name in names if name in listed]
        return list(self._index.docstore.get_nodes(kept, raise_error=False))

    def _chunks_of(self, document: str) -> list[BaseNode]:
        """Return the chunks of a document that the index holds now."""
        if self._store is not None:
            only = MetadataFilters(filters=[MetadataFilter(key="doc_id", value=document)])
            return list(self._store.get_nodes(node_ids=None, filters=only))
        info = self._index.docstore.get_ref_doc_info(document)
        return self._held_chunks([document] if info is None else info.node_ids)

    def _admitted_chunks(self, chunks: Iterable[BaseNode]) -> Iterator[bool]:
        """Yield whether the search may return each chunk."""
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
    """Whether no chunk was deleted: a parser's chunks name their neighbours."""
    beside = {near.node_id for chunk in chunks for near in (chunk.prev_node, chunk.next_node) if near}
    return beside <= {chunk.node_id for chunk in chunks}


def matches(node: BaseNode, filters: MetadataFilters) -> bool | None:
    """Return whether filters match in every vector store; None if stores may differ.

    Stores differ if a key is missing, if types differ, and in operators on texts and lists.
    """
    metadata = {"doc_id": node.ref_doc_id, "ref_doc_id": node.ref_doc_id, **node.metadata}
    found = {
        matches(node, one) if isinstance(one, MetadataFilters) else _matches_one(metadata, one)
        for one in filters.filters
    }
    if filters.condition is FilterCondition.OR:
        return True in found or (None if None in found else False)
    # NOT: none of them matches.
    wanted = filters.condition is not FilterCondition.NOT
    return None if None in found else found <= {wanted}


def _matches_one(metadata: dict[str, Any], one: Any) -> bool | None:
    value = metadata.get(one.key)
    if value is None or one.operator not in _COMPARISONS:
        return None
    kinds = {type(other) for other in (one.value if isinstance(one.value, list) else [one.value])}
    if not kinds <= {type(value)} and not kinds | {type(value)} <= {int, float}:
        return None
    return build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[one]))("")
