"""Progress of a long run: a bar on a terminal, lines without a terminal, or a callback."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

Progress = bool | str | Callable[[int, int | None], None]
"""True shows a bar; a text shows a bar with this label. Without a terminal, a line is printed after each
tenth of the items, but at most every five seconds, and at least about every half minute. A callable gets
(done, total or None). False shows nothing."""

_PAUSE, _SILENCE = 5.0, 30.0
"""Seconds after a line in which only the last item prints a line; and seconds after which any item does."""


class Advance(Protocol):
    """A function to call when items are done."""

    def __call__(self, items: int = 1) -> None:
        """Report that ``items`` more items are done."""


@contextmanager
def reporting(progress: Progress, total: int | None, description: str = "Questions") -> Iterator[Advance]:
    """Yield a function to call when an item is done, or when several items are done."""
    if callable(progress):
        done = 0

        def advance(items: int = 1) -> None:
            nonlocal done
            done += items
            progress(done, total)

        yield advance
    elif progress:
        with _bar(total, progress if isinstance(progress, str) else description) as advance_bar:
            yield advance_bar
    else:
        yield lambda items=1: None


@contextmanager
def _bar(total: int | None, description: str) -> Iterator[Advance]:
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        text = progress.TextColumn("{task.description}", markup=False)
        numbers = (progress.BarColumn(), progress.MofNCompleteColumn())
        times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
        columns = (text, *numbers, *times)
        # By default, rich estimates speed from the last 30 s, in which a slow model may not answer at all.
        settings: Any = {"console": console, "transient": True, "speed_estimate_period": 3600}
        with progress.Progress(*columns, **settings) as bar:
            task = bar.add_task(description, total=total)
            yield lambda items=1: bar.advance(task, items)
        return
    done, before, started = 0, 0, 0.0
    printed_tenth, printed_at = -1, time.monotonic()
    if total:
        console.print(f"{description}: 0 of {total}", markup=False, highlight=False, soft_wrap=True)

    def show_lines(items: int = 1) -> None:
        nonlocal done, before, started, printed_tenth, printed_at
        done += items
        now = time.monotonic()
        if not started:  # the first items may come from an earlier run, so they do not count for the speed
            before, started = done, now
        pause = _SILENCE if total and 10 * done // total == printed_tenth else _PAUSE
        if total and (now - printed_at >= pause or done == total > done - items):
            printed_tenth, printed_at = 10 * done // total, now
            text = f"{description}: {done} of {total}"
            if before < done < total:
                seconds = (now - started) * (total - done) / (done - before)
                text += f", about {timedelta(seconds=round(seconds))} left"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    yield show_lines
