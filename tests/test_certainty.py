"""How sure a model was of an answer, from its trace; and what a policy makes of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from surerag import AreYouSure, CalibrationRow, FakeReader, SampleAgreement, Services, calibrate_abstention
from surerag.certainty import DEFAULT_MEASURE, MEASURES, WITHOUT_ALTERNATIVES, Certainty, certainty_of
from surerag.drivers import run
from surerag.errors import ConfigurationError, InputError
from surerag.messages import EntropyTrace, TokenTrace
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.lazy_rag.component import LazyRAG
from surerag.readers.fake import reply
from tests.methods.lazy_rag.test_lazy_rag import pipeline

LOGPROBS = (-0.1, -0.1, -0.7, -0.2)
LOWER, UPPER = (0.1, 0.2, 0.9, 0.4), (0.3, 0.2, 1.5, 0.8)


def trace(*, alternatives: bool = True) -> TokenTrace:
    entropy = EntropyTrace(LOWER, UPPER, exact=False) if alternatives else None
    return TokenTrace(("In", " Velm", " by", " Orun"), LOGPROBS, entropy)


def test_every_measure_of_a_trace_lies_between_its_bounds() -> None:
    certainty = certainty_of(trace())
    assert set(certainty.uncertainties) == set(MEASURES) and certainty.tokens == 4
    assert certainty.measure == DEFAULT_MEASURE == "greatest_3_mean_entropy"
    assert certainty.interval == pytest.approx((0.5, 2.6 / 3))
    assert certainty.uncertainty == pytest.approx((0.5 + 2.6 / 3) / 2)
    assert certainty.uncertainties["mean_entropy"] == pytest.approx((0.4, 0.7))
    assert certainty.uncertainties["greatest_entropy"] == (0.9, 1.5)
    assert certainty.uncertainties["perplexity"] == pytest.approx((math.exp(1.1 / 4),) * 2)
    assert certainty.uncertainties["negative_log_likelihood"] == pytest.approx((1.1, 1.1))
    assert certainty.uncertainties["least_likely_token"] == pytest.approx((0.7, 0.7))


def test_the_first_eight_tokens_are_those_of_the_first_pass() -> None:
    entropies = tuple(map(float, range(10)))
    long = TokenTrace(("a",) * 10, (-0.1,) * 10, EntropyTrace(entropies, entropies, exact=True))
    found = certainty_of(long).uncertainties
    assert found["first_8_mean_entropy"] == (3.5, 3.5)
    assert found["greatest_3_mean_entropy"] == (8.0, 8.0)


def test_log_probabilities_alone_give_the_measures_that_need_only_those() -> None:
    certainty = certainty_of(trace(alternatives=False))
    assert set(certainty.uncertainties) == {"perplexity", "least_likely_token", "negative_log_likelihood"}
    assert certainty.measure == WITHOUT_ALTERNATIVES and certainty.uncertainty == pytest.approx(1.1)
    missing = certainty_of(trace(alternatives=False), measure="mean_entropy")
    assert missing.uncertainty is None and "mean_entropy" in missing.reason


def test_it_comes_back_from_its_plain_values() -> None:
    certainty = certainty_of(trace(), is_cut=True, scope={"reader": "toy"})
    values = json.loads(json.dumps(certainty.to_dict()))
    again = Certainty.from_dict(values)
    assert again.to_dict() == certainty.to_dict()
    assert (again.uncertainty, again.interval) == (certainty.uncertainty, certainty.interval)
    unlikely = certainty_of(TokenTrace(("x",), (-9999.0,)), measure="perplexity")
    assert json.loads(json.dumps(unlikely.to_dict()))["uncertainty"] is None
    for wrong in ({}, {"uncertainties": 3}, {**values, "uncertainties": None}):
        with pytest.raises(InputError, match="expected the values of a certainty"):
            Certainty.from_dict(wrong)


# A policy.


def rows_of(n: int, measure: str = "", reader: str = "toy") -> list[CalibrationRow]:
    found = certainty_of(trace(), scope={"reader": reader})
    certainty = found.by(measure) if measure else found
    value = certainty.uncertainty
    assert value is not None
    return [
        replace(CalibrationRow.of(certainty, float(place < n * 0.9)), uncertainty=value + place / n)
        for place in range(n)
    ]


def test_a_policy_belongs_to_reader_and_measure() -> None:
    policy = calibrate_abstention(rows_of(300), max_risk=0.2)
    assert policy.scope == {"reader": "toy", "measure": DEFAULT_MEASURE}
    certainty = certainty_of(trace(), scope={"reader": "toy"})
    assert policy.assess(certainty).probability == policy.probability_at(certainty.uncertainty or 0)
    with pytest.raises(ConfigurationError, match="was calibrated for the reader 'toy'"):
        policy.assess(certainty_of(trace(), scope={"reader": "another"}))
    by_sum = calibrate_abstention(rows_of(300, "negative_log_likelihood"), max_risk=0.2)
    assert by_sum.assess(certainty).measure == "negative_log_likelihood"
    only_logprobs = certainty_of(trace(alternatives=False), scope={"reader": "toy"})
    assert by_sum.assess(only_logprobs).probability is not None
    unmeasured = policy.assess(only_logprobs)
    assert unmeasured.uncertainty is None and DEFAULT_MEASURE in unmeasured.reason
    assert policy.select("Velm", only_logprobs) == ("I do not know.", True, None)


def test_rows_of_two_readers_or_measures_are_refused() -> None:
    for others, part in ((rows_of(50, reader="b"), "reader"), (rows_of(50, "perplexity"), "measure")):
        with pytest.raises(InputError, match=f"more than one {part}"):
            calibrate_abstention([*rows_of(50), *others], max_risk=0.2)


def test_a_policy_of_a_first_pass_does_not_judge_answers() -> None:
    policy = calibrate_abstention([CalibrationRow(i / 100, 1.0) for i in range(100)], max_risk=0.2)
    gated = replace(policy, scope={"reader": "toy", "gate": "entropy"})
    with pytest.raises(ConfigurationError, match="by which a method searches"):
        gated.select("Velm", certainty_of(trace(), scope={"reader": "toy"}))


def test_a_cut_answer_is_withheld_and_counts_as_uncertain() -> None:
    cut = certainty_of(trace(), is_cut=True)
    policy = calibrate_abstention(rows_of(300), max_risk=0.2)
    assert CalibrationRow.of(cut, 1.0).uncertainty == math.inf
    assert policy.assess(cut).reason == "the answer was cut off"
    assert policy.select("Velm by", cut).abstained
    with pytest.raises(InputError, match="log-probabilities"):
        CalibrationRow.of(certainty_of(None), 1.0)
    assert CalibrationRow.of(certainty_of(TokenTrace((), ())), 0.0).uncertainty == math.inf


# The methods' final answers.


@pytest.mark.parametrize("gate", ["entropy", "margin", "abstention", "semantic_entropy"])
@pytest.mark.parametrize("entropy", [0.1, 3.0])
def test_the_final_answer_of_l_rag_carries_its_certainty(gate: str, entropy: float) -> None:
    reader = FakeReader(lambda prompt: reply("In Velm", entropy=[entropy, entropy]))
    rag, _, _ = pipeline(reader, gate=gate, threshold=0.5)
    certainty = rag.run("Where?").certainty
    assert certainty.uncertainty == pytest.approx(entropy) and certainty.tokens == 2


def test_the_final_answer_of_dynqr_carries_its_certainty() -> None:
    reader = FakeReader(lambda prompt: reply("Velm", entropy=[0.3]))
    rag, corpus, _ = pipeline(reader)
    for metric in ("perplexity", "semantic_entropy"):
        result = UncertaintyRewriter(reader, rag.retriever, metric=metric, threshold=9.0).run("Where?")
        assert result.certainty.uncertainty == pytest.approx(0.3)
    assert isinstance(rag, LazyRAG) and corpus.queries


# Asking again.


def test_samples_that_agree_with_the_answer_make_it_certain() -> None:
    reader = FakeReader(["Velm", "in Velm", "Orun", "Velm", "Velm"])
    certainty = run(SampleAgreement(reader).program("Where?", "Velm"), Services(reader=reader))
    assert (certainty.measure, certainty.uncertainty) == ("disagreement", pytest.approx(0.2))
    assert certainty.uncertainties["semantic_entropy"][0] == pytest.approx(
        -0.8 * np.log(0.8) - 0.2 * np.log(0.2)
    )
    [call] = reader.history
    assert call.sampling is not None and (call.sampling.n, call.sampling.temperature) == (5, 1.0)


@pytest.mark.parametrize(("says", "doubt"), [("Yes.", 0.25), ("No.", 0.75), ("Perhaps", None)])
def test_a_model_is_asked_whether_it_is_sure(says: str, doubt: float | None) -> None:
    reader = FakeReader([says], logprob=math.log(0.75))
    certainty = run(AreYouSure(reader).program("Where?", "Velm"), Services(reader=reader))
    assert certainty.uncertainty == (None if doubt is None else pytest.approx(doubt))
    assert bool(certainty.reason) is (doubt is None)
    [call] = reader.history
    assert [part in call.prompts[0] for part in ("Where?", "Velm", "Is your answer right?")] == [True] * 3
