"""From counters to figures, tests and a recommendation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from surerag.errors import InputError
from surerag.evaluation.ci.condition import COSTS, SHARES
from surerag.evaluation.ci.operating import questions_for
from surerag.evaluation.ci.paired import LEAST, Judged, Pairs, judge_pair, tango_interval
from surerag.evaluation.comparison.significance import holm
from surerag.evaluation.statistics import Estimate, wilson_interval
from surerag.evaluation.systems.planning import questions_to_exclude, questions_to_show
from surerag.evaluation.systems.recommending import recommend
from surerag.evaluation.systems.results import Difference, Standing, SystemFigures, SystemsReport, Verdict
from surerag.evaluation.systems.scoring import MEASURES
from surerag.evaluation.systems.tally import Tally
from surerag.extras import extra

with extra("report"):
    from scipy import stats

_POWER = 0.8
"""Probability with which further questions are to decide something."""
_PREFERRED = ("accuracy", "agreement", "faithfulness", "self_consistency")


@dataclass(frozen=True, slots=True)
class Aim:
    """What a comparison is about.

    Attributes:
        baseline: What others are compared with; empty for the first system.
        measure: What counts; empty for accuracy, and where there are no gold answers for the agreement with
            the baseline.
        cost: What "cheaper" is about; empty for money where all prices are known, and else for tokens.
        margin: Difference that matters, in the unit of the measure.
        confidence: Of intervals and verdicts.
    """

    baseline: str = ""
    measure: str = ""
    cost: str = ""
    margin: float = 0.05
    confidence: float = 0.95


def analyse(tally: Tally, aim: Aim, about: Mapping[str, Any]) -> SystemsReport:
    """Return what the counters say.

    Raises:
        InputError: If no question was answered by the baseline, or nothing that counts was measured.
    """
    baseline = aim.baseline or tally.systems[0]
    measure = aim.measure or next((name for name in _PREFERRED if tally.measured(name, baseline)), "")
    if not measure or not tally.measured(measure, baseline):
        told = "; ".join(f"{name}: {error}" for name, error in tally.first_errors.items())
        raise InputError(
            f"{baseline} answered no question that {measure or 'anything'} was measured on"
            + (f" ({told})" if told else ""),
            hint="give gold answers, or measure agreement, faithfulness or self-consistency",
        )
    everywhere = all(tally.measured("money", name) == tally.measured("calls", name) for name in tally.systems)
    known = everywhere and len(tally.currencies) == 1
    cost = aim.cost or ("money" if known else "tokens")
    differences = _differences(tally, baseline, aim)
    verdicts = _verdicts(tally, differences, baseline, measure, cost, aim)
    figures = [_figures(tally, name, aim.confidence) for name in tally.systems]
    systems = tuple(_on_front(one, figures, measure, cost) for one in figures)
    return SystemsReport(
        questions=tally.questions,
        incomplete=tally.incomplete,
        measure=measure,
        cost=cost,
        currency=next(iter(tally.currencies)) if known else "",
        baseline=baseline,
        margin=aim.margin,
        confidence=aim.confidence,
        systems=systems,
        differences=tuple(differences),
        verdicts=tuple(verdicts),
        recommendation=recommend(
            systems,
            verdicts,
            differences,
            baseline,
            measure,
            cost,
            aim.margin,
            partial(_settled, tally, measure, aim),
        ),
        about=about,
        errors=tally.first_errors,
    )


def _figures(tally: Tally, name: str, confidence: float) -> SystemFigures:
    measured = {one: n for one in MEASURES if (n := tally.measured(one, name))}
    read = tally.pairs("prompt_tokens", name, name).first
    known = tally.known_retrieved[name]
    return SystemFigures(
        name=name,
        n=tally.questions - tally.failed[name],
        failed=tally.failed[name],
        measures={one: _mean(tally.pairs(one, name, name), one, confidence) for one in measured},
        measured=measured,
        costs={one: pairs.first / pairs.n for one in COSTS if (pairs := tally.pairs(one, name, name)).n},
        retrieved=tally.retrieved[name] / known if known else None,
        cached=tally.cached[name] / read if read else 0.0,
        pareto=False,
    )


def _mean(pairs: Pairs, measure: str, confidence: float) -> Estimate:
    if pairs.is_binary:
        share = wilson_interval(round(pairs.first), pairs.n, confidence)
        return Estimate(share.value, share.low, share.high)
    value = pairs.first / pairs.n
    reach = _reach(pairs.spread(0.0), pairs.n, confidence)
    if measure in SHARES:
        return Estimate(value, max(value - reach, 0.0), min(value + reach, 1.0))
    return Estimate(value, value - reach, value + reach)


def _reach(spread: float, n: int, confidence: float) -> float:
    return float(stats.t.ppf((1 + confidence) / 2, n - 1)) * spread / math.sqrt(n) if n > 1 else math.inf


def _on_front(one: SystemFigures, all_: Sequence[SystemFigures], measure: str, cost: str) -> SystemFigures:
    def place(figures: SystemFigures) -> tuple[float, float] | None:
        if measure not in figures.measures or cost not in figures.costs:
            return None
        return figures.measures[measure].value, -figures.costs[cost]

    mine = place(one)
    others = [found for other in all_ if other is not one and (found := place(other)) is not None]
    beaten = mine is None or any(
        other[0] >= mine[0] and other[1] >= mine[1] and other != mine for other in others
    )
    return replace(one, pareto=not beaten)


def _differences(tally: Tally, baseline: str, aim: Aim) -> list[Difference]:
    found = []
    for measure in (*MEASURES, *COSTS):
        pairs = {
            name: tally.pairs(measure, name, baseline)
            for name in tally.systems
            if name != baseline and tally.pairs(measure, name, baseline).n
        }
        corrected = holm([_p(one) for one in pairs.values()])
        for (name, one), p_holm in zip(pairs.items(), corrected, strict=True):
            low, high = _interval(one, aim.confidence)
            found.append(
                Difference(
                    measure,
                    name,
                    baseline,
                    one.n,
                    one.difference(),
                    low,
                    high,
                    _p(one),
                    p_holm,
                    one.lost,
                    one.gained,
                    one.spread(),
                )
            )
    return found


def _p(pairs: Pairs) -> float:
    """Return the two-sided p-value of "they do not differ": exact for right and wrong answers, else by t."""
    if pairs.is_binary:
        fewer = min(pairs.lost, pairs.gained)
        return min(1.0, 2 * float(stats.binom.cdf(fewer, pairs.lost + pairs.gained, 0.5)))
    spread = pairs.spread()
    if pairs.n < 2 or spread == 0:
        return 1.0 if pairs.difference() == 0 or pairs.n < LEAST else 0.0
    return 2 * float(stats.t.sf(abs(pairs.difference()) * math.sqrt(pairs.n) / spread, pairs.n - 1))


def _interval(pairs: Pairs, confidence: float) -> tuple[float, float]:
    if pairs.is_binary:
        return tango_interval(pairs.n, pairs.lost, pairs.gained, confidence)
    reach = _reach(pairs.spread(), pairs.n, confidence)
    return pairs.difference() - reach, pairs.difference() + reach


def _verdicts(
    tally: Tally, differences: Sequence[Difference], baseline: str, measure: str, cost: str, aim: Aim
) -> list[Verdict]:
    """Say how each system stands; each kind of statement is corrected for the number of systems."""
    others = [one for one in differences if one.measure == measure]
    tail = 1 - aim.confidence
    no_worse = _corrected([judge_pair(tally.pairs(measure, o.system, baseline), aim.margin) for o in others])
    no_better = _corrected([judge_pair(tally.pairs(measure, baseline, o.system), aim.margin) for o in others])
    spent = {one.system: one for one in differences if one.measure == cost and one.n >= LEAST}
    found = []
    for place, one in enumerate(others):
        standing: Standing = "undecided"
        if one.p_holm <= tail and one.value > 0:
            standing = "better"
        elif one.p_holm <= tail and one.value < 0 and no_worse[place] > tail:
            standing = "worse"
        elif no_worse[place] <= tail:
            standing = "no worse"
        elif no_better[place] <= tail:
            standing = "no better"
        price = spent.get(one.system)
        cheaper = None if price is None or price.p_holm > tail else price.value < 0
        more = None if standing != "undecided" else _more(one, aim, len(others))
        found.append(Verdict(one.system, standing, cheaper, more))
    return found


def _settled(tally: Tally, measure: str, aim: Aim, chosen: str, rivals: Sequence[str]) -> list[str]:
    """Return the rivals against which the chosen system is shown to lose less than what matters."""
    p_values = _corrected([judge_pair(tally.pairs(measure, chosen, one), aim.margin) for one in rivals])
    return [one for one, p in zip(rivals, p_values, strict=True) if p <= 1 - aim.confidence]


def _corrected(tested: Sequence[Judged]) -> list[float]:
    return holm([one.p_pass for one in tested])


def _more(one: Difference, aim: Aim, tests: int) -> int | None:
    """Return how many further questions decide a system: that it differs as it seems to, or by too little."""
    tail = (1 - aim.confidence) / tests
    shown = questions_to_show(one.value, one.spread, alpha=tail)
    excluded = (
        questions_for(aim.margin, (one.lost + one.gained) / one.n, wanted=_POWER, confidence=1 - tail)
        if one.lost + one.gained or one.spread == 0
        else questions_to_exclude(aim.margin, one.spread, alpha=tail)
    )
    wanted = [n for n in (shown, excluded) if n is not None]
    return max(min(wanted) - one.n, 1) if wanted else None
