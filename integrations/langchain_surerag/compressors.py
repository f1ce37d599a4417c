"""EDC²-RAG and DENSE-RAG as LangChain document compressors."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, ensure_config
from langchain_core.runnables.base import coerce_to_runnable
from langchain_core.stores import BaseStore

from langchain_surerag.base import Part, service_field
from langchain_surerag.documents import Decision, documents_of, passages_of
from langchain_surerag.models import judge_of, reader_of
from langchain_surerag.retrieval import encoder_of, retriever_of
from langchain_surerag.runs import listener_of, run_program
from langchain_surerag.splitter import SemanticTextSplitter
from surerag import ClusterCompressor as CoreCompressor
from surerag import DenseRefiner as CoreRefiner
from surerag import DenseRefinerOptions, DenseRefinerResult, EDC2Options, EDC2Result, SemanticChunker
from surerag.drivers import run_blocking
from surerag.effects import Program
from surerag.errors import ConfigurationError, InputError, MissingServiceError, kind_of
from surerag.messages import Event
from surerag.readers import AWAITING, BLOCKING, Blocking

logger = logging.getLogger("surerag")


class Compressor(Part, BaseDocumentCompressor):
    """Base class of document compressors that run a method of surerag."""

    @abstractmethod
    def _documents(self, result: Any, documents: Sequence[Document]) -> list[Document]:
        """Return the documents of a result; ``documents`` are the original input."""

    async def _program(
        self, documents: Sequence[Document], query: str, config: RunnableConfig, calls: Blocking
    ) -> Program[Any]:
        return cast("Program[Any]", self.core.program(query, passages_of(documents)))

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return the compressed documents for a query; the input documents are not changed."""
        return self._documents(self.compress(documents, query, callbacks), documents)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Like ``compress_documents``, without blocking the event loop."""
        return self._documents(await self.acompress(documents, query, callbacks), documents)

    def compress(self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None) -> Any:
        """Return the method's whole result: passages, decisions, and the numbers of calls and tokens."""
        return run_blocking(self._compress(documents, query, callbacks, BLOCKING))

    async def acompress(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Any:
        """Like ``compress``, without blocking the event loop."""
        return await self._compress(documents, query, callbacks, AWAITING)

    async def _compress(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None, calls: Blocking
    ) -> Any:
        config = ensure_config(RunnableConfig(callbacks=callbacks) if callbacks is not None else None)
        program = await self._program(documents, query, config, calls)
        return await run_program(program, self.core.services, config, calls)

    def as_runnable(self) -> Runnable[dict[str, Any], list[Document]]:
        """Return a runnable that takes a mapping with ``documents`` and ``query``, and returns documents."""

        async def acompress(value: dict[str, Any]) -> list[Document]:
            return list(await self.acompress_documents(*_request(value)))

        return RunnableLambda(
            lambda value: list(self.compress_documents(*_request(value))),
            afunc=acompress,
            name=type(self).__name__,
        )


class ClusterCompressor(Compressor, EDC2Options):
    """Selects the most relevant documents, or compresses clusters of similar documents (EDC²-RAG).

    By default it returns the most relevant third of the documents, at least three; with ``variant="copy"`` it
    returns compressed documents. A compressed document has the id and metadata of its best source (the first
    in the input). The metadata also list all sources with their ids and metadata under ``compressed_from``,
    and the source of each sentence under ``compressed_sentences``. Documents that are not compressed are
    returned as copies. If the model fails, the affected documents are returned unchanged, with a warning and
    a custom event. With ``task="answer"`` each returned document holds an answer from one cluster and the
    evidence for this answer; use ``surerag.prompts.SELECT_ANSWER`` as the prompt of your chain, to choose
    among these answers. With ``task="verify"`` the query is a statement to check.

    Selecting documents is our addition to the paper. To run section 4.3 of the paper as printed, pass
    ``variant="paper", guard="off", min_tokens=0``.

    Raises:
        ConfigurationError: If an option is out of bounds, or ``llm`` is not a model.
        MissingServiceError: If ``llm`` or ``embeddings`` is missing; or if ``entailer`` is missing, and
            ``guard`` is ``"entailment"``.
    """

    llm: Any = service_field("A chat model, an LLM or a reader of surerag.")
    embeddings: Any = service_field("An embedding model, or an encoder of surerag.")
    entailer: Any = service_field('An entailer of surerag, for guard="entailment".')
    count_tokens: Callable[[str], int] | None = service_field(
        "A function that counts the tokens of a text; by default the model's tokenizer, or an estimate."
    )

    def __init__(self, llm: Any = None, embeddings: Any = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "embeddings": embeddings, **options})

    def _make_core(self) -> CoreCompressor:
        reader = reader_of(self.llm)
        if self.embeddings is None:
            raise MissingServiceError("ClusterCompressor needs an embedding model", hint="pass embeddings=…")
        return CoreCompressor(
            reader,
            encoder_of(self.embeddings),
            self.entailer,
            count_tokens=self.count_tokens,
            **self.options(),
        )

    def _documents(self, result: EDC2Result, documents: Sequence[Document]) -> list[Document]:
        return documents_of(result.passages)


class DenseRefiner(Compressor, DenseRefinerOptions):
    """Selects from a retriever's documents the combination that makes the reader's answer most certain.

    The first ``top_n`` documents are the context, and all other documents are candidates, so let the
    retriever return more than ``top_n``. If the answer changes with the wording of the context, candidates
    that resemble the helpful documents replace the documents that only confuse the reader (DENSE-RAG, section
    5.2). With ``parents``, the original texts of the retrieved documents are cut into new documents
    before the context is measured (section 5.1).

    The returned documents are copies with their ids and metadata. Documents without text (images, say) among
    the first ``top_n`` are returned at the end. Each document's metadata have, under ``refinement_key``:
    ``score`` (entropy of the answers, in nats), ``certain`` (whether the score is at most the threshold),
    ``label`` (whether the answer needs this document: ``"necessary"``, say), ``rounds`` (number of contexts
    measured), ``stopped`` (why no further context was measured), ``answer`` and ``calls`` (number of model
    calls). If a model fails, the best context so far is returned, or else the first ``top_n`` documents, with
    a warning.

    Raises:
        ConfigurationError: If an option is out of bounds, or ``llm`` is not a model.
        MissingServiceError: If ``llm`` is missing; or if documents must be compared or cut, and
            ``embeddings`` is missing.
    """

    llm: Any = service_field("A chat model, an LLM or a reader of surerag.")
    embeddings: Any = service_field("An embedding model, or an encoder of surerag.")
    entailer: Any = service_field(
        "An entailer of surerag, or a model; it judges whether answers mean the same. By default llm."
    )
    retriever: Any = service_field(
        "A retriever that is called once for more documents when no candidates are left."
    )
    parents: Any = service_field(
        "Where to find the chunks' original documents: a ParentDocumentRetriever or MultiVectorRetriever; "
        "the docstore of such a retriever, if the chunks' metadata have the document's key under doc_id; or "
        "a function or runnable that takes chunks and returns documents."
    )
    splitter: SemanticTextSplitter | None = service_field(
        "The splitter that cuts the original documents; by default a SemanticTextSplitter with embeddings."
    )
    refinement_key: str | None = "dense"
    """Key of the result in a document's metadata; None leaves the metadata unchanged."""

    def __init__(self, llm: Any = None, embeddings: Any = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "embeddings": embeddings, **options})

    def _make_core(self) -> CoreRefiner:
        reader, encoder = reader_of(self.llm), encoder_of(self.embeddings)
        chunker = None if self.splitter is None else self.splitter.core
        if chunker is None and self.parents is not None:
            chunker = SemanticChunker(encoder, count_tokens=reader.count_tokens)
        if not (
            self.parents is None or isinstance(self.parents, BaseStore | Runnable) or callable(self.parents)
        ):
            raise ConfigurationError(
                f"expected a retriever, store or function as parents, got {kind_of(self.parents)}",
                hint="pass a ParentDocumentRetriever, its docstore, or a function from chunks to documents",
            )
        return CoreRefiner(
            reader,
            judge_of(self.entailer),
            encoder,
            retriever=retriever_of(self.retriever),
            chunker=chunker,
            **self.options(),
        )

    async def _program(
        self, documents: Sequence[Document], query: str, config: RunnableConfig, calls: Blocking
    ) -> Program[DenseRefinerResult]:
        parents: Any = []
        store = getattr(self.parents, "docstore", self.parents)
        if documents and isinstance(store, BaseStore):
            parents = await calls.call(store, "mget", self._parent_keys(documents))
            if not any(parents):
                name, reason = "dense.no_parents", "the store has no original document of these chunks"
                logger.warning("%s: %s", name, reason)
                listener_of(config)(Event(name, {"reason": reason}, warning=True))
        elif documents and self.parents is not None:
            runnable = coerce_to_runnable(self.parents)
            parents = await calls.call(runnable, "invoke", list(documents), config)
        if not isinstance(parents, list | tuple):
            raise ConfigurationError(
                f"parents must return a list of documents, but returned {kind_of(parents)}",
                hint="pass a function that returns the original documents of the chunks",
            )
        parents = passages_of(parent for parent in parents if parent is not None)
        program = self.core.program(query, passages_of(documents), parents)
        return cast("Program[DenseRefinerResult]", program)

    def _parent_keys(self, documents: Sequence[Document]) -> list[str]:
        name = getattr(self.parents, "id_key", "doc_id")
        keys = list(dict.fromkeys(one.metadata[name] for one in documents if name in one.metadata))
        if not keys:
            knows_key = hasattr(self.parents, "id_key")
            raise ConfigurationError(
                f"no chunk has the id of its original document under the metadata key {name!r}; the keys of "
                f"the first chunk are {sorted(documents[0].metadata)}",
                hint="compress chunks from the vector store that was filled by the retriever in parents=…"
                if knows_key
                else "pass parents=retriever: the retriever that filled the store knows the key (id_key)",
            )
        return keys

    def _documents(self, result: DenseRefinerResult, documents: Sequence[Document]) -> list[Document]:
        refined = documents_of(result.passages)
        if result.rounds:
            blank = passages_of(one for one in documents[: self.top_n] if not one.page_content.strip())
            refined += documents_of(blank)
        if self.refinement_key is None:
            return refined
        best = next((one.measured for one in reversed(result.rounds) if one.best), None)
        labels: Mapping[str, str] = {}
        if best is not None:
            labels = {passage.text: label for passage, label in zip(best.passages, best.labels, strict=True)}
        note = {
            "score": result.score,
            "certain": best is not None and best.certain,
            "rounds": len(result.rounds),
            "stopped": result.stopped,
            "answer": result.answer,
            "calls": result.calls,
        }
        for document in refined:
            label = labels.get(document.page_content, "untested")
            document.metadata[self.refinement_key] = Decision({**note, "label": label})
        return refined


def _request(value: Mapping[str, Any]) -> tuple[Sequence[Document], str]:
    missing = {"documents", "query"} - value.keys()
    if missing:
        raise InputError(
            f"the input lacks {' and '.join(sorted(missing))}",
            hint='pass {"documents": …, "query": …}',
        )
    return value["documents"], value["query"]
