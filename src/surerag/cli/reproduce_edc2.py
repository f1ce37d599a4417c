"""``surerag reproduce edc2``: compression under noise and redundancy."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from surerag.cli.display import console, staged
from surerag.cli.readers import ReaderChoice
from surerag.drivers.progress import Progress
from surerag.encoders import packaged_minilm
from surerag.evaluation.edc2.study import compression_study
from surerag.evaluation.edc2.tables import study_tables
from surerag.evaluation.serialise import write_json


def run_edc2(choice: ReaderChoice, *, seed: int, n: int, file: Path | None) -> None:
    """Make the EDC²-RAG study, print it, and write it down if asked to."""
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        terminal = Console(stderr=True).is_terminal
        study = compression_study(reader, encoder, seed=seed, n=n, stages=stages if terminal else _in_lines)
    console.print(study_tables(study))
    if file is not None:
        write_json(study, file)


def _in_lines(stage: str) -> Progress:
    """Tell of a stage in a line once it is done: what a log can hold of a bar."""
    started = time.perf_counter()

    def tell(done: int, total: int | None) -> None:
        if done == total:
            seconds = time.perf_counter() - started
            Console(stderr=True).print(f"{stage}: {total} questions in {seconds:.0f} s", highlight=False)

    return tell
