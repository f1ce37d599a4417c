"""Conditions tested on a comparison: what passes, fails or cannot be told, and what breaks a build."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.ci.condition import BASELINE, Condition
from surerag.evaluation.ci.operating import Point, curve, power_of_mean, questions_for, questions_for_mean
from surerag.evaluation.ci.paired import Judged, Outcome, Pairs, judge_mean, judge_pair
from surerag.extras import extra

Undecided = Literal["fail", "pass"]
"""What a condition that cannot be told does to the build."""

LEAST_DISCORDANCE = 0.02
"""Discordance of the operating curve, at least: that a sample has none is chance."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A condition, and what a comparison says of it.

    Attributes:
        condition: Which.
        judged: What was found.
        value: Mean of the metric for the system, on the questions that count.
        reference: Mean for the reference; the number itself where that is one.
        left_out: Questions that one of the two has no value for.
        discordance: Share of questions that the two differ on, where answers are right or wrong.
        curve: What becomes of known changes with so many questions and this margin; empty where the condition
            has no margin, or is not about right and wrong answers.
        unchanged: Probability that a pipeline that did not change passes; None where there is no margin.
        needed: Questions with which it passes 95 times in 100, by margin in the metric's unit.
    """

    condition: Condition
    judged: Judged
    value: float
    reference: float
    left_out: int
    discordance: float
    curve: tuple[Point, ...]
    unchanged: float | None
    needed: Mapping[float, int]

    @property
    def outcome(self) -> Outcome:
        """Whether it passes."""
        return self.judged.outcome

    def breaks(self, undecided: Undecided) -> bool:
        """Return whether the build breaks."""
        return self.outcome == "fail" or (self.outcome == "undecided" and undecided == "fail")


@dataclass(slots=True)
class Joined:
    """Values of a condition's system and of its reference, gathered from rows in any order of systems.

    Args:
        condition: Which.
        known: The reference's values by question, where they come from a baseline file.
    """

    condition: Condition
    known: Mapping[str, float] | None = None
    pairs: Pairs = field(default_factory=Pairs)
    left_out: int = 0
    _waiting: dict[str, float | None] = field(default_factory=dict)

    def add(self, id_: str, system: str, value: float | None) -> None:
        """Add a value; a question's two systems come near each other, so that few wait."""
        if system == self.condition.system:
            if not self.condition.reference:
                self._pair(value, 0.0)
            elif self.known is not None:
                self._pair(value, self.known.get(id_))
            elif id_ in self._waiting:
                self._pair(value, self._waiting.pop(id_))
            else:
                self._waiting[id_] = value
        elif system == self.condition.reference and self.known is None:
            if id_ in self._waiting:
                self._pair(self._waiting.pop(id_), value)
            else:
                self._waiting[id_] = value

    def _pair(self, mine: float | None, other: float | None) -> None:
        if mine is None or other is None:
            self.left_out += 1
        else:
            self.pairs.add(mine, other)


def check(joined: Joined, confidence: float = 0.95) -> Checked:
    """Test a condition.

    Args:
        joined: Its values.
        confidence: One-sided.

    Raises:
        InputError: If there is no question that both were measured on.
    """
    condition, pairs = joined.condition, joined.pairs
    if not pairs.n:
        raise InputError(
            f"{condition.text!r}: there is no question with a {condition.metric} of "
            f"{condition.system}{f' and of {condition.reference}' if condition.reference else ''}",
            hint="compare on the same questions, with what the metric needs (gold answers, an entailer)",
        )
    turned = pairs if condition.better > 0 else pairs.turned()
    margin = condition.margin
    if condition.reference:
        judged = judge_pair(turned, margin, factor=condition.factor, confidence=confidence)
        reference = condition.factor * pairs.second / pairs.n
    else:
        # A margin here is the number itself, with its sign turned.
        judged = judge_mean(turned, -margin, confidence=confidence)
        reference = condition.offset
    share = bool(condition.reference) and condition.factor == 1 and turned.is_binary
    return Checked(
        condition,
        judged,
        pairs.first / pairs.n,
        reference,
        joined.left_out,
        pairs.discordance if share else math.nan,
        *_operating(condition, turned, judged, share, confidence),
    )


def _operating(
    condition: Condition, pairs: Pairs, judged: Judged, share: bool, confidence: float
) -> tuple[tuple[Point, ...], float | None, dict[float, int]]:
    margin = condition.margin
    if not condition.reference or margin <= 0:
        return (), None, {}
    margins = [margin * times for times in (0.4, 1.0, 2.0)]
    if share:
        differing = max(pairs.discordance, LEAST_DISCORDANCE)
        points = curve(pairs.n, margin, differing, confidence=confidence)
        needed = {one: questions_for(one, differing, confidence=confidence) for one in margins if one < 1}
        return tuple(points), points[1].passes, needed
    unchanged = power_of_mean(pairs.n, margin, judged.spread, confidence=confidence)
    return (
        (),
        unchanged,
        {one: questions_for_mean(one, judged.spread, confidence=confidence) for one in margins},
    )


Baseline = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Values by system, metric and question."""


def write_baseline(file: Path, rows: Iterable[Mapping[str, Any]], metrics: Sequence[str]) -> None:
    """Write what later comparisons are tested against: Parquet with ``id``, ``system`` and the metrics.

    No question, answer or passage is in it.

    Raises:
        MissingExtraError: If pyarrow is not installed.
        StorageError: If it cannot be written.
    """
    with extra("parquet"):
        import pyarrow as pa
        from pyarrow import parquet
    from surerag.storage import storing

    columns = [("id", pa.string()), ("system", pa.string()), *((name, pa.float64()) for name in metrics)]
    kept = [{name: row[name] for name, _ in columns} for row in rows]
    with storing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f"{file.name}.part")
        parquet.write_table(pa.Table.from_pylist(kept, pa.schema(columns)), unfinished, compression="zstd")
        unfinished.replace(file)


def read_baseline(file: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        ConfigurationError: If it cannot be read, or holds something else.
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        from pyarrow import ArrowException, parquet
    try:
        records = parquet.read_table(file).to_pylist()
    except (ArrowException, OSError) as error:
        raise ConfigurationError(
            f"the baseline {file} cannot be read: {str(error).splitlines()[0]}",
            hint="give the baseline.parquet of an earlier comparison",
        ) from error
    found: dict[str, dict[str, dict[str, float]]] = {}
    for record in records:
        if "id" not in record or "system" not in record:
            raise ConfigurationError(
                f"{file} holds {', '.join(record)}", hint="give the baseline.parquet of an earlier comparison"
            )
        for name, value in record.items():
            if name not in ("id", "system") and value is not None:
                of = found.setdefault(record["system"], {}).setdefault(name, {})
                of[record["id"]] = value
    return found


def known_of(condition: Condition, baseline: Baseline) -> Mapping[str, float] | None:
    """Return a condition's values in the baseline file; None where its reference is not there."""
    prefix, colon, name = condition.reference.partition(":")
    if prefix != BASELINE or not colon:
        return None
    return baseline.get(name, {}).get(condition.metric, {})
