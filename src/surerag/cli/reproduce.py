"""``surerag reproduce``: a study's tables on the terminal, and every figure in a file.

The studies are a package of their own, which is imported when one of them is asked for.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console, RenderableType

from surerag.cli.display import console, staged
from surerag.cli.readers import ReaderChoice
from surerag.drivers.progress import Progress
from surerag.encoders import packaged_minilm
from surerag.evaluation.serialise import write_json
from surerag.world import embedded_reader_path
from surerag.world.regimes import TODAY, regime

if TYPE_CHECKING:
    from surerag.evaluation.serialise import JsonResult

Entailment = Literal["judge", "exact"]


def run_card(choice: ReaderChoice, *, seed: int, n: int, file: Path | None) -> None:
    """Measure a reader on every task, print the card, and write it down if asked to."""
    from surerag_studies.reader.card import Card, card_view, measure_card

    with staged() as stages:
        with stages.working("Loading the model"):
            reader = choice.build()
        with stages.working("Measuring"):
            card = Card(reader.name, seed, n, tuple(measure_card(reader, seed=seed, n=n)))
    _show(card_view(card), card, file)


def run_regimes(
    choice: ReaderChoice, *, seed: int, n: int, file: Path | None, cache: Path | None = None
) -> None:
    """Ask a world of each regime, print the records' figures, and write them down if asked to."""
    from surerag_studies.regimes.study import regimes_study
    from surerag_studies.regimes.tables import study_tables

    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = regimes_study(reader, encoder, seed=seed, n=n, cache=cache, stages=stages)
    _show(study_tables(study), study, file)


def run_l_rag(
    choice: ReaderChoice, *, seed: int, n: int, file: Path | None, regime_name: str = TODAY.name
) -> None:
    """Make the L-RAG study, print it, and write it down if asked to."""
    from surerag_studies.lazy_rag.study import lazy_rag_study
    from surerag_studies.lazy_rag.tables import study_tables

    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = lazy_rag_study(
            reader, encoder, seed=seed, n=n, regime=regime(regime_name), stages=stages
        ).study
    _show(study_tables(study), study, file)


def run_l_rag_hops(choice: ReaderChoice, *, seed: int, n: int, file: Path | None) -> None:
    """Make the study of a gate before each hop, print it, and write it down if asked to."""
    from surerag_studies.lazy_rag.hops import hop_study, study_tables

    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = hop_study(reader, encoder, seed=seed, n=n, stages=stages)
    _show(study_tables(study), study, file)


def run_seper(
    choice: ReaderChoice,
    *,
    seed: int,
    n: int,
    file: Path | None,
    plots: Path | None,
    entailment: Entailment | None,
    regime_name: str = TODAY.name,
) -> None:
    """Make the SePer study, print it, and write it down and draw it if asked to."""
    from surerag_studies.seper.plots import write_plots
    from surerag_studies.seper.study import seper_study
    from surerag_studies.seper.tables import study_tables

    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = seper_study(
            reader,
            encoder,
            seed=seed,
            n=n,
            entailment=entailment,
            regime=regime(regime_name),
            stages=stages,
        )
    _show(study_tables(study), study, file)
    if plots is not None:
        write_plots(study, plots)


def run_edc2(
    choice: ReaderChoice, *, seed: int, n: int, file: Path | None, regime_name: str = TODAY.name
) -> None:
    """Make the EDC²-RAG study, print it, and write it down if asked to."""
    from surerag_studies.edc2.study import compression_study
    from surerag_studies.edc2.tables import study_tables

    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        terminal = Console(stderr=True).is_terminal
        study = compression_study(
            reader,
            encoder,
            seed=seed,
            n=n,
            regime=regime(regime_name),
            stages=stages if terminal else _in_lines,
        )
    _show(study_tables(study), study, file)


def run_edc2_misleading(
    choice: ReaderChoice, *, seed: int, n: int, top_k: list[int] | None, file: Path | None
) -> None:
    """Make the study of EDC²-RAG where noise misleads, print it, and write it down if asked to."""
    from surerag.world import embedded_reader
    from surerag_studies.edc2.misleading import TOP_K, misleading_study, study_tables

    with staged() as stages:
        with stages.working("Loading the models"):
            encoder = packaged_minilm()
            readers = [(choice.model or "default", choice.build()), ("small", embedded_reader("small"))]
        study = misleading_study(readers, encoder, seed=seed, n=n, top_k=top_k or TOP_K, stages=stages)
    _show(study_tables(study), study, file)


def run_edc2_guards(choice: ReaderChoice, *, seed: int, n: int, file: Path | None) -> None:
    """Make the study of EDC²-RAG's guards, print it, and write it down if asked to."""
    from surerag_studies.edc2.guards import guard_study, study_tables

    with staged() as stages, stages.working("Judging"):
        study = guard_study(choice.build(), seed=seed, n=n)
    _show(study_tables(study), study, file)


def run_dense(
    choice: ReaderChoice,
    *,
    seed: int,
    n: int,
    file: Path | None,
    entailment: Entailment | None = None,
    regime_name: str = TODAY.name,
) -> None:
    """Make the DENSE-RAG study, print it, and write it down if asked to."""
    from surerag_studies.dense_rag.study import dense_study
    from surerag_studies.dense_rag.tables import study_tables

    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = dense_study(
            reader,
            encoder,
            seed=seed,
            n=n,
            entailment=entailment,
            regime=regime(regime_name),
            stages=stages,
        )
    _show(study_tables(study), study, file)


def run_dense_misleading(choice: ReaderChoice, *, seed: int, n: int, file: Path | None) -> None:
    """Make the study of DENSE-RAG's refinement where candidates mislead, and print it."""
    from surerag_studies.dense_rag.misleading import dense_misleading_study, study_tables

    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = dense_misleading_study(reader, encoder, seed=seed, n=n, stages=stages)
    _show(study_tables(study), study, file)


def run_dense_figures(choice: ReaderChoice, *, seed: int, n: int, file: Path | None) -> None:
    """Vary DENSE-RAG's τ and k, measure it on summaries, and print what came of it."""
    from surerag_studies.dense_rag.figures import dense_figures, study_tables

    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = dense_figures(reader, encoder, seed=seed, n=n, stages=stages)
    _show(study_tables(study), study, file)


def run_dynqr(
    choice: ReaderChoice,
    *,
    seed: int,
    n: int,
    file: Path | None,
    base: str | None = None,
    training: bool = True,
    regime_name: str = TODAY.name,
) -> None:
    """Make the DynQR study, print it, and write it down if asked to.

    Args:
        choice: The reader, which rewrites as well, and teaches.
        seed: Seed of the world.
        n: Questions.
        file: Where to write every figure; None for nowhere.
        base: What to train a rewriter from; None for the small reader that comes with the package.
        training: Whether to train one.
        regime_name: Of the regime of both worlds.
    """
    from surerag_studies.dynqr.study import dynqr_study
    from surerag_studies.dynqr.tables import study_tables

    start = (base or str(embedded_reader_path("small"))) if training else None
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = dynqr_study(
            reader, encoder, seed=seed, n=n, base=start, regime=regime(regime_name), stages=stages
        )
    _show(study_tables(study), study, file)


def run_decisions(
    trace: Path | None,
    *,
    seed: int,
    splits: int,
    streams: int,
    worlds: int,
    world_seed: int,
    cache: Path | None,
    file: Path | None,
) -> None:
    """Make the study of decisions, print it, and write it down if asked to."""
    from surerag.world.regimes import REGIMES
    from surerag_studies.decisions.sources import source_of
    from surerag_studies.decisions.study import decision_study
    from surerag_studies.decisions.tables import study_tables
    from surerag_studies.regimes import regime_rows

    with staged() as stages:
        sources = [
            source_of(name, regime_rows(name, worlds, world_seed, cache=cache, stages=stages), "perplexity")
            for name in (REGIMES if worlds else ())
        ]
        with stages.working("Calibrating many times"):
            study = decision_study(trace, seed=seed, splits=splits, streams=streams, worlds=sources)
    _show(study_tables(study), study, file)


def run_compare_study(n: int, runs: int, *, seed: int, file: Path | None) -> None:
    """Compare in worlds whose best system was planted, and test a gate on redrawn questions."""
    from surerag_studies.compare.study import run_study
    from surerag_studies.compare.tables import gate_table, worlds_table

    with staged() as stages:
        study = run_study(n, runs, seed, told=stages("Comparing in worlds"))
    console.print(worlds_table(study))
    _show(gate_table(study), study, file)


def _show(view: RenderableType, found: JsonResult, file: Path | None) -> None:
    console.print(view)
    if file is not None:
        write_json(found, file)


def _in_lines(stage: str) -> Progress:
    """Tell of a stage in a line once it is done: what a log can hold of a bar."""
    started = time.perf_counter()

    def tell(done: int, total: int | None) -> None:
        if done == total:
            seconds = time.perf_counter() - started
            Console(stderr=True).print(f"{stage}: {total} questions in {seconds:.0f} s", highlight=False)

    return tell
