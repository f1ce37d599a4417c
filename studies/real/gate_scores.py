"""Which score should L-RAG's gate use? Each measure of the first answer, compared on stored answers.

The run of the table ``gates`` stores the scores of every token of the first answers. So any measure can
decide for which questions L-RAG calls the retriever, and all measures are compared at the same number of
searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.real.certainty import Answers, answers_of, resamples_of, steps_of
from surerag.errors import InputError
from surerag.evaluation import EvaluationRun
from surerag.measures import auroc, greatest_entropy
from surerag.methods.lazy_rag.gates import N_TOKENS

PAPERS_SCORE = "first_8_mean_entropy"
"""The measure that L-RAG's gate compares (Eq. 3), with eight tokens."""
OF_THE_BEGINNING = "greatest 3 of the first 8"
"""A measure that a gate could use without waiting for the whole answer."""
MOST_LOST = 0.02
"""Largest loss of right answers that a threshold may have, as a share of the questions."""
HALVES = 200
RATES = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Shares of the questions for which the retriever is called: the questions with the least certain answers."""

TableRow = dict[str, Any]


def gate_score_rows(run: EvaluationRun) -> list[TableRow]:
    """Return for each measure the AUROC for wrong first answers, and the right answers by rate of searches.

    First answers come from the system ``summary``, which does not ask the reader to abstain; answers after
    a search come from ``always``. ``60% difference`` is minus ``always``. ``60% ahead`` is minus the right
    answers with :data:`PAPERS_SCORE`, in points, and ``auroc_ahead`` is minus its AUROC.
    ``chosen_searches`` and ``chosen_difference`` are for a threshold that loses at most :data:`MOST_LOST`
    on a random half of the paragraphs, measured on the other half. Intervals take the questions of a
    paragraph together.

    Raises:
        InputError: If the run lacks one of the two systems, or has no question that both answered.
    """
    if missing := {"always", "summary"} - set(run.systems):
        raise InputError(f"the run has no system {missing.pop()}", hint="ask always and summary")
    first, after = answers_of(run, "summary"), run.values("always", "contains")
    keys = [question.key for question in run.questions if question.key in run.answered("summary")]
    both = np.array([key in after for key in keys], bool)
    if not both.any():
        raise InputError("no question was answered by both always and summary", hint="go on with the run")
    rows_of = run.answered("summary")
    steps = [steps_of(rows_of[key].answer.scores, "entropy") for key in keys]  # type: ignore[union-attr]
    first.measures[OF_THE_BEGINNING] = np.array(
        [greatest_entropy(some[:N_TOKENS], count=3) if some else np.inf for some in steps]
    )
    first = _of_places(first, both)
    searched = np.array([after[key] >= 0.5 for key, kept in zip(keys, both, strict=True) if kept], bool)
    resamples = list(resamples_of(first.groups))
    base = first.measures[PAPERS_SCORE]
    rows: list[TableRow] = [
        {"system": "always", "n": len(searched), "right": _interval(searched, resamples), "searches": 1.0},
        {
            "system": "summary",
            "n": len(searched),
            "right": _interval(first.right, resamples),
            "searches": 0.0,
        },
    ]
    for name, values in first.measures.items():
        area = auroc(values, first.right, first.groups)
        row: TableRow = {"system": name, "n": len(values)}
        if area is not None:
            row["auroc"] = [round(area.value, 2), *(round(end, 2) for end in area.interval or ())]
        for rate in RATES:
            row[f"right at {rate:.0%}"] = _interval(_gated(values, first.right, searched, rate), resamples)
        loss = _gated(values, first.right, searched, 0.6) - searched
        row["60% difference"] = _interval(loss, resamples)
        row |= _on_halves(values, first, searched)
        if name != PAPERS_SCORE:
            row["auroc_ahead"] = _area_ahead(values, base, first, resamples)
            gain = _gated(values, first.right, searched, 0.6) - _gated(base, first.right, searched, 0.6)
            row["60% ahead"] = _interval(gain, resamples)
        rows.append(row)
    return rows


def _of_places(answers: Answers, kept: NDArray[np.bool_]) -> Answers:
    groups = [group for group, is_kept in zip(answers.groups, kept, strict=True) if is_kept]
    measures = {name: values[kept] for name, values in answers.measures.items()}
    return Answers(answers.right[kept], groups, measures, {})


def _gated(
    values: NDArray[np.float64], first: NDArray[np.bool_], searched: NDArray[np.bool_], rate: float
) -> NDArray[np.float64]:
    """Return 1.0 for each right answer and 0.0 for each wrong answer if the least certain share searches."""
    order = np.argsort(values, kind="stable")
    opens = np.zeros(len(values), bool)
    opens[order[len(values) - round(rate * len(values)) :]] = True
    return np.where(opens, searched, first).astype(np.float64)


def _on_halves(values: NDArray[np.float64], first: Answers, searched: NDArray[np.bool_]) -> dict[str, float]:
    """Choose a threshold on random halves of the paragraphs, and measure it on the other halves."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(first.groups))}
    places = np.array([numbers[group] for group in first.groups])
    gain = searched.astype(float) - first.right
    rng = np.random.default_rng(0)
    rates, losses, thresholds = [], [], []
    for _ in range(HALVES):
        half = rng.permutation(len(numbers))[places] < len(numbers) // 2
        order = np.argsort(values[half], kind="stable")
        lost = np.cumsum(gain[half][order]) / half.sum()
        cheap = np.flatnonzero(lost <= MOST_LOST)
        threshold = values[half][order][cheap[-1]] if len(cheap) else -np.inf
        shut = values[~half] <= threshold
        rates.append(1 - shut.mean())
        losses.append(float((gain[~half] * shut).mean()))
        thresholds.append(threshold)
    return {
        "chosen_threshold": round(float(np.median(thresholds)), 2),
        "chosen_searches": round(float(np.mean(rates)), 2),
        "chosen_difference": round(-100 * float(np.mean(losses)), 1),
    }


def _interval(values: NDArray[Any], resamples: Sequence[NDArray[np.intp]]) -> list[float]:
    """Return the mean in percent, and the 95 % interval of resampled means."""
    means = [float(np.mean(values[places])) for places in resamples]
    return [round(100 * float(number), 1) for number in (np.mean(values), *np.percentile(means, [2.5, 97.5]))]


def _area_ahead(
    values: NDArray[np.float64],
    base: NDArray[np.float64],
    answers: Answers,
    resamples: Sequence[NDArray[np.intp]],
) -> list[float]:
    """Return the first AUROC minus the second, with the 95 % interval of resampled differences."""

    def gain(places: NDArray[np.intp]) -> float | None:
        areas = [auroc(scores[places], answers.right[places]) for scores in (values, base)]
        return None if areas[0] is None or areas[1] is None else areas[0].value - areas[1].value

    whole = gain(np.arange(len(values)))
    drawn = [number for places in resamples if (number := gain(places)) is not None]
    if whole is None or not drawn:
        return []
    return [round(float(number), 2) for number in (whole, *np.percentile(drawn, [2.5, 97.5]))]
