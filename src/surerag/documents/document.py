"""A document: what a folder holds, and what passages and summaries are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """A whole text with its identity.

    Attributes:
        id: Identifier, unique in its corpus; for a file, its path below the folder, with ``/``.
        text: The text; paragraphs are separated by blank lines.
        title: Title, if it has one.
        metadata: Whatever else is known of it.
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
