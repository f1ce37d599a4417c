"""DENSE-RAG as a LangChain document compressor: a context that the reader understands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import set_config_context
from pydantic import ConfigDict, Field, PrivateAttr

from langchain_surerag._compressing import config_of, runnable_of
from langchain_surerag._dense_parts import parts_of
from langchain_surerag._events import Announcing, announcer
from langchain_surerag._parents import Listener, Parents, place_of
from langchain_surerag.adaptive_splitter import AdaptiveSemanticSplitter
from langchain_surerag.documents import Decision, documents_of, passages_of
from langchain_surerag.encoders import EmbeddingEncoder
from langchain_surerag.prompts import PromptLike
from langchain_surerag.retrievers import RunnableRetriever
from surerag import AdaptiveChunker, ContextRefiner, Dense
from surerag.components.context_refiner import PLAIN_SETTINGS
from surerag.errors import ConfigurationError, MissingServiceError
from surerag.methods.dense_cache import DenseCache
from surerag.methods.dense_types import Half
from surerag.methods.refinement_types import Keep, OnFailure, Refill, RefinementResult, StopRule, Variant
from surerag.readers import Reader


class DenseRefiner(BaseDocumentCompressor):
    """Takes the candidates of a retriever and hands on the k that its reader understands best together.

    The first ``k`` documents are the context, the others candidates. Where the answer changes with the
    wording of the context (DENSE-RAG, section 4), documents that only confuse leave, and candidates come that
    are most like the ones that matter (section 5.2); with ``parents``, the documents behind the chunks are
    cut anew first (section 5.1). Let the retriever return some more than ``k``::

        ContextualCompressionRetriever(
            base_compressor=DenseRefiner(model, embeddings, k=5),
            base_retriever=store.as_retriever(search_kwargs={"k": 20}),
        )

    Fewer than ``k`` documents come back where some only confused and nothing better was found. They are
    copies, with their ids and metadata; no document that goes in is changed. Each has in its metadata, under
    ``refinement_key``: ``score``, the entropy of the context that it belongs to, in nats (0: the same answer
    in whatever words); ``certain``, whether that is within the threshold; its own ``label``; ``rounds``, the
    contexts that were measured; why it ``stopped``; the ``answer``, and how many ``calls`` it took. Such
    entries compare equal, whatever they say. A chunk that was cut anew has its parent's metadata, besides it
    ``start_index``, the parent's key under ``id_key``, and in its entry ``document``, ``start`` and ``end``.

    If a model fails, the first ``k`` documents come back as they were (or the best context so far), with a
    warning and the event ``context_refiner.failed``. A question costs :attr:`worst_case_calls` at most.

    Further fields are those of :class:`surerag.ContextRefiner`; ``max_chunks`` is ``k`` unless you say more.

    Attributes:
        llm: A chat model or LLM, with bindings, retries and fallbacks around it if any; or a reader of
            surerag, such as ``reader_from_model(model, logprobs=False)`` for one without log-probabilities.
        embeddings: An embedding model, or an encoder of surerag; not needed with ``remove_only``.
        entailer: Judges whether answers mean the same: an entailer of surerag (``NLIEntailer`` is fast), or a
            model that is asked in words; by default ``llm`` itself, as in the paper.
        retriever: A retriever, or a runnable from a question to documents, asked once for ``more`` documents
            when no candidate is left.
        parents: The documents behind the chunks: a store, as a ParentDocumentRetriever fills it, or a
            function (sync or async, or a runnable) from chunks to documents. Asked once for each query.
        splitter: An AdaptiveSemanticSplitter that cuts parents anew; by default one with ``embeddings``, its
            own τ, and at most 512 tokens, as the model counts them if it can.
        cache: What is known already; give one to several components, and a chunk is rephrased once for all.
        id_key: Where a chunk's metadata has the key of its parent in the store.
        refinement_key: Where in a document's metadata to tell what was found; None tells nothing.
        prompts: Prompts in place of ours, texts or PromptTemplates: ``rephrase`` (slot ``passage``),
            ``answer`` (``question``, ``passages``), ``closed_book`` (``question``), ``sufficient``
            (``question``, ``passages``), ``entailment`` (``question``, ``premise``, ``hypothesis``).

    Raises:
        ConfigurationError: If a setting is out of range, or the model is none.
        MissingServiceError: If there is no embedding model where one is needed.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import ScriptedReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = ScriptedReader(lambda prompt: "It rained." if prompt.startswith("Rewrite") else "Velm")
        >>> refiner = DenseRefiner(reader, HashingEncoder(), k=2)
        >>> found = [Document("Ada was born in Velm."), Document("Bo paints."), Document("Tin melts.")]
        >>> kept = refiner.compress_documents(found, "Where was Ada born?")
        >>> [(document.page_content, document.metadata["dense"]["label"]) for document in kept]
        [('Ada was born in Velm.', 'certain'), ('Bo paints.', 'certain')]
    """

    llm: Any = Field(default=None, exclude=True, repr=False)
    embeddings: Any = Field(default=None, exclude=True, repr=False)
    entailer: Any = Field(default=None, exclude=True, repr=False)
    retriever: Any = Field(default=None, exclude=True, repr=False)
    parents: Any = Field(default=None, exclude=True, repr=False)
    splitter: AdaptiveSemanticSplitter | None = Field(default=None, exclude=True, repr=False)
    cache: DenseCache | None = Field(default=None, exclude=True, repr=False)
    id_key: str = "doc_id"
    refinement_key: str | None = "dense"
    prompts: Mapping[str, PromptLike] = Field(default_factory=dict)
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
    _parents: Parents | None = PrivateAttr(default=None)

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    def __init__(self, llm: Any = None, embeddings: Any = None, **settings: Any) -> None:
        services: dict[str, Any] = {"llm": llm, "embeddings": embeddings}
        super().__init__(**services, **settings)
        if self.parents is not None:
            self._parents = Parents(self.parents, self.id_key, strict=self.on_failure == "raise")
        self._refiner = self._built()

    @property
    def refiner(self) -> ContextRefiner:
        """The method with its settings and services."""
        return self._refiner

    @property
    def worst_case_calls(self) -> int:
        """Calls of model and entailer that one question can cost."""
        return self._refiner.worst_case_calls

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return the refined context, best documents first as far as they kept their places."""
        return self._handed_on(self.refine(documents, query, callbacks))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Like ``compress_documents``, without blocking the event loop."""
        return self._handed_on(await self.arefine(documents, query, callbacks))

    def refine(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> RefinementResult:
        """Return the whole result: the answer, every round with its labels, what left and what came, costs.

        Raises:
            InputError: If the query is empty.
            ConfigurationError: If ``max_calls`` does not cover the first measurement.
        """
        config = config_of(callbacks)
        with set_config_context(config) as context:
            return context.run(self._refined, documents, query, announcer(config))

    async def arefine(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> RefinementResult:
        """Like ``refine``, without blocking the event loop."""
        config = config_of(callbacks)
        async with Announcing(config) as announce:
            with set_config_context(config) as context:
                work = self._arefined(documents, query, announce)
                return await asyncio.get_running_loop().create_task(work, context=context)

    def prepare(self, documents: Sequence[Document]) -> int:
        """Rephrase a corpus ahead of all questions; return how many chunks the cache now knows."""
        return self._measure().prepare(passages_of(documents))

    async def aprepare(self, documents: Sequence[Document]) -> int:
        """Like ``prepare``, without blocking the event loop."""
        return await self._measure().aprepare(passages_of(documents))

    def as_runnable(self) -> Runnable[dict[str, Any], list[Document]]:
        """Return a runnable from a mapping with ``documents`` and ``query`` to refined documents."""
        return runnable_of(self)

    def _refined(self, documents: Sequence[Document], query: str, on_event: Listener) -> RefinementResult:
        whole = self._parents.of(documents, on_event) if self._parents and documents else ()
        return self._refiner.run(query, passages_of(documents), whole, on_event=on_event)

    async def _arefined(
        self, documents: Sequence[Document], query: str, on_event: Listener
    ) -> RefinementResult:
        whole = await self._parents.aof(documents, on_event) if self._parents and documents else ()
        return await self._refiner.arun(query, passages_of(documents), whole, on_event=on_event)

    def _handed_on(self, result: RefinementResult) -> list[Document]:
        passages = result.passages
        documents = self._parents.documents_of(passages) if self._parents else documents_of(passages)
        if self.refinement_key is not None:
            measured = None if result.best is None else result.best.measured
            labels = [None] * len(passages) if measured is None else measured.labels
            for document, passage, label in zip(documents, passages, labels, strict=True):
                document.metadata[self.refinement_key] = Decision(
                    score=result.score,
                    certain=measured is not None and measured.certain,
                    label=label,
                    rounds=len(result.rounds),
                    stopped=result.stopped,
                    answer=result.answer,
                    calls=result.calls.total,
                    **place_of(passage),
                )
        return documents

    def _measure(self) -> Dense:
        """Return the measure alone, with the refiner's reader and cache."""
        core = self._refiner
        return Dense(
            core.reader,
            core.entailer,
            rephrase_tokens=core.rephrase_tokens,
            prompts=core.prompts,
            cache=core.cache,
        )

    def _built(self) -> ContextRefiner:
        reader, entailer, prompts = parts_of(self.llm, self.entailer, self.prompts)
        embeddings, retriever = self.embeddings, self.retriever
        encoder = EmbeddingEncoder(embeddings) if isinstance(embeddings, Embeddings) else embeddings
        if encoder is None and self.splitter is None and (self.parents is not None or not self.remove_only):
            raise MissingServiceError(
                "DenseRefiner needs an embedding model to find what is most like a document",
                hint="pass embeddings=…, or remove_only=True to take nothing in",
            )
        settings: dict[str, Any] = {name: getattr(self, name) for name in PLAIN_SETTINGS}
        return ContextRefiner(
            reader,
            entailer,
            encoder,
            RunnableRetriever(retriever) if isinstance(retriever, Runnable) else retriever,
            self._chunker(encoder, reader),
            prompts=prompts,
            cache=DenseCache() if self.cache is None else self.cache,
            **{**settings, "max_chunks": self.k if self.max_chunks is None else self.max_chunks},
        )

    def _chunker(self, encoder: Any, reader: Reader) -> AdaptiveChunker | None:
        if self.parents is None:
            if self.splitter is not None:
                raise ConfigurationError(
                    "a splitter has nothing to cut without the documents behind the chunks",
                    hint="pass parents=…, or leave the splitter out",
                )
            return None
        if self.splitter is not None:
            return self.splitter.chunker
        return AdaptiveChunker(encoder, count_tokens=getattr(reader, "count_tokens", None))
