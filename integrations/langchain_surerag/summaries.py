"""Tier 1 of lazy retrieval: a small index of document summaries, made from what a pipeline has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable

from langchain_surerag.services import EmbeddingEncoder, RunnableRetriever, reader_from_model
from surerag.documents import Document as PlainDocument
from surerag.errors import ConfigurationError, InputError
from surerag.readers import Reader
from surerag.retrieval import LeadSummaries, MetadataSummaries, ModelSummaries, PassageIndex, Summarizer
from surerag.services import Retriever
from surerag.types import Passage

Summarize = str | int | Callable[[Document], str] | Reader | Runnable[Any, Any] | None
"""How to summarize: a metadata key, a number of lead sentences, a function of the document, or a model
that writes each summary once; None takes the first two sentences."""

SummarySource = str | Retriever | RetrieverLike | Iterable[Document]


def summaries_of(
    source: SummarySource, *, summarize: Summarize = None, embeddings: Embeddings | None = None
) -> Retriever | str:
    """Make the summary tier of whatever a pipeline has.

    Args:
        source: Whole documents; a retriever whose documents *are* summaries; an index of surerag; or
            the summary of a single document as text.
        summarize: How, for documents.
        embeddings: What the summaries of documents are searched with.

    Returns:
        What :class:`~langchain_surerag.LazyRetrievalChain` takes as ``summaries``.

    Raises:
        InputError: If there is no document with text, or one lacks the summary it should have.
        ConfigurationError: If the source is of another kind, or documents come without embeddings.
    """
    if isinstance(source, str):
        return source
    if isinstance(source, Runnable):
        return RunnableRetriever(source)
    if isinstance(source, Retriever):
        return source
    if not isinstance(source, Iterable):
        raise ConfigurationError(
            f"summaries cannot be made of a {type(source).__name__}",
            hint="pass documents, a retriever of summaries, or one summary as text",
        )
    return _index(list(source), summarize, embeddings)


def _index(documents: Sequence[Any], summarize: Summarize, embeddings: Embeddings | None) -> PassageIndex:
    strange = next((item for item in documents if not isinstance(item, Document)), None)
    if strange is not None:
        raise ConfigurationError(
            f"summaries cannot be made of a {type(strange).__name__}", hint="pass LangChain documents"
        )
    if embeddings is None:
        raise ConfigurationError("summaries are searched by meaning", hint="pass embeddings=…")
    documents = [document for document in documents if document.page_content.strip()]
    if not documents:
        raise InputError("there is no document with text to summarize", hint="pass documents that have text")
    passages = [
        Passage(text, id=document.id or "", metadata=dict(document.metadata))
        for document, text in zip(documents, _summarized(documents, summarize), strict=True)
    ]
    return PassageIndex.from_passages(passages, EmbeddingEncoder(embeddings))


def _summarized(documents: Sequence[Document], summarize: Summarize) -> list[str]:
    how: Summarizer
    match summarize:
        case None:
            how = LeadSummaries()
        case bool():
            raise ConfigurationError(f"summarize cannot be {summarize}", hint="give a number of sentences")
        case int():
            how = LeadSummaries(summarize)
        case str():
            how = MetadataSummaries(summarize)
        case Runnable():
            how = ModelSummaries(reader_from_model(summarize))
        case Reader():
            how = ModelSummaries(summarize)
        case _:
            return [summarize(document) for document in documents]
    return how(
        [
            PlainDocument(document.id or str(place), document.page_content, metadata=dict(document.metadata))
            for place, document in enumerate(documents)
        ]
    )
