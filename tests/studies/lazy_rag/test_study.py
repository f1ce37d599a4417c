"""The study on a small scale: each generation made once, and the sweep what the component does."""

from __future__ import annotations

import pytest

from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError
from surerag.evaluation.gate.analysis import lazy_pass
from surerag.readers.scripted import ScriptedReader
from surerag.world.world import World
from surerag_studies.lazy_rag.study import Finding, lazy_rag_study
from tests.world.clairvoyant import clairvoyant

N = 120


@pytest.fixture(scope="module")
def reader() -> ScriptedReader:
    return clairvoyant(World(seed=3), World(seed=4), n=N)


@pytest.fixture(scope="module")
def finding(reader: ScriptedReader) -> Finding:
    return lazy_rag_study(reader, HashingEncoder(), seed=3, n=N, n_calibration=N)


@pytest.mark.parametrize("threshold", [0.0, 0.4, 2.0])
def test_sweep_is_what_the_component_does_at_that_threshold(finding: Finding, threshold: float) -> None:
    questions = finding.answers.questions
    results = finding.rag.with_options(threshold=threshold).run_many(
        [question.text for question in questions]
    )
    for question, result, record in zip(questions, results, finding.study.records, strict=True):
        expected = lazy_pass(record, threshold, finding.study.gate_tokens)
        assert result.decision.retrieve == (record.entropy > threshold)
        assert question.is_correct(result.answer) == expected.correct
        assert result.prompt_tokens == expected.prompt_tokens
        assert result.completion_tokens == expected.completion_tokens


def test_gate_opens_where_the_summaries_do_not_tell(finding: Finding) -> None:
    rates = {row.kind: row.retrieval.value for row in finding.study.kinds}
    assert rates["single-hop, core"] < rates["single-hop, deep"]


def test_calibration_is_made_on_the_other_world_and_confirmed_by_the_component(finding: Finding) -> None:
    assert (finding.study.calibration.seed, finding.study.calibration.n) == (4, N)
    assert finding.study.agreement.same_answer == finding.study.agreement.n == N
    assert finding.rag.threshold == finding.study.calibration.threshold.value


def test_same_seed_gives_the_same_study(finding: Finding, reader: ScriptedReader) -> None:
    again = lazy_rag_study(reader, HashingEncoder(), seed=3, n=N, n_calibration=N)
    assert again.study == finding.study


def test_no_question_is_generated_for_twice_in_a_mode(reader: ScriptedReader) -> None:
    before = len(reader.history)
    lazy_rag_study(reader, HashingEncoder(), seed=3, n=60, n_calibration=50)
    generations = sum(
        len(call.prompts) for call in reader.history[before:] if call.verb in ("generate", "begin")
    )
    # Two passes to calibrate; five modes; the component's own run, which may generate twice; three gates.
    assert generations <= 2 * 50 + 5 * 60 + 2 * 60 + 3 * 60


def test_calibrating_on_the_world_that_is_asked_is_refused(reader: ScriptedReader) -> None:
    with pytest.raises(ConfigurationError, match="same world"):
        lazy_rag_study(reader, HashingEncoder(), seed=3, n=50, calibration_seed=3)
