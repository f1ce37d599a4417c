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
class Distilled:
    """The first stage's outcome.

    Attributes:
        model: Folder of the distilled rewriter; `TransformersReader.from_pretrained` loads it.
        rewrites: Parquet file of what the teacher wrote.
        queries: Queries that were asked.
        examples: Rewrites that the student learnt from.
        failures: Queries that the teacher failed to rewrite.
        replies: What the teacher's replies were.
    """

    model: Path
    rewrites: Path
    queries: int
    examples: int
    failures: int = 0
    replies: Replies = Replies()  # immutable


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
