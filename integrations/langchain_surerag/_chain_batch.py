"""Many questions of one chain in one thread, so that a local model reads them together."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from langchain_surerag._events import announce
from langchain_surerag._inputs import question_of
from surerag import LazyRAG, run_many
from surerag.effects import Program
from surerag.methods.lazy_rag import LazyRAGResult


def answers_of(
    rag: LazyRAG, given: Sequence[Any], configs: Sequence[RunnableConfig], at_once: int
) -> list[LazyRAGResult | Exception]:
    """Answer every question under its own config; a question that failed is answered by its error."""
    in_context = zip(given, configs, strict=True)
    results: list[Any] = contextvars.copy_context().run(
        run_many,
        (_program(rag, question, config) for question, config in in_context),
        rag.services,
        at_once=at_once,
        on_event=announce,
        return_exceptions=True,
    )
    return results


def _program(rag: LazyRAG, given: Any, config: RunnableConfig) -> Program[LazyRAGResult]:
    """Return the program of one question among many.

    A driver copies the context right after it was handed a program: what is set here stays with it.
    """
    var_child_runnable_config.set(config)

    def program() -> Program[LazyRAGResult]:
        question = question_of(given)
        return (yield from rag.program(question.text, oracle=question.oracle))

    return program()
