"""The public classes: a frozen configuration around a method, and the services that answer it."""

from surerag.components.cluster_compressor import ClusterCompressor
from surerag.components.lazy_rag import LazyRAG
from surerag.components.seper import SePer

__all__ = ["ClusterCompressor", "LazyRAG", "SePer"]
