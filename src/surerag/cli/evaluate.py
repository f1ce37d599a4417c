"""``surerag evaluate``: what retrieval was worth, over a file of questions, gold answers and contexts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from surerag.cli.display import Stages, console, staged
from surerag.cli.entailers import EntailmentChoice
from surerag.cli.readers import ReaderChoice
from surerag.cli.scaling import HERE, Counting, Scaling
from surerag.cli.unit_makers import SePerModels, row_maker, row_settings, secrets_of
from surerag.evaluation.comparison.analysis import Analysis, Tally, settings_of
from surerag.evaluation.comparison.making import RowMaker
from surerag.evaluation.comparison.measuring import warned_once
from surerag.evaluation.comparison.plots import write_plots
from surerag.evaluation.comparison.report import render_comparison
from surerag.evaluation.comparison.results import SystemComparison
from surerag.evaluation.comparison.tables import systems_table, tests_table
from surerag.evaluation.comparison.units import (
    EVALUATION,
    measured_from,
    records_of,
    row_schema,
    spent_in,
)
from surerag.evaluation.comparison.waterfall import Extremes, Waterfall, Where, waterfalls
from surerag.evaluation.inputs import DataSet, Field, check_rows, dataset
from surerag.extras import extra
from surerag.journal import OnChange
from surerag.methods.seper.component import SePer
from surerag.methods.seper.options import SePerOptions
from surerag.places import Anywhere
from surerag.prices import load_prices
from surerag.prices.words import cost_words
from surerag.readers.protocol import BaseReader
from surerag.recording import Tab
from surerag.runs import Run, Task
from surerag.runs.store import results_of, working_folder
from surerag.scale.units import Job
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
        scaling: Where it works, and on which units.
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
    scaling: Scaling = HERE


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
    with wanted.scaling.begun(), staged() as stages:
        with stages.working("Checking the data"):
            data = check_rows(wanted.file, wanted.columns, folder=working_folder(wanted.output))
            analysis.check(data.systems)
            wanted.scaling.shard.check(data.questions, dataset.UNIT)
        with stages.working("Loading the models"):
            reader = choice.build()
            entailment = EntailmentChoice.chosen(wanted.entailment, choice)
            judge = entailment.loaded()
            models = SePerModels(reader, judge, wanted.options, wanted.concurrency)
        about = {**_identity(data, models.plain), **wanted.scaling.shard.about}
        with Run.open(wanted.output, about, row_schema(), kind=EVALUATION, on_change=wanted.on_change) as run:
            _tell(choice, data, reader, entailment, run)
            with _resumable(run, data, wanted.scaling), warned_once():
                _measure(choice, data, models, run, wanted, stages)
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
def _resumable(run: Run, data: DataSet, scaling: Scaling) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        _say(
            f"{run.manifest.rows:,} of {data.rows:,} rows are measured and kept in {run.place}"
            f"{scaling.kept_beside}. The same command goes on from here."
        )
        raise


def _measure(
    choice: ReaderChoice,
    data: DataSet,
    models: SePerModels,
    run: Run,
    wanted: Evaluation,
    stages: Stages,
) -> None:
    """Have the units measured that are not there, or hold failures."""
    units = [unit for unit in range(data.units) if wanted.scaling.shard.has(unit)]
    known = {unit: part for unit, part in run.manifest.parts.items() if not part.note["failed"]}
    counting = Counting(
        stages("Measuring"), sum(map(data.rows_in, units)), load_prices(), models.plain.reader.name
    )

    def job() -> Job:
        told = row_settings(
            choice, wanted.entailment, wanted.options, wanted.concurrency, worked=bool(run.units)
        )
        return Job(row_maker, told, secrets_of(choice))

    def missing() -> Iterator[Task]:
        return (Task(unit, "", partial(data.unit, unit)) for unit in units if unit not in known)

    done = sum(part.rows for part in known.values())
    counting(done)
    engine, maker = (
        wanted.scaling.engine(job, counting.made),
        RowMaker(models.kept, window=wanted.concurrency),
    )
    with closing(engine(run, missing(), maker)) as made:
        for part in made:
            counting(done := done + part.rows)


def _analysed(
    data: DataSet, models: SePerModels, run: Run, analysis: Analysis, extremes: int
) -> tuple[SystemComparison, list[Where]]:
    """Return what came of all rows, and where the extreme ones stand."""
    tally, ends = Tally(data.systems), Extremes(extremes)
    for unit, at, record in records_of(run):
        tally.take(record)
        if record["after"] is not None:
            ends.add(record["delta"], Where(unit, at))
    return tally.compared(models.plain, analysis, spent_in(run)), ends.places()


def _waterfalls(
    places: Sequence[Where], data: DataSet, models: SePerModels, run: Run, window: int
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
