"""DENSE-RAG on the closed world: does the score tell understanding, and do the repairs mend it?"""

from surerag_studies.dense_rag.study import dense_study

__all__ = ["dense_study"]
