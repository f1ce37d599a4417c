"""Contenders that take turns, and the table of what they took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Contender(NamedTuple):
    """Something to measure."""

    name: str
    run: Callable[[], object]


class Spread(NamedTuple):
    """Smallest, middle and largest value."""

    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values."""
        return cls(min(values), statistics.median(values), max(values))


class Comparison(NamedTuple):
    """Two contenders that did the same work.

    Attributes:
        title: The work.
        first: Name of the one that is measured against.
        second: Name of the other.
        first_seconds: Time of each turn of the first.
        second_seconds: Time of each turn of the second.
    """

    title: str
    first: str
    second: str
    first_seconds: list[float]
    second_seconds: list[float]

    @property
    def speedup(self) -> Spread:
        """How many times faster the second is, turn by turn."""
        return Spread.of([a / b for a, b in zip(self.first_seconds, self.second_seconds, strict=True)])

    @property
    def overhead(self) -> Spread:
        """How much more time the second takes, as a part of the first's, turn by turn."""
        return Spread.of([b / a - 1 for a, b in zip(self.first_seconds, self.second_seconds, strict=True)])


def compare(
    title: str,
    first: Contender,
    second: Contender,
    *,
    turns: int,
    synchronize: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Let two contenders take turns, after one turn each that does not count.

    Args:
        title: What both do.
        first: The one to compare with.
        second: The one to be compared.
        turns: How often each runs.
        synchronize: Waits until the device has done what was asked of it.
        clock: Tells the seconds; ``time.process_time`` for those that the processor worked.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for contender, times in zip((first, second), seconds, strict=True):
            synchronize()
            started = clock()
            contender.run()
            synchronize()
            if turn:
                times.append(clock() - started)
    return Comparison(title, first.name, second.name, *seconds)


def show(comparisons: Sequence[Comparison], *, as_overhead: bool = False, caption: str = "") -> None:
    """Print a table: seconds of both and their ratio, each as least, median and most."""
    table = Table(
        "work", "contender", "seconds", "overhead" if as_overhead else "times faster", caption=caption
    )
    for comparison in comparisons:
        if as_overhead:
            ratio = " / ".join(f"{value:+.1%}" for value in comparison.overhead)
        else:
            ratio = " / ".join(f"{value:.2f}" for value in comparison.speedup)
        table.add_row(comparison.title, comparison.first, _seconds(comparison.first_seconds), "")
        table.add_row("", comparison.second, _seconds(comparison.second_seconds), ratio, end_section=True)
    Console().print(table)
    Console().print("Seconds and ratios are least / median / most over the turns.")


class Race(NamedTuple):
    """Several contenders that did the same work in turns.

    Attributes:
        title: The work.
        seconds: Time of each turn of each; the first is what the others are measured against.
    """

    title: str
    seconds: dict[str, list[float]]

    def faster(self, name: str) -> Spread:
        """How many times faster than the first one is, turn by turn."""
        first = next(iter(self.seconds.values()))
        return Spread.of([a / b for a, b in zip(first, self.seconds[name], strict=True)])


def race(
    title: str,
    contenders: Sequence[Contender],
    *,
    turns: int,
    synchronize: Callable[[], object] = lambda: None,
) -> Race:
    """Let contenders take turns, after one turn each that does not count; see :func:`compare`."""
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for turn in range(turns + 1):
        for contender in contenders:
            synchronize()
            started = time.perf_counter()
            contender.run()
            synchronize()
            if turn:
                seconds[contender.name].append(time.perf_counter() - started)
    return Race(title, seconds)


def show_race(found: Race) -> None:
    """Print a table: seconds, and how many times faster than the first, as least, median and most."""
    table = Table("contender", "seconds", "times faster", title=found.title)
    for name, values in found.seconds.items():
        ratio = " / ".join(f"{value:.2f}" for value in found.faster(name))
        table.add_row(name, _seconds(values), ratio)
    Console().print(table)


def _seconds(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.3f}" for value in Spread.of(values))
