"""``surerag calibrate`` on questions or traces: record once, calibrate, and say what it saves and costs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from surerag import ClusterCompressor, LazyRAG, UncertaintyRewriter
from surerag.cli.display import Stages, staged
from surerag.cli.readers import ReaderChoice
from surerag.cli.scaling import HERE, Counting, Scaling
from surerag.cli.trace_runs import (
    Corpus,
    asked_in,
    checked_questions,
    documents_in,
    going_on,
    resumable,
    say,
    show,
    who,
)
from surerag.cli.unit_makers import corpus_digest, recorder, recording_settings, secrets_of
from surerag.drivers.progress import counted_not_logged
from surerag.encoders import packaged_minilm
from surerag.errors import ConfigurationError
from surerag.evaluation.inputs import Field, QuestionFile
from surerag.evaluation.serialise import to_json
from surerag.extras import extra
from surerag.options import Options, plain
from surerag.places import Anywhere
from surerag.prices import Prices, load_prices
from surerag.readers.protocol import BaseReader
from surerag.records import Trace, record
from surerag.records.field.estimate import estimated
from surerag.records.pipeline import Pipeline
from surerag.records.tradeoff.choices import Method, cases, choice_of, identity_of
from surerag.records.tradeoff.columns import Times
from surerag.records.tradeoff.curve import LATENCIES, Bound, TradeOff, trade_off
from surerag.records.tradeoff.page import Shown, render_trade_offs
from surerag.records.tradeoff.plots import write_plots
from surerag.records.tradeoff.tables import summary_grid, trade_off_grids
from surerag.records.tradeoff.timing import kept_times, read_times, timed
from surerag.runs.store import check_output, results_of, working_folder
from surerag.scale.units import Job
from surerag.storage import write_whole

PAGE, FIGURES, TABLES = "index.html", "calibration.json", "tables.md"
_OPTIONS: Mapping[Method, type[Options]] = {
    "l-rag": LazyRAG,
    "dynqr": UncertaintyRewriter,
    "edc2": ClusterCompressor,
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """What ``surerag calibrate`` was asked for; see the command's options.

    Attributes:
        questions: And documents: not read where traces are given.
        documents: What to retrieve from.
        traces: Recorded before.
    """

    questions: Anywhere
    documents: Anywhere
    traces: tuple[Anywhere, ...]
    methods: tuple[Method, ...]
    bound: Bound
    output: Anywhere
    columns: Mapping[Field, str] = field(default_factory=dict)
    signal: str | None = None
    retrieval: str = "minilm"
    top_n: int = 3
    judge: str = "contains"
    max_tokens: int = 64
    latencies: tuple[float, ...] = LATENCIES
    timed: int = 8
    prices: Path | None = None
    concurrency: int = 16
    dry_run: bool = False
    restart: bool = False
    scaling: Scaling = HERE


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A trace, where its policies go, and the times that were measured beside it."""

    trace: Trace
    folder: Path
    times: Mapping[str, Times]


def run_calibrate(choices: Sequence[ReaderChoice], wanted: Calibration) -> bool:
    """Record where there is no trace yet, calibrate, print, and write policies, tables, pictures and page.

    Returns:
        Whether every promise that was asked for can be given; True for a dry run.

    Raises:
        InputError: If questions, documents or traces cannot be used.
        ConfigurationError: If a bound is out of range, or the folder holds other traces.
        ServiceError: If a reader fails.
        MissingExtraError: If a package is not installed.
    """
    with extra("report"):  # before anything is asked, not after
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
    with extra("decisions"):
        import scipy  # noqa: F401
    prices = load_prices(wanted.prices)
    check_output(wanted.output)
    with results_of(wanted.output) as folder:
        recorded = _opened(wanted, folder) if wanted.traces else _asked(choices, wanted, folder)
        if wanted.dry_run:
            return True
        found = [_calibrated(one, method, wanted, prices) for one in recorded for method in wanted.methods]
        _written(found, wanted, folder)
    return all(one.found.policy.verdict != "infeasible" for one in found)


def _opened(wanted: Calibration, folder: Path) -> list[_Recorded]:
    recorded = []
    for place in wanted.traces:
        trace = Trace(place)
        name = _folder_name(str(trace.about.get("reader", place.name)))
        times = read_times(place.parent) if isinstance(place, Path) else {}
        recorded.append(_Recorded(trace, folder / name, times))
    if wanted.dry_run:
        say("Traces are there: no model will be asked.")
    return recorded


def _asked(choices: Sequence[ReaderChoice], wanted: Calibration, folder: Path) -> list[_Recorded]:
    """Record a trace for each reader, one after the other, or say what that would ask."""
    recorded: list[_Recorded] = []
    used: set[str] = set()
    with wanted.scaling.begun(), staged() as stages:
        with stages.working("Reading the documents"):
            documents = documents_in(wanted.documents)
            questions = checked_questions(
                wanted.questions, wanted.columns, None if wanted.dry_run else working_folder(wanted.output)
            )
        with stages.working("Building the indices"):
            corpus = Corpus(documents, packaged_minilm(), wanted.retrieval)
        for choice in choices:
            with stages.working("Loading the model"):
                reader = replace(choice, concurrency=wanted.concurrency).build()
            name = _folder_name(reader.name)
            if name in used:
                raise ConfigurationError(f"{reader.name} was named twice", hint="name each model once")
            used.add(name)
            say(
                f"{len(questions):,} questions over {len(corpus.passages):,} passages of {len(documents):,} "
                f"documents, read by {who(choice, reader)}."
            )
            _estimate(reader, corpus, wanted, questions)
            if not wanted.dry_run:
                recorded.append(_recorded(choice, reader, corpus, wanted, folder / name, questions, stages))
    return recorded


def _estimate(reader: BaseReader, corpus: Corpus, wanted: Calibration, questions: QuestionFile) -> None:
    """Say what is to be asked, before it is."""
    cost = estimated(lambda dry: _parts(dry, corpus, wanted), questions, reader, n_samples=_samples(reader))
    more = ""
    if wanted.timed:
        ways = min(wanted.timed, len(questions)) * 3 * len(wanted.methods)
        more = f"; and up to {ways:,} answers more, one by one, for times"
    say(
        f"To be asked, estimated on its first questions: {cost}{more}. What was answered before is not asked."
    )


def _recorded(
    choice: ReaderChoice,
    reader: BaseReader,
    corpus: Corpus,
    wanted: Calibration,
    folder: Path,
    questions: QuestionFile,
    stages: Stages,
) -> _Recorded:
    where = wanted.output / folder.name / "trace"
    going_on(where, restart=wanted.restart)
    parts = _parts(reader, corpus, wanted)
    prices = load_prices(wanted.prices)
    counting = Counting(stages("Recording"), asked_in(questions, wanted.scaling), prices, reader.name)

    def job() -> Job:
        told = recording_settings(
            choice,
            wanted.documents,
            corpus_digest(corpus.passages),
            wanted.methods,
            retrieval=wanted.retrieval,
            top_n=wanted.top_n,
            max_tokens=wanted.max_tokens,
            judge=wanted.judge,
            n_samples=_samples(reader),
            concurrency=wanted.concurrency,
        )
        return Job(recorder, told, secrets_of(choice))

    with resumable(where, beside=wanted.scaling.kept_beside), counted_not_logged():
        trace = record(
            parts,
            questions,
            where,
            judge=wanted.judge,
            n_samples=_samples(reader),
            about={"retriever": wanted.retrieval, "encoder": corpus.encoder.name},
            part_size=questions.size,
            window=wanted.concurrency,
            max_concurrency=wanted.concurrency,
            on_change="restart" if wanted.restart else "error",
            engine=wanted.scaling.engine(job, counting.made),
            shard=wanted.scaling.shard,
            progress=counting,
        )
        times: dict[str, Times] = {}
        if wanted.timed:
            few = list(islice(questions, wanted.timed))
            pipeline = Pipeline.of(parts)
            with stages.working("Asking a few one by one, for times"):
                for method in wanted.methods:
                    times[method] = kept_times(
                        folder,
                        method,
                        len(few),
                        lambda method=method: timed(pipeline, method, few),  # type: ignore[misc]  # bound now
                    )
    return _Recorded(trace, folder, times)


def _parts(reader: BaseReader, corpus: Corpus, wanted: Calibration) -> list[Any]:
    return list(corpus.parts(reader, wanted.methods, top_n=wanted.top_n, max_tokens=wanted.max_tokens))


def _samples(reader: BaseReader) -> int:
    """Return how many answers to sample beside: none, unless only they can tell how sure the reader is."""
    return 0 if reader.capabilities.logprobs else LazyRAG.OPTIONS["n_samples"].default


def _calibrated(recorded: _Recorded, method: Method, wanted: Calibration, prices: Prices) -> Shown:
    trace = recorded.trace
    choice = choice_of(trace, method)
    identity = identity_of(trace, choice, wanted.signal)
    model = str(trace.about.get("reader", trace.folder.name))
    found = trade_off(
        cases(trace, choice, identity.signal),
        choice,
        identity,
        wanted.bound,
        model=model,
        asked=len(trace),
        times=recorded.times.get(method),
        latencies=wanted.latencies,
        price=prices.of(model),
    )
    recorded.folder.mkdir(parents=True, exist_ok=True)
    file = recorded.folder / f"{method}.policy.json"
    found.policy.save(file)
    pictures = write_plots(found, recorded.folder)
    settings = (trace.about.get("settings") or {}).get(choice.part, {})
    return Shown(found, tuple(pictures), f"{recorded.folder.name}/{file.name}", _settings(settings, method))


def _settings(settings: Mapping[str, Any], method: Method) -> str:
    """Return what differs from the defaults, as keyword arguments."""
    options = _OPTIONS[method].OPTIONS
    changed = {
        name: value
        for name, value in settings.items()
        if name in options
        and name not in ("threshold", "mode", "prompts")
        and value != plain(options[name].default)
    }
    return ", ".join(f"{name}={value!r}" for name, value in changed.items())


def _written(found: Sequence[Shown], wanted: Calibration, folder: Path) -> None:
    """Print what was found, and write it down."""
    told: list[TradeOff] = [one.found for one in found]
    grids = [grid for one in told for grid in trade_off_grids(one)]
    show([*grids, *([summary_grid(told)] if len(told) > 1 else [])])
    for one in told:
        say(f"{one.model}, {one.method}: {one.policy.verdict}. It {one.policy.promise}\n{one.words}")
    bound = wanted.bound
    if len(told) > 1 and bound.target != "best":
        together = max(0.0, 1 - len(told) * (1 - bound.confidence))
        say(
            f"Each promise holds at confidence {bound.confidence:g}; all {len(told)} together at "
            f"{together:g}. For {bound.confidence:g} together, ask for "
            f"--confidence {1 - (1 - bound.confidence) / len(told):g}."
        )
    write_whole(folder / FIGURES, json.dumps([json.loads(to_json(one)) for one in told], indent=2) + "\n")
    write_whole(folder / TABLES, "\n".join(grid.markdown() for grid in grids))
    lead = f"{told[0].n:,} questions; {told[0].verb} or not, by what the reader knows of itself."
    page = render_trade_offs(
        found, title="Thresholds with a promise", lead=lead, footer="Made by surerag calibrate."
    )
    write_whole(folder / PAGE, page)
    files = ", ".join(one.file for one in found)
    say(f"Written to {wanted.output}: {files}; {PAGE}, {TABLES}, {FIGURES}, and the traces.")


def _folder_name(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.")[:80] or "model"
