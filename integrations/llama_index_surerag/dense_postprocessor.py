"""DENSE-RAG as a LlamaIndex node postprocessor: a context that the reader understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.node_parser.node_utils import build_nodes_from_splits
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    TextNode,
)
from llama_index.core.settings import Settings
from pydantic import Field, PrivateAttr, SkipValidation

from llama_index_surerag._fields import EmbedModel, Judge, Model
from llama_index_surerag._observing import Reranking, Watch, observed, reranking
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.llm_reader import reader_of
from llama_index_surerag.nodes import DocumentsBehind, DocumentSource, copy_of, passage_of, warn
from llama_index_surerag.prompts import AdaptedPart, for_core
from llama_index_surerag.semantic_node_parser import AdaptiveSemanticNodeParser, TokenCount
from llama_index_surerag.services import (
    Asked,
    NodeRetriever,
    bound_to,
    bundle_of,
    encoder_of,
    retriever_of,
)
from surerag import (
    PROVENANCE_KEY,
    DenseCache,
    DenseRefinerOptions,
    DenseRefinerResult,
    SemanticChunker,
    Services,
    arun,
    run,
)
from surerag import (
    DenseEvaluator as Dense,
)
from surerag import (
    DenseRefiner as ContextRefiner,
)
from surerag.errors import ConfigurationError
from surerag.messages import Passage
from surerag.readers import Reader
from surerag.services import Encoder, Entailer

T = TypeVar("T", bound=Dense | ContextRefiner)


class JudgedPart(AdaptedPart[T]):
    """A part whose reader answers several times, and whose entailer says whether the answers mean the same.

    Attributes:
        llm: A LlamaIndex LLM, or a reader of surerag; ``Settings.llm`` if left out.
        entailer: An entailer of surerag, or an LLM that is asked in words; the ``llm`` if left out.
        dense_cache: What is known already.
    """

    llm: Model = Field(default=None, exclude=True, repr=False)
    entailer: Judge = Field(default=None, exclude=True, repr=False)
    dense_cache: SkipValidation[DenseCache | None] = Field(default=None, exclude=True, repr=False)

    def __init__(
        self,
        llm: LLM | Reader | None = None,
        entailer: Entailer | LLM | Reader | None = None,
        **given: Any,
    ) -> None:
        given["llm"] = Settings.llm if llm is None else llm
        given["entailer"] = entailer
        given["dense_cache"] = DenseCache() if given.get("dense_cache") is None else given["dense_cache"]
        super().__init__(**given)

    @property
    def unparsed(self) -> int:
        """Replies of a judge in words, so far, that named no single label; each counts as no entailment."""
        return self.core.unparsed

    def _judged(self) -> dict[str, Any]:
        """Return reader, entailer, memory and options as the core takes them."""
        return {
            "reader": reader_of(self.llm),
            "entailer": reader_of(self.entailer) if isinstance(self.entailer, LLM) else self.entailer,
            "cache": self.dense_cache,
            **self.chosen(),
            # Selector templates choose by the LLM.
            "prompts": for_core(self.prompts, self.llm),
        }

    def _get_prompts(self) -> PromptDictType:
        prompts = super()._get_prompts()
        if not self.core.judges_in_words:
            # Nobody is asked with it.
            del prompts["entailment"]
        return prompts


class _Behind:
    """Finds the documents behind given nodes, whatever it is asked."""

    def __init__(self, source: DocumentsBehind, nodes: Sequence[NodeWithScore]) -> None:
        self._source, self._nodes = source, nodes

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:  # the protocol's signature
        return self._source.of(self._nodes)

    async def aretrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        return await self._source.aof(self._nodes)


DENSE_KEY = "dense"
"""Where a refined node's metadata tells what was found out; neither LLM nor embedding model is shown it."""


class DenseRefinerPostprocessor(JudgedPart[ContextRefiner], BaseNodePostprocessor, DenseRefinerOptions):  # type: ignore[misc]  # a frozen base; fields that are set are in force
    """Takes the candidates that were retrieved, and hands on those that the LLM understands.

    The first ``top_n`` nodes are the context. Each is rephrased alone; where that changes the answer, nodes
    that only confuse leave, and the candidates most like those that matter come, until answers agree. Let
    the retriever find more nodes than that: they are what a context can be mended with.

    Nodes come back as copies with their own ids, scores, metadata and relationships. ``dense`` in the
    metadata tells ``score`` (DENSE of the context in nats; lower is better, and 0 is understood),
    ``certain``, ``label`` of the node, ``rounds`` and ``stopped``; neither LLM nor embedding model is shown
    it. No node that goes in is changed.

    If a model fails, the best context so far goes through, or the first ``top_n`` nodes, with a warning and
    a ``ProgressEvent``; without a query the first ``top_n`` do. A node without a text (an image) among them
    goes through besides, as it is.

    Given ``documents``, the documents behind the nodes of an uncertain question are cut anew
    (Algorithm 2), and what is handed on are chunks with ids, offsets and ``SOURCE`` of their own, and
    ``provenance`` in their metadata (:class:`surerag.Stretch`; nobody is shown it). They are
    measured without the metadata that a pipeline puts before a node's text.

    Prompts are texts or LlamaIndex templates; ``query_str`` and ``context_str`` may stand for ``question``
    and ``passages``.

    Attributes:
        llm: A LlamaIndex LLM, or a reader of surerag; ``Settings.llm`` if left out. Text is enough: for an
            OpenAI-compatible server without log-probabilities, pass ``reader_from_llm(llm, logprobs=False)``.
        embed_model: An embedding model, or an encoder of surerag, for nodes without embeddings and for
            documents that are cut anew; ``Settings.embed_model`` if left out.
        entailer: Judges whether answers mean the same: an entailer of surerag, such as
            ``NLIEntailer.from_pretrained()``, or an LLM that is asked in words; the ``llm`` if left out.
        retriever: Where to ask for ``more`` candidates when none is left: a LlamaIndex retriever (it finds
            as many as it was built for), or an index.
        documents: The documents behind the nodes: a docstore that holds them by ``ref_doc_id`` (such as
            that of an ``IngestionPipeline``), documents, or a function from nodes to their documents.
        chunker: How to cut them: an AdaptiveSemanticNodeParser, or an SemanticChunker.
        dense_cache: What is known already; give one to several components, and a chunk is rephrased once
            for all.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM is none.
        PromptError: If a prompt is unknown, its slots do not fit, or nobody is asked with it.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> from surerag import FakeReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = FakeReader(lambda prompt: "It rained." if prompt.startswith("Rewrite") else "Velm")
        >>> refiner = DenseRefinerPostprocessor(reader, entailer=ExactEntailer(), top_n=1)
        >>> nodes = [NodeWithScore(node=TextNode(text=text)) for text in ("Ada was born in Velm.", "Bo.")]
        >>> [node] = refiner.postprocess_nodes(nodes, query_str="Where was Ada born?")
        >>> node.text, node.metadata["dense"]["score"], node.metadata["dense"]["label"]
        ('Ada was born in Velm.', 0.0, 'certain')
    """

    embed_model: EmbedModel = Field(default=None, exclude=True, repr=False)
    retriever: SkipValidation[BaseRetriever | BaseIndex[Any] | None] = Field(
        default=None, exclude=True, repr=False
    )
    documents: SkipValidation[DocumentSource | None] = Field(default=None, exclude=True, repr=False)
    chunker: SkipValidation[AdaptiveSemanticNodeParser | SemanticChunker | None] = Field(
        default=None, exclude=True, repr=False
    )

    _behind: DocumentsBehind | None = PrivateAttr(default=None)

    def __init__(
        self,
        llm: LLM | Reader | None = None,
        embed_model: BaseEmbedding | Encoder | None = None,
        entailer: Entailer | LLM | Reader | None = None,
        **given: Any,
    ) -> None:
        super().__init__(llm=llm, embed_model=embed_model, entailer=entailer, **given)

    @classmethod
    def class_name(cls) -> str:
        """Name in serialised settings."""
        return "DenseRefinerPostprocessor"

    def refine(self, nodes: Sequence[NodeWithScore], query: str | QueryBundle) -> DenseRefinerResult:
        """Return the whole result for one query: every round, its labels, and what it cost."""
        bundle = bundle_of(query)
        written = [node for node in nodes if has_text(node)]
        program = self.core.program(
            bundle.query_str, candidates_of(written), "ask" if self._behind and written else ()
        )
        services = self._services(bundle, written)
        watch = Watch(self.callback_manager)
        return run(observed(program, services, watch), services, on_event=dispatch)

    async def arefine(self, nodes: Sequence[NodeWithScore], query: str | QueryBundle) -> DenseRefinerResult:
        """Like ``refine``, without blocking the event loop."""
        bundle = bundle_of(query)
        written = [node for node in nodes if has_text(node)]
        program = self.core.program(
            bundle.query_str, candidates_of(written), "ask" if self._behind and written else ()
        )
        services = self._services(bundle, written)
        watch = Watch(self.callback_manager)
        return await arun(observed(program, services, watch), services, on_event=dispatch)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or query_bundle is None or not query_bundle.query_str.strip():
            return self._unrefined(nodes)
        with reranking(self.callback_manager, self._reranking(nodes, query_bundle)) as done:
            found = refined_nodes(self.refine(nodes, query_bundle), nodes, self.top_n)
            done(found)
        return found

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or query_bundle is None or not query_bundle.query_str.strip():
            return self._unrefined(nodes)
        with reranking(self.callback_manager, self._reranking(nodes, query_bundle)) as done:
            found = refined_nodes(await self.arefine(nodes, query_bundle), nodes, self.top_n)
            done(found)
        return found

    def _reranking(self, nodes: Sequence[NodeWithScore], bundle: QueryBundle) -> Reranking:
        return Reranking(nodes, bundle, self.top_n, self.core.reader.name)

    def _unrefined(self, nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        if nodes:
            warn("dense_refiner.no_query", nodes=len(nodes))
        return [copy_of(node) for node in nodes[: self.top_n]]

    def _services(self, bundle: QueryBundle, nodes: Sequence[NodeWithScore]) -> Services:
        """Return the services, the pipeline's retriever being asked for this very query.

        The documents behind the nodes are asked for where the question turns out to be uncertain.
        """
        services = self.core.services
        asked = Asked(bundle, getattr(services.retriever, "embed_model", None))
        behind = None if self._behind is None else _Behind(self._behind, nodes)
        return replace(services, retriever=bound_to(services.retriever, asked), documents=behind)

    def _build(self) -> None:
        if self.chunker is not None and self.documents is None:
            raise ConfigurationError("a chunker has nothing to cut", hint="pass documents=… besides")
        super()._build()
        self._behind = None if self.documents is None else DocumentsBehind(self.documents)

    def _core(self) -> ContextRefiner:
        chunker = self._cutting()
        return ContextRefiner(
            **self._judged(),
            encoder=None
            if chunker is not None and self.embed_model is None
            else encoder_of(self.embed_model),
            retriever=None
            if self.retriever is None
            else NodeRetriever(retriever_of(self.retriever, self.more)),
            chunker=chunker,
        )

    def _cutting(self) -> SemanticChunker | None:
        if self.documents is None:
            return None
        if isinstance(self.chunker, AdaptiveSemanticNodeParser):
            return self.chunker.core
        return self.chunker or SemanticChunker(encoder_of(self.embed_model), TokenCount(Settings.tokenizer))


def candidates_of(nodes: Sequence[NodeWithScore]) -> list[Passage]:
    """Return nodes as passages, their text as an LLM is shown it, with their vectors."""
    return [
        replace(
            passage_of(node),
            embedding=None if node.node.embedding is None else tuple(node.node.embedding),
        )
        for node in nodes
    ]


def has_text(node: NodeWithScore) -> bool:
    """Whether a node has a text of its own; an image has none."""
    return bool(node.node.get_content(metadata_mode=MetadataMode.NONE).strip())


def refined_nodes(
    result: DenseRefinerResult, given: Sequence[NodeWithScore], top_n: int
) -> list[NodeWithScore]:
    """Return the context that a refinement found, as copies of nodes; the first ones where it found none.

    Nodes without a text, among the first ones, come last, as they are: nothing was found out about them.
    """
    if result.best is None:
        return [copy_of(node) for node in given[:top_n]]
    facts = {
        "score": result.best.measured.score,
        "certain": result.best.measured.certain,
        "rounds": len(result.rounds),
        "stopped": result.stopped,
    }
    found = [
        _told(_node_of(passage), {**facts, "label": label})
        for passage, label in zip(result.passages, result.best.measured.labels, strict=True)
    ]
    return found + [copy_of(node) for node in given[:top_n] if not has_text(node)]


def _told(node: NodeWithScore, facts: dict[str, Any]) -> NodeWithScore:
    inner = node.node
    inner.metadata[DENSE_KEY] = facts
    for hidden in (inner.excluded_llm_metadata_keys, inner.excluded_embed_metadata_keys):
        if DENSE_KEY not in hidden:
            hidden.append(DENSE_KEY)
    return node


def _node_of(passage: Passage) -> NodeWithScore:
    origin = passage.origin
    if isinstance(origin, NodeWithScore):
        return copy_of(origin)
    return NodeWithScore(node=_cut(origin, passage), score=passage.score)


def _cut(document: BaseNode, passage: Passage) -> TextNode:
    """Return a chunk as a node, as LlamaIndex's own parsers make it, with its offsets in the document."""
    [node] = build_nodes_from_splits([passage.text], document, id_func=lambda *_: passage.id)
    node.embedding = None
    node.metadata = {**document.metadata, PROVENANCE_KEY: passage.metadata[PROVENANCE_KEY]}
    node.excluded_llm_metadata_keys = [*document.excluded_llm_metadata_keys, PROVENANCE_KEY]
    node.excluded_embed_metadata_keys = [*document.excluded_embed_metadata_keys, PROVENANCE_KEY]
    node.start_char_idx, node.end_char_idx = passage.metadata["start"], passage.metadata["end"]
    if document.source_node is not None:
        node.relationships[NodeRelationship.SOURCE] = document.source_node
    return node
