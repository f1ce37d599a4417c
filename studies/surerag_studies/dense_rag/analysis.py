"""From measured questions to the figures of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from surerag import RefinementResult
from surerag.evaluation.comparison.significance import holm
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.gaps import by_interval, by_threshold, difference, gap_at, trend
from surerag.evaluation.statistics import Proportion, share
from surerag.types import Passage
from surerag.world.questions import is_correct
from surerag_studies.dense_rag.asking import FULL, Record, Recut
from surerag_studies.dense_rag.cases import tells_all
from surerag_studies.dense_rag.results import Against, CutRow, MethodRow, RetrieverRow, Understanding

PLAIN, CHUNKING, RANKED = "plain", "chunked", "ranked anew"


def understanding(records: Sequence[Record], k: int, threshold: float) -> Understanding:
    """Return Figures 2 to 4, and the control of section 6.2."""
    scores = [record.score for record in records]
    right = [record.correct for record in records]
    edited = [float(np.mean(record.edited)) for record in records]
    return Understanding(
        k=k,
        n=len(records),
        intervals=by_interval(scores, right),
        gap=gap_at(scores, right, threshold),
        thresholds=by_threshold(scores, right),
        trend=trend(scores, right),
        unchanged=share(right),
        edited=paired_difference(edited, right),
        rephrased=paired_difference([record.rephrased for record in records], right),
    )


def retriever_rows(records: Sequence[Record]) -> tuple[RetrieverRow, ...]:
    """Return what each retriever's contexts are like, best accuracy first."""
    rows = []
    for name in dict.fromkeys(record.case.retriever for record in records):
        some = [record for record in records if record.case.retriever == name]
        certain = [record.correct for record in some if not record.uncertain]
        others = [record.correct for record in some if record.uncertain]
        rows.append(
            RetrieverRow(
                name=name,
                told=share([tells_all(r.result.passages, r.case.facts) for r in some]),
                accuracy=share([r.correct for r in some]),
                uncertain=share([r.uncertain for r in some]),
                gap=difference(share(certain), share(others)) if certain and others else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.accuracy.value))


def cut_rows(records: Sequence[Record], recuts: Mapping[str, Sequence[Recut]]) -> tuple[CutRow, ...]:
    """Return Table 3: passages as retrieved, other cuts of their documents, and the adaptive choice."""
    uncertain = np.array([record.uncertain for record in records])
    before = np.array([record.correct for record in records])
    rows = [_cut_row("as retrieved", before, before, uncertain, _told_before(records), first=True)]
    for name, found in recuts.items():
        right = np.array([one.correct for one in found])
        told = [tells_all(one.passages, r.case.facts) for one, r in zip(found, records, strict=True)]
        rows.append(_cut_row(name, right, before, uncertain, told))
    semantic = np.array([one.correct for one in recuts["semantic"]])
    told = [
        tells_all(one.passages if r.uncertain else r.result.passages, r.case.facts)
        for one, r in zip(recuts["semantic"], records, strict=True)
    ]
    rows.append(_cut_row("adaptive", np.where(uncertain, semantic, before), before, uncertain, told))
    return tuple(rows)


def _told_before(records: Sequence[Record]) -> list[bool]:
    return [tells_all(record.result.passages, record.case.facts) for record in records]


def _cut_row(
    name: str,
    right: np.ndarray,
    before: np.ndarray,
    uncertain: np.ndarray,
    told: Sequence[bool],
    *,
    first: bool = False,
) -> CutRow:
    def of(part: np.ndarray) -> tuple[Proportion | None, PairedDifference | None]:
        if not part.any():
            return None, None
        return share(right[part]), None if first else paired_difference(right[part], before[part])

    (certain, on_certain), (doubtful, on_uncertain) = of(~uncertain), of(uncertain)
    known = np.asarray(told)[uncertain]
    return CutRow(name, certain, doubtful, on_certain, on_uncertain, share(known) if known.size else None)


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """What one method made of the uncertain questions.

    Attributes:
        correct: Whether each answer is right.
        contexts: What each is from.
        results: The refiner's own record; empty for methods that do not refine.
        scores: DENSE of each context, where it was measured.
    """

    correct: tuple[bool, ...]
    contexts: tuple[tuple[Passage, ...], ...]
    results: tuple[RefinementResult, ...] = ()
    scores: tuple[float, ...] = ()


def answered(
    records: Sequence[Record],
    recuts: Mapping[str, Sequence[Recut]],
    refined: Mapping[str, Sequence[RefinementResult]],
) -> dict[str, Answered]:
    """Gather what every method made of the uncertain questions, in the order of the tables.

    Args:
        records: The uncertain questions.
        recuts: Their answers from other cuts.
        refined: What each variant of the refiner did.
    """
    found = {
        PLAIN: Answered(
            tuple(record.correct for record in records),
            tuple(record.result.passages for record in records),
            scores=tuple(record.score for record in records),
        )
    }
    for name, cut in ((RANKED, "ranked anew"), (CHUNKING, "semantic")):
        some = recuts[cut]
        found[name] = Answered(tuple(one.correct for one in some), tuple(one.passages for one in some))
    for name, results in refined.items():
        found[name] = Answered(
            tuple(
                is_correct(record.case.question, result.answer or "")
                for record, result in zip(records, results, strict=True)
            ),
            tuple(result.passages for result in results),
            tuple(results),
            tuple(result.score for result in results if result.score is not None),
        )
    return found


def method_rows(records: Sequence[Record], found: Mapping[str, Answered]) -> tuple[MethodRow, ...]:
    """Return Tables 1 and 4: the full method against what it is made of, and every ablation against it."""
    wanted = [(RANKED, PLAIN), (CHUNKING, PLAIN), (CHUNKING, RANKED), (FULL, PLAIN), (FULL, CHUNKING)]
    wanted += [(name, FULL) for name in found if name not in (PLAIN, RANKED, CHUNKING, FULL)]
    raw = [_sign_test(found[name].correct, found[other].correct) for name, other in wanted]
    corrected = holm([p for _, _, p in raw])
    against = {
        pair: Against(
            pair[1],
            paired_difference(found[pair[0]].correct, found[pair[1]].correct),
            gained,
            lost,
            p,
            p_corrected,
        )
        for pair, (gained, lost, p), p_corrected in zip(wanted, raw, corrected, strict=True)
    }
    return tuple(
        MethodRow(
            name=name,
            accuracy=share(one.correct),
            against=tuple(row for (method, _), row in against.items() if method == name),
            score=float(np.mean(one.scores)) if one.scores else None,
            told=share(
                [tells_all(c, record.case.facts) for c, record in zip(one.contexts, records, strict=True)]
            ),
            passages=float(np.mean([len(context) for context in one.contexts])),
            rounds=float(np.mean([len(result.rounds) for result in one.results])) if one.results else None,
            asked=(
                float(np.mean([r.calls.answers + r.calls.evaluations for r in one.results]))
                if one.results
                else None
            ),
        )
        for name, one in found.items()
    )


def _sign_test(first: Sequence[bool], second: Sequence[bool]) -> tuple[int, int, float]:
    """Return what the first alone gets right, what the second alone does, and the exact p-value."""
    gained = sum(a and not b for a, b in zip(first, second, strict=True))
    lost = sum(b and not a for a, b in zip(first, second, strict=True))
    p = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return gained, lost, p
