"""Systems compared on the same questions, by what their retrieval is worth to a reader."""

from surerag.evaluation.comparison.comparing import compare
from surerag.evaluation.comparison.results import SystemComparison
from surerag.evaluation.comparison.systems import Question, at_k, then
from surerag.evaluation.rows import Row

__all__ = ["Question", "Row", "SystemComparison", "at_k", "compare", "then"]
