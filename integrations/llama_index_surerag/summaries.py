"""Summaries of documents: as nodes, and as an index that is kept in a folder.

It is an ordinary LlamaIndex index::

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
from itertools import islice
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
"""How to summarize: a number of lead sentences, a metadata key, a function of the document, a model, or an
index of LlamaIndex that has summaries already."""

_OF_CHUNKS = frozenset(
    {
        *("window", "original_text", "header_path", "section_summary", "prev_section_summary"),
        *("next_section_summary", "questions_this_excerpt_can_answer", "excerpt_keywords"),
    }
)
"""What LlamaIndex's own parsers and extractors note about each chunk; it says nothing of who may see it."""
_IDS = UUID("6f0f1a52-3f0e-4b0b-9c53-0a8f5a1f7e11")
"""Name space of the summaries' ids; some vector stores take UUIDs alone."""
_INDEX_ID = "surerag-summaries"
_FILES = frozenset(
    {
        *("docstore.json", "index_store.json", "graph_store.json", "property_graph_store.json"),
        *("default__vector_store.json", "image__vector_store.json"),
    }
)
"""What LlamaIndex keeps an index in."""
_WRITTEN_AT_ONCE = 256
"""Summaries that a model writes before they are kept."""
_NO_TEXT = "there is no document with text to summarize"
_NO_TEXT_HINT = "pass the documents; an index whose vector store holds the texts itself has none to show"


def summary_nodes(source: BaseIndex[Any] | Iterable[BaseNode], summarize: Summarize = 2) -> list[TextNode]:
    """Return a summary of each document, or of those in an index's docstore, as a node whose source it is.

    Chunks of a document whose metadata differ are summarized apart, so that a filter or an access list treats
    a summary as it treats the chunks; what LlamaIndex's own parsers and extractors note about each chunk does
    not count. A summary has the metadata that its chunks share, hidden from models. Its id is a UUID made of
    the document's id; its relationships name the document, and the chunks that it was made of with their
    hashes. A document without prose has no summary: its node holds its beginning, with the key
    ``no_summary``, and where it is the nearest, the engine searches.

    A function is given the chunks' text as a document, and must summarize that text.

    Raises:
        InputError: If there is no document with text, or a metadata key is missing.
    """
    parts = _to_summarize(_nodes_in(source), summarize)
    if not parts:
        raise InputError(_NO_TEXT, hint=_NO_TEXT_HINT)
    return _summarized(parts, summarize)


class DocumentSummarizer(WithoutKeys, TransformComponent, metaclass=PlainHelp):
    """Summarizes documents in an ``IngestionPipeline``, which keeps the summaries in any vector store.

    With ``docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE``, only new and changed documents are
    summarized, and the summaries of documents that are no longer passed are deleted.

    Args:
        summarize: How, see :func:`summary_nodes`.

    Raises:
        ConfigurationError: If it is no way to summarize.
    """

    summarize: Service[Any] = 2

    def __init__(self, summarize: Summarize = 2) -> None:
        _summarizer(summarize)  # raises where it is none
        super().__init__(summarize=summarize)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return settings as plain values, with the name of a model; the pipeline's cache depends on them."""
        how = self.summarize
        told = (
            how
            if isinstance(how, int | str)
            else _model_name(how) or getattr(how, "__qualname__", str(type(how)))
        )
        return {**super().to_dict(**kwargs), "summarize": told}

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[TextNode]:
        """Return a summary of each document."""
        return _summarized(_to_summarize(nodes, self.summarize), self.summarize)


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
        persist_dir: A folder of their own to keep them in. What is there is loaded; a model is asked only for
            summaries of what is new or changed, and only these are embedded. With another embedding model all
            are embedded anew. Documents are added to those that are there; of an index, summaries of
            documents that it has no longer are deleted, too. Let one process at a time write a folder.

    Raises:
        InputError: If there is no document with text, or a metadata key is missing.
        ConfigurationError: If the folder holds anything else.
    """
    check_kind(BaseEmbedding | str | None, "an embedding model, or its name", embed_model=embed_model)
    check_kind(str | os.PathLike | None, "a folder", persist_dir=persist_dir)
    try:
        model = resolve_embed_model(embed_model) if isinstance(embed_model, str) else embed_model
    except ValueError as error:
        raise ConfigurationError(str(error), hint="pass an embedding model, or local:FOLDER") from error
    if persist_dir is None:
        return VectorStoreIndex(summary_nodes(source, summarize), embed_model=model)
    folder, parts = _Folder(Path(persist_dir)), _to_summarize(_nodes_in(source), summarize)
    if not parts and not folder.has_summaries:
        raise InputError(_NO_TEXT, hint=_NO_TEXT_HINT)
    index, encoder = folder.load(model), _encoder_name(model or Settings.embed_model)
    if encoder != index.summary:
        index = _embedded_anew(index, model)
    is_model = isinstance(summarize, LLM | Reader)
    documents = None if isinstance(source, BaseIndex) else {part.document for part in parts}
    changed = _delete_others(index, {part.id for part in parts}, documents) or encoder != index.summary
    index.summary = encoder
    # What a model has written of the same contents is not asked for again.
    kept = [part.kept_in(index) for part in parts] if is_model else []
    changed = update(index, [node for node in kept if node is not None]) or changed
    left = iter([part for part, node in zip(parts, kept, strict=True) if node is None] if is_model else parts)
    while portion := list(islice(left, _WRITTEN_AT_ONCE if is_model else None)):
        changed = update(index, _summarized(portion, summarize)) or changed
        if is_model:
            folder.save(index)
    if changed:
        folder.save(index)
    return index


@dataclass(frozen=True)
class _Summarized:
    """What is summarized: the chunks of a document that have the same metadata, or the whole document."""

    id: str
    document: str
    chunks: tuple[BaseNode, ...]
    maker: str
    """The model that is asked; empty for none."""

    @property
    def relationships(self) -> dict[NodeRelationship, Any]:
        """What the summary is made of, and by which model."""
        made = {"summarized_by": self.maker} if self.maker else {}
        if len(self.chunks) == 1 and isinstance(self.chunks[0], Document):
            whole = RelatedNodeInfo(node_id=self.document, hash=self.chunks[0].hash, metadata=made)
            return {NodeRelationship.SOURCE: whole}
        chunks = sorted(self.chunks, key=lambda chunk: chunk.node_id)
        return {
            NodeRelationship.SOURCE: RelatedNodeInfo(node_id=self.document, metadata=made),
            NodeRelationship.CHILD: [RelatedNodeInfo(node_id=one.node_id, hash=one.hash) for one in chunks],
        }

    def joined(self) -> Document:
        """Return the chunks as a document, with the metadata that they share."""
        first, *others = [chunk.metadata for chunk in self.chunks]
        shared = {key: value for key, value in first.items() if all(one.get(key) == value for one in others)}
        return Document(id_=self.document, text=_joined(self.chunks), metadata=shared)

    def kept_in(self, index: VectorStoreIndex) -> TextNode | None:
        """Return the summary of the same contents, by the same model, that an index has."""
        kept = index.docstore.get_document(self.id, raise_error=False)
        if not isinstance(kept, TextNode) or _contents(kept.relationships) != _contents(self.relationships):
            return None
        return kept.model_copy(update={"relationships": self.relationships})


def _contents(relationships: Mapping[NodeRelationship, Any]) -> tuple[Any, ...]:
    """Return what a summary was made of, without the ids that an index gives its chunks."""
    source, chunks = relationships[NodeRelationship.SOURCE], relationships.get(NodeRelationship.CHILD, [])
    return source.node_id, source.hash, source.metadata, sorted(str(chunk.hash) for chunk in chunks)


def _to_summarize(nodes: Sequence[BaseNode], summarize: Summarize) -> list[_Summarized]:
    """Return what is summarized apart: the chunks of a document that have the same metadata, if any text."""
    grouped: dict[str, dict[str, list[BaseNode]]] = {}
    maker = _model_name(summarize)
    for node in nodes:
        kind: type = type(node)
        if not issubclass(kind, BaseNode):
            raise ConfigurationError(
                f"summaries cannot be made of {kind.__module__}.{kind.__qualname__}",
                hint="pass LlamaIndex's documents, nodes or an index; of what load_documents returns make "
                "[Document(text=item.text, id_=item.id, metadata=dict(item.metadata)) "
                "for item in loaded.documents]",
            )
        # Summaries that are there already are of whole documents.
        apart = {} if isinstance(summarize, DocumentSummaryIndex) else node.metadata
        told = {key: value for key, value in apart.items() if key not in _OF_CHUNKS}
        written = json.dumps(told, sort_keys=True, default=str)
        grouped.setdefault(document_of(node), {}).setdefault(written, []).append(node)
    return [
        _Summarized(summary_id(document, written if len(groups) > 1 else ""), document, tuple(chunks), maker)
        for document, groups in grouped.items()
        for written, chunks in groups.items()
        if any(chunk.get_content(metadata_mode=MetadataMode.NONE).strip() for chunk in chunks)
    ]


def _summarized(parts: Sequence[_Summarized], summarize: Summarize = 2) -> list[TextNode]:
    summarizer = _summarizer(summarize)
    documents = [part.joined() for part in parts]
    plain = [
        PlainDocument(one.node_id, one.text, str(one.metadata.get("title") or ""), one.metadata)
        for one in documents
    ]
    return [
        TextNode(
            id_=part.id,
            text=one.text,
            metadata=dict(one.metadata),
            excluded_llm_metadata_keys=list(one.metadata),
            excluded_embed_metadata_keys=list(one.metadata),
            relationships=part.relationships,
        )
        for part, one in zip(parts, with_summaries(plain, summarizer(plain, documents)), strict=True)
    ]


def _summarizer(summarize: Summarize) -> Callable[[Sequence[PlainDocument], Sequence[Any]], list[str]]:
    how: Any = _summaries_in(summarize) if isinstance(summarize, DocumentSummaryIndex) else summarize
    return summarizer_of(how, LLM | Reader, reader_of)


def _model_name(summarize: Summarize) -> str:
    """Return the name of the model that writes summaries; empty where none does."""
    return reader_of(summarize).name if isinstance(summarize, LLM | Reader) else ""


def _summaries_in(index: DocumentSummaryIndex) -> Callable[[BaseNode], str]:
    def summary_of(document: BaseNode) -> str:
        try:
            return index.get_document_summary(document.node_id)
        except ValueError as error:
            raise InputError(f"the DocumentSummaryIndex has no document {document.node_id!r}") from error

    return summary_of


def update(index: VectorStoreIndex, nodes: Sequence[TextNode]) -> bool:
    """Add summaries to an index that are new or changed; tell whether there were any.

    One with the same id takes the place of the former, which stays where embedding fails. A text that is the
    same is not embedded again.
    """
    fresh = []
    for node in nodes:
        kept = index.docstore.get_document(node.node_id, raise_error=False)
        if kept is None or (kept.hash, kept.relationships) != (node.hash, node.relationships):
            same = kept is not None and kept.get_content() == node.text
            vector = index.vector_store.get(node.node_id) if same else None  # type: ignore[attr-defined]  # in memory
            fresh.append(node.model_copy(update={"embedding": vector}))
    if fresh:
        index.insert_nodes(fresh)
    return bool(fresh)


def _delete_others(index: VectorStoreIndex, stay: Collection[str], documents: Collection[str] | None) -> bool:
    """Delete summaries of these documents (None for all) that do not stay; tell whether there were any."""
    if documents is None:
        names = list(index.index_struct.nodes_dict)
    else:
        listed = [index.docstore.get_ref_doc_info(document) for document in documents]
        names = [name for info in listed if info is not None for name in info.node_ids]
    gone = [name for name in names if name not in stay]
    if gone:
        index.delete_nodes(gone, delete_from_docstore=True)
    return bool(gone)


def replace_summaries(index: VectorStoreIndex, documents: Collection[str], nodes: Sequence[BaseNode]) -> None:
    """Bring the summaries of these documents up to date, of which there are these nodes."""
    parts = _to_summarize(nodes, 2)
    _delete_others(index, {part.id for part in parts}, documents)
    update(index, _summarized(parts))


class _Folder:
    """A folder with summaries, and nothing else.

    Raises:
        ConfigurationError: If it holds anything else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.has_summaries = self._check()

    def load(self, embed_model: BaseEmbedding | None) -> VectorStoreIndex:
        """Return the index that is there, or an empty one."""
        if not self.has_summaries:
            empty = VectorStoreIndex([], embed_model=embed_model)
            empty.set_index_id(_INDEX_ID)
            return empty
        # LlamaIndex's own way checks the type of each number of each vector, twice.
        vectors = json.loads((self._path / "default__vector_store.json").read_text(encoding="utf-8"))
        stored = StorageContext.from_defaults(
            docstore=SimpleDocumentStore.from_persist_dir(str(self._path)),
            index_store=SimpleIndexStore.from_persist_dir(str(self._path)),
            vector_store=SimpleVectorStore(SimpleVectorStoreData(**vectors)),
        )
        index: Any = load_index_from_storage(stored, index_id=_INDEX_ID, embed_model=embed_model)
        ids = [index.docstore.docs, index.index_struct.nodes_dict, index.vector_store.data.embedding_dict]
        if any(one.keys() != ids[0].keys() for one in ids):
            # Another process was writing, or was stopped.
            return _embedded_anew(index, embed_model)
        return index  # type: ignore[no-any-return]  # it was one

    def save(self, index: VectorStoreIndex) -> None:
        """Write an index; each file takes the place of the former when it is complete."""
        self._check()
        self._path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._path.parent, prefix=f".{self._path.name}-") as written:
            index.storage_context.persist(written)
            for file in sorted(Path(written).iterdir()):
                file.replace(self._path / file.name)

    def _check(self) -> bool:
        """Return whether there are summaries."""
        if self._path.is_dir():
            files = {file.name for file in self._path.iterdir()}
            if not files:
                return False
            if files <= _FILES and "index_store.json" in files and _indices_in(self._path) == [_INDEX_ID]:
                return True
        elif not self._path.exists():
            return False
        raise ConfigurationError(
            f"{self._path} holds something else than summaries, which would be lost",
            hint=f"keep summaries in a folder of their own: persist_dir={str(self._path / 'summaries')!r}",
        )


def _indices_in(folder: Path) -> list[str]:
    try:
        return [struct.index_id for struct in SimpleIndexStore.from_persist_dir(str(folder)).index_structs()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _embedded_anew(index: VectorStoreIndex, embed_model: BaseEmbedding | None) -> VectorStoreIndex:
    """Return an index of the same summaries, with vectors of this model."""
    anew = VectorStoreIndex(list(index.docstore.docs.values()), embed_model=embed_model)
    anew.set_index_id(_INDEX_ID)
    return anew


def _encoder_name(model: BaseEmbedding) -> str:
    """Return what vectors depend on, in words."""
    told = [type(model).__name__, EmbeddingEncoder(model).name, getattr(model, "dimensions", None)]
    return " ".join(str(one) for one in told if one is not None)


def _nodes_in(source: BaseIndex[Any] | Iterable[BaseNode]) -> list[BaseNode]:
    if isinstance(source, BaseIndex):
        return list(source.docstore.get_nodes(list(listed_ids(source)), raise_error=False))
    return list(source) if isinstance(source, Iterable) else [source]


def document_of(node: BaseNode) -> str:
    """Return the id of the document that a node is part of; its own if it is none's."""
    return node.node_id if isinstance(node, Document) else node.ref_doc_id or node.node_id


def summary_id(document: str, part: str = "") -> str:
    """Return the id of the summary of a document, or of a part of it."""
    return str(uuid5(_IDS, f"{document}:summary:{part}" if part else f"{document}:summary"))


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
