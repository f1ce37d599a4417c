"""EDC²-RAG as a LangChain document compressor: similar documents together, each cluster compressed."""

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
from langchain_surerag._events import Announcing, announcer
from langchain_surerag.documents import documents_of, passages_of
from langchain_surerag.encoders import EmbeddingEncoder
from langchain_surerag.prompts import PromptLike, prompt_from
from langchain_surerag.readers import reader_from_model
from surerag import ClusterCompressor as CoreCompressor
from surerag.methods.compression_options import (
    MODES,
    PLAIN_SETTINGS,
    CompressorOptions,
    check_prompt_names,
)
from surerag.methods.compression_types import CompressionPrompts, CompressionResult
from surerag.readers import Reader


class ClusterCompressor(BaseDocumentCompressor, CompressorOptions):  # type: ignore[misc]  # pydantic freezes
    """Puts similar documents together and compresses each cluster for the query, in one call a cluster.

    A compressed document has its best source's id and metadata; ``compressed_from`` in its metadata lists
    all sources with their ids and metadata. Documents that are not compressed come back as copies. No
    document that goes in is changed.

    Clusters for which the model fails go through as they are, with a warning and a custom event.

    What it does to clusters is set by the fields of
    :class:`~surerag.methods.compression_options.CompressorOptions`: ``mode``, ``tau``, ``budget`` …

    Attributes:
        llm: A chat model or LLM, with bindings, retries and fallbacks around it if any; or a reader of
            surerag.
        embeddings: An embedding model, or an encoder of surerag; not needed for ``clustering="single"`` or
            ``"random"``.
        entailer: For ``guard="entailment"``.
        count_tokens: Counts the tokens of a text, for ``budget`` and reports; by default the reader's own
            count, where it has one, else words and punctuation marks.
        prompts: Prompts in place of ours, by mode: texts or PromptTemplates with the slots ``examples``,
            ``question`` (``statement`` in ``"fact_check"``) and ``passages``.

    Raises:
        ConfigurationError: If a setting is out of range, or the model is none.
        PromptError: If a prompt's slots do not fit.

    Example:
        >>> from surerag import ScriptedReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = ScriptedReader(["Ada was born in Velm."])
        >>> compressor = ClusterCompressor(reader, HashingEncoder(), pass_below=0)
        >>> found = [Document("Ada, a painter, was born in Velm."), Document("Bo came later.")]
        >>> kept = compressor.compress_documents(found, "Where was Ada born?")
        >>> [document.page_content for document in kept]
        ['Ada was born in Velm.']
    """

    llm: Any = Field(default=None, exclude=True, repr=False)
    embeddings: Any = Field(default=None, exclude=True, repr=False)
    entailer: Any = Field(default=None, exclude=True, repr=False)
    count_tokens: Any = Field(default=None, exclude=True, repr=False)
    prompts: Mapping[str, PromptLike] = Field(default_factory=dict)
    _compressor: CoreCompressor = PrivateAttr()

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    def __init__(self, llm: Any = None, embeddings: Any = None, **settings: Any) -> None:
        services: dict[str, Any] = {"llm": llm, "embeddings": embeddings}
        super().__init__(**services, **settings)
        self._compressor = self._built()

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
    ) -> CompressionResult:
        """Return the whole result: what became of each cluster, calls, tokens and cost."""
        config = config_of(callbacks)
        with set_config_context(config) as context:
            return context.run(
                self._compressor.run, query, passages_of(documents), on_event=announcer(config)
            )

    async def acompress(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> CompressionResult:
        """Like ``compress``, without blocking the event loop."""
        config = config_of(callbacks)
        async with Announcing(config) as announce:
            with set_config_context(config) as context:
                work = self._compressor.arun(query, passages_of(documents), on_event=announce)
                return await asyncio.get_running_loop().create_task(work, context=context)

    def as_runnable(self) -> Runnable[dict[str, Any], list[Document]]:
        """Return a runnable from a mapping with ``documents`` and ``query`` to compressed documents."""
        return runnable_of(self)

    def _built(self) -> CoreCompressor:
        check_prompt_names(self.prompts)
        ours = CompressionPrompts()
        prompts = {mode: prompt_from(self.prompts.get(mode), getattr(ours, mode)) for mode in MODES}
        settings: dict[str, Any] = {name: getattr(self, name) for name in PLAIN_SETTINGS}
        embeddings = self.embeddings
        return CoreCompressor(
            self.llm if isinstance(self.llm, Reader) else reader_from_model(self.llm, top_logprobs=0),
            EmbeddingEncoder(embeddings) if isinstance(embeddings, Embeddings) else embeddings,
            self.entailer,
            count_tokens=self.count_tokens,
            examples=self.examples,
            prompts=CompressionPrompts(**prompts),
            **settings,
        )
