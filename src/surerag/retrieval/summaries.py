"""Summaries of documents, L-RAG's tier 1 (section III-A)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from typing import Any

from surerag.documents import Document, split_front_matter
from surerag.errors import ConfigurationError, InputError, ServiceError, check_at_least
from surerag.lru import LRUDict
from surerag.messages import NO_SUMMARY, SamplingParams, Template
from surerag.progress import Progress, reporting
from surerag.prompts import SUMMARIZE, as_template
from surerag.readers.protocol import Reader, as_reader
from surerag.retrieval.chunking import is_table_rule
from surerag.text import UNSPACED, split_sentences


class MissingSummariesWarning(UserWarning):
    """Some documents have no summary, so that L-RAG searches wherever one of them is the nearest."""


class StaleSummariesWarning(UserWarning):
    """Summaries are not shown, because their documents or vectors have changed."""


Summarizer = Callable[[Sequence[Document]], list[str]]
"""Returns one summary for each document, in order; an empty text where a document has none."""


_WHOLE_TEXT = 200
"""A text of at most this number of characters is its own summary."""
_SENTENCE_WORDS, _UNPUNCTUATED_WORDS = 5, 25
"""Words of a sentence that makes a paragraph prose: if a mark ends it, and if no mark does."""
_LONGEST = 1000
"""Maximum length of a sentence, in characters; a text without marks is one long sentence."""
_SEARCHED_CHARACTERS = 1000
"""Number of first characters by which a document without a summary is searched."""
_DECIDING_CHARACTERS = 4000
"""Characters of a paragraph that are read to decide whether it is prose."""
_LINK = re.compile(r"!?\[[^\[\]]*\]\([^()]*\)")
_WORD = re.compile(rf"[{UNSPACED}]{{2}}|[^\W\d_{UNSPACED}]+")
_END = re.compile(r"[.!?…。！？؟۔।]['\")\]*_»”’]*\Z")  # noqa: RUF001
_FIELD = re.compile(r"[^\s:][^:]{0,60}:(?:\s|\Z)")
_UNDERLINES = "=-~^\"'*+#"


def prose(text: str) -> str:
    r"""Return the prose of a text in Markdown or reStructuredText.

    Front matter, headings, tables, code, pictures, lists of links and of ``name: value`` are left out, and,
    where the rest has more than 200 characters, paragraphs without a sentence, such as those of a title page.

    Example:
        >>> prose("---\ntitle: Velm\n---\n# Velm\n\n| a | b |\n|---|---|\n\nVelm is a town.")
        'Velm is a town.'
    """
    return "\n\n".join(_prose(text))


def _prose(text: str) -> Iterator[str]:
    paragraphs = _paragraphs(split_front_matter(text)[1])
    begun: list[str] = []
    for paragraph in paragraphs:
        begun.append(paragraph)
        if sum(map(len, begun)) > _WHOLE_TEXT:
            yield from filter(_has_sentence, chain(begun, paragraphs))
            return
    yield from begun


def _paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs without lines that are markup, and without those that are lists of values."""
    lines: list[str] = []
    for line in chain(_text_lines(text), [""]):
        if line:
            lines.append(line)
        elif lines:
            if len(lines) == 1 or not all(map(_FIELD.match, lines)):
                yield "\n".join(lines)
            lines = []


def _text_lines(text: str) -> Iterator[str]:
    """Yield lines, and empty ones for markup, which ends a paragraph."""
    fence = before = ""
    in_table = False
    for line, following in pairwise(chain(text.splitlines(), [""])):
        stripped = line.strip()
        opens = stripped.startswith("```") or (stripped.startswith("~~~") and not before)
        if opens if not fence else stripped.startswith(fence):
            fence = "" if fence else stripped[:3]
            stripped = ""
        in_table = is_table_rule(line) or (in_table and "|" in line)
        heads = stripped and (_is_underline(following.strip()) or is_table_rule(following))
        yield "" if fence or in_table or heads or _is_markup(stripped) else stripped
        before = stripped


def _is_underline(line: str) -> bool:
    return len(line) > 1 and line[0] in _UNDERLINES and not line.strip(line[0])


def _is_markup(line: str) -> bool:
    """Whether a line is a heading, a rule, part of a table, links alone, a directive or a tag."""
    without_marks = line.lstrip("#")
    if len(line) - len(without_marks) in range(1, 7) and (not without_marks or without_marks[0].isspace()):
        return True
    if line.startswith(("|", ".. ", "[^")) or (line.startswith("<") and line.find(">") == len(line) - 1):
        return True
    if line.startswith("[") and "]: " in line[:200]:
        return True
    if line and (not line.strip("-*_= \t") or _is_underline(line)):
        return True
    # Twice, since pictures stand inside links.
    rest = _LINK.sub("", _LINK.sub("", line))
    return rest != line and not _WORD.search(rest)


def _has_sentence(paragraph: str) -> bool:
    text = paragraph[:_DECIDING_CHARACTERS]
    if len(_WORD.findall(text)) >= _UNPUNCTUATED_WORDS and len(text.split("\n")) < _SENTENCE_WORDS:
        return True
    ended = (one.text for one in split_sentences(text) if _END.search(one.text))
    return any(len(_WORD.findall(sentence)) >= _SENTENCE_WORDS for sentence in ended)


def lead_summary(
    text: str,
    sentences: int = 2,
    *,
    per_paragraph: bool = False,
    language: str = "en",
) -> str:
    r"""Return the first sentences of a text's prose, or of each of its paragraphs.

    Args:
        text: The document, plain or in Markdown.
        sentences: How many, at least 1.
        per_paragraph: Whether of each paragraph, rather than of the whole.
        language: ISO 639 code, for the language's abbreviations and marks.

    Returns:
        The sentences, joined by spaces; empty if the text has no prose.

    Example:
        >>> lead_summary("# Ada\n\n## Life\n\nAda was born in Velm. She paints. She sings.")
        'Ada was born in Velm. She paints.'
    """
    check_at_least(1, sentences=sentences)
    lead: list[str] = []
    for paragraph in _prose(text):
        most = sentences if per_paragraph else sentences - len(lead)
        lead += [
            " ".join(sentence.text[:_LONGEST].split())
            for sentence in split_sentences(paragraph, language)[:most]
        ]
        if len(lead) >= sentences and not per_paragraph:
            break
    return " ".join(lead)


def with_summaries(documents: Sequence[Document], summaries: Sequence[str]) -> list[Document]:
    """Return what L-RAG's tier 1 holds for documents: their summaries as texts, with the same metadata.

    One without a summary is held by its title and beginning, and ``NO_SUMMARY`` in its metadata: where it is
    the nearest, L-RAG searches, and answers nothing from it.

    Raises:
        ServiceError: If there are not as many summaries as documents.

    Warns:
        MissingSummariesWarning: How many documents have none.
    """
    if len(summaries) != len(documents):
        raise ServiceError(f"{len(summaries)} summaries were made of {len(documents)} documents")
    held = [
        replace(document, text=summary)
        if summary.strip()
        else replace(document, text=_beginning(document), metadata={**document.metadata, NO_SUMMARY: True})
        for document, summary in zip(documents, summaries, strict=True)
    ]
    missing = [document.id or document.title for document in held if NO_SUMMARY in document.metadata]
    if missing:
        names = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        warnings.warn(
            f"{len(missing)} of {len(held)} documents have no summary ({names}): L-RAG searches where one of "
            "them is the nearest. A model can write summaries: summarize=ModelSummaries(reader)",
            MissingSummariesWarning,
            stacklevel=3,
        )
    return held


def _beginning(document: Document) -> str:
    return " ".join(f"{document.title}\n{document.text[:_SEARCHED_CHARACTERS]}".split())


@dataclass(frozen=True)
class LeadSummaries:
    """The first sentences of each document but tables; the fields are :func:`lead_summary`'s arguments."""

    sentences: int = 2
    per_paragraph: bool = False
    language: str = "en"

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order."""
        return [
            "" if document.rows else lead_summary(document.text, **asdict(self)) for document in documents
        ]


def summarizer_of(
    how: Any, models: Any, reader_of: Callable[[Any], Reader]
) -> Callable[[Sequence[Document], Sequence[Any]], list[str]]:
    """Return what summarizes documents, which it takes as ours and as a framework's own.

    ``how`` is a number of lead sentences, a key of the metadata, a function of the framework's document, or a
    model: one of the types ``models``, of which ``reader_of`` makes a reader.
    """
    if isinstance(how, models):
        written = ModelSummaries(reader_of(how))
        return lambda documents, _: written(documents)
    if isinstance(how, str):
        return lambda documents, _: stored_summaries(documents, how)
    if isinstance(how, int) and not isinstance(how, bool):
        return lambda documents, _: LeadSummaries(how)(documents)
    if callable(how):
        return lambda _, originals: [how(one) for one in originals]
    raise ConfigurationError(
        f"summarize cannot be {how!r}",
        hint="pass a number of sentences, a key of the metadata, a function or a model",
    )


def stored_summaries(documents: Sequence[Document], key: str) -> list[str]:
    """Return a value of each document's metadata, such as its abstract.

    Raises:
        InputError: If a document has none.
    """
    for document in documents:
        if not str(document.metadata.get(key) or "").strip():
            raise InputError(
                f"document {document.id!r} has no summary under the metadata key {key!r}",
                hint=f"its keys are {sorted(document.metadata)}",
            )
    return [str(document.metadata[key]) for document in documents]


class ModelSummaries:
    """Summaries that a reader writes, once for each text; where it writes none, the first two sentences.

    It is meant for documents whose first sentences do not say what they are about, such as tables.

    Args:
        reader: The model.
        prompt: A template with the slot ``document``.
        max_tokens: Longest summary.
        max_characters: Only so much of a document's beginning is shown to the model; None shows all.
        batch_size: Documents that the reader is asked about at once.
        progress: True shows a bar on a terminal; a callable gets (done, total).

    Raises:
        PromptError: If the prompt has other slots.
        ConfigurationError: If ``batch_size`` is less than 1.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        prompt: Template | str = SUMMARIZE,
        max_tokens: int = 96,
        max_characters: int | None = 8000,
        batch_size: int = 16,
        progress: Progress = True,
    ) -> None:
        check_at_least(1, batch_size=batch_size)
        self._reader = as_reader(reader)
        self._prompt = as_template("summary", prompt).require("document")
        self._sampling = SamplingParams(max_tokens=max_tokens, trace="none")
        self._max_characters = max_characters
        self._batch_size = batch_size
        self._progress = progress
        self._cache: LRUDict[str] = LRUDict(10_000)

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order."""
        summaries = {document.text: self._cache.get(document.text) for document in documents}
        new = [text for text, summary in summaries.items() if summary is None]
        with reporting(self._progress, len(new), "Summaries") as advance:
            for start in range(0, len(new), self._batch_size):
                texts = new[start : start + self._batch_size]
                prompts = [self._prompt.render(document=text[: self._max_characters]) for text in texts]
                replies = self._reader.generate(prompts, self._sampling)
                for text, (reply,) in zip(texts, replies, strict=True):
                    summaries[text] = summary = reply.text.strip() or lead_summary(text)
                    self._cache.put(text, summary)
                    advance()
        return [summaries[document.text] or "" for document in documents]
