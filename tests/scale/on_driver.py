"""Run by `test_units_on_ray` in a process of its own, to be killed: records on a cluster of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from surerag.records import record
from surerag.scale.engine import RayUnits
from surerag.scale.engine_cluster import Actors
from tests.evaluation.noting import NotingReader
from tests.records.corpora import pipeline, questions
from tests.scale.unit_makers import PART, QUESTIONS, WINDOW, job


def main(folder: Path, seconds: float) -> None:
    """Record on two actors."""
    engine = RayUnits(job(folder / "notes", seconds=seconds), Actors(1, 2, cpus=0.5), address="local")
    reader = NotingReader(local=True)
    more = {"n_samples": 2, "part_size": PART, "window": WINDOW}
    record(pipeline(reader, QUESTIONS), questions(QUESTIONS), folder / "out", engine=engine, **more)  # type: ignore[arg-type]  # numbers


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
