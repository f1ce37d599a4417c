"""What document compressors share: the caller's config, and their form as runnables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, ensure_config

from surerag.errors import InputError


class Wanted(NamedTuple):
    """Documents, and the query for which to compress them."""

    documents: Sequence[Document]
    query: str


def config_of(callbacks: Callbacks | None) -> RunnableConfig:
    """Return the caller's config, with the callbacks that it hands over."""
    return ensure_config(RunnableConfig(callbacks=callbacks) if callbacks is not None else None)


def runnable_of(compressor: BaseDocumentCompressor) -> Runnable[dict[str, Any], list[Document]]:
    """Return a runnable from a mapping with ``documents`` and ``query`` to what the compressor makes of it.

    Raises:
        InputError: When it is asked, if one of the two is not there.
    """

    def compress(given: dict[str, Any], config: RunnableConfig) -> list[Document]:
        documents, query = _wanted(given)
        return list(compressor.compress_documents(documents, query, config.get("callbacks")))

    async def acompress(given: dict[str, Any], config: RunnableConfig) -> list[Document]:
        documents, query = _wanted(given)
        return list(await compressor.acompress_documents(documents, query, config.get("callbacks")))

    return RunnableLambda(compress, acompress, name=type(compressor).__name__)


def _wanted(given: Mapping[str, Any]) -> Wanted:
    missing = {"documents", "query"} - given.keys()
    if missing:
        raise InputError(
            f"there is no {' and no '.join(sorted(missing))} to compress",
            hint='pass {"documents": …, "query": …}',
        )
    return Wanted(given["documents"], given["query"])
