"""A pipeline's own embedding models and retrievers as services of surerag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings
from numpy.typing import NDArray

from llama_index_surerag._counting import Count, counted
from llama_index_surerag.nodes import copy_of, passages_of
from surerag.errors import ConfigurationError, ServiceError
from surerag.messages import Passage
from surerag.readers.threads import in_thread
from surerag.services import Encoder, FoundPassages, Retriever

S = TypeVar("S")

Kind = Literal["query", "document"]


class EmbeddingEncoder:
    """Encodes with a LlamaIndex embedding model; rows are L2-normalised here.

    Args:
        embed_model: Any LlamaIndex embedding model.

    Raises:
        ConfigurationError: If it is none.
    """

    def __init__(self, embed_model: BaseEmbedding) -> None:
        if not isinstance(embed_model, BaseEmbedding):
            raise ConfigurationError(
                f"expected a LlamaIndex embedding model, got {type(embed_model).__name__}",
                hint="pass embed_model=…, or set Settings.embed_model",
            )
        self._model = embed_model

    def __repr__(self) -> str:
        return f"EmbeddingEncoder({self.name!r})"

    @property
    def name(self) -> str:
        """Identity of the model."""
        known = self._model.model_name
        return known if known != "unknown" else self._model.class_name()

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions].

        Raises:
            ServiceError: If the model returns a vector of length zero.
        """
        if kind == "query":
            return _normalised([self._model.get_query_embedding(text) for text in texts])
        return _normalised(self._model.get_text_embedding_batch(list(texts)))

    async def aencode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Like ``encode``, with the model's own async methods; in a thread for a model that has none."""
        if kind == "query":
            return _normalised([await self._model.aget_query_embedding(text) for text in texts])
        if not _embeds_natively(self._model):
            return await in_thread(self.encode, texts, kind)
        return _normalised(await self._model.aget_text_embedding_batch(list(texts)))


class SettingsEncoder:
    """Encodes with ``Settings.embed_model``, asked for only when a vector is needed."""

    name = "Settings.embed_model"

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]."""
        return EmbeddingEncoder(Settings.embed_model).encode(texts, kind)

    async def aencode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Like ``encode``, without blocking the event loop."""
        return await EmbeddingEncoder(Settings.embed_model).aencode(texts, kind)


def encoder_of(model: BaseEmbedding | Encoder | None) -> Encoder:
    """Return an embedding model as an encoder, an encoder as it is, ``Settings.embed_model`` for None."""
    if model is None:
        return SettingsEncoder()
    return model if isinstance(model, Encoder) else EmbeddingEncoder(model)


def _normalised(vectors: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    rows = np.asarray(vectors, dtype=np.float32).reshape(len(vectors), -1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ServiceError("the embedding model returned a vector of length 0", hint="leave empty texts out")
    normalised: NDArray[np.float32] = rows / lengths
    return normalised


def _embeds_natively(model: BaseEmbedding) -> bool:
    """Whether a model awaits; the inherited methods embed text after text and block the event loop."""
    # By name: LlamaIndex wraps inherited methods anew in every subclass.
    inherited = (
        getattr(type(model), name).__qualname__ == f"{BaseEmbedding.__name__}.{name}"
        for name in ("_aget_text_embedding", "_aget_text_embeddings")
    )
    return not all(inherited)


class Asked:
    """One query as the pipeline asked it, and its vectors: each embedding model embeds it once.

    Args:
        bundle: The query, with strings to embed of its own where it has some.
        model: The embedding model that the vector on the bundle is of, if there is one.
    """

    def __init__(self, bundle: QueryBundle, model: object = None) -> None:
        self.bundle = bundle
        self._vectors: dict[int, list[float]] = {}
        if model is not None and bundle.embedding is not None:
            self._vectors[id(model)] = bundle.embedding

    @classmethod
    def of(cls, query: str) -> Asked:
        """Return a query that is nothing but its text."""
        return cls(QueryBundle(query))

    def for_text(self, query: str) -> Asked:
        """Return this query, if its text is asked for, else one that is nothing but a text."""
        return self if self.bundle.query_str == query else Asked.of(query)

    def bundle_for(self, model: object) -> QueryBundle:
        """Return a copy of the bundle, with the vector that is known of this model."""
        return replace(self.bundle, embedding=self._vectors.get(id(model), self.bundle.embedding))

    def learn(self, model: object, bundle: QueryBundle) -> None:
        """Note the vector that a retriever left on its bundle."""
        if model is not None and bundle.embedding is not None:
            self._vectors[id(model)] = bundle.embedding

    def vector(self, model: object, encoder: Encoder) -> NDArray[np.float32]:
        """Return the query's vector [1, dimensions], L2-normalised.

        Args:
            model: A LlamaIndex model embeds it as the retrievers of LlamaIndex do.
            encoder: What it is embedded with otherwise.
        """
        if not isinstance(model, BaseEmbedding):
            return encoder.encode([self.bundle.query_str], "query")
        if id(model) not in self._vectors:
            texts = self.bundle.embedding_strs
            self._vectors[id(model)] = model.get_agg_embedding_from_queries(texts)
        return _normalised([self._vectors[id(model)]])

    async def avector(self, model: object, encoder: Encoder) -> NDArray[np.float32]:
        """Like ``vector``, without blocking the event loop."""
        if not isinstance(model, BaseEmbedding):
            if not hasattr(encoder, "aencode"):
                return await in_thread(encoder.encode, [self.bundle.query_str], "query")
            rows: NDArray[np.float32] = await encoder.aencode([self.bundle.query_str], "query")
            return rows
        if id(model) not in self._vectors:
            texts = self.bundle.embedding_strs
            self._vectors[id(model)] = await model.aget_agg_embedding_from_queries(texts)
        return _normalised([self._vectors[id(model)]])


class NodeRetriever:
    """Retrieves nodes with a LlamaIndex retriever, passes them through postprocessors, gives passages.

    Nodes are copied before anything else happens, so that neither a postprocessor nor a caller changes
    what the index holds. What retriever and postprocessors ask of models by themselves (a fusion of queries,
    a reranker that is an LLM) is counted among the costs of the answer.

    Args:
        retriever: Any LlamaIndex retriever.
        postprocessors: Applied in order, as in LlamaIndex's query engines.
        asked: The query as the pipeline asked it, with embeddings or strings to embed of its own; where
            its text is asked for, it is what the retriever gets.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        postprocessors: Sequence[BaseNodePostprocessor] = (),
        asked: Asked | None = None,
    ) -> None:
        self._retriever = retriever
        self._postprocessors = tuple(postprocessors)
        self._asked = asked

    def __repr__(self) -> str:
        return f"NodeRetriever({type(self._retriever).__name__}, {len(self._postprocessors)} postprocessors)"

    @property
    def embed_model(self) -> object:
        """What the retriever embeds queries with; None if it does not, or does not tell."""
        return getattr(self._retriever, "_embed_model", None)

    def bound_to(self, asked: Asked) -> NodeRetriever:
        """Return a retriever that asks for this very query."""
        return NodeRetriever(self._retriever, self._postprocessors, asked)

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return passages, best first, ``k`` at most; each has its node as ``origin``."""
        with counted() as count:
            found = self._nodes(self._query(query))
        return _told(found[:k], count)

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        with counted() as count:
            found = await self._anodes(self._query(query))
        return _told(found[:k], count)

    def nodes(self, bundle: QueryBundle, k: int | None = None) -> list[NodeWithScore]:
        """Return postprocessed copies of the nodes that the retriever finds, ``k`` at most."""
        return self._nodes(Asked(bundle, self.embed_model))[:k]

    async def anodes(self, bundle: QueryBundle, k: int | None = None) -> list[NodeWithScore]:
        """Like ``nodes``; a retriever without an async of its own works in a thread."""
        return (await self._anodes(Asked(bundle, self.embed_model)))[:k]

    def _nodes(self, asked: Asked) -> list[NodeWithScore]:
        bundle = asked.bundle_for(self.embed_model)
        nodes = [copy_of(node) for node in self._retriever.retrieve(bundle)]
        asked.learn(self.embed_model, bundle)
        for postprocessor in self._postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=replace(bundle))
        return nodes

    async def _anodes(self, asked: Asked) -> list[NodeWithScore]:
        bundle = asked.bundle_for(self.embed_model)
        if _has_native_async(self._retriever):
            found = await self._retriever.aretrieve(bundle)
        else:
            found = await in_thread(self._retriever.retrieve, bundle)
        asked.learn(self.embed_model, bundle)
        nodes = [copy_of(node) for node in found]
        for postprocessor in self._postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, query_bundle=replace(bundle))
        return nodes

    def _query(self, query: str) -> Asked:
        return Asked.of(query) if self._asked is None else self._asked.for_text(query)


def _told(nodes: list[NodeWithScore], count: Count) -> list[Passage]:
    """Return nodes as passages, with what retriever and postprocessors asked of models by themselves."""
    passages = list(passages_of(nodes))
    return FoundPassages(passages, count.costs, count.model) if count.costs.calls else passages


def bundle_of(query: QueryType) -> QueryBundle:
    """Return a query as a bundle."""
    return QueryBundle(query) if isinstance(query, str) else query


@runtime_checkable
class Bindable(Protocol):
    """A retriever that can be asked for the very query of a pipeline."""

    def bound_to(self, asked: Asked) -> Retriever:
        """Return a retriever that asks for this query."""


def bound_to(service: S, asked: Asked) -> S | Retriever:
    """Return a retriever that asks for this very query, where it is one of the pipeline's."""
    return service.bound_to(asked) if isinstance(service, Bindable) else service


def retriever_of(source: BaseRetriever | BaseIndex[Any], k: int | None = None) -> BaseRetriever:
    """Return a retriever as it is, or that of an index.

    Args:
        source: A retriever, or an index to make one of.
        k: Nodes that the retriever of an index shall find; its own default if None.

    Raises:
        ConfigurationError: If it is neither.
    """
    if isinstance(source, BaseRetriever):
        return source
    if isinstance(source, BaseIndex):
        return source.as_retriever() if k is None else source.as_retriever(similarity_top_k=k)
    raise ConfigurationError(
        f"expected a LlamaIndex retriever or index, got {type(source).__name__}",
        hint="pass index, or index.as_retriever(similarity_top_k=…)",
    )


def _has_native_async(retriever: BaseRetriever) -> bool:
    """Whether a retriever awaits real I/O; the inherited ``_aretrieve`` blocks the event loop."""
    return type(retriever)._aretrieve.__qualname__ != BaseRetriever._aretrieve.__qualname__
