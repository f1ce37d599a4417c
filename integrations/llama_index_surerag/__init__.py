"""surerag for LlamaIndex: act on the reader's own uncertainty in an existing pipeline."""

from surerag.errors import extra

with extra("llama-index"):
    from llama_index_surerag.engines import (
        AbstainingQueryEngine,
        LazyRetrievalQueryEngine,
        UncertaintyRewriteQueryEngine,
    )
    from llama_index_surerag.evaluators import DeltaSePerEvaluator, DenseEvaluator, MethodEvaluationResult
    from llama_index_surerag.events import GateDecisionEvent, ProgressEvent, RewriteDecisionEvent
    from llama_index_surerag.llm import reader_from_llm
    from llama_index_surerag.postprocessors import ClusterCompressorPostprocessor, DenseRefinerPostprocessor
    from llama_index_surerag.rewriting import UncertaintyRewriteRetriever, UncertaintyRewriteTransform
    from llama_index_surerag.semantic_node_parser import SemanticNodeParser
    from llama_index_surerag.services import EmbeddingEncoder, NodeRetriever
    from llama_index_surerag.summaries import summary_index, summary_nodes
    from llama_index_surerag.workflows import (
        AnswerStreamEvent,
        MethodStreamEvent,
        answer_in,
        engine_tool,
        streamed_to,
    )

__all__ = [
    "AbstainingQueryEngine",
    "AnswerStreamEvent",
    "ClusterCompressorPostprocessor",
    "DeltaSePerEvaluator",
    "DenseEvaluator",
    "DenseRefinerPostprocessor",
    "EmbeddingEncoder",
    "GateDecisionEvent",
    "LazyRetrievalQueryEngine",
    "MethodEvaluationResult",
    "MethodStreamEvent",
    "NodeRetriever",
    "ProgressEvent",
    "RewriteDecisionEvent",
    "SemanticNodeParser",
    "UncertaintyRewriteQueryEngine",
    "UncertaintyRewriteRetriever",
    "UncertaintyRewriteTransform",
    "answer_in",
    "engine_tool",
    "reader_from_llm",
    "streamed_to",
    "summary_index",
    "summary_nodes",
]
