"""``surerag demo``: one question told through all methods, then many in every mode of L-RAG."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from surerag import LazyRAG
from surerag.cli.display import Stages, console, staged
from surerag.cli.frameworks import (
    agreement,
    ask_langchain,
    ask_llama_index,
    index_passages,
    llama_index_retriever,
    require_all,
)
from surerag.cli.readers import ReaderChoice
from surerag.cli.story_view import story_view
from surerag.cli.telling import Cast, Known, tell
from surerag.encoders import packaged_minilm
from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.formatting import percent, plain_table
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
from surerag.evaluation.gate.tables import costs_table, gate_table, modes_table
from surerag.evaluation.gate.timing import LatencyTable, latency_table, measure
from surerag.evaluation.page import Example, Figure, render_page
from surerag.evaluation.serialise import write_json
from surerag.evaluation.story import NATS, Story
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.prices import Costs, load_prices
from surerag.prices.words import cost_words
from surerag.readers.protocol import BaseReader, Reader
from surerag.world import World, is_correct
from surerag.world.tiers import Tiers, index_world

MAX_LOSS = 0.01
MOST_CALIBRATION = 1000
MAX_TOKENS = 32
TIMED = 12
SHOWN = 12
LOOKED_THROUGH = 40
CARRIES_OVER = (
    "What carries over to a reader of yours: counts, the retrieval rates of fixed modes, and that core and "
    "frameworks agree. Accuracies, thresholds and how well entropy tells wrong answers are this reader's, in "
    "this world."
)
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
        story: One question through all five methods.
        report: The gate against the fixed modes.
        latency: Times by mode.
        llama_index: LlamaIndex's engine against the core.
        langchain: LangChain's chain against the core.
        costs: Of the whole demo.
    """

    seed: int
    story: Story
    report: GateReport
    latency: LatencyTable
    llama_index: Agreement
    langchain: Agreement
    costs: Costs


def run_world_demo(choice: ReaderChoice, *, seed: int, questions: int, output: Path) -> None:
    """Ask the closed world in every mode, print the tables and write figures, page and JSON.

    Args:
        choice: Which reader to use.
        seed: Seed of the world; the threshold is calibrated on the next one.
        questions: How many to ask.
        output: Folder to write to; made if it is not there.
    """
    require_all()
    began = time.perf_counter()
    output.mkdir(parents=True, exist_ok=True)
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        with stages.working("Indexing the world"):
            world, other = World(seed=seed), World(seed=seed + 1)
            vectors = encoder.encode([passage.text for passage in world.passages], "document")
            own = index_world(world, encoder, vectors)
        story = world_story(Cast.of(_pipeline(reader, own), own.passages, encoder), world, stages)
    console.print(opening(choice, reader), story_view(story), "", highlight=False)
    with staged() as stages:
        with stages.working("Indexing with LlamaIndex and LangChain"):
            indices = index_passages(world.passages, vectors, encoder)
            tiers = Tiers(llama_index_retriever(indices), own.summaries)
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
                story,
                report,
                latency,
                agreement(core, ask_llama_index(indices, rag, core)),
                agreement(core, ask_langchain(indices, rag, core)),
                whole_cost(reader, began),
            )
        with stages.working("Drawing"):
            files = write_plots(report, output)
    page = render_page(
        title="What your reader knows, and what to do about it",
        lead=f"{questions:,} questions about an invented world (seed {seed}). "
        f"{opening(choice, reader)} {CARRIES_OVER}",
        means=what_it_means(report, latency),
        story=story,
        examples=_examples(asked, core),
        report=report,
        latency=latency,
        figures=[Figure(file, CAPTIONS[file.stem]) for file in files],
        footer=f"Made by: surerag demo --seed {seed} --questions {questions}. "
        f"All of it cost {cost_words(result.costs)}.",
    )
    (output / "index.html").write_text(page, encoding="utf-8")
    write_json(result, output / "results.json")
    console.print(Rule(Text(f"{questions:,} questions, in every mode", style="bold"), align="left"))
    for sentence in what_it_means(report, latency):
        console.print(sentence, highlight=False)
    console.print(
        "", modes_table(report), costs_table(report, latency), latency_view(latency), gate_table(report)
    )
    for name, same in (("LlamaIndex", result.llama_index), ("LangChain", result.langchain)):
        console.print(
            f"{name}: {same.same_answer} answers and {same.same_decision} decisions "
            f"of {same.n} the same as the core's.",
            highlight=False,
        )
    console.print(CARRIES_OVER, highlight=False)
    console.print(f"All of this cost {cost_words(result.costs)}.", highlight=False)
    console.print(
        f"\nPage, figures and all numbers: {output / 'index.html'}", soft_wrap=True, highlight=False
    )


def whole_cost(reader: BaseReader, began: float) -> Costs:
    """Return what a reader was asked since it was built, and the seconds since a moment."""
    costs = Costs.of(reader.usage, time.perf_counter() - began)
    return load_prices().priced(costs, reader.name)


def opening(choice: ReaderChoice, reader: Reader) -> str:
    """Say who reads, and in what unit its doubt is told."""
    if choice.is_embedded:
        who = (
            "The reader is a toy that ships with the package: 5 million parameters, made for invented worlds "
            "like this one. It shows how the methods work, not how well they will do with yours."
        )
    else:
        who = f"The reader is {reader.name}, in a world that it was never taught."
    return f"{who} {NATS}"


def beside(cost: PairedDifference, n: int) -> str:
    """Say how L-RAG's accuracy differs from that of fetching always, over ``n`` questions.

    Example:
        >>> beside(PairedDifference(-0.02, -0.05, 0.01, -0.04), 150)
        'L-RAG -2.0 points [-5.0, +1.0]'
        >>> beside(PairedDifference(0.0, 0.0, 0.0, 0.0), 150)
        'L-RAG in the same questions, so that it loses less than 2.0 % (95 % confidence)'
    """
    if cost.low == cost.high == 0:
        # No question differs, and resampling equal ones cannot tell how rare a difference is.
        most = percent(1 - 0.05 ** (1 / n))
        return f"L-RAG in the same questions, so that it loses less than {most} (95 % confidence)"
    return f"L-RAG {100 * cost.value:+.1f} points [{100 * cost.low:+.1f}, {100 * cost.high:+.1f}]"


def what_it_means(report: GateReport, latency: LatencyTable) -> tuple[str, ...]:
    """Say in sentences what the tables come to; the first thing that a newcomer wants to know."""
    lazy = report.calibrated
    standard = next(row for row in report.modes if row.label == "Standard RAG")
    rate = lazy.retrieval.value if lazy.retrieval is not None else 1.0
    cost = lazy.against_standard
    fetched = (
        f"L-RAG fetched for {percent(rate, 0)} of the questions instead of for all of them. Fetching always "
        f"is right in {percent(standard.accuracy.value, 0)}; {beside(cost, report.n)}."
    )
    tokens = (
        f"It reads {lazy.prompt_tokens:.0f} tokens a question; fetching always reads "
        f"{standard.prompt_tokens:.0f}."
    )
    sentences = [fetched, tokens]
    slower = dict(zip((row.label for row in latency.modes), latency.modes, strict=True))
    here = latency.timings.retrieval
    mine = slower[lazy.label].measured - rate * here
    theirs = slower[standard.label].measured - here
    if rate >= 1:
        sentences.append("It saves no retrieval here, and so no time.")
    else:
        even = max(0.0, (mine - theirs) / (1 - rate))
        sentences.append(
            f"Asking first takes time, too: on this machine it saves time where a retrieval takes more than "
            f"{even:.0f} ms. Here one takes {here:.0f} ms: it {'saves' if here > even else 'costs'} time."
        )
    return tuple(sentences)


def world_story(cast: Cast, world: World, stages: Stages) -> Story:
    """Tell the story of the first question for which the methods have something to do.

    By rule, so that it holds for every seed: the first of forty where L-RAG fetches and DynQR keeps a
    rewrite, be the answers right or wrong; else the first where L-RAG fetches; else the first.
    """
    questions = world.questions(LOOKED_THROUGH)
    texts = [question.text for question in questions]
    lazy = cast.rag.run_many(texts, progress=stages("Looking for a question to tell"))
    fetched = [at for at, one in enumerate(lazy) if one.decision.retrieve]
    rewritten = dict(
        zip(fetched, cast.rewriter.run_many([texts[at] for at in fetched]), strict=True) if fetched else ()
    )
    both = [at for at in fetched if rewritten[at].kept == "rewritten"]
    found = (
        f"Of {len(texts)} questions, it fetched passages for {len(fetched)} and kept a rewrite for "
        f"{len(both)} of these."
    )
    if both:
        rule = f"{found} This is the first of those, whether it came out right or wrong."
    elif fetched:
        rule = f"{found} This is the first for which it fetched."
    else:
        rule = f"{found} This is the first of all."
    at = (both or fetched or [0])[0]
    question = questions[at]
    known = Known(question.answers[0], lambda answer: is_correct(question, answer))
    with stages.working("One question through all five methods"):
        return tell(cast, lazy[at], rewritten.get(at), known, chosen=rule)


def latency_view(latency: LatencyTable) -> Table:
    """Show what a question takes in each mode."""
    timings = latency.timings
    table = plain_table("Expected time a question, in ms, if a retrieval takes …")
    table.add_column("Mode")
    table.add_column(f"{timings.retrieval:.0f} ms\n(as here)", justify="right", no_wrap=True)
    for assumed in latency.retrieval:
        table.add_column(f"{assumed:.0f} ms", justify="right", no_wrap=True)
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
