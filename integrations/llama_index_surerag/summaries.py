"""Tier 1 of lazy retrieval: a small index of document summaries, made from what a pipeline has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from llama_index_surerag._deleted import WithoutDeleted
from llama_index_surerag._living import GivenNodes, Living, living_behind
from llama_index_surerag._summary_store import stored
from llama_index_surerag._summary_tier import Summarizing, SummaryTier, document_id
from llama_index_surerag.llm_reader import reader_of
from llama_index_surerag.services import NodeRetriever, retriever_of
from surerag import LazyRAGOptions
from surerag.errors import ConfigurationError, InputError
from surerag.readers import Reader
from surerag.retrieval import LeadSummaries, MetadataSummaries, ModelSummaries, Summarizer
from surerag.retrieval.index import MAX_IN_MEMORY, too_many
from surerag.services import Encoder, Retriever

Made = LeadSummaries | MetadataSummaries | ModelSummaries
"""surerag's own ways, with settings of one's own, such as a language."""

Summarize = str | int | Callable[[BaseNode], str] | Reader | Made | None
"""How to summarize: a metadata key, a number of lead sentences, a function of the document, a model that
writes each summary once, one of surerag's own ways; None takes the first two sentences."""

SummarySource = str | Retriever | BaseRetriever | BaseIndex[Any] | Iterable[BaseNode]


def summaries_of(
    source: SummarySource,
    *,
    summarize: Summarize = None,
    embed_model: BaseEmbedding | Encoder | None = None,
    n_summaries: int | None = None,
    store: BasePydanticVectorStore | None = None,
    max_summaries: int = MAX_IN_MEMORY,
) -> Retriever | str:
    """Make the summary tier of whatever a pipeline has.

    In memory, nothing is embedded, and no model asked, before the first question: ``refresh`` (or ``await
    arefresh()``) does it ahead. A store is filled at once.

    Args:
        source: Documents or nodes (nodes are put together by the document they come from); an index or
            retriever whose nodes *are* summaries, which you keep up to date; a surerag index of summaries,
            such as a :class:`~surerag.retrieval.DiskSummaryIndex`; or the summary of a single document as
            text.
        summarize: How, for documents and nodes.
        embed_model: What the summaries are searched with; ``Settings.embed_model`` if left out.
        n_summaries: Summaries that an index or store shall find; its own default if left out.
        store: A vector store of your own that keeps the summaries of documents instead, under their
            document's id with ``:summary`` behind it: what it says is in it (``get_nodes``) is neither
            written nor embedded anew. Documents are read and stored some at a time: a generator of any
            length will do, in which the nodes of one document follow each other.
        max_summaries: More are not kept in memory, but refused before any is made.

    Returns:
        What :class:`surerag.LazyRAG` takes as ``summaries``.

    Raises:
        InputError: If there is no document with text.
        ConfigurationError: If the source is of another kind; if there are more documents than
            ``max_summaries`` and no store; or if a store does not keep texts.
    """
    if isinstance(source, str):
        return source
    if isinstance(source, BaseRetriever | BaseIndex):
        return NodeRetriever(retriever_of(source, n_summaries))
    if isinstance(source, Retriever):
        return source
    # One of them is iterable, too: over its fields.
    given: object = source
    if not isinstance(source, Iterable) or isinstance(given, BaseNode):
        raise ConfigurationError(
            f"summaries cannot be made of a {type(source).__name__}",
            hint="pass a list of documents or nodes, a retriever of summaries, or one summary as text",
        )
    nodes = _with_text(source)
    if store is not None:
        return stored(nodes, _way(summarize), embed_model, store, n_summaries)
    held = list(_some(nodes, max_summaries))
    return _tier(GivenNodes(held), summarize, embed_model, max_summaries)


def tier_one(
    source: BaseRetriever | BaseIndex[Any] | None,
    options: LazyRAGOptions,
    summaries: SummarySource | None,
    summarize: Summarize | LLM,
    embed_model: BaseEmbedding | Encoder | None,
    max_summaries: int,
) -> Any:
    """Return the summary tier of an engine, if its mode needs one.

    Left out, summaries follow the index; given, they lose what is deleted from it.

    Raises:
        ConfigurationError: If there is nothing to make summaries of.
    """
    if options.mode not in ("lazy", "strong"):
        return None
    living = living_behind(source)
    how = reader_of(summarize) if isinstance(summarize, LLM) else summarize
    model = embed_model or getattr(source, "_embed_model", None)
    if summaries is None:
        if living is None:
            raise ConfigurationError(
                f'mode "{options.mode}" needs document summaries, and there are no documents to make them of',
                hint="pass summaries=documents, or the summary of a single document as text",
            )
        return _tier(living, how, model, max_summaries)
    made = summaries_of(
        summaries,
        summarize=how,
        embed_model=model,
        n_summaries=options.rules.n_summaries,
        max_summaries=max_summaries,
    )
    return made if living is None or isinstance(made, str) else WithoutDeleted(made, living)


def _with_text(nodes: Iterable[Any]) -> Iterator[BaseNode]:
    found = False
    for node in nodes:
        if not isinstance(node, BaseNode):
            raise ConfigurationError(
                f"summaries cannot be made of a {type(node).__name__}", hint="pass documents or nodes"
            )
        found = found or bool(node.get_content().strip())
        yield node
    if not found:
        raise InputError("there is no document with text to summarize", hint="pass documents that have text")


def _some(nodes: Iterable[BaseNode], most: int) -> Iterator[BaseNode]:
    """Yield nodes of so many documents."""
    documents: set[str] = set()
    for node in nodes:
        documents.add(document_id(node))
        if len(documents) > most:
            raise too_many(most)
        yield node


def _tier(
    living: Living,
    summarize: Summarize,
    embed_model: BaseEmbedding | Encoder | None,
    max_summaries: int,
) -> SummaryTier:
    calls = isinstance(summarize, Reader | ModelSummaries)
    return SummaryTier(living, _way(summarize), embed_model, calls=calls, max_summaries=max_summaries)


def _way(summarize: Summarize) -> Summarizing:
    """Return what makes a summary of each document."""
    if callable(summarize) and not isinstance(summarize, Reader | Made):
        each = summarize
        return lambda wholes: [each(whole.node) for whole in wholes]
    how: Summarizer = LeadSummaries()
    if isinstance(summarize, Made):
        how = summarize
    elif isinstance(summarize, int):
        how = LeadSummaries(summarize)
    elif isinstance(summarize, str):
        how = MetadataSummaries(summarize)
    elif isinstance(summarize, Reader):
        how = ModelSummaries(summarize)
    return lambda wholes: how([whole.plain for whole in wholes])
