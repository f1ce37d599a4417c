"""Makes summaries of documents: as nodes, or as a LlamaIndex index that can be saved to a folder.

Example::

    summaries = summary_index(index, persist_dir="storage/summaries")
    retriever = index.as_retriever(filters=filters)
    engine = LazyRetrievalQueryEngine.from_args(retriever, llm, summaries=summaries)
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from llama_index.core import DocumentSummaryIndex, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.embeddings.utils import resolve_embed_model
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.schema import (
    BaseNode,
    Document,
    MetadataMode,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
    TransformComponent,
)
from llama_index.core.settings import Settings
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.storage.index_store import SimpleIndexStore
from llama_index.core.vector_stores.simple import SimpleVectorStore, SimpleVectorStoreData

from llama_index_surerag.llm import reader_of
from llama_index_surerag.pickles import WithoutKeys
from llama_index_surerag.services import EmbeddingEncoder
from llama_index_surerag.visibility import listed_ids
from surerag.component import Service
from surerag.documents import Document as PlainDocument
from surerag.errors import ConfigurationError, InputError, check_kind
from surerag.readers import Reader
from surerag.retrieval import summarizer_of, with_summaries
from surerag.signatures import PlainHelp

Summarize = int | str | Callable[[BaseNode], str] | LLM | Reader | DocumentSummaryIndex
"""How to summarize a document: the number of its first sentences, the metadata key of an existing summary, a
function that summarizes the document, an LLM or reader, or a DocumentSummaryIndex that has the summaries
already."""

_CHUNK_METADATA = frozenset(
    {
        *("window", "original_text", "header_path", "section_summary", "prev_section_summary"),
        *("next_section_summary", "questions_this_excerpt_can_answer", "excerpt_keywords"),
    }
)
"""Metadata keys that LlamaIndex's own parsers and extractors add to chunks; they hold no access rights."""
_IDS = UUID("6f0f1a52-3f0e-4b0b-9c53-0a8f5a1f7e11")
"""Namespace of the summaries' ids, which are UUIDs because some vector stores accept no other ids."""
_INDEX_ID = "surerag-summaries"
_FILES = frozenset(
    {
        *("docstore.json", "index_store.json", "graph_store.json", "property_graph_store.json"),
        *("default__vector_store.json", "image__vector_store.json"),
    }
)
"""Names of the files that LlamaIndex may write when it saves an index."""
_N_AT_ONCE = 256
"""Number of summaries that a model writes before they are saved to the folder."""
_NO_TEXT = "there is no document with text to summarize"
_NO_TEXT_HINT = "if you passed an index, pass the documents: some vector stores leave the docstore empty"


def summary_nodes(source: BaseIndex[Any] | Iterable[BaseNode], summarize: Summarize = 2) -> list[TextNode]:
    """Return a summary of each document as a node.

    If chunks of a document have different metadata, each group of chunks with equal metadata gets its own
    summary, so that a filter or an access list treats the summary like these chunks. (Metadata that
    LlamaIndex's own parsers and extractors add to chunks do not form groups.) A summary node has the metadata
    that its chunks share, but LLMs and embedding models do not see these metadata. The node's id is a UUID
    made from the document's id and, if there are several groups, from the shared metadata. The node's
    relationships name the document, and the chunks with their hashes. If a document has no prose, its node
    has the document's first words and the metadata key ``no_summary``; if this node is nearest to a question,
    the L-RAG engine searches.

    Args:
        source: Documents, nodes, or an index with the nodes in its docstore.
        summarize: The number of first sentences that are the summary, the metadata key of an existing
            summary, an LLM, a ``DocumentSummaryIndex``, or a function that gets a ``Document`` with the text
            to summarize and returns the summary.

    Raises:
        InputError: If there is no document with text, or a metadata key is missing.
    """
    parts = _to_summarize(_nodes_in(source), summarize)
    if not parts:
        raise InputError(_NO_TEXT, hint=_NO_TEXT_HINT)
    return _summarize(parts, summarize)


class DocumentSummarizer(WithoutKeys, TransformComponent, metaclass=PlainHelp):
    """Summarizes documents in an ``IngestionPipeline``, which can write the summaries to any vector store.

    With ``docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE``, only new and changed documents are
    summarized, and the summaries of documents that are no longer passed are deleted.

    Args:
        summarize: How to summarize, as for :func:`summary_nodes`.

    Raises:
        ConfigurationError: If ``summarize`` has a wrong type.
    """

    summarize: Service[Any] = 2

    def __init__(self, summarize: Summarize = 2) -> None:
        _summarizer(summarize)  # raises a ConfigurationError for other types
        super().__init__(summarize=summarize)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the settings as plain values, from which an ingestion pipeline makes its cache key."""
        how = self.summarize
        name = (
            how
            if isinstance(how, int | str)
            else _model_name(how) or getattr(how, "__qualname__", str(type(how)))
        )
        return {**super().to_dict(**kwargs), "summarize": name}

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[TextNode]:
        """Return a summary of each document."""
        return _summarize(_to_summarize(nodes, self.summarize), self.summarize)


def summary_index(
    source: BaseIndex[Any] | Iterable[BaseNode],
    summarize: Summarize = 2,
    *,
    embed_model: BaseEmbedding | str | None = None,
    persist_dir: str | os.PathLike[str] | None = None,
) -> VectorStoreIndex:
    """Return an index of the summaries of documents; call this function again when documents have changed.

    Args:
        source: Documents, their nodes, or an index with the nodes in its docstore.
        summarize: How to summarize, as for :func:`summary_nodes`.
        embed_model: Model that embeds the summaries, or its name in LlamaIndex; by default
            ``Settings.embed_model``.
        persist_dir: Folder for the summaries and no other files. If the folder has summaries already, they
            are loaded, and only new and changed documents are summarized and embedded. If the embedding model
            has changed, all summaries are embedded again. If ``source`` is a list, summaries of other
            documents stay in the folder; if ``source`` is an index, summaries of documents that are not in
            the index are deleted. Only one process at a time may write to a folder.

    Raises:
        InputError: If there is no document with text, or if ``summarize`` is a metadata key that a document
            lacks.
        ConfigurationError: If the folder holds files that are not summaries.
    """
    check_kind(BaseEmbedding | str | None, "an embedding model, or its name", embed_model=embed_model)
    check_kind(str | os.PathLike | None, "a folder", persist_dir=persist_dir)
    model = _embedding_model(embed_model)
    if persist_dir is None:
        return VectorStoreIndex(summary_nodes(source, summarize), embed_model=model)
    folder, parts = _Folder(Path(persist_dir)), _to_summarize(_nodes_in(source), summarize)
    if not parts and not folder.has_summaries:
        raise InputError(_NO_TEXT, hint=_NO_TEXT_HINT)
    index, encoder = folder.load(model), _encoder_name(model or Settings.embed_model)
    if encoder != index.summary:
        index = _embed_again(index, model)
    documents = None if isinstance(source, BaseIndex) else {part.document for part in parts}
    changed = _delete_others(index, {part.id for part in parts}, documents) or encoder != index.summary
    index.summary = encoder
    if isinstance(summarize, LLM | Reader):
        changed = _update_by_model(index, parts, summarize, folder) or changed
    else:
        changed = update(index, _summarize(parts, summarize)) or changed
    if changed:
        folder.save(index)
    return index


def _embedding_model(model: BaseEmbedding | str | None) -> BaseEmbedding | None:
    try:
        return resolve_embed_model(model) if isinstance(model, str) else model
    except ValueError as error:
        raise ConfigurationError(str(error), hint="pass an embedding model, or local:FOLDER") from error


def _update_by_model(
    index: VectorStoreIndex, parts: Sequence[_SummaryOrigin], model: LLM | Reader, folder: _Folder
) -> bool:
    """Let a model write the missing and outdated summaries, and return whether the index changed.

    The index is saved to the folder after each batch. An interruption thus loses at most one batch of model
    calls.
    """
    reused = {part.id: node for part in parts if (node := part.reusable_summary(index)) is not None}
    changed = update(index, [*reused.values()])
    missing = [part for part in parts if part.id not in reused]
    for start in range(0, len(missing), _N_AT_ONCE):
        changed = update(index, _summarize(missing[start : start + _N_AT_ONCE], model)) or changed
        folder.save(index)
    return changed


@dataclass(frozen=True)
class _SummaryOrigin:
    """What one summary is made from: a whole document, or all of its chunks that have the same metadata."""

    id: str
    document: str
    chunks: tuple[BaseNode, ...]
    maker: str
    """Name of the model that writes the summary; empty if the summary is made without a model."""

    @property
    def relationships(self) -> dict[NodeRelationship, Any]:
        made = {"summarized_by": self.maker} if self.maker else {}
        if len(self.chunks) == 1 and isinstance(self.chunks[0], Document):
            whole = RelatedNodeInfo(node_id=self.document, hash=self.chunks[0].hash, metadata=made)
            return {NodeRelationship.SOURCE: whole}
        chunks = sorted(self.chunks, key=lambda chunk: chunk.node_id)
        return {
            NodeRelationship.SOURCE: RelatedNodeInfo(node_id=self.document, metadata=made),
            NodeRelationship.CHILD: [
                RelatedNodeInfo(node_id=part.node_id, hash=part.hash) for part in chunks
            ],
        }

    def joined(self) -> Document:
        """Return one document with the text of the joined chunks and the metadata that all chunks share."""
        first, *others = [chunk.metadata for chunk in self.chunks]
        shared = {
            key: value for key, value in first.items() if all(item.get(key) == value for item in others)
        }
        return Document(id_=self.document, text=_join_chunks(self.chunks), metadata=shared)

    def reusable_summary(self, index: VectorStoreIndex) -> TextNode | None:
        """Return the summary in ``index`` if the same model made it from the same text; else None."""
        node = index.docstore.get_document(self.id, raise_error=False)
        if not isinstance(node, TextNode) or _contents(node.relationships) != _contents(self.relationships):
            return None
        return node.model_copy(update={"relationships": self.relationships})


def _contents(relationships: Mapping[NodeRelationship, Any]) -> tuple[Any, ...]:
    """Return the values on which a summary depends: the document, the hashes of the chunks, and the model.

    If these values are equal, an old summary can be used again. The ids of chunks are not among the values,
    because chunks get new ids if an index is built again.
    """
    source, chunks = relationships[NodeRelationship.SOURCE], relationships.get(NodeRelationship.CHILD, [])
    return source.node_id, source.hash, source.metadata, sorted(str(chunk.hash) for chunk in chunks)


def _to_summarize(nodes: Sequence[BaseNode], summarize: Summarize) -> list[_SummaryOrigin]:
    grouped: dict[str, dict[str, list[BaseNode]]] = {}
    maker = _model_name(summarize)
    for node in nodes:
        kind: type = type(node)
        if not issubclass(kind, BaseNode):
            raise ConfigurationError(
                f"summaries cannot be made of {kind.__module__}.{kind.__qualname__}",
                hint="pass LlamaIndex's documents, nodes or an index; convert the result of load_documents: "
                "[Document(text=item.text, id_=item.id, metadata=dict(item.metadata)) "
                "for item in loaded.documents]",
            )
        # A DocumentSummaryIndex summarizes whole documents, so chunks are not grouped by their metadata.
        metadata = {} if isinstance(summarize, DocumentSummaryIndex) else node.metadata
        own_metadata = {key: value for key, value in metadata.items() if key not in _CHUNK_METADATA}
        group = json.dumps(own_metadata, sort_keys=True, default=str)
        grouped.setdefault(document_of(node), {}).setdefault(group, []).append(node)
    return [
        _SummaryOrigin(summary_id(document, group if len(groups) > 1 else ""), document, tuple(chunks), maker)
        for document, groups in grouped.items()
        for group, chunks in groups.items()
        if any(chunk.get_content(metadata_mode=MetadataMode.NONE).strip() for chunk in chunks)
    ]


def _summarize(parts: Sequence[_SummaryOrigin], summarize: Summarize = 2) -> list[TextNode]:
    summarizer = _summarizer(summarize)
    documents = [part.joined() for part in parts]
    plain = [
        PlainDocument(item.node_id, item.text, str(item.metadata.get("title") or ""), item.metadata)
        for item in documents
    ]
    return [
        TextNode(
            id_=part.id,
            text=summary.text,
            metadata=dict(summary.metadata),
            excluded_llm_metadata_keys=list(summary.metadata),
            excluded_embed_metadata_keys=list(summary.metadata),
            relationships=part.relationships,
        )
        for part, summary in zip(parts, with_summaries(plain, summarizer(plain, documents)), strict=True)
    ]


def _summarizer(summarize: Summarize) -> Callable[[Sequence[PlainDocument], Sequence[Any]], list[str]]:
    how: Any = _summaries_in(summarize) if isinstance(summarize, DocumentSummaryIndex) else summarize
    return summarizer_of(how, LLM | Reader, reader_of)


def _model_name(summarize: Summarize) -> str:
    return reader_of(summarize).name if isinstance(summarize, LLM | Reader) else ""


def _summaries_in(index: DocumentSummaryIndex) -> Callable[[BaseNode], str]:
    def summary_of(document: BaseNode) -> str:
        try:
            return index.get_document_summary(document.node_id)
        except ValueError as error:
            raise InputError(f"the DocumentSummaryIndex has no document {document.node_id!r}") from error

    return summary_of


def update(index: VectorStoreIndex, nodes: Sequence[TextNode]) -> bool:
    """Add the new and changed summaries among ``nodes`` to an index, and return whether any was added.

    A summary replaces the old summary with the same id. If embedding fails, the old summary stays in the
    index. A summary whose text has not changed is not embedded again.
    """
    changed_nodes = []
    for node in nodes:
        old = index.docstore.get_document(node.node_id, raise_error=False)
        if old is None or (old.hash, old.relationships) != (node.hash, node.relationships):
            same = old is not None and old.get_content() == node.text
            vector = index.vector_store.get(node.node_id) if same else None  # type: ignore[attr-defined]  # in memory
            changed_nodes.append(node.model_copy(update={"embedding": vector}))
    if changed_nodes:
        index.insert_nodes(changed_nodes)
    return bool(changed_nodes)


def _delete_others(index: VectorStoreIndex, stay: Collection[str], documents: Collection[str] | None) -> bool:
    """Delete the summaries of documents, except those in ``stay``; return whether any was deleted.

    Args:
        index: The index of summaries.
        stay: Ids of the summaries that must not be deleted.
        documents: Ids of the documents whose summaries may be deleted; None for all documents.
    """
    if documents is None:
        names = list(index.index_struct.nodes_dict)
    else:
        listed = [index.docstore.get_ref_doc_info(document) for document in documents]
        names = [name for info in listed if info is not None for name in info.node_ids]
    deleted = [name for name in names if name not in stay]
    if deleted:
        index.delete_nodes(deleted, delete_from_docstore=True)
    return bool(deleted)


def replace_summaries(index: VectorStoreIndex, documents: Collection[str], nodes: Sequence[BaseNode]) -> None:
    """Summarize the documents in ``nodes``, add the summaries to an index, and delete old summaries.

    ``documents`` holds the ids of the documents whose old summaries are deleted.
    """
    parts = _to_summarize(nodes, 2)
    _delete_others(index, {part.id for part in parts}, documents)
    update(index, _summarize(parts))


class _Folder:
    """A folder that holds an index of summaries and no other files.

    Raises:
        ConfigurationError: If the folder holds files that are not summaries.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.has_summaries = self._check()

    def load(self, embed_model: BaseEmbedding | None) -> VectorStoreIndex:
        if not self.has_summaries:
            empty = VectorStoreIndex([], embed_model=embed_model)
            empty.set_index_id(_INDEX_ID)
            return empty
        # LlamaIndex's own loader is slower: it checks the type of each number of each vector twice.
        vectors = json.loads((self._path / "default__vector_store.json").read_text(encoding="utf-8"))
        stored = StorageContext.from_defaults(
            docstore=SimpleDocumentStore.from_persist_dir(str(self._path)),
            index_store=SimpleIndexStore.from_persist_dir(str(self._path)),
            vector_store=SimpleVectorStore(SimpleVectorStoreData(**vectors)),
        )
        index: Any = load_index_from_storage(stored, index_id=_INDEX_ID, embed_model=embed_model)
        ids = [index.docstore.docs, index.index_struct.nodes_dict, index.vector_store.data.embedding_dict]
        if any(item.keys() != ids[0].keys() for item in ids):
            # If ids differ, another process is writing the files, or was stopped before it had written all.
            return _embed_again(index, embed_model)
        return index  # type: ignore[no-any-return]  # a VectorStoreIndex was saved

    def save(self, index: VectorStoreIndex) -> None:
        """Write an index to temporary files, and then put them in place of the old files."""
        self._check()
        self._path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._path.parent, prefix=f".{self._path.name}-") as written:
            index.storage_context.persist(written)
            for file in sorted(Path(written).iterdir()):
                file.replace(self._path / file.name)

    def _check(self) -> bool:
        if self._path.is_dir():
            files = {file.name for file in self._path.iterdir()}
            if not files:
                return False
            if files <= _FILES and "index_store.json" in files and _indices_in(self._path) == [_INDEX_ID]:
                return True
        elif not self._path.exists():
            return False
        raise ConfigurationError(
            f"{self._path} holds files that are not summaries and would be lost",
            hint=f"store the summaries in another folder: persist_dir={str(self._path / 'summaries')!r}",
        )


def _indices_in(folder: Path) -> list[str]:
    try:
        return [struct.index_id for struct in SimpleIndexStore.from_persist_dir(str(folder)).index_structs()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _embed_again(index: VectorStoreIndex, embed_model: BaseEmbedding | None) -> VectorStoreIndex:
    new_index = VectorStoreIndex(list(index.docstore.docs.values()), embed_model=embed_model)
    new_index.set_index_id(_INDEX_ID)
    return new_index


def _encoder_name(model: BaseEmbedding) -> str:
    parts = [type(model).__name__, EmbeddingEncoder(model).name, getattr(model, "dimensions", None)]
    return " ".join(str(part) for part in parts if part is not None)


def _nodes_in(source: BaseIndex[Any] | Iterable[BaseNode]) -> list[BaseNode]:
    if isinstance(source, BaseIndex):
        return list(source.docstore.get_nodes(list(listed_ids(source)), raise_error=False))
    return list(source) if isinstance(source, Iterable) else [source]


def document_of(node: BaseNode) -> str:
    """Return the id of a node's document, or the node's own id if it belongs to no document."""
    return node.node_id if isinstance(node, Document) else node.ref_doc_id or node.node_id


def summary_id(document: str, part: str = "") -> str:
    """Return the id of the summary of a document.

    If the summary covers only the chunks with certain metadata, ``part`` is these metadata as JSON.
    """
    return str(uuid5(_IDS, f"{document}:summary:{part}" if part else f"{document}:summary"))


def _join_chunks(nodes: Sequence[BaseNode]) -> str:
    """Join chunks to the text of their document; text that two neighbouring chunks share appears once.

    Chunks are sorted by their offsets. If two chunks have the same offset, no chunk is sorted: equal offsets
    show that a hierarchical parser counted the offsets from the starts of larger chunks.
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
