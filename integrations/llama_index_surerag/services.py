"""Adapters that let surerag use a pipeline's own embedding models and retrievers."""

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
from surerag.errors import ConfigurationError, InputError, check_kind, kind_of
from surerag.readers import BaseReader, client_failure, in_thread, secrets_in
from surerag.services import Encoder, normalised_rows

Kind = Literal["query", "document"]


class EmbeddingEncoder(Shareable):
    """Encodes texts with a LlamaIndex embedding model, and L2-normalises the vectors.

    Args:
        embed_model: Any LlamaIndex embedding model; with None, each call uses the current
            ``Settings.embed_model``.

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
        """Name of the embedding model."""
        name = self._model.model_name
        return name if name != "unknown" else self._model.class_name()

    @property
    def _model(self) -> BaseEmbedding:
        return Settings.embed_model if self._own_model is None else self._own_model

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions] of queries or documents, as ``kind`` says.

        Raises:
            ServiceError: If the model fails, or returns a vector of zeros.
        """
        model = self._model
        try:
            if kind == "query":
                return normalised_rows([model.get_query_embedding(text) for text in texts], len(texts))
            return normalised_rows(model.get_text_embedding_batch(list(texts)), len(texts))
        except Exception as error:
            failure = client_failure(error, self.name, secrets_in(vars(model)))
        raise failure

    async def aencode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Encode texts as ``encode`` does, with the model's async methods or, if it has none, in a thread."""
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
    """Return ``model`` if it is an encoder; else return an encoder that calls the embedding model.

    If ``model`` is None, the encoder calls ``Settings.embed_model``.
    """
    return model if isinstance(model, Encoder) else EmbeddingEncoder(model)


def _has_own_async(service: object, method: str, base: type) -> bool:
    """Whether an object's class overrides an async method of its base class.

    Qualified names are compared, because LlamaIndex wraps inherited methods in new functions.
    """
    return str(getattr(type(service), method).__qualname__) != f"{base.__name__}.{method}"


class NodeRetriever(Shareable):
    """Retrieves nodes with a LlamaIndex retriever, applies postprocessors, and returns passages.

    Nodes are copied before postprocessing, so that the nodes in the index never change.

    Args:
        retriever: Any LlamaIndex retriever, or an index.
        postprocessors: Applied in order, as in LlamaIndex's query engines.
        bundle: LlamaIndex's object for a query, with its text and, for example, a vector or other strings to
            embed. Only a search for the bundle's text uses the bundle.

    Raises:
        ConfigurationError: If an argument has a wrong type.
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
        """Class name of LlamaIndex's retriever; a calibrated threshold is valid only for this class."""
        return getattr(self._retriever, "kind", type(self._retriever).__name__)

    def bound_to(self, bundle: QueryBundle) -> NodeRetriever:
        """Return a copy of the retriever for one query.

        If the query of the copy is the text of ``bundle``, the copy searches with the whole ``bundle``.
        """
        return NodeRetriever(self._retriever, self._postprocessors, bundle)

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return at most ``k`` passages, best first, or all passages if ``k`` is None.

        The ``origin`` of a passage is its node.
        """
        return passages_of(self.nodes(self._query(query)))[:k]

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Retrieve passages as ``retrieve`` does, without blocking the event loop."""
        return passages_of(await self.anodes(self._query(query)))[:k]

    def nodes(self, bundle: QueryBundle) -> list[NodeWithScore]:
        """Return postprocessed copies of the nodes that the retriever returns."""
        nodes = [copy_of(node) for node in self._retriever.retrieve(replace(bundle))]
        for postprocessor in self._postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=replace(bundle))
        return nodes

    async def anodes(self, bundle: QueryBundle) -> list[NodeWithScore]:
        """Retrieve as ``nodes`` does, in a thread if the retriever has no async method of its own."""
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
    """Return the services for one query.

    If the retriever is a :class:`NodeRetriever`, it is replaced by a copy that searches with ``bundle``.
    """
    if not isinstance(services.retriever, NodeRetriever):
        return services
    return replace(services, retriever=services.retriever.bound_to(bundle))


def bundle_of(query: Any) -> QueryBundle:
    """Return a query as a ``QueryBundle``; raise an InputError if the query has another type."""
    if not isinstance(query, str | QueryBundle):
        raise InputError(f"a query is a text, got {kind_of(query)}", hint="pass a str or a QueryBundle")
    return QueryBundle(query) if isinstance(query, str) else query


def checked_postprocessors(postprocessors: Any, name: str = "postprocessors") -> list[BaseNodePostprocessor]:
    """Return postprocessors as a list (empty for None); raise a ConfigurationError for other types.

    ``name`` is the name of the user's argument, for the error.
    """
    hint = "pass a list of LlamaIndex's node postprocessors"
    check_kind(list | tuple | None, "a list", hint=hint, **{name: postprocessors})
    for item in postprocessors or ():
        if not isinstance(item, BaseNodePostprocessor):
            raise ConfigurationError(f"{name} holds {kind_of(item)}", hint=hint)
    return list(postprocessors or ())


def manager_of(callback_manager: CallbackManager | None) -> CallbackManager:
    """Return ``callback_manager`` or, if it is None, ``Settings.callback_manager``.

    Raises:
        ConfigurationError: If ``callback_manager`` has another type.
    """
    hint = "pass a handler inside a manager: CallbackManager([handler])"
    check_kind(CallbackManager | None, "a CallbackManager", hint=hint, callback_manager=callback_manager)
    return callback_manager or Settings.callback_manager


class InnerRetriever(Shareable, BaseRetriever):
    """Base class of retrievers that call another retriever.

    Only the called retriever reports the retrieved nodes to callbacks. If the calling retriever also reported
    events, LlamaIndex would add these events to a trace that is never emptied.
    """

    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the nodes that the retriever finds for a query, best first."""
        return self._retrieve(bundle_of(str_or_query_bundle))

    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Retrieve as ``retrieve`` does, without blocking the event loop."""
        return await self._aretrieve(bundle_of(str_or_query_bundle))


class _IndexRetriever(InnerRetriever):
    """Searches the current nodes of an index with a new LlamaIndex retriever for each query.

    A LlamaIndex retriever finds no nodes that were added to the index after the retriever was made.
    """

    def __init__(self, index: BaseIndex[Any], options: Mapping[str, Any]) -> None:
        super().__init__()
        self._index, self._options = index, dict(options)
        self.kind = type(index.as_retriever(**options)).__name__

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._index.as_retriever(**self._options).retrieve(query_bundle)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await self._index.as_retriever(**self._options).aretrieve(query_bundle)


def retriever_of(source: BaseRetriever | BaseIndex[Any], k: int | None = None) -> BaseRetriever:
    """Return ``source`` if it is a retriever; if it is an index, return a new retriever of the index.

    The new retriever returns ``k`` nodes, or LlamaIndex's default number if ``k`` is None.
    """
    if isinstance(source, BaseRetriever):
        return source
    if isinstance(source, BaseIndex):
        return _IndexRetriever(source, {} if k is None else {"similarity_top_k": k})
    raise ConfigurationError(
        f"expected a LlamaIndex retriever or index, got {type(source).__name__}",
        hint="pass index, or index.as_retriever(similarity_top_k=…)",
    )


# An engine puts only as many retrieved passages into a prompt as fit into the LLM's context window.

_MARGIN = 256
"""Number of tokens reserved for the prompt's own words and the chat template."""
_LEAST = 32
"""Minimum number of tokens of the first passage that are kept, even if they do not fit."""


class EmptyIndexError(InputError):
    """No retriever found a passage for a query. An engine catches this error and returns an empty answer."""


class Window:
    """Counts how many tokens are left in an LLM's context window for the passages of one query.

    Args:
        reader: The LLM, which counts tokens.
        window: Size of the context window, in tokens.
        question: The query.
        max_tokens: Maximum length of the answer, in tokens; the answer also needs a part of the window.
    """

    def __init__(self, reader: BaseReader, window: int, question: str, *, max_tokens: int) -> None:
        self._count = reader.count_tokens
        self._left = window - max_tokens - self._count(question) - _MARGIN

    def fit(self, passages: list[Passage], *, stay: bool) -> list[Passage]:
        """Return the first passages, as many as fit into the free part of the LLM's context window.

        If not even the first passage fits, its beginning is returned. ``stay`` tells whether the passages
        stay in all later prompts of the query, so that their tokens are no longer free.
        """
        total, fitting = 0, list[Passage]()
        for passage in passages:
            tokens = self._count(passage.text) + 5
            if total + tokens > self._left:
                if not fitting:
                    fitting.append(self._cut(passage, max(self._left - 5, _LEAST)))
                    total = self._left
                if len(passages) > len(fitting):
                    n_fitting = len(fitting)
                    warn(
                        "window.passages_dropped", retrieved=len(passages), shown=n_fitting, tokens=self._left
                    )
                break
            total += tokens
            fitting.append(passage)
        self._left -= total if stay else 0
        return fitting

    def _cut(self, passage: Passage, limit: int) -> Passage:
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
            # A passage's text is the node's text after the node's metadata, unless the template differs.
            origin.node.set_content(content[: max(len(content) - len(passage.text) + len(text), 0)])
            text = origin.node.get_content(metadata_mode=MetadataMode.LLM)
        return replace(passage, text=text, origin=origin)


class QueryRetriever:
    """Retrieves passages for one query, as many as fit into the LLM's context window.

    Args:
        retriever: Retrieves the passages.
        window: The free tokens of the context window; None for no limit.
        others: Retrievers that the method calls later for the same query. If ``retriever`` finds nothing,
            they are called at once, to find out whether anything can be found.
        required: Whether to raise an EmptyIndexError if no retriever finds a passage.
    """

    def __init__(
        self, retriever: NodeRetriever, window: Window | None, *others: NodeRetriever, required: bool
    ) -> None:
        self._retriever = retriever
        self._window = window
        self._others = others
        self._required = required

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return at most ``k`` passages, best first.

        Raises:
            EmptyIndexError: If ``required`` is true, and neither ``retriever`` nor a retriever of ``others``
                finds a passage.
        """
        passages = self._retriever.retrieve(query, k)
        return self._fit(passages, passages or [other.retrieve(query, 1) for other in self._others])

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Retrieve passages as ``retrieve`` does, without blocking the event loop."""
        passages = await self._retriever.aretrieve(query, k)
        return self._fit(passages, passages or [await other.aretrieve(query, 1) for other in self._others])

    def _fit(self, passages: list[Passage], found: Sequence[Any]) -> list[Passage]:
        if self._required and not any(found):
            raise EmptyIndexError("nothing was retrieved")
        self._required = False
        return passages if self._window is None else self._window.fit(passages, stay=bool(self._others))
