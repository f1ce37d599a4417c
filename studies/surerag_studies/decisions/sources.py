"""Where rows come from: a real reader's recorded answers, and simulated questions with a known truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.rows import DecisionRow
from surerag.errors import InputError
from surerag.extras import extra
from surerag.measures import normalize_answer, token_f1

SIGNALS = ("perplexity", "ln_entropy", "energy", "eigen_score")
"""Uncertainties that the trace holds."""

LARGE = 20_000
"""Questions that stand for all that could be asked, where they are simulated."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Source:
    """Questions with both answers judged.

    Attributes:
        name: Shown in tables.
        simulated: Whether they were.
        names: Of the signals.
        signals: Shape [n, signals]; the first is the one that is calibrated.
        without: Scores without acting, shape [n].
        with_: Scores after acting, shape [n].
    """

    name: str
    simulated: bool
    names: tuple[str, ...]
    signals: Floats
    without: Floats
    with_: Floats

    def rows(self, at: Iterable[int] | None = None) -> list[DecisionRow]:
        """Return some questions as rows, or all."""
        chosen = range(len(self.without)) if at is None else at
        return [
            DecisionRow(
                dict(zip(self.names, map(float, self.signals[i]), strict=True)),
                float(self.without[i]),
                float(self.with_[i]),
            )
            for i in chosen
        ]


def recorded(file: Path) -> list[Source]:
    """Return a source for each data set of a trace of single-hop questions.

    The file is Parquet with the columns ``dataset``, ``golds``, ``answer`` (no retrieval), its uncertainties,
    ``answer_no_retrieval`` (in other words) and ``answer_one_retrieval``. An answer is right if a gold form
    stands in it.

    Raises:
        InputError: If columns are missing.
    """
    return [
        _source(name, own, [float(len(record["answer"].split())) for record in own], "words", "answer")
        for name, own in _by_data(file)
    ]


def one_wording(file: Path) -> list[Source]:
    """Return a source for each data set in which both answers come from one prompt.

    The answer without retrieval is ``answer_no_retrieval``, as that with retrieval was asked for by the same
    prompt; ``answer``, of another wording, and its uncertainties are what was known before. Whether the two
    wordings' answers share their words (1 − token F1) is the agreement of two cheap samples.

    Raises:
        InputError: If columns are missing.
    """
    return [
        _source(
            f"{name}, one wording",
            own,
            [1.0 - token_f1(record["answer"], [record["answer_no_retrieval"]]) for record in own],
            "wordings disagree",
            "answer_no_retrieval",
        )
        for name, own in _by_data(file)
    ]


def _by_data(file: Path) -> list[tuple[str, list[Mapping[str, Any]]]]:
    with extra("parquet"):
        import pyarrow.parquet as parquet

    table = parquet.read_table(file)
    needed = {"dataset", "golds", "answer", "answer_no_retrieval", "answer_one_retrieval", *SIGNALS}
    missing = sorted(needed - set(table.column_names))
    if missing:
        raise InputError(f"{file} has no {', '.join(missing)}", hint="pass a trace of single-hop questions")
    records: list[Mapping[str, Any]] = table.to_pylist()
    names = dict.fromkeys(record["dataset"] for record in records)
    return [(name, [record for record in records if record["dataset"] == name]) for name in names]


def _source(
    name: str, own: Sequence[Mapping[str, Any]], further: Sequence[float], called: str, first: str
) -> Source:
    columns = [*([float(record[signal]) for record in own] for signal in SIGNALS), further]
    return Source(
        name,
        False,
        (*SIGNALS, called),
        np.array(columns).T,
        np.array([_right(record[first], record["golds"]) for record in own]),
        np.array([_right(record["answer_one_retrieval"], record["golds"]) for record in own]),
    )


def source_of(name: str, rows: Sequence[DecisionRow], first: str) -> Source:
    """Return rows as a source, for which they stand as a trace does; ``first`` is the signal to calibrate."""
    names = (first, *(other for other in rows[0].signals if other != first))
    return Source(
        name,
        False,
        names,
        np.array([[row.signals[signal] for signal in names] for row in rows]),
        np.array([float(row.correct_without or 0) for row in rows]),
        np.array([float(row.correct_with or 0) for row in rows]),
    )


@dataclass(frozen=True)
class Kind:
    """A kind of simulated questions.

    Attributes:
        name: Shown in tables.
        right: Share of right first answers.
        mends: Share of wrong first answers that acting mends.
        spoils: Share of right ones that it spoils.
        doubt: How far apart the signals of wrong and right answers lie, in standard deviations.
        hidden: How far apart those of mended answers lie from other wrong ones.
    """

    name: str
    right: float
    mends: float
    spoils: float
    doubt: float
    hidden: float = 0.0


KINDS = (
    Kind("doubt tells nothing", 0.5, 0.3, 0.15, 0.0),
    Kind("doubt tells (AUROC .7)", 0.5, 0.3, 0.15, 0.75),
    Kind("doubt tells well (.92)", 0.5, 0.5, 0.1, 2.0),
    Kind("sure where it helps", 0.5, 0.3, 0.15, 0.75, -1.5),
    Kind("acting never harms", 0.4, 0.3, 0.0, 1.0),
    Kind("acting rarely matters", 0.7, 0.08, 0.02, 0.75),
)
"""Simulated kinds; the worst for a rule is where doubt and benefit part, or where acting never harms."""


def simulated(kind: Kind, n: int, rng: np.random.Generator) -> Source:
    """Draw questions of a kind."""
    right = rng.random(n) < kind.right
    luck = rng.random(n)
    mended, spoiled = ~right & (luck < kind.mends), right & (luck < kind.spoils)
    signal = rng.standard_normal(n) + kind.doubt * ~right + kind.hidden * mended
    with_ = np.where(mended, True, np.where(spoiled, False, right))
    return Source(kind.name, True, ("doubt",), signal[:, None], right.astype(float), with_.astype(float))


def _right(answer: str, golds: Sequence[str]) -> float:
    said = normalize_answer(answer)
    forms = [normalize_answer(gold) for gold in golds]
    return float(any(form and form in said for form in forms))
