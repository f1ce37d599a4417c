"""Results of the stages: where files were written, and how much is in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from surerag.drivers.progress import Progress
from surerag.methods.dynqr.result import RewriteCosts

StageProgress = bool | Callable[[str], Progress]
"""True shows bars on a terminal; a callable gets what is being done and returns what is told of it; False is
silent."""


@dataclass(frozen=True, slots=True)
class Distilled:
    """The first stage's outcome.

    Attributes:
        model: Folder of the distilled rewriter; `TransformersReader.from_pretrained` loads it.
        rewrites: Parquet file of what the teacher wrote.
        queries: Queries that were asked.
        examples: Rewrites that the student learnt from.
        failures: Queries that the teacher failed to rewrite.
    """

    model: Path
    rewrites: Path
    queries: int
    examples: int
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Sampled:
    """The second stage's outcome.

    Attributes:
        samples: Parquet file with a row for each distinct rewrite: what it retrieved, what was answered from
            that, and every reward that could be measured.
        queries: Queries with rewrites in it.
        rewrites: Distinct rewrites that were tried.
        failures: Queries that failed.
        costs: Calls and tokens of the whole file, whenever they were spent.
    """

    samples: Path
    queries: int
    rewrites: int
    failures: int = 0
    costs: RewriteCosts = field(default_factory=RewriteCosts)


@dataclass(frozen=True, slots=True)
class Aligned:
    """The third stage's outcome.

    Attributes:
        model: Folder of the aligned rewriter; `TransformersReader.from_pretrained` loads it.
        pairs: Parquet file of the preferences.
        queries: Queries with at least one pair.
        triplets: Pairs that were learnt from.
    """

    model: Path
    pairs: Path
    queries: int
    triplets: int


def named(progress: StageProgress, name: str) -> Progress:
    """Return how far one part of a stage is told."""
    return progress if isinstance(progress, bool) else progress(name)
