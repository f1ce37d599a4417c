"""Summaries of documents, L-RAG's tier 1: section III-A."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import wraps
from itertools import islice
from typing import Final, Protocol

from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError
from surerag.messages import SamplingParams
from surerag.prompts import SUMMARIZE, PromptTemplate
from surerag.readers.protocol import Reader
from surerag.retrieval.sentences import split_sentences

_PARAGRAPH_BREAK = re.compile(r"\n[ \t]*\n")


class Summarizer(Protocol):
    """Anything that makes a summary of each document."""

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order."""


def lead_summary(
    text: str,
    sentences: int = 2,
    *,
    per_paragraph: bool = False,
    language: str = "en",
    max_characters: int = 1000,
) -> str:
    """Return the first sentences of a text, or of each of its paragraphs.

    Args:
        text: The document.
        sentences: How many.
        per_paragraph: Whether of each paragraph (a blank line separates them), rather than of the whole.
        language: ISO 639 code, for the language's abbreviations and marks.
        max_characters: No sentence counts for more than this: a text without marks is one long sentence.

    Returns:
        The sentences, joined by spaces; empty if the text is.

    Raises:
        ConfigurationError: If ``sentences`` or ``max_characters`` is less than 1.

    Example:
        >>> lead_summary("Ada was born in Velm. She paints. She sings.")
        'Ada was born in Velm. She paints.'
    """
    for name, value in (("sentences", sentences), ("max_characters", max_characters)):
        if value < 1:
            raise ConfigurationError(f"{name} must be at least 1, got {value}")
    paragraphs = _PARAGRAPH_BREAK.split(text) if per_paragraph else [text]
    return " ".join(
        " ".join(sentence.text[:max_characters].split())
        for paragraph in paragraphs
        for sentence in split_sentences(paragraph, language)[:sentences]
    )


@dataclass(frozen=True)
class LeadSummaries:
    """Takes the first sentences of each document; the fields are :func:`lead_summary`'s arguments."""

    sentences: int = 2
    per_paragraph: bool = False
    language: str = "en"
    max_characters: int = 1000

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order."""
        return [lead_summary(document.text, **asdict(self)) for document in documents]


@dataclass(frozen=True)
class MetadataSummaries:
    """Takes a value of each document's metadata, such as its abstract.

    Attributes:
        key: Where it stands.
    """

    key: str

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order.

        Raises:
            InputError: If a document has none.
        """
        return [self._of(document) for document in documents]

    def _of(self, document: Document) -> str:
        summary = document.metadata.get(self.key)
        if not isinstance(summary, str) or not summary.strip():
            raise InputError(
                f"document {document.id!r} has no summary under the metadata key {self.key!r}",
                hint=f"its keys are {sorted(document.metadata)}",
            )
        return summary


def each(summarize: Callable[[Document], str]) -> Summarizer:
    """Make a summarizer of a function that takes one document."""

    @wraps(summarize)
    def summaries(documents: Sequence[Document]) -> list[str]:
        return [summarize(document) for document in documents]

    return summaries


REMEMBERED: Final = 10_000
"""Summaries that :class:`ModelSummaries` remembers: a corpus of any length may go through it."""


class ModelSummaries:
    """Lets a model write each summary, once: a document that was just seen is not asked about again.

    Where the model writes nothing, the document's first two sentences stand in.

    Args:
        reader: The model.
        prompt: With the slot ``{document}``.
        max_tokens: Length of a summary at most.
        max_characters: Only so much of a document's beginning is shown to the model; None shows all of it.
        batch_size: Documents that the reader is asked about at once.

    Raises:
        PromptError: If the prompt has other slots.
        ConfigurationError: If ``batch_size`` is less than 1.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        prompt: PromptTemplate = SUMMARIZE,
        max_tokens: int = 96,
        max_characters: int | None = None,
        batch_size: int = 16,
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be at least 1, got {batch_size}")
        self._reader = reader
        self._prompt = prompt.require("document")
        self._sampling = SamplingParams(max_tokens=max_tokens, trace="none")
        self._max_characters = max_characters
        self._batch_size = batch_size
        self._written: dict[bytes, str] = {}

    def __repr__(self) -> str:
        prompt = hashlib.sha256(self._prompt.text.encode()).hexdigest()[:16]
        return (
            f"ModelSummaries({self._reader.name!r}, prompt={prompt}, max_tokens={self._sampling.max_tokens}, "
            f"max_characters={self._max_characters})"
        )

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order."""
        texts = {_key(document.text): document.text for document in documents}
        new = [text for key, text in texts.items() if key not in self._written]
        for start in range(0, len(new), self._batch_size):
            self._write(new[start : start + self._batch_size])
        found = [self._written[_key(document.text)] for document in documents]
        for key in list(islice(self._written, max(0, len(self._written) - REMEMBERED))):
            del self._written[key]
        return found

    def _write(self, texts: Sequence[str]) -> None:
        prompts = [self._prompt.render(document=text[: self._max_characters]) for text in texts]
        answers = self._reader.generate(prompts, self._sampling)
        for text, (answer,) in zip(texts, answers, strict=True):
            self._written[_key(text)] = answer.text or lead_summary(text)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).digest()


def identity_of(summarize: Summarizer) -> str:
    """Say how summaries are made, so that those made in another way are told apart.

    Of what has settings (those of this module, your own dataclasses) they are in it; of anything else there
    is its name alone.

    Example:
        >>> identity_of(MetadataSummaries("abstract"))
        "MetadataSummaries(key='abstract')"
    """
    if is_dataclass(summarize) or isinstance(summarize, ModelSummaries):
        return repr(summarize)
    named = summarize if hasattr(summarize, "__qualname__") else type(summarize)
    return f"{named.__module__}.{named.__qualname__}"
