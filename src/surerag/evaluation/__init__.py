"""One run: questions × systems → rows in a file, and the statistics, report and gate that read it.

It is larger than its neighbours since it takes the place of nine rooms: pipelines by name, resumption, costs,
tests, forecasts, a page and a gate all work on the same rows.
"""

from surerag.evaluation.questions import Question, read_questions
from surerag.evaluation.run import EvaluationRun, aevaluate, evaluate
from surerag.evaluation.systems import EvaluationAnswer

__all__ = ["EvaluationAnswer", "EvaluationRun", "Question", "aevaluate", "evaluate", "read_questions"]
