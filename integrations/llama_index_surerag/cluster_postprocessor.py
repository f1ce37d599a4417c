"""EDC²-RAG as a LlamaIndex node postprocessor: similar nodes together, each cluster compressed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, QueryType, TextNode
from llama_index.core.settings import Settings
from pydantic import SkipValidation

from llama_index_surerag._fields import EmbedModel, Model
from llama_index_surerag._observing import Reranking, Watch, observed, reranking
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.llm_reader import reader_of
from llama_index_surerag.nodes import copy_of, passage_of, warn
from llama_index_surerag.prompts import AdaptedPart, for_core
from llama_index_surerag.semantic_node_parser import TokenCount
from llama_index_surerag.services import bundle_of, encoder_of
from surerag import (
    PROVENANCE_KEY,
    SOURCES_KEY,
    UNSUPPORTED_KEY,
    ClusterCompressor,
    EDC2Options,
    EDC2Result,
    arun,
    run,
)
from surerag.effects import Program
from surerag.messages import Passage
from surerag.readers import BaseReader, Reader
from surerag.services import Encoder, Entailer


class ClusterCompressorPostprocessor(  # type: ignore[misc]  # a frozen base; fields that are set are in force
    AdaptedPart[ClusterCompressor], BaseNodePostprocessor, EDC2Options
):
    """Puts similar nodes together and compresses each cluster for the query, in one call a cluster.

    A compressed node has its best source's id, score, relationships and metadata; ``compressed_from`` in its
    metadata lists all sources with their ids, scores and metadata, and ``provenance`` tells of each of its
    characters which source has it, and where in that node's text (:class:`surerag.Stretch`). What an LLM is
    shown of the metadata is what all sources share. Nodes that are not compressed come back as copies. No
    node that goes in is changed.

    Clusters for which the LLM fails go through as they are, with a warning and a ``ProgressEvent``; without
    a query all nodes do.

    Args:
        llm: A LlamaIndex LLM (its log-probabilities are not needed), or a reader of surerag; ``Settings.llm``
            if left out.
        embed_model: An embedding model, or an encoder of surerag, for nodes that carry no embeddings and for
            the query; ``Settings.embed_model`` if left out.
        entailer: For ``guard="entailment"``.
        tokenizer: Counts tokens, for ``budget`` and reports: from a text to a sequence. By default that of
            the model, where it is in this process, else ``Settings.tokenizer``.
        **options: Listed below. Prompts are texts or LlamaIndex templates; ``query_str`` and ``context_str``
            may stand for ``question`` (or ``statement``) and ``passages``.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = FakeReader(["Ada was born in Velm."])
        >>> compressor = ClusterCompressorPostprocessor(reader, HashingEncoder(), pass_below=0)
        >>> texts = ["Ada, a painter, was born in Velm.", "Bo came later."]
        >>> nodes = [NodeWithScore(node=TextNode(text=text, id_=text[:2])) for text in texts]
        >>> [node.text for node in compressor.postprocess_nodes(nodes, query_str="Where was Ada born?")]
        ['Ada was born in Velm.']
    """

    llm: Model = Field(default=None, exclude=True, repr=False)
    embed_model: EmbedModel = Field(default=None, exclude=True, repr=False)
    entailer: SkipValidation[Entailer | None] = Field(default=None, exclude=True, repr=False)
    tokenizer: Callable[[str], Sequence[Any]] | None = Field(default=None, exclude=True, repr=False)

    def __init__(
        self,
        llm: LLM | Reader | None = None,
        embed_model: BaseEmbedding | Encoder | None = None,
        entailer: Entailer | None = None,
        tokenizer: Callable[[str], Sequence[Any]] | None = None,
        **options: Any,
    ) -> None:
        services: dict[str, Any] = {
            "llm": Settings.llm if llm is None else llm,
            "embed_model": embed_model,
            "entailer": entailer,
            "tokenizer": tokenizer,
        }
        super().__init__(**services, **options)

    @classmethod
    def class_name(cls) -> str:
        """Name in what is serialised."""
        return "ClusterCompressorPostprocessor"

    def compress(self, nodes: Sequence[NodeWithScore], query: QueryType) -> EDC2Result:
        """Return the whole result for one query: what became of each cluster, calls, tokens and cost."""
        return run(self._observed(nodes, query), self.core.services, on_event=dispatch)

    async def acompress(self, nodes: Sequence[NodeWithScore], query: QueryType) -> EDC2Result:
        """Like ``compress``, without blocking the event loop."""
        return await arun(self._observed(nodes, query), self.core.services, on_event=dispatch)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or _is_blank(query_bundle):
            return _unchanged(nodes)
        bundle = cast("QueryBundle", query_bundle)
        with reranking(self.callback_manager, self._reranking(nodes, bundle)) as done:
            found = [_node_of(passage) for passage in self.compress(nodes, bundle).passages]
            done(found)
        return found

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or _is_blank(query_bundle):
            return _unchanged(nodes)
        bundle = cast("QueryBundle", query_bundle)
        with reranking(self.callback_manager, self._reranking(nodes, bundle)) as done:
            found = [_node_of(passage) for passage in (await self.acompress(nodes, bundle)).passages]
            done(found)
        return found

    def _observed(self, nodes: Sequence[NodeWithScore], query: QueryType) -> Program[EDC2Result]:
        bundle, passages = bundle_of(query), passages_with_vectors(nodes)
        program = self.core.program(bundle.query_str, passages, vector_of(bundle, passages))
        return observed(program, self.core.services, Watch(self.callback_manager))

    def _reranking(self, nodes: Sequence[NodeWithScore], bundle: QueryBundle) -> Reranking:
        return Reranking(nodes, bundle, len(nodes), self.core.reader.name)

    def _core(self) -> ClusterCompressor:
        options = {**self.chosen(), "prompts": for_core(self.prompts, self.llm)}
        return compressor_over(self.llm, self.embed_model, self.entailer, self.tokenizer, options)


def compressor_over(
    llm: LLM | Reader | None,
    embed_model: BaseEmbedding | Encoder | None,
    entailer: Entailer | None,
    tokenizer: Callable[[str], Sequence[Any]] | None,
    options: Mapping[str, Any],
) -> ClusterCompressor:
    """Return the method over a pipeline's models, which counts nodes as the pipeline shows them."""
    reader = reader_of(llm)
    return ClusterCompressor(
        reader,
        encoder_of(embed_model),
        entailer,
        count_tokens=_count(llm, reader, tokenizer),
        show=_shown,
        own=_own,
        **options,
    )


def _count(
    llm: LLM | Reader | None, reader: Reader, tokenizer: Callable[[str], Sequence[Any]] | None
) -> Callable[[str], int] | None:
    """Return how to count: as told, as the model does where it can, else as LlamaIndex itself does."""
    if tokenizer is not None:
        return TokenCount(tokenizer)
    knows = isinstance(reader, BaseReader) and type(reader).count_tokens is not BaseReader.count_tokens
    return None if knows or isinstance(llm, Reader) else _as_llama_index


def _as_llama_index(text: str) -> int:
    return len(Settings.tokenizer(text))


def _is_blank(bundle: QueryBundle | None) -> bool:
    return bundle is None or not bundle.query_str.strip()


def _unchanged(nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    if nodes:
        warn("cluster_compression.no_query", nodes=len(nodes))
    return [copy_of(node) for node in nodes]


def passages_with_vectors(nodes: Sequence[NodeWithScore]) -> list[Passage]:
    """Return nodes as passages with their vectors; one without a text of its own (an image) has none."""
    found = []
    for node in nodes:
        passage = passage_of(node)
        if not node.node.get_content(metadata_mode=MetadataMode.NONE).strip():
            passage = replace(passage, text="")
        elif node.node.embedding is not None:
            passage = replace(passage, embedding=tuple(node.node.embedding))
        found.append(passage)
    return found


def vector_of(bundle: QueryBundle, passages: Sequence[Passage]) -> list[float] | None:
    """Return the query's own vector, if the nodes bring theirs: both are of the index's model."""
    carried = all(passage.embedding is not None or not passage.text for passage in passages)
    return bundle.embedding if carried else None


def _node_of(passage: Passage) -> NodeWithScore:
    """Return a copy of the node that a passage was, or the node of a compression."""
    origin: NodeWithScore = passage.origin
    best = origin.node
    # A compression may say what its best source says, and is one all the same: it names its sources anew.
    sources = passage.metadata.get(SOURCES_KEY)
    if sources is None or sources is best.metadata.get(SOURCES_KEY):
        return copy_of(origin)
    differing = [
        key
        for key, value in best.metadata.items()
        if any(source["metadata"].get(key) != value for source in sources)
    ]
    hidden = [SOURCES_KEY, PROVENANCE_KEY, UNSUPPORTED_KEY, *differing]
    # A copy keeps what it is (an image, a reference to another index) and how it is shown.
    compressed = copy_of(NodeWithScore(node=best, score=passage.score))
    compressed.node = compressed.node.model_copy(update={"embedding": None})
    compressed.node.set_content(passage.text)
    compressed.node.metadata = dict(passage.metadata)
    compressed.node.excluded_llm_metadata_keys += hidden
    compressed.node.excluded_embed_metadata_keys += hidden
    if isinstance(compressed.node, TextNode):
        # It stands nowhere in its document.
        compressed.node.start_char_idx = compressed.node.end_char_idx = None
    return compressed


def _shown(passage: Passage) -> str:
    """Return what a pipeline shows of a passage to its LLM; of an image, no text."""
    return _node_of(passage).node.get_content(metadata_mode=MetadataMode.LLM) if passage.text else ""


def _own(passage: Passage) -> str:
    """Return the text of the node that a passage was, without the metadata that a pipeline puts before it."""
    origin: NodeWithScore = passage.origin
    return origin.node.get_content(metadata_mode=MetadataMode.NONE) if passage.text else ""
