"""Claims are judged by intervals and corrected p-values, never by a bare mean."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from surerag.evaluation.differences import paired_difference
from surerag.evaluation.gaps import by_interval, by_threshold, gap_at, trend
from surerag.evaluation.statistics import share
from surerag.types import Passage
from surerag_studies.dense_rag.analysis import Answered, method_rows
from surerag_studies.dense_rag.asking import FULL
from surerag_studies.dense_rag.results import Claim, CutRow, MethodRow, Sameness, Understanding
from surerag_studies.dense_rag.study import claims


class Known:
    """A record of which only the facts are looked at."""

    class case:
        facts = ()


def understood(scores: Sequence[float], right: Sequence[bool], edited: Sequence[float]) -> Understanding:
    return Understanding(
        k=5,
        n=len(scores),
        intervals=by_interval(scores, right),
        gap=gap_at(scores, right, 0.2),
        thresholds=by_threshold(scores, right),
        trend=trend(scores, right),
        unchanged=share(right),
        edited=paired_difference(edited, right),
        rephrased=paired_difference(edited, right),
    )


def cut(name: str, certain: Sequence[bool], before: Sequence[bool]) -> CutRow:
    return CutRow(name, share(certain), None, paired_difference(certain, before), None, None)


SAME, OTHER = Sameness(50, 50, 50), Sameness(50, 50, 49)
SCORES = [0.0] * 100 + [1.0] * 100
FALLING = [True] * 90 + [False] * 10 + [True] * 20 + [False] * 80


def test_what_is_clear_holds_what_is_turned_round_does_not_and_noise_is_undecided() -> None:
    semantic = cut("semantic", [False] * 50, [True] * 50)
    good = claims([understood(SCORES, FALLING, [float(x) for x in FALLING])], SAME, [semantic], [])
    assert {claim.holds for claim in good} == {True}
    rising = [not right for right in FALLING]
    far = [0.0 if right else 1.0 for right in rising]
    bad = claims(
        [understood(SCORES, rising, [0.0] * 200)], OTHER, [cut("semantic", [True] * 50, [False] * 50)], []
    )
    assert {claim.holds for claim in bad} == {False}
    assert len(good) == len(bad) == 7
    flat = [at % 2 == 0 for at in range(200)]
    noise = claims([understood(SCORES, flat, far)], SAME, [cut("semantic", flat, flat)], [])
    judged_as = {claim.statement.split(",")[0]: claim.holds for claim in noise}
    assert judged_as["Accuracy falls as DENSE grows"] is None
    assert judged_as["Certain questions are answered better than uncertain ones"] is None


def answered(*right: bool) -> Answered:
    return Answered(right, ((Passage("a"),),) * len(right))


def judged_by(rows: Sequence[MethodRow]) -> tuple[Claim, ...]:
    understanding = understood(SCORES, FALLING, [0.0] * 200)
    return claims([understanding], SAME, [cut("semantic", [True], [True])], rows)


@pytest.mark.parametrize(("gained", "holds"), [(60, True), (3, None)])
def test_methods_are_judged_by_corrected_p_values(gained: int, holds: bool | None) -> None:
    n = 100
    plain = answered(*[False] * n)
    better = answered(*[True] * gained, *[False] * (n - gained))
    found = {"plain": plain, "ranked anew": plain, "chunked": plain, FULL: better, "only removing": plain}
    rows = method_rows([Known()] * n, found)  # type: ignore[list-item]
    judged = {claim.statement: claim for claim in judged_by(rows)}
    assert judged["Chunking and refinement help uncertain questions (Table 1)"].holds is holds
    assert judged["Chunking helps uncertain questions (Tables 1 and 3)"].holds is None
    ablation = judged["The default is better than “only removing” (Table 4)"]
    assert ablation.holds is holds
    assert ablation.finding.startswith(f"+{gained}.0 [")
    worse = method_rows([Known()] * n, {**found, FULL: plain, "only removing": better})  # type: ignore[list-item]
    [claim] = [one for one in judged_by(worse) if "only removing" in one.statement]
    assert claim.holds is (False if holds else None)


def test_comparisons_are_sign_tests_corrected_for_their_number() -> None:
    plain, better = answered(*[False] * 8, True), answered(*[True] * 6, *[False] * 3)
    rows = method_rows([Known()] * 9, {"plain": plain, "ranked anew": plain, "chunked": plain, FULL: better})  # type: ignore[list-item]
    [row] = [one for row in rows if row.name == FULL for one in row.against if one.other == "plain"]
    assert (row.gained, row.lost) == (6, 1)
    # Two tails of a binomial of 7: 2 (1 + 7) / 128.
    assert row.p == pytest.approx(0.125)
    assert row.p_corrected == pytest.approx(5 * 0.125)
