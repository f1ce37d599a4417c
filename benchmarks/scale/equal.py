"""Whether one process, two actors and a cluster of two nodes write the same files, byte by byte.

Run ``python -m benchmarks.scale.equal``; ``--share 0.1`` takes a tenth of the questions. The commands run as
users type them, with the embedded reader on questions of the closed world, one thread each: ``compare`` with
L-RAG and compression, ``evaluate`` for ΔSePer, ``compare`` with DENSE and DynQR. Tables of times are left
out, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from surerag.world import World

ACTORS = ("--engine", "ray", "--actors", "2")


class Work(NamedTuple):
    """A command, and how many questions it is given."""

    command: str
    questions: int
    options: tuple[str, ...]


WORKS = {
    "L-RAG and compression": Work("compare", 2_000, ("--systems", "lazy,compressed")),
    "ΔSePer": Work("evaluate", 500, ("--entailment", "exact", "--extremes", "0")),
    "DENSE and DynQR": Work("compare", 200, ("--systems", "dense,rewrite")),
}


def main() -> None:
    """Run each command in each way, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", choices=[[], *WORKS], default=[], help="all by default")
    parser.add_argument("--share", type=float, default=1.0, help="of the questions")
    parser.add_argument("--folder", type=Path, help="where results go; a temporary one by default")
    given = parser.parse_args()
    table = Table(title="The same files?")
    for name in ("work", "questions", "way", "files", "equal", "seconds", "load"):
        table.add_column(name)
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        for name in given.works or WORKS:
            for row in _compared(name, given.share, Path(made)):
                table.add_row(*row)
                Console(stderr=True).print(*row)
    Console().print(table)


def _compared(name: str, share: float, folder: Path) -> Iterator[tuple[str, ...]]:
    work = WORKS[name]
    asked = max(1, round(share * work.questions))
    given = _written(folder, work.command, asked)
    plain: dict[str, str] = {}
    for way in ("one process", "2 actors", "2 nodes"):
        began = time.perf_counter()
        found = _digests(_ran(work, given, folder / f"{name} {way}", way))
        took, load = time.perf_counter() - began, os.getloadavg()[0]
        plain = plain or found
        equal = sum(found.get(file) == digest for file, digest in plain.items())
        same = (
            f"{equal} of {len(plain)}"
            if len(found) == len(plain)
            else f"{len(found)} files, not {len(plain)}"
        )
        yield name, f"{asked:,}", way, str(len(found)), same, f"{took:.0f}", f"{load:.1f}"


def _written(folder: Path, command: str, questions: int) -> Sequence[object]:
    """Write questions, with their contexts or beside documents, and return what the command is given."""
    world = World(seed=7)
    asked = world.questions(questions)
    if len(asked) != questions:
        raise RuntimeError(f"the world has {len(asked)} questions")
    rows = folder / f"{command}-{questions}.jsonl"
    with rows.open("w") as lines:
        for at, one in enumerate(asked):
            row = {"id": f"q{at}", "question": one.text, "answers": list(one.answers)}
            if command == "evaluate":
                row["contexts"] = [world.passage[place].text for place in one.gold_passages]
            lines.write(json.dumps(row) + "\n")
    if command == "evaluate":
        return (rows,)
    documents = folder / "documents.jsonl"
    with documents.open("w") as lines:
        for at, document in enumerate(world.documents):
            lines.write(json.dumps({"id": f"d{at}", "title": document.title, "text": document.text}) + "\n")
    return rows, "--documents", documents


def _ran(work: Work, given: Sequence[object], output: Path, way: str) -> Path:
    command = [sys.executable, "-c", "from surerag.cli import main; main()", work.command, *map(str, given)]
    command += [*work.options, "--output", str(output)]
    told = {**os.environ, "OMP_NUM_THREADS": "1"}
    if way == "2 nodes":
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ["OMP_NUM_THREADS"] = "1"
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        try:
            cluster.add_node(num_cpus=1)
            _done([*command, *ACTORS, "--address", cluster.address], told)
        finally:
            cluster.shutdown()
    else:
        _done([*command, *(ACTORS if way == "2 actors" else ())], told)
    return output


def _done(command: Sequence[str], told: dict[str, str]) -> None:
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _digests(output: Path) -> dict[str, str]:
    lines = (json.loads(line) for line in (output / "manifest.jsonl").read_text().splitlines())
    return {
        file["name"]: file["sha256"]
        for line in lines
        for table, file in line.get("files", {}).items()
        if table != "times"
    }


if __name__ == "__main__":
    main()
