"""``surerag report``: the command and its options."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from surerag.cli.options import checked_output


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Folders or URLs that evaluate, compare or record wrote: all shards of one run, or several "
            "runs.",
            metavar="RUN...",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            help="Where the report goes; of shards of a trace, the whole trace.",
            metavar="DIR|URL",
            callback=checked_output,
        ),
    ] = "surerag-report",
    baseline: Annotated[
        str | None,
        typer.Option(
            help="What others are compared with; RUN/SYSTEM where there are several runs. Default: of "
            "compare the first system, of evaluate all pairs.",
            metavar="SYSTEM",
        ),
    ] = None,
    measure: Annotated[
        str, typer.Option(help="Of compare: what counts. Default: accuracy, else agreement.")
    ] = "",
    prefer: Annotated[
        Literal["tokens", "money", "seconds", "calls"] | None,
        typer.Option(help="Of compare: what 'cheaper' is about. Default: money where known, else tokens."),
    ] = None,
    margin: Annotated[float, typer.Option(min=0.1, help="Of compare: points that matter.")] = 5.0,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="Of compare: of intervals and tests.")
    ] = 0.95,
) -> None:
    """One report of a run that stands in shards, or of several runs side by side; no model is asked.

    Runs that differ in their shard alone are one: the report is that of the run in one piece. Others are
    compared question by question, if they are about the same ones.
    """
    from surerag.cli.report_runs import Reported, run_report
    from surerag.evaluation.systems.analysis import Aim
    from surerag.places import place_of

    aim = Aim(baseline or "", measure, prefer or "", margin / 100, confidence)
    run_report(Reported(tuple(map(place_of, runs)), place_of(output), aim))
