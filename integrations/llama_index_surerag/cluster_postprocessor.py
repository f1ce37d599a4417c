"""EDC²-RAG as a LlamaIndex node postprocessor: similar nodes together, each cluster compressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from pydantic import PrivateAttr, model_validator

from llama_index_surerag.events import dispatch, dispatcher, reranking, warn
from llama_index_surerag.llm import reader_of
from llama_index_surerag.nodes import copy_of, merged_nodes, passages_of, shown_text
from llama_index_surerag.prompts import WithPrompts
from llama_index_surerag.services import bundle_of, encoder_of
from surerag import ClusterCompressor, EDC2Options, EDC2Result
from surerag.component import Service
from surerag.drivers import arun, run
from surerag.effects import Program
from surerag.readers import Reader
from surerag.services import Encoder, Entailer


class ClusterCompressorPostprocessor(WithPrompts, EDC2Options, BaseNodePostprocessor):
    """Puts similar nodes together and compresses each cluster for the query, in one call a cluster.

    A compressed node has its best source's id, score, relationships and metadata; ``compressed_from`` in its
    metadata lists all sources with their ids, scores and metadata, ``compressed_sentences`` which source
    supports each sentence. An LLM is shown those of the metadata that all sources share. Nodes that are not
    compressed come back as copies; nodes without text stay, at the end. No node that goes in is changed.

    Clusters for which the LLM fails stay as they are, with a warning and a ``ProgressEvent``; without a query
    all nodes do. Prompts are texts or LlamaIndex templates.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> from surerag import FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = FakeReader(["Ada was born in Velm."])
        >>> compressor = ClusterCompressorPostprocessor(reader, HashingEncoder(), min_tokens=0)
        >>> texts = ["Ada, a painter, was born in Velm.", "Bo came later."]
        >>> nodes = [NodeWithScore(node=TextNode(text=text, id_=text[:2])) for text in texts]
        >>> [node.text for node in compressor.postprocess_nodes(nodes, query_str="Where was Ada born?")]
        ['Ada was born in Velm.']
    """

    llm: Service[LLM | Reader | None] = None
    """A LlamaIndex LLM, of which only text is needed, or a reader of surerag; ``Settings.llm`` if None."""

    embed_model: Service[BaseEmbedding | Encoder | None] = None
    """Embeds nodes without embeddings, and the query; ``Settings.embed_model`` if None."""

    entailer: Service[Entailer | None] = None
    """For ``guard="entailment"``."""

    tokenizer: Service[Callable[[str], Sequence[Any]] | None] = None
    """Counts tokens: from a text to a sequence; that of the model, or ``Settings.tokenizer``, if None."""

    _core: ClusterCompressor = PrivateAttr()

    def __init__(
        self,
        llm: LLM | Reader | None = None,
        embed_model: BaseEmbedding | Encoder | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**{"llm": llm, "embed_model": embed_model, **options})

    @classmethod
    def class_name(cls) -> str:
        """Name in what is serialised."""
        return "ClusterCompressorPostprocessor"

    @model_validator(mode="after")
    def _connect(self) -> Self:
        tokenizer = self.tokenizer
        self._core = ClusterCompressor(
            reader_of(self.llm),
            encoder_of(self.embed_model),
            self.entailer,
            count_tokens=None if tokenizer is None else lambda text: len(tokenizer(text)),
            show=shown_text,
            **self.options(),
        )
        return self

    @property
    def core(self) -> ClusterCompressor:
        """The method with its options and services."""
        return self._core

    def compress(self, nodes: Sequence[NodeWithScore], query: QueryType) -> EDC2Result:
        """Return the whole result for one query: what became of each cluster, tokens and usage."""
        return run(self._program(nodes, bundle_of(query)), self._core.services, on_event=dispatch)

    async def acompress(self, nodes: Sequence[NodeWithScore], query: QueryType) -> EDC2Result:
        """Like ``compress``, without blocking the event loop."""
        return await arun(self._program(nodes, bundle_of(query)), self._core.services, on_event=dispatch)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or query_bundle is None or not query_bundle.query_str.strip():
            return _unchanged(nodes)
        name = self._core.services.reader.name  # type: ignore[union-attr]  # required by the core
        with reranking(self.callback_manager, nodes, query_bundle, name, len(nodes)) as done:
            compressed = merged_nodes(self.compress(nodes, query_bundle).passages, nodes)
            done(compressed)
        return compressed

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or query_bundle is None or not query_bundle.query_str.strip():
            return _unchanged(nodes)
        name = self._core.services.reader.name  # type: ignore[union-attr]  # required by the core
        with reranking(self.callback_manager, nodes, query_bundle, name, len(nodes)) as done:
            compressed = merged_nodes((await self.acompress(nodes, query_bundle)).passages, nodes)
            done(compressed)
        return compressed

    def _program(self, nodes: Sequence[NodeWithScore], bundle: QueryBundle) -> Program[EDC2Result]:
        passages = passages_of(nodes, vectors=True)
        # The query's own vector and the nodes' are of the index's model; one alone is of no use.
        carried = all(passage.embedding is not None for passage in passages)
        return self._core.program(bundle.query_str, passages, bundle.embedding if carried else None)


def _unchanged(nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    if nodes:
        warn("edc2.no_query", nodes=len(nodes))
    return [copy_of(node) for node in nodes]
