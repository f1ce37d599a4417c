"""Comparisons that were made before: one that stands in shards, or several over the same questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.systems.analysis import Aim, analyse
from surerag.evaluation.systems.results import SystemsReport
from surerag.evaluation.systems.rows import part_batches
from surerag.evaluation.systems.tally import COLUMNS, Tally
from surerag.runs.merging import Gathered, check_alike

_ALIKE = ("rule", "entailer", "unit")
_OF_ONE_RUN = "agreement"
"""With the baseline of its own run: of several runs it says nothing."""


def report_of(runs: Sequence[Gathered], aim: Aim) -> SystemsReport:
    """Return the report of a run, or of several on the same questions, without asking anything.

    Of several, a system is named after its run and itself: ``monday/lazy``.

    Raises:
        ConfigurationError: If runs differ in what makes their answers right, or in their questions.
        InputError: If a file cannot be read, or nothing was measured that counts.
    """
    tally = Tally(systems_of(runs))
    if len(runs) == 1:
        tally.add_batches(
            batch for folder, part in runs[0] for batch in part_batches(folder, part, list(COLUMNS))
        )
        return analyse(tally, aim, runs[0].about)
    check_alike(runs, "systems, reader and what is measured", _ALIKE)
    for rows in _side_by_side(runs, COLUMNS):
        tally.add(rows)
    return analyse(tally, aim, {"runs": {run.name: run.about for run in runs}})


def rows_of(runs: Sequence[Gathered], columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the results of a run, or of several on the same questions, holding a unit at a time."""
    if len(runs) == 1:
        for folder, part in runs[0]:
            for batch in part_batches(folder, part, None if columns is None else list(columns)):
                yield from batch.to_pylist()
        return
    for rows in _side_by_side(runs, columns):
        yield from rows


def systems_of(runs: Sequence[Gathered]) -> list[str]:
    """Return the names of all systems, in order."""
    if len(runs) == 1:
        return list(runs[0].about["systems"])
    return [f"{run.name}/{name}" for run in runs for name in run.about["systems"]]


def _side_by_side(runs: Sequence[Gathered], columns: Sequence[str] | None) -> Iterator[list[dict[str, Any]]]:
    """Yield units, in which all systems of all runs stand together for each question."""
    for unit in range(max(len(run.units) for run in runs)):
        here = [run.units[unit] if unit < len(run.units) else None for run in runs]
        sources = {None if one is None else one.part.source for one in here}
        if len(sources) > 1:
            raise ConfigurationError(
                f"{' and '.join(run.name for run in runs)} are about other questions, from unit {unit} on",
                hint="compare runs over the same file of questions, in the same order",
            )
        tables = [
            [row for batch in part_batches(*one, _needed(columns)) for row in batch.to_pylist()]
            for one in here
            if one is not None
        ]
        yield list(_joined(runs, tables, columns))


def _joined(
    runs: Sequence[Gathered], tables: Sequence[Sequence[Mapping[str, Any]]], columns: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    sizes = [len(run.about["systems"]) for run in runs]
    for at in range(len(tables[0]) // sizes[0]):
        found = [rows[at * size : (at + 1) * size] for rows, size in zip(tables, sizes, strict=True)]
        if len({row["id"] for rows in found for row in rows}) > 1:
            raise InputError(f"the rows of {runs[0].name} and others are not about the same questions")
        for run, rows in zip(runs, found, strict=True):
            for row in rows:
                named = {**row, "system": f"{run.name}/{row['system']}", _OF_ONE_RUN: None}
                yield named if columns is None else {name: named.get(name) for name in ("id", *columns)}


def _needed(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(dict.fromkeys(("id", "system", *columns)))
