"""Tier 1 of lazy retrieval: a small index of document summaries, made from what a pipeline has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode

from llama_index_surerag._deleted import WithoutDeleted
from llama_index_surerag._living import GivenNodes, Living, living_behind
from llama_index_surerag._summary_tier import SummaryTier, Whole
from llama_index_surerag.llm_reader import reader_of
from llama_index_surerag.services import NodeRetriever, retriever_of
from surerag import LazyRAGOptions
from surerag.errors import ConfigurationError, InputError
from surerag.readers import Reader
from surerag.retrieval import LeadSummaries, MetadataSummaries, ModelSummaries, Summarizer
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
) -> Retriever | str:
    """Make the summary tier of whatever a pipeline has.

    Nothing is embedded, and no model asked, before the first question: ``refresh`` (or ``await arefresh()``)
    does it ahead.

    Args:
        source: Documents or nodes (nodes are put together by the document they come from); an index or
            retriever whose nodes *are* summaries, which you keep up to date; a surerag index of summaries;
            or the summary of a single document as text.
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
    # One of them is iterable, too: over its fields.
    given: object = source
    if not isinstance(source, Iterable) or isinstance(given, BaseNode):
        raise ConfigurationError(
            f"summaries cannot be made of a {type(source).__name__}",
            hint="pass a list of documents or nodes, a retriever of summaries, or one summary as text",
        )
    nodes = list(source)
    strange = next((node for node in nodes if not isinstance(node, BaseNode)), None)
    if strange is not None:
        raise ConfigurationError(
            f"summaries cannot be made of a {type(strange).__name__}",
            hint="pass documents or nodes",
        )
    if not any(node.get_content().strip() for node in nodes):
        raise InputError("there is no document with text to summarize", hint="pass documents that have text")
    return _tier(GivenNodes(nodes), summarize, embed_model)


def tier_one(
    source: BaseRetriever | BaseIndex[Any] | None,
    options: LazyRAGOptions,
    summaries: SummarySource | None,
    summarize: Summarize | LLM,
    embed_model: BaseEmbedding | Encoder | None,
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
        return _tier(living, how, model)
    made = summaries_of(summaries, summarize=how, embed_model=model, n_summaries=options.rules.n_summaries)
    return made if living is None or isinstance(made, str) else WithoutDeleted(made, living)


def _tier(living: Living, summarize: Summarize, embed_model: BaseEmbedding | Encoder | None) -> SummaryTier:
    if callable(summarize) and not isinstance(summarize, Reader | Made):
        each = summarize
        return SummaryTier(living, lambda wholes: [each(whole.node) for whole in wholes], embed_model)
    how: Summarizer = LeadSummaries()
    if isinstance(summarize, Made):
        how = summarize
    elif isinstance(summarize, int):
        how = LeadSummaries(summarize)
    elif isinstance(summarize, str):
        how = MetadataSummaries(summarize)
    elif isinstance(summarize, Reader):
        how = ModelSummaries(summarize)

    def summarized(wholes: Sequence[Whole]) -> list[str]:
        return how([whole.plain for whole in wholes])

    return SummaryTier(living, summarized, embed_model, calls=isinstance(summarize, Reader | ModelSummaries))
