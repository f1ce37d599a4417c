"""The closed world: a generated corpus with exact ground truth, and the embedded reader that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from surerag.errors import ConfigurationError
from world.articles import Document
from world.language import Fact
from world.questions import Question, is_correct
from world.spec import SPEC, Cell, Hazard, QuestionKind, Source, WorldSpec
from world.world import World

if TYPE_CHECKING:
    from surerag.readers.local import TransformersReader

__all__ = [
    "SPEC",
    "Cell",
    "Document",
    "Fact",
    "Hazard",
    "Question",
    "QuestionKind",
    "Source",
    "World",
    "WorldSpec",
    "embedded_reader",
    "embedded_reader_path",
    "is_correct",
]


ReaderSize = Literal["default", "small"]
_FOLDERS: Mapping[ReaderSize, str] = {"default": "reader", "small": "small_reader"}


def embedded_reader_path(size: ReaderSize = "default") -> Path:
    """Return the directory of an embedded reader: a model as Transformers loads it, and its card.

    Args:
        size: ``"default"``, of 5 million parameters; or ``"small"``, of 1.3 million, for comparisons between
            readers. The small one was never taught to rewrite questions.

    Raises:
        ConfigurationError: If there is no such size.
    """
    if size not in _FOLDERS:
        raise ConfigurationError(f"size must be one of {', '.join(_FOLDERS)}, got {size!r}")
    return Path(__file__).parent / _FOLDERS[size]


def embedded_reader(size: ReaderSize = "default") -> TransformersReader:
    """Load an embedded reader, in float32 on the CPU.

    Args:
        size: See :func:`embedded_reader_path`.

    Returns:
        A reader like any other local one; nothing in the methods knows of it.

    Raises:
        ConfigurationError: If there is no such size.
        MissingExtraError: If torch or transformers are not installed.
    """
    from surerag.readers.local import TransformersReader

    return TransformersReader.from_pretrained(str(embedded_reader_path(size)), device="cpu", dtype="float32")
