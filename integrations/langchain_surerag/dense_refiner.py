"""DENSE-RAG as a LangChain document compressor: a context that the reader understands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import set_config_context
from pydantic import Field, PrivateAttr

from langchain_surerag._driving import arun, run
from langchain_surerag._events import Announcing, announcer
from langchain_surerag.adaptive_splitter import AdaptiveSemanticSplitter
from langchain_surerag.documents import Decision, Listener, Parents, documents_of, passages_of, place_of
from langchain_surerag.parts import AdaptedPart, config_of, runnable_of
from langchain_surerag.services import EmbeddingEncoder, reader_of, retriever_of
from surerag import (
    DenseCache,
    DenseRefinerOptions,
    DenseRefinerResult,
    SemanticChunker,
)
from surerag import (
    DenseEvaluator as Dense,
)
from surerag import (
    DenseRefiner as ContextRefiner,
)
from surerag.effects import Program
from surerag.errors import ConfigurationError, MissingServiceError
from surerag.messages import Passage
from surerag.readers import Reader
from surerag.services import Services

T = TypeVar("T", bound=Dense | ContextRefiner)


class JudgedPart(AdaptedPart[T]):
    """A part whose reader answers several times, and whose entailer says whether the answers mean the same.

    Attributes:
        llm: A chat model or LLM, with bindings, retries and fallbacks around it if any; or a reader of
            surerag.
        entailer: An entailer of surerag, or a model that is asked in words; the ``llm`` if left out.
        dense_cache: What is known already.
    """

    llm: Any = Field(default=None, exclude=True, repr=False, kw_only=False)
    entailer: Any = Field(default=None, exclude=True, repr=False)
    dense_cache: Any = Field(default=None, exclude=True, repr=False)

    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __init__(self, **given: Any) -> None:
            given["dense_cache"] = DenseCache() if given.get("dense_cache") is None else given["dense_cache"]
            super().__init__(**given)

    @property
    def unparsed(self) -> int:
        """Replies of a judge in words, so far, that named no single label; each counts as no entailment."""
        return self.core.unparsed

    def _judged(self) -> dict[str, Any]:
        """Return reader, entailer, memory and options as the core takes them."""
        judge = self.entailer
        return {
            "reader": _reader(self.llm),
            "entailer": _reader(judge) if isinstance(judge, Runnable) else judge,
            "cache": self.dense_cache,
            **self.chosen(),
        }


def _reader(model: Any) -> Reader:
    # DENSE looks at what is said alone: no alternatives to its tokens are asked for.
    return reader_of(model, top_logprobs=0)


class _Behind:
    """Finds the documents behind given chunks, whatever it is asked."""

    def __init__(self, parents: Parents, chunks: Sequence[Document], on_event: Listener) -> None:
        self._parents, self._chunks, self._on_event = parents, chunks, on_event

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:  # the protocol's signature
        return self._parents.of(self._chunks, self._on_event)

    async def aretrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        return await self._parents.aof(self._chunks, self._on_event)


class DenseRefiner(JudgedPart[ContextRefiner], BaseDocumentCompressor, DenseRefinerOptions):  # type: ignore[misc]  # a frozen base; fields that are set are in force
    """Takes the candidates of a retriever and hands on those that its reader understands best together.

    The first ``top_n`` documents are the context, the others candidates. Where the answer changes with the
    wording of the context (DENSE-RAG, section 4), documents that only confuse leave, and candidates come that
    are most like the ones that matter (section 5.2); with ``parents``, the documents behind the chunks are
    cut anew first (section 5.1). Let the retriever return some more::

        ContextualCompressionRetriever(
            base_compressor=DenseRefiner(model, embeddings, top_n=5),
            base_retriever=store.as_retriever(search_kwargs={"k": 20}),
        )

    Fewer than ``top_n`` documents come back where some only confused and nothing better was found. They are
    copies, with their ids and metadata; no document that goes in is changed. Each has in its metadata, under
    ``refinement_key``: ``score``, the entropy of the context that it belongs to, in nats (0: the same answer
    in whatever words); ``certain``, whether that is within the threshold; its own ``label``; ``rounds``, the
    contexts that were measured; why it ``stopped``; the ``answer``, and how many ``calls`` it took. Such
    entries compare equal, whatever they say. A chunk that was cut anew has its parent's metadata, besides it
    ``start_index``, ``provenance`` (:class:`surerag.Stretch`), the parent's key under ``id_key``, and in its
    entry ``document``, ``start`` and ``end``.

    If a model fails, the first ``top_n`` documents come back as they were (or the best context so far), with
    a warning and the event ``context_refiner.failed``. A question costs :meth:`worst_case_calls` at most.

    Prompts are texts or PromptTemplates.

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
        splitter: An AdaptiveSemanticSplitter that cuts parents anew; by default one with ``embeddings`` that
            counts tokens as the model does, if it can.
        dense_cache: What is known already; give one to several components, and a chunk is rephrased once
            for all.
        id_key: Where a chunk's metadata has the key of its parent in the store.
        refinement_key: Where in a document's metadata to tell what was found; None tells nothing.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the model is none.
        MissingServiceError: If there is no embedding model where one is needed.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = FakeReader(lambda prompt: "It rained." if prompt.startswith("Rewrite") else "Velm")
        >>> refiner = DenseRefiner(reader, HashingEncoder(), top_n=2)
        >>> found = [Document("Ada was born in Velm."), Document("Bo paints."), Document("Tin melts.")]
        >>> kept = refiner.compress_documents(found, "Where was Ada born?")
        >>> [(document.page_content, document.metadata["dense"]["label"]) for document in kept]
        [('Ada was born in Velm.', 'certain'), ('Bo paints.', 'certain')]
    """

    embeddings: Any = Field(default=None, exclude=True, repr=False, kw_only=False)
    retriever: Any = Field(default=None, exclude=True, repr=False)
    parents: Any = Field(default=None, exclude=True, repr=False)
    splitter: AdaptiveSemanticSplitter | None = Field(default=None, exclude=True, repr=False)
    id_key: str = "doc_id"
    refinement_key: str | None = "dense"

    _parents: Parents | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __init__(self, llm: Any = None, embeddings: Any = None, **given: Any) -> None:
            super().__init__(llm=llm, embeddings=embeddings, **given)

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
    ) -> DenseRefinerResult:
        """Return the whole result: the answer, every round with its labels, what left and what came, costs.

        Raises:
            InputError: If the query is empty.
        """
        config = config_of(callbacks)
        with set_config_context(config) as context:
            return context.run(self._refined, documents, query, announcer(config))

    async def arefine(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> DenseRefinerResult:
        """Like ``refine``, without blocking the event loop."""
        config = config_of(callbacks)
        async with Announcing(config) as announce:
            with set_config_context(config) as context:
                work = self._arefined(documents, query, announce)
                return await asyncio.get_running_loop().create_task(work, context=context)

    def prepare(self, documents: Sequence[Document]) -> int:
        """Rephrase a corpus ahead of all questions; return how many chunks the cache now knows."""
        return self.core.prepare(passages_of(documents))

    async def aprepare(self, documents: Sequence[Document]) -> int:
        """Like ``prepare``, without blocking the event loop."""
        return await self.core.aprepare(passages_of(documents))

    def as_runnable(self) -> Runnable[dict[str, Any], list[Document]]:
        """Return a runnable from a mapping with ``documents`` and ``query`` to refined documents."""
        return runnable_of(self)

    def _refined(self, documents: Sequence[Document], query: str, on_event: Listener) -> DenseRefinerResult:
        program = self._program(documents, query)
        return run(program, self._asking(documents, on_event), on_event=on_event)

    async def _arefined(
        self, documents: Sequence[Document], query: str, on_event: Listener
    ) -> DenseRefinerResult:
        program = self._program(documents, query)
        return await arun(program, self._asking(documents, on_event), on_event=on_event)

    def _program(self, documents: Sequence[Document], query: str) -> Program[DenseRefinerResult]:
        return self.core.program(query, passages_of(documents), "ask" if self._parents and documents else ())

    def _asking(self, documents: Sequence[Document], on_event: Listener) -> Services:
        """Return the services; the documents behind the chunks are asked for of uncertain questions only."""
        behind = None if self._parents is None else _Behind(self._parents, documents, on_event)
        return replace(self.core.services, documents=behind)

    def _handed_on(self, result: DenseRefinerResult) -> list[Document]:
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

    def _build(self) -> None:
        super()._build()
        if self.parents is not None:
            self._parents = Parents(self.parents, self.id_key, strict=self.on_failure == "raise")
        else:
            self._parents = None

    def _core(self) -> ContextRefiner:
        judged, embeddings = self._judged(), self.embeddings
        encoder = EmbeddingEncoder(embeddings) if isinstance(embeddings, Embeddings) else embeddings
        if encoder is None and self.splitter is None and (self.parents is not None or not self.remove_only):
            raise MissingServiceError(
                "DenseRefiner needs an embedding model to find what is most like a document",
                hint="pass embeddings=…, or remove_only=True to take nothing in",
            )
        return ContextRefiner(
            **judged,
            encoder=encoder,
            retriever=retriever_of(self.retriever),
            chunker=self._chunker(encoder, judged["reader"]),
        )

    def _chunker(self, encoder: Any, reader: Reader) -> SemanticChunker | None:
        if self.parents is None:
            if self.splitter is not None:
                raise ConfigurationError(
                    "a splitter has nothing to cut without the documents behind the chunks",
                    hint="pass parents=…, or leave the splitter out",
                )
            return None
        if self.splitter is not None:
            return self.splitter.core
        return SemanticChunker(encoder, getattr(reader, "count_tokens", None))
