"""``surerag train-rewriter`` and its options; what it does is imported when it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from surerag.cli.options import (
    ApiKeyEnv,
    BaseUrl,
    ExtraBody,
    NoThinking,
    TemplateOption,
    reader_choice,
)
from surerag.cli.readers import DEFAULT_KEY, ReaderChoice

Stage = Literal["all", "distil", "sample", "align"]
Reward = Literal["uncertainty", "answer", "retrieval", "relevance"]
Metric = Literal["perplexity", "ln_entropy", "token_entropy", "lowest_probability", "energy", "disagreement"]


def train_rewriter(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="JSONL or Parquet; rows of question; optional: answers, id. Not needed with --world.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="Where data and models go.", metavar="DIR")] = Path(
        "surerag-rewriter"
    ),
    base: Annotated[
        str | None, typer.Option(help="Hugging Face id or path of the causal model to be trained.")
    ] = None,
    stage: Annotated[Stage, typer.Option(help="One stage alone, from the files of those before it.")] = "all",
    reward: Annotated[
        Reward, typer.Option(help="What a rewrite is rewarded for: DynQR; RRR; RetPO; RaFe.")
    ] = "uncertainty",
    teacher: Annotated[
        str | None,
        typer.Option(help="Model that rewrites queries for the first stage. Default: the reader."),
    ] = None,
    teacher_url: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible server for the teacher.")
    ] = None,
    teacher_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds its key.", metavar="NAME")
    ] = "OPENAI_API_KEY",
    model: Annotated[
        str | None,
        typer.Option(help="The reader: Hugging Face id or path; with --base-url, the server's name for it."),
    ] = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = DEFAULT_KEY,
    template_option: TemplateOption = None,
    extra_body: ExtraBody = None,
    no_thinking: NoThinking = False,
    documents: Annotated[
        Path | None,
        typer.Option(help="What to search: a folder of txt, md, html and pdf files.", metavar="DIR"),
    ] = None,
    retriever: Annotated[
        str | None,
        typer.Option(
            help="What to search with: a function without arguments that returns an object with "
            "retrieve(query, k).",
            metavar="MODULE:FUNCTION",
        ),
    ] = None,
    world: Annotated[
        int | None,
        typer.Option(min=0, help="Train on the closed world of this seed, with the embedded reader."),
    ] = None,
    queries: Annotated[int, typer.Option(min=2, help="Questions to ask the closed world.")] = 1500,
    distil_share: Annotated[
        float,
        typer.Option(min=0.01, max=0.99, help="Share of queries for the first stage; the rest is sampled."),
    ] = 0.5,
    rewriter: Annotated[
        str | None,
        typer.Option(help="A distilled rewriter, for the later stages alone. Default: the first stage's."),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="For the last stage alone. Default: the second stage's.", metavar="FILE"),
    ] = None,
    rewrites: Annotated[int, typer.Option(min=2, help="Rewrites sampled for each query.")] = 8,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the rewriter.")] = 1.0,
    metric: Annotated[Metric, typer.Option(help="The reader's uncertainty.")] = "perplexity",
    k: Annotated[int, typer.Option("-k", min=1, help="Passages to answer from.")] = 5,
    lora: Annotated[
        bool, typer.Option("--lora", help="Train low-rank adapters and merge them, not all weights.")
    ] = False,
    lora_rank: Annotated[int, typer.Option(min=1, help="Their rank.")] = 16,
    distil_rate: Annotated[float, typer.Option(help="Learning rate of the first stage.")] = 1e-6,
    distil_batch: Annotated[int, typer.Option(min=1, help="Examples a step.")] = 100,
    distil_epochs: Annotated[int, typer.Option(min=1, help="Passes over them.")] = 1,
    align_rate: Annotated[float, typer.Option(help="Learning rate of the last stage.")] = 1e-5,
    align_batch: Annotated[int, typer.Option(min=1, help="Pairs a step.")] = 20,
    align_epochs: Annotated[int, typer.Option(min=1, help="Passes over them.")] = 2,
    beta: Annotated[float, typer.Option(help="DPO's β.")] = 0.1,
    micro_batch: Annotated[
        int, typer.Option(min=1, help="Examples in memory at once, at most; a step takes several turns.")
    ] = 10,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of samples and training.")] = 0,
    concurrency: Annotated[
        int,
        typer.Option(min=1, help="Queries in one batch of a local model, or requests under way at a server."),
    ] = 64,
    max_unusable: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Share of the teacher's replies that may be refusals, thoughts, repetitions or of no other "
            "use; above it, training ends after the first twenty.",
        ),
    ] = 0.5,
    skip_failures: Annotated[
        bool, typer.Option("--skip-failures", help="Go on without queries that a model failed at.")
    ] = False,
    reuse: Annotated[
        bool,
        typer.Option("--reuse", help="Data or settings changed: go on, keep the answers that still apply."),
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what was done before.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would cost in calls and tokens, and do nothing.")
    ] = False,
) -> None:
    """Train a query rewriter on a reader's uncertainty (DynQR): distil, sample, align.

    The same command goes on after a kill, and asks or trains nothing twice.
    """
    if reuse and restart:
        raise typer.BadParameter("goes without --restart", param_hint="--reuse")
    from surerag.cli.rewriter_training import Wanted, run_train_rewriter
    from surerag.training.rewriter.options import (
        AlignOptions,
        DistilOptions,
        FineTuning,
        Lora,
        SampleOptions,
    )

    adapters = Lora(rank=lora_rank, alpha=2 * lora_rank) if lora else None
    on_failure: Literal["raise", "skip"] = "skip" if skip_failures else "raise"

    def tuning(rate: float, batch: int, epochs: int) -> FineTuning:
        return FineTuning(
            learning_rate=rate,
            batch=batch,
            epochs=epochs,
            micro_batch=micro_batch,
            save_every=save_every,
            seed=seed,
            lora=adapters,
        )

    chosen = reader_choice(model, base_url, api_key_env, template_option, extra_body, no_thinking)
    run_train_rewriter(
        replace(chosen, concurrency=concurrency),
        ReaderChoice(teacher, teacher_url, teacher_key_env, concurrency),
        Wanted(
            file=file,
            output=output,
            base=base,
            stage=stage,
            documents=documents,
            retriever=retriever,
            world=world,
            queries=queries,
            distil_share=distil_share,
            rewriter=rewriter,
            samples=samples,
            distil=DistilOptions(
                tuning(distil_rate, distil_batch, distil_epochs),
                window=concurrency,
                on_failure=on_failure,
                max_unusable=max_unusable,
            ),
            sample=SampleOptions(
                rewrites=rewrites,
                temperature=temperature,
                metric=metric,
                top_n=k,
                seed=seed,
                window=concurrency,
                on_failure=on_failure,
            ),
            align=AlignOptions(
                reward=reward, beta=beta, fine_tuning=tuning(align_rate, align_batch, align_epochs)
            ),
            on_change="reuse" if reuse else "restart" if restart else "error",
            dry_run=dry_run,
        ),
    )
