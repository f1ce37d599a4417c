"""surerag for LangChain: measures how sure a model is, and retrieves, rewrites or abstains accordingly."""

from typing import TYPE_CHECKING, Any

from surerag.errors import extra

with extra("langchain"):
    from langchain_surerag.certainty import (
        CertaintyChain,
        CertaintyHandler,
        SelectiveAnswer,
        with_certainty,
    )
    from langchain_surerag.chat import ChatReader
    from langchain_surerag.compressors import ClusterCompressor, DenseRefiner
    from langchain_surerag.evaluators import DeltaSePerEvaluator, DenseEvaluator
    from langchain_surerag.lazy import LazyRetrievalChain, create_lazy_retrieval_tool
    from langchain_surerag.models import reader_from_model
    from langchain_surerag.retrieval import EmbeddingEncoder
    from langchain_surerag.rewriting import UncertaintyRewriter, UncertaintyRewriteRetriever
    from langchain_surerag.splitter import SemanticTextSplitter
    from langchain_surerag.stores import SummaryStore
    from langchain_surerag.summaries import summaries_of

if TYPE_CHECKING:
    from langchain_surerag.middleware import LazyRetrievalMiddleware

__all__ = [
    "CertaintyChain", "CertaintyHandler", "ChatReader", "ClusterCompressor", "DeltaSePerEvaluator",
    "DenseEvaluator", "DenseRefiner", "EmbeddingEncoder", "LazyRetrievalChain", "LazyRetrievalMiddleware",
    "SelectiveAnswer", "SemanticTextSplitter", "SummaryStore", "UncertaintyRewriteRetriever",
    "UncertaintyRewriter", "create_lazy_retrieval_tool", "reader_from_model", "summaries_of",
    "with_certainty",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import ``LazyRetrievalMiddleware``, which needs the package ``langchain``, at its first use."""
    if name != "LazyRetrievalMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra("agents"):
        from langchain_surerag.middleware import LazyRetrievalMiddleware
    return LazyRetrievalMiddleware
