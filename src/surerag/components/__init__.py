"""The public classes: a frozen configuration around a method, and the services that answer it."""

from surerag.components.adaptive_chunker import AdaptiveChunker
from surerag.components.cluster_compressor import ClusterCompressor
from surerag.components.context_refiner import ContextRefiner
from surerag.components.dense import Dense
from surerag.components.lazy_rag import LazyRAG
from surerag.components.seper import SePer
from surerag.components.uncertainty_rewriter import UncertaintyRewriter

__all__ = [
    "AdaptiveChunker",
    "ClusterCompressor",
    "ContextRefiner",
    "Dense",
    "LazyRAG",
    "SePer",
    "UncertaintyRewriter",
]
