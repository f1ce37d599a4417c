"""Retrieves the summaries of documents for L-RAG, but only those summaries that the user may see.

A summary may be put into the prompt only if the pipeline's search may return every chunk that the summary was
made from, and if none of these chunks has changed. If this cannot be checked, the construction of the engine
fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from llama_index.core import DocumentSummaryIndex, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index.core.settings import Settings
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from llama_index_surerag.events import warn
from llama_index_surerag.nodes import copy_of
from llama_index_surerag.services import EmbeddingEncoder, InnerRetriever, NodeRetriever, retriever_of
from llama_index_surerag.summaries import document_of, replace_summaries
from llama_index_surerag.visibility import Search, listed_ids, reason_unknown, use_for_summaries
from surerag.errors import ConfigurationError, check_kind, kind_of, with_article
from surerag.messages import NO_SUMMARY
from surerag.readers import in_thread

SummarySource = BaseRetriever | BaseIndex[Any] | str
_REMEDIES = (
    "pass your own retriever of summaries (summaries=RETRIEVER), which must return only summaries that the "
    "current user may see; or, if everybody may see every summary, pass summaries_are_public=True"
)


def tier_one(
    source: BaseRetriever | BaseIndex[Any],
    summaries: SummarySource | None,
    n_summaries: int,
    embed_model: BaseEmbedding | None,
    *,
    postprocessors: Sequence[BaseNodePostprocessor] = (),
    for_chunks: bool = True,
    are_public: bool = False,
) -> NodeRetriever | str:
    """Return the retriever of summaries for an engine, or a text if there is only one summary.

    Args:
        source: The index or retriever that the engine searches.
        summaries: An index of summaries, the user's own retriever of summaries, or a text if there is only
            one summary. If None, the summaries are the first sentences of each document.
        n_summaries: Maximum number of summaries in a prompt.
        embed_model: Embeds the first sentences, if ``summaries`` is None.
        postprocessors: Postprocessors for the summaries.
        for_chunks: Whether the postprocessors were passed for chunks. If True, rerankers are skipped, and
            unknown classes are rejected.
        are_public: Whether everybody may see every summary.

    Raises:
        ConfigurationError: If surerag cannot find out whether the search may return every chunk that a
            summary was made from.
    """
    hint = f"make an index of summaries: summaries=summary_index(index). {_REMEDIES}"
    check_kind(bool, "True or False", summaries_are_public=are_public)
    if isinstance(summaries, str):
        return summaries
    kinds: Any = BaseRetriever | BaseIndex | None
    check_kind(kinds, "an index of summaries, a retriever or a text", hint=hint, summaries=summaries)
    retriever_of(source)  # raises a ConfigurationError for other types
    own = isinstance(summaries, BaseRetriever)
    if for_chunks:
        postprocessors = _postprocessors_for_summaries(postprocessors, own=own, are_public=are_public)
    reason = reason_unknown(source)
    if reason and not (own or are_public):
        raise ConfigurationError(f"we cannot know which summaries a user may see: {reason}", hint=_REMEDIES)
    if summaries is None:
        summaries = _updated_retriever(source, n_summaries, embed_model)
    elif isinstance(summaries, BaseIndex):
        _check_index(summaries, source)
    elif not are_public:
        _check_same_restrictions(source, summaries)
    search = None if reason else Search(source, restricted=not are_public)
    return NodeRetriever(_VisibleSummaries(summaries, search, n_summaries), list(postprocessors))


def _postprocessors_for_summaries(
    postprocessors: Sequence[BaseNodePostprocessor], *, own: bool, are_public: bool
) -> list[BaseNodePostprocessor]:
    """Select, from the postprocessors for chunks, those that must also be applied to summaries.

    Args:
        postprocessors: Postprocessors that the user passed for chunks.
        own: Whether the user passed a retriever of summaries. Then postprocessors of unknown classes are
            also applied.
        are_public: Whether everybody may see every summary.

    Raises:
        ConfigurationError: If the class of a postprocessor is unknown, and both ``own`` and ``are_public``
            are False.
    """
    uses = [use_for_summaries(item) for item in postprocessors]
    if "unknown" in uses and not (own or are_public):
        kind = type(postprocessors[uses.index("unknown")]).__name__
        raise ConfigurationError(
            f"we cannot know which summaries {with_article(kind)} would drop or change",
            hint=f"{_REMEDIES}; or pass postprocessors for summaries: summary_postprocessors=[…]",
        )
    accepted = ("apply", "unknown") if own else ("apply",)
    return [item for item, use in zip(postprocessors, uses, strict=True) if use in accepted]


def _updated_retriever(
    source: BaseRetriever | BaseIndex[Any], n_summaries: int, embed_model: BaseEmbedding | None
) -> BaseRetriever:
    if isinstance(source, BaseIndex):
        return _IndexSummaries(source, n_summaries, embed_model)
    raise ConfigurationError(
        f"the default summaries need an index, got {kind_of(source)}",
        hint="pass summaries=summary_index(index), or pass the index itself as retriever",
    )


def _check_index(summaries: BaseIndex[Any], source: BaseRetriever | BaseIndex[Any]) -> None:
    searched = source if isinstance(source, BaseIndex) else getattr(source, "_index", None)
    if isinstance(summaries, DocumentSummaryIndex):
        raise ConfigurationError(
            "a DocumentSummaryIndex returns the chunks of documents, not their summaries",
            hint="pass an index of its summaries: summaries=summary_index(index, document_summary_index)",
        )
    if type(summaries) is not VectorStoreIndex or summaries is searched:
        raise ConfigurationError(
            "summaries must be a VectorStoreIndex of summaries, but it is the index of chunks"
            if summaries is searched
            else f"summaries must be a VectorStoreIndex, got {kind_of(summaries)}",
            hint="make one: summaries=summary_index(index)",
        )
    if isinstance(summaries.vector_store, SimpleVectorStore):
        try:
            build_metadata_filter_fn(lambda _: {}, getattr(source, "_filters", None))("")
        except ValueError as error:
            raise ConfigurationError(
                f"the vector store of the summaries cannot apply the filters of the search: {error}",
                hint="store the summaries in a vector store of the same class as the chunks: "
                "VectorStoreIndex(summary_nodes(documents), storage_context=…)",
            ) from error


def _check_same_restrictions(source: BaseRetriever | BaseIndex[Any], summaries: BaseRetriever) -> None:
    if type(summaries) is not VectorIndexRetriever:
        return
    for name in ("_filters", "_doc_ids"):
        mine = getattr(source, name, None)
        if mine and mine != getattr(summaries, name):
            raise ConfigurationError(
                "the retriever of summaries has other filters or doc_ids than the retriever of chunks",
                hint="pass the index of summaries, or give both retrievers the same filters and doc_ids",
            )


class _VisibleSummaries(InnerRetriever):
    """Retrieves the summaries that the user may see, and warns once about each outdated summary.

    A summary is outdated if a chunk that it was made from was changed or deleted.

    Args:
        summaries: An index of summaries, which gets the filters of the search, or a retriever of summaries.
        search: Decides which summaries the user may see; None if the user may see every summary.
        top_n: Number of summaries to retrieve from an index.
    """

    def __init__(self, summaries: BaseRetriever | BaseIndex[Any], search: Search | None, top_n: int) -> None:
        super().__init__()
        self.kind = type(summaries).__name__
        self._summaries = summaries
        self._search = search
        self._top_n = top_n
        self._warned_of: set[str] = set()

    def _current(self) -> BaseRetriever:
        if self._search is not None and (reason := self._search.unknown()):
            raise ConfigurationError(f"we can no longer know which summaries a user may see: {reason}")
        if isinstance(self._summaries, BaseRetriever):
            return self._summaries
        filters, documents = (self._search.filters, self._search.doc_ids) if self._search else (None, None)
        return self._summaries.as_retriever(
            similarity_top_k=self._top_n, filters=filters, doc_ids=documents or None
        )

    def _visible(self, summaries: list[NodeWithScore]) -> list[NodeWithScore]:
        search, visible = self._search, list[NodeWithScore]()
        if search is None:
            return summaries
        for summary in summaries:
            if isinstance(self._summaries, BaseRetriever) and not _is_made_here(summary.node):
                visible.append(summary)
                continue
            permission = search.permission_for(summary.node)
            if permission == "outdated":
                self._warn_outdated(summary.node)
                # NO_SUMMARY lets the engine search if the outdated summary is nearest to the question.
                outdated = copy_of(summary)
                outdated.node.metadata[NO_SUMMARY] = True
                visible.append(outdated)
            elif permission == "allowed":
                visible.append(summary)
        return visible

    def _warn_outdated(self, summary: BaseNode) -> None:
        if summary.node_id not in self._warned_of:
            self._warned_of.add(summary.node_id)
            warn("lazy_rag.summary_outdated", document=summary.ref_doc_id, hint="call summary_index again")

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._visible(self._current().retrieve(query_bundle))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await in_thread(self._visible, await self._current().aretrieve(query_bundle))


def _is_made_here(summary: BaseNode) -> bool:
    """Whether ``summary_nodes`` made the summary.

    Such a summary records the chunks that it was made from, or the hash of its document.
    """
    source = summary.source_node
    return bool(summary.child_nodes or (source is not None and source.hash))


class _IndexSummaries(InnerRetriever):
    """Summarizes the documents of an index by their first sentences, and updates the summaries at each query.

    Each query compares the hashes in the index's docstore with the hashes at the previous query. For 100,000
    nodes, this comparison takes a quarter of the time that LlamaIndex's own search in memory takes. Only new
    and changed summaries are embedded.
    """

    def __init__(self, index: BaseIndex[Any], top_n: int, embed_model: BaseEmbedding | None) -> None:
        super().__init__()
        EmbeddingEncoder(embed_model)  # raises a ConfigurationError for other types
        store = getattr(index, "vector_store", None)
        if not index.docstore.docs and getattr(store, "stores_text", False):
            raise ConfigurationError(
                f"the docstore is empty, because {type(store).__name__} holds the texts itself",
                hint="pass summaries=summary_index(documents)",
            )
        self._source = index
        self._top_n = top_n
        self._embed_model = embed_model or getattr(index, "_embed_model", None)
        self._ids: dict[str, None] = {}
        self._hashes: dict[str, str] = {}
        self._documents: dict[str, str] = {}
        self._made = VectorStoreIndex([], embed_model=self._embed_model)
        self._lock = Lock()
        self._update_summaries()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def _update_summaries(self) -> None:
        ids, hashes = listed_ids(self._source), self._source.docstore.get_all_document_hashes()
        if ids == self._ids and hashes == self._hashes:
            return
        # Ids are compared, too, because two nodes with equal contents have the same hash.
        changed = ids.keys() ^ self._ids.keys() | {name for _, name in hashes.items() ^ self._hashes.items()}
        names, nodes = self._to_summarize(changed, ids)
        replace_summaries(self._made, names, nodes)
        for name in changed:
            self._documents.pop(name, None)
        self._documents |= {node.node_id: document_of(node) for node in nodes}
        self._ids, self._hashes = ids, hashes

    def _to_summarize(self, changed: set[str], ids: dict[str, None]) -> tuple[set[str], list[BaseNode]]:
        """Return what must be summarized again: ids of documents, and the documents' current nodes.

        Args:
            changed: Ids of nodes and documents that were added, changed or deleted since the previous query.
            ids: Ids of all current nodes, in order.
        """
        store = self._source.docstore
        nodes = {
            node.node_id: node for node in store.get_nodes(list(changed & ids.keys()), raise_error=False)
        }
        names = {self._documents.get(name, name) for name in changed} | {*map(document_of, nodes.values())}
        listed = [store.get_ref_doc_info(name) for name in names if name not in nodes]
        parts = names | {part for info in listed if info is not None for part in info.node_ids}
        unchanged = store.get_nodes(list(parts & ids.keys() - nodes.keys()), raise_error=False)
        nodes |= {node.node_id: node for node in unchanged}
        return names, [nodes[name] for name in ids if name in nodes]

    def _search(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with self._lock:
            self._update_summaries()
            if not self._made.index_struct.nodes_dict:
                return []
            return self._made.as_retriever(similarity_top_k=self._top_n).retrieve(query_bundle)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        model = self._embed_model or Settings.embed_model
        vector = query_bundle.embedding or model.get_agg_embedding_from_queries(query_bundle.embedding_strs)
        return self._search(replace(query_bundle, embedding=vector))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        model = self._embed_model or Settings.embed_model
        vector = query_bundle.embedding or await model.aget_agg_embedding_from_queries(
            query_bundle.embedding_strs
        )
        return await in_thread(self._search, replace(query_bundle, embedding=vector))
