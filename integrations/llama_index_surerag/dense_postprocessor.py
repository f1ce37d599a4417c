"""DENSE-RAG as a LlamaIndex node postprocessor: a context that the reader understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings
from llama_index.core.storage.docstore import BaseDocumentStore
from pydantic import PrivateAttr, model_validator

from llama_index_surerag.evaluating import Judge
from llama_index_surerag.events import dispatch, dispatcher, reranking, warn
from llama_index_surerag.llm import reader_of
from llama_index_surerag.nodes import copy_of, has_text, labelled, nodes_of, passages_of
from llama_index_surerag.prompts import WithPrompts
from llama_index_surerag.services import NodeRetriever, bundle_of, encoder_of, retriever_of
from surerag import DenseRefiner, DenseRefinerOptions, DenseRefinerResult, SemanticChunker
from surerag.component import Service
from surerag.drivers import arun, run
from surerag.messages import Passage
from surerag.readers import Reader
from surerag.readers.threads import in_thread
from surerag.services import Encoder, Services

DENSE_KEY = "dense"
"""Metadata of a refined node: the context's score, whether it is certain, and the node's label."""


class DenseRefinerPostprocessor(WithPrompts, DenseRefinerOptions, BaseNodePostprocessor):
    """Measures whether the LLM understands its nodes, and mends the context until it does (DENSE-RAG).

    The first ``top_n`` nodes are the context, the others candidates: retrieve more than are shown. What
    confuses the reader leaves, what is like the nodes that it needs comes; with a ``retriever`` also from the
    index, with ``documents`` also as semantic chunks of them. ``dense`` in the metadata of a refined node has
    the context's score and the node's label. No node that goes in is changed.

    Where a model fails, the best context so far is returned, with a warning; without a query the first nodes
    are. Prompts are texts or LlamaIndex templates.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM is none.
        PromptError: If a prompt is unknown or its slots do not fit.
    """

    llm: Service[LLM | Reader | None] = None
    """A LlamaIndex LLM, of which only text is needed, or a reader of surerag; ``Settings.llm`` if None."""

    entailer: Service[Judge] = None
    """Judges whether answers mean the same: an entailer of surerag, or a model that is asked in words."""

    embed_model: Service[BaseEmbedding | Encoder | None] = None
    """Embeds nodes without embeddings; ``Settings.embed_model`` if None."""

    retriever: Service[BaseRetriever | BaseIndex[Any] | None] = None
    """Asked once for four times ``top_n`` nodes, when no candidate is left."""

    documents: Service[BaseDocumentStore | Sequence[BaseNode] | None] = None
    """Whole documents, by the nodes' ``ref_doc_id``, to be cut anew where a question is uncertain."""

    chunker: Service[SemanticChunker | None] = None
    """Cuts ``documents``; a chunker with its usual options if None."""

    _core: DenseRefiner = PrivateAttr()

    def __init__(self, llm: LLM | Reader | None = None, entailer: Judge = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "entailer": entailer, **options})

    @classmethod
    def class_name(cls) -> str:
        """Name in what is serialised."""
        return "DenseRefinerPostprocessor"

    @model_validator(mode="after")
    def _connect(self) -> Self:
        chunker = self.chunker
        if chunker is None and self.documents is not None:
            chunker = SemanticChunker(
                encoder_of(self.embed_model), count_tokens=lambda text: len(Settings.tokenizer(text))
            )
        retriever = None
        if self.retriever is not None:
            retriever = NodeRetriever(retriever_of(self.retriever, 4 * self.top_n))
        self._core = DenseRefiner(
            reader_of(self.llm),
            reader_of(self.entailer) if isinstance(self.entailer, LLM) else self.entailer,
            None if self.chunker is not None and self.embed_model is None else encoder_of(self.embed_model),
            retriever=retriever,
            chunker=chunker,
            **self.options(),
        )
        return self

    @property
    def core(self) -> DenseRefiner:
        """The method with its options and services."""
        return self._core

    def refine(self, nodes: Sequence[NodeWithScore], query: QueryType) -> DenseRefinerResult:
        """Return the whole result for one query: every context with its score, answers and labels."""
        bundle = bundle_of(query)
        program = self._core.program(
            bundle.query_str, passages_of(nodes, vectors=True), self._documents_behind(nodes)
        )
        return run(program, self._services(bundle), on_event=dispatch)

    async def arefine(self, nodes: Sequence[NodeWithScore], query: QueryType) -> DenseRefinerResult:
        """Like ``refine``, without blocking the event loop."""
        bundle = bundle_of(query)
        documents = await in_thread(self._documents_behind, nodes)
        program = self._core.program(bundle.query_str, passages_of(nodes, vectors=True), documents)
        return await arun(program, self._services(bundle), on_event=dispatch)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or query_bundle is None or not query_bundle.query_str.strip():
            return self._unrefined(nodes)
        name = self._core.services.reader.name  # type: ignore[union-attr]  # required by the core
        with reranking(self.callback_manager, nodes, query_bundle, name, self.top_n) as done:
            refined = self._refined(self.refine(nodes, query_bundle), nodes)
            done(refined)
        return refined

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or query_bundle is None or not query_bundle.query_str.strip():
            return self._unrefined(nodes)
        name = self._core.services.reader.name  # type: ignore[union-attr]  # required by the core
        with reranking(self.callback_manager, nodes, query_bundle, name, self.top_n) as done:
            refined = self._refined(await self.arefine(nodes, query_bundle), nodes)
            done(refined)
        return refined

    def _unrefined(self, nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        if nodes:
            warn("dense_refiner.no_query", nodes=len(nodes))
        return [copy_of(node) for node in nodes[: self.top_n]]

    def _refined(self, result: DenseRefinerResult, original: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        """Return the best context as nodes; behind it the first nodes that have no text, as they are."""
        best = next((item.measured for item in reversed(result.rounds) if item.best), None)
        refined = nodes_of(result.passages)
        if best is not None:
            facts = {"score": best.score, "certain": best.certain, "stopped": result.stopped}
            refined = [
                labelled(node, DENSE_KEY, {**facts, "label": label})
                for node, label in zip(refined, best.labels, strict=True)
            ]
        return refined + [copy_of(node) for node in original[: self.top_n] if not has_text(node)]

    def _services(self, bundle: QueryBundle) -> Services:
        services = self._core.services
        if not isinstance(services.retriever, NodeRetriever):
            return services
        return replace(services, retriever=services.retriever.bound_to(bundle))

    def _documents_behind(self, nodes: Sequence[NodeWithScore]) -> list[Passage]:
        """Return the documents that nodes were cut from, each once; those that are not there are left out."""
        if self.documents is None:
            return []
        names = list(dict.fromkeys(node.node.ref_doc_id or node.node.node_id for node in nodes))
        if isinstance(self.documents, BaseDocumentStore):
            store = self.documents
            refined = [store.get_document(name, raise_error=False) for name in names]
        else:
            listed = {document.node_id: document for document in self.documents}
            refined = [listed.get(name) for name in names]
        if None in refined:
            missing = [name for name, document in zip(names, refined, strict=True) if document is None]
            warn("dense_refiner.documents_missing", ids=missing)
        return [
            Passage(
                document.get_content(metadata_mode=MetadataMode.NONE), id=document.node_id, origin=document
            )
            for document in refined
            if document is not None
        ]
