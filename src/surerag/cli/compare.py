"""``surerag compare``: compares answers and costs of systems on your own questions and documents."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from surerag.cli.display import show, show_findings, show_note, step
from surerag.cli.models import (
    DEMO,
    AskAgain,
    AtATime,
    BaseUrl,
    Columns,
    Documents,
    Dtype,
    Language,
    Model,
    RunFile,
    ask_systems,
    check_run_of,
    command_line,
    load_corpus,
    load_reader,
    provenance,
    read_with_notes,
    split_names,
)
from surerag.errors import ConfigurationError, InputError
from surerag.evaluation import Question
from surerag.evaluation.causes import NOTES, SKIPPED, documents_with_references
from surerag.evaluation.findings import MARGIN, findings
from surerag.evaluation.gate import (
    EXIT_CODES,
    MEASURES,
    Outcome,
    check_requirement,
    parse_requirement,
    write_junit,
)
from surerag.evaluation.pipelines import PipelineSetup, build_system, needs_summaries, parse_system
from surerag.evaluation.report import example_answers, forecast, terminal_table, write_report
from surerag.evaluation.run import DRY_RUN, METRICS
from surerag.text import counted

DEFAULT = "plain,lazy,rewritten,selected"
"""Default of ``--systems``: plain RAG, L-RAG, DynQR and EDC²-RAG, each with its default options."""

Questions = Annotated[
    Path,
    typer.Argument(help="File with questions and reference answers: JSONL, JSON, CSV, TSV, XLSX or Parquet."),
]
Systems = Annotated[
    str,
    typer.Option(
        help="Systems, separated by commas: plain, lazy, rewritten, compressed, selected, answered, refined, "
        "none, strong, oracle; combinations such as lazy+compressed; thresholds such as lazy@0.8; numbers of "
        "passages such as plain@4. The first system is the baseline."
    ),
]
Require = Annotated[
    list[str] | None,
    typer.Option(
        help='Requirement to test, such as "accuracy(lazy) >= accuracy(plain) - 0.05". The exit code is 3 if '
        "the requirement is not met, and 4 if more questions are needed to decide. The results are also "
        "written as JUnit XML, beside the file of --run."
    ),
]
Margin = Annotated[
    float,
    typer.Option(
        min=0,
        max=100,
        help="Loss of accuracy, in percentage points, that you accept from a cheaper system, or from a "
        "system with fewer passages in the prompt.",
    ),
]
DryRun = Annotated[
    int,
    typer.Option(
        min=0,
        help="Ask only this number of random questions, and estimate the costs of all questions. 0 asks all "
        "questions.",
    ),
]
PriceIn = Annotated[float, typer.Option(min=0, help="Price of a million prompt tokens, in any currency.")]
PriceOut = Annotated[float, typer.Option(min=0, help="Price of a million generated tokens.")]


def compare(
    questions: Questions,
    documents: Documents,
    base_url: BaseUrl = None,
    model: Model = None,
    dtype: Dtype = "auto",
    systems: Systems = DEFAULT,
    columns: Columns = "",
    language: Language = "en",
    run: RunFile = Path("run.db"),
    require: Require = None,
    margin: Margin = 100 * MARGIN,
    at_a_time: AtATime = 1,
    dry_run: DryRun = 0,
    price_in: PriceIn = 0.0,
    price_out: PriceOut = 0.0,
    ask_again: AskAgain = False,
) -> None:
    """Compare systems on your own questions and documents; print the findings and write a report page."""
    items, notes = read_with_notes(questions, columns)
    requirements = require or ()
    names = _check_names(systems, requirements)
    if "oracle" in names:
        _check_contexts(items, questions)
    _check_references(items, questions, requirements)
    asked_now = _sample(items, dry_run)
    check_run_of(asked_now, run, ask_again)
    reader = load_reader(base_url, model, dtype)
    corpus = load_corpus(
        documents,
        language,
        [item.text for item in asked_now] if dry_run else (),
        summarize=any(map(needs_summaries, names)),
    )
    setup = PipelineSetup(
        reader, corpus.passages, corpus.summaries, corpus.encoder, options=_options(model, base_url)
    )
    built = {name: build_system(name, setup) for name in names}
    page = run.with_suffix(".html")
    documents_by_question: Mapping[str, Sequence[str]] = {}
    if corpus.is_whole:
        with step("Looking for the reference answers in the documents"):
            documents_by_question = documents_with_references(items, corpus.passages.passages)
    else:  # a complete run may retrieve other passages, so the answers of a dry run need another file
        run = run.with_name(f"{run.stem}.dry-run{run.suffix}")
    prices = price_in, price_out
    with ask_systems(built, asked_now, run, at_a_time, ask_again, dry_run=dry_run > 0) as rows:
        about = {
            "documents": f"{documents} ({corpus.n_passages:,} passages)",
            SKIPPED: "\n".join(_lines(corpus.skipped)) or "none",
            NOTES: "\n".join([*notes, *_lines(corpus.notes)]),
            "questions": f"{questions} ({len(items):,})",
            **({} if dry_run else {DRY_RUN: ""}),
        }
        rows.record(provenance(reader, base_url, about))
        rows.record_documents(documents_by_question)
        if not dry_run:
            show_findings(findings(rows, margin=margin / 100))
        show(terminal_table(rows, prices=prices))
        if dry_run:
            show(forecast(rows, len(items), prices))
            show(example_answers(rows))
            show(f"To ask all questions and write the report {page}:")
            show(command_line(base_url, "--dry-run"), wrap=False)
            return
        verdicts = [check_requirement(rows, text) for text in requirements]
        with step("Writing the report"):
            write_report(rows, page, prices=prices, verdicts=verdicts, margin=margin / 100)
    for verdict in verdicts:
        show(str(verdict))
    if verdicts:
        write_junit(verdicts, run.with_suffix(".xml"))
    show(f"Report: {page}. All answers: {run}.")
    raise typer.Exit(EXIT_CODES[_worst({verdict.outcome for verdict in verdicts})])


def _lines(reasons: Mapping[str, str]) -> list[str]:
    return [f"{name}: {reason}" for name, reason in reasons.items()]


def _worst(outcomes: Collection[Outcome]) -> Outcome:
    return "fail" if "fail" in outcomes else "undecided" if "undecided" in outcomes else "pass"


def _check_contexts(items: Sequence[Question], file: Path) -> None:
    if not all(item.contexts for item in items):
        raise InputError(
            f"{file} has questions without contexts, which the system 'oracle' needs",
            hint="if the column of contexts has another name, pass --columns contexts=NAME",
        )


def _check_names(systems: str, require: Sequence[str]) -> Sequence[str]:
    names = split_names(systems)
    if len(set(names)) < len(names) or not names:
        raise ConfigurationError(
            f"expected each system once in --systems, got {systems!r}", hint="write --systems plain,lazy"
        )
    for name in names:
        parse_system(name)
    for text in require:
        parse_requirement(text).check(names, MEASURES)
    return names


def _check_references(items: Sequence[Question], path: Path, require: Sequence[str]) -> None:
    without = sum(not item.references for item in items)
    if without == len(items):
        show_note(f"{path} has no reference answers: the systems' answers are listed, but not scored")
        for text in require:
            if (measure := parse_requirement(text).measure) in METRICS:
                raise InputError(
                    f"the requirement {text!r} needs reference answers, which {path} does not have",
                    hint="name the column of reference answers: --columns references=NAME; or write a "
                    f"requirement on a cost, such as tokens, in place of {measure}",
                )
    elif without:
        verb = "is" if without == 1 else "are"
        show_note(f"{counted(without, 'question')} without a reference answer in {path} {verb} not scored")


def _sample(items: Sequence[Question], n: int) -> list[Question]:
    if not 0 < n < len(items):
        return list(items)
    # The fixed seed draws the same questions at each call.
    return [items[place] for place in sorted(random.Random(0).sample(range(len(items)), n))]


def _options(model: str | None, base_url: str | None) -> Mapping[str, Mapping[str, Any]]:
    if model != DEMO or base_url is not None:
        return {}
    from surerag.demo import EXTRACT_PROMPT

    return {"compressed": {"prompts": {"extract": EXTRACT_PROMPT}}}
