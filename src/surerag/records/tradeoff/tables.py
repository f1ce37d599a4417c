"""A trade-off as tables."""

from __future__ import annotations

from collections.abc import Sequence

from surerag.evaluation.formatting import percent
from surerag.records.tables import Grid
from surerag.records.tradeoff.curve import Point, TradeOff


def trade_off_grids(found: TradeOff) -> list[Grid]:
    """Return what each threshold gives, and what it costs."""
    return [_gives(found), _costs(found)]


def summary_grid(found: Sequence[TradeOff]) -> Grid:
    """Return a line for each model and method."""
    rows = []
    for one in found:
        even = one.break_even
        rows.append(
            (
                f"{one.model}, {one.method}",
                one.policy.verdict,
                f"{one.policy.threshold:.4g}",
                percent(one.policy.rate),
                percent(one.chosen.score),
                "" if even is None else "never" if even == float("inf") else f"{even:,.0f} ms",
            )
        )
    head = ("Model and method", "Verdict", "Threshold", "Acts on", score_name(found[0]), "Pays above")
    return Grid("Certified thresholds", head, tuple(rows), "Pays above: milliseconds of a retrieval.")


def score_name(found: TradeOff) -> str:
    """Return what scores are called."""
    return "Score" if found.scored == "gold answers" else "Agrees"


def _gives(found: TradeOff) -> Grid:
    rows = [
        (
            point.label,
            "" if point.threshold is None else percent(point.rate),
            percent(point.score),
            _points(point),
        )
        for point in found.points
    ]
    told = (
        "Score: by the gold answers."
        if found.scored == "gold answers"
        else f"Agrees: says what the answer after acting ({found.verb}) says, which may be wrong; there "
        "are no gold answers."
    )
    left = f" {found.left_out:,} questions have no such score or answer." if found.left_out else ""
    return Grid(
        f"{found.model}, {found.method}: what each threshold gives, {found.n:,} questions",
        ("Decides by", "Acts on", score_name(found), "Less always, points"),
        tuple(rows),
        f"{told}{left} Intervals are 95 % on these questions, which the certified threshold was chosen on: "
        "what holds on others is its promise.",
    )


def _costs(found: TradeOff) -> Grid:
    first = found.points[0]
    head = ["Decides by", "Retrievals", "Read", "Written", "Calls"]
    measured = first.latency is not None and found.times is not None
    if measured and found.times is not None and found.times.retrieval is not None:
        head.append(f"{found.times.retrieval:,.0f} ms*")
    if first.latencies:
        head += [f"{each:g} ms" for each in found.latencies]
    if first.money is not None:
        head.append("Money")
    rows = []
    for point in found.points:
        cells = [
            point.label,
            f"{point.retrievals:.2f}",
            f"{point.prompt_tokens:,.0f}",
            f"{point.completion_tokens:,.1f}",
            f"{point.calls:.2f}",
        ]
        if measured:
            cells.append(f"{point.latency:,.0f}")
        cells += [f"{each:,.0f}" for each in point.latencies]
        if point.money is not None:
            cells.append(f"{point.money:.4g}")
        rows.append(tuple(cells))
    return Grid(
        f"{found.model}, {found.method}: what it costs a question",
        tuple(head),
        tuple(rows),
        " ".join(_told(found, measured)),
    )


def _told(found: TradeOff, measured: bool) -> list[str]:
    told = ["Read, written: tokens."]
    if found.times is not None:
        told.append("Columns of ms: milliseconds a question if a retrieval takes so long.")
        told.append(
            f"Model time of {found.times.alone} questions asked one by one."
            if found.times.alone
            else "Model time as shares of the recording's batches: a question alone takes longer."
        )
    if measured:
        told.append("*: as measured here.")
    if found.points[0].money is not None:
        told.append("Money: for a thousand questions.")
    return told


def _points(point: Point) -> str:
    value = point.against_always
    return f"{100 * value.value:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"
