"""Cut documents into passages, summarise documents, and search passages or summaries in memory."""

from surerag.retrieval.chunking import TextChunk, chunk_documents, chunk_text
from surerag.retrieval.index import PassageIndex, SummaryIndex
from surerag.retrieval.summaries import (
    LeadSummaries,
    MissingSummariesWarning,
    ModelSummaries,
    StaleSummariesWarning,
    Summarizer,
    lead_summary,
    prose,
    stored_summaries,
    summarizer_of,
    with_summaries,
)

__all__ = [
    "LeadSummaries", "MissingSummariesWarning", "ModelSummaries", "PassageIndex", "StaleSummariesWarning",
    "Summarizer", "SummaryIndex", "TextChunk", "chunk_documents", "chunk_text", "lead_summary", "prose",
    "stored_summaries", "summarizer_of", "with_summaries",
]  # fmt: skip
