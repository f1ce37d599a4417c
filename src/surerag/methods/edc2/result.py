"""Results of EDC²-RAG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from surerag.messages import Passage, Result

Outcome = Literal["compressed", "passed", "dropped"]

SOURCES_KEY = "compressed_from"
"""Metadata of a compressed passage: its sources, best first, each with ``id``, ``score`` and ``metadata``."""
SENTENCES_KEY = "compressed_sentences"
"""Metadata of a compressed passage: each sentence's ``text``, the id of its ``source``, and the ``place`` of
that among the sources, which need not have ids; both are None where no source supports it."""


class SupportedSentence(NamedTuple):
    """A sentence of a compression, and the place of the passage that supports it; None where none does."""

    text: str
    source: int | None


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What became of one cluster, of all passages that stay whole, or of all removed passages.

    Attributes:
        members: Places of its passages in the input, the root first.
        sources: Their ids.
        outcome: ``"compressed"``, ``"passed"`` (its passages are returned as they were) or ``"dropped"``.
        reason: Why, in words.
        tokens_before: Tokens of its passages.
        tokens_after: Tokens of it that are returned.
        sentences: The compression, if there is one.
        removed: Sentences that no source supports.
        left_out: Ids of passages that ``token_limit`` had no room for.
        warning: Whether the reason is a failure: an error, a reply that is cut, or one without support.
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
        passages: The context, in the order of each one's best source. A compressed passage has its best
            source's id, score, metadata and origin, with its sources under ``SOURCES_KEY`` and its sentences
            under ``SENTENCES_KEY``; the others are the very passages that went in.
        clusters: What became of each cluster.
        fell_back: Whether no compression held anything relevant, so that the originals are returned.
        tokens_before: Tokens of the passages that went in.
        tokens_after: Tokens of those that came out.
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
    """Return a compression as a passage that stands for its sources."""
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
