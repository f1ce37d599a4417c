"""``surerag demo --documents``: lazy retrieval over the user's own files, and one question told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from surerag import LazyRAG
from surerag.cli.display import console, staged
from surerag.cli.frameworks import AT_A_SERVER, IN_THIS_PROCESS, require_all
from surerag.cli.readers import ReaderChoice
from surerag.cli.story_view import story_view
from surerag.cli.telling import Cast, Known, tell
from surerag.cli.world_demo import whole_cost
from surerag.documents import load_documents
from surerag.encoders import packaged_minilm
from surerag.errors import CapabilityError, ConfigurationError, InputError
from surerag.evaluation.page import Example, render_page
from surerag.evaluation.story import NATS
from surerag.measures import same_answer
from surerag.methods.lazy_rag.gate import GateDecision
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.prices.words import cost_words
from surerag.retrieval import PassageIndex, SummaryIndex, chunk_documents
from surerag.storage import write_whole
from surerag.types import Passage

GateName = Literal["entropy", "margin", "disagreement"]
SAMPLES = 5
CHOSEN = "The first of your questions. Its telling asks the reader some 60 times; --no-story leaves it out."
SEEN: dict[GateName, str] = {
    "entropy": "the entropy of its first answer",
    "margin": "the want of margin between its likeliest next tokens",
    "disagreement": "the disagreement among its sampled answers",
}


def run_documents_demo(
    choice: ReaderChoice,
    directory: Path,
    questions: Sequence[str],
    *,
    gate: GateName,
    threshold: float | None,
    output: Path,
    story: bool = True,
    answer: str | None = None,
) -> None:
    """Answer questions about a folder of files, and show how each answer came about.

    Args:
        choice: Which reader to use.
        directory: Folder of txt, md, html and pdf files.
        questions: What to ask.
        gate: What decides whether to retrieve.
        threshold: Its threshold; None for the gate's own, for entropy the paper's balanced one.
        output: Folder to write the page to; made if it is not there.
        story: Whether to tell what all five methods make of the first question.
        answer: The right answer to the first question; what passages are worth is measured by it.

    Raises:
        ConfigurationError: If no model was named.
        InputError: If there is no question, or no document.
        CapabilityError: If the gate needs log-probabilities and the model's server returns none.
    """
    if choice.is_embedded:
        raise ConfigurationError(
            "your own documents need a model of your own: the embedded reader knows its closed world only",
            hint="add --model with a Hugging Face id or path, or --base-url with an OpenAI-compatible server",
        )
    if not any(question.strip() for question in questions):
        raise InputError("there is nothing to answer", hint='ask with --question "…"')
    began = time.perf_counter()
    require_all(AT_A_SERVER if choice.base_url is not None else IN_THIS_PROCESS)
    documents = load_documents(directory).documents
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        if gate != "disagreement" and not reader.capabilities.logprobs:
            raise CapabilityError(
                f"the gate {gate} needs log-probabilities, and {reader.name} returns none",
                hint="add --gate disagreement, which samples a few answers and compares them",
            )
        with stages.working(f"Indexing {len(documents):,} documents"):
            passages = chunk_documents(documents)
            index = PassageIndex.from_passages(passages, encoder)
            rag = LazyRAG(
                reader,
                index,
                SummaryIndex.from_documents(documents, encoder),
                top_n=3,
                gate=gate,
                threshold=threshold,
            )
        results = rag.run_many(questions, progress=stages("Answering"))
    tau = f"{rag.boundary():g} {rag.gate_in_force.unit}".strip()
    console.print(
        f"{len(documents):,} documents, {len(passages):,} passages; reader {reader.name}; "
        f"{gate} gate, τ = {tau}{'' if threshold is not None else ' (not calibrated for this model)'}",
        highlight=False,
    )
    for result in results:
        console.print(answer_view(result))
    told = None
    if story:
        cast = Cast.of(rag, index, encoder, n_samples=SAMPLES)
        with staged() as stages, stages.working("The first question through all five methods"):
            told = tell(cast, results[0], None, known_answer(answer), chosen=CHOSEN)
        console.print("", Rule(Text("The first question, step by step", style="bold"), align="left"))
        console.print(NATS, story_view(told), highlight=False)
    costs = cost_words(whole_cost(reader, began))
    page = render_page(
        title="L-RAG on your documents",
        lead=f"{len(documents):,} documents, read by {reader.name}. "
        f"It retrieves only where {SEEN[gate]} exceeds τ = {tau}. {NATS}",
        story=told,
        examples=[Example(result) for result in results],
        footer=f"Made by: surerag demo --documents. All of it cost {costs}.",
    )
    write_whole(output / "index.html", page)
    console.print(f"\nAll of this cost {costs}.", highlight=False)
    console.print(f"As a page: {output / 'index.html'}", soft_wrap=True, highlight=False)


def known_answer(answer: str | None) -> Known | None:
    """Judge answers by their words: those of the right one stand in them in a row, or the other way round."""
    return None if answer is None else Known(answer, lambda given: same_answer(answer, given))


def answer_view(result: LazyRAGResult) -> RenderableType:
    """Show an answer, the decision behind it, and what the reader was shown."""
    parts: list[RenderableType] = [
        Rule(Text(result.question, style="bold"), align="left", style="dim"),
        Text(result.answer or "(no answer)"),
        Text(_decision(result.decision), style="dim"),
        *([] if result.spent is None else [Text(f"It cost {cost_words(result.spent)}.", style="dim")]),
    ]
    shown = result.passages or result.summaries
    parts.append(Text("Passages retrieved" if result.passages else "Summaries that sufficed", style="italic"))
    parts += [Padding(_passage(number, passage), (0, 0, 0, 2)) for number, passage in enumerate(shown, 1)]
    return Padding(Group(*parts), (1, 0, 0, 0))


def _decision(decision: GateDecision) -> str:
    action = "Retrieved" if decision.retrieve else "Not retrieved"
    if decision.signal is None:
        return f"{action}: {decision.reason}."
    spread = "" if decision.exact else f" [{decision.lower:.2f}, {decision.upper:.2f}]"
    told = f"{decision.gate} {decision.signal:.2f}{spread} {decision.unit}"
    return f"{action}: {told}, τ = {decision.threshold:.2f}."


def _passage(number: int, passage: Passage) -> str:
    source = passage.metadata.get("path", passage.id)
    text = " ".join(passage.text.split())
    return f"[dim]{number}. {escape(str(source))}[/dim]  {escape(text)}"
