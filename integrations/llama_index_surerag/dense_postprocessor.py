"""DENSE-RAG as a LlamaIndex node postprocessor: mend the context that the LLM does not understand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixin
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from llama_index_surerag._dense_prompts import DensePromptSet
from llama_index_surerag._dense_services import (
    TokenCount,
    entailer_of,
    judges_in_words,
    reader_of,
    unparsed_of,
)
from llama_index_surerag._documents import DocumentsBehind, DocumentSource, warn
from llama_index_surerag._refined_nodes import candidates_of, has_text, refined_nodes
from llama_index_surerag.encoders import encoder_of
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.nodes import copy_of
from llama_index_surerag.prompts import plain_template, template_from_plain
from llama_index_surerag.retrievers import NodeRetriever, retriever_of
from llama_index_surerag.semantic_node_parser import AdaptiveSemanticNodeParser
from surerag import AdaptiveChunker, ContextRefiner, arun, run
from surerag.components.context_refiner import PLAIN_SETTINGS
from surerag.errors import ConfigurationError
from surerag.methods.dense_cache import DenseCache
from surerag.methods.dense_types import Half
from surerag.methods.refinement_types import Keep, OnFailure, Refill, RefinementResult, StopRule, Variant
from surerag.services import Services
from surerag.types import Passage

_PROMPTS = ("rephrase", "answer", "closed_book", "sufficient")


class DenseRefinerPostprocessor(BaseNodePostprocessor, PromptMixin):
    """Takes the candidates that were retrieved, and hands on the k (or fewer) that the LLM understands.

    The first ``k`` nodes are the context. Each is rephrased alone; where that changes the answer, nodes that
    only confuse leave, and the candidates most like those that matter come, until answers agree. Let the
    retriever find more nodes than ``k``: they are what a context can be mended with.

    Nodes come back as copies with their own ids, scores, metadata and relationships. ``dense`` in the
    metadata tells ``score`` (DENSE of the context in nats; lower is better, and 0 is understood),
    ``certain``, ``label`` of the node, ``rounds`` and ``stopped``; neither LLM nor embedding model is shown
    it. No node that goes in is changed.

    If a model fails, the best context so far goes through, or the first ``k`` nodes, with a warning and a
    ``ProgressEvent``; without a query the first ``k`` do. A node without a text (an image) among the first
    ``k`` goes through besides, as it is.

    Given ``documents``, the documents behind the nodes of an uncertain question are cut anew
    (Algorithm 2), and what is handed on are chunks with ids, offsets and ``SOURCE`` of their own. They are
    measured without the metadata that a pipeline puts before a node's text.

    Args:
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
        chunker: How to cut them; by default τ = 0.6 and 512 tokens.
        cache: What is known already; give one to several components.
        templates: Prompts in place of ours, by the names that ``get_prompts`` gives: texts or LlamaIndex
            templates. ``query_str`` and ``context_str`` may stand for ``question`` and ``passages``.
        **settings: Those of :class:`surerag.ContextRefiner`, explained there: ``k``, ``rounds``,
            ``max_calls``, ``variant``, ``threshold`` … Here ``max_chunks`` is ``k`` unless given, so that
            no more than ``k`` nodes are handed on.

    Raises:
        ConfigurationError: If a setting is out of range, or the LLM is none.
        PromptError: If a template's slots do not fit.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> from surerag import ScriptedReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = ScriptedReader(lambda prompt: "It rained." if prompt.startswith("Rewrite") else "Velm")
        >>> refiner = DenseRefinerPostprocessor(reader, entailer=ExactEntailer(), k=1)
        >>> nodes = [NodeWithScore(node=TextNode(text=text)) for text in ("Ada was born in Velm.", "Bo.")]
        >>> [node] = refiner.postprocess_nodes(nodes, query_str="Where was Ada born?")
        >>> node.text, node.metadata["dense"]["score"], node.metadata["dense"]["label"]
        ('Ada was born in Velm.', 0.0, 'certain')
    """

    llm: Any = Field(default=None, exclude=True, repr=False)
    embed_model: Any = Field(default=None, exclude=True, repr=False)
    entailer: Any = Field(default=None, exclude=True, repr=False)
    retriever: Any = Field(default=None, exclude=True, repr=False)
    documents: Any = Field(default=None, exclude=True, repr=False)
    chunker: Any = Field(default=None, exclude=True, repr=False)
    cache: Any = Field(default=None, exclude=True, repr=False)
    templates: dict[str, Any] = Field(default_factory=dict)
    k: int = 5
    max_chunks: int | None = None
    rounds: int = 4
    max_calls: int | None = None
    variant: Variant = "default"
    stop: StopRule | None = None
    keep: Keep | None = None
    half: Half | None = None
    refill: Refill = "necessary"
    remove_only: bool = False
    self_evaluation: bool = True
    only_uncertain: bool = True
    more: int = 20
    threshold: float = 0.2
    entailment: float | None = None
    max_tokens: int = 64
    rephrase_tokens: int = 640
    on_failure: OnFailure = "original"
    _refiner: ContextRefiner = PrivateAttr()
    _prompts: DensePromptSet = PrivateAttr()
    _behind: DocumentsBehind | None = PrivateAttr(default=None)

    def __init__(
        self,
        llm: Any = None,
        embed_model: Any = None,
        entailer: Any = None,
        *,
        retriever: BaseRetriever | BaseIndex[Any] | None = None,
        documents: DocumentSource | None = None,
        chunker: AdaptiveSemanticNodeParser | AdaptiveChunker | None = None,
        cache: DenseCache | None = None,
        templates: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        own: dict[str, Any] = {
            "llm": Settings.llm if llm is None else llm,
            "embed_model": embed_model,
            "entailer": entailer,
            "retriever": retriever,
            "documents": documents,
            "chunker": chunker,
            "cache": DenseCache() if cache is None else cache,
            "templates": {name: _plain(given) for name, given in (templates or {}).items()},
        }
        super().__init__(**own, **settings)
        if chunker is not None and documents is None:
            raise ConfigurationError("a chunker has nothing to cut", hint="pass documents=… besides")
        names = (*_PROMPTS, "entailment") if judges_in_words(entailer) else _PROMPTS
        selecting = self.llm if isinstance(self.llm, LLM) else None
        self._prompts = DensePromptSet(names, selecting).updated(_templates(self.templates))
        self._refiner = self._built(self._prompts)
        self._behind = None if documents is None else DocumentsBehind(documents)

    @classmethod
    def class_name(cls) -> str:
        """Name in serialised settings."""
        return "DenseRefinerPostprocessor"

    @property
    def refiner(self) -> ContextRefiner:
        """The method with its settings and services."""
        return self._refiner

    @property
    def unparsed(self) -> int:
        """Replies of a judge in words, so far, that named no single label; each counts as no entailment."""
        return unparsed_of(self._refiner.entailer)

    def refine(self, nodes: Sequence[NodeWithScore], query: str | QueryBundle) -> RefinementResult:
        """Return the whole result for one query: every round, its labels, and what it cost."""
        bundle = QueryBundle(query) if isinstance(query, str) else query
        written = [node for node in nodes if has_text(node)]
        documents = self._behind.of(written) if self._behind else ()
        program = self._refiner.program(bundle.query_str, candidates_of(written), documents)
        return run(program, self._services(bundle), on_event=dispatch)

    async def arefine(self, nodes: Sequence[NodeWithScore], query: str | QueryBundle) -> RefinementResult:
        """Like ``refine``, without blocking the event loop."""
        bundle = QueryBundle(query) if isinstance(query, str) else query
        written = [node for node in nodes if has_text(node)]
        documents: Sequence[Passage] = await self._behind.aof(written) if self._behind else ()
        program = self._refiner.program(bundle.query_str, candidates_of(written), documents)
        return await arun(program, self._services(bundle), on_event=dispatch)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or _is_blank(query_bundle):
            return self._unrefined(nodes)
        bundle = cast("QueryBundle", query_bundle)
        with self.callback_manager.event(CBEventType.RERANKING, payload=_payload(nodes, bundle)) as event:
            found = refined_nodes(self.refine(nodes, bundle), nodes, self.k)
            event.on_end(payload={EventPayload.NODES: found})
        return found

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or _is_blank(query_bundle):
            return self._unrefined(nodes)
        bundle = cast("QueryBundle", query_bundle)
        with self.callback_manager.event(CBEventType.RERANKING, payload=_payload(nodes, bundle)) as event:
            found = refined_nodes(await self.arefine(nodes, bundle), nodes, self.k)
            event.on_end(payload={EventPayload.NODES: found})
        return found

    def _unrefined(self, nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        if nodes:
            warn("dense_refiner.no_query", nodes=len(nodes))
        return [copy_of(node) for node in nodes[: self.k]]

    def _get_prompts(self) -> PromptDictType:
        return dict(self._prompts.templates)

    def _update_prompts(self, prompts: PromptDictType) -> None:
        # Built before anything is changed: a template that does not fit leaves all as it was.
        updated = self._prompts.updated(prompts)
        self._refiner = self._built(updated)
        self._prompts, self.templates = updated, updated.to_dict()

    def _services(self, bundle: QueryBundle) -> Services:
        """Return the services, the pipeline's retriever being asked for this very query."""
        services = self._refiner.services
        if isinstance(services.retriever, NodeRetriever):
            return replace(services, retriever=services.retriever.bound_to(bundle))
        return services

    def _built(self, prompts: DensePromptSet) -> ContextRefiner:
        reader = reader_of(self.llm)
        chunker = self._cutting()
        settings: dict[str, Any] = {name: getattr(self, name) for name in PLAIN_SETTINGS}
        if self.max_chunks is None:
            settings["max_chunks"] = self.k
        return ContextRefiner(
            reader,
            entailer_of(self.entailer, reader, prompts.for_judge()),
            chunker.encoder
            if chunker is not None and self.embed_model is None
            else encoder_of(self.embed_model),
            None if self.retriever is None else NodeRetriever(retriever_of(self.retriever, self.more)),
            chunker,
            prompts=prompts.for_core(),
            cache=self.cache,
            **settings,
        )

    def _cutting(self) -> AdaptiveChunker | None:
        if isinstance(self.chunker, AdaptiveSemanticNodeParser):
            return self.chunker.chunker
        if self.chunker is not None or self.documents is None:
            return cast("AdaptiveChunker | None", self.chunker)
        return AdaptiveChunker(encoder_of(self.embed_model), count_tokens=TokenCount(Settings.tokenizer))


def _plain(given: Any) -> Any:
    return plain_template(given) if isinstance(given, BasePromptTemplate) else given


def _templates(plain: Mapping[str, Any]) -> dict[str, BasePromptTemplate]:
    return {name: template_from_plain(given) for name, given in plain.items()}


def _is_blank(bundle: QueryBundle | None) -> bool:
    return bundle is None or not bundle.query_str.strip()


def _payload(nodes: Sequence[NodeWithScore], bundle: QueryBundle) -> dict[str, Any]:
    return {EventPayload.NODES: list(nodes), EventPayload.QUERY_STR: bundle.query_str}
