"""Summaries of documents, L-RAG's tier 1 (section III-A)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from surerag.documents import Document, split_front_matter
from surerag.errors import ConfigurationError, InputError
from surerag.lru import LRUDict
from surerag.messages import SamplingParams, Template
from surerag.prompts import SUMMARIZE
from surerag.readers.protocol import Reader
from surerag.text import split_sentences


class Summarizer(Protocol):
    """Anything that makes a summary of each document."""

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order."""


_FENCE = re.compile(r"\s*(```|~~~)")
_MARKUP = re.compile(
    r"\s{0,3}(?:#{1,6}(?:\s|$)"  # headings
    r"|(?:[-*_]\s*){3,}$|=+\s*$"  # rules, and lines under headings
    r"|\|.*"  # tables
    r"|(?:\s*\[?!?\[[^\]]*\]\([^)]*\)(?:\]\([^)]*\))?)+\s*$|\[[^\]]+\]:\s"  # pictures, links alone
    r"|<[^>]*>\s*$)"  # lines of a tag alone
)
_UNDERLINE = re.compile(r"\s{0,3}(?:=+|-{2,})\s*$")
_TABLE_RULE = re.compile(r"\s{0,3}(?=.*\|)[\s:|-]*-{3}[\s:|-]*$")


def prose(text: str) -> str:
    r"""Return a text without what is no prose in Markdown: front matter, headings, tables, code, pictures.

    Where nothing would be left, it is the text.

    Example:
        >>> prose("---\ntitle: Velm\n---\n# Velm\n\n| a | b |\n|---|---|\n\nVelm is a town.")
        'Velm is a town.'
    """
    lines = list(_prose_lines(split_front_matter(text)[1].splitlines()))
    return "\n".join(lines).strip() or text


def _prose_lines(lines: Sequence[str]) -> Iterator[str]:
    in_code = in_table = False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if _FENCE.match(line):
            in_code = not in_code
            continue
        in_table = bool(_TABLE_RULE.match(line)) or (in_table and "|" in line)
        heads = line.strip() and (_UNDERLINE.match(following) or _TABLE_RULE.match(following))
        if in_code or in_table or heads or _MARKUP.match(line):
            yield ""  # ends the paragraph
        else:
            yield line


def lead_summary(
    text: str,
    sentences: int = 2,
    *,
    per_paragraph: bool = False,
    language: str = "en",
    max_characters: int = 1000,
) -> str:
    r"""Return the first sentences of a text's prose, or of each of its paragraphs.

    Args:
        text: The document, plain or in Markdown.
        sentences: How many.
        per_paragraph: Whether of each paragraph, rather than of the whole.
        language: ISO 639 code, for the language's abbreviations and marks.
        max_characters: Longest sentence; a text without marks is one long sentence.

    Returns:
        The sentences, joined by spaces; empty if the text is.

    Raises:
        ConfigurationError: If ``sentences`` or ``max_characters`` is less than 1.

    Example:
        >>> lead_summary("# Ada\n\n## Life\n\nAda was born in Velm. She paints. She sings.")
        'Ada was born in Velm. She paints.'
    """
    for name, value in (("sentences", sentences), ("max_characters", max_characters)):
        if value < 1:
            raise ConfigurationError(f"{name} must be at least 1, got {value}")
    body = prose(text)
    paragraphs = re.split(r"\n[ \t]*\n", body) if per_paragraph else [body]
    return " ".join(
        " ".join(sentence.text[:max_characters].split())
        for paragraph in paragraphs
        for sentence in split_sentences(paragraph, language)[:sentences]
    )


@dataclass(frozen=True)
class LeadSummaries:
    """The first sentences of each document; the fields are :func:`lead_summary`'s arguments."""

    sentences: int = 2
    per_paragraph: bool = False
    language: str = "en"
    max_characters: int = 1000

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order."""
        return [lead_summary(document.text, **asdict(self)) for document in documents]


@dataclass(frozen=True)
class MetadataSummaries:
    """A value of each document's metadata, such as its abstract, by its ``key``."""

    key: str

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order.

        Raises:
            InputError: If a document has none.
        """
        summaries = []
        for document in documents:
            summary = document.metadata.get(self.key)
            if not isinstance(summary, str) or not summary.strip():
                raise InputError(
                    f"document {document.id!r} has no summary under the metadata key {self.key!r}",
                    hint=f"its keys are {sorted(document.metadata)}",
                )
            summaries.append(summary)
        return summaries


class ModelSummaries:
    """Summaries that a reader writes, once for each text; where it writes none, the first two sentences.

    Args:
        reader: The model.
        prompt: A template with the slot ``document``.
        max_tokens: Longest summary.
        max_characters: Only so much of a document's beginning is shown to the model; None shows all.
        batch_size: Documents that the reader is asked about at once.

    Raises:
        PromptError: If the prompt has other slots.
        ConfigurationError: If ``batch_size`` is less than 1.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        prompt: Template = SUMMARIZE,
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
        self._cache: LRUDict[str] = LRUDict(10_000)

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order."""
        summaries = {document.text: self._cache.get(document.text) for document in documents}
        new = [text for text, summary in summaries.items() if summary is None]
        for start in range(0, len(new), self._batch_size):
            texts = new[start : start + self._batch_size]
            prompts = [self._prompt.render(document=text[: self._max_characters]) for text in texts]
            replies = self._reader.generate(prompts, self._sampling)
            for text, (reply,) in zip(texts, replies, strict=True):
                summaries[text] = summary = reply.text or lead_summary(text)
                self._cache.put(text, summary)
        return [summaries[document.text] or "" for document in documents]
