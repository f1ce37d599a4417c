"""What is handed on of a compression: as much as the token budget holds, and where each word comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from surerag.messages import Passage
from surerag.methods.edc2.options import EDC2Options
from surerag.methods.edc2.result import SOURCES_KEY, ClusterReport, merged_passage, source_entry
from surerag.provenance import PROVENANCE_KEY, Stretch, trace_back, written

_WORD_END = re.compile(r"\S(?!\S)")
_CHARACTER_END = re.compile(r"\S", re.DOTALL)


class Fitted(NamedTuple):
    """Passages in the order of their best members, what became of each cluster, and whether nothing fitted.

    ``too_small``: no passage and no compression fits the budget, so that at most a piece of one is there.
    """

    passages: list[Passage]
    reports: list[ClusterReport]
    too_small: bool


def within_budget(
    reports: Sequence[ClusterReport], passages: Sequence[Passage], options: EDC2Options
) -> Fitted:
    """Put what is left in order of its best member, as far as the token budget reaches.

    An original is handed on whole or not at all, a compression by its first sentences. Where nothing fits,
    the first sentences of the best that has any that fit stand alone; else the first words of the best.
    """
    offers = sorted(
        (offer for at, report in enumerate(reports) for offer in _offers(at, report, passages)),
        key=lambda offer: offer.rank,
    )
    settled = [replace(report, tokens_after=0) for report in reports]
    kept: dict[int, Passage] = {}
    room = float("inf") if options.budget is None else options.budget
    for offer in offers:
        passage = _fitted(offer, room, options)
        if passage is None:
            report = settled[offer.cluster]
            settled[offer.cluster] = replace(report, over_budget=(*report.over_budget, offer.passage.id))
            continue
        kept[offer.rank], settled[offer.cluster] = _kept(
            passage, offer, settled[offer.cluster], passages, options
        )
        room -= options.measure(passage)
    written_ones = [offer for offer in offers if offer.passage.text.strip()]
    too_small = bool(written_ones) and not any(offer.rank in kept for offer in written_ones)
    if too_small and (piece := _best_piece(written_ones, room, options)) is not None:
        offer, passage = piece
        report = replace(settled[offer.cluster], reason="cut to the token budget")
        left = list(report.over_budget)
        left.remove(offer.passage.id)
        report = replace(report, over_budget=tuple(left))
        kept[offer.rank], settled[offer.cluster] = _kept(passage, offer, report, passages, options)
    return Fitted([kept[rank] for rank in sorted(kept)], [_settled(report) for report in settled], too_small)


class _Offer(NamedTuple):
    """A passage that could be returned.

    ``members``: the passages behind it, in the order of their ranks; ``compressed``: whether it is more than
    one of them.
    """

    cluster: int
    passage: Passage
    members: tuple[int, ...]
    compressed: bool

    @property
    def rank(self) -> int:
        return self.members[0]


def _offers(at: int, report: ClusterReport, passages: Sequence[Passage]) -> list[_Offer]:
    if report.outcome == "compressed":
        members = tuple(sorted(report.members))
        return [_Offer(at, merged_passage(report, passages), members, compressed=True)]
    if report.outcome == "passed":
        return [_Offer(at, passages[member], (member,), compressed=False) for member in report.members]
    return []


def _kept(
    passage: Passage,
    offer: _Offer,
    report: ClusterReport,
    passages: Sequence[Passage],
    options: EDC2Options,
) -> tuple[Passage, ClusterReport]:
    """Hand a passage on; one that was made of others knows where its words stand."""
    report = replace(report, tokens_after=report.tokens_after + options.measure(passage))
    if passage is passages[offer.rank]:
        return passage, report
    sources = [passages[at] for at in offer.members]
    found = _provenance(passage.text, sources, options)
    told = written(found, [source.id for source in sources])
    passage = replace(passage, metadata={**passage.metadata, PROVENANCE_KEY: told})
    return passage, replace(report, text=passage.text, provenance=found)


def _provenance(text: str, sources: Sequence[Passage], options: EDC2Options) -> tuple[Stretch, ...]:
    return trace_back(text, [options.own_text(source) for source in sources], options.sentences(text))


def _fitted(offer: _Offer, room: float, options: EDC2Options) -> Passage | None:
    """Return a passage that fits: an original whole or not at all, a compression by its first sentences."""
    passage = offer.passage
    if options.measure(passage) <= room:
        return passage
    if not offer.compressed:
        return None
    return _beginning(passage, _sentence_ends(passage.text, options), room, options)


def _best_piece(offers: Sequence[_Offer], room: float, options: EDC2Options) -> tuple[_Offer, Passage] | None:
    """Return a beginning that fits: by sentences, best passage first; else by words; else by characters."""
    originals = [_as_made(offer, options) for offer in offers]
    kinds: tuple[Callable[[str], Sequence[int]], ...] = (
        lambda text: _sentence_ends(text, options),
        lambda text: [match.end() for match in _WORD_END.finditer(text)],
        lambda text: [match.end() for match in _CHARACTER_END.finditer(text)],
    )
    for ends in kinds:
        for offer, passage in zip(offers, originals, strict=True):
            found = _beginning(passage, ends(passage.text), room, options)
            if found is not None:
                return offer, found
    return None


def _as_made(offer: _Offer, options: EDC2Options) -> Passage:
    """Return a passage as one that was made of itself: a piece of it is no longer the original."""
    passage = offer.passage
    if offer.compressed:
        return passage
    metadata = {**passage.metadata, SOURCES_KEY: [source_entry(passage)]}
    return replace(passage, text=options.own_text(passage), metadata=metadata, embedding=None)


def _sentence_ends(text: str, options: EDC2Options) -> list[int]:
    ends: list[int] = []
    for sentence in options.sentences(text):
        at = text.find(sentence, ends[-1] if ends else 0)
        if at >= 0:
            ends.append(at + len(sentence))
    return ends


def _beginning(passage: Passage, ends: Sequence[int], room: float, options: EDC2Options) -> Passage | None:
    """Return the longest beginning that fits and ends in one of these places, or None."""
    fitting, too_long = -1, len(ends)
    found = None
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        shorter = replace(passage, text=passage.text[: ends[middle]])
        if options.measure(shorter) <= room:
            fitting, found = middle, shorter
        else:
            too_long = middle
    return found


def _settled(report: ClusterReport) -> ClusterReport:
    if len(report.over_budget) < (1 if report.outcome == "compressed" else len(report.members)):
        return report
    return replace(report, outcome="dropped", reason="over the token budget", text="")
