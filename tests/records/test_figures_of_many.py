"""Of very many questions, figures hold some: what stands by condition is of all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from surerag.records import figures
from surerag.records.figures import trace_figures
from surerag.records.rows import NONE, RETRIEVAL, Pass, TraceRow
from surerag.records.tables import main_grids

N = 3000


def rows() -> Iterator[TraceRow]:
    rng = random.Random(1)
    for at in range(N):
        doubt = rng.random()
        first = Pass(NONE, "", "", float(rng.random() > doubt), signals={"doubt": doubt}, calls=1)
        second = Pass(RETRIEVAL, "", "", float(rng.random() < 0.9), calls=2, prompt_tokens=at, seconds=0.5)
        yield TraceRow(str(at), "", "", None, (first, second))


def test_conditions_are_of_all_and_signals_of_a_random_part(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trace_figures("t", rows(), reader="r", judge="contains")
    monkeypatch.setattr(figures, "HELD", 1000)
    monkeypatch.setattr("surerag.records.tables.HELD", 1000)
    part = trace_figures("t", rows(), reader="r", judge="contains")
    assert part.conditions == whole.conditions and part.n == whole.n == N
    assert [one.n for one in part.decisions] == [1000]
    mine, all_ = part.decisions[0].signals[0].wrong, whole.decisions[0].signals[0].wrong
    assert mine is not None and all_ is not None
    assert mine.value != all_.value and mine.low < all_.value < mine.high
    assert part == trace_figures("t", rows(), reader="r", judge="contains")
    assert "of 1,000 of the 3,000 questions, drawn at random" in main_grids(part)[0].note


def test_means_by_condition_are_means() -> None:
    found = trace_figures("t", rows(), reader="r", judge="contains").conditions[1]
    assert (found.n, found.calls, found.prompt_tokens, found.seconds) == (N, 2.0, (N - 1) / 2, 0.5)
    assert found.right is not None and found.right.value == found.score
