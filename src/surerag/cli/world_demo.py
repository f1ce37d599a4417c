"""``surerag demo``: the closed world, indexed by both frameworks, asked in every mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from surerag import LazyRAG
from surerag.cli.display import console, staged
from surerag.cli.frameworks import (
    agreement,
    ask_langchain,
    ask_llama_index,
    index_passages,
    llama_index_retriever,
)
from surerag.cli.readers import ReaderChoice
from surerag.encoders import packaged_minilm
from surerag.evaluation.formatting import plain_table
from surerag.evaluation.gate import (
    GateQuestion,
    GateReport,
    ask_all,
    calibrated,
    looked_up,
    records,
    report_of,
    threshold_of,
    world_questions,
)
from surerag.evaluation.gate.plots import write_plots
from surerag.evaluation.gate.results import Agreement
from surerag.evaluation.gate.tables import gate_table, modes_table
from surerag.evaluation.gate.timing import LatencyTable, latency_table, measure
from surerag.evaluation.page import Example, Figure, render_page
from surerag.evaluation.serialise import write_json
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.readers.protocol import Reader
from surerag.world import World
from surerag.world.tiers import Tiers, index_world

MAX_LOSS = 0.01
MOST_CALIBRATION = 1000
MAX_TOKENS = 32
TIMED = 12
SHOWN = 12
CAPTIONS = {
    "trade_off": "Accuracy against retrievals: L-RAG over its threshold, and the fixed modes.",
    "entropy": "Entropy of the first pass, for answers that turned out right and wrong.",
    "sensitivity": "Accuracy and retrieval rate over the threshold.",
    "latency": "Time saved a question against always retrieving, by how slow one retrieval is.",
}


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the JSON file holds: every figure of the tables and of the page.

    Attributes:
        seed: Seed of the world.
        report: The gate against the fixed modes.
        latency: Times by mode.
        llama_index: LlamaIndex's engine against the core.
        langchain: LangChain's chain against the core.
    """

    seed: int
    report: GateReport
    latency: LatencyTable
    llama_index: Agreement
    langchain: Agreement


def run_world_demo(choice: ReaderChoice, *, seed: int, questions: int, output: Path) -> None:
    """Ask the closed world in every mode, print the tables and write figures, page and JSON.

    Args:
        choice: Which reader to use.
        seed: Seed of the world; the threshold is calibrated on the next one.
        questions: How many to ask.
        output: Folder to write to; made if it is not there.
    """
    output.mkdir(parents=True, exist_ok=True)
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        with stages.working("Indexing with LlamaIndex and LangChain"):
            world, other = World(seed=seed), World(seed=seed + 1)
            indices = index_passages(world.passages, encoder)
            tiers = Tiers(llama_index_retriever(indices), index_world(world, encoder).summaries)
            tuning = _pipeline(reader, index_world(other, encoder))
        sample = world_questions(other, other.questions(min(questions, MOST_CALIBRATION)))
        calibration = calibrated(looked_up(tuning, sample), sample, stages, max_loss=MAX_LOSS)
        rag = _pipeline(reader, tiers).with_options(threshold=calibration.threshold)
        asked = world_questions(world, world.questions(questions))
        answers = ask_all(looked_up(rag, asked), asked, stages)
        report = report_of(records(answers), threshold_of(calibration, MAX_LOSS, seed=seed + 1), rag)
        with stages.working(f"Timing {TIMED} questions one by one"):
            latency = latency_table(report, measure(rag, asked[:TIMED]))
        with stages.working(f"Asking {SHOWN} questions through both frameworks"):
            core = rag.run_many([question.text for question in asked[:SHOWN]])
            result = DemoResult(
                seed,
                report,
                latency,
                agreement(core, ask_llama_index(indices, rag, core)),
                agreement(core, ask_langchain(indices, rag, core)),
            )
        with stages.working("Drawing"):
            files = write_plots(report, output)
    who = "the embedded reader" if choice.is_embedded else report.model
    page = render_page(
        title="L-RAG on the closed world",
        lead=f"{questions:,} questions about an invented world (seed {seed}), answered in every mode by "
        f"{who}. It retrieves only where the entropy of its first answer exceeds τ. Counts and agreement "
        "carry over to a reader of yours; accuracies, thresholds and what entropy tells do not.",
        examples=_examples(asked, core),
        report=report,
        latency=latency,
        figures=[Figure(file, CAPTIONS[file.stem]) for file in files],
        footer=f"Made by: surerag demo --seed {seed} --questions {questions}",
    )
    (output / "index.html").write_text(page, encoding="utf-8")
    write_json(result, output / "results.json")
    console.print(modes_table(report), latency_view(latency), gate_table(report))
    for name, same in (("LlamaIndex", result.llama_index), ("LangChain", result.langchain)):
        console.print(
            f"{name}: {same.same_answer} answers and {same.same_decision} decisions "
            f"of {same.n} the same as the core's.",
            highlight=False,
        )
    console.print(
        "Counts, retrieval rates of fixed modes and agreement carry over to a reader of yours; accuracies,\n"
        "thresholds and how well entropy tells wrong answers are this reader's, in this world.",
        highlight=False,
    )
    console.print(
        f"\nPage, figures and all numbers: {output / 'index.html'}", soft_wrap=True, highlight=False
    )


def latency_view(latency: LatencyTable) -> Table:
    """Show what a question takes in each mode."""
    timings = latency.timings
    table = plain_table("Expected time a question, ms")
    table.add_column("Mode", no_wrap=True)
    table.add_column(f"Retrieval as\nmeasured, {timings.retrieval:.0f} ms", justify="right")
    for assumed in latency.retrieval:
        table.add_column(f"Retrieval\n{assumed:.0f} ms", justify="right")
    for row in latency.modes:
        table.add_row(row.label, f"{row.measured:.0f}", *(f"{time:.0f}" for time in row.assumed))
    table.caption = f"Model time of {timings.n} questions asked one by one, on this machine."
    return table


def _pipeline(reader: Reader, tiers: Tiers) -> LazyRAG:
    # One summary, as in the paper, whose first pass reads that of one document.
    return LazyRAG(reader, tiers.passages, tiers.summaries, top_n=3, n_summaries=1, max_tokens=MAX_TOKENS)


def _examples(questions: Sequence[GateQuestion], results: Sequence[LazyRAGResult]) -> list[Example]:
    return [
        Example(result, question.answer, question.is_correct(result.answer))
        for question, result in zip(questions, results, strict=False)
    ]
