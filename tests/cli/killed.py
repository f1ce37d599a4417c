"""``surerag evaluate`` with a reader that notes what it is asked, for a process that will be killed."""

from __future__ import annotations

import sys
from pathlib import Path

# Loaded once, before the process forks.
import matplotlib.backends.backend_agg
import matplotlib.figure
import matplotlib.font_manager  # noqa: F401

import surerag.cli.evaluate  # noqa: F401
from surerag.cli import main
from surerag.cli.readers import ReaderChoice
from surerag.evaluation.inputs import dataset
from tests.evaluation.noting import NotingReader

OPTIONS = (
    "--model",
    "m",
    "--entailment",
    "judge",
    "--n-samples",
    "3",
    "--concurrency",
    "4",
    "--extremes",
    "1",
)


def evaluate(file: Path, output: Path, notes: Path, seconds: float, local: bool) -> None:
    """Run the command to its end, or until somebody kills it."""
    dataset.UNIT = 4  # kills fall before, within and after commits
    ReaderChoice.build = lambda _: NotingReader(notes, seconds=seconds, local=local)  # type: ignore[method-assign]
    sys.argv = ["surerag", "evaluate", str(file), "--output", str(output), *OPTIONS]
    sys.stdout = sys.stderr = (output.parent / "printed.txt").open("a")
    main()
