"""``evaluate`` and ``compare`` with a reader that notes what it is asked, for a process to be killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Loaded once, before the process forks.
import matplotlib.backends.backend_agg
import matplotlib.figure
import matplotlib.font_manager  # noqa: F401

import surerag.cli.evaluate  # noqa: F401
from surerag.cli import compare_runs, main
from surerag.cli.readers import ReaderChoice
from surerag.encoders import HashingEncoder
from surerag.evaluation.inputs import dataset
from surerag.evaluation.systems import units
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


def evaluate_elsewhere(settings: dict[str, str], work: Path, file: str, output: str, seconds: float) -> None:
    """Run the command on a machine of its own, as it were: its disk is ``work``, all else is elsewhere."""
    os.environ |= {**settings, "SURERAG_WORK": str(work / "cache")}
    dataset.UNIT = 4
    ReaderChoice.build = lambda _: NotingReader(work / "notes", seconds=seconds)  # type: ignore[method-assign]
    # The extreme rows are looked into at the end, whoever measured them: left out, to count what is asked.
    sys.argv = ["surerag", "evaluate", file, "--output", output, *OPTIONS[:-1], "0"]
    sys.stdout = sys.stderr = (work / "printed.txt").open("a")
    main()


def compare(file: Path, documents: Path, output: Path, notes: Path, seconds: float) -> None:
    """Run ``surerag compare`` to its end, or until somebody kills it."""
    ReaderChoice.build = lambda _: NotingReader(notes, seconds=seconds)  # type: ignore[method-assign]
    compare_runs.packaged_minilm = HashingEncoder  # type: ignore[attr-defined]
    units.UNIT = 8
    sys.argv = ["surerag", "compare", str(file), "--documents", str(documents), "--output", str(output)]
    sys.argv += ["--model", "m", "--systems", "plain,lazy,compressed,rewrite", "--concurrency", "4"]
    sys.argv += ["--fail-if", "tokens of plain > 2 * compressed"]
    sys.stdout = sys.stderr = (output.parent / "printed.txt").open("a")
    main()
