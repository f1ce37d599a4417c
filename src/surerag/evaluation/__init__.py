"""Evaluate systems: ask them the same questions, store their answers, and compare and test the systems."""

from surerag.evaluation.asking import EvaluationRun, aevaluate, evaluate
from surerag.evaluation.gate import Verdict, check_requirement
from surerag.evaluation.pipelines import PipelineSetup, build_system
from surerag.evaluation.questions import Question, read_questions
from surerag.evaluation.report import terminal_table, write_report
from surerag.evaluation.statistics import Comparison, compare_systems, summarize
from surerag.evaluation.systems import EvaluationAnswer

__all__ = [
    "Comparison", "EvaluationAnswer", "EvaluationRun", "PipelineSetup", "Question", "Verdict", "aevaluate",
    "build_system", "check_requirement", "compare_systems", "evaluate", "read_questions", "summarize",
    "terminal_table", "write_report",
]  # fmt: skip
