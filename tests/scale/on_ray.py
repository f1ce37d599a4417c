"""Run by `test_ray` in a process of its own: the same blocks in a plain loop and on actors, one killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from pyarrow import parquet

from surerag.scale import Batch, LazyRAGBatch, SePerBatch

ROWS, BLOCK = 24, 8
NAMES = ["Ada" if at != 13 else "Bo" for at in range(ROWS)]


def on_actors(batch: Batch, file: Path, actors: int) -> list[pa.Table]:
    """Return the tables that actors make of a file's blocks."""
    rows = ray.data.read_parquet(str(file)).repartition(target_num_rows_per_block=BLOCK, strict=True)
    mapped = rows.map_batches(
        type(batch),
        fn_constructor_kwargs=batch.settings,
        batch_format="pyarrow",
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=1,
    )
    return [table for ref in mapped.to_arrow_refs() if (table := ray.get(ref)).num_rows]


def main(folder: Path) -> None:
    """Write what came of it."""
    table = pa.table(
        {
            "n": range(ROWS),
            "question": [f"Where was {name} born?" for name in NAMES],
            "answers": [["Velm"]] * ROWS,
            "contexts": [[f"{name} was born in Velm.", "Bo sings."] for name in NAMES],
        }
    )
    parquet.write_table(table, folder / "in.parquet")
    table = parquet.read_table(folder / "in.parquet")  # Parquet has its own names for the items of lists
    note = str(folder / "note")
    killed = SePerBatch(
        reader={"factory": "tests.scale.makers:dying", "note": note}, entailer="exact", n_samples=2
    )
    model = LazyRAGBatch(
        reader="embedded:small",
        summaries={"text": "Ada was born in Velm."},
        retriever={"factory": "tests.scale.makers:corpus"},
        max_tokens=6,
    )
    ray.init("local", num_cpus=4, include_dashboard=False, logging_level="error", log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order, context.enable_progress_bars = True, False
    first = on_actors(killed, folder / "in.parquet", 2)
    found: dict[str, Any] = {"died": Path(note).exists()}  # from here on nobody dies
    runs = {
        "killed": (killed, first),
        "one": (killed, on_actors(killed, folder / "in.parquet", 1)),
        "two": (model, on_actors(model, folder / "in.parquet", 2)),
    }
    for name, (batch, made) in runs.items():
        plain = [batch(table.slice(at, BLOCK)) for at in range(0, ROWS, BLOCK)]
        found[name] = [
            {
                "rows": one.column("n").to_pylist(),
                "equal": serialised(one) == serialised(other),
                "errors": one.num_rows - one.column(one.num_columns - 1).null_count,
            }
            for one, other in zip(made, plain, strict=True)
        ]
    (folder / "found.json").write_text(json.dumps(found))


def serialised(table: pa.Table) -> bytes:
    """Return a table's bytes, as Parquet holds them."""
    sink = pa.BufferOutputStream()
    parquet.write_table(table.combine_chunks().replace_schema_metadata(None), sink)
    return sink.getvalue().to_pybytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
