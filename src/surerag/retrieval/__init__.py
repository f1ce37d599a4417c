"""Indices in memory and on the disk, and what is put into them: passages of documents, and summaries."""

from surerag.retrieval.chunking import TextChunk, chunk_documents, chunk_text
from surerag.retrieval.disk import DiskSummaryIndex
from surerag.retrieval.index import PassageIndex, SummaryIndex
from surerag.retrieval.sentences import Sentence, split_sentences
from surerag.retrieval.summaries import (
    LeadSummaries,
    MetadataSummaries,
    ModelSummaries,
    Summarizer,
    each,
    lead_summary,
)

__all__ = [
    "DiskSummaryIndex",
    "LeadSummaries",
    "MetadataSummaries",
    "ModelSummaries",
    "PassageIndex",
    "Sentence",
    "Summarizer",
    "SummaryIndex",
    "TextChunk",
    "chunk_documents",
    "chunk_text",
    "each",
    "lead_summary",
    "split_sentences",
]
