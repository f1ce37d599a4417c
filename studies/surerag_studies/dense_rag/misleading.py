"""DENSE's refinement in the paper's regime: twenty candidates, several of which mislead.

In :mod:`surerag_studies.dense_rag.study` the first five passages mostly hold what there is, so that every
ablation of Table 4 comes to the same. Here a question comes with twenty candidates, among them passages that
contradict the true one (altered copies, the article of a namesake, or loud pages that outrank it), ranked by
likeness: the context is the first five, and the refinement can choose among the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from surerag import ContextRefiner, DenseCache, RefinementResult
from surerag.drivers.progress import Stages, counted_not_logged
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.formatting import percent_with_interval, plain_table
from surerag.evaluation.statistics import Proportion, share
from surerag.journal import Memory
from surerag.readers.protocol import BaseReader
from surerag.recording import RecordedReader
from surerag.services import Encoder
from surerag.types import Passage
from surerag.world.questions import Question, is_correct
from surerag.world.regimes import regime
from surerag.world.spec import Hazard
from surerag_studies.asking import RememberingEncoder
from surerag_studies.edc2.contexts import ranked
from surerag_studies.formatting import points
from surerag_studies.judging import AliasEntailer
from surerag_studies.transfer import carrying
from surerag_studies.worlds import world_of

K, CANDIDATES = 5, 20
HAZARDS: Mapping[str, tuple[str, Hazard]] = MappingProxyType(
    {
        "altered copies": ("altered-copies", Hazard.ALTERED),
        "a namesake": ("namesakes", Hazard.NAMESAKE),
        "loud errors": ("loud-errors", Hazard.LOUD),
    }
)
VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "refined": {},
        "only removing": {"remove_only": True},
        "no self-evaluation": {"self_evaluation": False},
        "refill on certain": {"refill": "certain"},
        "the text's rules": {"variant": "paper"},
        "room for ten": {"max_chunks": 10},
    }
)
"""What is changed of the default: Table 4's ablations, the text's rules, and contexts that may grow."""


@dataclass(frozen=True, slots=True)
class VariantFigures:
    """One way to refine, on the uncertain questions.

    Attributes:
        name: Which.
        accuracy: Share of right answers.
        against_first: Accuracy less that of the first five passages.
        changed: Share of contexts that are not the first five any more.
        told: Share of contexts that hold the passages which tell the answer.
        rounds: Mean contexts measured.
        calls: Mean calls of reader and judge.
    """

    name: str
    accuracy: Proportion
    against_first: PairedDifference
    changed: float
    told: float
    rounds: float
    calls: float


@dataclass(frozen=True, slots=True)
class HazardFigures:
    """One kind of what misleads.

    Attributes:
        hazard: Which.
        n: Questions.
        certain: Share that is certain at first, and stays as it is.
        first_certain: Accuracy of these.
        first_uncertain: Accuracy of the others from the first five passages.
        first_told: Share of these contexts that hold the passages which tell the answer.
        variants: What refining makes of the others.
    """

    hazard: str
    n: int
    certain: Proportion
    first_certain: Proportion | None
    first_uncertain: Proportion | None
    first_told: float
    variants: tuple[VariantFigures, ...]


@dataclass(frozen=True, slots=True)
class DenseMisleading:
    """Every figure of the study."""

    seed: int
    n: int
    model: str
    encoder: str
    hazards: tuple[HazardFigures, ...]


def dense_misleading_study(
    reader: BaseReader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    hazards: Sequence[str] = tuple(HAZARDS),
    stages: Stages = lambda _: False,
) -> DenseMisleading:
    """Refine the contexts of questions about which candidates mislead.

    Args:
        reader: Rephrases, answers and judges its context; whether answers mean the same, the world says.
        encoder: Ranks, and finds what to refill with.
        seed: Of the worlds, one that nothing was tuned on.
        n: Questions for each hazard, at most.
        hazards: What misleads.
        stages: Told how far each stage is.
    """
    vectors, once = RememberingEncoder(encoder), RecordedReader(reader, Memory())
    found = []
    for hazard in hazards:
        name, wanted = HAZARDS[hazard]
        world = world_of(regime(name), 4 * n, seed)
        questions = [
            one
            for one in world.questions(4 * n)
            if one.hazard is wanted and one.misleading and one.gold_passages
        ][:n]
        drawn = []
        for question in questions:
            wrong = [world.passage[each] for each in question.misleading]
            known = {passage.id for passage in wrong}
            others = world.context(question, CANDIDATES, noise=0.2)
            gold = [one for one in others if one.id in question.gold_passages]
            spare = [one for one in others if one.id not in known and one not in gold]
            drawn.append([*gold, *wrong, *spare][:CANDIDATES])
        pools = ranked(drawn, [question.text for question in questions], vectors)
        base = ContextRefiner(
            once,
            AliasEntailer(questions),
            cache=DenseCache(),
            encoder=vectors,
            top_n=K,
            max_tokens=24,
            rephrase_tokens=64,
        )
        results: dict[str, list[RefinementResult]] = {}
        with counted_not_logged():
            for variant, changes in VARIANTS.items():
                cases = [(question.text, pool) for question, pool in zip(questions, pools, strict=True)]
                stage = stages(f"{hazard}: {variant}")
                results[variant] = base.with_options(**changes).run_many(cases, window=32, progress=stage)
        found.append(_figures(hazard, questions, pools, results))
    return DenseMisleading(seed, n, reader.name, encoder.name, tuple(found))


def _figures(
    hazard: str,
    questions: Sequence[Question],
    pools: Sequence[Sequence[Passage]],
    results: Mapping[str, Sequence[RefinementResult]],
) -> HazardFigures:
    first = [result.rounds[0].measured for result in results["refined"]]
    certain = [one.certain for one in first]
    right = [is_correct(question, one.answer) for question, one in zip(questions, first, strict=True)]
    at = [place for place, sure in enumerate(certain) if not sure]
    return HazardFigures(
        hazard=hazard,
        n=len(questions),
        certain=share(certain),
        first_certain=share([right[p] for p in range(len(right)) if certain[p]]) if any(certain) else None,
        first_uncertain=share([right[p] for p in at]) if at else None,
        first_told=float(np.mean([_tells(questions[p], pools[p][:K]) for p in at])) if at else float("nan"),
        variants=tuple(_of(name, rows, questions, pools, right, at) for name, rows in results.items())
        if at
        else (),
    )


def _of(
    name: str,
    rows: Sequence[RefinementResult],
    questions: Sequence[Question],
    pools: Sequence[Sequence[Passage]],
    right: Sequence[bool],
    at: Sequence[int],
) -> VariantFigures:
    made = [is_correct(questions[place], rows[place].answer or "") for place in at]
    firsts = [{passage.id for passage in pools[place][:K]} for place in at]
    changed = [
        {passage.id for passage in rows[place].passages} != ids for place, ids in zip(at, firsts, strict=True)
    ]
    return VariantFigures(
        name,
        share(made),
        paired_difference(made, [right[place] for place in at]),
        float(np.mean(changed)),
        float(np.mean([_tells(questions[place], rows[place].passages) for place in at])),
        float(np.mean([len(rows[place].rounds) for place in at])),
        float(np.mean([rows[place].calls.total for place in at])),
    )


def _tells(question: Question, passages: Sequence[Passage]) -> bool:
    return set(question.gold_passages) <= {passage.id for passage in passages}


def study_tables(study: DenseMisleading) -> RenderableType:
    """Return the study's tables."""
    parts: list[RenderableType] = [
        Text.assemble(
            ("DENSE-RAG's refinement among candidates that mislead", "bold"),
            f", seed {study.seed}, n = {study.n:,} a hazard at most\n",
            f"Reader {study.model}; encoder {study.encoder}; {CANDIDATES} candidates, k = {K}\n",
            "Differences are paired, in points, with 95 % intervals, on the questions that are uncertain.",
        )
    ]
    for one in study.hazards:
        table = plain_table(
            f"{one.hazard}: n = {one.n}, certain {percent_with_interval(one.certain)} %", padding=(0, 1, 0, 0)
        )
        for name in ("Context", "Accuracy, %", "vs first five", "Changed, %", "Told, %", "Rounds", "Calls"):
            table.add_column(name, justify="left" if name == "Context" else "right")
        if one.first_certain is not None:
            table.add_row("certain, first five", percent_with_interval(one.first_certain))
        if one.first_uncertain is not None:
            table.add_row(
                "first five",
                percent_with_interval(one.first_uncertain),
                "",
                "",
                f"{100 * one.first_told:.0f}",
            )
        for row in one.variants:
            table.add_row(
                row.name,
                percent_with_interval(row.accuracy),
                points(row.against_first),
                f"{100 * row.changed:.0f}",
                f"{100 * row.told:.0f}",
                f"{row.rounds:.1f}",
                f"{row.calls:.0f}",
            )
        parts.append(carrying(table, "numbers of rounds, and that calls are bounded"))
    return Group(*parts)
