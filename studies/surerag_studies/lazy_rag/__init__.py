"""L-RAG on the closed world: does the gate know when to retrieve, and what does that save?"""

from surerag_studies.lazy_rag.study import lazy_rag_study

__all__ = ["lazy_rag_study"]
