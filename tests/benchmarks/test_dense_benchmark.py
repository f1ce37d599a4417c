"""The benchmark of DENSE runs, in a toy size, and counts what it says it counts."""

from __future__ import annotations

import pytest
import torch

from benchmarks import dense
from benchmarks.models import TINY, build


def test_it_prints_tokens_times_and_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr("sys.argv", ["benchmark", "--tiny", "--turns", "1", "--threads", "1"])
    dense.main()
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert printed.count("same answers for 1 of 1 questions") == 3
    assert printed.count("same answers for 3 of 3 questions") == 2
    assert "times faster" in printed
    assert "of 90 ordered pairs" in printed


def test_a_loop_reads_every_context_and_dense_what_they_do_not_share() -> None:
    bench = build(TINY)
    work = dense.draw(1, 4, 80)
    found = dense.contest("k = 4", bench.reader, work, new_tokens=1, turns=1)
    chunk = bench.reader.count_tokens(f"[1] {work.cases[0].passages[0].text}\n")
    assert found.read.naive == 5 * 4 * chunk
    assert found.read.floor == 4 * chunk + 10 * chunk
    assert found.read.plain == sum(
        bench.reader.count_tokens(prompt) for prompt in dense.contexts(work.cases[0], work)
    )
    instructions = found.read.instructions / 5
    assert 0 < instructions < 160
    # The instructions are read once; a chunk's number is shared with the chunk that it replaces.
    assert 0.9 * found.read.floor <= found.read.ours <= found.read.floor + instructions


def test_rounds_are_counted_one_by_one() -> None:
    bench = build(TINY)
    rounds = dense.refinement(bench.reader, dense.draw(1, 3, 60, pool=6), 3, new_tokens=2)
    assert len(rounds) > 1
    assert rounds[0].chunks == 3
    assert all(0 < one.read < one.asked for one in rounds)
