"""Benefit, not doubt: fitted, cross-fitted, written down, and at work in all three places."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from surerag.decisions.benefit import BenefitModel, cross_fitted, fit_benefit

from surerag import (
    BenefitGate,
    ClusterCompressor,
    EntropyGate,
    FakeReader,
    LazyRAG,
    MarginGate,
    Passage,
    UncertaintyRewriter,
    calibrate,
)
from surerag.decisions.rows import DecisionRow, outcomes_of, signal_of
from surerag.errors import ConfigurationError, InputError
from surerag.readers.fake import reply


def doubted_in_vain(n: int, seed: int = 0) -> list[DecisionRow]:
    """Questions on which doubt tells wrong answers, and something else tells where acting helps."""
    rng = np.random.default_rng(seed)
    wrong, there = rng.random(n) < 0.5, rng.random(n) < 0.5
    doubt = wrong + rng.normal(0, 0.5, n)
    found = np.where(there, 1.0, -1.0) + rng.normal(0, 0.5, n)
    noise = rng.standard_normal(n)
    mends, spoils = wrong & there & (rng.random(n) < 0.8), ~wrong & ~there & (rng.random(n) < 0.3)
    with_ = np.where(mends, True, np.where(spoils, False, ~wrong))
    columns = zip(doubt, found, noise, ~wrong, with_, strict=True)
    return [DecisionRow({"doubt": d, "found": f, "noise": z}, a, b) for d, f, z, a, b in columns]


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    above = scores[positive][:, None] - scores[~positive][None, :]
    return float((above > 0).mean() + 0.5 * (above == 0).mean())


def test_a_fitted_benefit_tells_where_acting_helps_better_than_any_single_signal() -> None:
    rows = doubted_in_vain(600)
    helps = outcomes_of(rows).benefit > 0
    fitted = auroc(cross_fitted(rows), helps)
    singles = [auroc(signal_of(rows, name), helps) for name in ("doubt", "found", "noise")]
    assert fitted > max(singles) + 0.05
    fresh = doubted_in_vain(2000, seed=1)
    model = fit_benefit(rows)
    values = np.array([[row.signals[name] for name in model.features] for row in fresh])
    expected, happened = model.benefits(values), outcomes_of(fresh).benefit
    top = expected > np.quantile(expected, 0.7)
    assert happened[top].mean() > happened.mean() + 0.2


def test_nothing_is_found_where_there_is_nothing() -> None:
    rng = np.random.default_rng(5)
    areas = []
    for seed in range(8):
        rows = [
            DecisionRow({"a": rng.standard_normal(), "b": rng.standard_normal()}, *pair)
            for pair in rng.random((300, 2)) < 0.5
        ]
        areas.append(auroc(cross_fitted(rows, seed=seed), outcomes_of(rows).benefit > 0))
    assert np.mean(areas) == pytest.approx(0.5, abs=0.04)


def test_a_model_is_numbers_in_a_file(tmp_path: Path) -> None:
    model = fit_benefit(doubted_in_vain(300))
    model.save(tmp_path / "benefit.json")
    assert BenefitModel.load(tmp_path / "benefit.json") == model
    (tmp_path / "x.json").write_text('{"weights": 1}')
    with pytest.raises(InputError, match=r"expected a benefit model, found a mapping without features"):
        BenefitModel.load(tmp_path / "x.json")
    with pytest.raises(InputError, match="cannot be read"):
        BenefitModel.load(tmp_path / "none.json")
    with pytest.raises(ConfigurationError, match="three rows of weights"):
        BenefitModel.from_dict({**model.to_dict(), "weights": [[1.0]]})
    with pytest.raises(InputError, match="reads doubt, found, noise"):
        model.benefit({"other": 1.0})


def test_infinite_signals_and_constant_ones_are_borne() -> None:
    rows = doubted_in_vain(300)
    odd = [
        DecisionRow(
            {**row.signals, "same": 1.0, "doubt": math.inf if at % 50 == 0 else row.signals["doubt"]},
            row.correct_without,
            row.correct_with,
        )
        for at, row in enumerate(rows)
    ]
    model = fit_benefit(odd)
    assert all(-1 <= model.benefit(row.signals) <= 1 for row in odd)


def test_too_little_to_fit_is_said() -> None:
    with pytest.raises(InputError, match="mends 0 of 40 questions"):
        fit_benefit([DecisionRow({"a": float(i)}, True, True) for i in range(40)])
    with pytest.raises(InputError, match="no features"):
        fit_benefit([DecisionRow({}, True, True)])
    with pytest.raises(InputError, match="expected 2 to 300 folds, got 1"):
        cross_fitted(doubted_in_vain(300), folds=1)


def model_of(feature: str, *, lowest: float, highest: float) -> BenefitModel:
    """Benefit grows with a feature, and is 0 in the middle."""
    weights = ((-2.0,), (0.0,), (2.0,))
    return BenefitModel((feature,), (lowest,), (highest,), weights, (0.0, 0.0, 0.0), 1.0, 100)


class Corpus:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage("Detail.")]


def script(prompt: str) -> Any:
    return reply(
        "Velm", entropy=0.1 if "easy" in prompt else 2.0, logprobs=-0.1 if "easy" in prompt else -1.5
    )


def test_lazy_rag_retrieves_where_it_expects_a_benefit() -> None:
    entropy = EntropyGate()
    gate = BenefitGate(model_of(entropy.signal, lowest=0.0, highest=2.0), (entropy, MarginGate()))
    rag = LazyRAG(FakeReader(script, name="one"), Corpus(), "Summary.", gate=gate)
    results = rag.run_many(["easy?", "hard?"])
    assert [result.decision.retrieve for result in results] == [False, True]
    assert [result.decision.gate for result in results] == ["benefit"] * 2
    plain = json.loads(json.dumps(rag.to_dict()))
    assert (
        LazyRAG.from_dict(plain, reader=rag.reader, retriever=rag.retriever, summaries="Summary.").gate
        == gate
    )
    rows = rag.rows(["easy?", "hard?"] * 100, [["Velm"]] * 200)
    assert rag.with_options(threshold=calibrate(rag, rows)).run("easy?").decision.retrieve is False
    other = BenefitGate(model_of(entropy.signal, lowest=0.0, highest=9.0), (entropy,))
    with pytest.raises(ConfigurationError, match="for the signal"):
        rag.with_options(threshold=calibrate(rag, rows), gate=other)
    with pytest.raises(ConfigurationError, match="which no gate measures"):
        BenefitGate(gate.model, (MarginGate(),))


def test_rows_hold_the_signals_of_further_gates() -> None:
    rag = LazyRAG(FakeReader(script, name="one"), Corpus(), "Summary.", gate_tokens=3)
    rows = rag.rows(["easy?", "hard?"], gates=["margin", EntropyGate(aggregate="max")])
    gates = {rag.signal, MarginGate().signal, EntropyGate(aggregate="max").signal}
    assert set(rows[0].signals) == {*gates, "length_8"}
    assert rows[0].signals[MarginGate().signal] < rows[1].signals[MarginGate().signal]


class Scored:
    """Finds two texts, the more similar the clearer the question."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        score = 0.9 if "clear" in query else 0.2
        return [Passage("First.", id="a", score=score), Passage("Second.", id="b", score=score / 2)]


def test_a_gate_reads_how_similar_the_summaries_are_which_no_call_tells() -> None:
    entropy = EntropyGate()
    weights = ((2.0, -1.0), (0.0, 0.0), (-2.0, 1.0))
    features, ends = ("top_score", entropy.signal), ((0.0, 0.0), (1.0, 2.0))
    gate = BenefitGate(BenefitModel(features, *ends, weights, (0.0, 0.0, 0.0), 1.0, 100), (entropy,))
    rag = LazyRAG(FakeReader(script, name="one"), Corpus(), Scored(), gate=gate)
    rows = rag.rows(["clear, easy?", "vague, easy?"], gates=[entropy])
    told = [(row.signals["top_score"], row.signals["score_gap"], row.signals["length_8"]) for row in rows]
    assert told == [(0.9, 0.45, 1.0), (0.2, 0.1, 1.0)]
    # What the gate compares is what the model makes of the row.
    expected = [gate.model.benefit(row.signals) for row in rows]
    assert [row.signals[rag.signal] for row in rows] == pytest.approx(expected)
    results = rag.run_many(["clear, easy?", "vague, easy?"])
    assert [result.decision.signal for result in results] == pytest.approx(expected)
    assert [result.decision.retrieve for result in results] == [False, True]
    # An index that gives no scores cannot serve it.
    with pytest.raises(InputError, match="reads top_score, and there is"):
        rag.with_options(summaries="A summary.").run("clear, easy?")


def test_a_gate_that_cannot_see_a_feature_is_refused() -> None:
    length = model_of("length_8", lowest=0.0, highest=8.0)
    with pytest.raises(ConfigurationError, match="reads length_8, and the gates see 3 tokens"):
        BenefitGate(length, (EntropyGate(tokens=3),))
    with pytest.raises(ConfigurationError, match="needs a gate that looks at the answer"):
        BenefitGate(length, ())
    assert BenefitGate(length, (EntropyGate(aggregate="max"),)).look.n_tokens is None


def test_sampled_answers_have_no_length_that_a_gate_sees() -> None:
    rag = LazyRAG(FakeReader(["Velm", "Orun"] * 9, name="one"), Corpus(), Scored(), gate="disagreement")
    [row] = rag.rows(["clear?"])
    assert set(row.signals) == {rag.signal, "top_score", "score_gap"}


def test_dynqr_reads_how_similar_what_it_retrieved_is() -> None:
    model = model_of("top_score", lowest=0.0, highest=1.0)
    rewriter = UncertaintyRewriter(FakeReader(script, name="one"), Scored(), benefit=model)
    clear, vague = rewriter.rows(["clear, easy?", "vague, easy?"])
    assert (clear.signals["top_score"], vague.signals["top_score"]) == (0.9, 0.2)
    assert clear.signals[rewriter.signal] == pytest.approx(model.benefit({"top_score": 0.9}))
    assert rewriter.run("vague, easy?").acted is False


def test_dynqr_rewrites_where_it_expects_a_benefit() -> None:
    def say(prompt: str) -> Any:
        return reply("Ada was born where?") if "Rewrite" in prompt else script(prompt)

    model = model_of("perplexity", lowest=1.0, highest=5.0)
    rewriter = UncertaintyRewriter(FakeReader(say, name="one"), Corpus(), benefit=model)
    easy, hard = rewriter.run_many(["easy?", "hard?"])
    assert (easy.acted, hard.acted) == (False, True)
    assert hard.steps[0].metric == "benefit"
    assert hard.steps[0].uncertainty == pytest.approx(model.benefit({"perplexity": math.exp(1.5)}))
    rows = rewriter.rows(["easy?", "hard?"] * 100, [["Velm"]] * 200)
    assert rows[1].signals[rewriter.signal] == pytest.approx(hard.steps[0].uncertainty)
    policy = calibrate(rewriter, rows)
    assert rewriter.with_options(threshold=policy).threshold == policy
    with pytest.raises(ConfigurationError, match="for the signal"):
        rewriter.with_options(threshold=policy, benefit=None)
    with pytest.raises(ConfigurationError, match="reads 'words apart'"):
        rewriter.with_options(benefit=model_of("words apart", lowest=0, highest=1))


def test_a_compressor_compresses_where_it_is_worth_it() -> None:
    short, long = (
        [Passage("Ada was born in Velm.", id="a", score=0.9)],
        [
            Passage("Ada was born in Velm. " * 30, id="a", score=0.9),
            Passage("Bo came later. " * 30, id="b", score=0.1),
        ],
    )
    reader = FakeReader(lambda prompt: "Ada was born in Velm.", name="one")
    compressor = ClusterCompressor(reader, clustering="single", threshold=50)
    left = compressor.run("Where?", short)
    assert (left.passages, left.calls, left.tokens_after) == (tuple(short), 0, left.tokens_before)
    assert left.clusters[0].reason == "signal at or below threshold"
    assert compressor.run("Where?", long).calls == 2
    assert compressor.features(long)["spread"] == pytest.approx(0.8)
    spread = compressor.with_options(threshold=None, benefit=model_of("spread", lowest=0.0, highest=0.8))
    assert [spread.run("Where?", passages).calls for passages in (short, long)] == [0, 2]
    rows = [DecisionRow({"tokens": float(i)}, i < 300, True) for i in range(400)]
    policy = calibrate(compressor, rows)
    assert compressor.with_options(threshold=policy).run("Where?", short).calls == 0
    with pytest.raises(ConfigurationError, match="for the prompts and settings"):
        compressor.with_options(threshold=policy, mode="fact_check")
    with pytest.raises(ConfigurationError, match="which passages do not tell"):
        compressor.with_options(benefit=model_of("weather", lowest=0.0, highest=1.0))


def test_rows_of_a_compressor_hold_both_answers_and_what_compressing_costs() -> None:
    def say(prompt: str) -> str:
        if "Extract" in prompt:
            return "Ada was born in Velm." if "Velm" in prompt else "No content to extract"
        # Of much that is shown at once, the reader finds nothing.
        return "Velm" if "Velm" in prompt and len(prompt) < 400 else "Orun"

    found = [Passage("Ada was born in Velm. " + "Rivers are wet. " * 40, id="a", score=0.9)]
    short = [Passage("Ada was born in Velm.", id="a", score=0.5)]
    reader = FakeReader(say, name="one")
    compressor = ClusterCompressor(reader, clustering="single", pass_below=0, threshold=10_000)
    long_row, short_row = compressor.rows(["Where?", "Where now?"], [found, short], [["Velm"], ["Velm"]])
    assert (long_row.correct_without, long_row.correct_with) == (False, True)
    assert (short_row.correct_without, short_row.correct_with) == (True, True)
    assert long_row.signals == {**compressor.features(found)} and long_row.signals["tokens"] > 100
    assert long_row.cost > short_row.cost > 0
    before = len(reader.history)
    [unlabelled] = compressor.rows(["Where?"], [found])
    assert not unlabelled.labelled and len(reader.history) == before
    policy = calibrate(compressor, [long_row, short_row], target="best")
    assert compressor.with_options(threshold=policy).run("Where?", found).calls == 1
    assert compressor.with_options(threshold=policy).run("Where?", short).calls == 0
    fitted = compressor.with_options(threshold=None, benefit=model_of("tokens", lowest=0.0, highest=500.0))
    [row] = fitted.rows(["Where?"], [found])
    assert fitted.signal in row.signals
    with pytest.raises(InputError, match="expected passages for each of 2 questions, got 1"):
        compressor.rows(["a", "b"], [found])
