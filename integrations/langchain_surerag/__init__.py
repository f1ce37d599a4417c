"""surerag for LangChain: act on what a pipeline's reader knows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from surerag.extras import extra

if TYPE_CHECKING:
    from langchain_surerag.adaptive_splitter import AdaptiveSemanticSplitter
    from langchain_surerag.cluster_compressor import ClusterCompressor
    from langchain_surerag.dense_evaluator import DenseEvaluator
    from langchain_surerag.dense_refiner import DenseRefiner
    from langchain_surerag.dialects import Asked, Dialect, OverruledWarning, register_dialect
    from langchain_surerag.lazy_chain import LazyRetrievalChain, create_lazy_retrieval_tool
    from langchain_surerag.selective import SelectiveAnswer
    from langchain_surerag.seper_evaluator import DeltaSePerEvaluator
    from langchain_surerag.services import EmbeddingEncoder, RunnableRetriever, reader_from_model
    from langchain_surerag.summaries import summaries_of
    from langchain_surerag.uncertainty_rewriter import UncertaintyRewriter, UncertaintyRewriteRetriever

_HOMES = {
    "AdaptiveSemanticSplitter": "langchain_surerag.adaptive_splitter",
    "Asked": "langchain_surerag.dialects",
    "ClusterCompressor": "langchain_surerag.cluster_compressor",
    "DeltaSePerEvaluator": "langchain_surerag.seper_evaluator",
    "DenseEvaluator": "langchain_surerag.dense_evaluator",
    "DenseRefiner": "langchain_surerag.dense_refiner",
    "Dialect": "langchain_surerag.dialects",
    "EmbeddingEncoder": "langchain_surerag.services",
    "LazyRetrievalChain": "langchain_surerag.lazy_chain",
    "OverruledWarning": "langchain_surerag.dialects",
    "RunnableRetriever": "langchain_surerag.services",
    "SelectiveAnswer": "langchain_surerag.selective",
    "UncertaintyRewriteRetriever": "langchain_surerag.uncertainty_rewriter",
    "UncertaintyRewriter": "langchain_surerag.uncertainty_rewriter",
    "create_lazy_retrieval_tool": "langchain_surerag.lazy_chain",
    "reader_from_model": "langchain_surerag.services",
    "register_dialect": "langchain_surerag.dialects",
    "summaries_of": "langchain_surerag.summaries",
}

__all__ = [
    "AdaptiveSemanticSplitter",
    "Asked",
    "ClusterCompressor",
    "DeltaSePerEvaluator",
    "DenseEvaluator",
    "DenseRefiner",
    "Dialect",
    "EmbeddingEncoder",
    "LazyRetrievalChain",
    "OverruledWarning",
    "RunnableRetriever",
    "SelectiveAnswer",
    "UncertaintyRewriteRetriever",
    "UncertaintyRewriter",
    "create_lazy_retrieval_tool",
    "reader_from_model",
    "register_dialect",
    "summaries_of",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing this package stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra("langchain"):
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
