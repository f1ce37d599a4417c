"""A gate on questions with known answers: every mode of L-RAG, and every threshold, from the same answers."""

from surerag.evaluation.gate.analysis import report_of, threshold_of
from surerag.evaluation.gate.asking import (
    Answers,
    GateQuestion,
    ask_all,
    calibrated,
    looked_up,
    records,
    world_questions,
)
from surerag.evaluation.gate.results import GateReport, GateThreshold

__all__ = [
    "Answers",
    "GateQuestion",
    "GateReport",
    "GateThreshold",
    "ask_all",
    "calibrated",
    "looked_up",
    "records",
    "report_of",
    "threshold_of",
    "world_questions",
]
