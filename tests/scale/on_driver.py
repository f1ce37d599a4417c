"""Run by `test_units_on_ray` in a process of its own, to be killed: records on a cluster of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from surerag.records import record
from surerag.runs import Part, Run, run
from surerag.scale.engine import RayUnits
from surerag.scale.engine_cluster import Actors
from tests.evaluation.noting import NotingReader
from tests.records.corpora import pipeline, questions
from tests.scale.unit_makers import PART, QUESTIONS, WINDOW, job


def die_in_the_second_commit(moment: str) -> None:
    """Kill this process when a ``file`` of it is written, when all ``files`` are, or when it is ``named``."""
    seen: list[str] = []
    write_bytes, add = run.write_bytes, Run._add

    def reached(one: str, times: int) -> None:
        seen.append(one)
        if one == moment and seen.count(one) == times:
            os.kill(os.getpid(), signal.SIGKILL)

    def written(*given: Any) -> None:
        write_bytes(*given)
        if "files" in seen:  # the first unit is there
            reached("file", 1)

    def added(self: Run, part: Part) -> None:
        reached("files", 2)
        add(self, part)
        reached("named", 2)

    run.write_bytes, Run._add = written, added  # type: ignore[method-assign]  # on purpose


def main(folder: Path, seconds: float, moment: str = "") -> None:
    """Record on two actors."""
    # What a shell runs in the background is begun with interruptions ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    die_in_the_second_commit(moment)
    engine = RayUnits(job(folder / "notes", seconds=seconds), Actors(1, 2, cpus=0.5), address="local")
    reader = NotingReader(local=True)
    more = {"n_samples": 2, "part_size": PART, "window": WINDOW}
    record(pipeline(reader, QUESTIONS), questions(QUESTIONS), folder / "out", engine=engine, **more)  # type: ignore[arg-type]  # numbers


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:])
