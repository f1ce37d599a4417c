"""State of a model's weights, for the local reader."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


def state_of(model: Any) -> Hashable:
    """Return what changes when a model's weights do: how often they were written to, and where they lie."""
    parameters = list(model.parameters())
    return (
        model.dtype,
        str(model.device),
        sum(parameter._version for parameter in parameters if not parameter.is_inference()),
        hash(tuple(parameter.data_ptr() for parameter in parameters)),
    )
