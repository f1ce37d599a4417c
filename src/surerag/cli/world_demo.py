"""``surerag demo``: the closed world, indexed by both frameworks, asked in every mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

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
from surerag.evaluation.lazy_rag.asking import Tiers, gold, index_world
from surerag.evaluation.lazy_rag.plots import write_plots
from surerag.evaluation.lazy_rag.results import Agreement, LazyRagStudy
from surerag.evaluation.lazy_rag.study import Finding, lazy_rag_study
from surerag.evaluation.lazy_rag.tables import claims_table, modes_table, plain_table
from surerag.evaluation.lazy_rag.timing import LatencyTable, latency_table, measure
from surerag.evaluation.page import Example, Figure, render_page
from surerag.evaluation.serialise import write_json
from surerag.methods.lazy_rag import LazyRAGResult
from surerag.world import World, is_correct

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
        study: The study.
        latency: Times by mode.
        llama_index: LlamaIndex's engine against the core.
        langchain: LangChain's chain against the core.
    """

    study: LazyRagStudy
    latency: LatencyTable
    llama_index: Agreement
    langchain: Agreement


def run_world_demo(choice: ReaderChoice, *, seed: int, questions: int, output: Path) -> None:
    """Ask the closed world in every mode, print the tables and write figures, page and JSON.

    Args:
        choice: Which reader to use.
        seed: Seed of the world.
        questions: How many to ask.
        output: Folder to write to; made if it is not there.
    """
    output.mkdir(parents=True, exist_ok=True)
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        with stages.working("Indexing with LlamaIndex and LangChain"):
            world = World(seed=seed)
            indices = index_passages(world.passages, encoder)
            tiers = Tiers(llama_index_retriever(indices), index_world(world, encoder).summaries)
        finding = lazy_rag_study(
            reader, encoder, seed=seed, n=questions, index=lambda *_: tiers, stages=stages
        )
        with stages.working(f"Timing {TIMED} questions one by one"):
            latency = _timed(finding)
        with stages.working(f"Asking {SHOWN} questions through both frameworks"):
            core = finding.rag.run_many([question.text for question in finding.answers.questions[:SHOWN]])
            result = DemoResult(
                finding.study,
                latency,
                agreement(core, ask_llama_index(indices, finding.rag, core)),
                agreement(core, ask_langchain(indices, finding.rag, core)),
            )
        with stages.working("Drawing"):
            files = write_plots(finding.study, output)
    who = "the embedded reader" if choice.is_embedded else finding.study.model
    page = render_page(
        title="L-RAG on the closed world",
        lead=f"{questions:,} questions about an invented world (seed {seed}), answered in every mode by "
        f"{who}. It retrieves only where the entropy of its first answer exceeds τ.",
        examples=_examples(finding, core),
        study=finding.study,
        latency=latency,
        figures=[Figure(file, CAPTIONS[file.stem]) for file in files],
        footer=f"Made by: surerag demo --seed {seed} --questions {questions}",
    )
    (output / "index.html").write_text(page, encoding="utf-8")
    write_json(result, output / "results.json")
    console.print(modes_table(finding.study), latency_view(latency), claims_table(finding.study))
    for name, same in (("LlamaIndex", result.llama_index), ("LangChain", result.langchain)):
        console.print(
            f"{name}: {same.same_answer} answers and {same.same_decision} decisions "
            f"of {same.n} the same as the core's.",
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


def _timed(finding: Finding) -> LatencyTable:
    some = finding.answers.questions[:TIMED]
    texts = [question.text for question in some]
    timings = measure(finding.rag, texts, [gold(finding.world, question) for question in some])
    return latency_table(finding.study, timings)


def _examples(finding: Finding, results: Sequence[LazyRAGResult]) -> list[Example]:
    return [
        Example(result, question.answers[0], is_correct(question, result.answer))
        for question, result in zip(finding.answers.questions, results, strict=False)
    ]
