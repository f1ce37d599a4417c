"""Results of the stages: where files were written, and how much is in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from surerag.drivers.progress import Progress
from surerag.methods.dynqr.result import RewriteCosts

StageProgress = bool | Callable[[str], Progress]
"""True shows bars on a terminal; a callable gets what is being done and returns what is told of it; False is
silent."""


@dataclass(frozen=True, slots=True)
class Replies:
    """What a teacher's replies were.

    Attributes:
        usable: Rewrites in other words than their query's.
        unchanged: Queries that were left as they are.
        repeated: The same words as for another query.
        refusals: "I cannot …"
        thoughts: Thoughts without an answer.
        other: Empty, too long, or not to be read.
    """

    usable: int = 0
    unchanged: int = 0
    repeated: int = 0
    refusals: int = 0
    thoughts: int = 0
    other: int = 0

    @property
    def n(self) -> int:
        """All of them."""
        return sum(getattr(self, name) for name in self.__slots__)

    @property
    def unusable(self) -> int:
        """Those that nothing good can be learnt from, but for unchanged ones."""
        return self.repeated + self.refusals + self.thoughts + self.other

    def __str__(self) -> str:
        """Tell them in words.

        Example:
            >>> print(Replies(usable=16, repeated=3, refusals=1))
            16 of 20 replies of the teacher are rewrites; 3 repeated, 1 refusals
        """
        rest = [f"{getattr(self, name)} {name}" for name in self.__slots__[1:] if getattr(self, name)]
        told = f"{self.usable} of {self.n} replies of the teacher are rewrites"
        return "; ".join([told, *([", ".join(rest)] if rest else [])])


@dataclass(frozen=True, slots=True)
class Learnt:
    """How a model was trained.

    Attributes:
        examples: Examples it learnt from.
        held_back: Examples that it did not, by which the best checkpoint was chosen.
        learning_rate: Highest rate.
        batch: Examples a step.
        epochs: Passes over the data, at most.
        steps: Steps that were taken.
        first_loss: Of the first step.
        last_loss: Of the last one.
        best_step: Step of the checkpoint that was kept; None if the last one was, nothing being held back.
        held_back_loss: Its loss on what was held back.
        preferred: In alignment, held-back queries whose better rewrite it prefers more than it did before.
    """

    examples: int
    held_back: int
    learning_rate: float
    batch: int
    epochs: int
    steps: int
    first_loss: float
    last_loss: float
    best_step: int | None = None
    held_back_loss: float | None = None
    preferred: int | None = None

    @property
    def chance(self) -> float | None:
        """How often a coin would prefer as many better rewrites or more: a one-sided sign test.

        Example:
            >>> Learnt(27, 10, 1e-5, 4, 3, 21, 0.69, 0.61, preferred=6).chance
            0.376953125
        """
        if self.preferred is None:
            return None
        n = self.held_back
        return float(sum(math.comb(n, k) for k in range(self.preferred, n + 1)) / 2**n)

    def __str__(self) -> str:
        """Tell it in words."""
        told = (
            f"{self.steps:,} steps of {self.batch} at rate {self.learning_rate:g}, "
            f"loss {self.first_loss:.3f} → {self.last_loss:.3f}"
        )
        if self.held_back_loss is not None:
            told += f"; kept step {self.best_step:,}"
            told += f", loss on {self.held_back:,} held back {self.held_back_loss:.3f}"
        if self.preferred is not None:
            told += f"; prefers {self.preferred:,} of {self.held_back:,} better rewrites that it never saw"
            told += f" (p = {self.chance:.2g})"
        return told


@dataclass(frozen=True, slots=True)
class Distilled:
    """The first stage's outcome.

    Attributes:
        model: Folder of the distilled rewriter; `TransformersReader.from_pretrained` loads it.
        rewrites: Parquet file of what the teacher wrote.
        queries: Queries that were asked.
        examples: Rewrites that the student learnt from.
        failures: Queries that the teacher failed to rewrite.
        replies: What the teacher's replies were.
        learnt: How the model was trained.
    """

    model: Path
    rewrites: Path
    queries: int
    examples: int
    failures: int = 0
    replies: Replies = Replies()  # immutable
    learnt: Learnt | None = None


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
        triplets: Pairs there are.
        learnt: How the model was trained.
    """

    model: Path
    pairs: Path
    queries: int
    triplets: int
    learnt: Learnt


def named(progress: StageProgress, name: str) -> Progress:
    """Return how far one part of a stage is told."""
    return progress if isinstance(progress, bool) else progress(name)
