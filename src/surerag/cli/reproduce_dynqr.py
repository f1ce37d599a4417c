"""``surerag reproduce dynqr``: rewriting where the reader is uncertain, and a rewriter trained for it."""

from __future__ import annotations

from pathlib import Path

from surerag.cli.display import console, staged
from surerag.cli.readers import ReaderChoice
from surerag.encoders import packaged_minilm
from surerag.evaluation.dynqr.study import dynqr_study
from surerag.evaluation.dynqr.tables import study_tables
from surerag.evaluation.serialise import write_json
from surerag.world import embedded_reader_path


def run_dynqr(
    choice: ReaderChoice,
    *,
    seed: int,
    n: int,
    file: Path | None,
    base: str | None = None,
    training: bool = True,
) -> None:
    """Make the DynQR study, print it, and write it down if asked to.

    Args:
        choice: The reader, which rewrites as well, and teaches.
        seed: Seed of the world.
        n: Questions.
        file: Where to write every figure; None for nowhere.
        base: What to train a rewriter from; None for the small reader that comes with the package.
        training: Whether to train one.
    """
    start = (base or str(embedded_reader_path("small"))) if training else None
    with staged() as stages:
        with stages.working("Loading the models"):
            reader, encoder = choice.build(), packaged_minilm()
        study = dynqr_study(reader, encoder, seed=seed, n=n, base=start, stages=stages)
    console.print(study_tables(study))
    if file is not None:
        write_json(study, file)
