"""Small in-memory indices, and what is put into them: passages cut from documents, and summaries."""

from surerag.retrieval.chunking import TextChunk, chunk_documents, chunk_text
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
