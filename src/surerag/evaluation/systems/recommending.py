"""A recommendation in a paragraph: which system to use, what says so, and what is open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from surerag.evaluation.ci.condition import SHARES
from surerag.evaluation.systems.results import Difference, Recommendation, SystemFigures, Verdict


def recommend(
    systems: Sequence[SystemFigures],
    verdicts: Sequence[Verdict],
    differences: Sequence[Difference],
    baseline: str,
    measure: str,
    cost: str,
    margin: float,
    settled: Callable[[str, Sequence[str]], Collection[str]] = lambda chosen, rivals: (),
) -> Recommendation:
    """Choose a system by what was shown.

    Of those that are shown to be better than the baseline, the best; if there is none, the cheapest of those
    that are shown to lose less than what matters and to cost less; and else the baseline. It is decided where
    no other system may still be the better choice: one that is not shown to be worse, or to gain less than
    what matters.

    Args:
        systems: Their figures.
        verdicts: How each stands to the baseline.
        differences: In all measures and costs.
        baseline: Its name.
        measure: What counts.
        cost: What "cheaper" is about.
        margin: What matters.
        settled: From a system and its rivals to those that are shown to be no better than it by what matters.
    """
    of = {one.name: one for one in systems}
    by = {one.system: one for one in verdicts}
    gap = {one.system: one for one in differences if one.measure == measure}
    better = [one.system for one in verdicts if one.standing == "better"]
    saving = [one.system for one in verdicts if one.standing == "no worse" and one.cheaper]
    if better:
        chosen = max(better, key=lambda name: gap[name].value)
    elif saving:
        chosen = min(saving, key=lambda name: of[name].costs.get(cost, 0.0))
    else:
        chosen = baseline
    rivals = [
        one.system
        for one in verdicts
        if one.system != chosen
        and (
            one.standing == "undecided"
            or (one.standing in ("no worse", "no better") and one.cheaper is None and not better)
        )
    ]
    done = settled(chosen, rivals) if chosen != baseline else ()
    undecided = tuple(name for name in rivals if name not in done)
    waits = [one.more for one in verdicts if one.system in undecided and one.more is not None]
    more = max(waits, default=None)
    text = " ".join(
        [
            _choice(chosen, baseline, by, gap, of, measure, cost),
            *_rivals(chosen, better, gap),
            *_others(chosen, verdicts, gap, measure, margin),
            *_open(undecided, more, by, of, gap, measure, cost, margin),
        ]
    )
    return Recommendation(chosen, not undecided, text, undecided, more)


def _choice(
    chosen: str,
    baseline: str,
    by: dict[str, Verdict],
    gap: dict[str, Difference],
    of: dict[str, SystemFigures],
    measure: str,
    cost: str,
) -> str:
    if chosen == baseline:
        return f"Stay with {baseline}: no other system was shown to be better, or to be as good for less."
    one = gap[chosen]
    spent = _times(of[chosen].costs.get(cost), of[baseline].costs.get(cost), cost)
    if by[chosen].standing == "better":
        return (
            f"Use {chosen}: its {_named(measure)} is {_difference(one, measure)} above that of {baseline} "
            f"on {one.n:,} questions{spent}."
        )
    return (
        f"Use {chosen}: its {_named(measure)} is {_difference(one, measure)} of that of {baseline} on "
        f"{one.n:,} questions, which excludes a loss that matters{spent}."
    )


def _rivals(chosen: str, better: Sequence[str], gap: dict[str, Difference]) -> list[str]:
    rest = [name for name in better if name != chosen]
    if not rest:
        return []
    return [
        f"{_listed(rest)} {'is' if len(rest) == 1 else 'are'} better as well; which is best was not tested."
    ]


def _others(
    chosen: str, verdicts: Sequence[Verdict], gap: dict[str, Difference], measure: str, margin: float
) -> list[str]:
    told = []
    for standing, words in (
        ("worse", "shown to be worse"),
        ("no better", f"shown to gain less than {amount(margin, measure)}"),
        ("no worse", f"shown to lose less than {amount(margin, measure)}"),
    ):
        names = [
            f"{one.system} ({gap[one.system].value * (100 if measure in SHARES else 1):+.1f})"
            for one in verdicts
            if one.standing == standing and one.system != chosen
        ]
        if names:
            told.append(f"{_listed(names)} {'was' if len(names) == 1 else 'were'} {words}.")
    return told


def _open(
    undecided: Sequence[str],
    more: int | None,
    by: dict[str, Verdict],
    of: dict[str, SystemFigures],
    gap: dict[str, Difference],
    measure: str,
    cost: str,
    margin: float,
) -> list[str]:
    """Say what is open: of some systems all, of others whether they are better, or only what they cost."""
    told = []
    unsure = [name for name in undecided if by[name].standing == "undecided"]
    if unsure:
        names = [f"{name} ({_interval(gap[name], measure)})" for name in unsure if name in gap]
        told.append(f"Undecided: {_listed(names)}.")
    for standing, better in (("no worse", "is better"), ("no better", "")):
        names = [name for name in undecided if by[name].standing == standing]
        known = all(of[name].costs.get(cost) for name in names)
        cheaper = f"takes {'less' if cost in ('money', 'seconds') else 'fewer'} {cost}"
        asked = " or ".join(filter(None, (better, cheaper if known else "")))
        if names and asked:
            told.append(f"It is open whether {_listed(names)} {asked}.")
        if names and not known:
            told.append(f"What answers of {_listed(names)} cost is not known.")
    if told and more is not None:
        shown = f"would show a difference, or that it is less than {amount(margin, measure)}"
        told.append(
            f"If things are as they look, about {more:,} more questions {shown} (four times in five)."
        )
    return told


def amount(value: float, measure: str) -> str:
    """Write a difference in the unit of its measure.

    Example:
        >>> amount(0.05, "accuracy"), amount(0.05, "delta_seper")
        ('5 points', '0.05')
    """
    if measure not in SHARES:
        return f"{value:g}"
    return f"{100 * value:g} point{'' if round(100 * value, 6) == 1 else 's'}"


def _difference(one: Difference, measure: str) -> str:
    if measure in SHARES:
        return f"{100 * one.value:+.1f} points [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
    return f"{one.value:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"


def _interval(one: Difference, measure: str) -> str:
    return _difference(one, measure).replace(" points", "")


def _named(measure: str) -> str:
    return {"agreement": "agreement with the reference"}.get(measure, measure.replace("_", " "))


def _times(mine: float | None, other: float | None, cost: str) -> str:
    if mine is None or not other:
        return ""
    return f", for {mine / other:.2f} times the {cost.replace('_', ' ')}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
