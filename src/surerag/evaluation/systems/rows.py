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

_COUNTS = ("tokens", "prompt_tokens", "completion_tokens", "calls")


def schema() -> Any:
    """Return the Parquet schema of the results.

    ``id``, ``question`` and ``answers`` are the question's, ``system`` who answered, ``answer`` and
    ``contexts`` (id and text) what was said and shown, ``retrieved`` whether it retrieved. Measures are null
    where they could not be taken; of a question that failed all of them are, and ``error`` says why.
    ``money`` is null where no price is known.

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
            *((name, pa.int64() if name in _COUNTS else pa.float64()) for name in COSTS),
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


def part_batches(folder: Path, part: Part, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the results of a unit as Arrow batches.

    Raises:
        InputError: If a file cannot be read.
    """
    yield from batches_of(folder / part.files[ROWS].name, columns)


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
