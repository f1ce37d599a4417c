"""Adaptive semantic chunking (DENSE-RAG, Algorithm 2) as a LangChain text splitter."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_text_splitters import TextSplitter

from langchain_surerag.services import EmbeddingEncoder
from surerag import SemanticChunk, SemanticChunker, SemanticChunkerOptions, arun, run
from surerag.errors import ConfigurationError
from surerag.options import check_names, takes

_BATCH = 64
"""Texts whose sentences are embedded in one call: a model gets full batches, and memory stays bounded."""


class AdaptiveSemanticSplitter(TextSplitter):
    """Cuts texts where neighbouring sentences are unlike, and never above a maximum.

    Chunks are stretches of their text, verbatim. A sentence joins the chunk before it if the two sentences
    are alike and the chunk stays within ``chunk_size``; a sentence that alone is longer is cut at line
    breaks, else at white space. Chunks do not overlap, and have no ids: vector stores give them theirs.

    ``from_tiktoken_encoder(…, embeddings=embeddings)`` and ``from_huggingface_tokenizer`` count in the tokens
    of a model. The async methods await the embedding model's own.

    Args:
        embeddings: An embedding model, or an encoder of surerag.
        length_function: Counts the tokens of a text; None estimates by the text's scripts.
        add_start_index: Whether a chunk's metadata tells where it begins in its text (``start_index``).
        **options: Listed at the constructor.

    Raises:
        ConfigurationError: If an option is unknown or out of bounds.
        MissingServiceError: If there is no embedding model.

    Example:
        >>> from surerag.encoders import HashingEncoder
        >>> splitter = AdaptiveSemanticSplitter(HashingEncoder(), similarity_threshold=0.3)
        >>> splitter.split_text("Ada was born in Velm. Ada left Velm in spring. Tin melts easily.")
        ['Ada was born in Velm. Ada left Velm in spring.', 'Tin melts easily.']
    """

    @takes(SemanticChunkerOptions)
    def __init__(
        self,
        embeddings: Any,
        *,
        length_function: Callable[[str], int] | None = None,
        add_start_index: bool = False,
        **options: Any,
    ) -> None:
        """Build a splitter; see the class."""
        encoder = EmbeddingEncoder(embeddings) if isinstance(embeddings, Embeddings) else embeddings
        check_names(type(self), options)
        core = SemanticChunker(encoder, length_function, **options)
        super().__init__(
            chunk_size=core.chunk_size,
            chunk_overlap=0,
            length_function=core.tokens,
            add_start_index=add_start_index,
        )
        self._core = core

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self._core.chosen().items())
        return f"AdaptiveSemanticSplitter({self._core.encoder.name!r}, {told})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to set an option, which would change nothing.

        Raises:
            ConfigurationError: If it is one.
        """
        if not name.startswith("_"):
            raise ConfigurationError(
                f"{name} of a splitter cannot be set", hint="make a copy: with_options(…)"
            )
        super().__setattr__(name, value)

    @property
    def core(self) -> SemanticChunker:
        """The method with its options and its encoder."""
        return self._core

    def with_options(self, **changes: Any) -> Self:
        """Return a copy with other options.

        Raises:
            ConfigurationError: If a name is unknown, or a value out of bounds.
        """
        changed = copy.copy(self)
        changed._core = self._core.with_options(**changes)
        changed._chunk_size, changed._length_function = changed._core.chunk_size, changed._core.tokens
        return changed

    def with_quantile(self, texts: Iterable[str | Document], quantile: float = 0.5) -> Self:
        """Return a copy with the similarity that this share of the texts' neighbouring sentences lies below.

        Raises:
            ConfigurationError: If ``quantile`` is not in [0, 1].
            InputError: If no text has two sentences.
        """
        given = [text.page_content if isinstance(text, Document) else text for text in texts]
        fitted = self._core.with_quantile(given, quantile)
        return self.with_options(similarity_threshold=fitted.similarity_threshold)

    def split_text(self, text: str) -> list[str]:
        """Return the chunks of a text, in order.

        Raises:
            InputError: If a single character is longer than ``chunk_size``.
            ServiceError: If the embedding model fails to return one vector a sentence.
        """
        return [chunk.text for chunk in self._core.run(text)]

    async def asplit_text(self, text: str) -> list[str]:
        """Like ``split_text``, without blocking the event loop."""
        return [chunk.text for chunk in await self._core.arun(text)]

    def create_documents(
        self, texts: list[str], metadatas: list[dict[Any, Any]] | None = None
    ) -> list[Document]:
        """Return the chunks of texts as documents, each with a copy of its text's metadata."""
        return [
            document
            for chunks, metadata in zip(self._chunked(texts), metadatas or [{}] * len(texts), strict=True)
            for document in self._documents(chunks, metadata)
        ]

    async def acreate_documents(
        self, texts: list[str], metadatas: list[dict[Any, Any]] | None = None
    ) -> list[Document]:
        """Like ``create_documents``, without blocking the event loop."""
        chunked = [chunks async for chunks in self._achunked(texts)]
        return [
            document
            for chunks, metadata in zip(chunked, metadatas or [{}] * len(texts), strict=True)
            for document in self._documents(chunks, metadata)
        ]

    async def asplit_documents(self, documents: Iterable[Document]) -> list[Document]:
        """Like ``split_documents``, without blocking the event loop."""
        given = list(documents)
        return await self.acreate_documents(
            [document.page_content for document in given], [document.metadata for document in given]
        )

    async def atransform_documents(self, documents: Sequence[Document], **kwargs: Any) -> Sequence[Document]:
        """Like ``transform_documents``, without blocking the event loop."""
        return await self.asplit_documents(documents)

    def _chunked(self, texts: Sequence[str]) -> Iterator[list[SemanticChunk]]:
        for batch in _batches(texts):
            yield from run(self._core.joint_program(batch), self._core.services)

    async def _achunked(self, texts: Sequence[str]) -> AsyncIterator[list[SemanticChunk]]:
        for batch in _batches(texts):
            for chunks in await arun(self._core.joint_program(batch), self._core.services):
                yield chunks

    def _documents(self, chunks: Iterable[SemanticChunk], metadata: dict[Any, Any]) -> Iterator[Document]:
        for chunk in chunks:
            place = {"start_index": chunk.start} if self._add_start_index else {}
            yield Document(page_content=chunk.text, metadata={**copy.deepcopy(metadata), **place})


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH))
