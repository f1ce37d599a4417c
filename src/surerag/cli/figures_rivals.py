"""The table of ``surerag figures rivals``: ΔSePer and what it is compared with, on a user's run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from surerag.encoders import packaged_minilm
from surerag.errors import InputError
from surerag.evaluation.formatting import plain_table
from surerag.evaluation.rivals import RIVALS, BertScores, Level, Rated, RatingJudge, mean_of
from surerag.evaluation.statistics import correlation


def compared(
    rows: Iterable[Mapping[str, Any]], known: Sequence[Mapping[str, Any]], judge: RatingJudge | None
) -> Table:
    """Return how each measure correlates with known utility, or with ΔSePer where none is known.

    Args:
        rows: Of a run; those that failed, and those without context, are left out.
        known: Lines with ``id`` or ``question``, perhaps ``system``, and ``utility`` or ``contexts``.
        judge: Rates contexts; None for no ratings.

    Raises:
        InputError: If fewer than two rows can be compared, or nothing is known of one.
    """
    by_key = {(line.get("id") or line.get("question"), line.get("system")): line for line in known}
    some = [row for row in rows if not row["error"] and any(row["steps"])]
    lines = [_line(row, by_key) for row in some] if known else []
    if len(some) < 2:
        raise InputError("fewer than two rows of the run have a context that was measured")
    steps = [next(step for step in reversed(row["steps"]) if step) for row in some]
    deltas = {name: _deltas(level, some, steps) for name, level in _levels(some, steps).items()}
    if judge is not None:
        cases = [
            Rated(row["question"], "\n".join(map(str, line["contexts"])), row["answers"][0])
            for row, line in zip(some, lines, strict=True)
        ]
        deltas["Judge, direct"], deltas["Judge, reduction"] = judge.direct(cases), judge.reduction(cases)
    own = np.array([row["delta"] for row in some], dtype=np.float64)
    utilities = bool(lines) and all("utility" in line for line in lines)
    truth = np.array([line["utility"] for line in lines], dtype=np.float64) if utilities else own
    table = plain_table(
        f"Correlation with {'known utility' if utilities else 'ΔSePer'}, n = {len(some):,} (Table 2)",
        padding=(0, 1, 0, 0),
    )
    for name in ("Difference in", "n", "Pearson's r"):
        table.add_column(name, justify="left" if name == "Difference in" else "right")
    if utilities:
        deltas["ΔSePer"] = own
    questions = np.unique([row["question"] for row in some], return_inverse=True)[1]
    for name, values in deltas.items():
        there = np.isfinite(values)
        table.add_row(name, f"{there.sum():,}", _shown(values[there], truth[there], questions[there]))
    return table


def _line(row: Mapping[str, Any], known: Mapping[Any, Mapping[str, Any]]) -> Mapping[str, Any]:
    for name in (row["id"], row["question"]):
        for system in (row["system"], None):
            if (name, system) in known:
                return known[name, system]
    raise InputError(f"the data say nothing of question {row['id']!r} of system {row['system']!r}")


def _levels(rows: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> dict[str, Level]:
    answers = (one["text"] for step in steps for side in ("before", "after") for one in step[side]["answers"])
    texts = [*answers, *(gold for row in rows for gold in row["answers"])]
    return {**RIVALS, "BERTScore, MiniLM": mean_of(BertScores(packaged_minilm(), texts))}


def _deltas(
    level: Level, rows: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]
) -> NDArray[np.float64]:
    found = []
    for row, step in zip(rows, steps, strict=True):
        before, after = (_of(level, step[side]["answers"], row["answers"]) for side in ("before", "after"))
        found.append(after - before)
    return np.array(found)


def _of(level: Level, answers: Sequence[Mapping[str, Any]], golds: Sequence[str]) -> float:
    # Answers of a model without log-probabilities have no perplexity.
    logs = np.array([one["log_likelihood"] for one in answers], dtype=np.float64)
    return level([one["text"] for one in answers], logs, golds)


def _shown(values: NDArray[np.float64], truth: NDArray[np.float64], groups: NDArray[np.intp]) -> str:
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(truth) == 0:
        return "n/a"
    found = correlation(values, truth, groups)
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
