"""What a row costs: rows a second and bytes a row of each batch callable, in a plain loop.

Run ``python -m benchmarks.batches``; for a reader of your own with ``--entailer '"nli"'`` and
``--reader '{"base_url": "http://localhost:8000/v1", "model": "…"}'``. A world's questions come with five
passages each. The first batch is left out: it loads the model. With these figures the guide to scale reckons
how many actors and how much disk a job needs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet
from rich.console import Console
from rich.table import Table

from surerag.scale import (
    Batch,
    ChunkBatch,
    CompressBatch,
    DenseBatch,
    EmbedBatch,
    LazyRAGBatch,
    RewriteBatch,
    SePerBatch,
    SummarizeBatch,
)
from world import World

K = 5
"""Passages of a question."""


class Cost(NamedTuple):
    """What a callable took.

    Attributes:
        name: Of the callable.
        rows: How many, the first batch left out.
        rate: Rows a second, the median over batches.
        least: That of the slowest batch.
        most: That of the fastest.
        cpu: Processor seconds a row.
        bytes_in: Bytes of a row that goes in, as Parquet (zstd).
        bytes_out: Bytes of what is added to it.
        failed: Rows with an error.
    """

    name: str
    rows: int
    rate: float
    least: float
    most: float
    cpu: float
    bytes_in: float
    bytes_out: float
    failed: int


def measure(batch: Batch, table: pa.Table, size: int) -> Cost:
    """Go over a table in batches.

    Args:
        batch: The callable.
        table: At least two batches of rows.
        size: Rows of a batch.
    """
    parts = [table.slice(at, size) for at in range(0, table.num_rows - size + 1, size)]
    batch(parts[0])
    seconds, made, used = [], [], time.process_time()
    for part in parts[1:]:
        began = time.perf_counter()
        made.append(batch(part))
        seconds.append(time.perf_counter() - began)
    used = time.process_time() - used
    rates = [size / one for one in seconds]
    found = pa.concat_tables(made)
    rows = size * len(seconds)
    given = table.slice(size, rows)
    error = found.column(batch.schema.names[-1])
    return Cost(
        type(batch).__name__,
        rows,
        statistics.median(rates),
        min(rates),
        max(rates),
        used / rows,
        written(given) / rows,
        max(written(found) - written(given), 0) / rows,
        len(error) - error.null_count,
    )


def written(table: pa.Table) -> int:
    """Return the bytes of a table as a file."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "table.parquet")
        parquet.write_table(table, file, compression="zstd")
        return file.stat().st_size


def callables(
    reader: Any, entailer: Any, folder: Path, world: World, asked: pa.Table
) -> list[tuple[Batch, pa.Table]]:
    """Return every callable, and the table that it works on."""
    corpus = {"encoder": "hashing", "retriever": {"passages": str(folder / "passages.parquet"), "k": K}}
    summaries = {"passages": str(folder / "summaries.parquet"), "columns": {"text": "summary_text"}}
    short = {"max_tokens": 16}
    documents = pa.table(
        {"id": [one.id for one in world.documents], "text": [one.text for one in world.documents]}
    )
    embed = EmbedBatch(encoder="hashing")
    parquet.write_table(embed(ChunkBatch()(documents)), folder / "passages.parquet")
    summarised = EmbedBatch(encoder="hashing", columns={"text": "summary_text"})(SummarizeBatch()(documents))
    parquet.write_table(summarised, folder / "summaries.parquet")
    return [
        (LazyRAGBatch(reader=reader, summaries=summaries, **corpus, **short), asked),
        (SePerBatch(reader=reader, entailer=entailer), asked),
        (CompressBatch(reader=reader, encoder="hashing", pass_below=0), asked),
        (DenseBatch(reader=reader, **short), asked),
        (RewriteBatch(reader=reader, **corpus, **short), asked),
        (ChunkBatch(), documents),
        (SummarizeBatch(), documents),
        (EmbedBatch(encoder="hashing"), documents),
    ]


def questions(world: World, n: int) -> pa.Table:
    """Return a table of a world's questions, with passages that hold the answers."""
    drawn = world.questions(n)
    return pa.table(
        {
            "id": [one.id for one in drawn],
            "question": [one.text for one in drawn],
            "answers": [list(one.answers) for one in drawn],
            "contexts": [[passage.text for passage in world.context(one, K)] for one in drawn],
        }
    )


def shown(costs: Sequence[Cost]) -> Table:
    """Return a table of what callables took."""
    table = Table(
        "callable", "rows", "rows/s (least to most)", "CPU s/row", "bytes in", "bytes added", "errors"
    )
    for one in costs:
        rate = f"{one.rate:.3g} ({one.least:.3g} to {one.most:.3g})"
        table.add_row(
            one.name,
            str(one.rows),
            rate,
            f"{one.cpu:.2g}",
            f"{one.bytes_in:.0f}",
            f"{one.bytes_out:.0f}",
            str(one.failed),
        )
    return table


def main(arguments: Sequence[str] | None = None) -> list[Cost]:
    """Measure and print."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--reader", default='"embedded"', help="a reader's setting, as JSON")
    given.add_argument("--entailer", default='"judge"', help="of ΔSePer, likewise")
    given.add_argument("--rows", type=int, default=192)
    given.add_argument("--size", type=int, default=64, help="rows of a batch")
    given.add_argument("--seed", type=int, default=21)
    given.add_argument("--only", default="", help="names of callables, joined by commas")
    wanted = given.parse_args(arguments)
    world = World(seed=wanted.seed)
    reader, entailer = json.loads(wanted.reader), json.loads(wanted.entailer)
    with TemporaryDirectory() as folder:
        asked = questions(world, wanted.rows)
        costs = [
            measure(batch, table.slice(0, wanted.rows), wanted.size)
            for batch, table in callables(reader, entailer, Path(folder), world, asked)
            if not wanted.only or type(batch).__name__ in wanted.only.split(",")
        ]
    console = Console(width=120)
    console.print(shown(costs))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(
        f"seed {wanted.seed}, batches of {wanted.size}, {os.environ.get('OMP_NUM_THREADS', 'all')} threads; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; at most {most:,.0f} MB resident"
    )
    return costs


if __name__ == "__main__":
    main()
