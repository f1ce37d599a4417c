"""``surerag compare``: the command and its options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from surerag.cli.options import ColumnOption, check_paths, checked_output, with_reader
from surerag.cli.readers import ReaderChoice
from surerag.cli.scaling import Scaling, with_scaling
from surerag.storage import check_file

FAILS, UNDECIDED = 3, 4
"""Exit codes of conditions: one fails; none fails, and one cannot be told."""


def _file(file: Path | None) -> Path | None:
    if file is not None:
        check_file(file)
    return file


@with_scaling
@with_reader
def compare(
    *,
    choice: ReaderChoice,
    scaling: Scaling,
    questions: Annotated[
        str | None,
        typer.Argument(
            help="JSONL, JSON, CSV, Parquet, a folder (Hugging Face, BEIR), a pattern or a URL; rows of "
            "question and, to have answers judged, answers; optional: id. With --trace: none.",
            show_default=False,
        ),
    ] = None,
    columns: ColumnOption = None,
    documents: Annotated[
        str | None,
        typer.Option(
            help="What to retrieve from: a folder of txt, md, html and pdf files, or JSONL with rows of "
            "text; optional: id, title.",
            metavar="DIR|FILE|URL",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(help="A recorded trace in place of documents and model: at once.", metavar="DIR|URL"),
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option(
            help="What to compare, the baseline first, with commas between: a base (plain, none, lazy, "
            "rewrite) and steps after it (compressed, dense). Default: plain,lazy,compressed,dense,rewrite,"
            "lazy+compressed; of a trace, all that it holds.",
            metavar="NAMES",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask the first questions only.")] = None,
    retrieval: Annotated[Literal["bm25", "minilm"], typer.Option(help="How to retrieve.")] = "minilm",
    top_n: Annotated[int, typer.Option(min=1, help="Passages to show.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of an answer, at most.")] = 64,
    threshold: Annotated[
        float | None, typer.Option(min=0.0, help="Of lazy's gate. Default: the gate's own.")
    ] = None,
    signal: Annotated[
        str | None, typer.Option(help="Of a trace: what lazy decides by. Default: the recorded gate's.")
    ] = None,
    rule: Annotated[
        Literal["contains", "in_accuracy", "exact_match", "token_f1"],
        typer.Option(help="What makes an answer right."),
    ] = "contains",
    entailment: Annotated[
        str | None,
        typer.Option(
            help="Have meanings judged, and faithfulness measured, by: exact, judge (the reader itself), nli "
            "or nli:MODEL. Default: not at all.",
            metavar="exact|judge|nli[:MODEL]",
        ),
    ] = None,
    seper: Annotated[bool, typer.Option("--seper", help="Measure ΔSePer; needs --entailment.")] = False,
    understanding: Annotated[
        bool, typer.Option("--understanding", help="Measure understanding (DENSE); needs --entailment.")
    ] = False,
    consistency: Annotated[
        int, typer.Option(min=0, help="Answers to sample for self-consistency. 0: none.")
    ] = 0,
    measure: Annotated[
        str, typer.Option(help="What counts. Default: accuracy; without gold answers, agreement.")
    ] = "",
    prefer: Annotated[
        Literal["tokens", "money", "seconds", "calls"] | None,
        typer.Option(help="What 'cheaper' is about. Default: money where prices are known, else tokens."),
    ] = None,
    margin: Annotated[float, typer.Option(min=0.1, help="Points that matter.")] = 5.0,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of intervals and tests.")] = 0.95,
    prices: Annotated[
        Path | None,
        typer.Option(
            help="Prices in TOML, before the packaged ones.", metavar="FILE", exists=True, dir_okay=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and stop.")] = False,
    max_cost: Annotated[
        float | None, typer.Option(min=0.0, help="Money to spend, at most.", metavar="MONEY")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help='Break the build unless the opposite is shown: "accuracy of lazy < plain - 5" (points), '
            '"tokens of lazy > 0.8 * plain"; may be given several times.',
            metavar="CONDITION",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="baseline.parquet of an earlier comparison, for conditions on 'baseline'. Without "
            "--fail-if: no system's accuracy may be lower by more than --margin.",
            metavar="FILE",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    undecided: Annotated[
        Literal["fail", "pass"],
        typer.Option(help="Whether a condition that cannot be told breaks the build."),
    ] = "fail",
    junit: Annotated[
        Path | None, typer.Option(help="JUnit XML of the conditions.", metavar="FILE", callback=_file)
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(
            help="Append the conditions as Markdown to this file.",
            metavar="FILE",
            envvar="GITHUB_STEP_SUMMARY",
            callback=_file,
        ),
    ] = None,
    output: Annotated[
        str, typer.Option(help="Where results and report go.", metavar="DIR|URL", callback=checked_output)
    ] = "surerag-comparison",
    concurrency: Annotated[
        int,
        typer.Option(min=1, help="Questions in a local model's batch, or requests at a server."),
    ] = 16,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what was answered before.")] = False,
) -> None:
    """Which of these helps me, and at which price? Your questions, documents and model; goes on after a kill.

    Exit codes: 0 done, and conditions hold; 1 it failed; 2 wrong usage; 3 a condition fails; 4 one cannot be
    told (with --undecided fail); 130 interrupted, and what was answered is kept.
    """
    if (trace is None) == (questions is None or documents is None):
        raise typer.BadParameter("give QUESTIONS with --documents, or --trace alone", param_hint="QUESTIONS")
    if (seper or understanding) and entailment is None:
        raise typer.BadParameter("goes with --entailment", param_hint="--seper, --understanding")
    if trace is not None and scaling.away:
        raise typer.BadParameter("goes without --trace, which asks no model", param_hint="--engine, --shard")
    for name, given in (("--junit", junit), ("--undecided", undecided == "pass")):
        if given and not fail_if and baseline is None:
            raise typer.BadParameter("goes with --fail-if or --baseline", param_hint=name)
    # What is wrong with the arguments is said before anything that takes long is imported.
    from surerag.evaluation.inputs import given_columns
    from surerag.places import place_of

    asked, read, traced = (None if one is None else place_of(one) for one in (questions, documents, trace))
    check_paths(asked, read)
    if documents is not None:
        from surerag.evaluation.systems.pipelines import SYSTEMS, check_names

        check_names(SYSTEMS if systems is None else _listed(systems))
    from surerag.cli.compare_runs import Wanted, run_compare

    wanted = Wanted(
        questions=asked,
        columns=given_columns(columns or ()),
        documents=read,
        trace=traced,
        systems=None if systems is None else _listed(systems),
        limit=limit,
        retrieval=retrieval,
        top_n=top_n,
        max_tokens=max_tokens,
        threshold=threshold,
        signal=signal,
        rule=rule,
        entailment=entailment,
        seper=seper,
        understanding=understanding,
        consistency=consistency,
        measure=measure,
        prefer=prefer or "",
        margin=margin / 100,
        confidence=confidence,
        prices=prices,
        dry_run=dry_run,
        max_cost=max_cost,
        fail_if=tuple(fail_if or ()),
        baseline=baseline,
        undecided=undecided,
        junit=junit,
        summary=summary,
        output=place_of(output),
        concurrency=concurrency,
        restart=restart,
        scaling=scaling,
    )
    outcome = run_compare(replace(choice, concurrency=concurrency), wanted)
    raise typer.Exit({"pass": 0, "fail": FAILS, "undecided": UNDECIDED}[outcome])


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(","))
