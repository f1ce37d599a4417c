"""Semantic chunking (DENSE-RAG, Algorithm 2) as a LangChain text splitter."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from langchain_core.documents import Document
from langchain_text_splitters import TextSplitter

from langchain_surerag.documents import copied_metadata
from langchain_surerag.retrieval import encoder_of
from surerag import SemanticChunk, SemanticChunker, SemanticChunkerOptions
from surerag.drivers import arun, maybe_await, run, run_blocking
from surerag.signatures import takes_options
from surerag.text import estimated_tokens

_AT_ONCE = 64
"""Number of texts whose sentences are embedded in one call, for full batches and bounded memory."""


@takes_options(SemanticChunkerOptions)
class SemanticTextSplitter(TextSplitter):
    """Cuts texts between dissimilar sentences, into chunks of at most ``chunk_size`` tokens.

    Each chunk is a verbatim part of its text. A sentence joins the preceding chunk if the sentence is similar
    to the preceding sentence, and if the chunk stays within ``chunk_size``. A sentence that is longer than
    ``chunk_size`` is cut at line breaks, or else at white space. Chunks do not overlap.

    Args:
        embeddings: An embedding model, or an encoder of surerag.
        length_function: Function that counts the tokens of a text; None estimates their number.
        add_start_index: Whether a chunk's metadata have the chunk's position in the text, in characters,
            under ``start_index``.
        **options: Options of :class:`surerag.SemanticChunkerOptions`.

    Raises:
        ConfigurationError: If an option is unknown or out of bounds.
        MissingServiceError: If there is no embedding model.
    """

    def __init__(
        self,
        embeddings: Any = None,
        *,
        length_function: Callable[[str], int] | None = None,
        add_start_index: bool = False,
        **options: Any,
    ) -> None:
        core = SemanticChunker(encoder_of(embeddings), count_tokens=length_function, **options)
        super().__init__(
            chunk_size=core.chunk_size,
            chunk_overlap=0,
            length_function=length_function or estimated_tokens,
            add_start_index=add_start_index,
        )
        self.core = core
        """The :class:`surerag.SemanticChunker` that cuts the texts."""

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.core.options().items())
        return f"SemanticTextSplitter({options})"

    def with_options(self, **changes: Any) -> Self:
        """Return a copy with other options.

        Raises:
            ConfigurationError: If a name is unknown, or a value out of bounds.
        """
        changed = copy.copy(self)
        changed.core = self.core.with_options(**changes)
        changed._chunk_size = changed.core.chunk_size
        return changed

    def with_quantile(self, texts: Iterable[str | Document], quantile: float = 0.75) -> Self:
        """Return a copy whose threshold is a quantile of the similarities of adjacent sentences in ``texts``.

        Raises:
            ConfigurationError: If ``quantile`` is not in [0, 1].
            InputError: If no text has two sentences.
        """
        plain = [text.page_content if isinstance(text, Document) else text for text in texts]
        threshold = self.core.with_quantile(plain, quantile).similarity_threshold
        return self.with_options(similarity_threshold=threshold)

    def split_text(self, text: str) -> list[str]:
        """Return the chunks of a text, in order.

        Raises:
            InputError: If a single character has more tokens than ``chunk_size``.
            ServiceError: If the embedding model does not return one vector for each sentence.
        """
        return [chunk.text for chunk in self.core.run(text)]

    def create_documents(
        self, texts: list[str], metadatas: list[dict[Any, Any]] | None = None
    ) -> list[Document]:
        """Return the chunks of texts as documents, each with a copy of its text's metadata."""
        return run_blocking(self._documents(texts, metadatas, run))

    async def atransform_documents(self, documents: Sequence[Document], **kwargs: Any) -> Sequence[Document]:
        """Like ``transform_documents``, without blocking the event loop."""
        texts = [document.page_content for document in documents]
        return await self._documents(texts, [document.metadata for document in documents], arun)

    async def _documents(
        self, texts: Sequence[str], metadatas: Sequence[dict[Any, Any]] | None, run: Callable[..., Any]
    ) -> list[Document]:
        chunked: list[Sequence[SemanticChunk]] = []
        for start in range(0, len(texts), _AT_ONCE):
            program = self.core.joint_program(texts[start : start + _AT_ONCE])
            chunked += await maybe_await(run(program, self.core.services))
        return [
            Document(
                page_content=chunk.text,
                metadata={
                    **copied_metadata(metadata),
                    **({"start_index": chunk.start} if self._add_start_index else {}),
                },
            )
            for chunks, metadata in zip(chunked, metadatas or [{}] * len(chunked), strict=True)
            for chunk in chunks
        ]
