"""A pipeline's own embedding models and retrievers as services of surerag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings
from numpy.typing import NDArray

from llama_index_surerag.events import warn
from llama_index_surerag.nodes import copy_of, passages_of
from llama_index_surerag.pickles import Shareable
from surerag import Passage, Services
from surerag.errors import ConfigurationError, InputError, check_kind
from surerag.readers import BaseReader, client_failure, in_thread, secrets_in
from surerag.services import Encoder, normalised_rows

Kind = Literal["query", "document"]


class EmbeddingEncoder(Shareable):
    """Encodes texts with a LlamaIndex embedding model, and L2-normalises the vectors.

    Args:
        embed_model: Any LlamaIndex embedding model; None is ``Settings.embed_model``, read in each call.

    Raises:
        ConfigurationError: If ``embed_model`` is not an embedding model.
    """

    def __init__(self, embed_model: BaseEmbedding | None = None) -> None:
        hint = "pass embed_model=…, or set Settings.embed_model"
        check_kind(
            BaseEmbedding | None, "an embedding model of LlamaIndex", hint=hint, embed_model=embed_model
        )
        self._own_model = embed_model

    @property
    def name(self) -> str:
        """Name of the model."""
        name = self._model.model_name
        return name if name != "unknown" else self._model.class_name()

    @property
    def _model(self) -> BaseEmbedding:
        return Settings.embed_model if self._own_model is None else self._own_model

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]; a vector of zeros is a ServiceError."""
        model = self._model
        try:
            if kind == "query":
                return normalised_rows([model.get_query_embedding(text) for text in texts], len(texts))
            return normalised_rows(model.get_text_embedding_batch(list(texts)), len(texts))
        except Exception as error:
            failure = client_failure(error, self.name, secrets_in(vars(model)))
        raise failure

    async def aencode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Like ``encode``, with the model's own async methods, or in a thread if the model has none."""
        model = self._model
        if not _has_own_async(model, "_aget_text_embedding", BaseEmbedding):
            return await in_thread(self.encode, texts, kind)
        try:
            if kind == "query":
                vectors = [await model.aget_query_embedding(text) for text in texts]
                return normalised_rows(vectors, len(texts))
            return normalised_rows(await model.aget_text_embedding_batch(list(texts)), len(texts))
        except Exception as error:
            failure = client_failure(error, self.name, secrets_in(vars(model)))
        raise failure


def encoder_of(model: BaseEmbedding | Encoder | None) -> Encoder:
    """Return an encoder for a model (None is ``Settings.embed_model``); return an encoder unchanged."""
    return model if isinstance(model, Encoder) else EmbeddingEncoder(model)


def _has_own_async(service: object, method: str, base: type) -> bool:
    """Whether a class has its own async method; names are compared, as LlamaIndex wraps inherited methods."""
    return str(getattr(type(service), method).__qualname__) != f"{base.__name__}.{method}"


class NodeRetriever(Shareable):
    """Retrieves nodes with a LlamaIndex retriever, applies postprocessors, and returns passages.

    Nodes are copied first, so that neither a postprocessor nor a caller changes the nodes in the index.

    Args:
        retriever: Any LlamaIndex retriever, or an index.
        postprocessors: Applied in order, as in LlamaIndex's query engines.
        bundle: The pipeline's own query bundle, which may have other strings to embed; it is used in searches
            for its text.

    Raises:
        ConfigurationError: If an argument is of the wrong kind.
    """

    def __init__(
        self,
        retriever: BaseRetriever | BaseIndex[Any],
        postprocessors: Sequence[BaseNodePostprocessor] = (),
        bundle: QueryBundle | None = None,
    ) -> None:
        self._retriever = retriever_of(retriever)
        self._postprocessors = checked_postprocessors(postprocessors)
        self._bundle = None if bundle is None else bundle_of(bundle)

    @property
    def name(self) -> str:
        """Class name of the retriever, which is part of a calibration's scope."""
        return getattr(self._retriever, "kind", type(self._retriever).__name__)

    def bound_to(self, bundle: QueryBundle) -> NodeRetriever:
        """Return a retriever that searches with this query bundle."""
        return NodeRetriever(self._retriever, self._postprocessors, bundle)

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return passages, best first, ``k`` at most; each has its node as ``origin``."""
        return passages_of(self.nodes(self._query(query)))[:k]

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        return passages_of(await self.anodes(self._query(query)))[:k]

    def nodes(self, bundle: QueryBundle) -> list[NodeWithScore]:
        """Return postprocessed copies of the nodes that the retriever returns."""
        nodes = [copy_of(node) for node in self._retriever.retrieve(replace(bundle))]
        for postprocessor in self._postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=replace(bundle))
        return nodes

    async def anodes(self, bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``nodes``; a retriever without its own async method works in a thread."""
        if _has_own_async(self._retriever, "_aretrieve", BaseRetriever):
            retrieved = await self._retriever.aretrieve(replace(bundle))
        else:
            retrieved = await in_thread(self._retriever.retrieve, replace(bundle))
        nodes = [copy_of(node) for node in retrieved]
        for postprocessor in self._postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, query_bundle=replace(bundle))
        return nodes

    def _query(self, query: str) -> QueryBundle:
        bundle = self._bundle
        return QueryBundle(query) if bundle is None or bundle.query_str != query else bundle


def bound_services(services: Services, bundle: QueryBundle) -> Services:
    """Return the services of one query: the retriever searches with the query's bundle."""
    if not isinstance(services.retriever, NodeRetriever):
        return services
    return replace(services, retriever=services.retriever.bound_to(bundle))


def bundle_of(query: Any) -> QueryBundle:
    """Return a query as a bundle, or raise InputError."""
    if not isinstance(query, str | QueryBundle):
        kind = type(query).__name__
        raise InputError(f"a query is a text, got a {kind}", hint="pass a str or a QueryBundle")
    return QueryBundle(query) if isinstance(query, str) else query


def checked_postprocessors(postprocessors: Any, name: str = "postprocessors") -> list[BaseNodePostprocessor]:
    """Return a list of postprocessors, empty for None; anything else is a ConfigurationError."""
    hint = "pass a list of LlamaIndex's node postprocessors"
    check_kind(list | tuple | None, "a list", hint=hint, **{name: postprocessors})
    for one in postprocessors or ():
        if not isinstance(one, BaseNodePostprocessor):
            raise ConfigurationError(f"{name} holds a {type(one).__name__}", hint=hint)
    return list(postprocessors or ())


def manager_of(callback_manager: CallbackManager | None) -> CallbackManager:
    """Return a callback manager, LlamaIndex's own for None, or raise ConfigurationError."""
    hint = "put handlers into one: CallbackManager([handler])"
    check_kind(CallbackManager | None, "a CallbackManager", hint=hint, callback_manager=callback_manager)
    return callback_manager or Settings.callback_manager


class InnerRetriever(Shareable, BaseRetriever):
    """A retriever around another retriever, which itself reports the retrieved nodes.

    It has no callbacks: they would add events to a trace that the query's trace never resets.
    """

    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return nodes, best first."""
        return self._retrieve(bundle_of(str_or_query_bundle))

    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Like ``retrieve``."""
        return await self._aretrieve(bundle_of(str_or_query_bundle))


class _IndexRetriever(InnerRetriever):
    """Searches an index's current nodes; the index's own retriever searches the nodes at its creation."""

    def __init__(self, index: BaseIndex[Any], options: Mapping[str, Any]) -> None:
        super().__init__()
        self._index, self._options = index, dict(options)
        self.kind = type(index.as_retriever(**options)).__name__

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._index.as_retriever(**self._options).retrieve(query_bundle)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await self._index.as_retriever(**self._options).aretrieve(query_bundle)


def retriever_of(source: BaseRetriever | BaseIndex[Any], k: int | None = None) -> BaseRetriever:
    """Return a retriever unchanged, or a retriever for an index, with ``k`` nodes (None: the default)."""
    if isinstance(source, BaseRetriever):
        return source
    if isinstance(source, BaseIndex):
        return _IndexRetriever(source, {} if k is None else {"similarity_top_k": k})
    raise ConfigurationError(
        f"expected a LlamaIndex retriever or index, got {type(source).__name__}",
        hint="pass index, or index.as_retriever(similarity_top_k=…)",
    )


# How many retrieved passages an engine shows to its LLM: as many as the context window holds

_MARGIN, _LEAST = 256, 32
"""Tokens of the window for the prompt's own words and a chat template, and the minimum for a passage."""


class EmptyIndexError(InputError):
    """Nothing was retrieved to answer from; the engine raises and catches it inside one query."""


class Window:
    """Counts the tokens that a reader's context window still has for the passages of one query."""

    def __init__(self, reader: BaseReader, window: int, question: str, *, max_tokens: int) -> None:
        self._count = reader.count_tokens
        self._left = window - max_tokens - self._count(question) - _MARGIN

    def fit(self, passages: list[Passage], *, stay: bool) -> list[Passage]:
        """Return the first passages that fit, or one cut passage; ``stay``: their tokens count as used."""
        total, fitting = 0, list[Passage]()
        for passage in passages:
            tokens = self._count(passage.text) + 5
            if total + tokens > self._left:
                if not fitting:
                    fitting.append(self._cut(passage, max(self._left - 5, _LEAST)))
                    total = self._left
                if len(passages) > len(fitting):
                    shown = len(fitting)
                    warn("window.passages_dropped", retrieved=len(passages), shown=shown, tokens=self._left)
                break
            total += tokens
            fitting.append(passage)
        self._left -= total if stay else 0
        return fitting

    def _cut(self, passage: Passage, limit: int) -> Passage:
        """Return the beginning of a passage, and of the node that it was made from."""
        text, tokens = passage.text, self._count(passage.text)
        before = tokens
        while tokens > limit:
            text = text[: min(len(text) - 1, len(text) * limit // tokens)].rstrip()
            tokens = self._count(text)
        warn("window.passage_cut", id=passage.id, tokens=before, shown=tokens)
        origin = passage.origin
        if isinstance(origin, NodeWithScore):
            origin = copy_of(origin)
            content = origin.node.get_content(metadata_mode=MetadataMode.NONE)
            # Metadata are before the text, unless the user's template puts them elsewhere.
            origin.node.set_content(content[: max(len(content) - len(passage.text) + len(text), 0)])
            text = origin.node.get_content(metadata_mode=MetadataMode.LLM)
        return replace(passage, text=text, origin=origin)


class QueryRetriever:
    """Retrieves for a query, and fits passages into the LLM's window; ``others`` are the later tiers."""

    def __init__(
        self, retriever: NodeRetriever, window: Window | None, *others: NodeRetriever, required: bool
    ) -> None:
        self._retriever = retriever
        self._window = window
        self._others = others
        self._required = required

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return passages, best first; raise an EmptyIndexError if no tier has any."""
        passages = self._retriever.retrieve(query, k)
        return self._fit(passages, passages or [one.retrieve(query, 1) for one in self._others])

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        passages = await self._retriever.aretrieve(query, k)
        return self._fit(passages, passages or [await one.aretrieve(query, 1) for one in self._others])

    def _fit(self, passages: list[Passage], found: Sequence[Any]) -> list[Passage]:
        if self._required and not any(found):
            raise EmptyIndexError("nothing was retrieved")
        self._required = False
        return passages if self._window is None else self._window.fit(passages, stay=bool(self._others))
