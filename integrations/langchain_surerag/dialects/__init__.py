"""Dialects: how each kind of LangChain model is asked for what a method needs, and its answers read."""

from langchain_surerag.dialects.base import (
    Dialect,
    DialectOptions,
    LanguageModel,
    Prepared,
    Scoring,
    Thinking,
)
from langchain_surerag.dialects.registry import dialect_of, register_dialect
from langchain_surerag.dialects.settings import Asked, OverruledWarning, tell_overruled

__all__ = [
    "Asked",
    "Dialect",
    "DialectOptions",
    "LanguageModel",
    "OverruledWarning",
    "Prepared",
    "Scoring",
    "Thinking",
    "dialect_of",
    "register_dialect",
    "tell_overruled",
]
