"""Recorded answers of a larger model: does uncertainty find wrong answers, and answers that a search repairs?

The study reads a Parquet file with one row for each question. The columns are ``dataset``, ``golds``,
``answer`` (without a search) with its uncertainties, and ``answer_no_retrieval`` and
``answer_one_retrieval`` (both from another prompt). The published results are of Llama-3.1-8B-Instruct on
NQ and TriviaQA (s-nlp/AdaRAGUE, arXiv 2501.12835).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.common import (
    console,
    difference,
    print_table,
    separation,
    share,
    show,
    with_json,
    write_tables,
)
from surerag.errors import extra
from surerag.measures import contains
from surerag.measures.statistics import Estimate, mean_interval

METRICS = ("perplexity", "ln_entropy", "eigen_score")
RATES = (0.25, 0.5, 0.75)


def main() -> None:
    """Print the tables of each data set in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="Parquet file of records")
    with extra("evaluation"):
        import pyarrow.parquet as pq
    arguments = with_json(parser).parse_args()
    rows = pq.read_table(arguments.file).to_pylist()
    for name in dict.fromkeys(row["dataset"] for row in rows):
        print_dataset(name, [row for row in rows if row["dataset"] == name])
    write_tables(arguments)


def print_dataset(name: str, rows: list[dict[str, Any]]) -> None:
    """Print right answers, AUROCs, and the gain of calling the retriever for the least certain questions."""
    own = [contains(row["answer"], row["golds"]) for row in rows]
    without = [contains(row["answer_no_retrieval"], row["golds"]) for row in rows]
    retrieved = [contains(row["answer_one_retrieval"], row["golds"]) for row in rows]
    hurt = share([a and not b for a, b in zip(without, retrieved, strict=True)])
    helped = [b and not a for a, b in zip(without, retrieved, strict=True)]
    console.print(f"{name}, n = {len(rows)}")
    print_table(
        "A reference stands in the answer",
        ("", "%"),
        [
            ("without retrieval", show(share(without))),
            ("with one retrieval", show(share(retrieved))),
            ("difference, points", show(difference(retrieved, without), sign=True)),
            ("questions that retrieval helps", show(share(helped))),
            ("questions that it hurts", show(hurt)),
        ],
        name=f"{name} right",
    )
    table = []
    for metric in METRICS:
        scores = [float(row[metric]) for row in rows]
        areas = [
            separation([s for s, hit in zip(scores, hits, strict=True) if hit],
                       [s for s, hit in zip(scores, hits, strict=True) if not hit])
            for hits in ([not right for right in own], helped)
        ]  # fmt: skip
        gains = [show(gain(np.array(scores), without, retrieved, rate), sign=True) for rate in RATES]
        table.append((metric, *(show(a, scale=1, digits=2) if a else "n/a" for a in areas), *gains))
    columns = ("Uncertainty", "AUROC wrong", "AUROC helps", *(f"gain at {rate:.0%}" for rate in RATES))
    print_table(
        "Retrieve where the reader is least certain",
        columns,
        table,
        "Gain in points over random questions.",
        name=f"{name} retrieving",
    )


def gain(scores: NDArray[np.float64], without: list[bool], retrieved: list[bool], rate: float) -> Estimate:
    """Return right answers if the least certain share searches, minus those if a random share searches."""
    searches = scores >= np.quantile(scores, 1 - rate)
    change = np.array(retrieved, dtype=float) - np.array(without, dtype=float)
    return mean_interval(change * (searches - searches.mean()), bounds=None)


if __name__ == "__main__":
    main()
