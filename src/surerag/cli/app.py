"""The commands and their options; what they do is imported when one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from surerag import SePerOptions
from surerag.cli.options import option_of
from surerag.cli.train_rewriter import train_rewriter
from surerag.measures.seper import Kernel
from surerag.storage import check_file, check_folder

app = typer.Typer(
    help="RAG that acts on its reader's uncertainty.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
reproduce = typer.Typer(help="Every result on the closed world, for any seed.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")

Model = Annotated[
    str | None,
    typer.Option(
        help="Hugging Face id or path of a causal model; with --base-url, the server's name for it. "
        "Default: the embedded reader.",
    ),
]
BaseUrl = Annotated[
    str | None, typer.Option(help="An OpenAI-compatible server, such as http://localhost:8000/v1.")
]
ApiKeyEnv = Annotated[
    str, typer.Option(help="Environment variable that holds the server's key.", metavar="NAME")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the world. Training used none of these.")]

WorldEntailment = Literal["judge", "exact"]
Judge = Annotated[
    WorldEntailment | None,
    typer.Option(
        "--entailment",
        help="Who judges answers: the reader, or the world's accepted forms. Default: the reader, if it "
        "proves able to.",
    ),
]


def _writable_file(file: Path | None) -> Path | None:
    if file is not None:
        check_file(file)
    return file


def _writable_folder(folder: Path | None) -> Path | None:
    if folder is not None:
        check_folder(folder)
    return folder


JsonFile = Annotated[
    Path | None,
    typer.Option("--json", help="Write every figure to this file.", metavar="FILE", callback=_writable_file),
]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"surerag {version('surerag')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """RAG that acts on its reader's uncertainty."""


@app.command()
def demo(
    documents: Annotated[
        Path | None,
        typer.Option(help="Your own documents: a folder of txt, md, html and pdf files.", metavar="DIR"),
    ] = None,
    question: Annotated[
        list[str] | None, typer.Option(help="What to ask your documents; may be given several times.")
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Your documents: retrieve above this entropy. Default: 1.0.", metavar="NATS"
        ),
    ] = None,
    seed: Seed = 1,
    questions: Annotated[int, typer.Option(min=20, help="Questions to ask the closed world.")] = 400,
    output: Annotated[
        Path,
        typer.Option(help="Where figures, page and JSON go.", metavar="DIR", callback=_writable_folder),
    ] = Path("surerag-demo"),
) -> None:
    """See the methods at work: on the closed world, or on your own documents."""
    from surerag.cli.readers import ReaderChoice

    choice = ReaderChoice(model, base_url, api_key_env)
    if documents is None:
        for name, given in (("--question", question), ("--threshold", threshold)):
            if given:
                raise typer.BadParameter("goes with --documents DIR", param_hint=name)
        from surerag.cli.world_demo import run_world_demo

        run_world_demo(choice, seed=seed, questions=questions, output=output)
    else:
        from surerag.cli.documents_demo import run_documents_demo

        run_documents_demo(choice, documents, question or [], threshold=threshold, output=output)


@app.command()
def evaluate(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSONL or Parquet; rows of question, answers and contexts; optional: id, system.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(help="Where journal, results and report go.", metavar="DIR", callback=_writable_folder),
    ] = Path("surerag-evaluation"),
    model: Model = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
    entailment: Annotated[
        str | None,
        typer.Option(
            help="exact (equal words), judge (the reader itself), nli or nli:MODEL (a classifier). "
            "Default: judge for the embedded reader, else nli.",
            metavar="exact|judge|nli[:MODEL]",
        ),
    ] = None,
    n_samples: Annotated[int, option_of(SePerOptions, "n_samples")] = SePerOptions.n_samples,
    max_tokens: Annotated[int, option_of(SePerOptions, "max_tokens")] = SePerOptions.max_tokens,
    kernel: Annotated[Kernel, option_of(SePerOptions, "kernel")] = SePerOptions.kernel,
    seed: Annotated[int, option_of(SePerOptions, "seed")] = SePerOptions.seed,
    concurrency: Annotated[
        int,
        typer.Option(min=1, help="Rows in one batch of a local model, or requests under way at a server."),
    ] = 16,
    baseline: Annotated[
        str | None,
        typer.Option(help="Test all systems against this one. Default: all pairs.", metavar="SYSTEM"),
    ] = None,
    extremes: Annotated[
        int, typer.Option(min=0, help="Questions to look into, passage by passage, at either end.")
    ] = 3,
    reuse: Annotated[
        bool,
        typer.Option("--reuse", help="Data or settings changed: go on, keep the answers that still apply."),
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what was answered before.")] = False,
) -> None:
    """What was retrieval worth? ΔSePer over a file; the same command goes on after a kill."""
    if reuse and restart:
        raise typer.BadParameter("goes without --restart", param_hint="--reuse")
    from surerag.cli.evaluate import Evaluation, run_evaluate
    from surerag.cli.readers import ReaderChoice

    wanted = Evaluation(
        file=file,
        output=output,
        options=SePerOptions(n_samples=n_samples, max_tokens=max_tokens, kernel=kernel, seed=seed),
        entailment=entailment,
        concurrency=concurrency,
        baseline=baseline,
        extremes=extremes,
        on_change="reuse" if reuse else "restart" if restart else "error",
    )
    if not run_evaluate(ReaderChoice(model, base_url, api_key_env, concurrency), wanted):
        raise typer.Exit(1)


app.command("train-rewriter")(train_rewriter)


@reproduce.command("card")
def reproduce_card(
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=20, help="Questions for each task.")] = 400,
    json: JsonFile = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """The embedded reader's model card, or another reader's: accuracy by task."""
    from surerag.cli.readers import ReaderChoice
    from surerag.cli.reproduce import run_card

    run_card(ReaderChoice(model, base_url, api_key_env), seed=seed, n=n, file=json)


@reproduce.command("l-rag")
def reproduce_l_rag(
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=50, help="Number of questions.")] = 2000,
    json: JsonFile = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """L-RAG: what the gate knows, what it saves, and what that costs (Tables I to III)."""
    from surerag.cli.readers import ReaderChoice
    from surerag.cli.reproduce import run_l_rag

    run_l_rag(ReaderChoice(model, base_url, api_key_env), seed=seed, n=n, file=json)


@reproduce.command("edc2")
def reproduce_edc2(
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=50, help="Number of questions.")] = 500,
    json: JsonFile = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """EDC²-RAG: compressed clusters against plain RAG under noise and redundancy (Tables 2 to 4)."""
    from surerag.cli.readers import ReaderChoice
    from surerag.cli.reproduce import run_edc2

    run_edc2(ReaderChoice(model, base_url, api_key_env), seed=seed, n=n, file=json)


@reproduce.command("dense")
def reproduce_dense(
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=20, help="Number of questions.")] = 500,
    json: JsonFile = None,
    entailment: Judge = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """DENSE-RAG: whether the score tells understanding, and repairs mend it (Figures 2 to 4, Tables 1, 3)."""
    from surerag.cli.readers import ReaderChoice
    from surerag.cli.reproduce import run_dense

    run_dense(ReaderChoice(model, base_url, api_key_env), seed=seed, n=n, file=json, entailment=entailment)


@reproduce.command("dynqr")
def reproduce_dynqr(
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=20, help="Number of questions.")] = 500,
    json: JsonFile = None,
    training: Annotated[bool, typer.Option(help="Whether to train a rewriter, too.")] = True,
    base: Annotated[
        str | None,
        typer.Option(
            help="What to train a rewriter from: a causal model's Hugging Face id or path. Default: the "
            "small embedded reader, which was never taught to rewrite."
        ),
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """DynQR: rewriting where the reader is uncertain, and training a rewriter for it (Tables 2, 3 and 5)."""
    from surerag.cli.readers import ReaderChoice
    from surerag.cli.reproduce import run_dynqr

    choice = ReaderChoice(model, base_url, api_key_env)
    run_dynqr(choice, seed=seed, n=n, file=json, base=base, training=training)


@reproduce.command("seper")
def reproduce_seper(
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=20, help="Number of questions.")] = 500,
    json: JsonFile = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Draw the figures into this folder.", metavar="DIR", callback=_writable_folder),
    ] = None,
    entailment: Judge = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """ΔSePer against the known worth of passages, and of retrievers (Table 2, Figure 3)."""
    from surerag.cli.readers import ReaderChoice
    from surerag.cli.reproduce import run_seper

    choice = ReaderChoice(model, base_url, api_key_env)
    run_seper(choice, seed=seed, n=n, file=json, plots=plots, entailment=entailment)
