"""``surerag reproduce``: a study's tables on the terminal, and every figure in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from surerag.cli.display import console, staged
from surerag.cli.readers import ReaderChoice
from surerag.encoders import packaged_minilm
from surerag.evaluation.lazy_rag.study import lazy_rag_study
from surerag.evaluation.lazy_rag.tables import plain_table, study_tables
from surerag.evaluation.seper.entailment import Entailment
from surerag.evaluation.seper.plots import write_plots
from surerag.evaluation.seper.study import seper_study
from surerag.evaluation.seper.tables import study_tables as seper_tables
from surerag.evaluation.serialise import write_json
from surerag.training.embedded_card import CardRow, measure_card


@dataclass(frozen=True, slots=True)
class Card:
    """A model card, as it is stored.

    Attributes:
        model: Identity of the reader.
        seed: Seed of the world.
        n: Questions that were asked for in each task; rows say how many there were.
        rows: One for each task.
    """

    model: str
    seed: int
    n: int
    rows: tuple[CardRow, ...]


def run_card(choice: ReaderChoice, *, seed: int, n: int, file: Path | None) -> None:
    """Measure a reader on every task, print the card, and write it down if asked to."""
    with staged() as stages:
        with stages.working("Loading the model"):
            reader = choice.build()
        with stages.working("Measuring"):
            card = Card(reader.name, seed, n, tuple(measure_card(reader, seed=seed, n=n)))
    console.print(card_view(card))
    if file is not None:
        write_json(card, file)


def card_view(card: Card) -> Table:
    """Show a model card."""
    table = plain_table(f"{card.model} on the closed world, seed {card.seed}")
    table.add_column("Task")
    for name in ("Measured [95 %]", "n", "Aim"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    verdicts = {None: Text(""), True: Text("met", style="green"), False: Text("missed", style="bold red")}
    for row in card.rows:
        aim = "" if row.target is None else f"{row.target:.2f}"
        measured = f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]"
        table.add_row(row.task, measured, f"{row.n:,}", aim, verdicts[row.met])
    return table


def run_l_rag(choice: ReaderChoice, *, seed: int, n: int, file: Path | None) -> None:
    """Make the L-RAG study, print it, and write it down if asked to."""
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = lazy_rag_study(reader, encoder, seed=seed, n=n, stages=stages).study
    console.print(study_tables(study))
    if file is not None:
        write_json(study, file)


def run_seper(
    choice: ReaderChoice,
    *,
    seed: int,
    n: int,
    file: Path | None,
    plots: Path | None,
    entailment: Entailment | None,
) -> None:
    """Make the SePer study, print it, and write it down and draw it if asked to."""
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = seper_study(reader, encoder, seed=seed, n=n, entailment=entailment, stages=stages)
    console.print(seper_tables(study))
    if file is not None:
        write_json(study, file)
    if plots is not None:
        write_plots(study, plots)
