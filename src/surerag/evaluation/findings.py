"""State the results of an evaluation run in sentences, with a recommendation of one system."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from surerag.certainty import DEFAULT_MEASURE, NO_WORDS
from surerag.evaluation.causes import Causes, causes_of, remedy
from surerag.evaluation.certainty import SurestAnswers, surest_answers_by_system
from surerag.evaluation.passages import excludes_loss, fewest, passage_counts, questions_to_exclude
from surerag.evaluation.pipelines import PIPELINES, pipeline_of
from surerag.evaluation.run import FAILURES, Run
from surerag.evaluation.statistics import (
    COSTS,
    SIGNIFICANCE,
    Comparison,
    compare_systems,
    pairs,
    questions_to_show,
    summarize,
)
from surerag.evaluation.systems import EvaluationAnswer
from surerag.measures.certainty import indication_text
from surerag.measures.statistics import Estimate, paired_difference
from surerag.methods.lazy_rag.gates import AbstentionGate
from surerag.text import counted, printable

MARGIN = 0.02
"""A cheaper system is recommended only if the interval of its difference from the baseline excludes a loss of
mean score of this size."""
SAVING = 0.1
"""Minimum share of searches, tokens, calls or seconds that a system must save to count as cheaper."""
_NO_TIME = 0.01
"""Difference in seconds per question below which two systems count as equally fast."""
MANY = 10_000
"""Largest number of needed questions that a sentence states; a larger number becomes "more than 10,000"."""
WORTH = "delta_seper"
"""Name of the score ΔSePer of contexts; larger is better."""


def search_share(run: Run, system: str) -> Estimate | None:
    """Return the share of questions for which a system retrieved passages; None if it is unknown."""
    pipeline = pipeline_of(run.settings(system))
    if pipeline is not None and pipeline.searches is not None:
        return Estimate(float(pipeline.searches), None, len(run.answered(system)))
    return summarize(run, "searched")[system]


def findings(
    run: Run,
    baseline: str = "",
    labels: Mapping[str, str] | None = None,
    margin: float = MARGIN,
) -> list[str]:
    """Return the results of a run in sentences; the first sentence is the recommendation.

    Args:
        run: The run.
        baseline: Name of the system with which the others are compared; empty means the first system.
        labels: Names that replace the systems' names in the sentences.
        margin: Acceptable loss of the mean score, such as 0.02.
    """
    names = names_of(run, labels)
    return [
        *comparisons(run, baseline, names, margin),
        *gates(run, names),
        *causes(run, causes_of(run), baseline, names),
        *certainties(run, surest_answers_by_system(run), baseline, names),
        *numbers_of_passages(run, margin),
        *problems(run, names),
    ]


def names_of(run: Run, labels: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return, for each system, the name that sentences use.

    This is the system's name in ``labels``, or else a name such as "L-RAG (lazy@0.8)".
    """
    labels = {system: _with_method(run, system) for system in run.systems} | dict(labels or {})
    return {system: printable(labels[system]) for system in run.systems}


def _with_method(run: Run, system: str) -> str:
    steps = [step.partition("@")[0] for step in str(run.settings(system).get("system", "")).split("+")]
    titles = dict.fromkeys(PIPELINES[step].title for step in steps if step in PIPELINES)
    methods = [title for title in titles if title]
    return f"{_as_list(methods)} ({system})" if methods else system


def comparisons(run: Run, baseline: str, names: Mapping[str, str], margin: float = MARGIN) -> list[str]:
    """Return sentences: a recommendation, then each system's difference from the baseline and its costs."""
    systems = run.comparable
    baseline = baseline or (systems[0] if systems else "")
    others = [system for system in systems if system != baseline]
    sentences: list[str] = []
    compared: dict[str, Comparison] = {}
    if not run.measures:
        sentences.append(
            "It is not known which answers are right: there are no reference answers, or no answer could be "
            "measured."
        )
    elif others and baseline in systems:
        compared = {one.system: one for one in compare_systems(run, run.measures[0], baseline)}
        if run.measures[0] in (*run.metrics, WORTH):  # for other scores, larger may be worse
            sentences += _recommendation(run, compared, baseline, names, margin)
        others.sort(key=lambda name: -compared[name].difference.value if name in compared else math.inf)
    for system in others:
        one = compared.get(system)
        costs = _costs(run, system, baseline, names[system])
        if one is not None:
            difference = _difference(run, run.measures[0], one, baseline, names, margin)
            sentences.append(f"{difference} {costs}".strip())
        elif costs:
            sentences.append(f"Compared with {names[baseline]}, {costs}")
    return list(filter(None, sentences))


def gates(run: Run, names: Mapping[str, str]) -> list[str]:
    """Return a sentence for each method that could not use its default gate or metric with its model."""
    sentences = []
    for system in run.comparable:
        answers = [row.answer for row in run.answered(system).values() if row.answer]
        pipeline = pipeline_of(run.settings(system))
        if pipeline is None or not pipeline.decides_by:
            continue
        kind, default = pipeline.decides_by, pipeline.default_of_decision
        used = {answer.gate for answer in answers if answer.gate}
        if kind == "metric":
            used = {str(run.settings(system).get(kind, ""))}
        if not used or used == {default} or not _missing_in(answers):
            continue
        names_used = _as_list(sorted(used))
        deployed = "If you deploy this system with this model, it also uses this gate."
        if kind == "metric" or used != {AbstentionGate.name}:
            deployed = f'If you deploy this system with this model, pass {kind}="{names_used}".'
        sentences.append(
            f"{names[system]} used the {kind} {names_used} in place of the default {default}, because the "
            f"model returned {_missing_in(answers)}. {deployed}"
        )
    return sentences


def _missing_in(answers: Sequence[EvaluationAnswer]) -> str:
    reported = (answer.certainty for answer in answers if answer.certainty)
    certainties = [certainty for certainty in reported if certainty.reason != NO_WORDS]
    if not certainties or any(DEFAULT_MEASURE in one.uncertainties for one in certainties):
        return ""
    return (
        "no alternatives to its tokens" if any(one.measure for one in certainties) else "no log-probabilities"
    )


def causes(run: Run, why: Causes, baseline: str, names: Mapping[str, str]) -> list[str]:
    """Return sentences that say what to improve in the baseline, and which systems report no passages."""
    baseline = baseline or next(iter(run.comparable), "")
    sentences = [remedy(why, baseline, names[baseline]) if baseline in names else ""]
    if unknown := [names[system] for system in run.comparable if why.are_unknown(system)]:
        verb, its = ("reports", "its") if len(unknown) == 1 else ("report", "their")
        sentences.append(
            f"{_as_list(unknown)} {verb} no passages, so the causes of {its} wrong answers are not known. To "
            "learn the causes, return a mapping with 'answer' and 'contexts' (docs/compare.md)."
        )
    return list(filter(None, sentences))


def certainties(
    run: Run, surest_of: Mapping[str, SurestAnswers], baseline: str, names: Mapping[str, str]
) -> list[str]:
    """Return sentences that say, for each system, how well its uncertainty detects wrong answers."""
    systems = sorted(run.comparable, key=lambda system: system != baseline)
    measured = [system for system in systems if system in surest_of]
    sentences = [_certainty(names[system], surest_of[system]) for system in measured[:1]]
    others: dict[str, list[str]] = {}
    for system in measured[1:]:
        surest = surest_of[system]
        area = f"AUROC {surest.auroc.text(digits=2)}" if surest.auroc else counted(surest.n, "answer")
        others.setdefault(surest.tells, []).append(f"{names[system]} ({area})")
    sentences += [f"{_CERTAINTY_TELLS[tells]} {_as_list(of)}." for tells, of in others.items()]
    if without := [names[one] for one in systems if one not in surest_of and _lacks_logprobs(run, one)]:
        sentences.append(
            f"The model returned no log-probabilities with the answers of {_as_list(without)}, so their "
            "certainty is not known."
        )
    return sentences


_CERTAINTY_TELLS = {
    "wrong answers": "The model is less sure of wrong answers than of right answers for",
    "nothing": "Certainty does not clearly predict wrong answers (the AUROC's interval contains 0.5) for",
    "the opposite": "The model is surer of wrong answers than of right answers (ignore its certainty) for",
    "too few answers": "There are too few answers to see whether certainty predicts wrong answers for",
    "not known": "Because all answers are right or all are wrong, it is not known whether certainty predicts "
    "wrong answers for",
}
"""For each value of ``SurestAnswers.tells``, the words before the names of systems in a sentence."""


def _as_list(texts: Sequence[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def _certainty(name: str, surest: SurestAnswers) -> str:
    if surest.auroc is None:
        right = "right" if surest.right[1].value == 1 else "wrong"
        which = f"All {surest.n:,} answers of {name} are" if surest.n > 1 else f"The only answer of {name} is"
        return f"{which} {right}, so it is not known whether certainty predicts wrong answers."
    text = indication_text(surest.auroc, surest.n, name)
    text = f"{text[0].upper()}{text[1:]}."
    if surest.tells == "wrong answers":
        half, most = surest.right[0.5], surest.right[0.7]
        text += (
            f" Of the surest 50 % of the answers, {_percent(half)} are right; of the surest 70 %, "
            f"{_percent(most)}; of all answers, {_percent(surest.right[1])}."
        )
    return f"{text} Ignore its certainty." if surest.tells == "the opposite" else text


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.0f} %"


def _lacks_logprobs(run: Run, system: str) -> bool:
    answers = [row.answer for row in run.answered(system).values() if row.answer]
    return _missing_in(answers) == "no log-probabilities"


def numbers_of_passages(run: Run, margin: float = MARGIN) -> list[str]:
    """Return sentences that compare plain RAG with few passages and plain RAG with the most passages.

    Return an empty list if the run has fewer than two plain RAG systems.
    """
    counts = passage_counts(run, margin)
    if not counts:
        return []
    most, least, points = counts[0], fewest(counts), f"{100 * margin:g} points"
    sentences = []
    if least is not most and least.difference is not None:
        evidence = f"{_points(least.difference)}, {counted(least.difference.n, 'question')}"
        few = counted(least.passages, "passage")
        sentences.append(
            f"Use {few} in place of {most.passages}: the share of right answers falls by less than {points} "
            f"({evidence}). {_costs(run, least.system, most.system, f'Plain RAG with {few}')}"
        )
    too_few = next((count for count in counts if not count.within_margin), None)
    if too_few is None or too_few.difference is None:
        return sentences
    difference = too_few.difference
    few, evidence = counted(too_few.passages, "passage"), counted(difference.n, "question")
    text = (
        f"With {few} in place of {most.passages}, the share of right answers may fall by {points} or more: "
        f"{_points(difference)}, {evidence}."
    )
    if difference.interval is not None and difference.interval.upper < 0:
        points = _points(difference)
        text = f"With {few}, fewer answers are right than with {most.passages}: {points}, {evidence}."
    elif (needed := questions_to_exclude(difference, margin)) is not None:
        many = f"more than {MANY:,}" if needed > MANY else f"about {_round_up(needed)}"
        text += f" If both numbers are equally good, {many} questions are needed to show it."
    return [*sentences, text]


def _points(difference: Estimate) -> str:
    return f"{difference.text('+', 100, 1)} points"


def problems(run: Run, names: Mapping[str, str]) -> list[str]:
    """Return a sentence for each system with failed questions, or with too few questions to be compared."""
    sentences, comparable = [], run.comparable
    for system in run.systems:
        rows = [row for row in run.rows if row.system == system]
        errors = [row.error for row in rows if row.error]
        if system not in comparable:
            text = (
                f"{names[system]} was asked only {len(rows)} of {counted(len(run.questions), 'question')}, "
                "so it is not compared"
            )
            if len(errors) >= FAILURES:
                text += f". It failed on {FAILURES} questions in a row ({printable(errors[-1])[:200]})"
            sentences.append(f"{text}.")
        elif errors:
            latest = printable(errors[-1])[:200]
            n_questions = counted(len(rows), "question")
            sentences.append(f"{names[system]} failed on {len(errors)} of {n_questions} ({latest}).")
    return sentences


def _recommendation(
    run: Run,
    compared: Mapping[str, Comparison],
    baseline: str,
    names: Mapping[str, str],
    margin: float,
) -> list[str]:
    wording = _WORTH_MORE if run.measures[0] == WORTH else _ANSWERS_BETTER
    can = {name: one for name, one in compared.items() if _is_candidate(run, name)}
    significant = {name: one for name, one in can.items() if one.adjusted < SIGNIFICANCE}
    better = [name for name, one in significant.items() if one.difference.value > 0]
    cheaper = [name for name in can if _is_cheaper(run, name, baseline, margin, len(compared))]
    other, why = names[baseline], f"{wording[0]} {names[baseline]} on these questions"
    if wording is _ANSWERS_BETTER and not better:
        better = cheaper
        why = f"it is cheaper, and its answers are less than {100 * margin:g} points worse than {other}'s"
    if better:
        best = names[max(better, key=lambda name: can[name].difference.value)]
        return [f"Use {best}: {why}."]
    if not can:
        return []
    if len(significant) == len(can):
        return [f"Stay with {other}: every other system {wording[1]}."]
    return [f"Stay with {other} for now: the data do not show that another system {wording[2]}."]


def _is_candidate(run: Run, system: str) -> bool:
    pipeline = pipeline_of(run.settings(system))
    return pipeline is None or pipeline.is_candidate


_ANSWERS_BETTER = ("it answers better than", "answers worse", "answers better")
_WORTH_MORE = (
    "its contexts help the model more than the contexts of",
    "helps the model less",
    "helps the model more",
)
"""Words of recommendations. The three texts follow "Use A:", "every other system", and "the data do not show
that another system"."""


def _is_cheaper(run: Run, system: str, baseline: str, margin: float, tests: int) -> bool:
    confidence = 1 - SIGNIFICANCE / tests  # Bonferroni's correction
    both = pairs(run, system, baseline, run.measures[0])
    if not excludes_loss(paired_difference(*both, confidence=confidence), margin):
        return False
    mine, theirs = search_share(run, system), search_share(run, baseline)
    changes = [mine.value / theirs.value - 1] if mine and theirs and theirs.value else []
    for cost in COSTS:
        change = _change(run, system, baseline, cost)
        if change is None:
            continue
        _, interval, _ = difference = paired_difference(
            *pairs(run, system, baseline, cost), confidence=confidence, bounds=None
        )
        by_chance = change <= -SAVING and interval is not None and interval.upper >= 0
        by_chance |= cost == "seconds" and abs(difference.value) < _NO_TIME
        changes.append(0.0 if by_chance else change)
    return min(changes, default=0.0) <= -SAVING and max(changes) <= SAVING


def _difference(
    run: Run,
    measure: str,
    one: Comparison,
    baseline: str,
    names: Mapping[str, str],
    margin: float,
) -> str:
    name, other, n_questions = names[one.system], names[baseline], counted(one.difference.n, "question")
    right = measure in run.metrics
    # Differences of metrics are written in percentage points; other scores may have any range.
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
        return f"{name} {verb} {word} than {other}: {both[0]} against {both[1]}, {reach}, {n_questions}."
    text = (
        f"The data do not show a difference in {what} between {name} and {other}: {both[0]} against "
        f"{both[1]}, {reach}, {n_questions}."
    )
    tests = len(run.comparable) - 1
    size = questions_to_show(*pairs(run, one.system, baseline, measure), tests=tests)
    if size is None:
        return f"{text} {_no_difference(one.difference, margin if right else None)}"
    if size > MANY:
        return f"{text} To show a difference as small as this, more than {MANY:,} questions are needed."
    return f"{text} If the difference is as large as here, about {_round_up(size)} questions would show it."


def _no_difference(difference: Estimate, margin: float | None) -> str:
    if margin is None or difference.interval is None:
        return "Both means are equal on these questions."
    most = max(-difference.interval.lower, difference.interval.upper)
    if most < margin:
        return f"Both are equally good, within {100 * margin:g} points."
    return f"Both are equally good here, but may differ by {100 * most:.0f} points on other questions."


def _costs(run: Run, system: str, baseline: str, name: str) -> str:
    parts = []
    units = (("tokens", "tokens", "fewer"), ("calls", "calls", "fewer"), ("seconds", "time", "less"))
    for cost, unit, less in units:
        change = _change(run, system, baseline, cost)
        if change is None or (cost == "seconds" and not _time_differs(run, system, baseline)):
            continue
        if round(100 * change) == 0:
            parts.append(f"as {'much' if cost == 'seconds' else 'many'} {unit}")
        elif change > 2:
            parts.append(f"{1 + change:.1f} times the {unit}")
        else:
            parts.append(f"{100 * abs(change):.0f} % {'more' if change > 0 else less} {unit}")
    share, of_baseline = search_share(run, system), search_share(run, baseline)
    predicates = [f"takes {_as_list(parts)}"] if parts else []
    if share and (of_baseline is None or share.value != of_baseline.value):
        predicates.insert(0, f"calls the retriever for {_percent(share)} of the questions")
    return f"{name} {', and '.join(predicates)}." if predicates else ""


def _time_differs(run: Run, system: str, baseline: str) -> bool:
    value, interval, _ = paired_difference(*pairs(run, system, baseline, "seconds"), bounds=None)
    differs = interval is not None and not interval.lower <= 0 <= interval.upper
    return differs and abs(value) >= _NO_TIME


def _change(run: Run, system: str, baseline: str, cost: str) -> float | None:
    a, b = run.values(system, cost), run.values(baseline, cost)
    keys = [key for key in a if key in b]
    total = sum(b[key] for key in keys)
    return sum(a[key] for key in keys) / total - 1 if total else None


def _round_up(n: int) -> str:
    digits = max(0, len(str(n)) - 2)
    return f"{math.ceil(n / 10**digits) * 10**digits:,}"
