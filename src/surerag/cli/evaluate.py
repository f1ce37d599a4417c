"""``surerag evaluate``: what retrieval was worth, over a file of questions, gold answers and contexts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from surerag.cli.display import Stages, console, staged
from surerag.cli.entailers import EntailmentChoice
from surerag.cli.readers import ReaderChoice
from surerag.drivers.progress import reporting
from surerag.entailment import JudgeEntailer, NLIEntailer
from surerag.evaluation.comparison.analysis import Analysis, Tally, settings_of
from surerag.evaluation.comparison.measuring import Measured, measure
from surerag.evaluation.comparison.plots import write_plots
from surerag.evaluation.comparison.report import render_comparison
from surerag.evaluation.comparison.results import SystemComparison
from surerag.evaluation.comparison.tables import systems_table, tests_table
from surerag.evaluation.comparison.waterfall import Extremes, Waterfall, waterfalls
from surerag.evaluation.datasets import DataSet, check_file
from surerag.extras import extra
from surerag.journal import Answers, Journal, OnChange
from surerag.methods.seper.component import SePer
from surerag.methods.seper.options import SePerOptions
from surerag.methods.seper.result import SePerResult
from surerag.readers.protocol import BaseReader
from surerag.recording import RecordedEntailer, RecordedReader
from surerag.services import Entailer
from surerag.storage import storing, whole_lines, write_whole

JOURNAL, ROWS, FIGURES, PAGE = "journal.jsonl", "results.jsonl", "results.json", "report.html"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the user asked for.

    Attributes:
        file: The data set.
        output: Folder for journal, results and report.
        options: Of SePer.
        entailment: ``"exact"``, ``"judge"``, ``"nli"`` or ``"nli:ID"``; None chooses.
        concurrency: Rows in a batch of a local model, or requests under way at a server.
        baseline: System to test all others against.
        extremes: Questions to look into at either end.
        on_change: What to do if the folder's journal belongs to another run.
    """

    file: Path
    output: Path
    options: SePerOptions
    entailment: str | None = None
    concurrency: int = 16
    baseline: str | None = None
    extremes: int = 3
    on_change: OnChange = "error"


def run_evaluate(choice: ReaderChoice, wanted: Evaluation) -> bool:
    """Measure every row of a file, going on where an earlier run ended, and write results and report.

    What reader and entailer answer is on the disk before it is used. A run that is killed, at any point,
    loses only what is being asked at that moment: one batch of a local model, or the requests under way
    at a server, each with all its samples. The same command asks for those again, and for nothing else.

    Returns:
        Whether every row could be measured.

    Raises:
        InputError: If the file cannot be used.
        ConfigurationError: If the folder holds the answers of another run, or a setting cannot work.
        ServiceError: If reader or entailer fails.
        MissingExtraError: If a package for data, model or report is not installed.
    """
    with extra("report"):  # before anything is asked, not after
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
    analysis = Analysis(baseline=wanted.baseline, seed=wanted.options.seed)
    with staged() as stages:
        with stages.working("Checking the data"):
            data = check_file(wanted.file)
            analysis.check(data.systems)
        with stages.working("Loading the models"):
            reader = choice.build()
            entailment = EntailmentChoice.chosen(wanted.entailment, choice)
            judge = entailment.loaded()
        run = _identity(data, _seper(reader, judge or JudgeEntailer(reader), wanted))
        with Journal(wanted.output / JOURNAL, run, on_change=wanted.on_change) as journal:
            _tell(choice, data, reader, entailment, journal)
            with _resumable():
                found, falls = _measured(data, reader, judge, wanted, analysis, journal, stages)
        with stages.working("Writing the report"):
            _write(found, falls, data, choice, wanted.output)
    console.print(systems_table(found))
    if found.tests:
        console.print(tests_table(found))
    if cut := found.cut_short():
        console.print(cut, style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"Written to {wanted.output}: {PAGE}, {FIGURES}, {ROWS}.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if found.failures:
        console.print(
            f"{len(found.failures)} of {data.rows} rows could not be measured, the first because: "
            f"{found.failures[0].error}\nThe same command tries those again.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return not found.failures


def _seper(reader: BaseReader, entailer: Entailer, wanted: Evaluation) -> SePer:
    return SePer(reader, entailer, **wanted.options.chosen())


def _identity(data: DataSet, seper: SePer) -> Mapping[str, Any]:
    """Return what the journal's answers belong to."""
    return {
        "data": f"{data.rows} rows, digest {data.digest[:16]}",
        "reader": seper.reader.name,
        "entailment": seper.entailer.name,
        **settings_of(seper),
    }


def _tell(
    choice: ReaderChoice, data: DataSet, reader: BaseReader, entailment: EntailmentChoice, journal: Journal
) -> None:
    who = "the embedded reader (no --model was given)" if choice.is_embedded else reader.name
    model = f" ({entailment.model})" if entailment.model else ""
    lines = [f"{data.rows:,} rows, read by {who}; entailment: {entailment.kind}{model}."]
    if not reader.capabilities.logprobs:
        lines.append("The reader has no log-probabilities: answers are weighted by how often they come.")
    if journal.found:
        lines.append(f"Going on: {journal.found:,} answers are known from before.")
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        console.print("What was answered is kept: the same command goes on from here.", highlight=False)
        raise


def _measured(
    data: DataSet,
    reader: BaseReader,
    judge: Entailer | None,
    wanted: Evaluation,
    analysis: Analysis,
    answers: Answers,
    stages: Stages,
) -> tuple[SystemComparison, list[Waterfall]]:
    recorded = RecordedReader(reader, answers, max_concurrency=wanted.concurrency)
    entailer: Entailer = JudgeEntailer(recorded) if judge is None else judge
    if isinstance(judge, NLIEntailer):
        entailer = RecordedEntailer(judge, answers)
    seper = _seper(recorded, entailer, wanted)
    tally, extremes = Tally(data.systems), Extremes(wanted.extremes)
    with (
        whole_lines(wanted.output / ROWS) as write,
        reporting(stages("Measuring"), data.rows) as advance,
    ):
        for measured in measure(data, seper, window=wanted.concurrency):
            write(json.dumps(_record(measured), ensure_ascii=False, allow_nan=False))
            tally.add(measured)
            extremes.add(measured)
            advance()
        found = tally.compared(seper, analysis)
        with stages.working("Looking into the extremes"):
            falls = waterfalls(extremes.rows(), seper, window=wanted.concurrency)
    return found, falls


def _record(measured: Measured) -> dict[str, Any]:
    """Return one row's line: all that was sampled and judged."""
    row, last = measured.row, measured.steps[-1] if measured.steps else None
    return {
        "id": row.id,
        "system": row.system,
        "question": row.question,
        "answers": list(row.golds),
        "delta": None if measured.error else 0.0 if last is None else last.delta,
        "error": measured.error or None,
        "steps": [None if step is None else _step(step) for step in measured.steps],
    }


def _step(step: SePerResult) -> dict[str, Any]:
    known = ("question", "golds")
    return {name: value for name, value in asdict(step).items() if name not in known}


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
        lead=f"{data.rows:,} rows{several} in {data.file.name}, read by {who}.",
        figures=figures,
        falls=falls,
        warnings=_warnings(found, choice),
        footer=f"Made by: surerag evaluate {data.file.name}",
    )
    write_whole(output / FIGURES, found.to_json() + "\n")
    write_whole(output / PAGE, page)


def _warnings(found: SystemComparison, choice: ReaderChoice) -> list[str]:
    notes = []
    if choice.is_embedded:
        notes.append(
            "These figures are about the embedded reader, a very small model that knows an invented world "
            "only. Name your own with --model or --base-url."
        )
    if "frequency" in found.weighting and found.settings["weights"] != "frequency":
        notes.append(
            "The reader gave no log-probabilities: answers are weighted by how often they were sampled, "
            "not by their likelihood."
        )
    if cut := found.cut_short():
        notes.append(cut)
    if found.failures:
        notes.append(f"{len(found.failures)} rows could not be measured; they are listed below.")
    return notes
