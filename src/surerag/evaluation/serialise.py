"""Studies as JSON: every figure, and nothing that JSON does not know."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from surerag.storage import write_whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    JsonResult: TypeAlias = DataclassInstance
else:
    JsonResult = Any


def write_json(result: DataclassInstance, file: Path) -> None:
    """Write a study as JSON, whole or not at all; missing folders are made.

    Raises:
        StorageError: If it cannot be written.
    """
    write_whole(file, to_json(result) + "\n")


def to_json(result: DataclassInstance, *, indent: int | None = 2) -> str:
    """Return a study as JSON text; what is not a finite number becomes null.

    Example:
        >>> from surerag.evaluation.statistics import Estimate
        >>> to_json(Estimate(0.5, 0.25, float("inf")), indent=None)
        '{"value": 0.5, "low": 0.25, "high": null}'
    """
    return json.dumps(_plain(asdict(result)), indent=indent, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
