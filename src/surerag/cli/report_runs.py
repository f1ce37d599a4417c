"""What ``surerag report`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from surerag.cli.compare_runs import show_report, write_report
from surerag.cli.display import console
from surerag.cli.evaluate import FIGURES_FILE, PAGE, notes_on
from surerag.errors import ConfigurationError
from surerag.evaluation.comparison.gathering import comparison_of
from surerag.evaluation.comparison.plots import write_plots
from surerag.evaluation.comparison.report import render_comparison
from surerag.evaluation.comparison.tables import systems_table, tests_table
from surerag.evaluation.comparison.units import EVALUATION
from surerag.evaluation.systems.analysis import Aim
from surerag.evaluation.systems.gathering import report_of, rows_of
from surerag.evaluation.systems.rows import KIND as COMPARISON
from surerag.extras import extra
from surerag.places import Anywhere
from surerag.records.schema import TRACE, schemas
from surerag.runs import Run, check_file
from surerag.runs.merging import Gathered, gathered
from surerag.runs.store import results_of
from surerag.storage import storing, write_whole


@dataclass(frozen=True, slots=True)
class Reported:
    """What the user asked for.

    Attributes:
        runs: Folders or URLs.
        output: Where the report goes.
        aim: What a comparison is about; of an evaluation, the baseline alone.
    """

    runs: tuple[Anywhere, ...]
    output: Anywhere
    aim: Aim


def run_report(wanted: Reported) -> None:
    """Report on runs that are there.

    Raises:
        InputError: If one is no run, or its files are not what they were.
        ConfigurationError: If runs do not belong together, naming what differs; or if one is not complete.
        StorageError: If the report cannot be written.
        MissingExtraError: If a package is not installed.
    """
    with extra("report"):
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
    runs = gathered(wanted.runs, (EVALUATION, COMPARISON, TRACE))
    for run in runs:
        for folder, part in run:
            for file in part.files.values():
                check_file(folder, file)
    if runs[0].kind == TRACE:
        _merge_trace(runs, wanted.output)
        return
    with results_of(wanted.output) as folder:
        if runs[0].kind == EVALUATION:
            _report_evaluation(runs, wanted.aim.baseline or None, folder)
        else:
            _report_comparison(runs, wanted.aim, folder)
    _say(f"Written to {wanted.output}: {PAGE}, {FIGURES_FILE}.")


def _report_evaluation(runs: Sequence[Gathered], baseline: str | None, folder: Path) -> None:
    found = comparison_of(runs, baseline)
    with storing(folder):
        figures = write_plots(found, folder)
    rows = sum(part.rows for run in runs for _, part in run)
    page = render_comparison(
        found,
        title="What was retrieval worth?",
        lead=f"{rows:,} rows of {len(found.systems):,} systems, read by {found.reader}. {_told(runs)}",
        figures=figures,
        warnings=notes_on(found),
        footer="Made by: surerag report",
    )
    write_whole(folder / FIGURES_FILE, found.to_json() + "\n")
    write_whole(folder / PAGE, page)
    console.print(systems_table(found))
    if found.tests:
        console.print(tests_table(found))


def _report_comparison(runs: Sequence[Gathered], aim: Aim, folder: Path) -> None:
    found = report_of(runs, aim)
    lead = f"{found.questions:,} questions. {_told(runs)}"
    write_report(found, lambda columns: rows_of(runs, columns), folder, lead)
    show_report(found)


def _merge_trace(runs: Sequence[Gathered], output: Anywhere) -> None:
    """Write the shards of a trace as one, which is read, verified and calibrated on as any.

    Raises:
        ConfigurationError: If there are several traces, or nothing to put together.
    """
    if len(runs) > 1 or runs[0].shards == 1:
        raise ConfigurationError(
            f"{' and '.join(run.name for run in runs)}: of traces, shards of one are put together",
            hint="give all shards of one trace; surerag calibrate --trace reports on several traces",
        )
    [run] = runs
    with Run.open(output, run.about, schemas(), kind=TRACE) as whole:
        for folder, part in run:
            if part.unit not in whole.manifest.parts:
                files = {table: (folder / file.name).read_bytes() for table, file in part.files.items()}
                whole.adopt(part, files)
        whole.finish()
    rows = sum(part.rows for _, part in run)
    _say(f"{rows:,} questions of {run.shards} shards are one trace in {output}.")


def _told(runs: Sequence[Gathered]) -> str:
    if len(runs) > 1:
        return f"From the runs {', '.join(run.name for run in runs)}."
    return f"Put together from {runs[0].shards} shards." if runs[0].shards > 1 else f"From {runs[0].name}."


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
