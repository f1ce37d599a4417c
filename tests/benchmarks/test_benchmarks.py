"""The benchmarks run, in a toy size; what they measure is not tested."""

import pytest
import torch

from benchmarks import begin_finish, entropies, gpu, merging, sampling
from benchmarks.models import TINY, build
from benchmarks.paired import Comparison, Contender, compare


@pytest.fixture(autouse=True)
def threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(module: object, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark", "--tiny", "--turns", "1", "--threads", "1", *arguments])
    module.main()


@pytest.mark.parametrize("module", [entropies, begin_finish])
def test_overheads_are_printed(
    module: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run(module, monkeypatch)
    assert capsys.readouterr().out.count("%") >= 6


def test_the_queue_is_measured_against_a_floor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run(merging, monkeypatch)
    assert "of the floor" in capsys.readouterr().out


def test_the_gpu_benchmark_runs_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run(gpu, monkeypatch, "--device", "cpu")
    printed = capsys.readouterr().out
    assert "times faster" in printed
    assert "overhead" in printed
    for contender in ("generate_batch", "own engine", "running batch", "NLIEntailer"):
        assert contender in printed


def test_sampling_is_compared_in_time_memory_and_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sampling, "peak_megabytes", lambda name, tiny: {"generate": 9.0, "reader": 7.0}[name])
    run(sampling, monkeypatch)
    printed = capsys.readouterr().out
    assert "generate 9 MB, reader 7 MB" in printed
    assert "Same greedy tokens: yes" in printed


@pytest.mark.parametrize("name", ["generate", "reader"])
def test_peaks_are_measured_for_one_contender(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run(sampling, monkeypatch, "--peak-of", name)
    assert float(capsys.readouterr().out) >= 0


def test_contenders_take_turns() -> None:
    order: list[str] = []
    first, second = (Contender(name, lambda name=name: order.append(name)) for name in "ab")
    found = compare("work", first, second, turns=2)
    assert "".join(order) == "ababab"
    assert len(found.first_seconds) == len(found.second_seconds) == 2


def test_ratios_are_taken_turn_by_turn() -> None:
    found = Comparison("work", "a", "b", [4.0, 10.0, 6.0], [1.0, 5.0, 2.0])
    assert found.speedup == (2.0, 3.0, 4.0)
    assert found.overhead.median == pytest.approx(-2 / 3)


def test_prompts_have_the_length_that_is_asked_for() -> None:
    bench = build(TINY)
    for tokens in (7, 16, 61):
        assert len(bench.tokenizer(bench.prompt(tokens))["input_ids"]) == tokens
    assert bench.prompt(16, 1)[0] != bench.prompt(16, 2)[0]
