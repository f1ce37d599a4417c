"""``surerag evaluate``: what retrieval was worth, over a file of questions, gold answers and contexts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surerag.cli.display import Stages, console, staged
from surerag.cli.entailers import EntailmentChoice
from surerag.cli.readers import ReaderChoice
from surerag.drivers.progress import reporting
from surerag.entailment import JudgeEntailer, NLIEntailer
from surerag.evaluation.comparison.analysis import Analysis, Tally, settings_of
from surerag.evaluation.comparison.measuring import warned_once
from surerag.evaluation.comparison.plots import write_plots
from surerag.evaluation.comparison.report import render_comparison
from surerag.evaluation.comparison.results import SystemComparison
from surerag.evaluation.comparison.tables import systems_table, tests_table
from surerag.evaluation.comparison.units import (
    EVALUATION,
    measure_unit,
    measured_from,
    records_of,
    row_schema,
    spent_in,
)
from surerag.evaluation.comparison.waterfall import Extremes, Waterfall, Where, waterfalls
from surerag.evaluation.inputs import DataSet, Field, check_rows
from surerag.extras import extra
from surerag.journal import Answers, OnChange
from surerag.methods.seper.component import SePer
from surerag.methods.seper.options import SePerOptions
from surerag.places import Anywhere
from surerag.prices.words import cost_words
from surerag.readers.protocol import BaseReader
from surerag.recording import RecordedEntailer, RecordedReader, Tab
from surerag.runs import Run
from surerag.runs.store import results_of, working_folder
from surerag.services import Entailer
from surerag.storage import storing, write_whole

FIGURES_FILE, PAGE = "results.json", "report.html"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the user asked for.

    Attributes:
        file: The data set.
        output: Folder for rows, answers and report.
        options: Of SePer.
        entailment: ``"exact"``, ``"judge"``, ``"nli"`` or ``"nli:ID"``; None chooses.
        concurrency: Rows in a batch of a local model, or requests under way at a server.
        baseline: System to test all others against.
        extremes: Questions to look into at either end.
        on_change: What to do if the folder holds another run.
        columns: Which column is what, where it is not found by its name.
    """

    file: Anywhere
    output: Anywhere
    options: SePerOptions
    entailment: str | None = None
    concurrency: int = 16
    baseline: str | None = None
    extremes: int = 3
    on_change: OnChange = "error"
    columns: Mapping[Field, str] = field(default_factory=dict)


def run_evaluate(choice: ReaderChoice, wanted: Evaluation) -> bool:
    """Measure every row of a data set, going on where an earlier run ended, and write results and report.

    What reader and entailer answer is on the disk before it is used. A run that is killed, at any point,
    loses only what is being asked at that moment: one batch of a local model, or the requests under way
    at a server, each with all its samples. The same command asks for those again, and for nothing else.
    Units of questions that are finished are not looked at again; what is held does not grow with the rows.

    Returns:
        Whether every row could be measured.

    Raises:
        InputError: If the file cannot be used.
        ConfigurationError: If the folder holds another run, or a setting cannot work.
        ServiceError: If reader or entailer fails.
        MissingExtraError: If a package for data, model or report is not installed.
    """
    with extra("demo"):  # before anything is asked, not after
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
        import pyarrow as pa  # noqa: F401
    analysis = Analysis(baseline=wanted.baseline, seed=wanted.options.seed)
    with staged() as stages:
        with stages.working("Checking the data"):
            data = check_rows(wanted.file, wanted.columns, folder=working_folder(wanted.output))
            analysis.check(data.systems)
        with stages.working("Loading the models"):
            reader = choice.build()
            entailment = EntailmentChoice.chosen(wanted.entailment, choice)
            models = _Models(reader, entailment.loaded(), wanted)
        about = _identity(data, models.plain)
        with Run.open(wanted.output, about, row_schema(), kind=EVALUATION, on_change=wanted.on_change) as run:
            _tell(choice, data, reader, entailment, run)
            with _resumable(run, data), warned_once():
                _measure(data, models, run, wanted, stages)
                with stages.working("Analysing"):
                    found, ends = _analysed(data, models, run, analysis, wanted.extremes)
                with stages.working("Looking into the extremes"):
                    falls = _waterfalls(ends, data, models, run, wanted.concurrency)
                run.finish()
        with stages.working("Writing the report"), results_of(wanted.output) as folder:
            _write(found, falls, data, choice, folder)
    console.print(systems_table(found))
    if found.tests:
        console.print(tests_table(found))
    if cut := found.cut_short():
        console.print(cut, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if found.costs is not None:
        _say(f"Measuring cost {cost_words(found.costs)}.")
    _say(f"Written to {wanted.output}: {PAGE}, {FIGURES_FILE}, and each row in rows-*.parquet.")
    if found.failed:
        _say(
            f"{found.failed:,} of {data.rows:,} rows could not be measured, the first because: "
            f"{found.failures[0].error}\nThe same command tries those again."
        )
    return not found.failed


class _Models:
    """The reader and who judges, as they are, and as they are asked with their answers kept."""

    def __init__(self, reader: BaseReader, judge: Entailer | None, wanted: Evaluation) -> None:
        self._reader, self._judge, self._wanted = reader, judge, wanted
        self.plain = self._seper(reader, judge or JudgeEntailer(reader))

    def kept(self, answers: Answers, tab: Tab) -> SePer:
        """Return a SePer that keeps and counts what it is answered."""
        recorded = RecordedReader(self._reader, answers, max_concurrency=self._wanted.concurrency, tab=tab)
        entailer: Entailer = JudgeEntailer(recorded) if self._judge is None else self._judge
        if isinstance(self._judge, NLIEntailer):
            entailer = RecordedEntailer(self._judge, answers)
        return self._seper(recorded, entailer)

    def _seper(self, reader: BaseReader, entailer: Entailer) -> SePer:
        return SePer(reader, entailer, **self._wanted.options.chosen())


def _identity(data: DataSet, seper: SePer) -> Mapping[str, Any]:
    """Return what the folder's rows are about."""
    return {
        "data": f"{data.rows} rows, digest {data.digest[:16]}",
        "reader": seper.reader.name,
        "entailment": seper.entailer.name,
        **settings_of(seper),
    }


def _tell(
    choice: ReaderChoice, data: DataSet, reader: BaseReader, entailment: EntailmentChoice, run: Run
) -> None:
    who = "the embedded reader (no --model was given)" if choice.is_embedded else reader.name
    model = f" ({entailment.model})" if entailment.model else ""
    _say(f"{data.rows:,} rows, read by {who}; entailment: {entailment.kind}{model}.")
    if data.told:
        _say(f"Taken from {data.form}: {data.told}. Name others with --columns.")
    if not reader.capabilities.logprobs:
        _say("The reader has no log-probabilities: answers are weighted by how often they come.")
    if run.units:
        _say(f"Going on: {run.manifest.rows:,} of {data.rows:,} rows are measured.")


@contextmanager
def _resumable(run: Run, data: DataSet) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        _say(
            f"{run.manifest.rows:,} of {data.rows:,} rows are measured and kept in {run.place}, and what "
            "was answered since. The same command goes on from here."
        )
        raise


def _measure(data: DataSet, models: _Models, run: Run, wanted: Evaluation, stages: Stages) -> None:
    """Measure the units that are not there, or hold failures."""
    with reporting(stages("Measuring"), data.rows) as advance:
        for unit in range(data.units):
            known = run.manifest.parts.get(unit)
            if known is None or known.note["failed"]:
                known = measure_unit(
                    run,
                    unit,
                    data.unit(unit),
                    models.kept,
                    window=wanted.concurrency,
                    worked=bool(run.units),
                )
            for _ in range(known.rows):
                advance()


def _analysed(
    data: DataSet, models: _Models, run: Run, analysis: Analysis, extremes: int
) -> tuple[SystemComparison, list[Where]]:
    """Return what came of all rows, and where the extreme ones stand."""
    tally, ends = Tally(data.systems), Extremes(extremes)
    for unit, at, record in records_of(run):
        tally.take(record)
        if record["after"] is not None:
            ends.add(record["delta"], Where(unit, at))
    return tally.compared(models.plain, analysis, spent_in(run)), ends.places()


def _waterfalls(
    places: Sequence[Where], data: DataSet, models: _Models, run: Run, window: int
) -> list[Waterfall]:
    """Look into some rows; what is asked for them is kept with their units."""
    found: dict[Where, Waterfall] = {}
    for unit in sorted({place.unit for place in places}):
        here = [place for place in places if place.unit == unit]
        rows = data.unit(unit)
        wanted = {place.at for place in here}
        records = {
            at: record for _, at, record in records_of(run, ("error", "steps"), [unit]) if at in wanted
        }
        measured = [measured_from(records[place.at], rows[place.at]) for place in here]
        with run.answers(unit) as journal:
            # What an example asks again, it finds; what is new is a few contexts, counted nowhere.
            falls = waterfalls(measured, models.kept(journal, Tab()), window=window)
        run.fold(unit)
        found.update(zip(here, falls, strict=True))
    return [found[place] for place in places]


def _write(
    found: SystemComparison, falls: list[Waterfall], data: DataSet, choice: ReaderChoice, output: Path
) -> None:
    with storing(output):
        figures = write_plots(found, output)
    who = "the embedded reader" if choice.is_embedded else found.reader
    several = f" of {len(data.systems)} systems" if len(data.systems) > 1 else ""
    page = render_comparison(
        found,
        title="What was retrieval worth?",
        lead=f"{data.rows:,} rows{several} in {data.path.name}, read by {who}.",
        figures=figures,
        falls=falls,
        warnings=_warnings(found, choice),
        footer=f"Made by: surerag evaluate {data.path.name}",
    )
    write_whole(output / FIGURES_FILE, found.to_json() + "\n")
    write_whole(output / PAGE, page)


def _warnings(found: SystemComparison, choice: ReaderChoice) -> list[str]:
    embedded = (
        "These figures are about the embedded reader, a very small model that knows an invented world only. "
        "Name your own with --model or --base-url."
    )
    return [*([embedded] if choice.is_embedded else []), *notes_on(found)]


def notes_on(found: SystemComparison) -> list[str]:
    """Return what a person should know before reading figures."""
    notes = []
    if "frequency" in found.weighting and found.settings["weights"] != "frequency":
        notes.append(
            "The reader gave no log-probabilities: answers are weighted by how often they were sampled, "
            "not by their likelihood."
        )
    if cut := found.cut_short():
        notes.append(cut)
    if found.failed:
        notes.append(f"{found.failed:,} rows could not be measured; they are listed below.")
    return notes


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
