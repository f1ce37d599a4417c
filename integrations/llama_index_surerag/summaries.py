"""Tier 1 of lazy retrieval: summaries of documents as nodes in an index of their own.

It is an ordinary LlamaIndex index: the nodes have their documents' metadata, so that the same filters apply;
it is persisted and loaded like any other::

    summaries = summary_index(index, persist_dir="storage/summaries")
    retriever = index.as_retriever(filters=filters)
    engine = LazyRetrievalQueryEngine.from_args(retriever, llm, summaries=summaries)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.data_structs import IndexDict, IndexList
from llama_index.core.embeddings.utils import resolve_embed_model
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import (
    BaseNode,
    Document,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.settings import Settings

from llama_index_surerag.llm import reader_of
from llama_index_surerag.services import EmbeddingEncoder, InnerRetriever, NodeRetriever, retriever_of
from surerag.documents import Document as PlainDocument
from surerag.errors import ConfigurationError, InputError, check_kind
from surerag.readers import Reader, in_thread
from surerag.retrieval import summarizer_of, with_summaries

Summarize = int | str | Callable[[BaseNode], str] | LLM | Reader
"""How to summarize: a number of lead sentences, a metadata key, a function of the document, or a model."""
SummarySource = BaseRetriever | BaseIndex[Any] | str
_RESTRICTIONS = ("_filters", "_doc_ids", "_node_ids")
"""What restricts a retriever of a vector index; it has no public names for them."""


def summary_nodes(source: BaseIndex[Any] | Iterable[BaseNode], summarize: Summarize = 2) -> list[TextNode]:
    """Return a summary of each document, or of those in an index's docstore, as a node whose source it is.

    Its id is the document's with ``:summary`` behind it; its metadata are those that all nodes of the
    document share, and are left out of what models are shown. A document without prose has no summary: its
    node holds its beginning, with the key ``no_summary``, and where it is the nearest, the engine searches.

    Raises:
        InputError: If there is no document with text, or a metadata key is missing.
    """
    if isinstance(source, BaseIndex):
        nodes = source.docstore.get_nodes(list(_node_ids(source)), raise_error=False)
    else:
        nodes = list(source) if isinstance(source, Iterable) else [source]
    summaries = _summary_nodes(nodes, summarize)
    if not summaries:
        raise InputError(
            "there is no document with text to summarize",
            hint="pass the documents; an index whose vector store holds the texts itself has none to show",
        )
    return summaries


def _summary_nodes(nodes: Sequence[BaseNode], summarize: Summarize = 2) -> list[TextNode]:
    summarizer = summarizer_of(summarize, LLM | Reader, reader_of)
    documents = [document for document in _documents(nodes) if document.text.strip()]
    plain = [
        PlainDocument(one.node_id, one.text, str(one.metadata.get("title") or ""), one.metadata)
        for one in documents
    ]
    return [
        TextNode(
            id_=_summary_id(one.id),
            text=one.text,
            metadata=dict(one.metadata),
            excluded_llm_metadata_keys=list(one.metadata),
            excluded_embed_metadata_keys=list(one.metadata),
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=one.id)},
        )
        for one in with_summaries(plain, summarizer(plain, documents))
    ]


def summary_index(
    source: BaseIndex[Any] | Iterable[BaseNode],
    summarize: Summarize = 2,
    *,
    embed_model: BaseEmbedding | str | None = None,
    persist_dir: str | os.PathLike[str] | None = None,
) -> VectorStoreIndex:
    """Return an index of the documents' summaries; call it again when documents have changed.

    Args:
        source: Documents, their nodes, or an index with the nodes in its docstore.
        summarize: How, see :func:`summary_nodes`.
        embed_model: Embeds the summaries, or its name as LlamaIndex has it; ``Settings.embed_model`` if None.
        persist_dir: Where to keep it. What is there is loaded, and only what is new or changed is embedded.
            Documents are added to those that are there; of an index, summaries of documents that it has no
            longer are deleted, too.

    Raises:
        InputError: If there is no document with text, or a metadata key is missing.
    """
    check_kind(BaseEmbedding | str | None, "an embedding model, or its name", embed_model=embed_model)
    check_kind(str | os.PathLike | None, "a folder", persist_dir=persist_dir)
    try:
        embed_model = resolve_embed_model(embed_model) if isinstance(embed_model, str) else embed_model
    except ValueError as error:
        raise ConfigurationError(str(error), hint="pass an embedding model, or local:FOLDER") from error
    folder = None if persist_dir is None else str(persist_dir)
    if folder is None or not Path(folder, "docstore.json").exists():
        made = VectorStoreIndex(summary_nodes(source, summarize), embed_model=embed_model)
        if folder is not None:
            made.storage_context.persist(folder)
        return made
    stored = StorageContext.from_defaults(persist_dir=folder)
    index: Any = load_index_from_storage(stored, embed_model=embed_model)
    if isinstance(source, BaseIndex):
        changed = _update(index, summary_nodes(source, summarize), list(index.docstore.docs))
    else:
        nodes = list(source)
        changed = _update(index, summary_nodes(nodes, summarize) if nodes else [], [])
    if changed:
        index.storage_context.persist(folder)
    return index  # type: ignore[no-any-return]  # it was one


def _update(index: VectorStoreIndex, nodes: Sequence[TextNode], former: Iterable[str]) -> bool:
    """Add new and changed summaries to an index, delete ``former`` ones; tell whether there were any."""
    store, names = index.docstore, {node.node_id for node in nodes}
    fresh = [node for node in nodes if store.get_document_hash(node.node_id) != node.hash]
    gone = [name for name in former if name not in names and store.document_exists(name)]
    if fresh:
        # One with the same id takes the place of the former, which stays where embedding fails.
        index.insert_nodes(fresh)
    if gone:
        index.delete_nodes(gone, delete_from_docstore=True)
    return bool(fresh or gone)


def _node_ids(index: BaseIndex[Any]) -> dict[str, None]:
    """Return the ids of the nodes in an index; its docstore may be shared, and may hold deleted ones."""
    struct, store = index.index_struct, getattr(index, "vector_store", None)
    if isinstance(struct, IndexDict) and (struct.nodes_dict or not getattr(store, "stores_text", False)):
        return dict.fromkeys(struct.nodes_dict.values())
    if isinstance(struct, IndexList):
        return dict.fromkeys(struct.nodes)
    listed = (index.docstore.get_all_ref_doc_info() or {}).values()
    names = dict.fromkeys(name for info in listed for name in info.node_ids)
    return names | dict.fromkeys(index.docstore.get_all_document_hashes().values())


def tier_one(
    source: BaseRetriever | BaseIndex[Any],
    summaries: SummarySource | None,
    n_summaries: int,
    embed_model: BaseEmbedding | None,
    postprocessors: Sequence[BaseNodePostprocessor] = (),
) -> NodeRetriever | str:
    """Return the summary tier of an engine, restricted as its retriever is, and postprocessed."""
    if isinstance(summaries, str):
        return summaries
    kinds, hint = BaseRetriever | BaseIndex | None, "make them of an index: summaries=summary_index(index)"
    check_kind(kinds, "an index, a retriever of one or a text", hint=hint, summaries=summaries)
    retriever_of(source)  # raises where it is none
    if isinstance(source, BaseRetriever):
        return _restricted(source, summaries, n_summaries, postprocessors)
    if summaries is None:
        return NodeRetriever(_IndexSummaries(source, n_summaries, embed_model), postprocessors)
    return NodeRetriever(retriever_of(summaries, n_summaries), postprocessors)


def _restricted(
    source: BaseRetriever,
    summaries: BaseRetriever | BaseIndex[Any] | None,
    n_summaries: int,
    postprocessors: Sequence[BaseNodePostprocessor],
) -> NodeRetriever:
    """Return summaries with the filters of a retriever; one of the user's own is taken at its word.

    Raises:
        ConfigurationError: If the restrictions are not known, or differ.
    """
    filters, doc_ids, node_ids = (getattr(source, name, None) for name in _RESTRICTIONS)
    index = getattr(source, "_index", None)
    # A retriever of the whole index may list all of its nodes.
    whole = not node_ids or (index is not None and {*index.index_struct.nodes_dict.values()} <= {*node_ids})
    is_clear = whole and all(hasattr(source, name) for name in _RESTRICTIONS)
    if summaries is None or (isinstance(summaries, BaseIndex) and not is_clear):
        raise ConfigurationError(
            f"a {type(source).__name__} may be restricted to some documents, and which summaries may be "
            "shown is not known",
            hint="pass summaries=summary_index(index).as_retriever(filters=the same filters), or the index "
            "itself in the place of its retriever",
        )
    if isinstance(summaries, BaseIndex):
        summaries = summaries.as_retriever(similarity_top_k=n_summaries, filters=filters, doc_ids=doc_ids)
    for name, mine in zip(_RESTRICTIONS, (filters, doc_ids), strict=False):
        if mine and mine != getattr(summaries, name, None):
            raise ConfigurationError(
                "the retriever is restricted to some documents, and the summaries are not in the same way",
                hint="pass the index of summaries itself, or its retriever with the same filters and doc_ids",
            )
    restricted = [_OfDocuments(doc_ids=doc_ids)] if doc_ids else []
    return NodeRetriever(summaries, [*restricted, *postprocessors])


class _OfDocuments(BaseNodePostprocessor):
    """Leaves summaries of other documents out: not every vector store takes their ids."""

    doc_ids: list[str]

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return [node for node in nodes if node.node.ref_doc_id in self.doc_ids]


class _IndexSummaries(InnerRetriever):
    """Summaries of the documents in an index, which follow its insertions, updates and deletions.

    Each query compares the hashes in the index's docstore with those of the query before (100,000 nodes: a
    quarter of the time of LlamaIndex's own search in memory). Only new and changed summaries are embedded.
    """

    def __init__(self, index: BaseIndex[Any], top_n: int, embed_model: BaseEmbedding | None) -> None:
        super().__init__()
        EmbeddingEncoder(embed_model)  # raises where it is none
        store = getattr(index, "vector_store", None)
        if not index.docstore.docs and getattr(store, "stores_text", False):
            raise ConfigurationError(
                f"{type(store).__name__} holds the texts itself, so there are no documents to summarize",
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
        self._follow()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def _follow(self) -> None:
        """Bring the summaries of those documents up to date whose nodes have come, changed or gone."""
        ids, hashes = _node_ids(self._source), self._source.docstore.get_all_document_hashes()
        if ids == self._ids and hashes == self._hashes:
            return
        # Two nodes of equal contents have one hash: which one came or went is in the ids.
        changed = ids.keys() ^ self._ids.keys() | {name for _, name in hashes.items() ^ self._hashes.items()}
        names, nodes = self._to_summarize(changed, ids)
        _update(self._made, _summary_nodes(nodes), [_summary_id(name) for name in names])
        for name in changed:
            self._documents.pop(name, None)
        self._documents |= {node.node_id: _document_of(node) for node in nodes}
        self._ids, self._hashes = ids, hashes

    def _to_summarize(self, changed: set[str], ids: dict[str, None]) -> tuple[set[str], list[BaseNode]]:
        """Return the documents of changed nodes, and all their nodes that are there."""
        store = self._source.docstore
        come = {node.node_id: node for node in store.get_nodes(list(changed & ids.keys()), raise_error=False)}
        names = {self._documents.get(name, name) for name in changed} | {*map(_document_of, come.values())}
        listed = [store.get_ref_doc_info(name) for name in names if name not in come]
        parts = names | {part for info in listed if info is not None for part in info.node_ids}
        stayed = store.get_nodes(list(parts & ids.keys() - come.keys()), raise_error=False)
        come |= {node.node_id: node for node in stayed}
        return names, [come[name] for name in ids if name in come]

    def _search(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with self._lock:
            self._follow()
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


def _document_of(node: BaseNode) -> str:
    return node.node_id if isinstance(node, Document) else node.ref_doc_id or node.node_id


def _summary_id(document: str) -> str:
    return f"{document}:summary"


def _documents(nodes: Sequence[BaseNode]) -> list[Document]:
    """Put documents together from their nodes, in the order of offsets, with the metadata they share."""
    parts: dict[str, list[BaseNode]] = {}
    for node in nodes:
        kind: type = type(node)
        if not issubclass(kind, BaseNode):
            raise ConfigurationError(
                f"summaries cannot be made of {kind.__module__}.{kind.__qualname__}",
                hint="pass LlamaIndex's documents, nodes or an index; of what load_documents returns make "
                "[Document(text=item.text, id_=item.id, metadata=dict(item.metadata)) "
                "for item in loaded.documents]",
            )
        parts.setdefault(_document_of(node), []).append(node)
    documents = []
    for name, group in parts.items():
        first, *others = [node.metadata for node in group]
        shared = {key: value for key, value in first.items() if all(one.get(key) == value for one in others)}
        documents.append(Document(id_=name, text=_joined(group), metadata=shared))
    return documents


def _joined(nodes: Sequence[BaseNode]) -> str:
    """Return the text of a document; what two chunks share stands there once.

    Chunks of chunks have their offsets in the larger ones: these repeat, and do not fit the document.
    """
    chunks = [
        (getattr(node, "start_char_idx", None) or 0, node.get_content(metadata_mode=MetadataMode.NONE))
        for node in nodes
    ]
    if len(dict(chunks)) == len(chunks):
        chunks.sort()
    joined, end = "", 0
    for start, text in chunks:
        if start < end and joined.endswith(text[: end - start]):
            joined += text[end - start :]
        else:
            joined += f"\n\n{text}" if joined else text
        end = max(end, start + len(text))
    return joined
