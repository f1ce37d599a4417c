"""Rates, epochs and batches that train; and pairs that are noise are told from pairs that are not."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from surerag.training.rewriter import (
    PAPER_DISTIL,
    AlignOptions,
    DistilOptions,
    FineTuning,
    Lora,
    Query,
    align,
    distil,
    least_difference,
    preferences,
)
from surerag.training.rewriter.recipe import settled
from surerag.training.rewriter.results import Learnt
from surerag.training.rewriter.tables import written
from tests.training.rewriter_models import Talker, tiny_base

MANY = [Query(f"Where was Ada the {number}. raised?") for number in range(52)]


def born(prompt: str, _: int) -> tuple[str, float]:
    return prompt.rpartition("Query: ")[2].strip().replace("raised", "born"), -0.1


@pytest.mark.parametrize(
    ("weights", "lora", "rate"),
    [
        (7_000_000_000, None, 2e-5),
        (600_000_000, None, 6e-5),
        (1_300_000, None, 1e-3),
        (7_000_000_000, Lora(), 2e-4),
    ],
)
def test_rates_follow_from_size_and_adapters(weights: int, lora: Lora | None, rate: float) -> None:
    assert settled(FineTuning(lora=lora), "distil", 1000, weights).learning_rate == rate
    aligned = settled(FineTuning(lora=lora), "align", 1000, weights).learning_rate
    assert aligned == pytest.approx(rate / 20)


@pytest.mark.parametrize(("rows", "steps"), [(52, 130), (500, 189), (5_000, 314), (50_000, 3126)])
def test_few_examples_are_seen_often_and_many_seldom(rows: int, steps: int) -> None:
    assert settled(FineTuning(), "distil", rows, 10**9).steps == steps


def test_what_was_set_holds_and_a_step_is_shared_among_processes() -> None:
    mine = settled(FineTuning(1e-4, batch=8, epochs=3, micro_batch=4), "distil", 80, 10**9, processes=2)
    assert (mine.learning_rate, mine.batch, mine.turn, mine.turns, mine.epochs) == (1e-4, 8, 4, 1, 3)
    assert settled(PAPER_DISTIL, "distil", 52, 10**9)[:2] == (1e-6, 100)


def test_fifty_two_queries_are_learnt_and_the_papers_one_step_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = tiny_base(tmp_path / "base")
    done = distil(MANY, Talker(born), base, tmp_path / "a", DistilOptions(FineTuning(device="cpu")))
    assert done.learnt is not None
    assert (done.learnt.examples, done.learnt.held_back, done.learnt.steps) == (47, 5, 120)
    assert done.learnt.last_loss < done.learnt.first_loss / 2
    assert done.learnt.held_back_loss is not None and done.learnt.held_back_loss < done.learnt.first_loss / 2
    assert "120 steps of 4 at rate 0.001, loss" in str(done.learnt)
    caplog.clear()
    paper = FineTuning(1e-6, batch=100, epochs=1, validation=0, device="cpu")
    done = distil(MANY, Talker(born), base, tmp_path / "b", DistilOptions(paper))
    assert done.learnt is not None and done.learnt.steps == 1
    assert "only 1 steps were taken" in caplog.text


def samples(file: Path, better: str) -> Path:
    """Fifty-two queries with two rewrites: the better one is always of one kind, or of either at random."""
    rng = random.Random(4)
    with written(file, "samples", {}) as write:
        for number, query in enumerate(MANY):
            texts = ["born there", "raised here"]
            if better == "noise":
                rng.shuffle(texts)
            for text, uncertainty in zip(texts, (1.0, 2.0), strict=True):
                write(
                    [
                        {
                            "query_id": str(number),
                            "query": query.text,
                            "rewrite": text,
                            "uncertainty": uncertainty,
                        }
                    ]
                )
    return file


@pytest.mark.parametrize("kind", ["signal", "noise"])
def test_pairs_that_are_noise_are_told_by_queries_that_were_held_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    base = tiny_base(tmp_path / "base")
    options = AlignOptions(fine_tuning=FineTuning(learning_rate=1e-3, epochs=2, validation=0.2, device="cpu"))
    done = align(samples(tmp_path / "s.parquet", kind), base, tmp_path / "out", options)
    assert done.learnt.held_back == 10 and done.learnt.preferred is not None
    if kind == "signal":
        assert done.learnt.preferred == 10 and "noise" not in caplog.text
    else:
        assert "the pairs may be noise" in caplog.text and "sign test" in caplog.text


def test_too_few_pairs_to_hold_some_back_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base = tiny_base(tmp_path / "base")
    triplets = [(query.text, "born", "raised") for query in MANY[:10]]
    options = AlignOptions(fine_tuning=FineTuning(learning_rate=1e-3, epochs=1, device="cpu"))
    done = align(triplets, base, tmp_path / "out", options)
    assert (done.triplets, done.learnt.chance) == (10, None)
    assert "too few to hold some back" in caplog.text


def test_chance_is_that_of_a_coin() -> None:
    assert Learnt(27, 8, 1e-5, 4, 1, 7, 0.7, 0.6, preferred=8).chance == 1 / 256
    assert Learnt(27, 8, 1e-5, 4, 1, 7, 0.7, 0.6).chance is None


def test_an_empty_answer_rules_no_pair_and_small_differences_are_left_out(tmp_path: Path) -> None:
    rewards = {"a": 1.0, "b": 1.05, "c": 3.0, "d": float("inf")}
    with written(tmp_path / "s.parquet", "samples", {}) as write:
        write(
            [
                {"query_id": "q", "query": "q", "rewrite": text, "uncertainty": value}
                for text, value in rewards.items()
            ]
        )
    file = tmp_path / "s.parquet"
    assert least_difference(file, "uncertainty") == pytest.approx(0.1)
    [rows] = preferences(file, AlignOptions())
    assert [(row["better"], row["worse"]) for row in rows] == [("a", "c"), ("b", "c")]
    [rows] = preferences(file, AlignOptions(least_difference=0.0))
    assert len(rows) == 3, "the paper's: all that differ"


def test_a_loss_that_rises_again_ends_training_and_the_best_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "surerag")
    base = tiny_base(tmp_path / "base")
    hot = FineTuning(
        learning_rate=0.3,
        batch=4,
        epochs=10,
        patience=2,
        device="cpu",
        trainer={"lr_scheduler_type": "constant"},
    )
    done = distil(MANY, Talker(born), base, tmp_path / "out", DistilOptions(hot))
    assert done.learnt is not None and done.learnt.best_step is not None
    assert done.learnt.best_step < done.learnt.steps < 120
    assert "step 1 of 120: loss" in caplog.text and "eval_loss" in caplog.text
