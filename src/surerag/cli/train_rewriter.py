"""``surerag train-rewriter`` and its options; what it does is imported when it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from surerag.cli.options import (
    ApiKeyEnv,
    BaseUrl,
    ColumnOption,
    ExtraBody,
    NoThinking,
    TemplateOption,
    reader_choice,
    template_options,
)
from surerag.cli.readers import ReaderChoice
from surerag.readers.keys import DEFAULT_KEY

Stage = Literal["all", "distil", "sample", "align", "measure"]
Reward = Literal["uncertainty", "answer", "retrieval", "relevance"]
Metric = Literal["perplexity", "ln_entropy", "token_entropy", "lowest_probability", "energy", "disagreement"]


def train_rewriter(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="JSONL, CSV, Parquet or the like; rows of question; optional: answers, id. Not needed with "
            "--world.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Where data and models go. Default: surerag-rewriter.", metavar="DIR"),
    ] = None,
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
    base_template_option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option of the base's chat template; the written model has it as its own. Thinking is off.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    columns: ColumnOption = None,
    stratify: Annotated[
        str | None,
        typer.Option(help="Column whose values every stage gets in equal parts.", metavar="COLUMN"),
    ] = None,
    documents: Annotated[
        Path | None,
        typer.Option(
            help="What to search: a folder of txt, md, html and pdf files; or a JSONL, CSV or Parquet file "
            "of passages: text, id, metadata.",
            metavar="PATH",
        ),
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
    queries: Annotated[
        int | None,
        typer.Option(
            min=3, help="Queries to draw at random, at most. Default: 20,000 of a file, 1,500 of a world."
        ),
    ] = None,
    held_out_share: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share that is never learnt from, to measure on.")
    ] = 0.2,
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
    own_rewrites: Annotated[
        Path | None,
        typer.Option(
            help="Queries and rewrites of your own in place of a teacher: query, rewrite; or trl's format.",
            metavar="FILE",
        ),
    ] = None,
    own_pairs: Annotated[
        Path | None,
        typer.Option(
            help="Preferences of your own in place of samples: prompt, chosen, rejected.", metavar="FILE"
        ),
    ] = None,
    variant: Annotated[
        Literal["default", "paper"],
        typer.Option(help="Rates and batches from what there is to learn from, or the paper's."),
    ] = "default",
    options: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of options, under our names or those of TRL, Axolotl and LLaMA-Factory.",
            metavar="FILE",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any option of the library, such as align.fine_tuning.patience=5; may be given repeatedly.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    rewrites: Annotated[int, typer.Option(min=2, help="Rewrites sampled for each query.")] = 8,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the rewriter.")] = 1.0,
    metric: Annotated[Metric, typer.Option(help="The reader's uncertainty.")] = "perplexity",
    k: Annotated[int, typer.Option("-k", min=1, help="Passages to answer from.")] = 5,
    lora: Annotated[
        bool, typer.Option("--lora", help="Train low-rank adapters and merge them, not all weights.")
    ] = False,
    lora_rank: Annotated[int, typer.Option(min=1, help="Their rank.")] = 16,
    four_bit: Annotated[
        bool,
        typer.Option("--four-bit", help="Hold the base in four bits under adapters; needs CUDA."),
    ] = False,
    distil_rate: Annotated[
        float | None, typer.Option(help="Learning rate of the first stage; of this and the next: chosen.")
    ] = None,
    distil_batch: Annotated[int | None, typer.Option(min=1, help="Examples a step.")] = None,
    distil_epochs: Annotated[int | None, typer.Option(min=1, help="Passes over them.")] = None,
    align_rate: Annotated[float | None, typer.Option(help="Learning rate of the last stage.")] = None,
    align_batch: Annotated[int | None, typer.Option(min=1, help="Pairs a step.")] = None,
    align_epochs: Annotated[int | None, typer.Option(min=1, help="Passes over them.")] = None,
    beta: Annotated[float | None, typer.Option(help="DPO's β. Default: 0.1.")] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Examples in memory at once, at most; a step takes several turns. Lower it and go on where "
            "memory is short. Default: 10.",
        ),
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between checkpoints. Default: a tenth of all.")
    ] = None,
    report_to: Annotated[
        str | None, typer.Option(help="Where curves go while it trains, such as tensorboard.")
    ] = None,
    export_trl: Annotated[
        bool, typer.Option("--export-trl", help="Write rewrites and pairs in trl's formats, too.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(help="Upload the model to the Hugging Face hub, privately.", metavar="OWNER/NAME"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw, samples and training.")] = 0,
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
        bool, typer.Option("--dry-run", help="Say what it would cost, and do nothing.")
    ] = False,
) -> None:
    """Train a query rewriter on a reader's uncertainty (DynQR): distil, sample, align.

    The same command goes on after a kill, and asks or trains nothing twice.
    """
    if reuse and restart:
        raise typer.BadParameter("goes without --restart", param_hint="--reuse")
    from surerag.cli.rewriter_options import stage_options
    from surerag.cli.rewriter_training import run_train_rewriter
    from surerag.cli.rewriter_wanted import Wanted
    from surerag.evaluation.inputs import given_columns
    from surerag.training.rewriter import Shares

    lora_settings = {"lora": {"rank": lora_rank}} if lora or four_bit else {}
    on_failure = "skip" if skip_failures else "raise"
    asked = stage_options(
        options,
        set_ or (),
        variant,
        tuning={
            **lora_settings,
            "four_bit": four_bit or None,
            "micro_batch": micro_batch,
            "save_every": save_every,
            "report_to": report_to,
            "seed": seed or None,
            "template_options": template_options(base_template_option),
        },
        distil={
            "fine_tuning": {"learning_rate": distil_rate, "batch": distil_batch, "epochs": distil_epochs},
            "window": concurrency,
            "on_failure": on_failure,
            "max_unusable": max_unusable,
        },
        sample={
            "rewrites": rewrites,
            "temperature": temperature,
            "metric": metric,
            "top_n": k,
            "seed": seed,
            "window": concurrency,
            "on_failure": on_failure,
        },
        align={
            "fine_tuning": {"learning_rate": align_rate, "batch": align_batch, "epochs": align_epochs},
            "reward": reward,
            "beta": beta,
        },
    )
    chosen = reader_choice(model, base_url, api_key_env, template_option, extra_body, no_thinking)
    run_train_rewriter(
        replace(chosen, concurrency=concurrency),
        ReaderChoice(teacher, teacher_url, teacher_key_env, concurrency),
        Wanted(
            file=file,
            columns=given_columns(columns or ()),
            kind=stratify,
            output=output or Path(asked.places.get("output", "surerag-rewriter")),
            base=base or asked.places.get("base"),
            stage=stage,
            documents=documents,
            retriever=retriever,
            world=world,
            queries=queries or (20_000 if world is None else 1_500),
            shares=Shares(distil_share, held_out_share),
            rewriter=rewriter,
            samples=samples,
            own_rewrites=own_rewrites,
            own_pairs=own_pairs,
            distil=asked.distil,
            sample=asked.sample,
            align=asked.align,
            on_change="reuse" if reuse else "restart" if restart else "error",
            dry_run=dry_run,
            push=push,
            export=export_trl,
        ),
    )
