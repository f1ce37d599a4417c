"""A pipeline's own retriever, as a service of surerag."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.base import BaseIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_surerag.nodes import copy_of, passages_of
from surerag.errors import ConfigurationError
from surerag.types import Passage


class NodeRetriever:
    """Retrieves nodes with a LlamaIndex retriever, passes them through postprocessors, gives passages.

    Nodes are copied before anything else happens, so that neither a postprocessor nor a caller changes
    what the index holds.

    Args:
        retriever: Any LlamaIndex retriever.
        postprocessors: Applied in order, as in LlamaIndex's query engines.
        bundle: The query as the pipeline asked it, with embeddings or strings to embed of its own; where
            its text is asked for, it is what the retriever gets.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        postprocessors: Sequence[BaseNodePostprocessor] = (),
        bundle: QueryBundle | None = None,
    ) -> None:
        self._retriever = retriever
        self._postprocessors = tuple(postprocessors)
        self._bundle = bundle

    def __repr__(self) -> str:
        return f"NodeRetriever({type(self._retriever).__name__}, {len(self._postprocessors)} postprocessors)"

    def bound_to(self, bundle: QueryBundle) -> NodeRetriever:
        """Return a retriever that asks for this very query."""
        return NodeRetriever(self._retriever, self._postprocessors, bundle)

    def retrieve(self, query: str, k: int) -> list[Passage]:
        """Return at most ``k`` passages, best first; each has its node as ``origin``."""
        return passages_of(self.nodes(self._query(query)))[:k]

    async def aretrieve(self, query: str, k: int) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        return passages_of(await self.anodes(self._query(query)))[:k]

    def nodes(self, bundle: QueryBundle) -> list[NodeWithScore]:
        """Return postprocessed copies of the nodes that the retriever finds."""
        nodes = [copy_of(node) for node in self._retriever.retrieve(replace(bundle))]
        for postprocessor in self._postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=replace(bundle))
        return nodes

    async def anodes(self, bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``nodes``; a retriever without an async of its own works in a thread."""
        if _has_native_async(self._retriever):
            found = await self._retriever.aretrieve(replace(bundle))
        else:
            found = await asyncio.to_thread(self._retriever.retrieve, replace(bundle))
        nodes = [copy_of(node) for node in found]
        for postprocessor in self._postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, query_bundle=replace(bundle))
        return nodes

    def _query(self, query: str) -> QueryBundle:
        if self._bundle is not None and self._bundle.query_str == query:
            return self._bundle
        return QueryBundle(query)


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
