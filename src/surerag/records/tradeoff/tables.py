"""A trade-off as tables."""

from __future__ import annotations

from collections.abc import Sequence

from surerag.evaluation.formatting import percent
from surerag.records.tables import Grid
from surerag.records.tradeoff.curve import Point, TradeOff


def trade_off_grids(found: TradeOff) -> list[Grid]:
    """Return what each threshold gives, what it costs, and what it takes."""
    return [_gives(found), _costs(found), *_takes(found)]


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
    # A table that others recorded says nothing of what its answers cost.
    known = first.calls > 0
    cached = known and any(point.cached_tokens for point in found.points)
    head = ["Decides by", "Fetches", *(("Read",) if known else ()), *(("Cached",) if cached else ())]
    head += ("Written", "Calls") if known else ()
    if first.money is not None:
        head.append(found.currency or "Money")
    rows = []
    for point in found.points:
        cells = [point.label, f"{point.retrievals:.2f}"]
        if known:
            cells += [f"{point.prompt_tokens:,.0f}"]
            cells += [f"{point.cached_tokens:,.0f}"] if cached else []
            cells += [f"{point.completion_tokens:,.1f}", f"{point.calls:.2f}"]
        if point.money is not None:
            cells.append(f"{point.money:.3g}")
        rows.append(tuple(cells))
    told = "; cached: of those read, the ones in a server's cache" if cached else ", none of them cached"
    money = "" if first.money is None else f" {head[-1]}: for a thousand questions."
    return Grid(
        f"{found.model}, {found.method}: what it costs a question",
        tuple(head),
        tuple(rows),
        f"Fetches: retrievals. Read, written: tokens{told}.{money}"
        if known
        else "Tokens and calls are not known of these answers.",
    )


def _takes(found: TradeOff) -> list[Grid]:
    """Return milliseconds a question, where they are known."""
    times = found.times
    if times is None:
        return []
    measured = times.retrieval
    head = ["Decides by", *([] if measured is None else [f"{measured:,.0f} ms*"])]
    head += [f"{each:g} ms" for each in found.latencies]
    rows = [
        (
            point.label,
            *([] if point.latency is None else [f"{point.latency:,.0f}"]),
            *(f"{each:,.0f}" for each in point.latencies),
        )
        for point in found.points
    ]
    told = (
        f"Model time of {times.alone} questions asked one by one."
        if times.alone
        else "Model time as shares of the recording's batches: a question alone takes longer."
    )
    return [
        Grid(
            f"{found.model}, {found.method}: milliseconds a question, if a retrieval takes …",
            tuple(head),
            tuple(rows),
            told if measured is None else f"*: as measured here. {told}",
        )
    ]


def _points(point: Point) -> str:
    value = point.against_always
    return f"{100 * value.value:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"
