"""Stage one, supervised distillation (DynQR, section 2.2): a teacher rewrites queries, the base learns to."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from surerag.drivers import run_many
from surerag.drivers.progress import reporting
from surerag.errors import InputError
from surerag.extras import extra
from surerag.journal import Journal, OnChange
from surerag.methods.dynqr.rewrites import read_rewrite
from surerag.readers.protocol import Reader
from surerag.recording import RecordedReader
from surerag.services import Services, as_reader
from surerag.training.rewriter.asking import check_failures, chunks, write_rewrites
from surerag.training.rewriter.locking import locked
from surerag.training.rewriter.options import DistilOptions
from surerag.training.rewriter.processes import is_first, wait_for_all
from surerag.training.rewriter.queries import Query, as_queries, digest_of
from surerag.training.rewriter.results import Distilled, Replies, StageProgress, named
from surerag.training.rewriter.tables import queries_of, written
from surerag.types import Generation

JOURNAL, REWRITES, MODEL = "journal.jsonl", "rewrites.parquet", "model"

FIRST = 20
"""Replies after which a teacher that is none is noticed, before all others are paid for."""

_KINDS = {"unchanged": "unchanged", "a refusal": "refusals", "thoughts": "thoughts", "repeated": "repeated"}

logger = logging.getLogger("surerag")


class _Taught(NamedTuple):
    """What the teacher wrote."""

    rows: list[dict[str, Any]]
    failures: int
    replies: Replies


def distil(
    queries: Iterable[Query | str],
    teacher: Reader,
    base: str | Path,
    output: str | Path,
    options: DistilOptions | None = None,
    *,
    on_change: OnChange = "error",
    progress: StageProgress = False,
) -> Distilled:
    """Let a teacher rewrite queries, and fine-tune a base on what it wrote.

    ``output`` then holds ``rewrites.parquet`` and the folder ``model``, which
    :meth:`surerag.TransformersReader.from_pretrained` loads. A run that is killed goes on when the same is
    called again: what the teacher answered is not asked again, and training goes on from its last
    checkpoint, to the same files. If they are complete already, nothing is asked or trained.

    Args:
        queries: To be rewritten; equal ones count once.
        teacher: Rewrites them, with the prompt that the student will get.
        base: Hugging Face id or folder of the model to be trained; its chat template is used if it has one.
        output: Folder for everything; made if it is not there.
        options: What steers this stage; None for rates, batches and passes that follow from the data.
        on_change: What to do if the folder belongs to a run with other data, models or settings:
            ``"error"``; ``"reuse"`` answers that still apply; ``"restart"``.
        progress: How far it is.

    Raises:
        InputError: If there is no query, or no rewrite to learn from; or if too many of the teacher's replies
            are of no use (``max_unusable``).
        ConfigurationError: If the folder belongs to another run, or this machine cannot train as is wanted.
        ServiceError: If the teacher failed for some queries, after all others were asked.
        MissingExtraError: If a package for training is not installed.
    """
    with extra("train"):  # before anything is asked, not after
        import surerag.training.rewriter.supervised  # noqa: F401
        from surerag.training.rewriter.bases import check_machine
    options, output = options or DistilOptions(), Path(output)
    check_machine(options.fine_tuning)
    with locked(output):
        return _distilled(as_queries(queries), teacher, base, output, options, on_change, progress)


def distil_from(
    rewrites: Sequence[tuple[str, str]],
    base: str | Path,
    output: str | Path,
    options: DistilOptions | None = None,
    *,
    on_change: OnChange = "error",
    progress: StageProgress = False,
) -> Distilled:
    """Fine-tune a base on queries and rewrites of one's own; nobody is asked. Else as :func:`distil`.

    :func:`~surerag.training.rewriter.formats.read_rewrites` reads them from a file.

    Raises:
        InputError: If there is none.
        ConfigurationError: If the folder belongs to another run.
        MissingExtraError: If a package for training is not installed.
    """
    with extra("train"):
        import surerag.training.rewriter.supervised  # noqa: F401
    options, output = options or DistilOptions(), Path(output)
    rows = [
        {"query_id": query, "query": query, "rewrite": rewrite, "trouble": None, "learnt": True}
        for query, rewrite in rewrites
    ]
    with locked(output):
        if is_first():
            with written(output / REWRITES, "rewrites", {"stage": "distil", "teacher": "given"}) as write:
                write(rows)
        taught = _Taught(rows, 0, _counted(rows))
        return _learnt(taught, len(rows), base, output, options, on_change, progress)


def _distilled(
    asked: Sequence[Query],
    teacher: Reader,
    base: str | Path,
    output: Path,
    options: DistilOptions,
    on_change: OnChange,
    progress: StageProgress,
) -> Distilled:
    if is_first():
        taught = _taught(asked, teacher, output, options, on_change, progress)
    wait_for_all(cpu=options.fine_tuning.device == "cpu")
    if not is_first():  # what the first process asked is read by the others
        rows = [row for group in queries_of(output / REWRITES, "rewrites") for row in group]
        taught = _Taught(rows, len(asked) - len(rows), _counted(rows))
    return _learnt(taught, len(asked), base, output, options, on_change, progress)


def _learnt(
    taught: _Taught,
    asked: int,
    base: str | Path,
    output: Path,
    options: DistilOptions,
    on_change: OnChange,
    progress: StageProgress,
) -> Distilled:
    from surerag.training.rewriter.supervised import learn_rewrites

    examples = [(row["query"], row["rewrite"]) for row in taught.rows if row["learnt"]]
    if not examples:
        raise InputError(
            f"none of {len(taught.rows)} rewrites of the teacher can be learnt from",
            hint=f"look at {output / REWRITES}: what is wrong with them stands in the column 'trouble'",
        )
    tuned = learn_rewrites(
        examples,
        base,
        output,
        options.fine_tuning,
        options.prompts["rewrite"],
        on_change,
        named(progress, "Distilling"),
    )
    return Distilled(
        tuned.model,
        output / REWRITES,
        asked,
        len(examples),
        taught.failures,
        taught.replies,
        tuned.learnt,
    )


def _taught(
    queries: Sequence[Query],
    teacher: Reader,
    output: Path,
    options: DistilOptions,
    on_change: OnChange,
    progress: StageProgress,
) -> _Taught:
    """Ask the teacher, or look up what it answered, and write it down."""
    rows: list[dict[str, Any]] = []
    failures: list[BaseException] = []
    run = _identity(queries, teacher, options)
    with (
        Journal(output / JOURNAL, run, on_change=on_change) as journal,
        written(output / REWRITES, "rewrites", run) as write,
        reporting(named(progress, "Asking the teacher"), len(queries), "Asking the teacher") as advance,
    ):
        recorded = RecordedReader(as_reader(teacher), journal, max_concurrency=options.window)
        services = Services(reader=recorded)
        for chunk in (queries[:FIRST], *chunks(queries[FIRST:], options.window)):
            prompts = [options.prompts["rewrite"].render(query=query.text) for query in chunk]
            programs = [write_rewrites(q, p, options.rewriting) for q, p in zip(chunk, prompts, strict=True)]
            replies: list[Any] = run_many(programs, services, window=options.window, return_exceptions=True)
            failures += [reply for reply in replies if isinstance(reply, BaseException)]
            taught = [
                _row(query, reply[0], options)
                for query, reply in zip(chunk, replies, strict=True)
                if not isinstance(reply, BaseException)
            ]
            write(taught)
            rows += taught
            for _ in chunk:
                advance()
            if len(rows) == FIRST:
                _check(_counted(rows), options, output)
        check_failures(failures, len(queries), "rewritten", options.on_failure)
    counted = _counted(rows)
    _check(counted, options, output)
    return _Taught(rows, len(failures), counted)


def _counted(rows: Sequence[Mapping[str, Any]]) -> Replies:
    kinds = Counter[str]()
    said: set[str] = set()
    for row in rows:
        known = row["rewrite"].casefold()
        # What says one thing to all teaches nothing; that two vague queries mean the same may be.
        kind = "repeated" if row["trouble"] is None and known in said else row["trouble"]
        said.add(known)
        kinds["usable" if kind is None else _KINDS.get(kind, "other")] += 1
    return Replies(**kinds)


def _check(replies: Replies, options: DistilOptions, output: Path) -> None:
    """Tell what a teacher's replies are, and refuse to learn from one that does not rewrite.

    Raises:
        InputError: If too many are of no use.
    """
    logger.info("%s", replies)
    useless = replies.unusable > options.max_unusable * replies.n
    echoes = replies.n >= FIRST and replies.unchanged == replies.n and options.max_unusable < 1
    if useless or echoes:
        raise InputError(
            f"the teacher does not rewrite: {replies}",
            hint=f"look at what it said in {output}, and give another teacher or prompt 'rewrite'; or allow "
            "it with --max-unusable 1 (max_unusable=1)",
        )


def _row(query: Query, reply: Generation, options: DistilOptions) -> dict[str, Any]:
    rewrite = read_rewrite(reply, query.text, options.rewrite_words)
    learnt = rewrite.trouble is None or (rewrite.trouble == "unchanged" and options.keep_unchanged)
    return {
        "query_id": query.id,
        "query": query.text,
        "rewrite": rewrite.text,
        "trouble": rewrite.trouble,
        "learnt": learnt,
    }


def _identity(queries: Sequence[Query], teacher: Reader, options: DistilOptions) -> dict[str, Any]:
    """What the answers belong to."""
    sampling = options.rewriting
    return {
        "stage": "distil",
        "queries": f"{len(queries)}, digest {digest_of(queries)}",
        "teacher": teacher.name,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "rewrite_words": options.rewrite_words,
        "keep_unchanged": options.keep_unchanged,
        "prompt": options.prompts["rewrite"].text,
    }
