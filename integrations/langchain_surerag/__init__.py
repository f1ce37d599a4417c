"""surerag for LangChain: act on what a pipeline's reader knows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from surerag.extras import extra

if TYPE_CHECKING:
    from langchain_surerag.adaptive_splitter import AdaptiveSemanticSplitter
    from langchain_surerag.agents import (
        ContextCompressionMiddleware,
        LazyRetrievalMiddleware,
        UncertaintyMiddleware,
        ask_a_person,
    )
    from langchain_surerag.cluster_compressor import ClusterCompressor
    from langchain_surerag.consensus import ConsensusAnswer
    from langchain_surerag.dense_evaluator import DenseEvaluator
    from langchain_surerag.dense_refiner import DenseRefiner
    from langchain_surerag.dialects import Asked, Dialect, OverruledWarning, register_dialect
    from langchain_surerag.entropies import MessageEntropy, entropy_of
    from langchain_surerag.evidence_evaluators import AnswerChoiceEvaluator, FactCheckEvaluator
    from langchain_surerag.lazy_chain import LazyRetrievalChain, create_lazy_retrieval_tool
    from langchain_surerag.nodes import (
        RAGState,
        compression_node,
        lazy_retrieval_node,
        retrieval_node,
        rewriting_node,
    )
    from langchain_surerag.selective import SelectiveAnswer
    from langchain_surerag.seper_evaluator import DeltaSePerEvaluator
    from langchain_surerag.services import EmbeddingEncoder, RunnableRetriever, reader_from_model
    from langchain_surerag.summaries import asummaries_of, summaries_of
    from langchain_surerag.uncertainty_rewriter import UncertaintyRewriter, UncertaintyRewriteRetriever

_HOMES = {
    "AdaptiveSemanticSplitter": "langchain_surerag.adaptive_splitter",
    "AnswerChoiceEvaluator": "langchain_surerag.evidence_evaluators",
    "Asked": "langchain_surerag.dialects",
    "ClusterCompressor": "langchain_surerag.cluster_compressor",
    "ConsensusAnswer": "langchain_surerag.consensus",
    "ContextCompressionMiddleware": "langchain_surerag.agents",
    "DeltaSePerEvaluator": "langchain_surerag.seper_evaluator",
    "DenseEvaluator": "langchain_surerag.dense_evaluator",
    "DenseRefiner": "langchain_surerag.dense_refiner",
    "Dialect": "langchain_surerag.dialects",
    "EmbeddingEncoder": "langchain_surerag.services",
    "FactCheckEvaluator": "langchain_surerag.evidence_evaluators",
    "LazyRetrievalChain": "langchain_surerag.lazy_chain",
    "LazyRetrievalMiddleware": "langchain_surerag.agents",
    "MessageEntropy": "langchain_surerag.entropies",
    "OverruledWarning": "langchain_surerag.dialects",
    "RAGState": "langchain_surerag.nodes",
    "RunnableRetriever": "langchain_surerag.services",
    "UncertaintyMiddleware": "langchain_surerag.agents",
    "SelectiveAnswer": "langchain_surerag.selective",
    "UncertaintyRewriteRetriever": "langchain_surerag.uncertainty_rewriter",
    "UncertaintyRewriter": "langchain_surerag.uncertainty_rewriter",
    "ask_a_person": "langchain_surerag.agents",
    "compression_node": "langchain_surerag.nodes",
    "asummaries_of": "langchain_surerag.summaries",
    "create_lazy_retrieval_tool": "langchain_surerag.lazy_chain",
    "entropy_of": "langchain_surerag.entropies",
    "lazy_retrieval_node": "langchain_surerag.nodes",
    "reader_from_model": "langchain_surerag.services",
    "register_dialect": "langchain_surerag.dialects",
    "retrieval_node": "langchain_surerag.nodes",
    "rewriting_node": "langchain_surerag.nodes",
    "summaries_of": "langchain_surerag.summaries",
}

_FOR_AGENTS = ("langchain_surerag.agents", "langchain_surerag.nodes")

__all__ = [
    "AdaptiveSemanticSplitter",
    "AnswerChoiceEvaluator",
    "Asked",
    "ClusterCompressor",
    "ConsensusAnswer",
    "ContextCompressionMiddleware",
    "DeltaSePerEvaluator",
    "DenseEvaluator",
    "DenseRefiner",
    "Dialect",
    "EmbeddingEncoder",
    "FactCheckEvaluator",
    "LazyRetrievalChain",
    "LazyRetrievalMiddleware",
    "MessageEntropy",
    "OverruledWarning",
    "RAGState",
    "RunnableRetriever",
    "SelectiveAnswer",
    "UncertaintyMiddleware",
    "UncertaintyRewriteRetriever",
    "UncertaintyRewriter",
    "ask_a_person",
    "asummaries_of",
    "compression_node",
    "create_lazy_retrieval_tool",
    "entropy_of",
    "lazy_retrieval_node",
    "reader_from_model",
    "register_dialect",
    "retrieval_node",
    "rewriting_node",
    "summaries_of",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing this package stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    with extra("agents" if home in _FOR_AGENTS else "langchain"):
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
