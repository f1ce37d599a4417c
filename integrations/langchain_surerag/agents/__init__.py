"""Middleware for LangChain's agents: retrieve when unsure, compress what tools bring, tell unsure answers.

It is for ``langchain.agents.create_agent`` (``pip install "surerag[agents]"``), in graphs that are invoked,
streamed, or run asynchronously.
"""

from __future__ import annotations

from surerag.extras import extra

with extra("agents"):
    from langchain_surerag.agents.compression import ContextCompressionMiddleware
    from langchain_surerag.agents.lazy import LazyRetrievalMiddleware, LazyRetrievalState
    from langchain_surerag.agents.uncertainty import Uncertain, UncertaintyMiddleware, ask_a_person

__all__ = [
    "ContextCompressionMiddleware",
    "LazyRetrievalMiddleware",
    "LazyRetrievalState",
    "Uncertain",
    "UncertaintyMiddleware",
    "ask_a_person",
]
