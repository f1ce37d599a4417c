"""The benchmark of ``run_many`` runs, in a toy size, and compares what is the same."""

from __future__ import annotations

import pytest
import torch

from benchmarks import run_many
from benchmarks.models import TINY, build


def test_both_ways_decide_and_answer_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr("sys.argv", ["benchmark", "--tiny", "--turns", "1", "--threads", "1"])
    run_many.main()
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert printed.count("same decisions: 4, same answers: 4 of 4") == 2
    assert "random Llama: 2 of 4 retrieved" in printed
    assert "times faster" in printed


def test_every_query_gets_its_own_passages_and_the_same_again() -> None:
    retriever = run_many.Drawn(40)
    once = retriever.retrieve("a", 3)
    assert [len(passage.text) for passage in once] == [40] * 3
    assert once == retriever.retrieve("a", 3)
    assert once != retriever.retrieve("b", 3)


def test_the_gate_opens_for_half_of_the_questions() -> None:
    asked = [f"What is {place}?" for place in range(8)]
    rag = run_many.random_llama(build(TINY), asked, length=12, new_tokens=10)
    assert sum(result.decision.retrieve for result in rag.run_many(asked)) == 4
