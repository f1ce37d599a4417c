"""DENSE-RAG on the closed world: does the score tell understanding, and do the repairs mend it?"""

from surerag.evaluation.dense.study import dense_study

__all__ = ["dense_study"]
