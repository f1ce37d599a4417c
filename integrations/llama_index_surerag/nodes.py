"""LlamaIndex nodes as passages and back, and the documents behind nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore import BaseDocumentStore

from llama_index_surerag.events import dispatch
from surerag.errors import ConfigurationError
from surerag.messages import Event, Passage
from surerag.readers.threads import in_thread


def copy_of(node: NodeWithScore) -> NodeWithScore:
    """Return a node that may be changed without changing the one in the store."""
    own = {
        "metadata": dict(node.node.metadata),
        "relationships": dict(node.node.relationships),
        "excluded_llm_metadata_keys": list(node.node.excluded_llm_metadata_keys),
        "excluded_embed_metadata_keys": list(node.node.excluded_embed_metadata_keys),
    }
    inner = node.node.model_copy(update=own)
    return NodeWithScore(node=inner, score=node.score)


def passage_of(node: NodeWithScore) -> Passage:
    """Return a node as a passage: its text as a LlamaIndex pipeline shows it to its LLM.

    Metadata stands in that text as the node's own templates and excluded keys say.
    """
    return Passage(
        text=node.node.get_content(metadata_mode=MetadataMode.LLM),
        id=node.node.node_id,
        score=node.score,
        metadata=dict(node.node.metadata),
        origin=node,
    )


def passages_of(nodes: Iterable[NodeWithScore]) -> list[Passage]:
    """Return nodes as passages; those without any text (an image alone) are left out."""
    return [passage for passage in map(passage_of, nodes) if passage.text.strip()]


def nodes_of(passages: Iterable[Passage]) -> list[NodeWithScore]:
    """Return passages as nodes: copies of those they came from, where they came from nodes."""
    return [_node_of(passage) for passage in passages]


def _node_of(passage: Passage) -> NodeWithScore:
    origin = passage.origin
    if isinstance(origin, NodeWithScore):
        return copy_of(NodeWithScore(node=origin.node, score=passage.score))
    if isinstance(origin, BaseNode):
        return copy_of(NodeWithScore(node=origin, score=passage.score))
    return NodeWithScore(
        node=TextNode(id_=passage.id, text=passage.text, metadata=dict(passage.metadata)), score=passage.score
    )


def summary_node(summary: Passage) -> TextNode:
    """Return a document's summary as a node whose source is that document.

    Its id is the document's with ``:summary`` behind it; its metadata are left out of what an LLM sees.
    """
    return TextNode(
        id_=f"{summary.id}:summary",
        text=summary.text,
        metadata=dict(summary.metadata),
        excluded_llm_metadata_keys=list(summary.metadata),
        excluded_embed_metadata_keys=list(summary.metadata),
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=summary.id)},
    )


DocumentSource = (
    BaseDocumentStore | Iterable[BaseNode] | Callable[[Sequence[NodeWithScore]], Iterable[BaseNode]]
)
"""A store of documents by their ids, the documents themselves, or a function from nodes to documents."""

logger = logging.getLogger("surerag")


class DocumentsBehind:
    """Finds the documents that nodes were cut from, by the nodes' ``ref_doc_id``.

    A node whose document is not found stands for itself, with a warning; if none is found, or the search
    fails, there are no documents, with a warning. Nothing is raised and nothing changed.

    Args:
        source: Where to look. A function is called in a thread where the pipeline is async.

    Raises:
        ConfigurationError: If the source is of another kind.
    """

    def __init__(self, source: DocumentSource) -> None:
        self._source: BaseDocumentStore | Mapping[str, BaseNode] | Callable[..., Iterable[BaseNode]]
        if isinstance(source, BaseDocumentStore) or callable(source):
            self._source = source
        elif isinstance(source, Iterable) and not isinstance(source, str | Mapping):
            self._source = _by_id(source)
        else:
            raise ConfigurationError(
                f"documents cannot be found in a {type(source).__name__}",
                hint="pass a docstore, the documents, or a function from nodes to their documents",
            )

    def of(self, nodes: Sequence[NodeWithScore]) -> list[Passage]:
        """Return each document once, in the order of the nodes; its node is the ``origin``."""
        try:
            if isinstance(self._source, BaseDocumentStore):
                store = self._source
                found = {name: store.get_document(name, raise_error=False) for name in _ids(nodes)}
            else:
                found = self._held(nodes)
        except Exception as error:
            return _failed(error)
        return _passages(nodes, found)

    async def aof(self, nodes: Sequence[NodeWithScore]) -> list[Passage]:
        """Like :meth:`of`, without blocking the event loop."""
        try:
            if isinstance(self._source, BaseDocumentStore):
                store, ids = self._source, _ids(nodes)
                documents = await asyncio.gather(
                    *(store.aget_document(name, raise_error=False) for name in ids)
                )
                found = dict(zip(ids, documents, strict=True))
            else:
                found = await in_thread(self._held, nodes)
        except Exception as error:
            return _failed(error)
        return _passages(nodes, found)

    def _held(self, nodes: Sequence[NodeWithScore]) -> dict[str, BaseNode | None]:
        if isinstance(self._source, Mapping):
            return {name: self._source.get(name) for name in _ids(nodes)}
        known = _by_id(self._source(nodes))  # type: ignore[operator]  # a function: what is neither store nor mapping
        return {name: known.get(name) for name in _ids(nodes)}


def warn(name: str, **data: Any) -> None:
    """Tell the log and LlamaIndex's instrumentation that a fallback was taken."""
    logger.warning("%s: %s", name, data)
    dispatch(Event(name, data, warning=True))


def _by_id(documents: Iterable[Any]) -> dict[str, BaseNode]:
    found = list(documents)
    strange = next((one for one in found if not isinstance(one, BaseNode)), None)
    if strange is not None:
        raise ConfigurationError(
            f"among the documents is a {type(strange).__name__}", hint="pass LlamaIndex documents or nodes"
        )
    return {document.node_id: document for document in found}


def _ids(nodes: Sequence[NodeWithScore]) -> list[str]:
    return list(dict.fromkeys(_document_id(node) for node in nodes))


def _document_id(node: NodeWithScore) -> str:
    return node.node.ref_doc_id or node.node.node_id


def _passages(nodes: Sequence[NodeWithScore], found: Mapping[str, BaseNode | None]) -> list[Passage]:
    if not nodes:
        return []
    missing = [name for name, document in found.items() if document is None]
    if len(missing) == len(found):
        warn("dense_refiner.no_documents", ids=missing)
        return []
    if missing:
        warn("dense_refiner.documents_missing", ids=missing)
    documents: dict[str, BaseNode] = {}
    for node in nodes:
        document = found[_document_id(node)] or node.node
        documents.setdefault(document.node_id, document)
    return [
        Passage(document.get_content(metadata_mode=MetadataMode.NONE), id=name, origin=document)
        for name, document in documents.items()
    ]


def _failed(error: Exception) -> list[Passage]:
    warn("dense_refiner.documents_failed", reason=f"{type(error).__name__}: {error}")
    return []
