"""What a run shows, in sentences: which system to take, what it costs, and what cannot be said yet."""

from __future__ import annotations

import math
from collections.abc import Mapping

from surerag.evaluation.run import FAILURES, EvaluationRun
from surerag.evaluation.statistics import (
    SIGNIFICANCE,
    Comparison,
    compare_systems,
    pairs,
    questions_to_show,
    summarize,
)
from surerag.text import printable

MARGIN = 0.02
"""Loss that its interval must exclude for a cheaper system to be recommended."""
SAVING = 0.1
"""Share of searches or tokens that makes it cheaper."""
MANY = 10_000
"""Questions above which no number is told."""
WORTH = "delta_seper"
"""The score of contexts, of which more is better."""
NO_CANDIDATES = ("oracle",)
"""Systems that show what is possible and cannot be taken."""
_ALWAYS = ("plain", "rewritten", "compressed", "selected", "answered", "refined", "strong")
_NEVER = ("none", "oracle")


def base_of(run: EvaluationRun, system: str) -> str:
    """Return the pipeline that a system was built of, such as ``"lazy"`` for lazy@0.8; empty for others."""
    return str(run.settings(system).get("system", "")).partition("+")[0].partition("@")[0]


def searched(run: EvaluationRun, system: str) -> float | None:
    """Return the share of questions that a system searched for; None where that is not known."""
    base = base_of(run, system)
    if base in (*_ALWAYS, *_NEVER):
        return float(base in _ALWAYS)
    flags = [row.answer.acted for row in run.answered(system).values() if row.answer]
    flags = [flag for flag in flags if flag is not None]
    return sum(map(bool, flags)) / len(flags) if flags else None


def findings(run: EvaluationRun, baseline: str = "", labels: Mapping[str, str] | None = None) -> list[str]:
    """Return a recommendation, what a run shows of each system, and its costs; labels are names to show."""
    systems = run.comparable
    baseline = baseline or (systems[0] if systems else "")
    names = {system: printable((labels or {}).get(system, system)) for system in run.systems}
    others = [system for system in systems if system != baseline]
    sentences: list[str] = []
    compared: dict[str, Comparison] = {}
    if not run.measures:
        sentences.append(
            "Nothing says which answers are right: there are no reference answers, or no answer could be "
            "measured."
        )
    elif others and baseline in systems:
        compared = {one.system: one for one in compare_systems(run, run.measures[0], baseline)}
        if run.measures[0] in (*run.metrics, WORTH):  # of another score more may be worse
            sentences += _recommendation(run, compared, baseline, names)
        others.sort(key=lambda name: -compared[name].difference.value if name in compared else math.inf)
    for system in others:
        one = compared.get(system)
        difference = "" if one is None else _difference(run, run.measures[0], one, baseline, names)
        sentences.append(f"{difference} {_costs(run, system, baseline)}".strip())
    return [*filter(None, sentences), *problems(run, names)]


def problems(run: EvaluationRun, names: Mapping[str, str]) -> list[str]:
    """Return which systems failed, or were asked too few questions to be compared."""
    sentences, comparable = [], run.comparable
    for system in run.systems:
        rows = [row for row in run.rows if row.system == system]
        errors = [row.error for row in rows if row.error]
        if system not in comparable:
            text = (
                f"{names[system]} was asked {len(rows)} of {len(run.questions)} questions and is not compared"
            )
            if len(errors) >= FAILURES:
                text += f": it failed on {FAILURES} in a row ({printable(errors[-1])[:200]})"
            sentences.append(f"{text}.")
        elif errors:
            latest = printable(errors[-1])[:200]
            sentences.append(f"{names[system]} failed on {len(errors)} of {len(rows)} questions ({latest}).")
    return sentences


def _recommendation(
    run: EvaluationRun, compared: Mapping[str, Comparison], baseline: str, names: Mapping[str, str]
) -> list[str]:
    wording = _WORTH_MORE if run.measures[0] == WORTH else _ANSWERS_BETTER
    can = {name: one for name, one in compared.items() if base_of(run, name) not in NO_CANDIDATES}
    shown = {name: one for name, one in can.items() if one.adjusted < SIGNIFICANCE}
    better = [name for name, one in shown.items() if one.difference.value > 0]
    cheaper = [name for name, one in can.items() if _is_cheaper(run, one, baseline)]
    other, why = names[baseline], f"{wording[0]} {names[baseline]} here"
    if wording is _ANSWERS_BETTER and not better:
        better, why = cheaper, f"it is cheaper, and loses less than {100 * MARGIN:g} points against {other}"
    if better:
        best = names[max(better, key=lambda name: can[name].difference.value)]
        return [f"Take {best}: {why}."]
    if not can:
        return []
    if len(shown) == len(can):
        return [f"Stay with {other}: every other system {wording[1]}."]
    return [f"Stay with {other} for now: no other system is shown to {wording[2]}."]


_ANSWERS_BETTER = ("it answers better than", "answers worse", "answer better")
_WORTH_MORE = (
    "its contexts are worth more to the model than those of",
    "is worth less to the model",
    "be worth more to the model",
)


def _is_cheaper(run: EvaluationRun, one: Comparison, baseline: str) -> bool:
    """Whether a system saves searches or tokens, takes more of neither, and loses less than the margin."""
    if one.difference.interval is None or one.difference.interval.lower < -MARGIN:
        return False
    changes = [_change(run, one.system, baseline, "tokens")]
    mine, theirs = searched(run, one.system), searched(run, baseline)
    if mine is not None and theirs:
        changes.append(mine / theirs - 1)
    return any(change is not None and change <= -SAVING for change in changes) and not any(
        change is not None and change > SAVING for change in changes
    )


def _difference(
    run: EvaluationRun, measure: str, one: Comparison, baseline: str, names: Mapping[str, str]
) -> str:
    name, other, n = names[one.system], names[baseline], one.difference.n
    right = measure in run.metrics
    # A score of a system may have any size; shares are told in points.
    reach = f"{one.difference.text('+', 100, 1)} points" if right else f"{one.difference.value:+.3g}"
    levels = summarize(run, measure)
    both = [
        f"{100 * e.value:.1f} %" if right else f"{e.value:.3g}"
        for s in (one.system, baseline)
        if (e := levels[s])
    ]
    what = {"contains": "right answers", "exact_match": "exact answers"}.get(measure, measure)
    if one.adjusted < SIGNIFICANCE:
        word = "better" if one.difference.value > 0 else "worse"
        if not right:
            word = "higher" if one.difference.value > 0 else "lower"
        verb = "answers" if right else f"has a {measure} that is"
        return f"{name} {verb} {word} than {other}: {both[0]} against {both[1]}, {reach}, {n} questions."
    text = (
        f"No difference in {what} is shown between {name} ({both[0]}) and {other} ({both[1]}) with {n} "
        f"questions: {reach}."
    )
    tests = len(run.comparable) - 1
    size = questions_to_show(*pairs(run, one.system, baseline, measure), tests=tests)
    if size is None:
        return f"{text} They did equally well."
    if size > MANY:
        return f"{text} A difference as small as here would take more than {MANY:,} questions."
    return f"{text} If the difference is as large as here, about {_rounded(size)} questions would show it."


def _costs(run: EvaluationRun, system: str, baseline: str) -> str:
    """Return what a system searches and takes, against the baseline."""
    parts = []
    for cost, unit, less in (("tokens", "tokens", "fewer"), ("seconds", "time", "less")):
        change = _change(run, system, baseline, cost)
        if change is None:
            continue
        if round(100 * change) == 0:
            parts.append(f"as {'many' if cost == 'tokens' else 'much'} {unit}")
        elif change > 2:
            parts.append(f"{1 + change:.1f} times the {unit}")
        else:
            parts.append(f"{100 * abs(change):.0f} % {'more' if change > 0 else less} {unit}")
    share, of_baseline = searched(run, system), searched(run, baseline)
    text = f"It takes {' and '.join(parts)}" if parts else ""
    if share is not None and share != of_baseline:
        text = f"It searches for {100 * share:.0f} % of the questions" + (
            f", and t{text[4:]}" if text else ""
        )
    return f"{text}." if text else ""


def _change(run: EvaluationRun, system: str, baseline: str, cost: str) -> float | None:
    """Return the relative change of a mean cost against the baseline, on the questions of both."""
    a, b = run.values(system, cost), run.values(baseline, cost)
    keys = [key for key in a if key in b]
    total = sum(b[key] for key in keys)
    return sum(a[key] for key in keys) / total - 1 if total else None


def _rounded(n: int) -> str:
    """Return a number of questions in two digits."""
    digits = max(0, len(str(n)) - 2)
    return f"{math.ceil(n / 10**digits) * 10**digits:,}"
