"""A million summaries on the disk: memory, time and recall of ``DiskSummaryIndex``.

Run ``python -m benchmarks.summaries``; ``--vectors 100000`` is a quick one. Each step runs in a process of
its own, on one thread:

- *encode*: real texts (leads of the closed world's articles, and paragraphs of the docstrings of Python's own
  library) and real queries (the world's questions, and other such paragraphs) go through MiniLM;
- *text*: a million vectors are derived from those of the texts, for encoding a million takes hours on a CPU.
  Each is a text's vector, moved some way towards one of its ten nearest neighbours, and then by a part of
  what lies between two other neighbours: so what differs lies in the directions in which texts differ. How
  large that part is, is found by bisection: among 10,000 derived vectors the nearest neighbour is, in the
  median, as near as among 10,000 texts. A table compares more than that. The queries are real;
- *Gaussian*: as many vectors without any structure, and such queries: the worst that can be indexed.

Told are, for each kind: what the folder takes, the most memory that its build held, the time to open it, the
memory that searching held, milliseconds of a query (the vector given; encoding it is told apart) one by one
and all in one call, and recall@3 against exact search over the same stored vectors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks._summaries_vectors import (
    DIMENSIONS,
    SAMPLE,
    Derived,
    Prepared,
    Vectors,
    gaussian,
    geometry,
    paragraphs,
)
from surerag.encoders import packaged_minilm
from surerag.retrieval import DiskSummaryIndex
from surerag.retrieval.disk.exact import exact_rows, recall_of
from surerag.retrieval.disk.lists import load_faiss
from surerag.retrieval.disk.manifest import read_contents
from surerag.retrieval.disk.rows import StoredRows
from surerag.types import Passage
from surerag.world import World

KINDS = ("text", "gaussian")
_BLOCK = 4096


def main() -> None:
    """Take each step in a process of its own, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--texts", type=int, default=20_000, help="real ones, to derive vectors from")
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where all goes, and stays; a temporary one by default")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        step, _, kind = given.work.partition(" ")
        print(json.dumps(_STEPS[step](given, kind)))
        return
    with tempfile.TemporaryDirectory() as made:
        given.folder = given.folder or Path(made)
        given.folder.mkdir(parents=True, exist_ok=True)
        _show(given, {step: _apart(given, step) for step in ("encode", "idle", *_each())})


def _each() -> Iterator[str]:
    return (f"{step} {kind}" for kind in KINDS for step in ("build", "search"))


def _apart(given: argparse.Namespace, work: str) -> dict[str, Any]:
    numbers = [
        f"--{name}={getattr(given, name)}" for name in ("vectors", "texts", "queries", "seed", "folder")
    ]
    command = [sys.executable, "-m", "benchmarks.summaries", *numbers, "--work", work]
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **one})
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    Console(stderr=True).print(work, found)
    return found


def _encode(given: argparse.Namespace, _: str) -> dict[str, Any]:
    """Have real texts and queries encoded; what was encoded before is there."""
    rng = random.Random(given.seed)
    half, asked = given.texts // 2, given.queries // 2
    told = paragraphs()
    rng.shuffle(told)
    queries, leads, seed = told[:asked], set[str](), given.seed
    while len(leads) < given.texts - min(half, len(told) - asked):
        world, seed = World(seed=seed), seed + 1
        leads.update(document.lead for document in world.documents)
        if len(queries) < given.queries:
            queries += [question.text for question in world.questions(given.queries - len(queries))]
    texts = [*told[asked : asked + half], *sorted(leads)]
    texts = rng.sample(texts, given.texts)
    encoder = packaged_minilm()
    started = time.perf_counter()
    passages = (Passage(text, id=str(place)) for place, text in enumerate(texts))
    base = DiskSummaryIndex.from_passages(given.folder / "base", passages, encoder)
    seconds = time.perf_counter() - started
    started = time.process_time()
    rows = [encoder.encode([query], "query")[0] for query in queries]
    alone = (time.process_time() - started) / len(queries) * 1e3
    np.save(given.folder / "queries.npy", np.stack(rows))
    return {"seconds": seconds, "texts": len(base), "queries": len(queries), "encoding": alone}


def _idle(given: argparse.Namespace, _: str) -> dict[str, Any]:
    """Tell what a process holds that has done nothing but load the libraries."""
    _load()
    return {"peak": _peak()}


def _source(given: argparse.Namespace, kind: str) -> tuple[Any, dict[str, Any]]:
    if kind == "gaussian":
        return gaussian, {}
    contents = read_contents(given.folder / "base")
    derived = Derived(StoredRows(given.folder / "base", contents, contents.rows).block(0, contents.rows))
    real = derived.texts[:SAMPLE]
    made = derived.some(len(real), np.random.default_rng(given.seed))
    told = {"step": derived.step, "real": geometry(real), "made": geometry(made)}
    return derived.some, told


def _build(given: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Make vectors and index them, in a stream."""
    some, told = _source(given, kind)
    before, rng = _peak(), np.random.default_rng(given.seed + 1)
    told["before"] = before

    def batches() -> Iterator[tuple[list[Passage], Vectors]]:
        for start in range(0, given.vectors, _BLOCK):
            number = min(_BLOCK, given.vectors - start)
            yield [_passage(place) for place in range(start, start + number)], some(number, rng)

    wall, cpu = time.perf_counter(), time.process_time()
    index = DiskSummaryIndex.from_vectors(
        given.folder / kind, batches(), Prepared(np.zeros((0, 0), np.float32))
    )
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    sizes = {file.name: file.stat().st_size for file in (given.folder / kind).iterdir()}
    return {**told, "rows": len(index), "seconds": seconds, "peak": _peak(), "sizes": sizes}


def _passage(place: int) -> Passage:
    """Return a summary of the usual length: some 150 characters and a little metadata."""
    text = f"Summary {place}: two sentences of a document, as long as they usually are. " * 2
    return Passage(text, id=f"document-{place}", metadata={"title": f"Document {place}"})


def _search(given: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Search as it is opened, one by one and all at once; then compare with exact search."""
    if kind == "text":
        vectors = np.load(given.folder / "queries.npy")
    else:
        vectors = gaussian(given.queries, np.random.default_rng(given.seed + 2))
    asked = [str(place) for place in range(len(vectors))]
    _load()
    loaded, opening = _peak(), time.perf_counter()
    index = DiskSummaryIndex(given.folder / kind, Prepared(vectors))
    opening = time.perf_counter() - opening
    first = time.perf_counter()
    index.retrieve(asked[0], 3)
    first = time.perf_counter() - first
    alone = _milliseconds(lambda: [index.retrieve(one, 3) for one in asked], len(asked))
    together = _milliseconds(lambda: index.retrieve_many(asked, 3), len(asked))
    pairs = zip(asked, index.retrieve_many(asked, 3), strict=True)
    same = sum(index.retrieve(one, 3) == found for one, found in pairs)
    held = _peak()
    exact = exact_rows(index._rows, vectors, 3)
    probed = {}
    for n_probe in (8, 16, 32, 64, 128, 256, 512):
        other = DiskSummaryIndex(given.folder / kind, Prepared(vectors), n_probe=n_probe)
        cost = _milliseconds(lambda other=other: [other.retrieve(one, 3) for one in asked], len(asked))  # type: ignore[misc]
        probed[n_probe] = recall_of(other._found(vectors, 3), exact), cost[1]
    return {
        "loaded": loaded, "opening": opening * 1e3, "first": first * 1e3, "alone": alone,
        "together": together, "asked": len(asked), "same": same, "held": held,
        "layout": dict(index.layout), "probed": probed,
        "recall": recall_of(index._found(vectors, 3), exact),
    }  # fmt: skip


def _load() -> None:
    """Load the libraries, which opening an index does else."""
    import pyarrow.ipc  # noqa: F401 (loaded, not used)

    load_faiss()


def _milliseconds(work: Any, number: int) -> tuple[float, float]:
    """Return wall and processor milliseconds for each of some queries, after a turn that does not count."""
    work()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - wall) / number * 1e3, (time.process_time() - cpu) / number * 1e3


def _peak() -> float:
    """Return the most memory that this process ever held, in MB, pages of mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _show(given: argparse.Namespace, found: dict[str, Any]) -> None:
    console, encode = Console(), found["encode"]
    console.print(
        f"{given.vectors:,} vectors of {DIMENSIONS} dimensions, derived from {encode['texts']:,} texts (step "
        f"{found['build text']['step']:.2f}); "
        f"{encode['queries']} queries, seed {given.seed}, one thread. Encoding one query with MiniLM takes "
        f"{encode['encoding']:.1f} ms of the processor. Libraries alone hold {found['idle']['peak']:.0f} MB."
    )
    shape = Table(
        title=f"How near neighbours are (cosine), and how many directions count: {SAMPLE:,} vectors"
    )
    for name in ("", "nearest: 10 %", "50 %", "90 %", "tenth: 10 %", "50 %", "90 %", "directions"):
        shape.add_column(name, justify="right")
    for name, key in (("of texts", "real"), ("derived", "made")):
        *cosines, directions = found["build text"][key]
        shape.add_row(name, *(f"{cosine:.3f}" for cosine in cosines), f"{directions:.0f}")
    console.print(shape)
    table = Table(title="Wall time (processor time)")
    for name in ("", *KINDS):
        table.add_column(name, justify="left" if name == "" else "right")
    told = [_told(found[f"build {kind}"], found[f"search {kind}"]) for kind in KINDS]
    for name in told[0]:
        table.add_row(name, *(one[name] for one in told))
    console.print(table)


def _timed(pair: Sequence[float]) -> str:
    return f"{pair[0]:.2f} ({pair[1]:.2f})"


def _told(build: dict[str, Any], search: dict[str, Any]) -> dict[str, str]:
    layout, rows = search["layout"], build["rows"]
    parts = [
        f"{size / rows:.0f}"
        for end in (".f16", ".lists", ".arrow")
        for name, size in build["sizes"].items()
        if name.endswith(end)
    ]
    return {
        "cells, looked into": f"{layout['n_cells']}, {layout['n_probe']}",
        "to build, s": f"{build['seconds'][0]:.0f} ({build['seconds'][1]:.0f})",
        "building: before, at most, MB": f"{build['before']:.0f}, {build['peak']:.0f}",
        "on the disk, bytes a summary": f"{sum(build['sizes'].values()) / rows:.0f}",
        "of these vectors, cells, texts": ", ".join(parts),
        "to open, ms": f"{search['opening']:.0f}",
        "first query, ms": f"{search['first']:.1f}",
        "searching: before, at most, MB": f"{search['loaded']:.0f}, {search['held']:.0f}",
        "a query alone, ms": _timed(search["alone"]),
        "a query of all in one call, ms": _timed(search["together"]),
        "both find the same": f"{search['same']} of {search['asked']}",
        "recall@3": f"{search['recall']:.4f}",
    } | {
        f"recall@3 and ms, looking into {n_probe} cells": f"{recall:.4f}, {cost:.2f}"
        for n_probe, (recall, cost) in search["probed"].items()
    }


_STEPS = {"encode": _encode, "idle": _idle, "build": _build, "search": _search}

if __name__ == "__main__":
    main()
