"""Uncertainties of an answer: by hand, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest

from surerag import FakeReader, UncertaintyRewriter
from surerag.errors import CapabilityError, ConfigurationError, LogprobsError
from surerag.messages import EntropyTrace, Generation, TokenTrace
from surerag.methods.dynqr.metrics import MetricName, uncertainty_of
from surerag.readers.fake import reply
from surerag.readers.protocol import Capabilities
from tests.methods.dynqr.painter import CLEAR, VAGUE, Library, knowing

HALF, EIGHTH = math.log(0.5), math.log(0.125)
METRICS: tuple[MetricName, ...] = get_args(MetricName)


def answer() -> Generation:
    entropy = EntropyTrace((0.25, 0.5), (0.75, 1.5), exact=False)
    return Generation("In Velm", trace=TokenTrace(("In", " Velm"), (HALF, EIGHTH), entropy, (2.0, 4.0)))


def test_metrics_by_hand() -> None:
    # Two tokens of 1/2 and 1/8: the geometric mean is 1/4.
    assert uncertainty_of("perplexity", answer()) == pytest.approx(4.0)
    assert uncertainty_of("lowest_probability", answer()) == pytest.approx(math.log(8))
    assert uncertainty_of("energy", answer()) == pytest.approx(-3.0)
    assert uncertainty_of("token_entropy", answer()) == pytest.approx((0.5 + 1.0) / 2)
    samples = [reply("Velm", logprobs=HALF), reply("In Orun", logprobs=[HALF, EIGHTH]), reply("")]
    assert uncertainty_of("ln_entropy", answer(), samples) == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert uncertainty_of("semantic_entropy", answer(), samples) == pytest.approx(math.log(3))
    assert uncertainty_of(lambda generation: len(generation.text) / 2, answer()) == 3.5


def test_of_one_sample_ln_entropy_is_the_log_of_perplexity() -> None:
    perplexity = uncertainty_of("perplexity", answer())
    assert uncertainty_of("ln_entropy", answer(), [answer()]) == pytest.approx(math.log(perplexity))


@pytest.mark.parametrize("metric", [*METRICS, lambda g: 0.0])
def test_an_answer_without_words_is_infinitely_uncertain(metric: Any) -> None:
    assert uncertainty_of(metric, reply(""), [reply("")]) == math.inf


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric != "semantic_entropy"])
def test_missing_log_probabilities_are_an_error_not_a_number(metric: MetricName) -> None:
    with pytest.raises(LogprobsError):
        uncertainty_of(metric, Generation("Velm"), [Generation("Velm")])
    if metric in ("token_entropy", "energy"):
        with pytest.raises(LogprobsError):
            uncertainty_of(metric, Generation("Velm", trace=TokenTrace(("Velm",), (-0.1,))))
    with pytest.raises(CapabilityError, match=rf'{metric}.* Pass metric="semantic_entropy"'):
        UncertaintyRewriter(FakeReader(logprob=None), Library(), metric=metric, threshold=1.0)


@pytest.mark.parametrize("value", [math.nan, None, "much", True])
def test_a_function_that_returns_no_number_is_an_error(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a number"):
        uncertainty_of(lambda _: value, reply("Velm"))


@pytest.mark.parametrize("metric", METRICS)
def test_each_metric_steers_the_method(metric: MetricName) -> None:
    texts = iter(["Orun", "Tarn", "Bo"] * 9)

    def respond(prompt: str) -> Generation:
        generation = knowing(prompt)
        text = next(texts) if "perhaps" in generation.text else generation.text
        logprob = generation.trace.logprobs[0]  # type: ignore[union-attr]
        scored = reply(text, logprobs=logprob, entropy=-logprob)
        trace = replace(scored.trace, logsumexp=(logprob,) * len(scored.trace))  # type: ignore[arg-type, type-var]
        return replace(scored, trace=trace)

    everything = Capabilities(logprobs=True, entropy="exact", energy=True)
    reader = FakeReader(respond, capabilities=everything if metric == "energy" else None)
    threshold = 2.0 if metric == "perplexity" else 1.0
    samples: Any = {"n_samples": 3} if metric in ("ln_entropy", "semantic_entropy") else {}
    rewriter = UncertaintyRewriter(reader, Library(), metric=metric, threshold=threshold, **samples)
    certain, uncertain = rewriter.run(CLEAR), rewriter.run(VAGUE)
    assert (certain.acted, uncertain.acted, uncertain.answer) == (False, True, "In Velm")
    each = 1 + samples.get("n_samples", 0)
    assert (certain.usage.requests, uncertain.usage.requests) == (each, 2 * each + 1)


def test_energies_are_asked_of_readers_that_have_them() -> None:
    with pytest.raises(CapabilityError, match=r'log-sum-exp.*or metric="perplexity"'):
        UncertaintyRewriter(FakeReader(), Library(), metric="energy", threshold=0.0)


@pytest.mark.parametrize("threshold", [0.5, None])
def test_a_function_serves_a_reader_of_text_and_needs_a_threshold(threshold: float | None) -> None:
    def hedges(generation: Generation) -> float:
        return float("perhaps" in generation.text)

    def build() -> UncertaintyRewriter:
        return UncertaintyRewriter(
            FakeReader(knowing, logprob=None), Library(), metric=hedges, threshold=threshold
        )

    if threshold is None:
        with pytest.raises(ConfigurationError, match="hedges has no default threshold"):
            build()
        return
    assert build().run(VAGUE).answer == "In Velm"
    assert not build().run(CLEAR).acted
    assert build().to_dict()["metric"] == "hedges"


def test_what_cannot_work_is_refused() -> None:
    def build(**options: Any) -> Callable[[], UncertaintyRewriter]:
        return lambda: UncertaintyRewriter(FakeReader(), Library(), **options)

    for options, match in [
        ({"metric": "token_entropy"}, "token_entropy has no default threshold"),
        ({"metric": "doubt"}, "metric should be 'perplexity'"),
        ({"candidates": 2}, "did you mean n_candidates|Did you mean n_candidates"),
        ({"n_samples": 1}, "n_samples should be greater"),
        ({"n_samples": 3}, "n_samples is for the metric ln_entropy or semantic_entropy"),
        ({"abstention": " "}, "abstention is empty"),
    ]:
        with pytest.raises(ConfigurationError, match=match):
            build(**options)()
