"""What a lazy chain returns, whole or in chunks that add up to the whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from langchain_core.runnables.utils import AddableDict

from langchain_surerag.documents import documents_of
from surerag.methods.lazy_rag import LazyRAGPlan, LazyRAGResult

ChainOutput = dict[str, Any]


def output_of(result: LazyRAGResult, *, details: bool) -> ChainOutput:
    """Return the whole output."""
    return {
        "answer": result.answer,
        "documents": documents_of(result.passages),
        "decision": asdict(result.decision),
        **_details(result, details),
    }


def opening_of(plan: LazyRAGPlan) -> ChainOutput:
    """Return the first chunk: what is settled before the answer flows."""
    return AddableDict(documents=documents_of(plan.passages), decision=asdict(plan.decision))


def closing_of(result: LazyRAGResult, *, details: bool) -> ChainOutput:
    """Return the last chunk: nothing more to the answer, so that an empty one is there, too."""
    return AddableDict(answer="", **_details(result, details))


def _details(result: LazyRAGResult, wanted: bool) -> ChainOutput:
    if not wanted:
        return {}
    return {
        "summaries": documents_of(result.summaries),
        "mode": result.mode,
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": result.completion_tokens,
            "retrievals": result.retrievals,
        },
        "timings": dict(result.timings),
    }
