"""The study on a small scale: each generation made once, and the records what the component does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from surerag import ScriptedReader, UncertaintyRewriter
from surerag.encoders import HashingEncoder
from surerag.errors import CapabilityError, ConfigurationError
from surerag.readers.protocol import Capabilities
from surerag.world.world import World
from surerag_studies.dynqr import study as module
from surerag_studies.dynqr.asking import MAX_TOKENS, SAMPLES, K, metrics_of
from surerag_studies.dynqr.records import outcome_of
from surerag_studies.dynqr.results import DynQRStudy
from surerag_studies.dynqr.study import dynqr_study, index_world
from tests.studies.dynqr.searching import searching

N, SIZE = 60, 60


@pytest.fixture(scope="module")
def worlds() -> dict[int, World]:
    return {seed: World(seed=seed, size=SIZE) for seed in (3, 4)}


@pytest.fixture(scope="module")
def reader(worlds: dict[int, World]) -> ScriptedReader:
    return searching(*worlds.values(), n=N)


@pytest.fixture(scope="module")
def study(worlds: dict[int, World], reader: ScriptedReader) -> DynQRStudy:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "world_of", lambda _, n, seed: worlds[seed])
        return dynqr_study(reader, HashingEncoder(), seed=3, n=N)


@pytest.mark.parametrize("documents", ["substitute", "expand"])
@pytest.mark.parametrize("threshold", [1.0, 1.3, math.inf])
def test_records_are_what_the_component_does_at_every_threshold(
    study: DynQRStudy, worlds: dict[int, World], reader: ScriptedReader, documents: Any, threshold: float
) -> None:
    index = index_world(worlds[3], HashingEncoder())
    for verify in (True, False):
        rewriter = UncertaintyRewriter(
            reader,
            index,
            threshold=threshold,
            documents=documents,
            top_n=K,
            max_tokens=MAX_TOKENS,
            verify=verify,
        )
        results = rewriter.run_many([record.question for record in study.records])
        for record, result in zip(study.records, results, strict=True):
            expected = outcome_of(record, threshold, documents, verify=verify)
            assert result.answer == expected.attempt.answer
            assert (result.acted, result.kept == "rewritten") == (expected.acted, expected.replaced)
            assert result.costs.retrievals == expected.cost.retrievals
            assert result.costs.calls == expected.cost.calls
            assert result.costs.prompt_tokens == expected.cost.prompt_tokens
            assert result.costs.completion_tokens == expected.cost.completion_tokens


def test_the_component_agrees_and_calibration_is_made_on_the_other_world(study: DynQRStudy) -> None:
    assert (study.calibration_seed, study.n_calibration) == (4, N)
    found = study.agreement
    assert found.same_answer == found.same_decision == found.n == 2 * N
    assert found.more_uncertain == 0


def test_rewriting_mends_vague_questions_of_a_reader_that_can_rewrite(study: DynQRStudy) -> None:
    [vague] = [row for row in study.kinds if row.kind == "under-specified"]
    assert vague.against_original.low > 0
    assert vague.rewritten.value > 0.5
    assert all(record.rewrite for record in study.records if record.vague)
    assert all(record.rewriting == "unusable" for record in study.records if not record.vague)


def test_every_context_is_answered_once(
    worlds: dict[int, World], reader: ScriptedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "world_of", lambda _, n, seed: worlds[seed])
    monkeypatch.setattr(module, "LARGEST_CHECK", 0)
    before = len(reader.history)
    found = dynqr_study(reader, HashingEncoder(), seed=3, n=20, n_calibration=10)
    calls = [(call.sampling.n, call.prompts) for call in reader.history[before:] if call.sampling is not None]
    assert len(found.records) == 20
    for n, most in ((1, 6), (SAMPLES, 3)):
        prompts = [prompt for drawn, asked in calls if drawn == n for prompt in asked]
        assert len(prompts) <= most * 30
        # Golden and substitute contexts of one question may come out equal; nothing else does.
        assert len(prompts) - len(set(prompts)) <= 5


def test_the_same_seed_gives_the_same_study(
    study: DynQRStudy, worlds: dict[int, World], reader: ScriptedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "world_of", lambda _, n, seed: worlds[seed])
    assert dynqr_study(reader, HashingEncoder(), seed=3, n=N) == study


def test_a_reader_that_repeats_the_query_gains_nothing(
    worlds: dict[int, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "world_of", lambda _, n, seed: worlds[seed])
    found = dynqr_study(searching(*worlds.values(), n=N, rewrites=False), HashingEncoder(), seed=3, n=N)
    accuracies = {row.accuracy.value for row in found.rows if row.label != "Direct"}
    assert len(accuracies) == 1
    assert {claim.holds for claim in found.claims if "under-specified" in claim.statement} == {False}


def test_what_cannot_be_studied_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="same world"):
        dynqr_study(ScriptedReader(), HashingEncoder(), seed=3, n=50, calibration_seed=3)
    with pytest.raises(CapabilityError, match="log-probabilities"):
        metrics_of(ScriptedReader(logprob=None))
    assert metrics_of(ScriptedReader(capabilities=Capabilities(logprobs=True, entropy=None))) == (
        "perplexity",
        "ln_entropy",
        "lowest_probability",
    )
