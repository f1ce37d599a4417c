"""Results as rows: in the order of the questions, and all systems of a question together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from surerag.evaluation.ci.condition import COSTS
from surerag.evaluation.systems.scoring import MEASURES
from surerag.evaluation.systems.system import SystemAnswer
from surerag.extras import extra
from surerag.places import Anywhere
from surerag.runs import batches_of, read_manifest
from surerag.runs.manifest import Kind, Part
from surerag.runs.run import ROWS
from surerag.runs.store import fetched

KIND: Final = Kind("comparison", 1, "surerag compare")
"""What a folder of results is. Version 1: the columns of :func:`schema`, in its order."""

NUMBERS: Final = (*MEASURES, *COSTS)
"""Columns that are compared: measures of an answer, and what it cost."""

TIMES: Final = "times"
CLOCKED: Final = ("seconds", "money")
"""Columns of a table apart: no two runs take the same time, and an hour of a machine has a price."""


def schemas() -> dict[str, Any]:
    """Return the Arrow schemas of both tables, whose rows belong together in order.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        import pyarrow as pa
    return {ROWS: schema(), TIMES: pa.schema([(name, pa.float64()) for name in CLOCKED])}


def schema() -> Any:
    """Return the Parquet schema of the results.

    ``id``, ``question`` and ``answers`` are the question's, ``system`` who answered, ``answer`` and
    ``contexts`` (id and text) what was said and shown, ``retrieved`` whether it retrieved. Measures are null
    where they could not be taken; of a question that failed all of them are, and ``error`` says why.
    What they took, in seconds, and money, which is null where no price is known, are the table ``times``.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        import pyarrow as pa
    texts = pa.list_(pa.string())
    shown = pa.list_(pa.struct([("id", pa.string()), ("text", pa.string())]))
    return pa.schema(
        [
            ("id", pa.string()),
            ("question", pa.string()),
            ("answers", texts),
            ("system", pa.string()),
            ("answer", pa.string()),
            ("error", pa.string()),
            ("model", pa.string()),
            ("retrieved", pa.bool_()),
            ("contexts", shown),
            *((name, pa.float64()) for name in MEASURES),
            *((name, pa.int64()) for name in COSTS if name not in CLOCKED),
            ("cached_tokens", pa.int64()),
            ("currency", pa.string()),
        ]
    )


def batches_in(folder: str | Anywhere, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the results in a folder or at a URL as Arrow batches, in order, holding some at a time.

    Raises:
        InputError: If the folder holds none, or a file cannot be read.
    """
    here = fetched(folder, KIND)
    for part in read_manifest(here, KIND):
        yield from part_batches(here, part, columns)


def tables_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return results as the tables that they are written to."""
    return {
        ROWS: [{name: value for name, value in one.items() if name not in CLOCKED} for one in rows],
        TIMES: [{name: one[name] for name in CLOCKED} for one in rows],
    }


def part_batches(folder: Path, part: Part, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the results of a unit as Arrow batches, with the columns of both tables.

    Raises:
        InputError: If a file cannot be read.
    """
    import pyarrow as pa

    own = None if columns is None else [name for name in columns if name not in CLOCKED]
    clocked = [name for name in CLOCKED if columns is None or name in columns]
    rows = batches_of(folder / part.files[ROWS].name, own)
    if not clocked:
        yield from rows
        return
    times = batches_of(folder / part.files[TIMES].name, clocked)
    for one, took in zip(rows, times, strict=True):
        names = [*one.schema.names, *clocked]
        joined = pa.record_batch([*one.columns, *took.columns], names=names)
        yield joined if columns is None else joined.select(list(columns))


def row(
    id_: str,
    question: str,
    golds: Sequence[str],
    system: str,
    answer: SystemAnswer | None,
    scores: Mapping[str, float | None],
    error: str = "",
) -> dict[str, Any]:
    """Return one result; without an answer it failed."""
    told: dict[str, Any] = {
        "id": id_,
        "question": question,
        "answers": list(golds),
        "system": system,
        "answer": None,
        "error": error or None,
        "model": None,
        "retrieved": None,
        "contexts": [],
        **dict.fromkeys(NUMBERS),
        "cached_tokens": None,
        "currency": None,
    }
    if answer is None:
        return told
    costs = answer.costs
    return {
        **told,
        "answer": answer.text,
        "model": answer.model,
        "retrieved": answer.retrieved,
        "contexts": [{"id": one.id, "text": one.text} for one in answer.contexts],
        **{name: scores.get(name) for name in MEASURES},
        **{name: getattr(costs, name) for name in COSTS},
        "cached_tokens": costs.cached_tokens,
        "currency": costs.currency,
    }
