"""Measure how sure a model is of its answers; five methods from recent papers use this certainty.

The model that answers is called the reader. ``help`` of a class lists its options: ``help(surerag.LazyRAG)``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surerag.calibration import (
        AbstentionPolicy,
        CalibrationRow,
        ThresholdPolicy,
        calibrate_abstention,
        calibrate_threshold,
    )
    from surerag.certainty import Certainty, certainty_of
    from surerag.evaluation.asking import aevaluate, evaluate
    from surerag.messages import Passage, SamplingParams, Usage
    from surerag.methods.dense.component import DenseEvaluator, DenseRefiner, SemanticChunker
    from surerag.methods.dense.options import DenseOptions, DenseRefinerOptions, SemanticChunkerOptions
    from surerag.methods.dense.result import DenseRefinerResult, DenseResult, SemanticChunk
    from surerag.methods.dynqr.component import UncertaintyRewriter
    from surerag.methods.dynqr.options import DynQROptions
    from surerag.methods.dynqr.result import DynQRResult
    from surerag.methods.edc2.component import ClusterCompressor
    from surerag.methods.edc2.options import EDC2Options
    from surerag.methods.edc2.result import SENTENCES_KEY, SOURCES_KEY, ClusterReport, EDC2Result
    from surerag.methods.lazy_rag.component import LazyRAG
    from surerag.methods.lazy_rag.gates import (
        AbstentionGate,
        DisagreementGate,
        EntropyGate,
        FirstPass,
        Gate,
        GateDecision,
        MarginGate,
    )
    from surerag.methods.lazy_rag.options import LazyRAGOptions
    from surerag.methods.lazy_rag.result import LazyRAGPlan, LazyRAGResult
    from surerag.methods.second_opinion import AreYouSure, SampleAgreement
    from surerag.methods.seper.component import SePer
    from surerag.methods.seper.options import SePerOptions
    from surerag.methods.seper.result import SePerResult
    from surerag.prompts import PromptSet, PromptTemplate, load_prompts
    from surerag.readers.fake import FakeReader
    from surerag.readers.hosted import OpenAIReader
    from surerag.readers.local import TransformersReader
    from surerag.services import Services

_MODULES = {
    "surerag.calibration": "AbstentionPolicy CalibrationRow ThresholdPolicy calibrate_abstention "
    "calibrate_threshold",
    "surerag.certainty": "Certainty certainty_of",
    "surerag.evaluation.asking": "aevaluate evaluate",
    "surerag.messages": "Passage SamplingParams Usage",
    "surerag.methods.dense.component": "DenseEvaluator DenseRefiner SemanticChunker",
    "surerag.methods.dense.options": "DenseOptions DenseRefinerOptions SemanticChunkerOptions",
    "surerag.methods.dense.result": "DenseRefinerResult DenseResult SemanticChunk",
    "surerag.methods.dynqr.component": "UncertaintyRewriter",
    "surerag.methods.dynqr.options": "DynQROptions",
    "surerag.methods.dynqr.result": "DynQRResult",
    "surerag.methods.edc2.component": "ClusterCompressor",
    "surerag.methods.edc2.options": "EDC2Options",
    "surerag.methods.edc2.result": "SENTENCES_KEY SOURCES_KEY ClusterReport EDC2Result",
    "surerag.methods.lazy_rag.component": "LazyRAG",
    "surerag.methods.lazy_rag.gates": "AbstentionGate DisagreementGate EntropyGate FirstPass Gate "
    "GateDecision MarginGate",
    "surerag.methods.lazy_rag.options": "LazyRAGOptions",
    "surerag.methods.lazy_rag.result": "LazyRAGPlan LazyRAGResult",
    "surerag.methods.second_opinion": "AreYouSure SampleAgreement",
    "surerag.methods.seper.component": "SePer",
    "surerag.methods.seper.options": "SePerOptions",
    "surerag.methods.seper.result": "SePerResult",
    "surerag.prompts": "PromptSet PromptTemplate load_prompts",
    "surerag.readers.fake": "FakeReader",
    "surerag.readers.hosted": "OpenAIReader",
    "surerag.readers.local": "TransformersReader",
    "surerag.services": "Services",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "SENTENCES_KEY", "SOURCES_KEY", "AbstentionGate", "AbstentionPolicy", "AreYouSure", "CalibrationRow",
    "Certainty",
    "ClusterCompressor", "ClusterReport", "DenseEvaluator", "DenseOptions", "DenseRefiner",
    "DenseRefinerOptions", "DenseRefinerResult", "DenseResult", "DisagreementGate", "DynQROptions",
    "DynQRResult", "EDC2Options", "EDC2Result", "EntropyGate", "FakeReader", "FirstPass", "Gate",
    "GateDecision", "LazyRAG", "LazyRAGOptions", "LazyRAGPlan", "LazyRAGResult", "MarginGate", "OpenAIReader",
    "Passage", "PromptSet", "PromptTemplate", "SampleAgreement", "SamplingParams", "SePer", "SePerOptions",
    "SePerResult", "SemanticChunk", "SemanticChunker", "SemanticChunkerOptions", "Services",
    "ThresholdPolicy", "TransformersReader", "UncertaintyRewriter", "Usage", "aevaluate",
    "calibrate_abstention", "calibrate_threshold", "certainty_of", "evaluate", "load_prompts",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import surerag`` is fast."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'surerag' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
