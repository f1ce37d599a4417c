"""surerag for LlamaIndex: measures how sure an LLM is, and retrieves, rewrites or abstains accordingly."""

from surerag.errors import extra

with extra("llama-index"):
    from llama_index_surerag.certainty import (
        AbstainingChatEngine,
        AbstainingQueryEngine,
        certainty_in,
        with_certainty,
    )
    from llama_index_surerag.engines import LazyRetrievalQueryEngine, UncertaintyRewriteQueryEngine
    from llama_index_surerag.evaluators import DeltaSePerEvaluator, DenseEvaluator, MethodEvaluationResult
    from llama_index_surerag.events import MethodEvent, MethodStreamEvent, streamed_to
    from llama_index_surerag.llm import reader_from_llm
    from llama_index_surerag.postprocessors import ClusterCompressorPostprocessor, DenseRefinerPostprocessor
    from llama_index_surerag.reader_llm import ReaderLLM
    from llama_index_surerag.rewriting import UncertaintyRewriteRetriever, UncertaintyRewriteTransform
    from llama_index_surerag.semantic_node_parser import SemanticNodeParser
    from llama_index_surerag.services import EmbeddingEncoder, NodeRetriever
    from llama_index_surerag.summaries import DocumentSummarizer, summary_index, summary_nodes

__all__ = [
    "AbstainingChatEngine", "AbstainingQueryEngine", "ClusterCompressorPostprocessor", "DeltaSePerEvaluator",
    "DenseEvaluator", "DenseRefinerPostprocessor", "DocumentSummarizer", "EmbeddingEncoder",
    "LazyRetrievalQueryEngine", "MethodEvaluationResult", "MethodEvent", "MethodStreamEvent", "NodeRetriever",
    "ReaderLLM", "SemanticNodeParser", "UncertaintyRewriteQueryEngine", "UncertaintyRewriteRetriever",
    "UncertaintyRewriteTransform", "certainty_in", "reader_from_llm", "streamed_to", "summary_index",
    "summary_nodes", "with_certainty",
]  # fmt: skip
