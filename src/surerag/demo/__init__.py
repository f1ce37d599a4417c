"""A small real reader and a small real corpus, for demonstrations and tests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surerag.demo.corpus import DemoQuestion, load_corpus, load_questions
    from surerag.demo.reader import fetch_base, load_reader

_MODULE_OF = {
    "DemoQuestion": "surerag.demo.corpus",
    "fetch_base": "surerag.demo.reader",
    "load_corpus": "surerag.demo.corpus",
    "load_questions": "surerag.demo.corpus",
    "load_reader": "surerag.demo.reader",
}

__all__ = ["DemoQuestion", "fetch_base", "load_corpus", "load_questions", "load_reader"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
