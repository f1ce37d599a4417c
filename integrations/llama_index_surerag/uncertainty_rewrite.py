"""DynQR in LlamaIndex: a query transform and a query engine that rewrite when the reader is uncertain."""

from llama_index_surerag.rewrite_engine import UncertaintyRewriteQueryEngine
from llama_index_surerag.rewrite_transform import RewrittenQuery, UncertaintyRewriteTransform

__all__ = ["RewrittenQuery", "UncertaintyRewriteQueryEngine", "UncertaintyRewriteTransform"]
