"""EDC²-RAG on the closed world: accuracy, calls and context tokens under noise and redundancy."""

from surerag.evaluation.edc2.study import compression_study

__all__ = ["compression_study"]
