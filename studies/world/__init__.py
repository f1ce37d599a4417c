"""The closed world: a generated corpus with exact ground truth, and the embedded reader that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from studies.world.articles import Document
from studies.world.language import Fact
from studies.world.questions import Question, is_correct
from studies.world.spec import SPEC, Cell, QuestionKind, Source, WorldSpec
from studies.world.world import World

if TYPE_CHECKING:
    from surerag.readers.local import TransformersReader

__all__ = [
    "SPEC",
    "Cell",
    "Document",
    "Fact",
    "Question",
    "QuestionKind",
    "Source",
    "World",
    "WorldSpec",
    "embedded_reader",
    "embedded_reader_path",
    "is_correct",
]


def embedded_reader_path() -> Path:
    """Return the folder of the embedded reader: a model of 5 million parameters, and its card."""
    return Path(__file__).parent / "reader"


def embedded_reader() -> TransformersReader:
    """Load the embedded reader, in float32 on the CPU.

    Raises:
        MissingExtraError: If torch or transformers are not installed.
    """
    from surerag.readers.local import TransformersReader

    return TransformersReader.from_pretrained(str(embedded_reader_path()), device="cpu", dtype="float32")
