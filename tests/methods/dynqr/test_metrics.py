"""Uncertainties of an answer: by hand, against a tiny model's logits, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from surerag import FakeReader, TransformersReader, UncertaintyRewriter
from surerag.decisions.calibrating import calibrate
from surerag.entailment import ExactEntailer
from surerag.errors import CapabilityError, ConfigurationError, LogprobsError, MissingServiceError
from surerag.messages import EntropyTrace, Generation, SamplingParams, TokenTrace
from surerag.methods.dynqr.metrics import METRICS, MetricName, uncertainty_of
from surerag.readers.fake import reply
from tests.methods.disagreeing import text_reader
from tests.methods.dynqr.painter import CLEAR, VAGUE, Library, knowing
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

HALF, EIGHTH = math.log(0.5), math.log(0.125)


def generation(*, logsumexp: tuple[float, ...] | None = (2.0, 4.0)) -> Generation:
    entropy = EntropyTrace((0.25, 0.5), (0.75, 1.5), exact=False)
    return Generation("In Velm", trace=TokenTrace(("In", " Velm"), (HALF, EIGHTH), entropy, logsumexp))


def test_hand_worked() -> None:
    answer = generation()
    # Two tokens of 1/2 and 1/8: the geometric mean is 1/4.
    assert uncertainty_of("perplexity", answer) == pytest.approx(4.0)
    assert uncertainty_of("lowest_probability", answer) == pytest.approx(math.log(8))
    assert uncertainty_of("token_entropy", answer) == pytest.approx((0.5 + 1.0) / 2)
    assert uncertainty_of("energy", answer) == pytest.approx(-3.0)
    samples = [reply("Velm", logprobs=HALF), reply("In Orun", logprobs=[HALF, EIGHTH]), reply("")]
    assert uncertainty_of("ln_entropy", answer, samples) == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert uncertainty_of(lambda g: len(g.text) / 2, answer) == 3.5


def test_of_one_sample_ln_entropy_is_the_log_of_perplexity() -> None:
    answer = generation()
    assert uncertainty_of("ln_entropy", answer, [answer]) == pytest.approx(
        math.log(uncertainty_of("perplexity", answer))
    )


def test_against_the_logits_of_a_tiny_model() -> None:
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    reader, prompt = TransformersReader(model, tokenizer), "Where was Ada Tarn born?"
    [[answer]] = reader.generate([prompt], SamplingParams(max_tokens=8))
    assert answer.trace is not None
    asked = tokenizer(prompt)["input_ids"]
    said = tokenizer("".join(answer.trace.tokens))["input_ids"]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([asked + said]), use_cache=False).logits[0]
    steps = logits[len(asked) - 1 : -1].double().numpy()
    assert len(steps) == len(said) > 1
    totals = np.log(np.exp(steps).sum(axis=1))
    logs = steps - totals[:, None]
    chosen = logs[np.arange(len(said)), said]
    expected = {
        "energy": -totals.mean(),
        "perplexity": math.exp(-chosen.mean()),
        "lowest_probability": -chosen.min(),
        "token_entropy": -(np.exp(logs) * logs).sum(axis=1).mean(),
    }
    for metric, value in expected.items():
        assert uncertainty_of(metric, answer) == pytest.approx(value, rel=1e-3, abs=1e-4), metric  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", [*METRICS, lambda g: 0.0])
def test_an_answer_without_words_is_infinitely_uncertain(metric: MetricName) -> None:
    assert uncertainty_of(metric, reply(""), [reply("")]) == math.inf


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric != "disagreement"])
def test_what_is_missing_is_an_error_not_a_number(metric: MetricName) -> None:
    bare = Generation("Velm")
    with pytest.raises(LogprobsError):
        uncertainty_of(metric, bare, [bare])
    if metric in ("token_entropy", "energy"):
        with pytest.raises(LogprobsError):
            uncertainty_of(metric, Generation("Velm", trace=TokenTrace(("Velm",), (-0.1,))))
    with pytest.raises(CapabilityError, match=rf'{metric}.* Pass metric="disagreement"'):
        UncertaintyRewriter(FakeReader(logprob=None), Library(), metric=metric, threshold=1.0)


@pytest.mark.parametrize("value", [math.nan, None, "much", True])
def test_a_function_that_gives_no_number_is_found_out(value: object) -> None:
    with pytest.raises(ConfigurationError, match="where a number"):
        uncertainty_of(lambda _: value, reply("Velm"))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("metric", ["lowest_probability", "token_entropy", "ln_entropy", "perplexity"])
def test_each_metric_steers_the_method(metric: MetricName) -> None:
    def answer(prompt: str) -> Generation:
        said = knowing(prompt)
        return reply(said.text, logprobs=said.trace.logprobs[0], entropy=-said.trace.logprobs[0])  # type: ignore[union-attr]

    asked = FakeReader(answer)
    rewriter = UncertaintyRewriter(asked, Library(), metric=metric, threshold=1.2, n_samples=3)
    certain, uncertain = rewriter.run(CLEAR), rewriter.run(VAGUE)
    assert (certain.acted, uncertain.acted, uncertain.answer) == (False, True, "In Velm")
    drawn = 3 if metric == "ln_entropy" else 0
    assert (certain.costs.samples, uncertain.costs.samples) == (drawn, 2 * drawn)
    assert uncertain.costs.calls == 3 + 2 * drawn


def test_a_reader_of_texts_alone_serves_with_a_function_of_your_own() -> None:
    reader = FakeReader(knowing, logprob=None)
    hedging = UncertaintyRewriter(
        reader, Library(), metric=lambda answer: float("perhaps" in answer.text), threshold=0.5
    )
    assert hedging.run(VAGUE).answer == "In Velm"
    assert not hedging.run(CLEAR).acted


def test_a_threshold_is_needed_where_the_paper_gives_none() -> None:
    with pytest.raises(ConfigurationError, match="has no default threshold"):
        UncertaintyRewriter(FakeReader(), Library(), metric="lowest_probability")
    with pytest.raises(ConfigurationError, match=r"metric must be one of perplexity, .* or a function"):
        UncertaintyRewriter(FakeReader(), Library(), metric="doubt", threshold=1.0)  # type: ignore[arg-type]


def test_disagreement_needs_text_alone_and_its_cost_stands_in_the_result() -> None:
    reader = text_reader(**{"Rewrite the query": CLEAR, "Ada was born": "In Velm"})
    rewriter = UncertaintyRewriter(reader, Library(), metric="disagreement", n_samples=5)
    certain, uncertain = rewriter.run(CLEAR), rewriter.run(VAGUE)
    assert (certain.acted, certain.answer, certain.costs.samples) == (False, "In Velm", 5)
    assert (uncertain.acted, uncertain.answer, uncertain.kept) == (True, "In Velm", "rewritten")
    assert uncertain.original.uncertainty == pytest.approx(math.log(5))
    assert uncertain.uncertainty < 0.65 == uncertain.steps[0].threshold
    assert (uncertain.costs.answers, uncertain.costs.samples, uncertain.costs.calls) == (2, 10, 13)
    assert {step.metric for step in uncertain.steps if step.name != "rewrite"} == {"disagreement"}
    assert uncertain.to_dict()["steps"][0]["metric"] == "disagreement"
    assert rewriter.signal == "disagreement of 5 samples, same words, answer from all passages"
    assert {call.sampling.trace for call in reader.history if call.sampling is not None} == {"none"}


def test_by_entailment_disagreement_needs_an_entailer_and_others_have_no_use_for_one() -> None:
    settings: dict[str, Any] = {"metric": "disagreement", "same_meaning": "entailment"}
    with pytest.raises(MissingServiceError, match="needs an entailer"):
        UncertaintyRewriter(text_reader(), Library(), **settings)
    with pytest.raises(ConfigurationError, match="asks no entailer"):
        UncertaintyRewriter(FakeReader(), Library(), entailer=ExactEntailer())
    with pytest.raises(ConfigurationError, match="one sample cannot disagree"):
        UncertaintyRewriter(text_reader(), Library(), metric="disagreement", n_samples=1)
    judged = UncertaintyRewriter(text_reader(), Library(), entailer=ExactEntailer(), n_samples=3, **settings)
    assert judged.with_options(threshold=math.inf).run(VAGUE).costs.judgements == 6


def test_disagreement_is_calibrated_like_any_metric() -> None:
    reader = text_reader(**{"Rewrite the query": CLEAR, "Ada was born": "In Velm"})
    rewriter = UncertaintyRewriter(reader, Library(), metric="disagreement", n_samples=5)
    found = calibrate(rewriter, rewriter.rows([CLEAR, VAGUE], [["In Velm"]] * 2), target="best")
    assert found.rate == 0.5
    acted = rewriter.with_options(threshold=found).run_many([CLEAR, VAGUE])
    assert [result.acted for result in acted] == [False, True]
