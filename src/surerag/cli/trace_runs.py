"""What ``record``, ``verify`` and ``field-test`` do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surerag import ClusterCompressor, LazyRAG, UncertaintyRewriter
from surerag.cli.display import console, staged
from surerag.cli.entailers import EntailmentChoice
from surerag.cli.readers import ReaderChoice
from surerag.cli.scaling import HERE, Counting, Scaling
from surerag.cli.unit_makers import corpus_digest, recorder, recording_settings, secrets_of
from surerag.documents import Document, load_documents
from surerag.drivers.progress import counted_not_logged
from surerag.encoders import packaged_minilm
from surerag.errors import InputError
from surerag.evaluation.inputs import Field as Asked
from surerag.evaluation.inputs import QuestionFile, check_questions, of_rows, read_records, text_field
from surerag.extras import extra
from surerag.methods.dynqr.metrics import Metric
from surerag.methods.lazy_rag.combined_gates import GateLike
from surerag.places import Anywhere
from surerag.prices import load_prices
from surerag.readers.protocol import BaseReader
from surerag.records import Trace, record
from surerag.records.field.bm25 import BM25Index
from surerag.records.field.data import WORLD, field_data
from surerag.records.field.run import RETRIEVALS, Field, FieldTest
from surerag.records.figures import trace_figures
from surerag.records.packing import TABLES, fingerprint
from surerag.records.recorder import PART
from surerag.records.tables import Grid, main_grids
from surerag.records.verify import TamperedError, verify
from surerag.retrieval import PassageIndex, SummaryIndex, chunk_documents
from surerag.runs import MANIFEST
from surerag.runs.store import working_folder
from surerag.scale.units import Job
from surerag.services import Encoder, Entailer, Retriever

_SQUAD = "hf:rajpurkar/squad"


@dataclass(frozen=True, slots=True)
class Recording:
    """What ``surerag record`` was asked for; see the command's options."""

    questions: Anywhere
    documents: Anywhere
    output: Anywhere
    retrieval: str = "minilm"
    top_n: int = 3
    judge: str = "contains"
    n_samples: int = 5
    max_tokens: int = 64
    hash_texts: bool = False
    concurrency: int = 16
    restart: bool = False
    columns: Mapping[Asked, str] = field(default_factory=dict)
    scaling: Scaling = HERE


@dataclass(frozen=True, slots=True)
class FieldRun:
    """What ``surerag field-test`` was asked for; see the command's options."""

    data: str | None
    questions: int
    output: Path
    paragraphs: int | None = None
    top_n: int = 3
    n_samples: int = 5
    seper_samples: int = 10
    max_tokens: int = 32
    entailment: str = "exact"
    hash_texts: bool = False
    concurrency: int = 64
    seed: int = 0
    dry_run: bool = False
    restart: bool = False


METHODS = ("l-rag", "dynqr", "edc2")


class Corpus:
    """Documents of one's own, indexed once for all models.

    Args:
        documents: What to retrieve from.
        encoder: Finds passages, summaries and clusters.
        retrieval: ``"bm25"`` or ``"minilm"``.
    """

    def __init__(self, documents: Sequence[Document], encoder: Encoder, retrieval: str) -> None:
        self.documents, self.encoder = documents, encoder
        self.passages = chunk_documents(documents)
        self.retriever: Retriever = (
            BM25Index(self.passages)
            if retrieval == "bm25"
            else PassageIndex.from_passages(self.passages, encoder)
        )
        self.summaries = SummaryIndex.from_documents(documents, encoder)

    def parts(
        self, reader: BaseReader, methods: Sequence[str], *, top_n: int, max_tokens: int
    ) -> list[LazyRAG | UncertaintyRewriter | ClusterCompressor]:
        """Return methods over the documents, each by the signal that the reader can give.

        Args:
            reader: Who answers.
            methods: Which ones; EDC²-RAG brings the L-RAG that answers from what it compressed.
            top_n: Passages to show.
            max_tokens: Length of an answer, at most.
        """
        can = reader.capabilities
        shape: dict[str, Any] = {"top_n": top_n, "max_tokens": max_tokens}
        found: list[LazyRAG | UncertaintyRewriter | ClusterCompressor] = []
        if {"l-rag", "edc2"} & set(methods):
            gate: GateLike = "entropy" if can.entropy else "margin" if can.logprobs else "disagreement"
            shown = min(2, len(self.documents))
            found.append(
                LazyRAG(reader, self.retriever, self.summaries, gate=gate, n_summaries=shown, **shape)
            )
        if "dynqr" in methods:
            metric: Metric = "perplexity" if can.logprobs else "disagreement"
            found.append(UncertaintyRewriter(reader, self.retriever, metric=metric, **shape))
        if "edc2" in methods:
            found.append(ClusterCompressor(reader, self.encoder, pass_below=0))
        return found


def run_record(choice: ReaderChoice, wanted: Recording) -> None:
    """Record a trace of one's own questions over one's own documents, and say what it holds.

    Raises:
        InputError: If questions or documents cannot be used.
        ConfigurationError: If the folder holds another trace.
        ServiceError: If the reader fails.
        MissingExtraError: If a package is not installed.
    """
    with wanted.scaling.begun(), staged() as stages:
        with stages.working("Reading the documents"):
            documents = documents_in(wanted.documents)
            # What is noted of questions is of their texts, which digests are to keep secret.
            noted = None if wanted.hash_texts else working_folder(wanted.output)
            questions = checked_questions(wanted.questions, wanted.columns, noted)
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        with stages.working("Building the indices"):
            corpus = Corpus(documents, encoder, wanted.retrieval)
        parts = corpus.parts(reader, METHODS, top_n=wanted.top_n, max_tokens=wanted.max_tokens)
        passages = corpus.passages
        say(
            f"{len(questions):,} questions over {len(passages):,} passages of {len(documents):,} documents, "
            f"read by {who(choice, reader)}."
        )
        going_on(wanted.output, restart=wanted.restart)
        counting = Counting(
            stages("Recording"), asked_in(questions, wanted.scaling), load_prices(), reader.name
        )

        def job() -> Job:
            told = recording_settings(
                choice,
                wanted.documents,
                corpus_digest(passages),
                METHODS,
                retrieval=wanted.retrieval,
                top_n=wanted.top_n,
                max_tokens=wanted.max_tokens,
                judge=wanted.judge,
                n_samples=wanted.n_samples,
                concurrency=wanted.concurrency,
            )
            return Job(recorder, told, secrets_of(choice))

        with resumable(wanted.output, beside=wanted.scaling.kept_beside), counted_not_logged():
            trace = record(
                parts,
                questions,
                wanted.output,
                judge=wanted.judge,
                n_samples=wanted.n_samples,
                hash_texts=wanted.hash_texts,
                about={"retriever": wanted.retrieval, "encoder": encoder.name},
                part_size=questions.size,
                window=wanted.concurrency,
                max_concurrency=wanted.concurrency,
                on_change="restart" if wanted.restart else "error",
                engine=wanted.scaling.engine(job, counting.made),
                shard=wanted.scaling.shard,
                progress=counting,
            )
    with extra("report"):
        about = trace.about
        found = trace_figures(
            wanted.output.name, trace, reader=str(about["reader"]), judge=str(about["judge"])
        )
    show(main_grids(found))
    also = f", and surerag verify {wanted.output}" if isinstance(wanted.output, Path) else ""
    say(
        f"Recorded to {wanted.output}. From now on without a model: "
        f"surerag.records.Trace({str(wanted.output)!r}){also}."
    )


def run_verify(folder: Path, published: str | None = None) -> None:
    """Say what holds of a folder, as it is found.

    Raises:
        TamperedError: If something does not hold.
        InputError: If it holds neither a trace nor a pack.
    """
    if published is not None and _there(folder) and fingerprint(folder) != published.lower():
        raise TamperedError(
            f"{folder} has the fingerprint {fingerprint(folder)}, and {published} was asked for",
            hint="get the folder again from where it was published",
        )
    checked = list(_told(folder))
    open_ends = sum(not held for held in checked)
    say(f"Fingerprint: {fingerprint(folder)}")
    told = "All that can be checked holds" if open_ends else "It is what it says it is"
    console.print(f"{told}.", style="bold green", highlight=False)


def run_field_test(choice: ReaderChoice, wanted: FieldRun) -> None:
    """Record, tell and pack.

    Raises:
        InputError: If the data cannot be used.
        ConfigurationError: If the folder holds a trace of something else.
        ServiceError: If the reader fails, or the data cannot be had.
        MissingExtraError: If a package is not installed.
    """
    with extra("report"):  # before anything is asked, not after
        import scipy  # noqa: F401
    named = wanted.data or (WORLD if choice.is_embedded else _SQUAD)
    with staged() as stages:
        with stages.working("Reading the data"):
            data = field_data(named, wanted.questions, seed=wanted.seed, paragraphs=wanted.paragraphs)
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
            entailer = _entailer(wanted.entailment, choice, reader)
        test = FieldTest(
            top_n=wanted.top_n,
            n_samples=wanted.n_samples,
            seper_samples=wanted.seper_samples,
            max_tokens=wanted.max_tokens,
            hash_texts=wanted.hash_texts,
            window=wanted.concurrency,
            concurrency=wanted.concurrency,
        )
        with stages.working("Building the indices"):
            field = Field(data, encoder, test)
        with stages.working("Estimating the cost"):
            cost = field.estimate(reader, entailer)
        asked = len(data.questions)
        fewer = f"; {wanted.questions:,} were asked for" if asked < wanted.questions else ""
        say(
            f"{asked:,} of {data.available:,} questions of {data.name}{fewer}, over its "
            f"{len(data.passages):,} paragraphs, read by {who(choice, reader)}."
        )
        if choice.is_embedded and named != WORLD:
            say("The embedded reader knows the closed world alone: this shows that all runs, no more.")
        both = " and ".join(RETRIEVALS)
        say(f"To be asked, over {both} together, estimated on its first questions: {cost}.")
        if wanted.dry_run:
            return
        for name in RETRIEVALS:
            going_on(wanted.output / name, restart=wanted.restart)
        began = time.monotonic()
        with resumable(*(wanted.output / name for name in RETRIEVALS)), counted_not_logged():
            field.record(
                reader,
                entailer,
                wanted.output,
                stages,
                on_change="restart" if wanted.restart else "error",
            )
        minutes = (time.monotonic() - began) / 60
        with stages.working("Packing"):
            figures = field.packed(wanted.output)
    for trace in figures.traces:
        show(main_grids(trace))
    say(
        f"Recorded in {minutes:.1f} minutes and packed to {wanted.output}; all tables are in {TABLES}.\n"
        f"Others check it with: surerag verify {wanted.output} --fingerprint {fingerprint(wanted.output)}"
    )


def _told(folder: Path) -> Iterator[bool]:
    for found in verify(folder):
        mark, style = ("✓", "green") if found.held else ("–", "yellow")
        console.print(f"[{style}]{mark}[/] ", end="")
        console.print(found.what, markup=False, highlight=False, soft_wrap=True)
        yield found.held


def _there(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("pack.json", MANIFEST))


def who(choice: ReaderChoice, reader: BaseReader) -> str:
    """Return how a reader is told of."""
    return "the embedded reader (no --model was given)" if choice.is_embedded else reader.name


def going_on(place: Anywhere, *, restart: bool) -> None:
    """Say what a folder holds from an earlier run."""
    folder = working_folder(place)
    if (folder / MANIFEST).exists() and not restart:
        say(f"Going on: {place} holds {len(Trace(folder, check=False)):,} questions from before.")


def _entailer(named: str, choice: ReaderChoice, reader: BaseReader) -> Entailer | None:
    if named == "none":
        return None
    from surerag.entailment import JudgeEntailer

    return EntailmentChoice.chosen(named, choice).loaded() or JudgeEntailer(reader)


def checked_questions(file: Anywhere, columns: Mapping[Asked, str], folder: Path | None) -> QuestionFile:
    """Return the questions of a file, noted in their trace's folder; say which columns were found."""
    found = check_questions(file, columns, size=PART, folder=folder)
    if found.told:
        say(f"Taken from {found.form}: {found.told}. Name others with --columns.")
    return found


def asked_in(questions: QuestionFile, scaling: Scaling) -> int:
    """Return how many questions are this process's own."""
    groups = enumerate(questions.groups())
    return sum(group.size for unit, group in groups if scaling.shard.has(unit))


def documents_in(path: Anywhere) -> list[Document]:
    """Return the documents of a folder, or those of the rows of a file, of several or of a folder of them."""
    if not of_rows(path):
        return list(load_documents(path).documents)
    found: list[Document] = []
    for place, row in read_records(path):
        if not isinstance(row, dict) or row.get("text") is None:
            raise InputError(f"{place}: the field 'text' is missing", hint="one row for each document")
        name = str(row.get("id") or row.get("_id") or f"d{len(found)}")
        text = text_field(row["text"], "text", place)
        found.append(Document(name, text, str(row.get("title") or "")))
    if not found:
        raise InputError(f"{path} holds no documents", hint="one row for each document")
    return found


@contextmanager
def resumable(*places: Anywhere, beside: str = HERE.kept_beside) -> Iterator[None]:
    """Say, where a run is interrupted, what was kept of it."""
    try:
        yield
    except KeyboardInterrupt:
        folders = [working_folder(place) for place in places]
        whole = sum(len(Trace(one, check=False)) for one in folders if (one / MANIFEST).exists())
        say(f"{whole:,} questions are kept whole{beside}: the same command goes on from here.")
        raise


def show(tables: Sequence[Grid]) -> None:
    """Print tables."""
    for grid in tables:
        console.print(grid.table())


def say(text: str) -> None:
    """Print a sentence as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
