"""Summaries of documents, from which L-RAG answers first (section III-A)."""

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
from surerag.text import UNSPACED, check_language, split_sentences


class MissingSummariesWarning(UserWarning):
    """Warns of documents without a summary. L-RAG retrieves if such a document is the best match."""


class StaleSummariesWarning(UserWarning):
    """Warns that summaries are ignored, because their documents or vectors have changed."""


Summarizer = Callable[[Sequence[Document]], list[str]]
"""A function that returns a summary of each document, in order; an empty text means no summary."""


_WHOLE_TEXT = 200
"""In a text of at most this number of characters, each paragraph counts as prose."""
_SENTENCE_WORDS, _UNPUNCTUATED_WORDS = 5, 25
"""Minimum number of words of a sentence in prose: with punctuation at its end, and without."""
_LONGEST = 1000
"""In a summary, a sentence is cut after this number of characters; a text without punctuation is one
sentence."""
_SEARCHED_CHARACTERS = 1000
"""If a document has no summary, this number of its first characters is indexed in place of a summary."""
_DECIDING_CHARACTERS = 4000
"""Number of characters at the start of a paragraph that are searched for a sentence."""
_LINK = re.compile(r"!?\[[^\[\]]*\]\([^()]*\)")
_WORD = re.compile(rf"[{UNSPACED}]{{2}}|[^\W\d_{UNSPACED}]+")
_END = re.compile(r"[.!?…。！？؟۔।]['\")\]*_»”’]*\Z")  # noqa: RUF001
_FIELD = re.compile(r"[^\s:][^:]{0,60}:(?:\s|\Z)")
_UNDERLINES = "=-~^\"'*+#"


def prose(text: str) -> str:
    r"""Return the prose of a text in Markdown or reStructuredText.

    Front matter, headings, tables, code, pictures, lists of links and lists of ``name: value`` are left out.
    If the remaining text has more than 200 characters, paragraphs without a sentence are left out, too, such
    as the lines of a title page.

    Example:
        >>> prose("---\ntitle: Velm\n---\n# Velm\n\n| a | b |\n|---|---|\n\nVelm is a town.")
        'Velm is a town.'
    """
    return "\n\n".join(_prose(text))


def _prose(text: str) -> Iterator[str]:
    paragraphs = _paragraphs(split_front_matter(text)[1])
    first: list[str] = []
    for paragraph in paragraphs:
        first.append(paragraph)
        if sum(map(len, first)) > _WHOLE_TEXT:
            yield from filter(_has_sentence, chain(first, paragraphs))
            return
    yield from first


def _paragraphs(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in chain(_text_lines(text), [""]):
        if line:
            lines.append(line)
        elif lines:
            if len(lines) == 1 or not all(map(_FIELD.match, lines)):
                yield "\n".join(lines)
            lines = []


def _text_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text; lines of markup become empty, and so end a paragraph."""
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
    """Return whether a line is a heading, a rule, a table row, only links, a directive or an HTML tag."""
    without_marks = line.lstrip("#")
    if len(line) - len(without_marks) in range(1, 7) and (not without_marks or without_marks[0].isspace()):
        return True
    if line.startswith(("|", ".. ", "[^")) or (line.startswith("<") and line.find(">") == len(line) - 1):
        return True
    if line.startswith("[") and "]: " in line[:200]:
        return True
    if line and (not line.strip("-*_= \t") or _is_underline(line)):
        return True
    # Substitute twice, because a link may contain a picture.
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
    r"""Return the first sentences of a text's prose as a summary.

    Args:
        text: The document, as plain text or Markdown.
        sentences: Number of sentences, at least 1.
        per_paragraph: Whether to take the first sentences of each paragraph; otherwise, the first sentences
            of the whole text are taken.
        language: ISO 639 code of the text's language, for splitting the text into sentences.

    Returns:
        The sentences, joined by spaces; an empty text if there is no prose.

    Example:
        >>> lead_summary("# Ada\n\n## Life\n\nAda was born in Velm. She paints. She sings.")
        'Ada was born in Velm. She paints.'
    """
    check_at_least(1, sentences=sentences)
    check_language(language)
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
    """Return documents for an index of summaries: the text of each document is replaced by its summary.

    A document without a summary gets its title and first words as text, and the metadata key ``NO_SUMMARY``.
    If such a document is the nearest to a question, L-RAG always retrieves passages.

    Raises:
        ServiceError: If the number of summaries differs from the number of documents.

    Warns:
        MissingSummariesWarning: If a summary is empty.
    """
    if len(summaries) != len(documents):
        raise ServiceError(f"expected a summary of each of {len(documents)} documents, got {len(summaries)}")
    replaced = [
        replace(document, text=summary)
        if summary.strip()
        else replace(document, text=_beginning(document), metadata={**document.metadata, NO_SUMMARY: True})
        for document, summary in zip(documents, summaries, strict=True)
    ]
    missing = [document.id or document.title for document in replaced if NO_SUMMARY in document.metadata]
    if missing:
        names = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        warnings.warn(
            f"{len(missing)} of {len(replaced)} documents have no summary ({names}): L-RAG always retrieves "
            "if such a document is the nearest to a question. A model can write summaries: "
            "summarize=ModelSummaries(reader)",
            MissingSummariesWarning,
            stacklevel=3,
        )
    return replaced


def _beginning(document: Document) -> str:
    return " ".join(f"{document.title}\n{document.text[:_SEARCHED_CHARACTERS]}".split())


@dataclass(frozen=True)
class LeadSummaries:
    """Summarises each document by its first sentences (:func:`lead_summary`); tables get no summary."""

    sentences: int = 2
    per_paragraph: bool = False
    language: str = "en"

    def __post_init__(self) -> None:
        check_at_least(1, sentences=self.sentences)
        check_language(self.language)

    def __call__(self, documents: Sequence[Document]) -> list[str]:
        """Return one summary for each document, in order."""
        return [
            "" if document.rows else lead_summary(document.text, **asdict(self)) for document in documents
        ]


def summarizer_of(
    how: Any, models: Any, reader_of: Callable[[Any], Reader]
) -> Callable[[Sequence[Document], Sequence[Any]], list[str]]:
    """Return a function that summarises documents, for the option ``summarize`` of an integration.

    The function takes the documents twice: as ``Document`` objects, and as objects of the framework. ``how``
    is the number of sentences to take from the start, a metadata key, a function of a framework's document,
    or a model. A model is an object of a type in ``models``, and ``reader_of`` turns it into a reader.
    """
    if isinstance(how, models):
        model_summaries = ModelSummaries(reader_of(how))
        return lambda documents, _: model_summaries(documents)
    if isinstance(how, str):
        return lambda documents, _: stored_summaries(documents, how)
    if isinstance(how, int) and not isinstance(how, bool):
        return lambda documents, _: LeadSummaries(how)(documents)
    if callable(how):
        return lambda _, originals: [how(one) for one in originals]
    raise ConfigurationError(
        f"summarize must be a number of sentences, a metadata key, a function or a model, got {how!r}"
    )


def stored_summaries(documents: Sequence[Document], key: str) -> list[str]:
    """Return the value of a metadata key, such as ``"abstract"``, as the summary of each document.

    Raises:
        InputError: If a document has no value for the key.
    """
    for document in documents:
        if not str(document.metadata.get(key) or "").strip():
            raise InputError(
                f"document {document.id!r} has no summary under the metadata key {key!r}",
                hint=f"the keys of this document are {sorted(document.metadata)}",
            )
    return [str(document.metadata[key]) for document in documents]


class ModelSummaries:
    """Summarises documents with a model.

    This suits documents whose first sentences are no summary, such as tables. Summaries are cached by the
    document's text. If the model writes nothing, the summary is the document's
    first two sentences.

    Args:
        reader: The model.
        prompt: A template with the slot ``document``.
        max_tokens: Maximum length of a summary, in tokens.
        max_characters: Number of a document's first characters that the prompt contains; None means all.
        batch_size: Number of documents for one call of the model.
        progress: True shows a progress bar on a terminal. A function is called with the number of summarised
            documents and the number of all documents.

    Raises:
        PromptError: If the slots of the prompt are wrong.
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
