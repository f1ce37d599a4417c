"""``surerag reproduce edc2``: compression under noise and redundancy."""

from __future__ import annotations

from pathlib import Path

from surerag.cli.display import console, staged
from surerag.cli.readers import ReaderChoice
from surerag.encoders import packaged_minilm
from surerag.evaluation.edc2.study import compression_study
from surerag.evaluation.edc2.tables import study_tables
from surerag.evaluation.serialise import to_json


def run_edc2(choice: ReaderChoice, *, seed: int, n: int, file: Path | None) -> None:
    """Make the EDC²-RAG study, print it, and write it down if asked to."""
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = compression_study(reader, encoder, seed=seed, n=n, stages=stages)
    console.print(study_tables(study))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(to_json(study) + "\n", encoding="utf-8")
