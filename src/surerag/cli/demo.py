"""``surerag demo``: runs the five methods with a small model on articles of SQuAD."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from surerag import ClusterCompressor, DenseEvaluator, LazyRAG, SePer, UncertaintyRewriter
from surerag.cli.display import show, show_findings, step
from surerag.cli.models import Dtype, check_folder, dtype_or_none, load_demo_reader
from surerag.demo import EXTRACT_PROMPT
from surerag.encoders import packaged_minilm
from surerag.entailment import ExactEntailer
from surerag.errors import writing
from surerag.evaluation import Question, evaluate
from surerag.evaluation.findings import findings
from surerag.evaluation.pipelines import PipelineSetup, build_system
from surerag.evaluation.report import terminal_table, write_report
from surerag.messages import Passage
from surerag.retrieval import PassageIndex, lead_summary

TOP_N, MAX_TOKENS = 3, 24
SYSTEMS = ("plain", "lazy", "compressed", "rewritten")

EVIDENCE = (
    "A result on a model that you may know, Qwen2.5-Coder-1.5B-Instruct: on 200 questions of SQuAD 2.0, "
    "L-RAG answers 77.5 % right, and calls the retriever for 88.5 % of the questions. A pipeline that always "
    "calls the retriever answers 78.0 % right. A pipeline that calls the retriever for as many questions as "
    "L-RAG, but picks them at random, answers 74.4 % right. The demo uses a smaller model of 135 M "
    "parameters with our adapter."
)
"""A measured result; a test compares its numbers with ``studies/real/results/gatesnew-qwen.json``."""

NQuestions = Annotated[
    int, typer.Option("--questions", min=5, help="Number of questions to ask each system.")
]
Output = Annotated[
    Path, typer.Option(callback=check_folder, help="Folder for the report page and the answers.")
]
Base = Annotated[
    str | None,
    typer.Option(
        help="Folder or Hugging Face id of SmolLM2-135M-Instruct. By default, the model is taken from the "
        "cache or downloaded."
    ),
]


def demo(
    questions: NQuestions = 40,
    output: Output = Path("surerag-demo"),
    base: Base = None,
    dtype: Dtype = "auto",
) -> None:
    """Try the five methods on articles of SQuAD, and compare three of the methods with plain RAG."""
    started = time.monotonic()
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    show(EVIDENCE)
    setup = _load(base, dtype_or_none(dtype))
    items = _sample(questions)
    _show_one(setup, items[0])
    built = {name: build_system(name, setup) for name in SYSTEMS}
    with evaluate(built, items, output / "demo.db", at_a_time=8, on_change="ask", progress=True) as run:
        show_findings(findings(run))
        show(terminal_table(run))
        page = output / "demo.html"
        write_report(run, page, title="surerag: five methods on real text")
    seconds = time.monotonic() - started
    show(f"Report: {page}. All answers: {output / 'demo.db'}. The demo took {seconds:.0f} s.")
    show(
        "To compare systems on your own documents and questions, run: "
        "surerag compare questions.jsonl --documents DIR --model MODEL"
    )


def _load(base: str | None, dtype: str | None) -> PipelineSetup:
    from surerag.demo import load_corpus

    reader = load_demo_reader(base, dtype=dtype, max_tokens=MAX_TOKENS)
    corpus = load_corpus()
    titles = dict.fromkeys(str(passage.metadata["title"]) for passage in corpus)
    with step(f"Indexing {len(corpus)} paragraphs of {len(titles)} articles: {', '.join(titles)}"):
        encoder = packaged_minilm()
        passages = PassageIndex.from_passages(corpus, encoder)
        leads = [Passage(lead_summary(item.text), id=item.id, metadata=item.metadata) for item in corpus]
        summaries = PassageIndex.from_passages(leads, encoder)
    options = {"compressed": {"prompts": {"extract": EXTRACT_PROMPT}}}
    return PipelineSetup(
        reader, passages, summaries, encoder, top_n=TOP_N, max_tokens=MAX_TOKENS, options=options
    )


def _sample(n: int) -> list[Question]:
    from surerag.demo import load_questions

    items = load_questions()
    places = [at * len(items) // n for at in range(min(n, len(items)))]
    return [Question(items[at].question, references=items[at].references, id=items[at].id) for at in places]


def _show_one(setup: PipelineSetup, question: Question) -> None:
    options: dict[str, Any] = {"top_n": setup.top_n, "max_tokens": setup.max_tokens}
    with step("One question, five methods"):
        passages = setup.retriever.retrieve(question.text, TOP_N)
        lazy = LazyRAG(setup.reader, setup.retriever, setup.summaries, **options).run(question.text)
        compressing = {"variant": "copy", **setup.options["compressed"]}
        compressor = ClusterCompressor(setup.reader, setup.encoder, **compressing)
        compressed = compressor.run(question.text, passages)
        dense = DenseEvaluator(setup.reader, ExactEntailer(), max_tokens=MAX_TOKENS).run(
            question.text, passages[:3]
        )
        rewritten = UncertaintyRewriter(setup.reader, setup.retriever, **options).run(question.text)
        seper = SePer(setup.reader, ExactEntailer(), max_tokens=MAX_TOKENS)
        worth = seper.run(question.text, question.references, passages)
    score = "none" if lazy.decision.score is None else f"{lazy.decision.score:.2f} nats"
    action = "retrieves" if lazy.decision.retrieve else "does not retrieve"
    search = f"searched again for “{rewritten.query}”" if rewritten.rewritten else rewritten.reason
    verdict = "certain" if dense.certain else "uncertain"
    extract = " ".join(item.text for item in compressed.passages)
    extract = extract if len(extract) <= 160 else f"{extract[:160].rstrip()} …"
    rows = {
        "L-RAG answers from summaries, and retrieves only if unsure": (
            f"entropy {score}, threshold {lazy.decision.threshold:g}: {action}. “{lazy.answer}”"
        ),
        'EDC²-RAG clusters the passages, and compresses each cluster (variant="copy")': (
            f"{compressed.tokens_before} tokens become {compressed.tokens_after}: “{extract}”"
        ),
        "DENSE-RAG rephrases each passage, and tests whether the answer stays the same": (
            f"DSE {dense.score:.2f}: {verdict if dense.conclusive else 'not conclusive'}. “{dense.answer}”"
        ),
        "DynQR rewrites the query only if the answer is uncertain": (
            f"perplexity {rewritten.original.uncertainty:.2f}, threshold {rewritten.threshold:g}: {search}. "
            f"“{rewritten.answer}”"
        ),
        "SePer measures how much the passages raise the probability of a right answer": (
            f"ΔSePer {worth.delta:+.2f}: probability {worth.before.seper:.2f} without passages, "
            f"{worth.after.seper:.2f} with passages"
        ),
    }
    table = Table(
        "Method", "Result", title=f"Question: {question.text}", title_justify="left", show_lines=True
    )
    for row in rows.items():
        table.add_row(*row)
    show(table)
    show(f"Right answer: {' | '.join(question.references)}\n")
