"""EDC²-RAG on the closed world: accuracy, calls and context tokens under noise and redundancy."""

from surerag_studies.edc2.study import compression_study

__all__ = ["compression_study"]
