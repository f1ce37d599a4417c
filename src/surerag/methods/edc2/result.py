"""Results of EDC²-RAG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from surerag.messages import Passage, Result

Outcome = Literal["compressed", "passed", "dropped"]

SOURCES_KEY = "compressed_from"
"""Metadata key of a compressed passage's sources, best first, each with ``id``, ``score`` and ``metadata``.
"""
SENTENCES_KEY = "compressed_sentences"
"""Metadata of a compressed passage: each sentence's ``text``, the id of its ``source``, and the ``place`` of
that among the sources, which need not have ids; both are None where no source supports it."""


class SupportedSentence(NamedTuple):
    """A sentence of a compression, and the place of the passage that supports it, or None."""

    text: str
    source: int | None


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What became of one cluster, of all passages that stay whole, or of all removed passages.

    Attributes:
        members: Places of the cluster's passages in the input, the root first.
        sources: Ids of the cluster's passages.
        outcome: ``"compressed"``, ``"passed"`` (the passages are returned unchanged) or ``"dropped"``.
        reason: The reason for the outcome, in words.
        tokens_before: Number of tokens of the passages.
        tokens_after: Number of tokens that are returned for the cluster.
        sentences: The sentences of the compression, if there is one.
        removed: Sentences that were removed because no source supports them.
        left_out: Ids of passages that did not fit ``token_limit``.
        warning: Whether the reason is a failure: an error, or a reply that is cut off or has no source.
    """

    members: tuple[int, ...]
    sources: tuple[str, ...]
    outcome: Outcome
    reason: str
    tokens_before: int
    tokens_after: int = 0
    sentences: tuple[SupportedSentence, ...] = ()
    removed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    warning: bool = False


@dataclass(frozen=True)
class EDC2Result(Result):
    """A shorter context.

    Attributes:
        query: The question that the context is for.
        passages: The context, in the order of the passages' best sources. A compressed passage has its best
            source's id, score, metadata and origin, with its sources under ``SOURCES_KEY`` and its sentences
            under ``SENTENCES_KEY``; the other passages are the input's own objects.
        clusters: One report for each cluster.
        fell_back: Whether no compression had anything relevant, so that the originals are returned.
        tokens_before: Number of tokens of the input passages.
        tokens_after: Number of tokens of the returned passages.
        usage: Requests, tokens and seconds of the question.
    """

    query: str
    passages: tuple[Passage, ...]
    clusters: tuple[ClusterReport, ...]
    fell_back: bool
    tokens_before: int
    tokens_after: int

    @property
    def dropped(self) -> tuple[str, ...]:
        """Ids of the passages from which nothing is returned."""
        return tuple(
            name
            for report in self.clusters
            for name in (report.sources if report.outcome == "dropped" else report.left_out)
        )


def compressed_passage(
    sentences: Sequence[SupportedSentence], members: Sequence[int], passages: Sequence[Passage]
) -> Passage:
    """Return a compression as a passage that replaces its sources."""
    places = sorted(members)
    sources = [passages[at] for at in places]
    metadata: dict[str, Any] = {
        **sources[0].metadata,
        SOURCES_KEY: [
            {"id": source.id, "score": source.score, "metadata": dict(source.metadata)} for source in sources
        ],
        SENTENCES_KEY: [
            {"text": text, "source": None, "place": None}
            if at is None
            else {"text": text, "source": passages[at].id, "place": places.index(at)}
            for text, at in sentences
        ],
    }
    text = " ".join(sentence.text for sentence in sentences)
    return replace(sources[0], text=text, metadata=metadata, embedding=None)
