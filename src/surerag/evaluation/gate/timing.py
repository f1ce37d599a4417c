"""How long an answer takes in each mode, for any latency of retrieval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from surerag import LazyRAG
from surerag.evaluation.gate.asking import GateQuestion
from surerag.evaluation.gate.results import GateReport
from surerag.methods.lazy_rag.result import LazyRAGResult

GATE_LATENCY = 50.0
RETRIEVAL_LATENCIES = (200.0, 500.0, 1000.0)
"""Milliseconds, as in the paper's Table III."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Mean milliseconds a question, asked one by one, retrieval left out.

    Attributes:
        n: Questions that were timed in each mode.
        none: Mode ``"none"``.
        standard: Mode ``"standard"``.
        strong: Mode ``"strong"``.
        oracle: Mode ``"oracle"``.
        shut: Mode ``"lazy"``, the gate staying shut.
        opened: Mode ``"lazy"``, the gate opening.
        retrieval: One retrieval.
    """

    n: int
    none: float
    standard: float
    strong: float
    oracle: float
    shut: float
    opened: float
    retrieval: float


@dataclass(frozen=True, slots=True)
class ModeLatency:
    """Expected milliseconds a question.

    Attributes:
        label: As in the report's table of modes.
        measured: With retrieval as fast as it is here.
        assumed: With each of :class:`LatencyTable`'s retrieval latencies.
    """

    label: str
    measured: float
    assumed: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """What each mode takes, on this machine and with slower retrieval.

    Attributes:
        timings: What was measured.
        retrieval: Assumed retrieval latencies, in milliseconds.
        modes: One row for each mode.
    """

    timings: Timings
    retrieval: tuple[float, ...]
    modes: tuple[ModeLatency, ...]


def measure(rag: LazyRAG, questions: Sequence[GateQuestion]) -> Timings:
    """Ask each question alone, in every mode.

    Args:
        rag: With all services; its mode and threshold are set aside.
        questions: At least one.
    """

    def timed(mode_rag: LazyRAG) -> list[LazyRAGResult]:
        return [mode_rag.run(question.text) for question in questions]

    rag.with_options(mode="standard").run(questions[0].text)  # the first call pays for lazy initialisation
    standard = timed(rag.with_options(mode="standard"))
    oracle_rag = rag.with_options(mode="oracle")
    oracle = [oracle_rag.run(question.text, oracle=question.gold) for question in questions]
    return Timings(
        n=len(questions),
        none=_milliseconds(timed(rag.with_options(mode="none"))),
        standard=_milliseconds(standard),
        strong=_milliseconds(timed(rag.with_options(mode="strong"))),
        oracle=_milliseconds(oracle),
        shut=_milliseconds(timed(rag.with_options(mode="lazy", threshold=math.inf))),
        opened=_milliseconds(timed(rag.with_options(mode="lazy", threshold=0.0))),
        retrieval=1000 * statistics.fmean(result.timings["retrieval"] for result in standard),
    )


def latency_table(report: GateReport, timings: Timings) -> LatencyTable:
    """Expect each mode's time at the report's retrieval rates."""
    fixed = {
        "No retrieval": timings.none,
        "Summaries only": timings.shut,
        "Standard RAG": timings.standard,
        "Strong RAG": timings.strong,
        "Oracle": timings.oracle,
    }
    rows = []
    for row in report.modes:
        rate = row.retrieval.value if row.retrieval is not None else 0.0
        model = fixed.get(row.label, (1 - rate) * timings.shut + rate * timings.opened)
        rows.append(
            ModeLatency(
                row.label,
                model + rate * timings.retrieval,
                tuple(model + rate * latency for latency in RETRIEVAL_LATENCIES),
            )
        )
    return LatencyTable(timings, RETRIEVAL_LATENCIES, tuple(rows))


def _milliseconds(results: Sequence[LazyRAGResult]) -> float:
    return 1000 * statistics.fmean(
        math.fsum(seconds for stage, seconds in result.timings.items() if stage != "retrieval")
        for result in results
    )
