"""A pipeline's own query engines and retrievers as systems that ``surerag.compare`` asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine

from llama_index_surerag._counting import counted
from llama_index_surerag.nodes import passages_of
from llama_index_surerag.services import NodeRetriever
from surerag import SystemAnswer


def as_system(given: Any) -> Any:
    """Return what ``surerag.compare`` asks in place of a LlamaIndex object; None if it is no such object.

    A query engine is asked with ``query``, a chat engine with ``chat`` from an empty conversation. Tokens are
    those that its models report through LlamaIndex's instrumentation; where a model reports none, they are
    estimated from its messages. A retriever becomes a retriever of the core.

    Args:
        given: A query engine, a chat engine or a retriever.
    """
    if isinstance(given, BaseRetriever):
        return NodeRetriever(given)
    if isinstance(given, BaseQueryEngine):
        return _Asked(given.query)
    if isinstance(given, BaseChatEngine):

        def chat(question: str) -> Any:
            given.reset()
            return given.chat(question)

        return _Asked(chat)
    return None


class _Asked:
    """Asks an engine, and counts what its models report meanwhile."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask

    def __call__(self, question: str) -> SystemAnswer:
        """Return the engine's answer with its source nodes."""
        with counted() as count:
            found = self._ask(question)
        metadata: Mapping[str, Any] = getattr(found, "metadata", None) or {}
        retrieved = metadata.get("retrieve")
        return SystemAnswer(
            str(found),
            tuple(passages_of(getattr(found, "source_nodes", None) or [])),
            count.costs,
            retrieved if isinstance(retrieved, bool) else None,
            count.model,
        )
