"""``surerag record``, ``surerag verify`` and ``surerag field-test``: the commands and their options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from surerag.cli.options import ColumnOption, check_paths, checked_output, with_reader
from surerag.cli.readers import ReaderChoice
from surerag.cli.scaling import Scaling, with_scaling
from surerag.storage import check_folder

Found = Literal["bm25", "minilm"]
Judge = Literal["contains", "in_accuracy", "exact_match", "token_f1"]


def _writable_folder(folder: Path) -> Path:
    check_folder(folder)
    return folder


HashTexts = Annotated[
    bool,
    typer.Option(
        "--hash-texts",
        help="Keep digests in place of questions, answers and passages; nothing can then be replayed.",
    ),
]
Concurrency = Annotated[
    int,
    typer.Option(min=1, help="Questions in a local model's batch, or requests under way at a server."),
]
Restart = Annotated[bool, typer.Option("--restart", help="Throw away what was recorded before.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Length of an answer, at most.")]
Samples = Annotated[
    int, typer.Option(min=0, help="Answers to sample beside each one that a decision may be made on.")
]
EntailmentOption = Annotated[
    str | None,
    typer.Option(
        help="Who judges answers for ΔSePer and DENSE: exact, judge (the reader itself), nli or nli:MODEL; "
        "none leaves both out. Default: exact.",
        metavar="exact|judge|nli[:MODEL]|none",
    ),
]


@with_scaling
@with_reader
def record(
    *,
    choice: ReaderChoice,
    scaling: Scaling,
    questions: Annotated[
        str,
        typer.Argument(
            help="JSONL, JSON, CSV, Parquet, a folder, a pattern or a URL; rows of question and, to have "
            "answers judged, answers; optional: id. Exports of RAGAS, LangSmith and DeepEval, SQuAD, "
            "HotpotQA and BEIR are known.",
            show_default=False,
        ),
    ],
    documents: Annotated[
        str,
        typer.Option(
            help="What to retrieve from: a folder of txt, md, html and pdf files, or JSONL with rows of "
            "text; optional: id, title.",
            metavar="DIR|FILE|URL",
        ),
    ],
    columns: ColumnOption = None,
    output: Annotated[
        str, typer.Option(help="Where the trace goes.", metavar="DIR|URL", callback=checked_output)
    ] = "surerag-trace",
    retrieval: Annotated[Found, typer.Option(help="How to retrieve.")] = "minilm",
    top_n: Annotated[int, typer.Option(min=1, help="Passages to show.")] = 3,
    judge: Annotated[Judge, typer.Option(help="When an answer is right.")] = "contains",
    n_samples: Samples = 5,
    max_tokens: MaxTokens = 64,
    hash_texts: HashTexts = False,
    concurrency: Concurrency = 16,
    restart: Restart = False,
) -> None:
    """Answer your questions under every condition, and keep all of it; the same command goes on after a kill.

    With a pipeline of your own in LlamaIndex or LangChain: surerag.records.record(engine, questions, folder).
    """
    # What is wrong with the arguments is said before anything that takes long is imported.
    from surerag.evaluation.inputs import given_columns
    from surerag.places import place_of

    if hash_texts and scaling.away:
        raise typer.BadParameter(
            "goes without --engine ray and --shard: its key stays in one process", param_hint="--hash-texts"
        )
    given = given_columns(columns or ())
    asked, read = place_of(questions), place_of(documents)
    check_paths(asked, read)
    from surerag.cli.trace_runs import Recording, run_record

    wanted = Recording(
        questions=asked,
        documents=read,
        output=place_of(output),
        retrieval=retrieval,
        top_n=top_n,
        judge=judge,
        n_samples=n_samples,
        max_tokens=max_tokens,
        hash_texts=hash_texts,
        concurrency=concurrency,
        restart=restart,
        columns=given,
        scaling=scaling,
    )
    run_record(replace(choice, concurrency=concurrency), wanted)


def verify(
    folder: Annotated[
        Path, typer.Argument(help="What record or field-test wrote.", metavar="FOLDER", show_default=False)
    ],
    fingerprint: Annotated[
        str | None,
        typer.Option(help="What the author published: another folder is refused.", metavar="SHA256"),
    ] = None,
) -> None:
    """Is a trace what it says it is? Digests, and all that can be computed again, every table among it.

    Exit codes: 0 it is; 1 it is not, and stderr says why.
    """
    from surerag.cli.trace_runs import run_verify

    run_verify(folder, fingerprint)


@with_reader
def field_test(
    *,
    choice: ReaderChoice,
    data: Annotated[
        str | None,
        typer.Option(
            help="A file (SQuAD or HotpotQA JSON, Parquet, JSONL), hf:NAME[:CONFIG[:SPLIT]] of the Hugging "
            "Face hub, or world. Default: world for the embedded reader, else hf:rajpurkar/squad.",
            metavar="DATA",
        ),
    ] = None,
    questions: Annotated[int, typer.Option(min=10, help="Questions to draw.")] = 400,
    paragraphs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Paragraphs to search, at about most: those of the questions, and others. Default: all.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(help="Where traces and tables go.", metavar="DIR", callback=_writable_folder),
    ] = Path("surerag-field-test"),
    top_n: Annotated[int, typer.Option(min=1, help="Passages to show.")] = 3,
    n_samples: Samples = 5,
    seper_samples: Annotated[
        int, typer.Option(min=2, help="Answers to sample in each context for ΔSePer.")
    ] = 10,
    max_tokens: MaxTokens = 32,
    entailment: EntailmentOption = None,
    hash_texts: HashTexts = False,
    concurrency: Concurrency = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and stop.")] = False,
    restart: Restart = False,
) -> None:
    """All methods with your model on public questions, BM25 and MiniLM over their own paragraphs.

    It says what it will ask before it asks, and goes on after a kill when it is called again.

    It packs traces and tables into a folder that others can check with surerag verify.
    """
    from surerag.cli.trace_runs import FieldRun, run_field_test

    wanted = FieldRun(
        data=data,
        questions=questions,
        paragraphs=paragraphs,
        output=output,
        top_n=top_n,
        n_samples=n_samples,
        seper_samples=seper_samples,
        max_tokens=max_tokens,
        entailment=entailment or "exact",
        hash_texts=hash_texts,
        concurrency=concurrency,
        seed=seed,
        dry_run=dry_run,
        restart=restart,
    )
    run_field_test(replace(choice, concurrency=concurrency), wanted)
