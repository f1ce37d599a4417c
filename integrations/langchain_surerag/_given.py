"""One example of an evaluation, as LangSmith hands it over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self


class Given(NamedTuple):
    """What a system was asked, what it returned, and what it should have returned."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    reference_outputs: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        run: Any,
        example: Any,
        inputs: Mapping[str, Any] | None,
        outputs: Mapping[str, Any] | None,
        reference_outputs: Mapping[str, Any] | None,
    ) -> Self:
        """Take the mappings, and what they leave out from run and example."""
        return cls(
            inputs or getattr(example, "inputs", None) or getattr(run, "inputs", None) or {},
            outputs or getattr(run, "outputs", None) or {},
            reference_outputs or getattr(example, "outputs", None) or {},
        )
