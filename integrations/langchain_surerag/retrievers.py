"""A pipeline's own retriever, as a retriever of surerag."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from langchain_core.retrievers import BaseRetriever, RetrieverLike
from langchain_core.runnables import Runnable, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.vectorstores import VectorStoreRetriever

from langchain_surerag.documents import passages_of
from surerag.errors import ConfigurationError, ServiceError
from surerag.types import Passage

AS_MANY = sys.maxsize
"""A number of passages that leaves the choice to the retriever."""


class RunnableRetriever:
    """Retrieves with a LangChain retriever, or any runnable from a question to documents.

    The number wanted is handed on to retrievers that take it (those of vector stores, and those with a
    parameter ``k`` in both their methods); what others return is cut to it. Calls run under the run of the
    chain that asks.

    Args:
        runnable: The retriever, with whatever is wrapped around it.

    Raises:
        ConfigurationError: If it is no runnable.
    """

    def __init__(self, runnable: RetrieverLike) -> None:
        if not isinstance(runnable, Runnable):
            raise ConfigurationError(
                f"expected a retriever, got {type(runnable).__name__}",
                hint="pass a LangChain retriever (store.as_retriever()) or a runnable from str to documents",
            )
        self._runnable: Runnable[str, list[Any]] = runnable
        self._takes_k = takes_k(runnable)

    def __repr__(self) -> str:
        return f"RunnableRetriever({self._runnable.get_name()})"

    def retrieve(self, query: str, k: int) -> Sequence[Passage]:
        """Return at most ``k`` passages, best first.

        Raises:
            ServiceError: If the runnable returns something other than documents.
        """
        return _passages(self._runnable.invoke(query, **self._wanted(k)), k)

    async def aretrieve(self, query: str, k: int) -> Sequence[Passage]:
        """Like ``retrieve``, with the runnable's own async method."""
        return _passages(await self._runnable.ainvoke(query, **self._wanted(k)), k)

    def _wanted(self, k: int) -> dict[str, Any]:
        return {"k": k} if self._takes_k and k != AS_MANY else {}


def takes_k(runnable: object) -> bool:
    """Whether ``invoke(question, k=…)`` reaches the search."""
    match runnable:
        case BaseRetriever():
            searches = (runnable._get_relevant_documents, runnable._aget_relevant_documents)
            named = all("k" in inspect.signature(search).parameters for search in searches)
            return named or isinstance(runnable, VectorStoreRetriever)
        case RunnableBindingBase():
            return takes_k(runnable.bound)
        case DynamicRunnable():
            return takes_k(runnable.default)
        case RunnableWithFallbacks():
            return all(takes_k(item) for item in runnable.runnables)
        case _:
            return False


def _passages(found: object, k: int) -> list[Passage]:
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ServiceError(
            f"the retriever returned a {type(found).__name__} where a list of documents was expected",
            hint="give a retriever, or a runnable from a question to a list of documents",
        )
    return passages_of(found[:k])
