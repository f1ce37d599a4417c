"""Summaries on the disk: L-RAG's tier 1 for corpora that do not fit into memory."""

from surerag.retrieval.disk.index import DiskSummaryIndex

__all__ = ["DiskSummaryIndex"]
