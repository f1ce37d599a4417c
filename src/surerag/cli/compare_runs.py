"""What ``surerag compare`` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from surerag.cli.display import Stages, console, staged
from surerag.cli.readers import ReaderChoice
from surerag.cli.scaling import HERE, Counting, Scaling
from surerag.cli.trace_runs import documents_in
from surerag.cli.unit_makers import (
    comparing_settings,
    corpus_digest,
    named_entailer,
    secrets_of,
    system_parts,
    unit_maker,
)
from surerag.encoders import packaged_minilm
from surerag.errors import BudgetError, ConfigurationError
from surerag.evaluation.ci.condition import COSTS, Condition, parse_condition
from surerag.evaluation.ci.gate import (
    Baseline,
    Checked,
    Joined,
    Undecided,
    check,
    known_of,
    read_baseline,
    write_baseline,
)
from surerag.evaluation.ci.paired import Outcome
from surerag.evaluation.ci.telling import WORDS, junit, markdown, operating, reason, sentence
from surerag.evaluation.inputs import Field, QuestionFile, check_questions
from surerag.evaluation.systems.comparing import compare
from surerag.evaluation.systems.estimating import Expected, expected, total_of
from surerag.evaluation.systems.page import Rows, render_report
from surerag.evaluation.systems.pipelines import SYSTEMS, Parts, build, check_names
from surerag.evaluation.systems.results import SystemsReport
from surerag.evaluation.systems.rows import batches_in
from surerag.evaluation.systems.scoring import MEASURES
from surerag.evaluation.systems.tables import costs_table, estimate_table, systems_table, verdicts_table
from surerag.evaluation.systems.traced import TracedSystems
from surerag.evaluation.systems.units import UNIT
from surerag.extras import extra
from surerag.places import Anywhere
from surerag.prices import load_prices
from surerag.readers.protocol import BaseReader
from surerag.records.trace import Trace
from surerag.runs.store import results_of, working_folder
from surerag.scale.units import Job
from surerag.services import Entailer
from surerag.storage import write_whole

FIGURES, PAGE, BASELINE = "results.json", "report.html", "baseline.parquet"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for; see the command's options."""

    questions: Anywhere | None
    columns: Mapping[Field, str]
    documents: Anywhere | None
    trace: Anywhere | None
    systems: tuple[str, ...] | None
    limit: int | None
    retrieval: str
    top_n: int
    max_tokens: int
    threshold: float | None
    signal: str | None
    rule: str
    entailment: str | None
    seper: bool
    understanding: bool
    consistency: int
    measure: str
    prefer: str
    margin: float
    confidence: float
    prices: Path | None
    dry_run: bool
    max_cost: float | None
    fail_if: tuple[str, ...]
    baseline: Path | None
    undecided: Undecided
    junit: Path | None
    summary: Path | None
    output: Anywhere
    concurrency: int
    restart: bool
    scaling: Scaling = HERE

    @property
    def shape(self) -> dict[str, Any]:
        """What the systems and the scores of a unit depend on, in plain values."""
        names = (
            "retrieval", "top_n", "max_tokens", "threshold", "rule", "entailment", "seper", "understanding",
            "consistency", "concurrency",
        )  # fmt: skip
        prices = None if self.prices is None else str(self.prices.resolve())
        return {**{name: getattr(self, name) for name in names}, "prices": prices}


@dataclass(frozen=True)
class _Setup:
    """What is compared."""

    systems: Mapping[str, Any]
    names: tuple[str, ...]
    total: int
    lead: str
    reader: BaseReader | None = None
    entailer: Entailer | None = None
    questions: QuestionFile | None = None
    traced: TracedSystems | None = None
    parts: Parts | None = None
    job: Callable[[], Job] | None = None


def run_compare(choice: ReaderChoice, wanted: Wanted) -> Outcome:
    """Compare, tell, and test the conditions.

    Returns:
        What the conditions come to: ``"pass"`` where there are none.

    Raises:
        InputError: If questions or documents cannot be used.
        ConfigurationError: If an option cannot work, or the folder holds another comparison.
        BudgetError: If it would cost more than it may.
        ServiceError: If the reader fails.
        MissingExtraError: If a package is not installed.
    """
    with extra("report"):  # before anything is asked, not after
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
    with extra("parquet"):
        import pyarrow as pa  # noqa: F401
    began = time.monotonic()
    prices = load_prices(wanted.prices)
    known = {} if wanted.baseline is None else read_baseline(wanted.baseline)
    with wanted.scaling.begun(), staged() as stages:
        # What can be wrong in an option is found before a model is loaded.
        names = _names(wanted)
        conditions = [] if names is None else _conditions(wanted, names, known)
        setup = (
            _traced(wanted) if wanted.trace is not None else _built(choice, wanted, names or SYSTEMS, stages)
        )
        if names is None:
            conditions = _conditions(wanted, setup.names, known)
        _say(setup.lead)
        if setup.parts is not None:
            asked = list(islice(setup.questions or (), 8))
            costs = expected(setup.names, setup.parts, asked, setup.total, prices)
            _tell_costs(costs, wanted)
        if wanted.dry_run:
            return "pass"
        counting = Counting(stages("Comparing"), setup.total)
        with _resumable(wanted.scaling):
            report = compare(
                setup.systems,
                setup.traced.questions() if setup.traced is not None else setup.questions or (),
                wanted.output,
                reader=setup.reader,
                entailer=setup.entailer,
                judge=setup.entailer is not None,
                rule=wanted.rule,
                seper=wanted.seper,
                understanding=wanted.understanding,
                consistency=wanted.consistency,
                prices=prices,
                measure=wanted.measure,
                cost=wanted.prefer,
                margin=wanted.margin,
                confidence=wanted.confidence,
                window=wanted.concurrency,
                max_concurrency=wanted.concurrency,
                max_money=wanted.max_cost,
                on_change="restart" if wanted.restart else "error",
                engine=wanted.scaling.engine(setup.job, counting.made),
                shard=wanted.scaling.shard,
                progress=counting,
            )
        with stages.working("Writing the report"):
            checked = [check(_joined(wanted.output, one, known), wanted.confidence) for one in conditions]
            with results_of(wanted.output) as folder:
                _write(report, checked, wanted, setup.lead, folder)
    show_report(report)
    for one in checked:
        _tell_condition(one, wanted)
    if checked:
        _hand_over(checked, wanted, time.monotonic() - began)
    _say(f"Written to {wanted.output}: {PAGE}, {FIGURES}, {BASELINE} and all rows as Parquet.")
    if report.incomplete:
        system, error = next(iter(report.errors.items()))
        _say(
            f"{report.incomplete:,} of {report.questions:,} questions failed in a system and are left out of "
            f"its pairs; the first of {system}, because: {error}"
        )
    return _outcome(checked, wanted.undecided)


def _names(wanted: Wanted) -> tuple[str, ...] | None:
    """Return names of systems, where they do not depend on a trace."""
    if wanted.trace is not None:
        return wanted.systems
    return check_names(wanted.systems or SYSTEMS)


def _conditions(wanted: Wanted, names: Sequence[str], known: Baseline) -> list[Condition]:
    texts = list(wanted.fail_if)
    if not texts and known:
        both = [name for name in names if name in known]
        if not both:
            raise ConfigurationError(
                f"{wanted.baseline} holds {', '.join(known)}, and none of these is compared",
                hint="compare a system of the baseline, or name another file",
            )
        measure = wanted.measure or "accuracy"
        texts = [f"{measure} of {name} < baseline - {100 * wanted.margin:g}" for name in both]
    return [parse_condition(text, names, list(known)) for text in texts]


def _traced(wanted: Wanted) -> _Setup:
    if wanted.entailment is not None or wanted.consistency:
        raise ConfigurationError(
            "a trace holds no passages and no model to judge with",
            hint="leave out --entailment and --consistency, or compare with --documents",
        )
    trace = Trace(wanted.trace or "")
    traced = TracedSystems(trace, wanted.signal, wanted.threshold)
    systems = traced.systems(wanted.systems)
    reader = trace.about.get("reader") or "a reader that is not named"
    lead = f"{len(trace):,} questions of {wanted.trace}, as {reader} answered them."
    return _Setup(systems, tuple(systems), len(trace), lead, traced=traced)


def _built(choice: ReaderChoice, wanted: Wanted, names: Sequence[str], stages: Stages) -> _Setup:
    with stages.working("Reading questions and documents"):
        documents = documents_in(wanted.documents or Path())
        questions = check_questions(
            wanted.questions or Path(),
            wanted.columns,
            size=UNIT,
            limit=wanted.limit,
            folder=None if wanted.dry_run else working_folder(wanted.output),
            unique=True,
        )
    with stages.working("Loading the models"):
        reader, encoder = choice.build(), packaged_minilm()
        entailer = named_entailer(wanted.entailment, choice, reader)
    with stages.working("Building the indices"):
        parts, passages = system_parts(reader, encoder, documents, wanted.shape)
        systems = {name: build(name, parts) for name in names}
    who = "the embedded reader (no --model was given)" if choice.is_embedded else reader.name
    lead = (
        f"{len(questions):,} questions over {len(passages):,} passages of {len(documents):,} documents, "
        f"read by {who}."
    )
    if questions.told:
        lead += f" Taken from {questions.form}: {questions.told}. Name others with --columns."
    told = comparing_settings(
        choice,
        wanted.documents or Path(),
        corpus_digest(passages),
        systems=list(names),
        **wanted.shape,
    )
    return _Setup(
        systems,
        tuple(names),
        sum(group.size for unit, group in enumerate(questions.groups()) if wanted.scaling.shard.has(unit)),
        lead,
        reader,
        entailer,
        questions=questions,
        parts=parts,
        job=lambda: Job(unit_maker, told, secrets_of(choice)),
    )


def _tell_costs(costs: Sequence[Expected], wanted: Wanted) -> None:
    console.print(estimate_table(costs))
    total = total_of(costs).money
    if wanted.max_cost is None:
        return
    if total is None:
        raise BudgetError(
            "--max-cost needs the price of the model, which is not known",
            hint='give it with --prices FILE: [models."NAME"], prompt, completion; or gpu_hour for your own',
        )
    if total > wanted.max_cost:
        raise BudgetError(
            f"this is expected to cost {total:.4g}, and --max-cost is {wanted.max_cost:.4g}",
            hint="allow more, ask fewer questions (--limit), or compare fewer systems (--systems)",
        )


def _joined(folder: Anywhere, condition: Condition, known: Baseline) -> Joined:
    joined = Joined(condition, known_of(condition, known))
    for batch in batches_in(folder, ["id", "system", condition.metric]):
        for id_, system, value in zip(*(batch.column(at).to_pylist() for at in range(3)), strict=True):
            joined.add(id_, system, value)
    return joined


def _write(
    report: SystemsReport, checked: Sequence[Checked], wanted: Wanted, lead: str, folder: Path
) -> None:
    told = [(one.condition.text, WORDS[one.outcome], sentence(one, wanted.confidence)) for one in checked]
    write_report(report, lambda columns: _rows(wanted.output, columns), folder, lead, told)


def write_report(
    report: SystemsReport,
    rows: Rows,
    folder: Path,
    lead: str,
    conditions: Sequence[tuple[str, str, str]] = (),
) -> None:
    """Write figures, the baseline of later comparisons, and the page.

    Args:
        report: What it came to.
        rows: Reads columns of the results.
        folder: Where they go.
        lead: What was compared, in a sentence.
        conditions: Texts, outcomes and reasons.
    """
    write_whole(folder / FIGURES, report.to_json() + "\n")
    metrics = [name for name in MEASURES if any(name in one.measured for one in report.systems)]
    columns = [*metrics, *COSTS]
    write_baseline(folder / BASELINE, rows(["id", "system", *columns]), columns)
    write_whole(folder / PAGE, render_report(report, rows, lead=lead, conditions=conditions))


def _rows(folder: Anywhere, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    wanted = None if columns is None else list(columns)
    for batch in batches_in(folder, wanted):
        yield from batch.to_pylist()


def show_report(report: SystemsReport) -> None:
    """Print tables and recommendation."""
    console.print(systems_table(report))
    console.print(costs_table(report))
    if report.verdicts:
        console.print(verdicts_table(report))
    _say(report.recommendation.text)


def _tell_condition(one: Checked, wanted: Wanted) -> None:
    style = {"pass": "green", "fail": "red", "undecided": "yellow"}[one.outcome]
    console.print(f"\n{one.condition.text}: ", end="", markup=False, highlight=False)
    console.print(WORDS[one.outcome], style=style, highlight=False)
    _say(f"{sentence(one, wanted.confidence)}. {reason(one)}")
    for line in operating(one):
        _say(f"  {line}")


def _hand_over(checked: Sequence[Checked], wanted: Wanted, seconds: float) -> None:
    if wanted.junit is not None:
        write_whole(wanted.junit, junit(checked, wanted.confidence, wanted.undecided, seconds))
    if wanted.summary is not None:
        with wanted.summary.open("a", encoding="utf-8") as opened:
            opened.write(markdown(checked, wanted.confidence, wanted.undecided))


def _outcome(checked: Sequence[Checked], undecided: Undecided) -> Outcome:
    broken = [one.outcome for one in checked if one.breaks(undecided)]
    return "fail" if "fail" in broken else "undecided" if broken else "pass"


@contextmanager
def _resumable(scaling: Scaling) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        _say(f"What is committed is kept{scaling.kept_beside}: the same command goes on from here.")
        raise


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
