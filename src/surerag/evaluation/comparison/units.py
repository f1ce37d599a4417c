"""A unit of a comparison: its rows measured, written, and read again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from surerag.errors import ConfigurationError
from surerag.evaluation.comparison.measuring import Measured, measure
from surerag.evaluation.comparison.results import Item
from surerag.evaluation.rows import Row
from surerag.extras import extra
from surerag.journal import Answers
from surerag.methods.seper.component import SePer
from surerag.methods.seper.result import Belief, Drawn, Interval, SampledAnswer, SePerResult
from surerag.prices import Costs
from surerag.recording import Tab
from surerag.runs import Run
from surerag.runs.manifest import Kind, Part

EVALUATION: Final = Kind("evaluation", 1, "`surerag evaluate`")
FIGURES: Final = (
    "id", "system", "error", "delta", "low", "high", "before", "after", "deltas", "prompt_tokens",
    "truncated", "weights",
)  # fmt: skip
"""The columns that a report is made from; ``steps`` holds all that was sampled and judged."""


def row_schema() -> Any:
    """Return the Arrow schema of a result, a row of one question and one system; see ``docs/evaluation.md``.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        import pyarrow as pa
    number, text = pa.float64(), pa.string()
    answer = pa.struct(
        [
            ("text", text),
            ("log_likelihood", number),
            ("weight", number),
            ("cluster", pa.int32()),
            ("entailment", pa.list_(number)),
        ]
    )
    interval = [("low", number), ("high", number)]
    belief = pa.struct(
        [
            ("seper", number),
            *interval,
            ("answers", pa.list_(answer)),
            ("prompt_tokens", pa.int32()),
            ("completion_tokens", pa.int32()),
            ("truncated", pa.int32()),
        ]
    )
    drawn = pa.struct(
        [
            ("samples", pa.int32()),
            ("most", pa.int32()),
            ("width", number),
            *interval,
            ("repeated_tokens", pa.int64()),
        ]
    )
    step = pa.struct(
        [
            ("delta", number),
            *interval,
            ("before", belief),
            ("after", belief),
            ("weights", text),
            ("kernel", text),
            ("calls", pa.int32()),
            ("judged", pa.int32()),
            ("drawn", drawn),
        ]
    )
    return pa.schema(
        [
            ("id", text),
            ("system", text),
            ("question", text),
            ("answers", pa.list_(text)),
            ("error", text),
            ("delta", number),
            *interval,
            ("before", number),
            ("after", number),
            ("deltas", pa.list_(number)),
            ("prompt_tokens", pa.int32()),
            ("truncated", pa.int32()),
            ("weights", pa.list_(text)),
            ("steps", pa.list_(step)),
        ]
    )


def measure_unit(
    run: Run,
    unit: int,
    rows: Sequence[Row],
    keeping: Callable[[Answers, Tab], SePer],
    *,
    window: int,
    worked: bool,
    source: str = "",
) -> Part:
    """Measure a unit's rows, going on where a kill left it, and commit it.

    Args:
        run: Where it is kept.
        unit: Its number.
        rows: Its rows, all systems of a question together.
        keeping: From where answers are kept, and counted, to a SePer that keeps and counts them there.
        window: Rows that a local model reads, or requests that a server gets, at the same time.
        worked: Whether any row was measured before, so that rows may fail as rows.
        source: Digest of what goes in.

    Raises:
        StorageError: If it cannot be written.
        Exception: If all rows of a group fail; see :func:`surerag.evaluation.comparison.measuring.measure`.
    """
    tab, began = Tab(), time.perf_counter()
    with run.answers(unit) as journal:
        measured = list(measure(rows, keeping(journal, tab), window=window, worked=worked))
    failed = sum(bool(one.error) for one in measured)
    spent = Costs.of(tab.usage, time.perf_counter() - began).to_dict()
    return run.commit(unit, map(record_of, measured), source=source, note={"failed": failed, "spent": spent})


def spent_in(run: Run) -> Costs | None:
    """Return what all units cost, without their money; None where one does not tell."""
    told = [part.note.get("spent") for part in run.manifest]
    return None if None in told else sum(map(Costs.from_dict, told), start=Costs())


def source_of(rows: Sequence[Row]) -> str:
    """Return a digest of what goes into a unit."""
    digest = hashlib.sha256()
    for row in rows:
        shown = [[passage.text for passage in step] for step in row.contexts]
        content = json.dumps([row.id, row.system, row.question, list(row.golds), shown])
        digest.update(content.encode("ascii") + b"\n")
    return digest.hexdigest()[:32]


def check_unit(run: Run, unit: int, source: str) -> None:
    """Refuse other questions than those that a committed unit is about.

    Raises:
        ConfigurationError: If they are others.
    """
    if run.manifest.parts[unit].source != source:
        raise ConfigurationError(
            f"{run.place} holds other questions in unit {unit} than those that are to be measured now",
            hint="give the same questions in the same order, or write to another folder; or begin anew with "
            "--restart (on_change='restart')",
        )


def item_of(measured: Measured) -> Item:
    """Return a measured row's figures."""
    row, last = measured.row, measured.steps[-1] if measured.steps else None
    deltas = tuple(0.0 if step is None else step.delta for step in measured.steps)
    if last is None:
        # ΔSePer of no context is SePer of no context minus itself.
        return Item(row.id, row.system, None, None, 0.0, 0.0, 0.0, deltas, 0, 0)
    return Item(
        id=row.id,
        system=row.system,
        before=last.before.seper,
        after=last.after.seper,
        delta=last.delta,
        low=last.interval.lower,
        high=last.interval.upper,
        steps=deltas,
        prompt_tokens=last.after.prompt_tokens,
        truncated=last.truncated,
    )


def record_of(measured: Measured) -> dict[str, Any]:
    """Return a row of the table: all that was sampled and judged."""
    row, item = measured.row, item_of(measured)
    record: dict[str, Any] = {
        "id": row.id,
        "system": row.system,
        "question": row.question,
        "answers": list(row.golds),
        "error": measured.error or None,
    }
    if measured.error:
        return record
    return {
        **record,
        "delta": item.delta,
        "low": item.low,
        "high": item.high,
        "before": item.before,
        "after": item.after,
        "deltas": list(item.steps),
        "prompt_tokens": item.prompt_tokens,
        "truncated": item.truncated,
        "weights": sorted({step.weights for step in measured.steps if step is not None}),
        "steps": [None if step is None else _step_record(step) for step in measured.steps],
    }


def item_from(record: Mapping[str, Any]) -> Item:
    """Return the figures of a row of the table that could be measured."""
    return Item(
        id=record["id"],
        system=record["system"],
        before=record["before"],
        after=record["after"],
        delta=record["delta"],
        low=record["low"],
        high=record["high"],
        steps=tuple(record["deltas"]),
        prompt_tokens=record["prompt_tokens"],
        truncated=record["truncated"],
    )


def measured_from(record: Mapping[str, Any], row: Row) -> Measured:
    """Return what a row of the table says, with the contexts that it does not hold."""
    steps = tuple(None if step is None else _step(step, row) for step in record["steps"] or ())
    return Measured(row, steps, record["error"] or "")


def records_of(
    run: Run, columns: Sequence[str] = FIGURES, units: Sequence[int] | None = None
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the rows of a run with their units and their places in them, holding some at a time.

    Args:
        run: Where they are kept.
        columns: Which ones to read.
        units: Which units; all by default.
    """
    for unit in run.units if units is None else units:
        at = 0
        for batch in run.batches(list(columns), units=[unit]):
            for record in batch.to_pylist():
                yield unit, at, record
                at += 1


def _step_record(step: SePerResult) -> dict[str, Any]:
    drawn = step.drawn
    return {
        "delta": step.delta,
        **_ends(step.interval),
        "before": _belief_record(step.before),
        "after": _belief_record(step.after),
        "weights": step.weights,
        "kernel": step.kernel,
        "calls": step.calls,
        "judged": step.judged,
        "drawn": None
        if drawn is None
        else {
            "samples": drawn.samples,
            "most": drawn.most,
            "width": drawn.width,
            **_ends(drawn.interval),
            "repeated_tokens": drawn.repeated_tokens,
        },
    }


def _belief_record(belief: Belief) -> dict[str, Any]:
    return {
        "seper": belief.seper,
        **_ends(belief.interval),
        "answers": [_answer_record(answer) for answer in belief.answers],
        "prompt_tokens": belief.prompt_tokens,
        "completion_tokens": belief.completion_tokens,
        "truncated": belief.truncated,
    }


def _answer_record(answer: SampledAnswer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "log_likelihood": answer.log_likelihood,
        "weight": answer.weight,
        "cluster": answer.cluster,
        "entailment": answer.entailment,
    }


def _step(record: Mapping[str, Any], row: Row) -> SePerResult:
    drawn = record["drawn"]
    return SePerResult(
        question=row.question,
        golds=row.golds,
        before=_belief(record["before"]),
        after=_belief(record["after"]),
        delta=record["delta"],
        interval=_interval(record),
        weights=record["weights"],
        kernel=record["kernel"],
        calls=record["calls"],
        judged=record["judged"],
        drawn=None
        if drawn is None
        else Drawn(
            drawn["samples"], drawn["most"], drawn["width"], _interval(drawn), drawn["repeated_tokens"]
        ),
    )


def _belief(record: Mapping[str, Any]) -> Belief:
    return Belief(
        seper=record["seper"],
        interval=_interval(record),
        answers=tuple(
            SampledAnswer(**{**answer, "entailment": tuple(answer["entailment"])})
            for answer in record["answers"]
        ),
        prompt_tokens=record["prompt_tokens"],
        completion_tokens=record["completion_tokens"],
        truncated=record["truncated"],
    )


def _ends(interval: Interval) -> dict[str, float]:
    return {"low": interval.lower, "high": interval.upper}


def _interval(record: Mapping[str, Any]) -> Interval:
    return Interval(record["low"], record["high"])
