"""Vectors for the benchmark of summaries: those of real texts, and any number that lie like them."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surerag.retrieval.disk.lists import load_faiss

DIMENSIONS = 384
NEIGHBOURS = 10
SAMPLE = 10_000
Vectors = NDArray[np.float32]


class Prepared:
    """An encoder that returns vectors that are there, so that no model counts.

    Args:
        vectors: One for each query, which is its number.
    """

    name = "prepared"

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> Vectors:
        """Return the vectors that the texts number."""
        return self._vectors[[int(text) for text in texts]]


class Derived:
    """Vectors made of the vectors of texts; see this file's beginning.

    Args:
        texts: The vectors of real texts [texts, dimensions].
    """

    def __init__(self, texts: Vectors) -> None:
        self.texts = texts
        self._near = _neighbours(texts, texts, NEIGHBOURS + 1)[1][:, 1:]
        size = min(SAMPLE, len(texts))
        self.target = _nearness(texts[:size])
        low, high = 0.0, 2.0
        for _ in range(7):
            self.step = (low + high) / 2
            nearer = _nearness(self.some(size, np.random.default_rng(0))) > self.target
            low, high = (self.step, high) if nearer else (low, self.step)

    def some(self, number: int, rng: np.random.Generator) -> Vectors:
        """Return new vectors [number, dimensions]."""
        one, other = (rng.integers(len(self.texts), size=number) for _ in range(2))
        near, beside = (
            self._near[place, rng.integers(self._near.shape[1], size=number)] for place in (one, other)
        )
        way = rng.random((number, 1), dtype=np.float32)
        moved = self.texts[one] + way * (self.texts[near] - self.texts[one])
        return _normal(moved + np.float32(self.step) * (self.texts[beside] - self.texts[other]))


def gaussian(number: int, rng: np.random.Generator) -> Vectors:
    """Return vectors without any structure [number, dimensions]."""
    return _normal(rng.standard_normal((number, DIMENSIONS), dtype=np.float32))


def _normal(vectors: Vectors) -> Vectors:
    found: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


def _neighbours(queries: Vectors, among: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
    index = load_faiss().IndexFlatIP(among.shape[1])
    index.add(np.ascontiguousarray(among))
    found: tuple[Vectors, NDArray[np.int64]] = index.search(np.ascontiguousarray(queries), min(k, len(among)))
    return found


def _nearness(vectors: Vectors) -> float:
    return float(np.median(_neighbours(vectors[:1000], vectors, 2)[0][:, 1]))


def geometry(vectors: Vectors) -> list[float]:
    """Return cosines to the nearest and tenth neighbour at three quantiles, and how many directions count."""
    near = _neighbours(vectors[:2000], vectors, NEIGHBOURS + 1)[0]
    spread = np.linalg.eigvalsh(np.cov(vectors.T))
    cosines = [*np.quantile(near[:, 1], [0.1, 0.5, 0.9]), *np.quantile(near[:, -1], [0.1, 0.5, 0.9])]
    return [*map(float, cosines), float(spread.sum() ** 2 / (spread**2).sum())]


def paragraphs() -> list[str]:
    """Return what the docstrings of Python's own library say, paragraph by paragraph."""
    found: set[str] = set()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib"} & set(file.parts):
            continue
        try:
            nodes = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, kinds)]
        except (SyntaxError, ValueError):
            continue
        told = (ast.get_docstring(node) or "" for node in nodes)
        texts = (" ".join(part.split())[:300] for text in told for part in text.split("\n\n"))
        found.update(text for text in texts if len(text) > 40 and not text.startswith(">>>"))
    return sorted(found)
