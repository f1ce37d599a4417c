"""Act on what a reader model knows: uncertainty-aware components for retrieval-augmented generation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surerag.decisions.benefit import BenefitModel, cross_fitted, fit_benefit
    from surerag.decisions.calibrating import calibrate
    from surerag.decisions.files import read_rows, write_rows
    from surerag.decisions.monitor import Alarm, Monitor, MonitorDecision
    from surerag.decisions.policy import CalibrationWarning, Identity, Policy
    from surerag.decisions.rows import DecisionRow
    from surerag.decisions.selective import (
        AnswerPolicy,
        SelectedAnswer,
        SelectiveAnswer,
        calibrate_answers,
        risk_coverage,
    )
    from surerag.drivers import (
        aiter_many,
        arun,
        arun_many,
        astream,
        iter_many,
        run,
        run_many,
        stream,
    )
    from surerag.evaluation.systems.comparing import acompare, compare
    from surerag.evaluation.systems.results import SystemsReport
    from surerag.evaluation.systems.system import SystemAnswer
    from surerag.methods.dense_rag.component import (
        AdaptiveChunker,
        Candidates,
        ContextRefiner,
        Dense,
    )
    from surerag.methods.dense_rag.memory import DenseCache
    from surerag.methods.dense_rag.options import ChunkerOptions, DenseOptions, RefinerOptions
    from surerag.methods.dense_rag.result import DenseResult, RefinementResult, SemanticChunk
    from surerag.methods.dynqr.component import UncertaintyRewriter
    from surerag.methods.dynqr.options import DynQROptions
    from surerag.methods.dynqr.result import Attempt, RewriteCosts, RewriteResult, Step
    from surerag.methods.edc2.component import ClusterCompressor
    from surerag.methods.edc2.options import EDC2Options, FewShot
    from surerag.methods.edc2.result import (
        SOURCES_KEY,
        UNSUPPORTED_KEY,
        Choice,
        ClusterReport,
        CompressionResult,
        Consensus,
        Judgement,
    )
    from surerag.methods.edc2.selecting import SelectedPieces
    from surerag.methods.lazy_rag.combined_gates import BenefitGate, CombinedGate, all_of, any_of
    from surerag.methods.lazy_rag.component import LazyRAG
    from surerag.methods.lazy_rag.gate import FirstPass, Gate, GateDecision, Look, Measured
    from surerag.methods.lazy_rag.options import LazyRAGOptions
    from surerag.methods.lazy_rag.result import LazyRAGPlan, LazyRAGResult
    from surerag.methods.lazy_rag.sample_gates import DisagreementGate, FunctionGate
    from surerag.methods.lazy_rag.token_gates import EntropyGate, MarginGate
    from surerag.methods.seper.component import SePer, SePerCase
    from surerag.methods.seper.options import Adaptive, SePerOptions
    from surerag.methods.seper.result import (
        Belief,
        Drawn,
        Interval,
        PassageUtility,
        SampledAnswer,
        SePerResult,
        UtilityResult,
    )
    from surerag.prices import Costs, Price, Prices, load_prices
    from surerag.prompt_files import load_prompts
    from surerag.prompts import PromptSet, PromptTemplate
    from surerag.provenance import PROVENANCE_KEY, Stretch, trace_back
    from surerag.readers.openai import OpenAIReader
    from surerag.readers.scripted import ScriptedReader
    from surerag.readers.transformers import TransformersReader
    from surerag.services import Services
    from surerag.types import Passage, Sampling

_HOMES = {
    "Adaptive": "surerag.methods.seper.options",
    "AdaptiveChunker": "surerag.methods.dense_rag.component",
    "Alarm": "surerag.decisions.monitor",
    "AnswerPolicy": "surerag.decisions.selective",
    "Attempt": "surerag.methods.dynqr.result",
    "Belief": "surerag.methods.seper.result",
    "BenefitGate": "surerag.methods.lazy_rag.combined_gates",
    "BenefitModel": "surerag.decisions.benefit",
    "CalibrationWarning": "surerag.decisions.policy",
    "Candidates": "surerag.methods.dense_rag.component",
    "ChunkerOptions": "surerag.methods.dense_rag.options",
    "ClusterCompressor": "surerag.methods.edc2.component",
    "ClusterReport": "surerag.methods.edc2.result",
    "CombinedGate": "surerag.methods.lazy_rag.combined_gates",
    "CompressionResult": "surerag.methods.edc2.result",
    "Choice": "surerag.methods.edc2.result",
    "Consensus": "surerag.methods.edc2.result",
    "ContextRefiner": "surerag.methods.dense_rag.component",
    "Costs": "surerag.prices",
    "DecisionRow": "surerag.decisions.rows",
    "Dense": "surerag.methods.dense_rag.component",
    "DenseCache": "surerag.methods.dense_rag.memory",
    "DenseOptions": "surerag.methods.dense_rag.options",
    "DenseResult": "surerag.methods.dense_rag.result",
    "DisagreementGate": "surerag.methods.lazy_rag.sample_gates",
    "Drawn": "surerag.methods.seper.result",
    "DynQROptions": "surerag.methods.dynqr.options",
    "EDC2Options": "surerag.methods.edc2.options",
    "EntropyGate": "surerag.methods.lazy_rag.token_gates",
    "FewShot": "surerag.methods.edc2.options",
    "FirstPass": "surerag.methods.lazy_rag.gate",
    "FunctionGate": "surerag.methods.lazy_rag.sample_gates",
    "Gate": "surerag.methods.lazy_rag.gate",
    "GateDecision": "surerag.methods.lazy_rag.gate",
    "Identity": "surerag.decisions.policy",
    "Interval": "surerag.methods.seper.result",
    "Judgement": "surerag.methods.edc2.result",
    "LazyRAG": "surerag.methods.lazy_rag.component",
    "LazyRAGOptions": "surerag.methods.lazy_rag.options",
    "LazyRAGPlan": "surerag.methods.lazy_rag.result",
    "LazyRAGResult": "surerag.methods.lazy_rag.result",
    "Look": "surerag.methods.lazy_rag.gate",
    "MarginGate": "surerag.methods.lazy_rag.token_gates",
    "Measured": "surerag.methods.lazy_rag.gate",
    "Monitor": "surerag.decisions.monitor",
    "MonitorDecision": "surerag.decisions.monitor",
    "OpenAIReader": "surerag.readers.openai",
    "PROVENANCE_KEY": "surerag.provenance",
    "Passage": "surerag.types",
    "PassageUtility": "surerag.methods.seper.result",
    "Policy": "surerag.decisions.policy",
    "Price": "surerag.prices",
    "Prices": "surerag.prices",
    "PromptSet": "surerag.prompts",
    "PromptTemplate": "surerag.prompts",
    "load_prompts": "surerag.prompt_files",
    "RefinementResult": "surerag.methods.dense_rag.result",
    "RefinerOptions": "surerag.methods.dense_rag.options",
    "RewriteCosts": "surerag.methods.dynqr.result",
    "RewriteResult": "surerag.methods.dynqr.result",
    "SOURCES_KEY": "surerag.methods.edc2.result",
    "SampledAnswer": "surerag.methods.seper.result",
    "Sampling": "surerag.types",
    "ScriptedReader": "surerag.readers.scripted",
    "SePer": "surerag.methods.seper.component",
    "SePerCase": "surerag.methods.seper.component",
    "SePerOptions": "surerag.methods.seper.options",
    "SePerResult": "surerag.methods.seper.result",
    "SelectedAnswer": "surerag.decisions.selective",
    "SelectedPieces": "surerag.methods.edc2.selecting",
    "SelectiveAnswer": "surerag.decisions.selective",
    "SemanticChunk": "surerag.methods.dense_rag.result",
    "Services": "surerag.services",
    "Step": "surerag.methods.dynqr.result",
    "Stretch": "surerag.provenance",
    "SystemAnswer": "surerag.evaluation.systems.system",
    "SystemsReport": "surerag.evaluation.systems.results",
    "TransformersReader": "surerag.readers.transformers",
    "UNSUPPORTED_KEY": "surerag.methods.edc2.result",
    "UncertaintyRewriter": "surerag.methods.dynqr.component",
    "UtilityResult": "surerag.methods.seper.result",
    "acompare": "surerag.evaluation.systems.comparing",
    "aiter_many": "surerag.drivers",
    "all_of": "surerag.methods.lazy_rag.combined_gates",
    "any_of": "surerag.methods.lazy_rag.combined_gates",
    "arun": "surerag.drivers",
    "arun_many": "surerag.drivers",
    "astream": "surerag.drivers",
    "calibrate": "surerag.decisions.calibrating",
    "calibrate_answers": "surerag.decisions.selective",
    "compare": "surerag.evaluation.systems.comparing",
    "cross_fitted": "surerag.decisions.benefit",
    "fit_benefit": "surerag.decisions.benefit",
    "iter_many": "surerag.drivers",
    "load_prices": "surerag.prices",
    "read_rows": "surerag.decisions.files",
    "risk_coverage": "surerag.decisions.selective",
    "run": "surerag.drivers",
    "run_many": "surerag.drivers",
    "stream": "surerag.drivers",
    "trace_back": "surerag.provenance",
    "write_rows": "surerag.decisions.files",
}

__all__ = [
    "PROVENANCE_KEY",
    "SOURCES_KEY",
    "UNSUPPORTED_KEY",
    "Adaptive",
    "AdaptiveChunker",
    "Alarm",
    "AnswerPolicy",
    "Attempt",
    "Belief",
    "BenefitGate",
    "BenefitModel",
    "CalibrationWarning",
    "Candidates",
    "Choice",
    "ChunkerOptions",
    "ClusterCompressor",
    "ClusterReport",
    "CombinedGate",
    "CompressionResult",
    "Consensus",
    "ContextRefiner",
    "Costs",
    "DecisionRow",
    "Dense",
    "DenseCache",
    "DenseOptions",
    "DenseResult",
    "DisagreementGate",
    "Drawn",
    "DynQROptions",
    "EDC2Options",
    "EntropyGate",
    "FewShot",
    "FirstPass",
    "FunctionGate",
    "Gate",
    "GateDecision",
    "Identity",
    "Interval",
    "Judgement",
    "LazyRAG",
    "LazyRAGOptions",
    "LazyRAGPlan",
    "LazyRAGResult",
    "Look",
    "MarginGate",
    "Measured",
    "Monitor",
    "MonitorDecision",
    "OpenAIReader",
    "Passage",
    "PassageUtility",
    "Policy",
    "Price",
    "Prices",
    "PromptSet",
    "PromptTemplate",
    "RefinementResult",
    "RefinerOptions",
    "RewriteCosts",
    "RewriteResult",
    "SampledAnswer",
    "Sampling",
    "ScriptedReader",
    "SePer",
    "SePerCase",
    "SePerOptions",
    "SePerResult",
    "SelectedAnswer",
    "SelectedPieces",
    "SelectiveAnswer",
    "SemanticChunk",
    "Services",
    "Step",
    "Stretch",
    "SystemAnswer",
    "SystemsReport",
    "TransformersReader",
    "UncertaintyRewriter",
    "UtilityResult",
    "acompare",
    "aiter_many",
    "all_of",
    "any_of",
    "arun",
    "arun_many",
    "astream",
    "calibrate",
    "calibrate_answers",
    "compare",
    "cross_fitted",
    "fit_benefit",
    "iter_many",
    "load_prices",
    "load_prompts",
    "read_rows",
    "risk_coverage",
    "run",
    "run_many",
    "stream",
    "trace_back",
    "write_rows",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import surerag`` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'surerag' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
