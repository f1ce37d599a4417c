"""``surerag calibrate``: the command and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from surerag.cli.options import ColumnOption, check_paths, with_readers
from surerag.cli.readers import ReaderChoice
from surerag.cli.scaling import Scaling, with_scaling
from surerag.decisions.calibrating import OnInfeasible
from surerag.decisions.policy import Target

_METHODS = ("l-rag", "dynqr", "edc2")
_ROWS_ONLY = "goes with a file of rows, which need no model"


def _methods(given: list[str] | None) -> list[str] | None:
    unknown = [name for name in given or () if name not in _METHODS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(_METHODS)}")
    return given


@with_scaling
@with_readers
def calibrate(
    *,
    choices: tuple[ReaderChoice, ...],
    scaling: Scaling,
    file: Annotated[
        str | None,
        typer.Argument(
            help="With --documents: questions and, where known, answers, in JSONL, JSON, CSV, Parquet, a "
            "folder (Hugging Face, BEIR), a pattern or a URL. Without: rows of signals (numbers by name), "
            "correct_without, correct_with (JSONL).",
            metavar="QUESTIONS|ROWS",
            show_default=False,
        ),
    ] = None,
    columns: ColumnOption = None,
    documents: Annotated[
        str | None,
        typer.Option(
            help="What to retrieve from: a folder of txt, md, html and pdf files, or JSONL with rows of "
            "text.",
            metavar="DIR|FILE|URL",
        ),
    ] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            help="A trace that surerag record wrote, in place of questions; may be given repeatedly.",
            metavar="DIR|URL",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Whether to retrieve, to rewrite or to compress; may be given repeatedly. Default: l-rag.",
            metavar="l-rag|dynqr|edc2",
            callback=_methods,
        ),
    ] = None,
    target: Annotated[
        Target,
        typer.Option(help="A bounded loss, a budget of acting, both; or the best on the sample: no promise."),
    ] = "loss",
    max_loss: Annotated[
        float, typer.Option(help="Loss of score against always acting, at most.", metavar="SHARE")
    ] = 0.02,
    budget: Annotated[
        float | None, typer.Option(help="Share of questions that act, at most.", metavar="SHARE")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the promise.", metavar="SHARE")] = 0.95,
    on_infeasible: Annotated[
        OnInfeasible, typer.Option(help="What to do where no threshold can be certified.")
    ] = "always",
    signal: Annotated[
        str | None,
        typer.Option(
            help="Which signal to calibrate. Default: the pipeline's own, or the rows' only one.",
            metavar="NAME",
        ),
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="Of rows: fingerprint of their prompts, identity.prompts.")
    ] = "",
    retrieval: Annotated[Literal["bm25", "minilm"], typer.Option(help="How to retrieve.")] = "minilm",
    top_n: Annotated[int, typer.Option(min=1, help="Passages to show.")] = 3,
    judge: Annotated[
        Literal["contains", "in_accuracy", "exact_match", "token_f1"],
        typer.Option(help="When an answer is right; without gold answers, when two agree."),
    ] = "contains",
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of an answer, at most.")] = 64,
    latency: Annotated[
        list[float] | None,
        typer.Option(
            min=0.0,
            help="Milliseconds of a retrieval to look at; may be given repeatedly. Default: 50, 200, 500, "
            "1000.",
            metavar="MS",
        ),
    ] = None,
    timed: Annotated[
        int, typer.Option(min=0, help="Questions to ask one by one as well, for times; 0: no times of these.")
    ] = 8,
    prices: Annotated[
        Path | None,
        typer.Option(help="Prices of models (TOML) over the packaged ones.", metavar="FILE"),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(min=1, help="Questions in a local model's batch, or requests under way at a server."),
    ] = 16,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would ask, and stop.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what was recorded before.")] = False,
    output: Annotated[
        str | None,
        typer.Option(
            help="Of rows: write the policy to this file. Of questions and traces: a folder for policies, "
            "traces, tables, pictures and page (default surerag-calibration).",
            metavar="FILE|DIR|URL",
        ),
    ] = None,
) -> None:
    """Thresholds with a promise for your models on your documents: what they save, and at which price.

    The answers are recorded once; the same command goes on after a kill, and asks for nothing again.

    Exit codes: 0 the promise can be given; 1 it cannot, from so few questions.
    """
    from surerag.records.tradeoff.curve import LATENCIES, Bound

    if documents is None and scaling.away:
        raise typer.BadParameter(
            "goes with --documents: nothing else asks a model", param_hint="--engine, --shard"
        )
    bound = Bound(target, max_loss, budget, confidence, on_infeasible)
    if documents is None and not trace:
        if file is None:
            raise typer.BadParameter(
                "give questions and --documents DIR, --trace DIR, or a file of rows", param_hint="QUESTIONS"
            )
        from surerag.cli.calibrate_rows import run_calibrate_rows

        names = [choice.model for choice in choices]
        if len(names) > 1:
            raise typer.BadParameter("names the one reader that rows are from", param_hint="--model")
        policy = run_calibrate_rows(
            Path(file),
            bound,
            signal=signal,
            model=names[0] or "",
            prompts=prompts,
            output=None if output is None else Path(output),
        )
        raise typer.Exit(policy.verdict == "infeasible")
    if prompts:
        raise typer.BadParameter(_ROWS_ONLY, param_hint="--prompts")
    if trace and (file is not None or documents is not None):
        raise typer.BadParameter("goes without questions and --documents", param_hint="--trace")
    if documents is not None and file is None:
        raise typer.BadParameter("goes with a file of questions", param_hint="--documents")
    from surerag.places import place_of

    asked, read = (None if one is None else place_of(one) for one in (file, documents))
    check_paths(asked, read)
    from surerag.cli.calibrate_run import Calibration, run_calibrate
    from surerag.evaluation.inputs import given_columns
    from surerag.records.tradeoff.choices import CHOICES

    wanted = Calibration(
        questions=asked or Path(),
        columns=given_columns(columns or ()),
        documents=read or Path(),
        traces=tuple(map(place_of, trace or ())),
        methods=tuple(name for name in CHOICES if name in (method or ("l-rag",))),
        bound=bound,
        signal=signal,
        output=place_of(output or "surerag-calibration"),
        retrieval=retrieval,
        top_n=top_n,
        judge=judge,
        max_tokens=max_tokens,
        latencies=tuple(sorted(latency or LATENCIES)),
        timed=timed,
        prices=prices,
        concurrency=concurrency,
        dry_run=dry_run,
        restart=restart,
        scaling=scaling,
    )
    if not run_calibrate(choices, wanted):
        raise typer.Exit(1)
