"""``surerag train-rewriter``: trains a small model to rewrite queries for your model and documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surerag import training
from surerag.cli.display import show
from surerag.cli.models import (
    BaseUrl,
    Columns,
    Documents,
    Dtype,
    Language,
    Model,
    check_folder,
    load_corpus,
    load_reader,
    parse_columns,
)
from surerag.demo import find_base
from surerag.errors import ConfigurationError
from surerag.evaluation import read_questions
from surerag.training.options import Reward
from surerag.training.pipeline import check_number
from surerag.training.tuning import load_base

NOT_HELPFUL = 4
"""Exit code if the trained rewriter does not improve answers to held-out queries."""


Queries = Annotated[
    Path,
    typer.Argument(
        help="File with questions, ideally with reference answers: JSONL, JSON, CSV, TSV, XLSX or Parquet."
    ),
]
Base = Annotated[
    str,
    typer.Option(help="Hugging Face id or folder of the model to train; demo is the base model of the demo."),
]
Output = Annotated[
    Path, typer.Option(callback=check_folder, help="Folder for training data, checkpoints and models.")
]
RewardOption = Annotated[
    Reward,
    typer.Option(
        help="Reward of a rewrite. uncertainty: lower perplexity of the answer. answer: the answer is right. "
        "documents: a retrieved document contains a right answer. relevance: the retrieved documents are "
        "more similar to the query."
    ),
]
LoraRank = Annotated[int, typer.Option(min=0, help="Rank of the LoRA adapters; 0 trains all weights.")]
Seed = Annotated[
    int, typer.Option(help="Random seed for holding out queries, for sampling rewrites, and for training.")
]


def train_rewriter(
    queries: Queries,
    documents: Documents,
    base: Base,
    base_url: BaseUrl = None,
    model: Model = None,
    dtype: Dtype = "auto",
    output: Output = Path("rewriter"),
    reward: RewardOption = "uncertainty",
    lora_rank: LoraRank = 16,
    seed: Seed = 0,
    columns: Columns = "",
    language: Language = "en",
) -> None:
    """Train a query rewriter, and test it on held-out queries. The same command continues a stopped run."""
    items = read_questions(queries, columns=parse_columns(columns))
    options = training.RewriterTraining(reward=reward, lora_rank=lora_rank or None, seed=seed)
    training_queries = [training.Query(item.text, item.references) for item in items]
    check_number(training_queries)
    if base == "demo":
        base = find_base() or ""
        if not base:
            raise ConfigurationError(
                "the base model of the demo is not on this machine, and the model hub cannot be reached",
                hint="pass a folder or a Hugging Face id as --base",
            )
    if not (output / "rewrites.json").exists():
        load_base(base)  # raises an error now, and not after the documents were read
    reader = load_reader(base_url, model, dtype)
    corpus = load_corpus(documents, language)
    report = training.train_rewriter(
        training_queries,
        base,
        output,
        reader=reader,
        retriever=corpus.passages,
        encoder=corpus.encoder,
        options=options,
        progress=True,
    )
    show(str(report))
    raise typer.Exit(0 if report.rewriter is not None else NOT_HELPFUL)
