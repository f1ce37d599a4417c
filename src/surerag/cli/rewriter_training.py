"""``surerag train-rewriter`` at work: data and models from what the user named, then stage after stage."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Table

from surerag.cli.display import Stages, console, staged
from surerag.cli.readers import ReaderChoice
from surerag.encoders import packaged_minilm
from surerag.errors import ConfigurationError
from surerag.journal import OnChange
from surerag.measures import exact_match
from surerag.readers.protocol import BaseReader
from surerag.retrieval import PassageIndex
from surerag.services import Encoder, Retriever
from surerag.storage import check_folder
from surerag.training.rewriter import (
    AlignOptions,
    DistilOptions,
    Query,
    SampleOptions,
    align,
    distil,
    read_queries,
    sample,
)
from surerag.training.rewriter.asking import IsCorrect, chunks
from surerag.training.rewriter.costs import StageCost, align_cost, distil_cost, sample_cost, token_counter
from surerag.types import Passage

if TYPE_CHECKING:
    from surerag.world import World

Stage = Literal["all", "distil", "sample", "align"]
_PROBED = 20
"""Contexts that tell how long they are."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for.

    Attributes:
        file: Queries.
        output: Folder for all stages.
        base: The model to be trained.
        stage: Which stage, or all.
        documents: Folder to search.
        retriever: ``MODULE:FUNCTION`` that makes a retriever.
        world: Seed of a closed world.
        queries: How many questions to ask it.
        distil_share: Share of the queries for the first stage.
        rewriter: A distilled rewriter, in place of the first stage's.
        samples: A file of samples, in place of the second stage's.
        distil: Options of the first stage.
        sample: Of the second.
        align: Of the third.
        on_change: What to do if the folder belongs to another run.
        dry_run: Only say what it would cost.
    """

    file: Path | None
    output: Path
    base: str | None
    stage: Stage
    documents: Path | None
    retriever: str | None
    world: int | None
    queries: int
    distil_share: float
    rewriter: str | None
    samples: Path | None
    distil: DistilOptions
    sample: SampleOptions
    align: AlignOptions
    on_change: OnChange
    dry_run: bool

    def does(self, stage: Stage) -> bool:
        """Whether a stage is to run."""
        return self.stage in ("all", stage)

    @property
    def distilled(self) -> str:
        """Where the distilled rewriter is, or will be."""
        return self.rewriter or str(self.output / "distil" / "model")

    @property
    def sampled(self) -> Path:
        """Where the samples are, or will be."""
        return self.samples or self.output / "sample" / "samples.parquet"


def run_train_rewriter(choice: ReaderChoice, teacher: ReaderChoice, wanted: Wanted) -> None:
    """Run the stages that were asked for, each from its files.

    Args:
        choice: The reader.
        teacher: Who rewrites in the first stage; the reader if nobody is named.
        wanted: Everything else.

    Raises:
        ConfigurationError: If something is missing, or the folder belongs to another run.
        InputError: If the queries cannot be used.
        StorageError: If the folder cannot be written.
        ServiceError: If a model fails.
        MissingExtraError: If a package is not installed.
    """
    _check(choice, wanted)
    data = _Data(wanted)
    if wanted.dry_run:
        console.print(_cost_table(_costs(data, wanted)))
        console.print(
            "Tokens are counted with the base's tokenizer. What the output folder holds already is not asked "
            "again, and is not taken off here.",
            highlight=False,
        )
        return
    check_folder(wanted.output)
    models = _Models(choice, teacher)
    with staged() as stages:
        if wanted.does("distil"):
            _distil(data, models, wanted, stages)
        if wanted.does("sample"):
            _sample(data, models, wanted, stages)
        if wanted.does("align"):
            _align(wanted, stages)
    if wanted.does("align"):
        folder = _aligned(wanted) / "model"
        console.print(
            f"The rewriter is in {folder}:\nUncertaintyRewriter(reader, retriever, "
            f"rewriter=TransformersReader.from_pretrained({str(folder)!r}))",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _check(choice: ReaderChoice, wanted: Wanted) -> None:
    """Refuse what cannot work, before anything is loaded."""
    if (wanted.file is None) == (wanted.world is None) and wanted.stage != "align":
        raise ConfigurationError(
            "queries come from a file or from a closed world", hint="give either FILE or --world SEED"
        )
    if wanted.world is None and wanted.does("distil") and wanted.base is None:
        raise ConfigurationError(
            "no base was named", hint="add --base with the Hugging Face id or path of the model to be trained"
        )
    sources = [wanted.documents, wanted.retriever, wanted.world]
    if wanted.does("sample") and sum(source is not None for source in sources) != 1:
        raise ConfigurationError(
            "rewrites are tried on one corpus",
            hint="give one of --documents DIR, --retriever MODULE:FUNCTION and --world SEED",
        )
    if wanted.world is None and choice.is_embedded and wanted.stage in ("all", "sample"):
        raise ConfigurationError(
            "your own queries need a model of your own: the embedded reader knows its closed world only",
            hint="add --model with a Hugging Face id or path, or --base-url with an OpenAI-compatible server",
        )


class _Data:
    """Queries and corpus, read when they are needed."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    @cached_property
    def base(self) -> str:
        """The model to be trained; on the closed world the embedded reader, if none was named."""
        from surerag.world import embedded_reader_path

        return self._wanted.base or str(embedded_reader_path())

    @cached_property
    def queries(self) -> Sequence[Query]:
        """All queries."""
        if self._wanted.world is None:
            return read_queries(self._wanted.file or Path())
        questions = self._world.questions(self._wanted.queries)
        return [Query(question.text, question.answers, question.id) for question in questions]

    @property
    def to_distil(self) -> Sequence[Query]:
        """Those for the first stage."""
        return self.queries[: self._cut]

    @property
    def to_sample(self) -> Sequence[Query]:
        """Those for the second."""
        return self.queries[self._cut :]

    @property
    def _cut(self) -> int:
        if len(self.queries) < 2:
            raise ConfigurationError("one query cannot be shared among two stages", hint="give more queries")
        return min(max(round(len(self.queries) * self._wanted.distil_share), 1), len(self.queries) - 1)

    @cached_property
    def is_correct(self) -> IsCorrect:
        """Who judges answers: the closed world itself, or equality of words."""
        if self._wanted.world is None:
            return exact_match
        from surerag.world import is_correct

        asked = {question.answers: question for question in self._world.questions(self._wanted.queries)}
        return lambda answer, golds: is_correct(asked[tuple(golds)], answer)

    @cached_property
    def encoder(self) -> Encoder | None:
        """Encodes corpus and queries; with a retriever of one's own only where the reward needs it."""
        needed = self._wanted.retriever is None or self._wanted.align.reward == "relevance"
        return packaged_minilm() if needed else None

    @cached_property
    def corpus(self) -> str:
        """A digest of what is searched."""
        if self._wanted.retriever is not None:
            return self._wanted.retriever
        digest = hashlib.sha256()
        for passage in self._passages:
            digest.update(f"{passage.id}\n{passage.text}\n".encode("utf-8", "backslashreplace"))
        return f"{len(self._passages)} passages, digest {digest.hexdigest()[:16]}"

    @cached_property
    def retriever(self) -> Retriever:
        """Searches the corpus."""
        if self._wanted.retriever is not None:
            return _made(self._wanted.retriever)
        return PassageIndex.from_passages(self._passages, self.encoder or packaged_minilm())

    @property
    def contexts(self) -> Sequence[Sequence[Passage]]:
        """Some contexts that tell how long they are; a corpus need not be indexed for that."""
        k = self._wanted.sample.top_n or 1
        if self._wanted.retriever is not None:
            some = self.to_sample[:: -(-len(self.to_sample) // _PROBED)]
            return [self.retriever.retrieve(query.text, k) for query in some]
        passages = self._passages[:: -(-len(self._passages) // (_PROBED * k))]
        return list(chunks(passages, k))

    @cached_property
    def _passages(self) -> Sequence[Passage]:
        if self._wanted.documents is not None:
            from surerag.documents import load_documents
            from surerag.retrieval import chunk_documents

            return chunk_documents(load_documents(self._wanted.documents).documents)
        return self._world.passages

    @cached_property
    def _world(self) -> World:
        from surerag.world import World

        return World(seed=self._wanted.world or 0)


class _Models:
    """Reader and teacher, loaded when they are needed."""

    def __init__(self, choice: ReaderChoice, teacher: ReaderChoice) -> None:
        self._choice, self._teacher = choice, teacher

    @cached_property
    def reader(self) -> BaseReader:
        """Answers."""
        return self._choice.build()

    @cached_property
    def teacher(self) -> BaseReader:
        """Rewrites; the reader itself if nobody was named."""
        return self.reader if self._teacher.is_embedded else self._teacher.build()


def _made(name: str) -> Retriever:
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ConfigurationError(f"--retriever must be MODULE:FUNCTION, got {name!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the retriever {name!r} cannot be made: {error}",
            hint="name a module that can be imported from here, and a function in it",
        ) from error
    if not isinstance(made, Retriever):
        raise ConfigurationError(
            f"{name} returned a {type(made).__name__}, which has no retrieve(query, k)",
            hint="return an object with the methods of surerag.services.Retriever",
        )
    return made


def _distil(data: _Data, models: _Models, wanted: Wanted, stages: Stages) -> None:
    with stages.working("Loading the teacher"):
        teacher = models.teacher
    done = distil(
        data.to_distil,
        teacher,
        data.base,
        wanted.output / "distil",
        wanted.distil,
        on_change=wanted.on_change,
        progress=stages,
    )
    _tell(
        f"{done.replies}.\nDistilled from {done.examples:,} rewrites of {done.queries:,} queries: "
        f"{done.model}.",
        done.failures,
    )


def _sample(data: _Data, models: _Models, wanted: Wanted, stages: Stages) -> None:
    _need(
        wanted.rewriter is not None or Path(wanted.distilled).is_dir(),
        wanted.distilled,
        "distil",
        "--rewriter",
    )
    with stages.working("Loading reader and corpus"):
        reader, retriever = models.reader, data.retriever
    done = sample(
        data.to_sample,
        wanted.distilled,
        reader,
        retriever,
        wanted.output / "sample",
        wanted.sample,
        encoder=data.encoder,
        is_correct=data.is_correct,
        corpus=data.corpus,
        on_change=wanted.on_change,
        progress=stages,
    )
    _tell(f"Tried {done.rewrites:,} rewrites of {done.queries:,} queries: {done.samples}.", done.failures)


def _align(wanted: Wanted, stages: Stages) -> None:
    _need(
        wanted.rewriter is not None or Path(wanted.distilled).is_dir(),
        wanted.distilled,
        "distil",
        "--rewriter",
    )
    _need(wanted.sampled.is_file(), str(wanted.sampled), "sample", "--samples")
    done = align(
        wanted.sampled,
        wanted.distilled,
        _aligned(wanted),
        wanted.align,
        on_change=wanted.on_change,
        progress=stages,
    )
    _tell(f"Aligned by {done.triplets:,} pairs of {done.queries:,} queries: {done.model}.", 0)


def _aligned(wanted: Wanted) -> Path:
    return wanted.output / f"align-{wanted.align.reward}"


def _need(there: bool, what: str, stage: str, option: str) -> None:
    if not there:
        raise ConfigurationError(
            f"{what} is not there", hint=f"run --stage {stage} first, or name it with {option}"
        )


def _tell(line: str, failures: int) -> None:
    skipped = f" {failures:,} queries failed and were left out." if failures else ""
    console.print(line + skipped, markup=False, highlight=False, soft_wrap=True)


def _costs(data: _Data, wanted: Wanted) -> list[StageCost]:
    count = token_counter(data.base if wanted.rewriter is None else wanted.rewriter)
    costs = []
    if wanted.does("distil"):
        costs.append(distil_cost(data.to_distil, wanted.distil, count))
    if wanted.does("sample"):
        costs.append(sample_cost(data.to_sample, wanted.sample, count, data.contexts))
    if wanted.does("align"):
        there = wanted.stage == "align" and wanted.sampled.is_file()
        queries = () if there else data.to_sample
        costs.append(align_cost(queries, wanted.align, count, wanted.sampled if there else None))
    return costs


def _cost_table(costs: Sequence[StageCost]) -> Table:
    table = Table(title="What it would cost, at most", title_justify="left")
    for name in ("Stage", "Who", "Calls or steps", "Tokens read", "Tokens written"):
        table.add_column(name, justify="left" if name in ("Stage", "Who") else "right")
    for cost in costs:
        for line in cost.lines:
            table.add_row(cost.stage, line.what, f"{line.calls:,}", f"{line.read:,}", f"{line.written:,}")
    return table
