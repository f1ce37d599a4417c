"""The L-RAG study: does the gate know when to retrieve, and what does that save?"""

from surerag.evaluation.lazy_rag.results import LazyRagStudy

__all__ = ["LazyRagStudy"]
