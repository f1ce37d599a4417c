"""surerag for LlamaIndex: act on what a pipeline's reader knows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from surerag.extras import extra

if TYPE_CHECKING:
    from llama_index_surerag._settings import LLMSettingWarning
    from llama_index_surerag.cluster_postprocessor import ClusterCompressorPostprocessor
    from llama_index_surerag.consensus_synthesizer import ConsensusSynthesizer
    from llama_index_surerag.dense_evaluator import DenseEvaluationResult, DenseEvaluator
    from llama_index_surerag.dense_postprocessor import DenseRefinerPostprocessor
    from llama_index_surerag.dialects import LLMAnswer, LLMDialect, LLMToken, register_llm
    from llama_index_surerag.events import (
        EvaluationEvent,
        GateDecisionEvent,
        ProgressEvent,
        RewriteDecisionEvent,
    )
    from llama_index_surerag.evidence_evaluators import (
        AnswerChoiceEvaluator,
        EvidenceResult,
        FactCheckEvaluator,
    )
    from llama_index_surerag.lazy_engine import LazyRetrievalQueryEngine
    from llama_index_surerag.llm_reader import reader_from_llm
    from llama_index_surerag.rewrite_engine import UncertaintyRewriteQueryEngine
    from llama_index_surerag.rewrite_transform import UncertaintyRewriteTransform
    from llama_index_surerag.selective_engine import SelectiveQueryEngine
    from llama_index_surerag.semantic_node_parser import AdaptiveSemanticNodeParser
    from llama_index_surerag.seper_evaluator import DeltaSePerEvaluator, DeltaSePerResult
    from llama_index_surerag.services import EmbeddingEncoder, NodeRetriever
    from llama_index_surerag.summaries import summaries_of
    from llama_index_surerag.workflows import (
        AnswerStreamEvent,
        MethodStreamEvent,
        answer_in,
        engine_tool,
        streamed_to,
    )

_HOMES = {
    "AdaptiveSemanticNodeParser": "llama_index_surerag.semantic_node_parser",
    "AnswerChoiceEvaluator": "llama_index_surerag.evidence_evaluators",
    "AnswerStreamEvent": "llama_index_surerag.workflows",
    "ClusterCompressorPostprocessor": "llama_index_surerag.cluster_postprocessor",
    "ConsensusSynthesizer": "llama_index_surerag.consensus_synthesizer",
    "DeltaSePerEvaluator": "llama_index_surerag.seper_evaluator",
    "DeltaSePerResult": "llama_index_surerag.seper_evaluator",
    "DenseEvaluationResult": "llama_index_surerag.dense_evaluator",
    "DenseEvaluator": "llama_index_surerag.dense_evaluator",
    "DenseRefinerPostprocessor": "llama_index_surerag.dense_postprocessor",
    "EmbeddingEncoder": "llama_index_surerag.services",
    "EvaluationEvent": "llama_index_surerag.events",
    "EvidenceResult": "llama_index_surerag.evidence_evaluators",
    "FactCheckEvaluator": "llama_index_surerag.evidence_evaluators",
    "GateDecisionEvent": "llama_index_surerag.events",
    "LLMAnswer": "llama_index_surerag.dialects",
    "LLMDialect": "llama_index_surerag.dialects",
    "LLMSettingWarning": "llama_index_surerag._settings",
    "LLMToken": "llama_index_surerag.dialects",
    "LazyRetrievalQueryEngine": "llama_index_surerag.lazy_engine",
    "MethodStreamEvent": "llama_index_surerag.workflows",
    "NodeRetriever": "llama_index_surerag.services",
    "ProgressEvent": "llama_index_surerag.events",
    "RewriteDecisionEvent": "llama_index_surerag.events",
    "SelectiveQueryEngine": "llama_index_surerag.selective_engine",
    "UncertaintyRewriteQueryEngine": "llama_index_surerag.rewrite_engine",
    "UncertaintyRewriteTransform": "llama_index_surerag.rewrite_transform",
    "answer_in": "llama_index_surerag.workflows",
    "engine_tool": "llama_index_surerag.workflows",
    "reader_from_llm": "llama_index_surerag.llm_reader",
    "register_llm": "llama_index_surerag.dialects",
    "streamed_to": "llama_index_surerag.workflows",
    "summaries_of": "llama_index_surerag.summaries",
}

__all__ = [
    "AdaptiveSemanticNodeParser",
    "AnswerChoiceEvaluator",
    "AnswerStreamEvent",
    "ClusterCompressorPostprocessor",
    "ConsensusSynthesizer",
    "DeltaSePerEvaluator",
    "DeltaSePerResult",
    "DenseEvaluationResult",
    "DenseEvaluator",
    "DenseRefinerPostprocessor",
    "EmbeddingEncoder",
    "EvaluationEvent",
    "EvidenceResult",
    "FactCheckEvaluator",
    "GateDecisionEvent",
    "LLMAnswer",
    "LLMDialect",
    "LLMSettingWarning",
    "LLMToken",
    "LazyRetrievalQueryEngine",
    "MethodStreamEvent",
    "NodeRetriever",
    "ProgressEvent",
    "RewriteDecisionEvent",
    "SelectiveQueryEngine",
    "UncertaintyRewriteQueryEngine",
    "UncertaintyRewriteTransform",
    "answer_in",
    "engine_tool",
    "reader_from_llm",
    "register_llm",
    "streamed_to",
    "summaries_of",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing this package stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra("llama-index"):
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
