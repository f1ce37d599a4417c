"""Evaluations that were made before: one that stands in shards, or several on the same questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Any, Final

from surerag.errors import ConfigurationError
from surerag.evaluation.comparison.analysis import Analysis, Tally
from surerag.evaluation.comparison.results import SystemComparison
from surerag.evaluation.comparison.units import FIGURES
from surerag.prices import Costs
from surerag.runs import records_in
from surerag.runs.merging import Gathered, check_alike
from surerag.runs.run import ROWS

_NO_SETTING: Final = ("data", "reader", "entailment", "entailer", "systems")


def comparison_of(runs: Sequence[Gathered], baseline: str | None = None) -> SystemComparison:
    """Return what a run, or several on the same questions, came to, without asking anything.

    Of several, a system is named after its run and itself: ``bm25/default``.

    Args:
        runs: Of one reader, entailer and settings.
        baseline: System to test all others against.

    Raises:
        ConfigurationError: If runs differ in more than their data, or in their questions.
        InputError: If a file cannot be read.
    """
    about = runs[0].about
    settings = {name: value for name, value in about.items() if name not in _NO_SETTING}
    check_alike(runs, "their data: other contexts of the same questions", [*settings, *_NO_SETTING[1:4]])
    systems = _systems(runs)
    analysis = Analysis(baseline=baseline, seed=int(settings.get("seed", 0)))
    analysis.check(systems)
    tally = Tally(systems)
    for record in _records(runs):
        tally.take(record)
    entailer = str(about.get("entailment", about.get("entailer")))
    return tally.told(str(about["reader"]), entailer, settings, analysis, _spent(runs))


def _systems(runs: Sequence[Gathered]) -> list[str]:
    """Return the systems in order of appearance; where several runs are compared, with the runs' names."""
    found: dict[str, None] = {}
    for run in runs:
        for folder, part in run:
            for record in records_in(folder / part.files[ROWS].name, ["system"]):
                found[record["system"] if len(runs) == 1 else f"{run.name}/{record['system']}"] = None
    return list(found)


def _records(runs: Sequence[Gathered]) -> Iterator[dict[str, Any]]:
    if len(runs) == 1:
        for folder, part in runs[0]:
            yield from records_in(folder / part.files[ROWS].name, list(FIGURES))
        return
    for questions in zip_longest(*map(_questions, runs)):
        if len({_asked(rows) for rows in questions}) > 1:
            names = " and ".join(run.name for run in runs)
            shown = next(one[0]["id"] for one in questions if one is not None)
            raise ConfigurationError(
                f"{names} cannot be compared: they hold other questions, from {shown!r} on",
                hint="compare runs over the same questions with the same gold answers, in the same order",
            )
        for run, rows in zip(runs, questions, strict=True):
            yield from ({**row, "system": f"{run.name}/{row['system']}"} for row in rows)


def _questions(run: Gathered) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each question, of all systems."""
    columns = ["question", "answers", *FIGURES]
    rows = (row for folder, part in run for row in records_in(folder / part.files[ROWS].name, columns))
    for _, group in groupby(rows, itemgetter("id")):
        yield list(group)


def _asked(rows: Sequence[Mapping[str, Any]] | None) -> tuple[Any, ...]:
    return () if rows is None else (rows[0]["id"], rows[0]["question"], *rows[0]["answers"])


def _spent(runs: Sequence[Gathered]) -> Costs | None:
    told = [part.note.get("spent") for run in runs for _, part in run]
    return None if None in told else sum((Costs.from_dict(one) for one in told if one), start=Costs())
