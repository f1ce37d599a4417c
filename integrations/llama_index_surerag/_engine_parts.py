"""What a lazy query engine is put together from: a pipeline's model, index and documents."""

from __future__ import annotations

import sys
from typing import Any, Literal

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.schema import QueryBundle, QueryType

from llama_index_surerag.readers import reader_from_llm
from llama_index_surerag.retrievers import NodeRetriever
from llama_index_surerag.summaries import Summarize, SummarySource, summaries_of
from surerag import LazyRAG
from surerag.errors import ConfigurationError
from surerag.readers import Reader
from surerag.services import Retriever

EngineMode = Literal["lazy", "none", "standard", "strong"]
ALL = sys.maxsize
"""A number of passages that leaves the choice to the retriever."""
_ANSWER_TOKENS = 256
"""Limit on an answer, for an LLM that has none of its own."""


def bundle_of(query: QueryType) -> QueryBundle:
    """Return a query as a bundle."""
    return QueryBundle(query) if isinstance(query, str) else query


def bound_to(service: Retriever | None, bundle: QueryBundle) -> Retriever | None:
    """Return a retriever that asks for this very query, where it is one of the pipeline's."""
    return service.bound_to(bundle) if isinstance(service, NodeRetriever) else service


def own_limit(model: LLM | Reader) -> int:
    """Return how long an answer of this model may be, as the pipeline has set it up."""
    if not isinstance(model, LLM):
        return LazyRAG.max_tokens
    limit = model.metadata.num_output
    return limit if limit is not None and limit > 0 else _ANSWER_TOKENS


def tier_one(
    source: BaseRetriever | BaseIndex[Any] | None,
    mode: EngineMode,
    summaries: SummarySource | None,
    summarize: Summarize | LLM,
    embed_model: BaseEmbedding | None,
    m: int,
) -> Any:
    """Return the summary tier, if the mode needs one.

    Raises:
        ConfigurationError: If there is nothing to make summaries of.
    """
    if mode not in ("lazy", "strong"):
        return None
    own: Any = getattr(source, "_embed_model", None)
    how = reader_from_llm(summarize) if isinstance(summarize, LLM) else summarize
    if summaries is None:
        kept: Any = getattr(source, "docstore", None) or getattr(source, "_docstore", None)
        nodes = list(kept.docs.values()) if kept is not None else []
        if not nodes:
            raise ConfigurationError(
                f'mode "{mode}" needs document summaries, and there are no documents to make them of',
                hint="pass summaries=documents, or the summary of a single document as text",
            )
        summaries = nodes
    return summaries_of(summaries, summarize=how, embed_model=embed_model or own, m=m)
