"""Tier 1 of lazy retrieval: a small index of document summaries, made from what a pipeline has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.schema import Document as LlamaDocument
from llama_index.core.settings import Settings

from llama_index_surerag.llm_reader import reader_of
from llama_index_surerag.nodes import summary_node
from llama_index_surerag.services import EmbeddingEncoder, NodeRetriever, retriever_of
from surerag import LazyRAGOptions
from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError
from surerag.readers import Reader
from surerag.retrieval import LeadSummaries, MetadataSummaries, ModelSummaries, PassageIndex, Summarizer
from surerag.services import Retriever
from surerag.types import Passage

Summarize = str | int | Callable[[BaseNode], str] | Reader | None
"""How to summarize: a metadata key, a number of lead sentences, a function of the document, a model that
writes each summary once; None takes the first two sentences."""

SummarySource = str | Retriever | BaseRetriever | BaseIndex[Any] | Iterable[BaseNode]


def summaries_of(
    source: SummarySource,
    *,
    summarize: Summarize = None,
    embed_model: BaseEmbedding | None = None,
    n_summaries: int | None = None,
) -> Retriever | str:
    """Make the summary tier of whatever a pipeline has.

    Args:
        source: Documents or nodes (nodes are put together by the document they come from); an index or
            retriever whose nodes *are* summaries; a surerag index of summaries; or the summary of a
            single document as text.
        summarize: How, for documents and nodes.
        embed_model: What the summaries are searched with; ``Settings.embed_model`` if left out.
        n_summaries: Summaries that an index shall find; its own default if left out.

    Returns:
        What :class:`surerag.LazyRAG` takes as ``summaries``.

    Raises:
        InputError: If there is no document with text.
        ConfigurationError: If the source is of another kind.
    """
    if isinstance(source, str):
        return source
    if isinstance(source, BaseRetriever | BaseIndex):
        return NodeRetriever(retriever_of(source, n_summaries))
    if isinstance(source, Retriever):
        return source
    if not isinstance(source, Iterable):
        raise ConfigurationError(
            f"summaries cannot be made of a {type(source).__name__}",
            hint="pass documents, nodes, a retriever of summaries, or one summary as text",
        )
    nodes = list(source)
    strange = next((node for node in nodes if not isinstance(node, BaseNode)), None)
    if strange is not None:
        raise ConfigurationError(
            f"summaries cannot be made of a {type(strange).__name__}",
            hint="pass documents or nodes",
        )
    documents = _documents_of(nodes)
    if not documents:
        raise InputError("there is no document with text to summarize", hint="pass documents that have text")
    texts = _summarized(documents, summarize)
    encoder = EmbeddingEncoder(Settings.embed_model if embed_model is None else embed_model)
    passages = [_passage(document, text) for document, text in zip(documents, texts, strict=True)]
    return PassageIndex.from_passages(passages, encoder)


def tier_one(
    source: BaseRetriever | BaseIndex[Any] | None,
    options: LazyRAGOptions,
    summaries: SummarySource | None,
    summarize: Summarize | LLM,
    embed_model: BaseEmbedding | None,
) -> Any:
    """Return the summary tier of an engine, if its mode needs one.

    Raises:
        ConfigurationError: If there is nothing to make summaries of.
    """
    if options.mode not in ("lazy", "strong"):
        return None
    if summaries is None:
        kept: Any = getattr(source, "docstore", None) or getattr(source, "_docstore", None)
        summaries = list(kept.docs.values()) if kept is not None else []
        if not summaries:
            raise ConfigurationError(
                f'mode "{options.mode}" needs document summaries, and there are no documents to make them of',
                hint="pass summaries=documents, or the summary of a single document as text",
            )
    own: Any = getattr(source, "_embed_model", None)
    return summaries_of(
        summaries,
        summarize=reader_of(summarize) if isinstance(summarize, LLM) else summarize,
        embed_model=embed_model or own,
        n_summaries=options.n_summaries,
    )


def _summarized(documents: Sequence[_Source], summarize: Summarize) -> list[str]:
    if callable(summarize) and not isinstance(summarize, Reader):
        return [summarize(document.node) for document in documents]
    how: Summarizer = LeadSummaries()
    if isinstance(summarize, int):
        how = LeadSummaries(summarize)
    elif isinstance(summarize, str):
        how = MetadataSummaries(summarize)
    elif isinstance(summarize, Reader):
        how = ModelSummaries(summarize)
    return how([document.plain for document in documents])


class _Source:
    """A document, whole or put together from its nodes."""

    def __init__(self, node: BaseNode, text: str) -> None:
        self.node = node
        self.plain = Document(id=_document_id(node), text=text, metadata=dict(node.metadata))


def _documents_of(nodes: Sequence[BaseNode]) -> list[_Source]:
    parts: dict[str, list[BaseNode]] = {}
    for node in nodes:
        if node.get_content(metadata_mode=MetadataMode.NONE).strip():
            parts.setdefault(_document_id(node), []).append(node)
    return [
        _Source(found[0], "\n\n".join(node.get_content(metadata_mode=MetadataMode.NONE) for node in found))
        for found in parts.values()
    ]


def _document_id(node: BaseNode) -> str:
    if isinstance(node, LlamaDocument):
        return node.node_id
    return node.ref_doc_id or node.node_id


def _passage(document: _Source, text: str) -> Passage:
    summary = Passage(text, id=document.plain.id, metadata=document.plain.metadata)
    node = summary_node(summary)
    return replace(summary, id=node.node_id, origin=node)
