"""Units of nothing much, to be made here or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from surerag.runs import Part, Run, Task
from surerag.runs.manifest import Kind

SCHEMA = pa.schema([("id", pa.string())])
KIND = Kind("thing")


class Things:
    """Makes units of ids, of which some fail."""

    kind, schemas = KIND, SCHEMA

    def __init__(self, failed: int = 0) -> None:
        self.failed, self.made = failed, list[int]()
        self.known = list[Any]()

    def make(self, run: Run, unit: int, rows: Sequence[Any], source: str) -> Part:
        with run.answers(unit) as journal:
            self.known.append(journal.get("before"))
            journal.put({"asked": unit})
        self.made.append(unit)
        return run.commit(unit, [{"id": one} for one in rows], source=source, note={"failed": self.failed})


def opened(folder: Path) -> Run:
    return Run.open(folder, {}, SCHEMA, kind=KIND)


def tasks(units: int, rows: int = 2) -> list[Task]:
    return [
        Task(unit, f"s{unit}", lambda unit=unit: [f"{unit}.{at}" for at in range(rows)])  # type: ignore[misc]  # bound now
        for unit in range(units)
    ]
