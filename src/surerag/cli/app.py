"""The commands and their options; what they do is imported when one of them runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from surerag import SePerOptions, load_prompts
from surerag.cli import traces
from surerag.cli.calibrate import calibrate
from surerag.cli.compare import compare
from surerag.cli.display import nothing_kept
from surerag.cli.figures import figures
from surerag.cli.options import ColumnOption, checked_output, option_of, with_reader
from surerag.cli.readers import ReaderChoice
from surerag.cli.report import report
from surerag.cli.scaling import Scaling, with_scaling
from surerag.cli.train_rewriter import train_rewriter
from surerag.clustering import Linkage
from surerag.measures.seper import Golds, Kernel, Weights
from surerag.methods.seper.options import Direction, Likelihood, Match, Variant
from surerag.storage import check_file, check_folder
from surerag.world.regimes import REGIMES, TODAY, regime

app = typer.Typer(
    help="RAG that acts on its reader's uncertainty.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
reproduce = typer.Typer(help="Every result on the closed world, for any seed.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")

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


def _known_regime(name: str) -> str:
    return regime(name).name


RegimeName = Annotated[
    str,
    typer.Option(
        "--regime",
        help=f"What misleads in the world: {', '.join((TODAY.name, *REGIMES))}. In today's nothing does.",
        metavar="NAME",
        callback=_known_regime,
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
@with_reader
def demo(
    *,
    choice: ReaderChoice,
    documents: Annotated[
        Path | None,
        typer.Option(help="Your own documents: a folder of txt, md, html and pdf files.", metavar="DIR"),
    ] = None,
    question: Annotated[
        list[str] | None, typer.Option(help="What to ask your documents; may be given several times.")
    ] = None,
    gate: Annotated[
        Literal["entropy", "margin", "disagreement"] | None,
        typer.Option(
            help="Your documents: what decides whether to retrieve. Disagreement of sampled answers needs no "
            "log-probabilities. Default: entropy."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Your documents: retrieve above this value of the gate. Default: 1.0 nats of entropy, 0.5 "
            "want of margin, 0.65 nats of disagreement.",
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help="Your documents: the right answer to the first question, to measure each passage's worth by."
        ),
    ] = None,
    story: Annotated[
        bool,
        typer.Option(help="Your documents: whether to take the first question through all five methods."),
    ] = True,
    seed: Seed = 1,
    questions: Annotated[int, typer.Option(min=20, help="Questions to ask the closed world.")] = 150,
    output: Annotated[
        Path,
        typer.Option(help="Where figures, page and JSON go.", metavar="DIR", callback=_writable_folder),
    ] = Path("surerag-demo"),
) -> None:
    """See the methods at work: on the closed world, or on your own documents."""
    if documents is None:
        alone = {
            "--question": question,
            "--gate": gate,
            "--threshold": threshold,
            "--answer": answer,
            "--no-story": not story,
        }
        for name, given in alone.items():
            if given:
                raise typer.BadParameter("goes with --documents DIR", param_hint=name)
        from surerag.cli.world_demo import run_world_demo

        with nothing_kept():
            run_world_demo(choice, seed=seed, questions=questions, output=output)
    else:
        from surerag.cli.documents_demo import run_documents_demo

        with nothing_kept():
            run_documents_demo(
                choice,
                documents,
                question or [],
                gate=gate or "entropy",
                threshold=threshold,
                output=output,
                story=story,
                answer=answer,
            )


@app.command()
@with_scaling
@with_reader
def evaluate(
    *,
    choice: ReaderChoice,
    scaling: Scaling,
    file: Annotated[
        str,
        typer.Argument(
            help="JSONL, JSON, CSV, Parquet, a folder, a pattern or a URL; rows of question, answers and "
            "contexts; optional: id, system. Exports of RAGAS, LangSmith and DeepEval, SQuAD, HotpotQA and "
            "BEIR are known.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(help="Where rows, answers and report go.", metavar="DIR|URL", callback=checked_output),
    ] = "surerag-evaluation",
    columns: ColumnOption = None,
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
    variant: Annotated[Variant, option_of(SePerOptions, "variant")] = SePerOptions.variant,
    weights: Annotated[Weights | None, option_of(SePerOptions, "weights")] = None,
    likelihood: Annotated[Likelihood | None, option_of(SePerOptions, "likelihood")] = None,
    direction: Annotated[Direction | None, option_of(SePerOptions, "direction")] = None,
    clusters: Annotated[Linkage | None, option_of(SePerOptions, "clusters")] = None,
    match: Annotated[Match | None, option_of(SePerOptions, "match")] = None,
    golds: Annotated[Golds | None, option_of(SePerOptions, "golds")] = None,
    entailment_threshold: Annotated[
        float | None, option_of(SePerOptions, "entailment_threshold")
    ] = SePerOptions.entailment_threshold,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Prompts in place of ours: a TOML file, with a table seper.",
            metavar="FILE",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
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
    if reuse and scaling.actors is not None:
        raise typer.BadParameter("goes without --engine ray", param_hint="--reuse")
    # What is wrong with the arguments is said before anything that takes long is imported.
    from surerag.cli.entailers import EntailmentChoice
    from surerag.evaluation.inputs import given_columns, source_of
    from surerag.places import place_of

    given = given_columns(columns or ())
    EntailmentChoice.chosen(entailment, choice)
    source_of(file)
    from surerag.cli.evaluate import Evaluation, run_evaluate

    wanted = Evaluation(
        file=place_of(file),
        output=place_of(output),
        options=SePerOptions(
            n_samples=n_samples,
            max_tokens=max_tokens,
            kernel=kernel,
            variant=variant,
            weights=weights,
            likelihood=likelihood,
            direction=direction,
            clusters=clusters,
            match=match,
            golds=golds,
            entailment_threshold=entailment_threshold,
            prompts={} if prompts is None else load_prompts(prompts).get("seper", {}),
            seed=seed,
        ),
        entailment=entailment,
        concurrency=concurrency,
        baseline=baseline,
        extremes=extremes,
        on_change="reuse" if reuse else "restart" if restart else "error",
        columns=given,
        scaling=scaling,
    )
    if not run_evaluate(replace(choice, concurrency=concurrency), wanted):
        raise typer.Exit(1)


app.command("calibrate")(calibrate)
app.command("train-rewriter")(train_rewriter)
app.command("record")(traces.record)
app.command("verify")(traces.verify)
app.command("field-test")(traces.field_test)
app.command("compare")(compare)
app.command("report")(report)
app.add_typer(figures, name="figures")


@app.command()
@with_reader
def doctor(*, choice: ReaderChoice) -> None:
    """What can each method do with this model, and at which cost? A server is asked about a dozen questions.

    Exit codes: 0 every method can run; 1 some cannot; 2 the model cannot be examined.
    """
    from surerag.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(choice))


@reproduce.command("card")
@with_reader
def reproduce_card(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=20, help="Questions for each task.")] = 400,
    json: JsonFile = None,
) -> None:
    """The embedded reader's model card, or another reader's: accuracy by task."""
    from surerag.cli.reproduce import run_card

    run_card(choice, seed=seed, n=n, file=json)


@reproduce.command("regimes")
@with_reader
def reproduce_regimes(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=50, help="Questions of each world.")] = 600,
    json: JsonFile = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Keep the answers in this folder.", metavar="DIR", callback=_writable_folder),
    ] = None,
) -> None:
    """Worlds that mislead the reader as real corpora do, beside a real reader's records."""
    from surerag.cli.reproduce import run_regimes

    run_regimes(choice, seed=seed, n=n, file=json, cache=cache)


@reproduce.command("l-rag")
@with_reader
def reproduce_l_rag(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=50, help="Number of questions.")] = 2000,
    json: JsonFile = None,
    regime_name: RegimeName = TODAY.name,
) -> None:
    """L-RAG: what the gate knows, what it saves, and what that costs (Tables I to III)."""
    from surerag.cli.reproduce import run_l_rag

    run_l_rag(choice, seed=seed, n=n, file=json, regime_name=regime_name)


@reproduce.command("edc2")
@with_reader
def reproduce_edc2(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=50, help="Number of questions.")] = 500,
    json: JsonFile = None,
    regime_name: RegimeName = TODAY.name,
) -> None:
    """EDC²-RAG: compressed clusters against plain RAG under noise and redundancy (Tables 2 to 4)."""
    from surerag.cli.reproduce import run_edc2

    run_edc2(choice, seed=seed, n=n, file=json, regime_name=regime_name)


@reproduce.command("edc2-misleading")
@with_reader
def reproduce_edc2_misleading(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=10, help="Questions of each kind.")] = 200,
    top_k: Annotated[
        list[int] | None, typer.Option(min=5, help="Passages in a context; repeatedly. Default: 20 and 60.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """EDC²-RAG's three pipelines where noise misleads and contexts are long, with two readers."""
    from surerag.cli.reproduce import run_edc2_misleading

    run_edc2_misleading(choice, seed=seed, n=n, top_k=top_k, file=json)


@reproduce.command("l-rag-hops")
@with_reader
def reproduce_l_rag_hops(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=10, help="Chains of two facts.")] = 300,
    json: JsonFile = None,
) -> None:
    """L-RAG with a gate before each hop, on chains of two facts."""
    from surerag.cli.reproduce import run_l_rag_hops

    run_l_rag_hops(choice, seed=seed, n=n, file=json)


@reproduce.command("edc2-guards")
@with_reader
def reproduce_edc2_guards(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=10, help="Facts, each said in six ways.")] = 400,
    json: JsonFile = None,
) -> None:
    """EDC²-RAG's guards: what each keeps of true and of false sentences."""
    from surerag.cli.reproduce import run_edc2_guards

    run_edc2_guards(choice, seed=seed, n=n, file=json)


@reproduce.command("dense")
@with_reader
def reproduce_dense(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=20, help="Number of questions.")] = 500,
    json: JsonFile = None,
    entailment: Judge = None,
    regime_name: RegimeName = TODAY.name,
) -> None:
    """DENSE-RAG: whether the score tells understanding, and repairs mend it (Figures 2 to 4, Tables 1, 3)."""
    from surerag.cli.reproduce import run_dense

    run_dense(choice, seed=seed, n=n, file=json, entailment=entailment, regime_name=regime_name)


@reproduce.command("dense-misleading")
@with_reader
def reproduce_dense_misleading(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=5, help="Questions for each hazard.")] = 200,
    json: JsonFile = None,
) -> None:
    """DENSE-RAG's refinement among twenty candidates, several of which mislead (Table 4)."""
    from surerag.cli.reproduce import run_dense_misleading

    run_dense_misleading(choice, seed=seed, n=n, file=json)


@reproduce.command("dense-figures")
@with_reader
def reproduce_dense_figures(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=20, help="Number of questions.")] = 500,
    json: JsonFile = None,
) -> None:
    """DENSE-RAG by the threshold of chunking and the size of contexts, and of summaries."""
    from surerag.cli.reproduce import run_dense_figures

    run_dense_figures(choice, seed=seed, n=n, file=json)


@reproduce.command("dynqr")
@with_reader
def reproduce_dynqr(
    *,
    choice: ReaderChoice,
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
    regime_name: RegimeName = TODAY.name,
) -> None:
    """DynQR: rewriting where the reader is uncertain, and training a rewriter for it (Tables 2, 3 and 5)."""
    from surerag.cli.reproduce import run_dynqr

    run_dynqr(choice, seed=seed, n=n, file=json, base=base, training=training, regime_name=regime_name)


@reproduce.command("seper")
@with_reader
def reproduce_seper(
    *,
    choice: ReaderChoice,
    seed: Seed = 1,
    n: Annotated[int, typer.Option("-n", min=20, help="Number of questions.")] = 500,
    json: JsonFile = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Draw the figures into this folder.", metavar="DIR", callback=_writable_folder),
    ] = None,
    entailment: Judge = None,
    regime_name: RegimeName = TODAY.name,
) -> None:
    """ΔSePer against the known worth of passages, and of retrievers (Table 2, Figure 3)."""
    from surerag.cli.reproduce import run_seper

    run_seper(choice, seed=seed, n=n, file=json, plots=plots, entailment=entailment, regime_name=regime_name)


@reproduce.command("compare")
def reproduce_compare(
    *,
    n: Annotated[int, typer.Option("-n", min=50, help="Questions of each of the twenty worlds.")] = 400,
    runs: Annotated[int, typer.Option(min=100, help="Draws of each cell of the gate.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 1,
    json: JsonFile = None,
) -> None:
    """Worlds whose best system was planted, and a gate on questions drawn anew."""
    from surerag.cli.reproduce import run_compare_study

    run_compare_study(n, runs, seed=seed, file=json)


@reproduce.command("decisions")
def reproduce_decisions(
    *,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="A real reader's records (Parquet). Default: simulated questions alone.",
            metavar="FILE",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of splits, simulated questions and streams.")] = 1,
    splits: Annotated[int, typer.Option(min=10, help="Calibrations of each cell.")] = 1000,
    streams: Annotated[int, typer.Option(min=5, help="Streams to watch.")] = 500,
    worlds: Annotated[
        int, typer.Option(min=0, help="Questions of each of the world's regimes. 0: none of them.")
    ] = 0,
    world_seed: Annotated[int, typer.Option(min=0, help="Seed of those worlds.")] = 9401,
    cache: Annotated[
        Path | None, typer.Option(help="Keep the answers of the regimes here.", metavar="DIR")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Promises kept, gates against random, an answer or none, and false alarms."""
    from surerag.cli.reproduce import run_decisions

    run_decisions(
        trace,
        seed=seed,
        splits=splits,
        streams=streams,
        worlds=worlds,
        world_seed=world_seed,
        cache=cache,
        file=json,
    )
