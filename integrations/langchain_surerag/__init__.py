"""surerag for LangChain: act on the uncertainty of a pipeline's reader."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from surerag.errors import extra

if TYPE_CHECKING:
    from langchain_surerag.compressors import ClusterCompressor, DenseRefiner
    from langchain_surerag.evaluators import DeltaSePerEvaluator, DenseEvaluator
    from langchain_surerag.lazy import LazyRetrievalChain, create_lazy_retrieval_tool
    from langchain_surerag.middleware import LazyRetrievalMiddleware
    from langchain_surerag.models import reader_from_model
    from langchain_surerag.retrieval import EmbeddingEncoder
    from langchain_surerag.rewriting import UncertaintyRewriter, UncertaintyRewriteRetriever
    from langchain_surerag.selective import SelectiveAnswer
    from langchain_surerag.splitter import SemanticTextSplitter
    from langchain_surerag.summaries import summaries_of

_MODULES = {
    "compressors": "ClusterCompressor DenseRefiner",
    "evaluators": "DeltaSePerEvaluator DenseEvaluator",
    "lazy": "LazyRetrievalChain create_lazy_retrieval_tool",
    "middleware": "LazyRetrievalMiddleware",
    "models": "reader_from_model",
    "retrieval": "EmbeddingEncoder",
    "rewriting": "UncertaintyRewriteRetriever UncertaintyRewriter",
    "selective": "SelectiveAnswer",
    "splitter": "SemanticTextSplitter",
    "summaries": "summaries_of",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "ClusterCompressor",
    "DeltaSePerEvaluator",
    "DenseEvaluator",
    "DenseRefiner",
    "EmbeddingEncoder",
    "LazyRetrievalChain",
    "LazyRetrievalMiddleware",
    "SelectiveAnswer",
    "SemanticTextSplitter",
    "UncertaintyRewriteRetriever",
    "UncertaintyRewriter",
    "create_lazy_retrieval_tool",
    "reader_from_model",
    "summaries_of",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing this package stays light."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULE_OF[name]
    with extra("agents" if module == "middleware" else "langchain"):
        return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
