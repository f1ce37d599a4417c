"""What actors cost beside the asking: memory of the command, and rows for each second of a processor.

Run ``python -m benchmarks.scale.growing 10000 100000 1000000``. A fake reader answers at once, so that only
our own work is measured, with 256 questions in a unit. For each size and number of actors, in a process of
its own, with a cluster of its own: rows a second on the clock; rows for each second that processors spent on
them, workers and the command together; the most memory that the command held. Actors are begun before the
clock is. ``--canned`` has workers write figures without any reader, for what very many rows take here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rows import _fake, _figures
from surerag.entailment import ExactEntailer
from surerag.evaluation.comparison.making import RowMaker
from surerag.evaluation.comparison.measuring import recorded
from surerag.evaluation.comparison.units import EVALUATION, row_schema
from surerag.evaluation.inputs import UNIT
from surerag.evaluation.rows import ONE_SYSTEM, Row
from surerag.methods.seper.component import SePer
from surerag.prices import Costs
from surerag.runs import IN_PROCESS, Engine, Maker, Part, Run, Task
from surerag.scale.engine import RayUnits
from surerag.scale.engine_cluster import Actors
from surerag.scale.units import Job
from surerag.types import Passage

_TOWNS = ("Velm", "Orun", "Toren", "Sarl")
_WARM = 8


class Clocked(RowMaker):
    """Notes what its process spent, unit by unit."""

    def make(self, run: Run, unit: int, rows: Sequence[Row], source: str) -> Part:
        """Make a unit, and note what that took."""
        began = time.process_time()
        part = super().make(run, unit, rows, source)
        part.note["cpu"] = time.process_time() - began  # type: ignore[index]  # travels with the unit
        return part


def maker(_: Mapping[str, Any]) -> Clocked:
    """Return who measures rows with a reader that answers at once."""
    seper = SePer(_fake(), ExactEntailer(), n_samples=2)
    return Clocked(lambda answers, tab: recorded(seper, answers, tab, window=256), window=256)


class Canned(Clocked):
    """Writes figures that nobody measured."""

    def make(self, run: Run, unit: int, rows: Sequence[Row], source: str) -> Part:
        """Write a unit."""
        first = unit * UNIT
        figures = _figures(range(first, first + len(rows)), 1, random.Random(unit))
        return run.commit(unit, figures, note={"failed": 0, "spent": Costs().to_dict()})


def canned(_: Mapping[str, Any]) -> Canned:
    """Return who writes figures."""
    return Canned(maker({})._keeping, window=256)


def main() -> None:
    """Measure each size with each number of actors, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--actors", nargs="*", type=int, default=[0, 1, 2], help="0: in one process")
    parser.add_argument("--canned", action="store_true", help="figures that nobody measured")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        print(json.dumps(_work(given.sizes[0], given.work, canned if given.canned else maker)))
        return
    table = Table(title="A fake reader, 256 questions in a unit")
    for name in ("rows", "actors", "rows a second", "rows a processor second", "command's peak, MB", "load"):
        table.add_column(name, justify="right")
    for rows in given.sizes:
        for actors in given.actors:
            command = [sys.executable, "-m", "benchmarks.scale.growing", str(rows), "--work", str(actors)]
            command += ["--canned"] if given.canned else []
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            cells = (
                f"{rows:,}", str(actors or "none"), f"{found['wall']:,.0f}", f"{found['cpu']:,.0f}",
                f"{found['peak']:.0f}", f"{os.getloadavg()[0]:.1f}",
            )  # fmt: skip
            table.add_row(*cells)
            Console(stderr=True).print(*cells)
    Console().print(table)


def _work(rows: int, actors: int, build: Callable[[Mapping[str, Any]], Maker]) -> dict[str, float]:
    """Make all rows, and tell what that took, but for the first units: models are loaded, pools are begun."""
    engine: Engine = IN_PROCESS
    if actors:
        engine = RayUnits(Job(build, {}), Actors(actors, actors, cpus=0.5), "local")
    spent = began = began_here = 0.0
    counted = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Run.open(folder, {}, row_schema(), kind=EVALUATION) as run,
    ):
        for at, part in enumerate(engine(run, _tasks(rows), build({}))):
            if at >= _WARM:
                spent, counted = spent + part.note.get("cpu", 0.0), counted + part.rows
            elif at == _WARM - 1:
                began, began_here = time.perf_counter(), time.process_time()
        wall, here = time.perf_counter() - began, time.process_time() - began_here
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"wall": counted / wall, "cpu": counted / (here + (spent if actors else 0.0)), "peak": peak}


def _tasks(rows: int) -> Iterator[Task]:
    for unit, start in enumerate(range(0, rows, UNIT)):
        end = min(rows, start + UNIT)
        yield Task(unit, "", lambda start=start, end=end: [_row(at) for at in range(start, end)])  # type: ignore[misc]  # bound now


def _row(number: int) -> Row:
    town = _TOWNS[number % 4]
    shown = (Passage(f"Person {number} was born in {town}."), Passage(f"Note {number}. " + "x" * 300))
    return Row(f"question-{number}", ONE_SYSTEM, f"Where was person {number} born?", (town,), (shown,))


if __name__ == "__main__":
    main()
