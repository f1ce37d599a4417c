"""The benchmark of summaries runs, in a toy size; what it measures is not tested."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import summaries
from benchmarks._summaries_vectors import Derived
from surerag.encoders import HashingEncoder


def test_every_step_is_taken_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(summaries, "packaged_minilm", lambda: HashingEncoder(384))
    told = [f"Paragraph {place} of the library tells what it does." for place in range(400)]
    monkeypatch.setattr(summaries, "paragraphs", lambda: told)
    given = Namespace(vectors=3000, texts=300, queries=10, seed=1, folder=tmp_path)
    work = [
        "encode",
        "idle",
        *(f"{step} {kind}" for kind in ("text", "gaussian") for step in ("build", "search")),
    ]
    found = {}
    for one in work:
        step, _, kind = one.partition(" ")
        found[one] = summaries._STEPS[step](given, kind)
    assert found["search text"]["recall"] == 1.0, "few enough are all looked at"
    summaries._show(given, found)
    printed = capsys.readouterr().out
    for told in ("3,000 vectors", "of texts", "derived", "to open, ms", "10 of 10", "recall@3"):
        assert told in printed


def test_derived_vectors_lie_as_near_as_those_of_texts() -> None:
    rng = np.random.default_rng(0)
    texts = (rng.normal(size=(30, 64))[rng.integers(30, size=2000)] + rng.normal(size=(2000, 64))).astype(
        np.float32
    )
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    derived = Derived(texts)
    near = np.sort(derived.some(2000, rng) @ derived.some(2000, rng).T, axis=1)[:, -1]
    assert np.median(near) == pytest.approx(derived.target, abs=0.05)
