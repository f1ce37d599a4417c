"""SePer on fake readers: worked by hand, end to end."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from surerag import FakeReader, OpenAIReader, Passage, SePer, SePerOptions
from surerag.entailment import ExactEntailer, JudgeEntailer
from surerag.errors import ConfigurationError, InputError, MissingServiceError, PromptError, ServiceError
from surerag.measures import answer_weights, equivalence_clusters, seper_soft
from surerag.messages import Event, TokenTrace
from surerag.methods.seper.algorithm import belief_interval
from surerag.readers.fake import reply
from surerag.readers.parameters import LeftOutWarning
from tests.methods.seper.sampled import AFTER, BEFORE, LIKE, Judge, sampled
from tests.servers.fake_openai import FakeOpenAI

FIRST, SECOND = Passage("Ada was born in Velm.", id="1"), Passage("Bo paints.", id="2")


def seper(entailer: Any = None, **settings: Any) -> SePer:
    reader = FakeReader(sampled(*BEFORE, *AFTER), entropy=None)
    return SePer(reader, entailer or Judge(LIKE), **{"n_samples": 4, **settings})


def knowing(prompt: str) -> str:
    return "Velm" if "born in Velm" in prompt else "Orun"


W = {p: p / (1 - (1 - p) ** 4) for p in (0.2, 0.3, 0.5, 0.6)}
"""Horvitz-Thompson weights of answers with these probabilities among four samples."""


@pytest.mark.parametrize(
    ("settings", "before", "after"),
    [
        ({}, W[0.2] / (W[0.2] + W[0.3] + W[0.5]), (W[0.6] + W[0.2] * 0.7) / (W[0.6] + W[0.2])),
        ({"variant": "official"}, 0.2 / 1.5, (1.8 + 0.2 * 0.7) / 2.0),
        ({"variant": "paper"}, 0.2, 0.6 + 0.2 * 0.7),
        ({"kernel": "hard"}, W[0.2] / (W[0.2] + W[0.3] + W[0.5]), 1.0),
        ({"kernel": "hard", "threshold": 0.2}, W[0.2] / (W[0.2] + W[0.3] + W[0.5]), 1.0),
        (
            {"kernel": "hard", "threshold": 0.3},
            W[0.2] / (W[0.2] + W[0.3] + W[0.5]),
            W[0.6] / (W[0.6] + W[0.2]),
        ),
        ({"kernel": "hard", "variant": "paper"}, 0.2, 0.6),
    ],
)
def test_worked_by_hand(settings: dict[str, Any], before: float, after: float) -> None:
    result = seper(**settings).run("Where was Ada born?", ["Velm"], [FIRST])
    assert result.before.seper == pytest.approx(before, abs=1e-6)
    assert result.after.seper == pytest.approx(after, abs=1e-6)
    assert result.delta == pytest.approx(after - before, abs=1e-6)
    assert result.interval.lower < result.delta < result.interval.upper + 1e-9


def test_the_papers_belief_over_several_references() -> None:
    """Each distinct answer by its probability (Eq. 7), forward entailment, the mean (Eq. 10)."""
    table = {("old Velm", "the city of Velm"): (0, 0.6, 0.4), ("the city of Velm", "old Velm"): (0, 0, 1.0)}
    judge = Judge(table)
    samples = [
        reply("old Velm", logprobs=-0.5, end_logprob=-0.25),
        reply("old Velm", logprobs=-0.5, end_logprob=-0.25),
        reply("Orun", logprobs=-2.0, end_logprob=-0.25),
    ]
    reader = FakeReader(lambda prompt: samples.pop(0) if "born" in prompt else "Orun", end_logprob=-0.25)
    paper = SePer(reader, judge, n_samples=3, variant="paper", references="mean")
    result = paper.run("Where?", ["old Velm", "the city of Velm"], [FIRST])
    assert result.after.seper == pytest.approx(math.exp(-1.25) * (1.0 + 0.4) / 2)
    assert not any(pair.question for pair in judge.asked)


def test_several_references() -> None:
    def belief(references: Any) -> float:
        component = seper(variant="paper", references=references)
        return component.run("Where?", ["Orun", "Velm"], [FIRST]).before.seper

    assert belief("max") == pytest.approx(0.5)
    assert belief("mean") == pytest.approx(0.35)
    assert belief("any") == pytest.approx(0.7)


def test_each_distinct_pair_is_judged_once_and_equal_answers_never() -> None:
    judge = Judge(LIKE)
    result = seper(judge).run("Where?", ["Velm"], [FIRST])
    assert len(judge.asked) == len(set(judge.asked)) == result.judgements == 6
    assert all(pair.question == "Where?" and pair.premise != pair.hypothesis for pair in judge.asked)


def test_both_contexts_are_asked_in_one_call() -> None:
    component = seper()
    component.run("Where?", ["Velm"], [FIRST, SECOND])
    reader: Any = component.reader
    assert len(reader.history) == 1
    closed, shown = reader.prompts
    assert "own knowledge" in closed
    assert "[1] Ada was born in Velm.\n[2] Bo paints." in shown


def test_without_log_probabilities_frequencies_stand_in_with_a_warning() -> None:
    events: list[Event] = []
    reader = FakeReader(["Velm", "Orun", "Velm", "Velm"], logprob=None, entropy=None)
    component = SePer(reader, ExactEntailer(), n_samples=2, on_event=events.append)
    result = component.run("Where?", ["Velm"], [FIRST])
    assert (result.weights, result.before.seper, result.after.seper) == ("frequency", 0.5, 1.0)
    assert [(event.name, event.warning) for event in events] == [("seper.frequency_weights", True)]


@pytest.mark.parametrize("lack", [{"refuses": ("logprobs",)}, {"no_logprobs": True}])
def test_a_server_without_log_probabilities_has_frequencies_stand_in(lack: dict[str, Any]) -> None:
    with FakeOpenAI(knowing, **lack) as server:
        reader = OpenAIReader("toy", base_url=server.base_url, api_key="k", max_retries=0)
        with pytest.warns(LeftOutWarning, match="no usable log-probabilities"):
            result = SePer(reader, ExactEntailer(), n_samples=2).run("Where?", ["Velm"], [FIRST])
    assert (result.weights, result.before.seper, result.after.seper) == ("frequency", 0.0, 1.0)
    # Two prompts with two samples each, of one request; those that are refused cost nothing.
    assert len(server.requests) == (4 if "refuses" in lack else 2)


def test_probabilities_that_sum_to_more_than_one_are_no_weights() -> None:
    events: list[Event] = []
    samples = [reply(text, logprobs=-0.1, end_logprob=-0.1) for text in ("Velm", "Orun", "Velm", "Velm")]
    component = SePer(FakeReader(samples), ExactEntailer(), n_samples=2, on_event=events.append)
    result = component.run("Where?", ["Velm"], [FIRST])
    assert (result.weights, result.before.seper, result.after.seper) == ("frequency", 0.5, 1.0)
    assert [event.name for event in events] == ["seper.frequency_weights"]


def sampling(*samples: Any, **settings: Any) -> SePer:
    queue = list(samples)
    reader = FakeReader(lambda prompt: queue.pop(0) if "born" in prompt else "Orun", end_logprob=-0.1)
    return SePer(reader, ExactEntailer(), **{"n_samples": len(samples), "variant": "paper", **settings})


def test_an_answer_that_another_one_begins_with_is_not_counted_over() -> None:
    """P(Velm) = .8 · .25, P(Velm is it) = .8 · .75 · 1 · 1: without the end token they would sum to 1.4."""
    short = reply("Velm", logprobs=math.log(0.8), end_logprob=math.log(0.25))
    long = reply("Velm is it", logprobs=[math.log(0.8), math.log(0.75), 0.0], end_logprob=0.0)
    belief = sampling(short, long).run("Where?", ["Velm"], [FIRST]).after
    assert [answer.weight for answer in belief.answers] == pytest.approx([0.2, 0.6])
    assert belief.seper == pytest.approx(0.2)


def test_one_text_of_different_tokens_is_two_answers() -> None:
    """P(Vel|m) = .1 and P(Velm) = .5 are two ways to the same text, and add up."""
    whole = reply("Velm", logprobs=math.log(0.5), end_logprob=0.0)
    parts = TokenTrace(("Vel", "m"), (math.log(0.1), 0.0), end_logprob=0.0)
    belief = sampling(whole, replace(whole, trace=parts), whole).run("Where?", ["Velm"], [FIRST]).after
    assert belief.seper == pytest.approx(0.6)


def test_an_empty_answer_has_the_probability_of_its_end_token() -> None:
    belief = sampling(reply("", end_logprob=math.log(0.3))).run("Where?", ["Velm"], [FIRST]).after
    assert [answer.weight for answer in belief.answers] == pytest.approx([0.3])


def test_an_answer_that_was_cut_has_the_probability_of_its_tokens() -> None:
    cut = reply("It was in Velm", logprobs=-0.5, end_logprob=-0.5)
    belief = sampling(cut, max_tokens=2).run("Where?", ["Velm"], [FIRST]).after
    assert [answer.weight for answer in belief.answers] == pytest.approx([math.exp(-1)])


@pytest.mark.parametrize("variant", ["default", "paper", "official"])
@pytest.mark.parametrize(
    "unusable", [reply("Velm"), replace(reply("Velm", end_logprob=-0.5), thinking_tokens=3)]
)
def test_without_an_end_token_or_behind_thoughts_frequencies_stand_in(variant: Any, unusable: Any) -> None:
    """Only the authors' mean over the answer's own tokens needs neither."""
    events: list[Event] = []
    other = reply("Orun", logprobs=-3.0, end_logprob=-0.5)
    component = sampling(unusable, other, variant=variant, on_event=events.append)
    result = component.run("Where?", ["Velm"], [FIRST])
    warned = [event.name for event in events if event.warning]
    if variant == "official":
        assert (result.weights, warned) == ("official", [])
    else:
        assert (result.weights, result.after.seper) == ("frequency", 0.5)
        assert warned == ["seper.frequency_weights"]


def test_the_official_variant_ends_the_question_with_a_question_mark() -> None:
    for variant, expected in (("official", "Where is it?"), ("default", "Where is it"), ("paper", "")):
        judge = Judge(LIKE)
        seper(judge, variant=variant).run("Where is it", ["Velm"], [FIRST])
        assert {pair.question for pair in judge.asked} == {expected}


def test_answers_cut_at_the_limit_are_counted_with_a_warning() -> None:
    events: list[Event] = []
    reader = FakeReader(lambda prompt: "Velm" if "born in Velm" in prompt else "It was in Velm", entropy=None)
    component = SePer(reader, ExactEntailer(), n_samples=4, max_tokens=2, on_event=events.append)
    result = component.run("Where?", ["Velm"], [FIRST])
    assert (result.before.truncated, result.after.truncated, result.truncated) == (4, 0, 4)
    [event] = [event for event in events if event.name == "seper.truncated"]
    assert event.warning and event.data["truncated"] == 4
    assert "4 of 8 answers were cut" in result.explain()


def test_samples_that_all_agree_still_have_an_interval() -> None:
    """A bootstrap of equal samples has no width; ten of ten is not certainty."""
    reader = FakeReader(knowing, entropy=None, end_logprob=-0.1)
    result = SePer(reader, ExactEntailer()).run("Where?", ["Velm"], [FIRST])
    assert result.delta == 1.0
    assert result.before.interval == pytest.approx((0, 0.3085), abs=1e-4)
    assert result.after.interval == pytest.approx((0.6915, 1), abs=1e-4)
    assert result.interval == pytest.approx((1 - math.sqrt(2) * 0.3085, 1.0), abs=1e-3)
    same = SePer(FakeReader(lambda _: "Velm"), ExactEntailer()).run("Where?", ["Velm"], [FIRST])
    assert (same.delta, same.interval.upper > same.interval.lower) == (0.0, True)


@pytest.mark.parametrize("unusable", [0, 1, 2, 12])
def test_a_judge_that_cannot_be_used_is_no_measurement(unusable: int) -> None:
    answers = [f"Velm {at}" for at in range(6)]
    queue = iter(["entailment"] * (12 - unusable) + ["Sure! Here is my view."] * unusable)
    judge = JudgeEntailer(FakeReader(lambda _: next(queue)))
    samples = iter(answers)
    reader = FakeReader(lambda prompt: next(samples) if "Documents" in prompt else "Velm")
    component = SePer(reader, judge, n_samples=6)
    if unusable > 1:
        with pytest.raises(ServiceError, match=rf"{unusable} of 12 replies.*\n?.*NLIEntailer"):
            component.run("Where?", ["Velm"], [FIRST])
    else:
        result = component.run("Where?", ["Velm"], [FIRST])
        assert (result.unusable, result.judgements, "could not be used" in result.explain()) == (
            unusable,
            12,
            bool(unusable),
        )
    assert (judge.unparsed, judge.judged) == (unusable, 12)


def test_an_empty_answer_means_nothing() -> None:
    for kernel in ("soft", "hard"):
        reader = FakeReader([*sampled(("Velm", 0.5)), "", *sampled(("Velm", 0.5)), ""], entropy=None)
        result = SePer(reader, ExactEntailer(), n_samples=2, kernel=kernel).run("Where?", ["Velm"], [FIRST])
        assert 0 < result.before.seper < 1


def test_passage_utilities() -> None:
    """The first passage alone settles the question; the second one is worth nothing."""
    reader = FakeReader(knowing, entropy=None)
    component = SePer(reader, ExactEntailer(), n_samples=3)
    result = component.passage_utilities("Where?", ["Velm"], [FIRST, SECOND])
    assert [(u.passage.id, u.alone, u.lost) for u in result.passages] == [("1", 1.0, 1.0), ("2", 0.0, 0.0)]
    assert (result.whole.delta, result.usage.requests >= 18, len(reader.history)) == (1.0, True, 1)
    assert asyncio.run(component.apassage_utilities("Where?", ["Velm"], [FIRST, SECOND])) == result


def test_the_explanation_reads_well() -> None:
    text = seper().run("Where was Ada born?", ["Velm"], [FIRST]).explain()
    assert text.splitlines()[:2] == ["Where was Ada born?", "references: Velm"]
    assert "ΔSePer +0.626" in text
    assert "  2 × Orun  weight 0.42, P(entails a reference) 0.00" in text


@pytest.mark.parametrize(
    "case",
    [("", ["Velm"], [FIRST]), ("Where?", [], [FIRST]), ("Where?", [" "], [FIRST]), ("Where?", ["Velm"], [])],
)
def test_missing_input_is_refused(case: Any) -> None:
    with pytest.raises(InputError):
        seper().run(*case)


def test_settings_that_cannot_work_are_refused() -> None:
    for settings in (
        {"kernel": "medium"},
        {"n_samples": 0},
        {"references": "all"},
        {"threshold": 0.5},
        {"kernel": "hard", "threshold": 2},
        {"n_sample": 1},
    ):
        with pytest.raises(ConfigurationError):
            seper(**settings)
    with pytest.raises(PromptError, match="slots"):
        seper(prompts={"from_passages": "Say {question}!"})
    with pytest.raises(MissingServiceError, match="entailer"):
        SePer(FakeReader([]), None)


@pytest.mark.parametrize("kernel", ["soft", "hard"])
def test_the_interval_of_the_official_variant_is_that_of_a_plain_bootstrap(kernel: Any) -> None:
    """Resample the samples one by one, and let the measures score each resample."""
    component = seper(variant="official", kernel=kernel)
    belief = component.run("Where?", ["Velm"], [FIRST]).before
    texts = [answer.text for answer in belief.answers]
    logs = np.array([answer.log_likelihood for answer in belief.answers])
    degrees = np.array([answer.entailment for answer in belief.answers])
    rng = np.random.default_rng(1)
    plain = []
    for _ in range(3000):
        drawn = rng.integers(4, size=4)
        shares = answer_weights([texts[i] for i in drawn], logs[drawn], component.rules.weights)
        plain.append(seper_soft(shares, degrees[drawn]))
    assert belief.interval == pytest.approx(np.quantile(plain, [0.025, 0.975]), abs=1e-6)


def test_the_interval_covers_the_belief_of_a_random_reader() -> None:
    """Whole weights for all answers that are in a resample, however often, would cover in 86 % of these."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(200):
        p = rng.dirichlet(np.full(30, 0.1))
        right = (rng.random((30, 1)) < 0.5).astype(float)
        drawn = rng.choice(30, size=10, p=p)
        shares = answer_weights(drawn.tolist(), np.log(p[drawn]))
        belief = seper_soft(shares, right[drawn])
        lower, upper = belief_interval(belief, drawn.tolist(), shares, right[drawn], SePerOptions(), 0)
        covered.append(lower - 1e-9 <= p @ right[:, 0] <= upper + 1e-9)
    assert np.mean(covered) >= 0.95


def test_under_all_linkage_every_two_members_mean_the_same_and_under_first_they_often_do_not() -> None:
    rng = np.random.default_rng(3)
    broken = dict.fromkeys(("all", "first"), 0)
    for _ in range(300):
        upper = np.triu(rng.random((8, 8)) < 0.5, 1)
        same = upper | upper.T | np.eye(8, dtype=bool)
        for linkage in broken:
            labels = equivalence_clusters(same, linkage)  # type: ignore[arg-type]
            inside = labels[:, None] == labels[None, :]
            broken[linkage] += bool((inside & ~same).any())
            firsts = [int(np.flatnonzero(labels == label)[0]) for label in range(labels.max() + 1)]
            assert firsts == sorted(firsts)
    assert broken["all"] == 0
    assert broken["first"] > 200


def test_a_cluster_of_the_official_variant_is_matched_by_its_first_member() -> None:
    # "in Velm" means "Velm", but only "Velm" means the reference.
    yes = (0.0, 0.0, 1.0)
    pairs = [("in Velm", "Velm"), ("Velm", "in Velm"), ("Velm", "reference"), ("reference", "Velm")]
    judge = Judge(dict.fromkeys(pairs, yes))

    def belief(variant: Any) -> float:
        samples = ["Velm", "in Velm"]
        reader = FakeReader(lambda prompt: samples.pop(0) if "born" in prompt else "Orun")
        component = SePer(reader, judge, n_samples=2, kernel="hard", variant=variant)
        return component.run("Where?", ["reference"], [FIRST]).after.seper

    assert (belief("official"), belief("default")) == (1.0, 0.0)


@pytest.mark.parametrize("variant", ["default", "paper", "official"])
@pytest.mark.parametrize("unlikely", [["Velm"], ["Velm", "Orun"]])
def test_of_answers_of_no_measurable_probability_the_interval_is_of_numbers(
    unlikely: list[str], variant: Any
) -> None:
    trace = TokenTrace(("Velm",), (-9999.0,), end_logprob=-0.1)
    rare = replace(reply("Velm", logprobs=[-1.0]), trace=trace)
    common = replace(reply("Orun", logprobs=[-1.0]), trace=TokenTrace(("Orun",), (-1.0,), end_logprob=-0.1))
    reader = FakeReader([{"Velm": rare, "Orun": common}[text] for text in (unlikely * 4)[:4] * 2])
    result = SePer(reader, ExactEntailer(), n_samples=4, variant=variant).run("Where?", ["Velm"], [FIRST])
    assert 0 <= result.before.interval.lower <= result.before.seper <= result.before.interval.upper <= 1
