"""What of a compressed context fits a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from surerag.methods.compression_types import ClusterReport, CompressionSettings, merged_passage
from surerag.types import Passage


class _Offer(NamedTuple):
    """A passage that could be returned: its rank, and the cluster that it comes from."""

    rank: int
    cluster: int
    passage: Passage


def within_budget(
    reports: Sequence[ClusterReport], passages: Sequence[Passage], settings: CompressionSettings
) -> tuple[list[Passage], list[ClusterReport]]:
    """Put what is left in order of its best member, as far as the token budget reaches."""
    offers = [offer for at, report in enumerate(reports) for offer in _offers(at, report, passages)]
    settled = [replace(report, tokens_after=0) for report in reports]
    kept: list[Passage] = []
    room = float("inf") if settings.budget is None else settings.budget
    for offer in sorted(offers, key=lambda offer: offer.rank):
        report = settled[offer.cluster]
        passage = _fitted(offer.passage, room, report, settings)
        if passage is None:
            settled[offer.cluster] = replace(report, over_budget=(*report.over_budget, offer.passage.id))
            continue
        kept.append(passage)
        tokens = settings.measure(passage)
        room -= tokens
        text = passage.text if report.outcome == "compressed" else ""
        settled[offer.cluster] = replace(report, text=text, tokens_after=report.tokens_after + tokens)
    return kept, [_settled(report) for report in settled]


def _offers(at: int, report: ClusterReport, passages: Sequence[Passage]) -> list[_Offer]:
    if report.outcome == "compressed":
        return [_Offer(min(report.members), at, merged_passage(report, passages))]
    if report.outcome == "passed":
        return [_Offer(member, at, passages[member]) for member in report.members]
    return []


def _fitted(
    passage: Passage, room: float, report: ClusterReport, settings: CompressionSettings
) -> Passage | None:
    """Return a passage that fits: an original whole or not at all, a compression by its first sentences."""
    if settings.measure(passage) <= room:
        return passage
    sentences = settings.split(passage.text) if report.outcome == "compressed" else []
    shortened = (
        replace(passage, text=" ".join(sentences[:count])) for count in range(len(sentences) - 1, 0, -1)
    )
    return next((shorter for shorter in shortened if settings.measure(shorter) <= room), None)


def _settled(report: ClusterReport) -> ClusterReport:
    if len(report.over_budget) < (1 if report.outcome == "compressed" else len(report.members)):
        return report
    return replace(report, outcome="dropped", reason="over the token budget", text="")
