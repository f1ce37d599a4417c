"""``surerag reproduce dense``: does DENSE tell understanding, and do the repairs mend it?"""

from __future__ import annotations

from pathlib import Path

from surerag.cli.display import console, staged
from surerag.cli.readers import ReaderChoice
from surerag.encoders import packaged_minilm
from surerag.evaluation.dense.study import dense_study
from surerag.evaluation.dense.tables import study_tables
from surerag.evaluation.seper.entailment import Entailment
from surerag.evaluation.serialise import write_json


def run_dense(
    choice: ReaderChoice, *, seed: int, n: int, file: Path | None, entailment: Entailment | None = None
) -> None:
    """Make the DENSE-RAG study, print it, and write it down if asked to."""
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = dense_study(reader, encoder, seed=seed, n=n, entailment=entailment, stages=stages)
    console.print(study_tables(study))
    if file is not None:
        write_json(study, file)
