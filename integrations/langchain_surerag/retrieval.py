"""Adapters that let surerag use the retrievers and embedding models of a LangChain pipeline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever, RetrieverLike
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from numpy.typing import NDArray

from langchain_surerag.documents import passages_of
from langchain_surerag.families import inner_runnables
from surerag import Passage
from surerag.errors import ConfigurationError, SureragError, check_kind
from surerag.lru import LRUDict
from surerag.readers import client_failure, in_thread, secrets_in
from surerag.services import Encoder, Retriever, normalised_rows

_QUERIES_REMEMBERED = 64
"""Number of questions whose vectors are cached; summaries and passages are searched with the same vector."""


class EmbeddingEncoder:
    """Encodes texts with any LangChain embedding model, and L2-normalises the vectors.

    Args:
        embeddings: The embedding model.

    Raises:
        ConfigurationError: If ``embeddings`` is not an embedding model.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        check_kind(Embeddings, "an embedding model of LangChain", embeddings=embeddings)
        self._embeddings = embeddings
        names = (getattr(embeddings, attribute, None) for attribute in ("model_name", "model"))
        model = next((name for name in names if isinstance(name, str) and name), "")
        self.name = f"{type(embeddings).__name__}({model})"
        """Identity of the model: its class and the model's name."""
        self._questions: LRUDict[list[float]] = LRUDict(_QUERIES_REMEMBERED)

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions].

        Raises:
            ServiceError: If the model fails, or does not return one vector for each text.
        """
        try:
            if kind == "query":
                return normalised_rows([self.embed_question(text) for text in texts], len(texts))
            return normalised_rows(self._embeddings.embed_documents(list(texts)), len(texts))
        except Exception as error:
            failure = self._failure(error)
        raise failure

    async def aencode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        """Like ``encode``, with the model's own async methods, or in a thread if the model has none."""
        own = type(self._embeddings)
        if own.aembed_documents is Embeddings.aembed_documents:
            return await in_thread(self.encode, texts, kind)
        try:
            if kind == "query":
                vectors = await asyncio.gather(*map(self.aembed_question, texts))
                return normalised_rows(vectors, len(texts))
            return normalised_rows(await self._embeddings.aembed_documents(list(texts)), len(texts))
        except Exception as error:
            failure = self._failure(error)
        raise failure

    def embed_question(self, text: str) -> list[float]:
        """Return the model's vector of a question without normalising it; recent vectors are cached."""
        if (vector := self._questions.get(text)) is None:
            self._questions.put(text, vector := self._embeddings.embed_query(text))
        return vector

    async def aembed_question(self, text: str) -> list[float]:
        """Like :meth:`embed_question`, with the model's own async method."""
        if (vector := self._questions.get(text)) is None:
            self._questions.put(text, vector := await self._embeddings.aembed_query(text))
        return vector

    def _failure(self, error: Exception) -> SureragError:
        return client_failure(error, self.name, secrets_in(vars(self._embeddings)))


def encoder_of(embeddings: Any) -> Any:
    """Return an encoder for an embedding model; None and encoders of surerag are returned unchanged."""
    kinds = Embeddings | Encoder | None
    check_kind(kinds, "an embedding model", embeddings=embeddings, hint="pass embeddings=…")
    return EmbeddingEncoder(embeddings) if isinstance(embeddings, Embeddings) else embeddings


class QuestionRetriever(VectorStoreRetriever):
    """Searches like a vector store's retriever (``original``), but caches question vectors in ``encoder``.

    Each search uses the current settings of ``original``.
    """

    original: VectorStoreRetriever
    encoder: Any

    @classmethod
    def of(cls, retriever: VectorStoreRetriever, encoder: EmbeddingEncoder) -> Self:
        """Return a :class:`QuestionRetriever` for a retriever; traces show the name of the original."""
        fields = {name: getattr(retriever, name) for name in retriever.model_fields_set}
        name = retriever.get_name()
        return cls(**{"name": name, **fields, "original": retriever, "encoder": encoder})

    @property
    def _searches_by_similarity(self) -> bool:
        return self.original.search_type == "similarity" and self.original.vectorstore is self.vectorstore

    def _get_relevant_documents(self, query: str, *, run_manager: Any, **options: Any) -> list[Document]:
        if not self._searches_by_similarity:
            return self.original._get_relevant_documents(query, run_manager=run_manager, **options)
        vector = self.encoder.embed_question(query)
        settings = {**self.original.search_kwargs, **options}
        return self.vectorstore.similarity_search_by_vector(vector, **settings)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, **options: Any
    ) -> list[Document]:
        if not self._searches_by_similarity:
            return await self.original._aget_relevant_documents(query, run_manager=run_manager, **options)
        vector = await self.encoder.aembed_question(query)
        settings = {**self.original.search_kwargs, **options}
        return await self.vectorstore.asimilarity_search_by_vector(vector, **settings)


class RunnableRetriever:
    """Retrieves with a LangChain retriever, or any runnable from a question to documents.

    The number of passages is passed to retrievers that accept it: retrievers of vector stores, and retrievers
    whose sync and async search methods have a parameter ``k``. The results of other retrievers are cut to
    this number.
    """

    def __init__(self, runnable: RetrieverLike) -> None:
        self.runnable: Runnable[str, list[Any]] = runnable
        self._takes_k = takes_k(runnable)

    @property
    def name(self) -> str:
        """Class name of LangChain's retriever; a calibrated threshold is valid only for this class."""
        return type(getattr(self.runnable, "original", self.runnable)).__name__

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Return at most ``k`` passages, best first.

        Raises:
            ServiceError: If the runnable returns something other than documents.
        """
        return _passages(self.runnable.invoke(query, **self._keywords(k)), k)

    async def aretrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Like ``retrieve``, with the runnable's own async method."""
        return _passages(await self.runnable.ainvoke(query, **self._keywords(k)), k)

    def _keywords(self, k: int | None) -> dict[str, Any]:
        return {"k": k} if self._takes_k and k is not None else {}


def retriever_of(retriever: Any) -> Any:
    """Return a retriever of surerag for a runnable; None and retrievers of surerag are returned unchanged."""
    if isinstance(retriever, Runnable):
        return RunnableRetriever(retriever)
    if retriever is None or isinstance(retriever, Retriever):
        return retriever
    hint = "pass a LangChain retriever (store.as_retriever()) or a runnable from str to documents"
    if isinstance(retriever, VectorStore):
        hint = "pass store.as_retriever()"
    elif callable(retriever):
        hint = "wrap the function: RunnableLambda(search), from langchain_core.runnables"
    raise ConfigurationError(f"expected a retriever, got {type(retriever).__name__}", hint=hint)


def takes_k(runnable: object) -> bool:
    """Whether ``runnable.invoke(question, k=…)`` passes ``k`` on to the search."""
    match runnable:
        case VectorStoreRetriever():
            return True
        case BaseRetriever():
            searches = (runnable._get_relevant_documents, runnable._aget_relevant_documents)
            return all("k" in inspect.signature(search).parameters for search in searches)
        case _:
            inner = inner_runnables(runnable)
            return bool(inner) and all(map(takes_k, inner))


def _passages(documents: object, k: int | None) -> list[Passage]:
    return [passage for passage in passages_of(documents) if passage.text.strip()][:k]
