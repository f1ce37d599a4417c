"""Twenty worlds compared, and what came of it; then a gate on recorded answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from surerag.encoders import HashingEncoder
from surerag.evaluation.ci.paired import Judged, Pairs, judge_pair
from surerag.evaluation.rows import Question
from surerag.evaluation.statistics import Proportion, wilson_interval
from surerag.evaluation.systems.comparing import compare
from surerag.evaluation.systems.pipelines import Parts, build
from surerag.evaluation.systems.results import SystemsReport
from surerag.types import Passage
from surerag.world import World
from surerag.world.retrievers import BM25Retriever
from surerag_studies.compare.reader import PlantedReader
from surerag_studies.compare.worlds import KINDS, SEEDS, Planted

SYSTEMS = ("plain", "lazy", "compressed", "rewrite")
MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class WorldResult:
    """What a comparison said of one world.

    Attributes:
        kind: Of the world.
        seed: Of it.
        n: Questions.
        best: What was planted.
        chosen: What was recommended.
        decided: Whether it was decided.
        accuracy: Of each system.
        tokens: Of a question, by system.
        undecided: Systems that may still be the better choice.
    """

    kind: str
    seed: int
    n: int
    best: str
    chosen: str
    decided: bool
    accuracy: dict[str, float]
    tokens: dict[str, float]
    undecided: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether the best system was recommended, and it was decided."""
        return self.decided and self.chosen == self.best

    @property
    def wrong(self) -> bool:
        """Whether another system was recommended: in the baseline's place, or for good."""
        return self.chosen != self.best and (self.decided or self.chosen != SYSTEMS[0])


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate said of redrawn questions.

    Attributes:
        change: True change of the share of right answers.
        discordance: Share of questions on which the two runs differ.
        n: Questions drawn each time.
        margin: Allowed loss.
        passes: How often it passed.
        fails: How often it failed.
        undecided: How often it was neither.
    """

    change: float
    discordance: float
    n: int
    margin: float
    passes: Proportion
    fails: Proportion
    undecided: Proportion


@dataclass(frozen=True, slots=True)
class CompareStudy:
    """All of it.

    Attributes:
        worlds: Twenty.
        recorded: Answers that the gate's questions are drawn from.
        gate: By change and discordance.
        runs: Draws of each cell.
        seed: Of the draws.
    """

    worlds: tuple[WorldResult, ...]
    recorded: int
    gate: tuple[GateResult, ...]
    runs: int
    seed: int

    @property
    def right(self) -> int:
        """Worlds that were decided, and rightly."""
        return sum(one.right for one in self.worlds)

    @property
    def wrong(self) -> int:
        """Worlds with a wrong winner."""
        return sum(one.wrong for one in self.worlds)


def run_study(
    n: int,
    runs: int,
    seed: int,
    *,
    seeds: Sequence[int] = SEEDS,
    sizes: Sequence[int] = (500,),
    told: Callable[[int, int | None], None] = lambda done, total: None,
) -> CompareStudy:
    """Compare in every world, record what was right, and test a gate on it.

    Args:
        n: Questions of each world.
        runs: Draws of each cell of the gate.
        seed: Of the draws.
        seeds: Worlds of each kind.
        sizes: Questions that a gate is given.
        told: Hears of each world that is done.
    """
    worlds, right = [], []
    places = [(kind, world_seed) for kind in KINDS for world_seed in seeds]
    for done, (kind, world_seed) in enumerate(places, start=1):
        report, flags = compared(kind, world_seed, n)
        worlds.append(_result(kind, world_seed, n, report))
        right += flags
        told(done, len(places))
    recorded = np.array(right, dtype=bool)
    gate = [
        gated(recorded, change, discordance, size, runs, seed)
        for size in sizes
        for discordance in (0.0, 0.02, 0.05, 0.10)
        for change in (0.0, -0.025, -0.05, -0.075, -0.1)
    ]
    return CompareStudy(tuple(worlds), len(recorded), tuple(gate), runs, seed)


def compared(kind: Planted, seed: int, n: int) -> tuple[SystemsReport, list[bool]]:
    """Compare in one world; return the report, and which answers of all systems were right."""
    world = World(seed=seed, size=max(120, math.ceil(0.6 * n)), spec=kind.spec)
    asked = world.questions(n)
    reader = PlantedReader(world, asked, kind.reader)
    encoder = HashingEncoder()
    leads = [Passage(document.lead, id=document.id) for document in world.documents]
    parts = Parts(
        reader,
        BM25Retriever(world.passages),
        BM25Retriever(leads),
        encoder,
        top_n=kind.top_n,
        n_summaries=1,
    )
    right: list[bool] = []

    def noting(answer: str, golds: Sequence[str]) -> bool:
        found = answer in golds
        right.append(found)
        return found

    questions = [Question(one.text, one.answers, one.id) for one in asked]
    report = compare({name: build(name, parts) for name in SYSTEMS}, questions, rule=noting, margin=MARGIN)
    return report, right


def _result(kind: Planted, seed: int, n: int, report: SystemsReport) -> WorldResult:
    advice = report.recommendation
    return WorldResult(
        kind.name,
        seed,
        n,
        kind.best,
        advice.system,
        advice.decided,
        {one.name: one.measures["accuracy"].value for one in report.systems},
        {one.name: one.costs["tokens"] for one in report.systems},
        advice.undecided,
    )


def gated(
    recorded: np.ndarray, change: float, discordance: float, n: int, runs: int, seed: int
) -> GateResult:
    """Draw questions anew, let a second pipeline differ from the recorded one, and ask the gate.

    Args:
        recorded: Whether each recorded answer is right.
        change: Mean change of the second pipeline.
        discordance: Share of questions on which it differs, at least as much as the change takes.
        n: Questions of a draw.
        runs: Draws.
        seed: Of the draws.
    """
    rng = np.random.default_rng([seed, n, round(1e4 * discordance), round(1e4 * -change)])
    differs = max(discordance, abs(change))
    accuracy = recorded.mean()
    to_wrong, to_right = (differs - change) / 2 / accuracy, (differs + change) / 2 / (1 - accuracy)
    outcomes = []
    for _ in range(runs):
        drawn = recorded[rng.integers(len(recorded), size=n)]
        flips = rng.random(n) < np.where(drawn, to_wrong, to_right)
        lost, gained = int((flips & drawn).sum()), int((flips & ~drawn).sum())
        outcomes.append(_judged(lost, gained, n).outcome)
    passes, fails, undecided = (
        wilson_interval(outcomes.count(one), runs) for one in ("pass", "fail", "undecided")
    )
    return GateResult(change, differs, n, MARGIN, passes, fails, undecided)


@lru_cache(maxsize=100_000)
def _judged(lost: int, gained: int, n: int) -> Judged:
    return judge_pair(Pairs(n=n, lost=lost, gained=gained, first=gained, second=lost), MARGIN)
