"""The columns of a trace, and rows to and from them; ``docs/records.md`` says what each one means."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from surerag.extras import extra
from surerag.records.rows import Found, Pass, Sample, TraceRow
from surerag.runs.manifest import Kind
from surerag.types import EntropyTrace, TokenTrace

TRACE: Final = Kind("trace", 1, "`surerag record`")
QUESTIONS: Final = "questions"
ASKED: Final = "asked"
TIMES: Final = "times"
ASKED_TIMES: Final = "asked_times"


def schemas() -> dict[str, Any]:
    """Return the Arrow schemas of a trace's tables.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    return {
        QUESTIONS: question_schema(),
        TIMES: times_schema(),
        ASKED: asked_schema(),
        ASKED_TIMES: asked_times_schema(),
    }


def question_schema() -> Any:
    """Return the Arrow schema of the table ``questions``: a question a row.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        import pyarrow as pa
    numbers = pa.list_(pa.float64())
    trace = [
        ("tokens", pa.list_(pa.string())),
        ("logprobs", numbers),
        ("entropy_lower", numbers),
        ("entropy_upper", numbers),
        ("entropy_exact", pa.bool_()),
        ("logsumexp", numbers),
    ]
    sample = pa.struct([("text", pa.string()), ("sha256", pa.string()), ("cluster", pa.int32()), *trace])
    found = pa.struct([("id", pa.string()), ("score", pa.float64()), ("sha256", pa.string())])
    one = pa.struct(
        [
            ("condition", pa.string()),
            ("text", pa.string()),
            ("sha256", pa.string()),
            ("correct", pa.float64()),
            *trace,
            ("samples", pa.list_(sample)),
            ("retrieved", pa.list_(found)),
            ("query", pa.string()),
            ("signals", pa.map_(pa.string(), pa.float64())),
            ("finish", pa.string()),
            ("calls", pa.int32()),
            ("prompt_tokens", pa.int32()),
            ("completion_tokens", pa.int32()),
            ("cached_tokens", pa.int32()),
        ]
    )
    return pa.schema(
        [
            ("id", pa.string()),
            ("question", pa.string()),
            ("sha256", pa.string()),
            ("golds", pa.list_(pa.string())),
            ("passes", pa.list_(one)),
            ("measures", pa.map_(pa.string(), pa.float64())),
            ("error", pa.string()),
        ]
    )


def asked_schema() -> Any:
    """Return the Arrow schema of the table ``asked``: what was asked of a model, entailer or retriever.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        import pyarrow as pa
    numbers = pa.list_(pa.float64())
    sample = pa.struct(
        [
            ("text", pa.string()),
            ("prompt_tokens", pa.int32()),
            ("completion_tokens", pa.int32()),
            ("thinking_tokens", pa.int32()),
            ("cached_tokens", pa.int32()),
            ("finish", pa.string()),
            ("tokens", pa.list_(pa.string())),
            ("logprobs", numbers),
            ("entropy_lower", numbers),
            ("entropy_upper", numbers),
            ("entropy_exact", pa.bool_()),
            ("logsumexp", numbers),
        ]
    )
    passage = pa.struct(
        [("id", pa.string()), ("text", pa.string()), ("score", pa.float64()), ("metadata", pa.string())]
    )
    return pa.schema(
        [
            ("key", pa.string()),
            ("kind", pa.string()),
            ("prompt", pa.string()),
            ("sampling", pa.string()),
            ("samples", pa.list_(sample)),
            ("probabilities", numbers),
            ("passages", pa.list_(passage)),
        ]
    )


def times_schema() -> Any:
    """Return the Arrow schema of the table ``times``: what no two runs have alike, apart from all else.

    A row for each question, in order, with the seconds of its passes (of the model, an equal share of each
    batch; null if not known).

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        import pyarrow as pa
    return pa.schema([("id", pa.string()), ("seconds", pa.list_(pa.float64()))])


def asked_times_schema() -> Any:
    """Return the Arrow schema of the table ``asked_times``: seconds of each row of ``asked``.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        import pyarrow as pa
    return pa.schema([("key", pa.string()), ("seconds", pa.float64())])


def times_record(row: TraceRow) -> dict[str, Any]:
    """Return a row of the table ``times``."""
    return {"id": row.id, "seconds": [one.seconds for one in row.passes]}


def question_record(row: TraceRow) -> dict[str, Any]:
    """Return a row of the table ``questions``."""
    return {
        "id": row.id,
        "question": row.question,
        "sha256": row.sha256,
        "golds": None if row.golds is None else list(row.golds),
        "passes": [_pass_record(one) for one in row.passes],
        "measures": list(row.measures.items()),
        "error": row.error,
    }


def trace_row(record: Mapping[str, Any], seconds: Sequence[float | None] = ()) -> TraceRow:
    """Return what a row of the table ``questions`` says, with the seconds that its passes took."""
    golds, took = record["golds"], seconds or [None] * len(record["passes"])
    return TraceRow(
        id=record["id"],
        question=record["question"],
        sha256=record["sha256"],
        golds=None if golds is None else tuple(golds),
        passes=tuple(map(_pass, record["passes"], took)),
        measures=dict(record["measures"]),
        error=record["error"],
    )


def asked_record(key: str, kind: str, answer: Any, note: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table ``asked``.

    Args:
        key: Digest of what was asked.
        kind: ``"generate"``, ``"entail"`` or ``"retrieve"``.
        answer: As :mod:`surerag.recording` keeps it.
        note: Further columns.
    """
    column = {"generate": "samples", "entail": "probabilities", "retrieve": "passages"}[kind]
    if kind == "retrieve":
        answer = [{**one, "metadata": json.dumps(one["metadata"])} for one in answer]
    return {"key": key, "kind": kind, column: answer, **note}


def asked_answer(record: Mapping[str, Any]) -> Any:
    """Return an answer as :mod:`surerag.recording` keeps it."""
    if record["kind"] == "retrieve":
        return [{**one, "metadata": json.loads(one["metadata"])} for one in record["passages"]]
    return record["samples"] if record["kind"] == "generate" else record["probabilities"]


def _pass_record(one: Pass) -> dict[str, Any]:
    return {
        "condition": one.condition,
        "text": one.text,
        "sha256": one.sha256,
        "correct": one.correct,
        **_trace_record(one.trace),
        "samples": [
            {
                "text": sample.text,
                "sha256": sample.sha256,
                "cluster": sample.cluster,
                **_trace_record(sample.trace),
            }
            for sample in one.samples
        ],
        "retrieved": [
            {"id": found.id, "score": found.score, "sha256": found.sha256} for found in one.retrieved
        ],
        "query": one.query,
        "signals": list(one.signals.items()),
        "finish": one.finish,
        "calls": one.calls,
        "prompt_tokens": one.prompt_tokens,
        "completion_tokens": one.completion_tokens,
        "cached_tokens": one.cached_tokens,
    }


def _pass(record: Mapping[str, Any], seconds: float | None) -> Pass:
    return Pass(
        condition=record["condition"],
        text=record["text"],
        sha256=record["sha256"],
        correct=record["correct"],
        trace=_trace(record),
        samples=tuple(
            Sample(one["text"], one["sha256"], one["cluster"], _trace(one)) for one in record["samples"]
        ),
        retrieved=tuple(Found(one["id"], one["score"], one["sha256"]) for one in record["retrieved"]),
        query=record["query"],
        signals={name: value for name, value in record["signals"] if not math.isnan(value)},
        finish=record["finish"],
        calls=record["calls"],
        prompt_tokens=record["prompt_tokens"],
        completion_tokens=record["completion_tokens"],
        seconds=record.get("seconds", seconds),  # traces of before have it here
        cached_tokens=record.get("cached_tokens") or 0,  # a trace of before has no such column
    )


def _trace_record(trace: TokenTrace | None) -> dict[str, Any]:
    entropy = None if trace is None else trace.entropy
    return {
        "tokens": None if trace is None else list(trace.tokens),
        "logprobs": None if trace is None else list(trace.logprobs),
        "entropy_lower": None if entropy is None else list(entropy.lower),
        "entropy_upper": None if entropy is None else list(entropy.upper),
        "entropy_exact": None if entropy is None else entropy.exact,
        "logsumexp": None if trace is None or trace.logsumexp is None else list(trace.logsumexp),
    }


def _trace(record: Mapping[str, Any]) -> TokenTrace | None:
    if record["logprobs"] is None:
        return None
    lower, energies = record["entropy_lower"], record["logsumexp"]
    return TokenTrace(
        tuple(record["tokens"]),
        tuple(record["logprobs"]),
        None
        if lower is None
        else EntropyTrace(tuple(lower), tuple(record["entropy_upper"]), record["entropy_exact"]),
        None if energies is None else tuple(energies),
    )
