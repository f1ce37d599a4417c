"""Past one machine: methods as callables over Arrow tables, for Ray Data or a plain loop.

A callable is made of plain settings and called with a table::

    import pyarrow as pa
    from surerag.scale import SePerBatch

    settings = {"reader": {"model": "Qwen/Qwen3-4B"}, "n_samples": 5}
    table = SePerBatch(**settings)(pa.table({"question": [...], "answers": [...], "contexts": [...]}))

    rows.map_batches(SePerBatch, fn_constructor_kwargs=settings, batch_format="pyarrow", batch_size=64, ...)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surerag.scale.batch import Batch
    from surerag.scale.batch_methods import CompressBatch, DenseBatch, LazyRAGBatch, RewriteBatch, SePerBatch
    from surerag.scale.batch_passages import embedded_passages
    from surerag.scale.corpus import ChunkBatch, EmbedBatch, SummarizeBatch

_HOMES = {
    "Batch": "surerag.scale.batch",
    "ChunkBatch": "surerag.scale.corpus",
    "CompressBatch": "surerag.scale.batch_methods",
    "DenseBatch": "surerag.scale.batch_methods",
    "EmbedBatch": "surerag.scale.corpus",
    "LazyRAGBatch": "surerag.scale.batch_methods",
    "RewriteBatch": "surerag.scale.batch_methods",
    "SePerBatch": "surerag.scale.batch_methods",
    "SummarizeBatch": "surerag.scale.corpus",
    "embedded_passages": "surerag.scale.batch_passages",
}

__all__ = [
    "Batch",
    "ChunkBatch",
    "CompressBatch",
    "DenseBatch",
    "EmbedBatch",
    "LazyRAGBatch",
    "RewriteBatch",
    "SePerBatch",
    "SummarizeBatch",
    "embedded_passages",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``import surerag.scale`` needs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'surerag.scale' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
