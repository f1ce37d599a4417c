"""Decisions and measurements as attributes of OpenTelemetry's spans, where a pipeline is traced with it.

Names follow OpenTelemetry's conventions for generative models: the event ``gen_ai.evaluation.result`` with
``gen_ai.evaluation.name``, ``.score.value``, ``.score.label`` and ``.explanation``. What they have no name
for stands under ``surerag.``, in dotted lower case.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Judged:
    """Something that was measured, and what it means.

    Attributes:
        name: Of what was measured, such as ``"surerag.lazy_rag.gate"``.
        value: The number, if there is one.
        label: What it was taken for, such as ``"retrieve"``.
        explanation: In words.
        details: Whatever else is known, by names below ``surerag.``.
    """

    name: str
    value: float | None
    label: str
    explanation: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def attributes(self) -> dict[str, Any]:
        """Return all of it by OpenTelemetry's names; what is not known, or no number, is left out."""
        found = {
            "gen_ai.evaluation.name": self.name,
            "gen_ai.evaluation.score.value": self.value,
            "gen_ai.evaluation.score.label": self.label,
            "gen_ai.evaluation.explanation": self.explanation,
            **{f"{self.name}.{key}": value for key, value in self.details.items()},
        }
        return {key: _plain(value) for key, value in found.items() if _is_known(value)}


def tell(judged: Judged) -> None:
    """Put it on the span that is open, as attributes and as an event; without OpenTelemetry, do nothing."""
    # Looked up, not imported: who traces with it has imported it.
    trace: Any = sys.modules.get("opentelemetry.trace")
    span = None if trace is None else trace.get_current_span()
    if span is not None and span.is_recording():
        attributes = judged.attributes()
        span.set_attributes(attributes)
        span.add_event("gen_ai.evaluation.result", attributes)


def _plain(value: Any) -> str | bool | int | float:
    """Return a value as OpenTelemetry takes them."""
    return value if isinstance(value, str | bool | int | float) else str(value)


def _is_known(value: Any) -> bool:
    return value is not None and value != "" and not (isinstance(value, float) and not math.isfinite(value))
