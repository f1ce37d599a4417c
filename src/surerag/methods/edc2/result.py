"""Results of EDC²-RAG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from surerag.messages import Passage, Result

Outcome = Literal["compressed", "passed", "dropped"]

SOURCES_KEY = "compressed_from"
"""Metadata key of a compressed passage. Its value lists the sources, best first, each as a mapping with
``id``, ``score`` and ``metadata``."""
SENTENCES_KEY = "compressed_sentences"
"""Metadata key of a compressed passage. Its value lists the sentences, each as a mapping with its ``text``,
the id of its ``source``, and the ``place`` of this source in the list of sources. ``source`` and ``place``
are None if no source was found."""


class SupportedSentence(NamedTuple):
    """A sentence of a compression, and the position of the passage that supports it; None without support."""

    text: str
    source: int | None


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """How one cluster of passages was handled.

    Without compression, all kept passages form one cluster. All less relevant passages, which are removed,
    form another cluster.

    Attributes:
        members: Positions of the cluster's passages in the input; first the passage that began the cluster.
        sources: Ids of the cluster's passages.
        outcome: ``"compressed"``, ``"passed"`` (the passages are returned unchanged) or ``"dropped"``.
        reason: The reason for the outcome, in words.
        tokens_before: Number of tokens of the cluster's passages.
        tokens_after: Number of tokens of the cluster's texts in the new context.
        sentences: The sentences of the compression; empty without a compression.
        removed: Sentences that were removed because no source supports them.
        left_out: Ids of passages that did not fit ``token_limit``.
        warning: Whether the compression failed: by an error, a truncated reply, or a reply that no source
            supports.
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
    """The shortened context of one question.

    Attributes:
        query: The question to answer, or the statement to check.
        passages: The new context, in the order of the input. A compressed passage takes the position, id,
            score and metadata of its best source; its metadata also contain all sources (``SOURCES_KEY``) and
            its sentences (``SENTENCES_KEY``). Unchanged passages are the objects of the input.
        clusters: One report for each cluster.
        fell_back: Whether all passages were kept because no compression contained anything relevant.
        tokens_before: Number of tokens of the input passages.
        tokens_after: Number of tokens of the returned passages.
        usage: Number of requests and tokens, and seconds, for this question.
    """

    query: str
    passages: tuple[Passage, ...]
    clusters: tuple[ClusterReport, ...]
    fell_back: bool
    tokens_before: int
    tokens_after: int

    @property
    def dropped(self) -> tuple[str, ...]:
        """Ids of the passages that contribute nothing to the new context."""
        return tuple(
            name
            for report in self.clusters
            for name in (report.sources if report.outcome == "dropped" else report.left_out)
        )


def compressed_passage(
    sentences: Sequence[SupportedSentence], members: Sequence[int], passages: Sequence[Passage]
) -> Passage:
    """Return the compression of a cluster as a passage, whose text consists of ``sentences``.

    ``members`` are the positions of the cluster's passages in ``passages``. The new passage has the id, score
    and metadata of the first of these passages; its metadata also contain all sources and the sentences.
    """
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
