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
    """Encodes with a LlamaIndex embedding model; rows are L2-normalised here.

    Args:
        embed_model: Any LlamaIndex embedding model; None is ``Settings.embed_model``, looked up at each call.

    Raises:
        ConfigurationError: If it is no embedding model.
    """

    def __init__(self, embed_model: BaseEmbedding | None = None) -> None:
        hint = "pass embed_model=…, or set Settings.embed_model"
        check_kind(
            BaseEmbedding | None, "an embedding model of LlamaIndex", hint=hint, embed_model=embed_model
        )
        self._given = embed_model

    @property
    def name(self) -> str:
        """Name of the model."""
        name = self._model.model_name
        return name if name != "unknown" else self._model.class_name()

    @property
    def _model(self) -> BaseEmbedding:
        return Settings.embed_model if self._given is None else self._given

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]; one of length zero is a ServiceError."""
        model = self._model
        try:
            if kind == "query":
                return normalised_rows([model.get_query_embedding(text) for text in texts], len(texts))
            return normalised_rows(model.get_text_embedding_batch(list(texts)), len(texts))
        except Exception as error:
            failure = client_failure(error, self.name, secrets_in(vars(model)))
        raise failure

    async def aencode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Like ``encode``, with the model's own async methods; in a thread for a model that has none."""
        model = self._model
        if not _is_native(model, "_aget_text_embedding", BaseEmbedding):
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
    """Return an encoder as it is, an embedding model or ``Settings.embed_model`` (for None) as an encoder."""
    return model if isinstance(model, Encoder) else EmbeddingEncoder(model)


def _is_native(service: object, method: str, base: type) -> bool:
    """Whether a class has an async method of its own, by name, for inherited ones are wrapped, and block."""
    return str(getattr(type(service), method).__qualname__) != f"{base.__name__}.{method}"


class NodeRetriever(Shareable):
    """Retrieves nodes with a LlamaIndex retriever, passes them through postprocessors, returns passages.

    Nodes are copied before anything else happens, so that neither a postprocessor nor a caller changes
    what the index holds.

    Args:
        retriever: Any LlamaIndex retriever, or an index.
        postprocessors: Applied in order, as in LlamaIndex's query engines.
        bundle: The query as the pipeline has it, with strings to embed of its own; used where its text is
            searched for.

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
        """Class of the retriever; what a calibration belongs to."""
        return getattr(self._retriever, "kind", type(self._retriever).__name__)

    def bound_to(self, bundle: QueryBundle) -> NodeRetriever:
        """Return a retriever that searches with this very query."""
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
        """Like ``nodes``; a retriever without an async of its own works in a thread."""
        if _is_native(self._retriever, "_aretrieve", BaseRetriever):
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
    """Return the services of one query: a retriever searches with its bundle."""
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
    """Return a list of postprocessors, empty for None; ConfigurationError where ``name`` holds others."""
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
    """A retriever over another one that reports what is retrieved.

    With callbacks of its own it would add to a trace that the query's never resets.
    """

    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return nodes, best first."""
        return self._retrieve(bundle_of(str_or_query_bundle))

    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Like ``retrieve``."""
        return await self._aretrieve(bundle_of(str_or_query_bundle))


class _IndexRetriever(InnerRetriever):
    """Searches an index as it is at each query; its own retriever keeps to the nodes of when it was made."""

    def __init__(self, index: BaseIndex[Any], options: Mapping[str, Any]) -> None:
        super().__init__()
        self._index, self._options = index, dict(options)
        self.kind = type(index.as_retriever(**options)).__name__

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._index.as_retriever(**self._options).retrieve(query_bundle)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await self._index.as_retriever(**self._options).aretrieve(query_bundle)


def retriever_of(source: BaseRetriever | BaseIndex[Any], k: int | None = None) -> BaseRetriever:
    """Return a retriever as it is, or that of an index, with ``k`` nodes (its own number if None)."""
    if isinstance(source, BaseRetriever):
        return source
    if isinstance(source, BaseIndex):
        return _IndexRetriever(source, {} if k is None else {"similarity_top_k": k})
    raise ConfigurationError(
        f"expected a LlamaIndex retriever or index, got {type(source).__name__}",
        hint="pass index, or index.as_retriever(similarity_top_k=…)",
    )


# What an engine shows its LLM of what was retrieved: as much as the window holds

_MARGIN, _LEAST = 256, 32
"""Tokens of the window for the prompt's own words and a chat template; and for a passage, in any case."""


class EmptyIndexError(InputError):
    """There is nothing to answer from; raised and caught inside one query."""


class Window:
    """What is left of a reader's window for the passages of one query, in tokens."""

    def __init__(self, reader: BaseReader, window: int, question: str, *, max_tokens: int) -> None:
        self._count = reader.count_tokens
        self._left = window - max_tokens - self._count(question) - _MARGIN

    def fit(self, passages: list[Passage], *, stay: bool) -> list[Passage]:
        """Leave out the last passages until all fit, or cut one; those that ``stay`` take up room later."""
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
            # Metadata stand before the text, unless a template of the user's puts them elsewhere.
            origin.node.set_content(content[: max(len(content) - len(passage.text) + len(text), 0)])
            text = origin.node.get_content(metadata_mode=MetadataMode.LLM)
        return replace(passage, text=text, origin=origin)


class QueryRetriever:
    """Retrieves for a query and fits passages into the LLM's window; ``others`` retrieve in a later tier."""

    def __init__(
        self, retriever: NodeRetriever, window: Window | None, *others: NodeRetriever, required: bool
    ) -> None:
        self._retriever = retriever
        self._window = window
        self._others = others
        self._required = required

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return passages, best first; an EmptyIndexError where nothing is there to answer from."""
        passages = self._retriever.retrieve(query, k)
        return self._fitting(passages, passages or [one.retrieve(query, 1) for one in self._others])

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        passages = await self._retriever.aretrieve(query, k)
        return self._fitting(passages, passages or [await one.aretrieve(query, 1) for one in self._others])

    def _fitting(self, passages: list[Passage], found: Sequence[Any]) -> list[Passage]:
        if self._required and not any(found):
            raise EmptyIndexError("nothing was retrieved")
        self._required = False
        return passages if self._window is None else self._window.fit(passages, stay=bool(self._others))
