"""A recording in a process of its own, to be killed."""

from __future__ import annotations

from pathlib import Path

# Loaded once, before the process forks.
import pyarrow.parquet  # noqa: F401

from surerag.records import record
from tests.evaluation.noting import NotingReader
from tests.records.corpora import pipeline, questions

N = 12


def recording(folder: Path, notes: Path, seconds: float, local: bool) -> None:
    """Record to the end, or until somebody kills it."""
    reader = NotingReader(notes, seconds=seconds, local=local)
    record(pipeline(reader, N), questions(N), folder, part_size=5, window=4, max_concurrency=4)
