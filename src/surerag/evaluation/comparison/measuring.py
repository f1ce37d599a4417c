"""From rows to measured rows, some at a time, in the order of the rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from surerag import drivers
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError
from surerag.evaluation.rows import Row
from surerag.journal import Answers
from surerag.methods.seper.component import SePer
from surerag.methods.seper.result import SePerResult
from surerag.recording import RecordedEntailer, RecordedReader, Tab
from surerag.services import as_reader

_ROUNDS = 8
"""A server is kept busy over so many rows for each that it works on at a time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One row, and what the reader believed.

    Attributes:
        row: The row.
        steps: What each step of the system was worth; None where a step found nothing at all, which is
            worth exactly nothing and need not be asked.
        error: Why it could not be measured; empty if it was.
    """

    row: Row
    steps: tuple[SePerResult | None, ...]
    error: str = ""


def recorded(seper: SePer, answers: Answers, tab: Tab, *, window: int) -> SePer:
    """Return a SePer that keeps and counts what it is answered, and asks nothing that is kept."""
    exact = isinstance(seper.entailer, ExactEntailer)  # costs less than looking it up
    return seper.with_options(
        reader=RecordedReader(as_reader(seper.reader), answers, max_concurrency=window, tab=tab),
        entailer=seper.entailer if exact else RecordedEntailer(seper.entailer, answers),
    )


def measure(
    rows: Iterable[Row],
    seper: SePer,
    *,
    window: int = 64,
    worked: bool = False,
) -> Iterator[Measured]:
    """Measure rows and yield them in order.

    Rows are taken in groups: ``window`` of them for a model in this process, which reads a group as one
    batch; eight times as many for a server. A row that fails is yielded with its error.

    Args:
        rows: Read as they are needed.
        seper: Measures.
        window: Rows that a local model reads, or requests that a server gets, at the same time.
        worked: Whether any row was measured before.

    Raises:
        ConfigurationError: If ``window`` is less than 1.
        Exception: If all rows of a group fail, and either none was measured before or the failure may
            pass: then it is not the rows, but the reader or the entailer.
    """
    if window < 1:
        raise ConfigurationError(f"window must be at least 1, got {window!r}")
    local = as_reader(seper.reader).capabilities.local
    size = window if local else _ROUNDS * window
    remaining = iter(rows)
    with warned_once():
        while group := list(islice(remaining, size)):
            measured, errors = _measured(group, seper, window)
            all_failed = bool(errors) and len(errors) == sum(any(row.contexts) for row in group)
            if all_failed and (not worked or getattr(errors[0], "retryable", False)):
                raise errors[0]
            worked = worked or len(errors) < len(group)
            yield from measured


def _measured(group: list[Row], seper: SePer, window: int) -> tuple[list[Measured], list[Exception]]:
    contexts = [(row, step) for row in group for step in row.contexts if step]
    programs = [seper.program(row.question, row.golds, step) for row, step in contexts]
    together = max(window, len(programs)) if as_reader(seper.reader).capabilities.local else window
    results: Iterator[Any] = iter(
        drivers.run_many(programs, seper.services, window=together, return_exceptions=True)
    )
    measured: list[Measured] = []
    errors: list[Exception] = []
    for row in group:
        outcomes = [next(results) if step else None for step in row.contexts]
        failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        errors += failed[:1]
        if failed:
            measured.append(Measured(row, (), f"{type(failed[0]).__name__}: {failed[0]}"))
        else:
            measured.append(Measured(row, tuple(outcomes)))
    return measured, errors


class _Once(logging.Filter):
    """Lets each kind of warning through once."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        # An event's message is its name and its data; others are the same message with other arguments.
        event = isinstance(record.args, tuple) and len(record.args) == 2
        kind = f"{record.msg}{record.args[0] if event else ''}"  # type: ignore[index]  # a tuple of two
        known = kind in self._seen
        self._seen.add(kind)
        return record.levelno >= logging.ERROR or not known


@contextmanager
def warned_once() -> Iterator[None]:
    """A data set's thousandth warning says nothing that the first did not; may be used within itself."""
    logger = logging.getLogger("surerag")
    if any(isinstance(known, _Once) for known in logger.filters):
        yield
        return
    once = _Once()
    logger.addFilter(once)
    try:
        yield
    finally:
        logger.removeFilter(once)
