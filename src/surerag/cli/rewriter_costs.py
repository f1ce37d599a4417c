"""What ``surerag train-rewriter`` would cost: calls, tokens, money, hours and memory."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from surerag.cli.display import console
from surerag.cli.readers import ReaderChoice
from surerag.cli.rewriter_data import Data
from surerag.cli.rewriter_wanted import Wanted
from surerag.evaluation.folding import FoldingTable
from surerag.extras import extra
from surerag.prices import Costs, load_prices
from surerag.training.rewriter import Draw
from surerag.training.rewriter.costs import (
    CostLine,
    StageCost,
    align_cost,
    distil_cost,
    sample_cost,
    token_counter,
)
from surerag.training.rewriter.options import FineTuning

_GIB = 2**30


def tell_costs(
    data: Data, drawn: Draw | None, wanted: Wanted, choice: ReaderChoice, teacher: ReaderChoice
) -> None:
    """Print what every stage would cost from its beginning."""
    with extra("train"):
        from surerag.training.rewriter.sizes import hours_of, memory_of, size_of
    start = data.base if wanted.rewriter is None else wanted.rewriter
    size = size_of(start)
    costs = _costs(data, drawn, wanted, size.weights)
    models = {"teacher": teacher if not teacher.is_embedded else choice, "reader": choice}
    console.print(_table(costs, models))
    tunings: dict[str, FineTuning] = {
        "distil": wanted.distil.fine_tuning, "align": wanted.align.fine_tuning,
    }  # fmt: skip
    for cost in costs:
        for line in cost.lines:
            if line.what == "training steps":
                tuning, stage = tunings[cost.stage], "align" if cost.stage == "align" else "distil"
                hours = hours_of(size, line.read, tuning, stage)  # type: ignore[arg-type]  # one of two names
                memory = memory_of(size, tuning, stage) / _GIB  # type: ignore[arg-type]  # likewise
                console.print(
                    f"Training, {cost.stage}: about {_hours(hours)} on this machine, and {memory:.1f} GiB of "
                    f"memory beside what the examples take ({size.weights / 1e6:,.0f} million weights).",
                    highlight=False,
                )
    console.print(
        "Tokens are counted with the base's tokenizer. What the output folder holds already is not asked "
        "again, and is not taken off here. Money is for models whose price is known.",
        highlight=False,
    )


def _costs(data: Data, drawn: Draw | None, wanted: Wanted, weights: int) -> list[StageCost]:
    count = token_counter(data.base if wanted.rewriter is None else wanted.rewriter)
    costs = []
    if drawn is not None and wanted.does("distil") and wanted.own_rewrites is None:
        costs.append(distil_cost(drawn.distil, wanted.distil, count, weights))
    if drawn is not None and wanted.does("sample"):
        costs.append(sample_cost(drawn.sample, wanted.sample, count, data.contexts))
    if wanted.does("align") and wanted.own_pairs is None:
        there = wanted.stage == "align" and wanted.sampled.is_file()
        queries = () if there or drawn is None else drawn.sample
        costs.append(align_cost(queries, wanted.align, count, weights, wanted.sampled if there else None))
    return costs


def _table(costs: Sequence[StageCost], models: dict[str, ReaderChoice]) -> Table:
    table = FoldingTable(title="What it would cost, at most", title_justify="left")
    for name in ("Stage", "Who", "Calls or steps", "Tokens read", "Tokens written", "Money"):
        table.add_column(name, justify="left" if name in ("Stage", "Who") else "right")
    for cost in costs:
        for line in cost.lines:
            money = _money(line, models.get(line.what))
            numbers = (f"{number:,}" for number in (line.calls, line.read, line.written))
            table.add_row(cost.stage, line.what, *numbers, money)
    return table


def _money(line: CostLine, choice: ReaderChoice | None) -> str:
    if choice is None or choice.base_url is None or choice.model is None:
        return "–"
    spent = Costs(prompt_tokens=line.read, completion_tokens=line.written, calls=line.calls)
    priced = load_prices().priced(spent, choice.model)
    return "not known" if priced.money is None else f"{priced.money:,.2f} {priced.currency}"


def _hours(hours: float) -> str:
    if hours < 1 / 60:
        return "a minute"
    return f"{60 * hours:.0f} minutes" if hours < 2 else f"{hours:,.1f} hours"
