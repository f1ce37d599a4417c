"""What the study was to show, and whether it does. The bounds were set before any result was looked at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from surerag.evaluation.dense.analysis import CHUNKING, PLAIN, RANKED
from surerag.evaluation.dense.refining import FULL
from surerag.evaluation.dense.results import (
    Against,
    Claim,
    CutRow,
    GapRow,
    MethodRow,
    Sameness,
    Understanding,
    Verdict,
)
from surerag.evaluation.formatting import p_value
from surerag.evaluation.statistics import Estimate, PairedDifference

EQUAL = 0.03
"""Section 6.2: accuracy with and without rephrasing differs by less than this, its whole interval."""

LEAST = 30
"""Questions on either side of a threshold that Figure 4's claim is about: fewer tell nothing."""

LEVEL = 0.05


def claims(
    measured: Sequence[Understanding],
    sameness: Sameness,
    cuts: Sequence[CutRow],
    methods: Sequence[MethodRow],
) -> tuple[Claim, ...]:
    """Judge every claim that there are data for."""
    return (
        *(claim for one in measured for claim in _understanding(one)),
        *_control(measured[0]),
        _same(sameness),
        *_chunking(cuts),
        *_methods(methods),
    )


def points(found: Estimate | PairedDifference, digits: int = 1) -> str:
    """Write a difference of shares in points of percent."""
    value, low, high = (f"{100 * end:+.{digits}f}" for end in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def above_zero(low: float, high: float) -> Verdict:
    """Judge by an interval whether something is more than zero."""
    return "holds" if low > 0 else "does not hold" if high < 0 else "undecided"


def _understanding(one: Understanding) -> Iterable[Claim]:
    fall = one.trend.correlation
    shown = f"r {fall.value:+.2f} [{fall.low:+.2f}, {fall.high:+.2f}], p {p_value(one.trend.p)}"
    yield Claim(
        f"Accuracy falls as DENSE grows, k = {one.k} (Figure 2)",
        shown if math.isfinite(fall.value) else "n/a",
        above_zero(-fall.high, -fall.low),
    )
    if one.gap is not None:
        yield Claim(
            f"Certain questions are answered better than uncertain ones, k = {one.k} (Figure 3)",
            points(one.gap.gap),
            above_zero(one.gap.gap.low, one.gap.gap.high),
        )
    counted = [row for row in one.thresholds if min(row.certain.n, row.uncertain.n) >= LEAST]
    if counted:
        yield _everywhere(one.k, counted)


def _everywhere(k: int, rows: Sequence[GapRow]) -> Claim:
    clear = sum(row.gap.low > 0 for row in rows)
    verdict: Verdict = "holds" if clear == len(rows) else "undecided"
    if any(row.gap.high < 0 for row in rows):
        verdict = "does not hold"
    least = min(rows, key=lambda row: row.gap.value)
    return Claim(
        f"There is a gap at every threshold with {LEAST} questions on either side, k = {k} (Figure 4)",
        f"clear at {clear} of {len(rows)}; smallest {points(least.gap)}",
        verdict,
    )


def _control(one: Understanding) -> Iterable[Claim]:
    for what, found in (("one passage", one.edited), ("every passage", one.rephrased)):
        apart = found.low > EQUAL or found.high < -EQUAL
        within = max(abs(found.low), abs(found.high)) < EQUAL
        yield Claim(
            f"Rephrasing {what} changes accuracy by less than {100 * EQUAL:g} points (section 6.2)",
            points(found),
            "holds" if within else "does not hold" if apart else "undecided",
        )


def _same(found: Sameness) -> Claim:
    counts = (found.in_one_batch, found.in_mixed_batches)
    return Claim(
        "Greedy answers are the same alone and in any batch (appendix C)",
        f"{counts[0]} and {counts[1]} of {found.prompts}",
        "holds" if min(counts) == found.prompts else "does not hold",
    )


def _chunking(cuts: Sequence[CutRow]) -> Iterable[Claim]:
    semantic = next(row for row in cuts if row.name == "semantic")
    if semantic.on_certain is not None:
        gap = semantic.on_certain
        yield Claim(
            "Semantic chunking of every question harms certain ones (Table 3)",
            points(gap),
            above_zero(-gap.high, -gap.low),
        )


def _methods(methods: Sequence[MethodRow]) -> Iterable[Claim]:
    found = {(row.name, one.other): one for row in methods for one in row.against}
    for pair, statement in _IMPROVES.items():
        if pair in found:
            yield _better(statement, found[pair], sign=1)
    for (name, other), one in found.items():
        if other == FULL:
            yield _better(f"The default is better than “{name}”{_TABLES.get(name, '')}", one, sign=-1)


_IMPROVES: Mapping[tuple[str, str], str] = {
    (CHUNKING, PLAIN): "Chunking helps uncertain questions (Tables 1 and 3)",
    (CHUNKING, RANKED): "… by how it cuts, not by ranking anew alone",
    (FULL, PLAIN): "Chunking and refinement help uncertain questions (Table 1)",
    (FULL, CHUNKING): "Refinement helps beyond chunking (Table 1)",
}
_TABLES: Mapping[str, str] = dict.fromkeys(
    ("only removing", "no self-evaluation", "refill on certain"), " (Table 4)"
)


def _better(statement: str, found: Against, *, sign: int) -> Claim:
    """Judge by the corrected p-value, not by one interval among many."""
    gap = found.difference
    # Adding 0 turns a negative zero round.
    value, low, high = (sign * end + 0.0 for end in (gap.value, gap.low, gap.high))
    low, high = min(low, high), max(low, high)
    clear = found.p_corrected < LEVEL
    verdict: Verdict = "undecided" if not clear else "holds" if value > 0 else "does not hold"
    shown = points(Estimate(value, low, high))
    return Claim(statement, f"{shown}, p {p_value(found.p_corrected)} (Holm)", verdict)
