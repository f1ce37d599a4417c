"""EDC²-RAG as a LangChain document compressor: similar documents together, each cluster compressed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import set_config_context
from pydantic import Field

from langchain_surerag._driving import arun, run
from langchain_surerag._events import Announcing, announcer
from langchain_surerag.documents import documents_of, passages_of
from langchain_surerag.parts import AdaptedPart, config_of, runnable_of
from langchain_surerag.services import EmbeddingEncoder, reader_of
from surerag import ClusterCompressor as CoreCompressor
from surerag import EDC2Options, EDC2Result


class ClusterCompressor(  # type: ignore[misc]  # a frozen base; fields that are set are in force
    AdaptedPart[CoreCompressor], BaseDocumentCompressor, EDC2Options
):
    """Puts similar documents together and compresses each cluster for the query, in one call a cluster.

    A compressed document has its best source's id and metadata; ``compressed_from`` in its metadata lists
    all sources with their ids and metadata, and ``provenance`` tells of each of its characters which source
    has it, and where (:class:`surerag.Stretch`). Documents that are not compressed come back as copies. No
    document that goes in is changed.

    Clusters for which the model fails go through as they are, with a warning and a custom event.

    Attributes:
        llm: A chat model or LLM, with bindings, retries and fallbacks around it if any; or a reader of
            surerag.
        embeddings: An embedding model, or an encoder of surerag; not needed for ``clustering="single"`` or
            ``"random"``.
        entailer: For ``guard="entailment"``.
        count_tokens: Counts the tokens of a text, for ``budget`` and reports; by default the model's own
            count, where it is in this process or has ``custom_get_token_ids``, else an estimate by the
            text's scripts. ``model.get_num_tokens`` counts, too; of some models it asks a server.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the model is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = FakeReader(["Ada was born in Velm."])
        >>> compressor = ClusterCompressor(reader, HashingEncoder(), pass_below=0)
        >>> found = [Document("Ada, a painter, was born in Velm."), Document("Bo came later.")]
        >>> kept = compressor.compress_documents(found, "Where was Ada born?")
        >>> [document.page_content for document in kept]
        ['Ada was born in Velm.']
    """

    llm: Any = Field(default=None, exclude=True, repr=False, kw_only=False)
    embeddings: Any = Field(default=None, exclude=True, repr=False, kw_only=False)
    entailer: Any = Field(default=None, exclude=True, repr=False)
    count_tokens: Callable[[str], int] | None = Field(default=None, exclude=True, repr=False)

    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __init__(self, llm: Any = None, embeddings: Any = None, **options: Any) -> None:
            services: dict[str, Any] = {"llm": llm, "embeddings": embeddings}
            super().__init__(**services, **options)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return compressed documents, ordered by the best source of each."""
        return documents_of(self.compress(documents, query, callbacks).passages)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Like ``compress_documents``, without blocking the event loop."""
        return documents_of((await self.acompress(documents, query, callbacks)).passages)

    def compress(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> EDC2Result:
        """Return the whole result: what became of each cluster, calls, tokens and cost."""
        program = self.core.program(query, passages_of(documents))
        config = config_of(callbacks)
        with set_config_context(config) as context:
            return context.run(run, program, self.core.services, on_event=announcer(config))

    async def acompress(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> EDC2Result:
        """Like ``compress``, without blocking the event loop."""
        program = self.core.program(query, passages_of(documents))
        config = config_of(callbacks)
        async with Announcing(config) as announce:
            with set_config_context(config) as context:
                work = arun(program, self.core.services, on_event=announce)
                return await asyncio.get_running_loop().create_task(work, context=context)

    def as_runnable(self) -> Runnable[dict[str, Any], list[Document]]:
        """Return a runnable from a mapping with ``documents`` and ``query`` to compressed documents."""
        return runnable_of(self)

    def _core(self) -> CoreCompressor:
        return compressor_over(self.llm, self.embeddings, self.entailer, self.count_tokens, self.chosen())


def compressor_over(
    llm: Any,
    embeddings: Any,
    entailer: Any,
    count_tokens: Callable[[str], int] | None,
    options: Mapping[str, Any],
) -> CoreCompressor:
    """Return the method over a pipeline's models, which asks for no log-probabilities."""
    return CoreCompressor(
        reader_of(llm, top_logprobs=0),
        EmbeddingEncoder(embeddings) if isinstance(embeddings, Embeddings) else embeddings,
        entailer,
        count_tokens=count_tokens or _count_of(llm),
        **options,
    )


def _count_of(model: Any) -> Callable[[str], int] | None:
    """Return how a user told a model to count."""
    encode = model.custom_get_token_ids if isinstance(model, BaseLanguageModel) else None
    return None if encode is None else lambda text: len(encode(text))
