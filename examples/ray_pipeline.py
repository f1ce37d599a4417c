"""Ray Data: a corpus is cut and embedded; questions are answered, and what retrieval was worth is measured.

    python ray_pipeline.py --documents documents.parquet --questions questions.parquet --output results/

Every step is a callable of `surerag.scale` over Arrow tables. `READER` and `ENCODER` are what you change.
With a vLLM server beside Ray, `READER = {"base_url": "http://localhost:8000/v1", "model": "Qwen/Qwen3-4B"}`;
on GPUs, `READER = {"model": "Qwen/Qwen3-4B", "device": "cuda"}` and `--gpus-per-actor 1`.
"""

from __future__ import annotations

import argparse
from typing import Any

import pyarrow as pa
import ray

from surerag.scale import ChunkBatch, EmbedBatch, LazyRAGBatch, SePerBatch, SummarizeBatch

READER: Any = "embedded"
ENCODER: Any = "hashing"
ROWS = 64
"""Rows of a unit: one block is one batch is one file of results, whoever works on it."""


class AnswerAndMeasure:
    """Two steps in one actor, which then holds one model: equal settings name one reader in a process."""

    def __init__(self, lazy: dict[str, Any], seper: dict[str, Any]) -> None:
        self.steps = LazyRAGBatch(**lazy), SePerBatch(**seper)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Answer, then measure."""
        for step in self.steps:
            table = step(table)
        return table


def read(path: str) -> ray.data.Dataset:
    """Read a table in blocks of so many rows."""
    return ray.data.read_parquet(path).repartition(target_num_rows_per_block=ROWS, strict=True)


def mapped(rows: ray.data.Dataset, step: type, settings: dict[str, Any], **actors: Any) -> ray.data.Dataset:
    """Map a callable over the blocks of a data set."""
    step(**settings)  # loads nothing; a wrong setting raises here, before any actor starts
    return rows.map_batches(
        step, fn_constructor_kwargs=settings, batch_format="pyarrow", batch_size=None, **actors
    )


def main() -> None:
    """Run the pipeline."""
    given = argparse.ArgumentParser()
    given.add_argument("--documents", required=True, help="Parquet with the columns id and text")
    given.add_argument("--questions", required=True, help="Parquet with question, answers and contexts")
    given.add_argument("--output", required=True, help="folder; on a cluster one that all its machines reach")
    given.add_argument("--actors", type=int, default=1)
    given.add_argument("--gpus-per-actor", type=float, default=0)
    given.add_argument("--address", default="local", help="auto: the cluster that this machine belongs to")
    wanted = given.parse_args()

    ray.init(wanted.address, include_dashboard=False)
    if wanted.actors >= ray.cluster_resources()["CPU"]:  # Ray Data would wait for ever
        given.error("each actor takes a CPU, and one more reads and writes: fewer --actors, or more machines")
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    light = {"compute": ray.data.ActorPoolStrategy(size=1), "num_cpus": 0.25}
    heavy = {
        "compute": ray.data.ActorPoolStrategy(size=wanted.actors),
        "num_cpus": 1,
        "num_gpus": wanted.gpus_per_actor,
    }
    passages, summaries = f"{wanted.output}/passages", f"{wanted.output}/summaries"

    # Passages with their vectors; and a summary of each document, with its vector.
    cut = mapped(read(wanted.documents), ChunkBatch, {"tokens": 100, "overlap": 20}, **light)
    mapped(cut, EmbedBatch, {"encoder": ENCODER}, **light).write_parquet(passages)
    short = mapped(read(wanted.documents), SummarizeBatch, {"sentences": 2}, **light)
    named = {"encoder": ENCODER, "columns": {"text": "summary_text"}}
    mapped(short, EmbedBatch, named, **light).write_parquet(summaries)

    # An answer to each question, from summaries alone where the gate finds the reader sure; and what the
    # contexts that the questions came with are worth to the same reader.
    lazy = {
        "reader": READER,
        "encoder": ENCODER,
        "retriever": {"passages": passages, "k": 3},
        "summaries": {"passages": summaries, "columns": {"text": "summary_text"}},
        "max_tokens": 16,
    }
    both = {"lazy": lazy, "seper": {"reader": READER, "n_samples": 5}}
    mapped(read(wanted.questions), AnswerAndMeasure, both, **heavy).write_parquet(f"{wanted.output}/answers")

    found = ray.data.read_parquet(f"{wanted.output}/answers").materialize()
    print(f"{found.count()} questions")
    print(f"retrieved for {100 * found.mean('lazy_rag_retrieved'):.0f} % of them")
    print(f"mean ΔSePer {found.mean('seper_delta'):+.3f}")


if __name__ == "__main__":
    main()
