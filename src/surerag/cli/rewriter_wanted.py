"""What the user asked of ``surerag train-rewriter``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from surerag.evaluation.inputs import Field
from surerag.journal import OnChange
from surerag.training.rewriter import AlignOptions, DistilOptions, SampleOptions, Shares

Stage = Literal["all", "distil", "sample", "align", "measure"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for.

    Attributes:
        file: Queries.
        columns: Which column of it is what.
        kind: The column by which queries are drawn in equal parts.
        output: Folder for all stages.
        base: The model to be trained.
        stage: Which stage, or all.
        documents: Folder or file to search.
        retriever: ``MODULE:FUNCTION`` that makes a retriever.
        world: Seed of a closed world.
        queries: How many to draw, at most.
        shares: What part of them is for what.
        rewriter: A distilled rewriter, in place of the first stage's.
        samples: A file of samples, in place of the second stage's.
        own_rewrites: Queries and rewrites, in place of a teacher.
        own_pairs: Queries, better and worse rewrites, in place of samples.
        distil: Options of the first stage.
        sample: Of the second.
        align: Of the third.
        on_change: What to do if the folder belongs to another run.
        dry_run: Only say what it would cost.
        push: Where the model is to be uploaded.
        export: Whether to write rewrites and pairs in trl's formats, too.
    """

    file: Path | None
    columns: Mapping[Field, str]
    kind: str | None
    output: Path
    base: str | None
    stage: Stage
    documents: Path | None
    retriever: str | None
    world: int | None
    queries: int
    shares: Shares
    rewriter: str | None
    samples: Path | None
    own_rewrites: Path | None
    own_pairs: Path | None
    distil: DistilOptions
    sample: SampleOptions
    align: AlignOptions
    on_change: OnChange
    dry_run: bool
    push: str | None
    export: bool

    def does(self, stage: Stage) -> bool:
        """Whether a stage is to run; of all of them, those that what was given leaves to be done."""
        if self.stage != "all":
            return self.stage == stage
        if stage == "measure":
            return self.shares.held_out > 0 and self.has_corpus
        return stage != "sample" or self.own_pairs is None

    @property
    def has_corpus(self) -> bool:
        """Whether there is something to search."""
        return any(source is not None for source in (self.documents, self.retriever, self.world))

    @property
    def searches(self) -> bool:
        """Whether rewrites are tried."""
        return self.does("sample") or self.does("measure")

    @property
    def asks_queries(self) -> bool:
        """Whether queries are needed."""
        teaches = self.does("distil") and self.own_rewrites is None
        return teaches or self.searches

    @property
    def distilled(self) -> str:
        """Where the distilled rewriter is, or will be."""
        return self.rewriter or str(self.output / "distil" / "model")

    @property
    def sampled(self) -> Path:
        """Where the samples are, or will be."""
        return self.samples or self.output / "sample" / "samples.parquet"

    @property
    def aligned(self) -> Path:
        """Folder of the last stage."""
        return self.output / f"align-{self.align.reward}"
