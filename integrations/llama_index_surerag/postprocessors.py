"""EDC²-RAG and DENSE-RAG as LlamaIndex node postprocessors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CBEventType, EventPayload
from llama_index.core.indices.base import BaseIndex
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings
from llama_index.core.storage.docstore import BaseDocumentStore
from pydantic import model_validator

from llama_index_surerag.events import dispatch, dispatcher, warn
from llama_index_surerag.llm import Judge, judge_of, reader_of
from llama_index_surerag.nodes import copy_of, has_media, has_text, nodes_of, passages_of, text_for_llm
from llama_index_surerag.pickles import WithoutKeys
from llama_index_surerag.prompts import WithPrompts
from llama_index_surerag.services import NodeRetriever, bound_services, bundle_of, encoder_of, retriever_of
from surerag import (
    ClusterCompressor,
    DenseRefiner,
    DenseRefinerOptions,
    DenseRefinerResult,
    EDC2Options,
    EDC2Result,
    Passage,
    SemanticChunker,
)
from surerag.component import Function, Service
from surerag.drivers import arun, maybe_await, run, run_blocking
from surerag.effects import Program
from surerag.errors import ConfigurationError
from surerag.readers import Reader, in_thread
from surerag.services import Encoder, Entailer

R = TypeVar("R")


class MethodPostprocessor(WithoutKeys, WithPrompts, BaseNodePostprocessor, Generic[R]):
    """Base class of postprocessors that select or compress nodes; the input nodes are not changed."""

    METHOD: ClassVar[str]
    """First part of the names of the method's events."""

    llm: Service[LLM | Reader | None] = None
    """LlamaIndex LLM or surerag reader, also without log-probabilities; if None, ``Settings.llm``."""

    @classmethod
    def class_name(cls) -> str:
        """Return the class name for serialisation."""
        return cls.__name__

    @abstractmethod
    def _program(self, nodes: Sequence[NodeWithScore], bundle: QueryBundle) -> Program[R]:
        """Return the method's generator for one query; it yields requests to models and retrievers."""

    @abstractmethod
    def _n_kept(self, n_nodes: int) -> int:
        """Return the maximum number of output nodes for ``n_nodes`` input nodes."""

    @abstractmethod
    def _nodes_of(self, result: R, nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        """Return the method's result as nodes; ``nodes`` are the input nodes."""

    def compress(self, nodes: Sequence[NodeWithScore], query: QueryType) -> R:
        """Return the method's whole result for one query, with its decisions, model calls and tokens."""
        return run_blocking(self._result(nodes, query, run))

    async def acompress(self, nodes: Sequence[NodeWithScore], query: QueryType) -> R:
        """Compute the result as ``compress`` does, without blocking the event loop."""
        return await self._result(nodes, query, arun)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return run_blocking(self._postprocess_by(nodes, query_bundle, run))

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return await self._postprocess_by(nodes, query_bundle, arun)

    async def _result(self, nodes: Sequence[NodeWithScore], query: QueryType, run: Callable[..., Any]) -> R:
        bundle = bundle_of(query)
        # _program may read documents from a store, which would block the event loop.
        make = in_thread if run is arun else lambda program, *case: program(*case)
        program = await maybe_await(make(self._program, nodes, bundle))
        services = bound_services(self._core.services, bundle)
        result: R = await maybe_await(run(program, services, on_event=dispatch))
        return result

    async def _postprocess_by(
        self, nodes: list[NodeWithScore], bundle: QueryBundle | None, run: Callable[..., Any]
    ) -> list[NodeWithScore]:
        n_kept = self._n_kept(len(nodes))
        if not nodes or bundle is None or not bundle.query_str.strip():
            if nodes:
                warn(f"{self.METHOD}.no_query", nodes=len(nodes))
            return [copy_of(node) for node in nodes[:n_kept]]
        name = self._core.services.reader.name
        dispatcher.event(ReRankStartEvent(query=bundle, nodes=list(nodes), top_n=n_kept, model_name=name))
        payload: dict[str, Any] = {
            EventPayload.NODES: list(nodes),
            EventPayload.MODEL_NAME: name,
            EventPayload.QUERY_STR: bundle.query_str,
            EventPayload.TOP_K: n_kept,
        }
        with self.callback_manager.event(CBEventType.RERANKING, payload) as event:
            results = self._nodes_of(await self._result(nodes, bundle, run), nodes)
            event.on_end({EventPayload.NODES: list(results)})
        dispatcher.event(ReRankEndEvent(nodes=list(results)))
        return results


class ClusterCompressorPostprocessor(MethodPostprocessor[EDC2Result], EDC2Options):
    """Keeps the nodes that help to answer, or compresses clusters of similar nodes (EDC²-RAG).

    By default, the most helpful third of the nodes is returned, and at least three nodes. With
    ``variant="copy"``, the LLM copies the helpful sentences of similar nodes into one compressed node. The
    sources of a compressed node are the input nodes that it was made from. The compressed node has the id,
    score, relationships and metadata of the best source. In the compressed node's metadata,
    ``compressed_from`` lists all sources with their ids, scores and metadata, and ``compressed_sentences``
    names the source of each sentence. An LLM sees only the metadata that all sources share. Nodes without
    text are returned last and unchanged. If nodes are compressed, nodes with pictures are also returned last
    and unchanged. The input nodes are not changed.

    If the LLM fails, the nodes (or the nodes of one cluster) are returned unchanged, with a warning and a
    ``MethodEvent``. Without a query, the first nodes are returned. Prompts are texts or LlamaIndex templates.
    With ``task="answer"``, each returned node holds the LLM's answer from one cluster and the evidence for
    this answer; then pass ``surerag.prompts.SELECT_ANSWER`` as ``text_qa_template``. With ``task="verify"``,
    the query is a statement to check.

    The default selection is not in the paper. For the method of the paper's section 4.3, pass
    ``variant="paper", guard="off", min_tokens=0``.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or ``llm`` is no LLM.
        PromptError: If a prompt is unknown or its slots do not fit.
    """

    METHOD = "edc2"

    embed_model: Service[BaseEmbedding | Encoder | None] = None
    """Embeds the query, and the nodes that have no embedding; ``Settings.embed_model`` if None."""

    entailer: Service[Entailer | None] = None
    """Judges whether passages support the compressed texts, if ``guard="entailment"``."""

    tokenizer: Function[Callable[[str], Sequence[Any]] | None] = None
    """Splits a text into tokens, which are counted; if None, the LLM's own tokenizer or
    ``Settings.tokenizer``."""

    def __init__(
        self,
        llm: LLM | Reader | None = None,
        embed_model: BaseEmbedding | Encoder | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**{"llm": llm, "embed_model": embed_model, **options})

    @model_validator(mode="after")
    def _connect(self) -> Self:
        tokenizer = self.tokenizer
        self._core = ClusterCompressor(
            reader_of(self.llm),
            encoder_of(self.embed_model),
            self.entailer,
            count_tokens=None if tokenizer is None else lambda text: len(tokenizer(text)),
            show=text_for_llm,
            **self.options(),
        )
        return self

    def _n_kept(self, n_nodes: int) -> int:
        return self.n_kept(n_nodes)

    def _program(self, nodes: Sequence[NodeWithScore], bundle: QueryBundle) -> Program[EDC2Result]:
        passages = passages_of([node for node in nodes if not self._passes(node)], vectors=True)
        # The query's vector is comparable only with vectors of the same model, as the nodes' vectors are.
        have_vectors = all(passage.embedding is not None for passage in passages)
        program: Program[EDC2Result] = self._core.program(
            bundle.query_str, passages, bundle.embedding if have_vectors else None
        )
        return program

    def _nodes_of(self, result: EDC2Result, nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        return [*nodes_of(result.passages), *(copy_of(node) for node in nodes if self._passes(node))]

    def _passes(self, node: NodeWithScore) -> bool:
        """Whether a node is returned unchanged, because it has no text or its picture would be lost."""
        return not has_text(node) or (self.compresses and has_media(node))


class DenseRefinerPostprocessor(MethodPostprocessor[DenseRefinerResult], DenseRefinerOptions):
    """Replaces retrieved nodes until the LLM is certain of its answer (DENSE-RAG).

    The first ``top_n`` nodes are the context, and the other nodes are candidates, so retrieve more nodes than
    ``top_n``. Candidates that resemble the helpful nodes replace the nodes that confuse the LLM. With a
    ``retriever``, more candidates come from the index. With ``documents``, new semantic chunks of the
    documents are candidates, too. Put postprocessors that mask or remove nodes after this postprocessor, so
    that new nodes are masked or removed, too. The metadata key ``dense`` of a returned node has the score of
    the context (the entropy of the answers, in nats) and the node's label (such as ``"necessary"``). The
    input nodes are not changed.

    If a model fails, the best context so far is returned, with a warning. Without a query, the first nodes
    are returned. Prompts are texts or LlamaIndex templates.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or ``llm`` is no LLM.
        PromptError: If a prompt is unknown or its slots do not fit.
    """

    METHOD = "dense_refiner"

    entailer: Service[Judge] = None
    """Judges whether two answers mean the same: a surerag entailer, or a prompted LLM (``llm`` if None)."""

    embed_model: Service[BaseEmbedding | Encoder | None] = None
    """Embeds the nodes that have no embedding; ``Settings.embed_model`` if None."""

    retriever: Service[BaseRetriever | BaseIndex[Any] | None] = None
    """Retrieves 4 · ``top_n`` nodes when no candidate is left, at most once for each query."""

    documents: Service[BaseDocumentStore | Sequence[BaseNode] | None] = None
    """Complete documents, found by ``ref_doc_id``; if the LLM is uncertain, new chunks are cut from them."""

    chunker: Service[SemanticChunker | None] = None
    """Cuts ``documents`` into chunks; if None, a ``SemanticChunker`` with default options."""

    def __init__(self, llm: LLM | Reader | None = None, entailer: Judge = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "entailer": entailer, **options})

    @model_validator(mode="after")
    def _connect(self) -> Self:
        documents, chunker = self.documents, self.chunker
        is_list = isinstance(documents, list | tuple) and all(
            isinstance(item, BaseNode) for item in documents
        )
        if not is_list and not isinstance(documents, BaseDocumentStore | None):
            raise ConfigurationError(
                f"documents must be a list of documents or a document store, got {type(documents).__name__}",
                hint="pass a list of documents, or index.docstore if it holds the complete documents",
            )
        if chunker is None and self.documents is not None:
            chunker = SemanticChunker(
                encoder_of(self.embed_model), count_tokens=lambda text: len(Settings.tokenizer(text))
            )
        retriever = None
        if self.retriever is not None:
            retriever = NodeRetriever(retriever_of(self.retriever, 4 * self.top_n))
        self._core = DenseRefiner(
            reader_of(self.llm),
            judge_of(self.entailer),
            None if self.chunker is not None and self.embed_model is None else encoder_of(self.embed_model),
            retriever=retriever,
            chunker=chunker,
            **self.options(),
        )
        return self

    def _n_kept(self, n_nodes: int) -> int:
        return self.top_n

    def _program(self, nodes: Sequence[NodeWithScore], bundle: QueryBundle) -> Program[DenseRefinerResult]:
        passages = passages_of(nodes, vectors=True)
        documents = self._documents_of(nodes)
        program: Program[DenseRefinerResult] = self._core.program(bundle.query_str, passages, documents)
        return program

    def _nodes_of(self, result: DenseRefinerResult, nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        best = next((item.measured for item in reversed(result.rounds) if item.best), None)
        refined = nodes_of(result.passages)
        if best is not None:
            facts = {"score": best.score, "certain": best.certain, "stopped": result.stopped}
            for item, label in zip(refined, best.labels, strict=True):
                item.node.metadata["dense"] = {**facts, "label": label}
                item.node.excluded_llm_metadata_keys.append("dense")
                item.node.excluded_embed_metadata_keys.append("dense")
        return refined + [copy_of(node) for node in nodes[: self.top_n] if not has_text(node)]

    def _documents_of(self, nodes: Sequence[NodeWithScore]) -> list[Passage]:
        if self.documents is None:
            return []
        names = list(dict.fromkeys(node.node.ref_doc_id or node.node.node_id for node in nodes))
        if isinstance(self.documents, BaseDocumentStore):
            store = self.documents
            documents = {name: store.get_document(name, raise_error=False) for name in names}
        else:
            listed = {document.node_id: document for document in self.documents}
            documents = {name: listed.get(name) for name in names}
        if missing := [name for name in names if documents[name] is None]:
            warn("dense_refiner.documents_missing", ids=missing)
        return [
            Passage(document.get_content(metadata_mode=MetadataMode.NONE), id=name, origin=document)
            for name, document in documents.items()
            if document is not None
        ]
