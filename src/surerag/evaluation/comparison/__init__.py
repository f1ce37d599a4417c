"""Systems compared on the same questions, by what their retrieval is worth to a reader."""

from surerag.evaluation.comparison.comparing import compare, items_in
from surerag.evaluation.comparison.results import SystemComparison
from surerag.evaluation.comparison.systems import at_k, then
from surerag.evaluation.rows import Question, Row

__all__ = ["Question", "Row", "SystemComparison", "at_k", "compare", "items_in", "then"]
