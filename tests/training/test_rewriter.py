"""Training of a rewriter: what it learns from, its three stages on a tiny model, and what decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from studies.world import embedded_reader_path
from surerag import FakeReader, Passage
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, MissingServiceError, ServiceError
from surerag.measures.statistics import Estimate, Interval
from surerag.readers.fake import reply
from surerag.training import (
    APPENDIX_B,
    Query,
    RewriterTraining,
    StageMeans,
    collect_rewrites,
    preference_pairs,
    sample_preferences,
    train_rewriter,
    tuning,
)

pytest.importorskip("trl")


class Search:
    """Finds the query itself."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage(f"About {query}", id="p")]


def rewriting(replies: Callable[[str], object]) -> FakeReader:
    return FakeReader(lambda prompt: replies(prompt.rsplit("Query: ", 1)[-1]))


def answering(prompt: str) -> object:
    """Surer, and right, where the passage is about a clear query."""
    clear = "About clear" in prompt
    return reply("yes" if clear else "no", logprobs=-0.1 if clear else -2.0)


@pytest.mark.parametrize(
    ("rewards", "pairs"),
    [
        ([-1.5, -1.0, -1.5, -4.0], [(1, 3, 3.0), (0, 3, 2.5), (2, 3, 2.5)]),
        ([1.0], []),
        ([0.0, float("-inf")], []),
        ([-2.0, float("-inf"), -1.0, float("-inf")], [(2, 0, 1.0)]),
    ],
)
def test_pairs_have_the_largest_differences(
    rewards: list[float], pairs: list[tuple[int, int, float]]
) -> None:
    assert preference_pairs(rewards) == pairs


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="expected numbers as rewards"):
        preference_pairs([0.0, float("nan")])


def test_refusals_thoughts_and_unchanged_rewrites_are_not_learnt() -> None:
    replies = {
        "a": "clear a",
        "b": "I'm sorry, I cannot do that.",
        "c": "c",
        "d": "<think>What is asked?",
        "e": "Rewritten query: clear e",
    }
    pairs = collect_rewrites([Query(text) for text in replies], rewriting(lambda query: replies[query]))
    assert pairs == [("a", "clear a"), ("e", "clear e")]


def test_a_teacher_without_a_usable_rewrite_is_an_error() -> None:
    with pytest.raises(ServiceError, match=r"none of 1 rewrites .*: 'a' is the question again"):
        collect_rewrites([Query("a")], rewriting(lambda query: query))


def test_preferences_prefer_the_surer_answer() -> None:
    drawn = iter(["clear a", "murky a", "murky a"] * 3)
    preferences = sample_preferences(
        [Query("a")],
        rewriting(lambda _: next(drawn)),
        FakeReader(answering),
        Search(),
        RewriterTraining(n_rewrites=3),
    )
    assert [(item.better, item.worse) for item in preferences] == [("clear a", "murky a")]


def preferences(reward: str, passage: Callable[[str], str], query: Query, **services: Any) -> Any:
    """Return the better and the worse of two rewrites, where each retrieves a passage."""

    class Passages:
        def retrieve(self, text: str, k: int | None) -> list[Passage]:
            return [Passage(passage(text))] if passage(text) else []

    drawn = iter(["first", "second"])
    rewriter, reader = rewriting(lambda _: next(drawn)), FakeReader(answering)
    options = RewriterTraining(n_rewrites=2, reward=reward)
    pairs = sample_preferences([query], rewriter, reader, Passages(), options, **services)
    return [(item.better, item.worse) for item in pairs], len(reader.prompts)


def test_every_reward_prefers_by_its_own_measure() -> None:
    # The first passage makes the reader sure and right; the second has the reference, and the query's words.
    found = {"first": "About clear things", "second": "The Velm of this query"}.get
    query = Query("this query", ("yes", "Velm"))
    for reward, expected, answers in (
        ("uncertainty", [("first", "second")], 2),
        ("answer", [("first", "second")], 2),
        ("documents", [("second", "first")], 0),
        ("relevance", [("second", "first")], 0),
    ):
        assert preferences(reward, found, query, encoder=HashingEncoder()) == (expected, answers)
    nothing = {"first": "", "second": "Velm"}.get
    assert preferences("relevance", nothing, query, encoder=HashingEncoder())[0] == [("second", "first")]


def test_a_reward_that_lacks_what_it_needs_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    for reward, error, match in (
        ("answer", InputError, "'answer' needs references"),
        ("documents", InputError, "'documents' needs references"),
        ("relevance", MissingServiceError, "needs an encoder"),
    ):
        with pytest.raises(error, match=match):
            preferences(reward, str, Query("a"))
        with pytest.raises(error, match=match):
            train_rewriter(
                [f"murky {number}" for number in range(40)],
                embedded_reader_path(),
                tmp_path / "out",
                reader=FakeReader(answering),
                retriever=Search(),
                options=RewriterTraining(reward=reward),
            )
    assert not (tmp_path / "out").exists()


def test_the_setting_of_appendix_b_reaches_the_trainer(tmp_path: Path) -> None:
    options = RewriterTraining(**APPENDIX_B)
    for stage, rate, epochs, batch in (("distil", 1e-6, 1, 100), ("align", 1e-5, 2, 20)):
        arguments = tuning._arguments(tmp_path, options, stage, 30_000)
        assert (arguments["learning_rate"], arguments["num_train_epochs"]) == (rate, epochs)
        size = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"]
        assert (size, options.lora_rank) == (batch, None)


def stage(change: Estimate | None, correct: Estimate | None = None) -> StageMeans:
    return StageMeans("aligned", 0.1, change, None, correct)


@pytest.mark.parametrize(
    ("means", "helps"),
    [
        (stage(Estimate(-0.2, Interval(-0.3, -0.1), 20)), True),
        (stage(Estimate(-0.2, Interval(-0.5, 0.1), 20)), False),
        (stage(Estimate(-0.2, Interval(-0.3, -0.1), 20), Estimate(0.0, Interval(-0.1, 0.1), 20)), False),
        (stage(None), False),
    ],
)
def test_right_answers_decide_where_they_are_known(means: StageMeans, helps: bool) -> None:
    assert means.helps is helps


def test_a_base_without_safetensors_is_refused_before_the_teacher_is_asked(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for file in Path(embedded_reader_path()).glob("*.json"):
        (base / file.name).write_bytes(file.read_bytes())
    (base / "pytorch_model.bin").write_bytes(b"pickled")
    teacher = rewriting(lambda query: query)
    for at in (base, tmp_path / "nowhere"):
        with pytest.raises(ConfigurationError, match="base model"):
            train_rewriter(
                [f"murky {number}" for number in range(40)],
                at,
                tmp_path / "out",
                reader=FakeReader(answering),
                retriever=Search(),
                teacher=teacher,
            )
    assert not (tmp_path / "out").exists()


@pytest.mark.timeout(240)
def test_three_stages_and_a_verdict(tmp_path: Path) -> None:
    queries = [Query(f"murky {at}", ("yes",)) for at in range(40)]
    options = RewriterTraining(n_rewrites=2, trainer={"max_steps": 2}, lora_rank=4)
    teacher = rewriting(lambda query: query.replace("murky", "clear"))

    def train(options: RewriterTraining) -> object:
        return train_rewriter(
            queries,
            embedded_reader_path(),
            tmp_path,
            reader=FakeReader(answering),
            retriever=Search(),
            teacher=teacher,
            options=options,
        )

    report = train(options)
    assert [item.name for item in report.stages][:2] == ["as asked", "distilled"]
    assert report.n_held_out == 8
    assert report.rewriter is None or (report.rewriter / "config.json").exists()
    assert (tmp_path / "distilled" / "model.safetensors").exists()
    assert "8 held-out queries" in str(report)
    assert json.loads((tmp_path / "report.json").read_text())["n_distilled"] == 16
    # A repeated call goes on from the files; another run is not mixed in.
    assert train(options).stages == report.stages
    with pytest.raises(ConfigurationError, match="other queries or options"):
        train(options.with_options(seed=1))
