"""What many questions cost ``record``, ``compare`` and ``calibrate`` beside the asking.

Run ``python -m benchmarks.questions 10000 100000``. A fake reader answers at once. All units but the last few
are laid out from before: their lines in the manifest are the command's own, and the files that these name are
those of its first unit, again and again. For each size, in processes of their own:

- *record*, *compare*: the same call goes on; seconds to its first new request, and the most memory that it
  held to the end. The file of questions was read once, when the run began;
- *calibrate*: a threshold is certified on all questions of the trace, each with a signal and scores of its
  own.

Seconds are told as wall time and as processor time: the difference is what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rows import _fake, _Since
from surerag import LazyRAG, Passage, compare
from surerag.evaluation.inputs import QuestionFile, check_questions
from surerag.evaluation.systems.rows import KIND
from surerag.evaluation.systems.units import UNIT
from surerag.records import Trace, record
from surerag.records.recorder import PART
from surerag.records.schema import TRACE
from surerag.records.tradeoff.choices import Case, cases, choice_of, identity_of
from surerag.records.tradeoff.curve import Bound, trade_off
from surerag.runs import MANIFEST, read_manifest
from surerag.runs.manifest import Kind, part_line

SIZES = (10_000, 100_000, 1_000_000)
_LEFT = 2


class _Corpus:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage("The person was born in Velm.", id="p", score=0.9)]


def _record(file: QuestionFile, folder: Path, reader: Any) -> None:
    record(LazyRAG(reader, _Corpus(), _Corpus(), gate="margin"), file, folder, n_samples=0)


def _compare(file: QuestionFile, folder: Path, reader: Any) -> None:
    modes = {
        mode: LazyRAG(reader, _Corpus(), _Corpus(), mode=mode, gate="margin") for mode in ("standard", "none")
    }
    compare(modes, file, folder)


_RUNS: dict[str, tuple[Callable[[QuestionFile, Path, Any], None], int, Kind]] = {
    "record": (_record, PART, TRACE),
    "compare": (_compare, UNIT, KIND),
}


def main() -> None:
    """Measure each size, each command in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--folder", type=Path, help="where data and results go; a temporary one by default")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        print(json.dumps(_work(given.work, given.folder, given.sizes[0])))
        return
    table = Table(title="Seconds of wall time (processor time), and the most memory held, MB")
    for name in ("questions", "record", "MB", "compare", "MB", "calibrate", "MB"):
        table.add_column(name, justify="right")
    for rows in given.sizes:
        with tempfile.TemporaryDirectory(dir=given.folder) as made:
            cells = []
            for work in ("lay record", "lay compare", "record", "compare", "calibrate"):
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.questions",
                    str(rows),
                    "--folder",
                    made,
                    "--work",
                    work,
                ]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                found = json.loads(done.stdout.splitlines()[-1])
                if found:
                    cells += [f"{found['wall']:.1f} ({found['cpu']:.1f})", f"{found['peak']:.0f}"]
        table.add_row(f"{rows:,}", *cells)
    Console().print(table)


def _work(work: str, folder: Path, rows: int) -> dict[str, float]:
    kind, _, command = work.rpartition(" ")
    if kind == "lay":
        _lay(command, folder, rows)
        return {}
    began, reader = _Since(), _fake()
    if work == "calibrate":
        trace = Trace(folder / "record")
        choice = choice_of(trace, "l-rag")
        identity = identity_of(trace, choice)
        asked = _varied(cases(trace, choice, identity.signal))
        found = trade_off(asked, choice, identity, Bound(), asked=len(trace))
        if found.n != rows:
            raise RuntimeError(f"{found.n} questions")
        return began.told()
    run, size, _ = _RUNS[work]
    run(_questions(folder, work, size), folder / work, reader)
    return began.told(reader.first)


def _varied(found: Iterable[Case]) -> Iterator[Case]:
    """Give each question a signal of its own; the larger it is, the sooner the first answer is wrong."""
    rng = random.Random(0)
    for case in found:
        signal = rng.expovariate(1.0)
        without = float(rng.random() > min(0.9, signal / 6))
        yield replace(case, signal=signal, without=without, with_=float(without or rng.random() < 0.5))


def _questions(folder: Path, command: str, size: int) -> QuestionFile:
    return check_questions(folder / "data.jsonl", size=size, folder=folder / command)


def _lay(command: str, folder: Path, rows: int) -> None:
    """Write the questions, have the first unit answered, and say that nearly all others are, too."""
    with (folder / "data.jsonl").open("w") as opened:
        for at in range(rows):
            asked = {"id": f"question-{at}", "question": f"Where was person {at} born?", "answers": ["Velm"]}
            opened.write(json.dumps(asked) + "\n")
    run, size, kind = _RUNS[command]
    file, out = _questions(folder, command, size), folder / command
    run(replace(file, total=size, starts=file.starts[:1], digests=file.digests[:1]), out, _fake())
    first = read_manifest(out, kind).parts[0]
    with (out / MANIFEST).open("a") as lines:
        for unit, digest in enumerate(file.digests[1:-_LEFT], start=1):
            line = part_line(replace(first, unit=unit, source=digest))
            lines.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
