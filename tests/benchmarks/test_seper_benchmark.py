"""The benchmark of SePer: its models say what they are told to, and its scores are those of the package."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import _seper_contest, _seper_floor, _seper_peers, _seper_world, seper
from benchmarks._seper_contest import KERNELS, Setting, plain_delta, prepare
from benchmarks._seper_models import chain_of
from benchmarks._seper_plain import PairwiseNLI, Sample, belief, sample
from benchmarks._seper_world import WORD, Pool, Repetition, pool_size
from surerag import SePer
from surerag.types import Pair, Sampling
from surerag.world import World

QUESTIONS = 3
MEASURED = {
    "without": [Repetition(4, (1, 3, 1, 2), gold=False)] * QUESTIONS,
    "with": [Repetition(2, (1, 1), gold=True)] * QUESTIONS,
}


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=3, size=60)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory, world: World) -> Setting:
    torch.set_num_threads(1)
    questions = world.questions(QUESTIONS)
    folder = tmp_path_factory.mktemp("models")
    return prepare(folder, world, questions, MEASURED, seper.TINY, lambda: 0.0)


class Hashed:
    """An entailer of chance: its verdicts depend on nothing but the texts, and all labels occur."""

    name = "hashed"

    def __call__(self, premise: str, hypothesis: str) -> list[float]:
        digest = hashlib.sha256(f"{premise}|{hypothesis}".encode()).digest()
        raw = np.exp([byte / 64 for byte in digest[:3]])
        return (raw / raw.sum()).tolist()

    def entail(self, pairs: Sequence[Pair]) -> Any:
        return np.array([self(*_seper_contest.statements(pair)) for pair in pairs])


@pytest.mark.parametrize("distinct", range(1, 11))
def test_a_pool_gives_as_many_distinct_answers_as_were_measured(distinct: int) -> None:
    size = pool_size(distinct, draws=10)
    drawn = np.random.default_rng(0).integers(size, size=(4000, 10))
    assert np.mean([len(set(row)) for row in drawn.tolist()]) == pytest.approx(distinct, abs=0.5)


@pytest.mark.parametrize("tokens", [90, 121, 1000])
def test_contexts_have_the_length_that_is_asked_for_and_hold_the_answer(world: World, tokens: int) -> None:
    for question in world.questions(5):
        passages = _seper_world.context(world, question, tokens)
        assert sum(len(WORD.findall(passage.text)) for passage in passages) == tokens
        gold = [passage.id for passage in passages[: len(question.gold_passages)]]
        assert set(gold) == set(question.gold_passages)


def test_every_prompt_ends_in_a_mark_of_its_own(setting: Setting) -> None:
    ends = [prompt.split()[-1] for rows in setting.prompts.values() for prompt in rows]
    assert ends == ["q0a", "q1a", "q2a", "q0b", "q1b", "q2b"]
    assert {pool.mark for pool in setting.pools} == set(ends)


def test_a_chain_makes_answers_of_a_pool_equally_likely() -> None:
    chain = chain_of([Pool("q0a", ("Velm", "w1 then2 then1")), Pool("q0b", ("Velm",))])
    assert np.exp(list(chain["q0a"].values())) == pytest.approx([0.5, 0.5])
    assert chain["w1"] == {"then2": 0.0}
    assert "Velm" not in chain
    assert "then1" not in chain


def test_the_random_llama_says_the_pool_of_its_prompt_with_both_libraries(setting: Setting) -> None:
    pools = {pool.mark: pool.answers for pool in setting.pools}
    for rows in setting.prompts.values():
        sampling = Sampling(n=200, temperature=1.0, max_tokens=8)
        answers = setting.reader.generate(rows, sampling)
        for prompt, row in zip(rows, answers, strict=True):
            expected = pools[prompt.split()[-1]]
            other = sample(setting.model, setting.tokenizer, prompt, 200, 8)
            for counts in (Counter(one.text for one in row), Counter(one.text for one in other)):
                assert set(counts) <= set(expected)
                # Uniform: no share is more than five standard deviations off.
                share = 1 / len(expected)
                assert all(
                    abs(counts[text] / 200 - share) < 5 * (share * (1 - share) / 200) ** 0.5 + 1e-9
                    for text in expected
                )
            likely = {one.text: np.mean(one.trace.logprobs) for one in row}
            assert all(
                one.log_likelihood == pytest.approx(likely[one.text], abs=1e-3)
                for one in other
                if one.text in likely
            )


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_are_the_straightforward_ones(setting: Setting, kernel: str) -> None:
    judge = Hashed()
    # As in the authors' code, an answer joins the first cluster whose first member it means.
    package = SePer(
        setting.reader, judge, n_samples=10, kernel=kernel, clusters="first", prompts=_seper_world.PROMPTS
    )
    results = package.run_many(setting.asked)
    for result in results:
        assert plain_delta(result, judge, kernel) == pytest.approx(result.delta, abs=1e-6)
    assert len({round(result.delta, 6) for result in results}) > 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_with_the_classifier_batches_and_single_pairs_give_the_same_scores(
    setting: Setting, kernel: str
) -> None:
    found = _seper_contest.ours(setting, seed=0)
    judge = PairwiseNLI(setting.nli, setting.nli_tokenizer)
    for result in found.results[kernel]:
        assert plain_delta(result, judge, kernel) == pytest.approx(result.delta, abs=seper.TOLERANCE)


def test_the_straightforward_score_is_that_of_a_worked_example() -> None:
    verdicts = {("q B", "q A"): [0.0, 0.4, 0.6], ("q A", "q B"): [0.1, 0.7, 0.2]}
    samples = [Sample("A", np.log(0.6)), Sample("A", np.log(0.6)), Sample("B", np.log(0.2))]

    def judge(premise: str, hypothesis: str) -> list[float]:
        return verdicts[premise, hypothesis]

    # A weighs 0.6 of 0.8 and is the gold answer; B weighs 0.2 of 0.8 and means it by 0.6.
    assert belief(samples, "q", ["A"], judge, "soft") == pytest.approx(0.75 + 0.25 * 0.6)
    # B neither contradicts A nor is neutral both ways: it matches, though it is a cluster of its own.
    assert belief(samples, "q", ["A"], judge, "hard") == pytest.approx(1.0)


def test_the_floor_reads_prompts_once_and_lets_rows_go_as_they_end(setting: Setting) -> None:
    shapes: list[tuple[int, ...]] = []
    hook = setting.model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple((args[0] if args else kwargs["input_ids"]).shape)),
        with_kwargs=True,
    )
    try:
        prompts = [_seper_floor.Encoded([5, 6, 7, 8], (1, 3)), _seper_floor.Encoded([5, 6, 7], (2, 2))]
        _seper_floor.decoding_seconds(setting.model, prompts, lambda: 0.0)
    finally:
        hook.remove()
    assert shapes == [(1, 4), (1, 3), (3, 1), (1, 1)]


def test_the_floor_judges_each_distinct_pair_once(setting: Setting) -> None:
    rows: list[int] = []
    hook = setting.nli.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    try:
        pairs = [("a", "b"), ("b", "a"), ("a", "b")]
        _seper_floor.judging_seconds(setting.nli, setting.nli_tokenizer, pairs, lambda: 0.0)
    finally:
        hook.remove()
    assert sum(rows) == 2


def test_an_environment_is_made_once_and_again_when_its_versions_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def note(command: list[str], home: Path | None = None) -> None:
        commands.append(command)
        (tmp_path / "some==1").mkdir(exist_ok=True)

    monkeypatch.setattr(_seper_peers, "_run", note)
    versions = tmp_path / "versions.txt"
    versions.write_text("torch==1\n")
    peer = _seper_peers.Peer("some==1", Path("some.py"), versions)
    _seper_peers.environment(peer, tmp_path)
    assert commands[-1][-3:] == ["--constraint", str(versions), "some==1"]
    made = len(commands)
    assert _seper_peers.environment(peer, tmp_path) == tmp_path / "some==1" / "bin" / "python"
    assert len(commands) == made
    versions.write_text("torch==2\n")
    _seper_peers.environment(peer, tmp_path)
    assert len(commands) == 2 * made


def test_peers_get_our_torch_and_say_why_they_fail() -> None:
    root = Path(_seper_peers.__file__).parent.parent
    [torch_version] = [
        line for line in (root / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
    ]
    for peer in _seper_peers.PEERS:
        assert torch_version in peer.constraints.read_text().splitlines()
        assert peer.script.exists()
    with pytest.raises(_seper_peers.PeerError, match="no such thing"):
        _seper_peers._run([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(seper, "embedded_reader", lambda: None)
    monkeypatch.setattr(seper, "measure", lambda *_: MEASURED)
    arguments = ["--tiny", "--without-peers", "--questions", str(QUESTIONS), "--threads", "1"]
    monkeypatch.setattr("sys.argv", ["benchmark", *arguments])
    seper.main()
    printed = capsys.readouterr().out
    for expected in ("straightforward", "floor", "Distinct answers of 4", "Same samples"):
        assert expected in printed
