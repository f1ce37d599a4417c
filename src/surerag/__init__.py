"""Act on what a reader model knows: uncertainty-aware components for retrieval-augmented generation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surerag.components import (
        AdaptiveChunker,
        ClusterCompressor,
        ContextRefiner,
        Dense,
        LazyRAG,
        SePer,
        UncertaintyRewriter,
    )
    from surerag.drivers import arun, arun_many, run, run_many
    from surerag.methods.seper_types import Adaptive
    from surerag.readers.openai import OpenAIReader
    from surerag.readers.scripted import ScriptedReader
    from surerag.readers.transformers import TransformersReader
    from surerag.services import Services
    from surerag.types import Passage, Sampling

_HOMES = {
    "Adaptive": "surerag.methods.seper_types",
    "AdaptiveChunker": "surerag.components",
    "ClusterCompressor": "surerag.components",
    "ContextRefiner": "surerag.components",
    "Dense": "surerag.components",
    "LazyRAG": "surerag.components",
    "OpenAIReader": "surerag.readers.openai",
    "Passage": "surerag.types",
    "Sampling": "surerag.types",
    "ScriptedReader": "surerag.readers.scripted",
    "SePer": "surerag.components",
    "Services": "surerag.services",
    "TransformersReader": "surerag.readers.transformers",
    "UncertaintyRewriter": "surerag.components",
    "arun": "surerag.drivers",
    "arun_many": "surerag.drivers",
    "run": "surerag.drivers",
    "run_many": "surerag.drivers",
}

__all__ = [
    "Adaptive",
    "AdaptiveChunker",
    "ClusterCompressor",
    "ContextRefiner",
    "Dense",
    "LazyRAG",
    "OpenAIReader",
    "Passage",
    "Sampling",
    "ScriptedReader",
    "SePer",
    "Services",
    "TransformersReader",
    "UncertaintyRewriter",
    "arun",
    "arun_many",
    "run",
    "run_many",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import surerag`` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'surerag' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
