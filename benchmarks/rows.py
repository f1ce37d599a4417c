"""What many rows cost ``surerag evaluate`` beside the asking: memory, going on after a kill, the report.

Run ``python -m benchmarks.rows 10000 100000 1000000``. A fake reader answers at once, so that only our own
work is measured. For each size, in processes of their own:

- *evaluate*: a data set of one system is checked and measured, all of it or (with ``--asked N``) the last N
  rows of it, the others being there from before: seconds to the first request, and peak memory;
- *resume*: the last unit is taken back, and the same command goes on: seconds to its first new request;
- *report*: a folder of ten systems with this many rows together is told: seconds, and peak memory.

Seconds are told as wall time and as processor time: the difference is what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from surerag.evaluation.comparison.units import EVALUATION, row_schema
from surerag.evaluation.inputs import UNIT
from surerag.evaluation.rows import ONE_SYSTEM
from surerag.runs import MANIFEST, Run, read_manifest

SIZES = (10_000, 100_000, 1_000_000)
SYSTEMS = 10
_TOWNS = ("Velm", "Orun", "Toren", "Sarl")
_COLUMNS = (
    "rows", "first start", "peak MB", "resume", "peak MB", "report of ten systems", "peak MB",
)  # fmt: skip


def main() -> None:
    """Measure each size in processes of their own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument(
        "--asked", type=int, default=0, help="ask about so many rows, the last ones; 0 about all"
    )
    parser.add_argument("--folder", type=Path, help="where data and results go; a temporary one by default")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        print(json.dumps(_WORK[given.work](given.folder, given.sizes[0], given.asked or given.sizes[0])))
        return
    table = Table(title="Seconds of wall time (processor time), and the most memory held")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        for rows in given.sizes:
            folder = Path(made) / str(rows)
            folder.mkdir()
            _apart("prepare", folder, rows, given.asked)
            found = [_apart(work, folder, rows, given.asked) for work in ("evaluate", "resume", "report")]
            cells = [
                text
                for one in found
                for text in (f"{one['wall']:.1f} ({one['cpu']:.1f})", f"{one['peak']:.0f}")
            ]
            table.add_row(f"{rows:,}", *cells)
            Console(stderr=True).print(rows, cells)
            shutil.rmtree(folder)
    Console().print(table)


def _apart(work: str, folder: Path, rows: int, asked: int) -> dict[str, float]:
    options = ["--folder", str(folder), "--asked", str(asked), "--work", work]
    command = [sys.executable, "-m", "benchmarks.rows", str(rows), *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


class _Since:
    """Wall and processor time since the process began to work."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def told(self, at: tuple[float, float] | None = None) -> dict[str, float]:
        """Return what passed, and the most memory that this process ever held, in MB."""
        wall, cpu = at or (time.perf_counter(), time.process_time())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"wall": wall - self._wall, "cpu": cpu - self._cpu, "peak": peak}


def _prepare(folder: Path, rows: int, asked: int) -> dict[str, float]:
    """Write the data set, the units that are there from before, and the folder of ten systems."""
    with (folder / "data.jsonl").open("w") as opened:
        for number in range(rows):
            town = _TOWNS[number % 4]
            shown = [f"Person {number} was born in {town}.", f"Note {number}. " + "x" * 300]
            row = {"id": f"question-{number}", "question": f"Where was person {number} born?"}
            opened.write(json.dumps({**row, "answers": [town], "contexts": shown}) + "\n")
    if rows > asked:
        _run(folder, _fake(), only_begin=True)
        _fill(folder / "out", (rows - asked) // UNIT * UNIT, 1)
    _fill(folder / "ten", rows // SYSTEMS, SYSTEMS)
    return {}


def _evaluate(folder: Path, rows: int, asked: int) -> dict[str, float]:
    """Check and measure a data set of one system."""
    (folder / "out" / "input.json").unlink(missing_ok=True)
    began, reader = _Since(), _fake()
    _run(folder, reader)
    return began.told(reader.first)


def _resume(folder: Path, rows: int, asked: int) -> dict[str, float]:
    """Take the last unit back, and go on."""
    manifest = folder / "out" / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    last = max(json.loads(line).get("unit", -1) for line in lines)
    kept = [line for line in lines if json.loads(line).get("unit") != last and b'"complete"' not in line]
    manifest.write_bytes(b"".join(kept))
    (folder / "out" / f"answers-{last:05}.jsonl.zst").unlink()
    began, reader = _Since(), _fake()
    _run(folder, reader)
    return began.told(reader.first)


def _report(folder: Path, rows: int, asked: int) -> dict[str, float]:
    """Tell what came of a folder of ten systems."""
    began = _Since()
    from surerag.entailment import ExactEntailer
    from surerag.evaluation.comparison.analysis import Analysis, Tally
    from surerag.evaluation.comparison.units import records_of
    from surerag.methods.seper.component import SePer

    tally = Tally([f"system {number}" for number in range(SYSTEMS)])
    with _opened(folder / "ten", {}) as run:
        for _, _, record in records_of(run):
            tally.take(record)
    found = tally.compared(SePer(_fake(), ExactEntailer()), Analysis())
    if found.measured != rows or len(found.tests) != SYSTEMS * (SYSTEMS - 1) // 2:
        raise RuntimeError(f"{found.measured} rows and {len(found.tests)} tests")
    return began.told()


def _opened(folder: Path, about: Mapping[str, Any]) -> Run:
    return Run.open(folder, about, row_schema(), kind=EVALUATION)


def _fill(folder: Path, questions: int, systems: int) -> None:
    """Commit units as if they had been measured."""
    rng = random.Random(0)
    about = read_manifest(folder, EVALUATION).about if (folder / MANIFEST).exists() else {}
    with _opened(folder, about) as run:
        for unit, start in enumerate(range(0, questions, UNIT)):
            chosen = range(start, min(start + UNIT, questions))
            run.commit(unit, _figures(chosen, systems, rng), note={"failed": 0})


def _figures(questions: Sequence[int], systems: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    for question in questions:
        for number in range(systems):
            delta = max(-1.0, min(1.0, rng.gauss(0.01 * number, 0.3)))
            yield {
                "id": f"question-{question}",
                "system": f"system {number}" if systems > 1 else ONE_SYSTEM,
                "delta": delta,
                "low": delta - 0.1,
                "high": delta + 0.1,
                "before": 0.4,
                "after": 0.4 + delta,
                "deltas": [delta],
                "prompt_tokens": 100,
                "truncated": 0,
                "weights": ["likelihood"],
            }


class _BegunError(Exception):
    """The folder is made, and nothing was asked."""


def _run(folder: Path, reader: Any, *, only_begin: bool = False) -> None:
    from surerag.cli import evaluate
    from surerag.cli.readers import ReaderChoice
    from surerag.methods.seper.options import SePerOptions

    def begun(*_: object) -> None:
        raise _BegunError

    ReaderChoice.build = lambda _: reader  # type: ignore[method-assign]
    if only_begin:
        evaluate._measure = begun  # type: ignore[assignment]
    options = SePerOptions(n_samples=2)
    # Questions to look into have what was sampled for them, and rows from before do not.
    wanted = evaluate.Evaluation(
        folder / "data.jsonl", folder / "out", options, "exact", concurrency=256, extremes=0
    )
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(_BegunError):
        evaluate.run_evaluate(ReaderChoice("fake", None, "NO_KEY"), wanted)


def _fake() -> Any:
    """Return a local reader that answers at once, with what its prompt tells, and notes when it was asked."""
    from surerag.readers.protocol import BaseReader, Capabilities
    from surerag.readers.fake import reply

    class Fake(BaseReader):
        name = "fake"
        capabilities = Capabilities(logprobs=True, entropy=None, local=True)

        def __init__(self) -> None:
            self.first: tuple[float, float] | None = None

        def generate(self, prompts: Any, sampling: Any) -> Any:
            self.first = self.first or (time.perf_counter(), time.process_time())
            return [
                [reply(self._answer(str(prompt), at), entropy=None, logprobs=[-0.1 - 0.1 * at])
                 for at in range(sampling.n)]
                for prompt in prompts
            ]  # fmt: skip

        def _answer(self, prompt: str, at: int) -> str:
            told = [town for town in _TOWNS if town in prompt]
            return told[0] if told and at == 0 else _TOWNS[len(prompt) % 4]

    return Fake()


_WORK = {"prepare": _prepare, "evaluate": _evaluate, "resume": _resume, "report": _report}

if __name__ == "__main__":
    main()
