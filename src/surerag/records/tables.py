"""Figures of a trace as tables: for a terminal, and as Markdown that is the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.formatting import percent, percent_with_interval, plain_table, shown
from surerag.evaluation.statistics import Estimate
from surerag.records.figures import HELD, RATES, DecisionFigures, TraceFigures

_SURE_GAIN = "†"
_CAUTION = (
    f"{_SURE_GAIN}: the 95 % interval lies above zero. The best of several signals on one sample flatters "
    "itself: choose on one half, and look on the other."
)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as texts.

    Attributes:
        title: Above it.
        head: Names of the columns; the first holds names, the others numbers.
        rows: Cells.
        note: Below it.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """Return it as Markdown."""
        lines = [f"### {self.title}", "", _line(self.head)]
        lines += ["|---" + "|---:" * (len(self.head) - 1) + "|", *map(_line, self.rows), ""]
        return "\n".join([*lines, self.note, ""] if self.note else lines)

    def table(self) -> Table:
        """Return it for a terminal."""
        table = plain_table(shown(self.title))
        for at, name in enumerate(self.head):
            table.add_column(name, justify="right" if at else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*map(shown, row))
        table.caption = self.note
        return table


def main_grids(figures: TraceFigures) -> list[Grid]:
    """Return what to look at first: conditions, who knows when to retrieve, what the methods are worth."""
    retrieving = [_brief(figures, one) for one in figures.decisions if one.decision == "retrieve"]
    worth = _worth(figures)
    return [_conditions(figures), *retrieving, *([worth] if worth.rows else [])]


def grids(figures: TraceFigures) -> list[Grid]:
    """Return all tables of a trace."""
    found = [_conditions(figures)]
    for decision in figures.decisions:
        found += [_signals(figures, decision), _gates(figures, decision)]
    worth = _worth(figures)
    return [*found, worth] if worth.rows else found


def _conditions(figures: TraceFigures) -> Grid:
    rows = [
        (
            one.condition,
            f"{one.n:,}",
            "" if one.right is None else percent_with_interval(one.right),
            f"{one.calls:.1f}",
            f"{one.prompt_tokens:,.0f}",
            f"{one.completion_tokens:,.0f}",
            "" if one.seconds is None else f"{one.seconds:.2f}",
        )
        for one in figures.conditions
    ]
    failed = f" A service failed for {figures.failed:,} questions." if figures.failed else ""
    note = f"Right by the rule {figures.judge}, with 95 % intervals; prompts, tokens and time a question."
    return Grid(
        f"{figures.name}: answers by condition",
        ("Condition", "n", "Right, %", "Prompts", "Read", "Written", "Seconds"),
        tuple(rows),
        note + failed + _drawn(figures),
    )


def _drawn(figures: TraceFigures) -> str:
    """Say that all other tables are of some of the questions, where they are."""
    if figures.n <= HELD:
        return ""
    return f" What follows is of {HELD:,} of the {figures.n:,} questions, drawn at random."


def _signals(figures: TraceFigures, decision: DecisionFigures) -> Grid:
    rows = [(one.signal, f"{one.n:,}", _area(one.wrong), _area(one.helps)) for one in decision.signals]
    return Grid(
        f"{figures.name}: who knows when to {decision.decision}?",
        ("Signal", "n", "AUROC, wrong", "AUROC, helps"),
        tuple(rows),
        _always(decision),
    )


def _brief(figures: TraceFigures, decision: DecisionFigures) -> Grid:
    middle = RATES.index(0.5)
    rows = [
        (one.signal, _area(one.wrong), _area(one.helps), _gain(one.gains[middle])) for one in decision.signals
    ]
    return Grid(
        f"{figures.name}: who knows when to {decision.decision}?",
        ("Signal", "AUROC, wrong", "AUROC, helps", "Gate − random"),
        tuple(rows),
        f"{_always(decision)} Gate − random: points of accuracy where the half with the largest signals "
        f"acts, over half of them at random. {_CAUTION}",
    )


def _gates(figures: TraceFigures, decision: DecisionFigures) -> Grid:
    rows = [(one.signal, *(_gain(gain) for gain in one.gains)) for one in decision.signals]
    return Grid(
        f"{figures.name}: to {decision.decision} by a signal, against at random as often",
        ("Signal", *(f"{percent(rate, 0)} act" for rate in RATES)),
        tuple(rows),
        f"Points of accuracy. {_CAUTION}",
    )


def _worth(figures: TraceFigures) -> Grid:
    rows: list[tuple[str, str]] = []
    if (seper := figures.seper) is not None:
        rows += [
            ("ΔSePer of retrieving", _decimals(seper.delta)),
            ("SePer, before and after", f"{seper.before:.3f} to {seper.after:.3f}"),
            ("ΔSePer with what it mends, r", _area(seper.benefit)),
        ]
    if figures.dense is not None:
        rows.append(("DENSE score, AUROC, wrong", _area(figures.dense)))
    if (shorter := figures.compression) is not None:
        rows += [
            (
                "Passages, tokens, compressed",
                f"{shorter.before:,.0f} to {shorter.after:,.0f}",
            ),
            ("Tokens saved", percent(shorter.saved)),
        ]
    for name, told in (("rewrite", "Always rewriting, points"), ("compress", "Always compressing, points")):
        found = next((one for one in figures.decisions if one.decision == name), None)
        if found is not None:
            rows.append((told, _points(found.gain)))
    note = "r: correlation over questions; DENSE: of the answer from passages being wrong."
    return Grid(f"{figures.name}: what the methods are worth", ("", "Value"), tuple(rows), note)


def _always(decision: DecisionFigures) -> str:
    return (
        f"Always acting: {_points(decision.gain)} points; it mends {percent(decision.mended.value)} of "
        f"{decision.n:,} questions and spoils {percent(decision.spoiled.value)}."
    )


def _area(value: Estimate | None) -> str:
    if value is None or value.value != value.value:
        return "n/a"
    return f"{_share(value.value)} [{_share(value.low)}, {_share(value.high)}]"


def _share(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"


def _points(value: PairedDifference) -> str:
    return f"{100 * value.value:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"


def _gain(value: PairedDifference) -> str:
    return _points(value) + (f" {_SURE_GAIN}" if value.low > 0 else "")


def _decimals(value: PairedDifference) -> str:
    return f"{value.value:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
