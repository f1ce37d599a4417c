"""surerag for LlamaIndex: act on the reader's own uncertainty in an existing pipeline."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from surerag.errors import extra

if TYPE_CHECKING:
    from llama_index_surerag.abstaining_engine import AbstainingQueryEngine
    from llama_index_surerag.cluster_postprocessor import ClusterCompressorPostprocessor
    from llama_index_surerag.dense_evaluator import DenseEvaluationResult, DenseEvaluator
    from llama_index_surerag.dense_postprocessor import DenseRefinerPostprocessor
    from llama_index_surerag.events import (
        GateDecisionEvent,
        ProgressEvent,
        RewriteDecisionEvent,
    )
    from llama_index_surerag.lazy_engine import LazyRetrievalQueryEngine
    from llama_index_surerag.llm import reader_from_llm
    from llama_index_surerag.rewrite_engine import UncertaintyRewriteQueryEngine
    from llama_index_surerag.semantic_node_parser import SemanticNodeParser
    from llama_index_surerag.seper_evaluator import DeltaSePerEvaluator, DeltaSePerResult
    from llama_index_surerag.services import EmbeddingEncoder, NodeRetriever
    from llama_index_surerag.summaries import summary_index, summary_nodes
    from llama_index_surerag.workflows import (
        AnswerStreamEvent,
        MethodStreamEvent,
        answer_in,
        engine_tool,
        streamed_to,
    )

_MODULES = {
    "abstaining_engine": "AbstainingQueryEngine",
    "cluster_postprocessor": "ClusterCompressorPostprocessor",
    "dense_evaluator": "DenseEvaluationResult DenseEvaluator",
    "dense_postprocessor": "DenseRefinerPostprocessor",
    "events": "GateDecisionEvent ProgressEvent RewriteDecisionEvent",
    "lazy_engine": "LazyRetrievalQueryEngine",
    "llm": "reader_from_llm",
    "rewrite_engine": "UncertaintyRewriteQueryEngine",
    "semantic_node_parser": "SemanticNodeParser",
    "seper_evaluator": "DeltaSePerEvaluator DeltaSePerResult",
    "services": "EmbeddingEncoder NodeRetriever",
    "summaries": "summary_index summary_nodes",
    "workflows": "AnswerStreamEvent MethodStreamEvent answer_in engine_tool streamed_to",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "AbstainingQueryEngine",
    "AnswerStreamEvent",
    "ClusterCompressorPostprocessor",
    "DeltaSePerEvaluator",
    "DeltaSePerResult",
    "DenseEvaluationResult",
    "DenseEvaluator",
    "DenseRefinerPostprocessor",
    "EmbeddingEncoder",
    "GateDecisionEvent",
    "LazyRetrievalQueryEngine",
    "MethodStreamEvent",
    "NodeRetriever",
    "ProgressEvent",
    "RewriteDecisionEvent",
    "SemanticNodeParser",
    "UncertaintyRewriteQueryEngine",
    "answer_in",
    "engine_tool",
    "reader_from_llm",
    "streamed_to",
    "summary_index",
    "summary_nodes",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing this package stays light."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra("llama-index"):
        return getattr(import_module(f"llama_index_surerag.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
