"""SePer on scripted readers: worked by hand, end to end."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from surerag import Adaptive, FakeReader, Passage, SePer, SePerCase, SePerOptions
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, InputError, MissingServiceError, PromptError
from surerag.messages import Event, Pair
from surerag.readers.fake import reply
from tests.methods.seper.sampled import AFTER, BEFORE, LIKE, Judge, sampled

FIRST, SECOND = Passage("Ada was born in Velm.", id="1"), Passage("Bo paints.", id="2")


def seper(entailer: Any = None, **settings: Any) -> SePer:
    reader = FakeReader(sampled(*BEFORE, *AFTER), entropy=None)
    return SePer(reader, entailer or Judge(LIKE), **{"n_samples": 4, **settings})


@pytest.mark.parametrize(
    ("settings", "before", "after"),
    [
        ({}, 0.2 / 1.0, (0.6 + 0.2 * 0.7) / 0.8),
        ({"direction": "forward"}, 0.2, (0.6 + 0.2 * 0.7) / 0.8),
        ({"weights": "official"}, 0.2 / 1.5, (1.8 + 0.2 * 0.7) / 2.0),
        ({"weights": "frequency"}, 0.25, (3 + 0.7) / 4),
        ({"kernel": "hard"}, 0.2, 1.0),
        ({"kernel": "hard", "match": "strict"}, 0.2, 0.6 / 0.8),
        ({"kernel": "hard", "entailment_threshold": 0.1}, 0.2, 1.0),
    ],
)
def test_worked_by_hand(settings: dict[str, Any], before: float, after: float) -> None:
    result = seper(**settings).run("Where was Ada born?", ["Velm"], [FIRST])
    assert result.before.seper == pytest.approx(before, abs=1e-6)
    assert result.after.seper == pytest.approx(after, abs=1e-6)
    assert result.delta == pytest.approx(after - before, abs=1e-6)
    assert result.interval.lower <= result.delta <= result.interval.upper


def told(prompt: str) -> str:
    return "Velm" if "born in Velm" in prompt else "Orun"


def test_several_golds() -> None:
    result = seper().run("Where?", ["Orun", "Velm"], [FIRST])
    assert result.before.seper == pytest.approx(0.5)
    assert seper(golds="mean").run("Where?", ["Orun", "Velm"], [FIRST]).before.seper == pytest.approx(0.35)
    assert seper(golds="any").run("Where?", ["Orun", "Velm"], [FIRST]).before.seper == pytest.approx(0.7)


def test_each_distinct_pair_is_judged_once_and_equal_answers_never() -> None:
    judge = Judge(LIKE)
    result = seper(judge).run("Where?", ["Velm"], [FIRST])
    assert len(judge.asked) == len(set(judge.asked)) == result.judged == 6
    assert all(pair.question == "Where?" and pair.premise != pair.hypothesis for pair in judge.asked)
    bare = Judge(LIKE)
    seper(bare, question_in_entailment=False, direction="forward").run("Where?", ["Velm"], [FIRST])
    assert {pair.question for pair in bare.asked} == {""}
    assert len(bare.asked) == 3


def test_both_contexts_are_asked_in_one_call() -> None:
    component = seper()
    component.run("Where?", ["Velm"], [FIRST, SECOND])
    reader: Any = component.reader
    assert len(reader.history) == 1
    closed, shown = reader.prompts
    assert "own knowledge" in closed
    assert "[1] Ada was born in Velm.\n[2] Bo paints." in shown


def test_the_sum_of_log_probabilities_punishes_length() -> None:
    long, short = (
        reply("Velm by Orun", entropy=None, logprobs=-0.1),
        reply("Toren", entropy=None, logprobs=-0.1),
    )

    def component(likelihood: Any) -> SePer:
        reader = FakeReader([long, short, long, short], entropy=None)
        return SePer(reader, ExactEntailer(), n_samples=2, likelihood=likelihood)

    def belief(likelihood: Any) -> float:
        return component(likelihood).run("Where?", ["Velm by Orun"], [FIRST]).before.seper

    assert belief("mean") == pytest.approx(0.5)
    assert belief("sum") == pytest.approx(np.exp(-0.3) / (np.exp(-0.3) + np.exp(-0.1)))


def test_without_log_probabilities_frequencies_stand_in_and_that_is_said() -> None:
    events: list[Event] = []
    reader = FakeReader(["Velm", "Orun", "Velm", "Velm"], logprob=None, entropy=None)
    component = SePer(reader, ExactEntailer(), n_samples=2, on_event=events.append)
    result = component.run("Where?", ["Velm"], [FIRST])
    assert (result.weights, result.before.seper, result.after.seper) == ("frequency", 0.5, 1.0)
    assert [(event.name, event.warning) for event in events] == [("seper.frequency_weights", True)]


@pytest.mark.parametrize("adaptive", [None, Adaptive(0.01, 2)])
def test_samples_cut_at_the_limit_are_counted_and_told_of(adaptive: Adaptive | None) -> None:
    events: list[Event] = []
    reader = FakeReader(lambda prompt: "Velm" if "born in Velm" in prompt else "It was in Velm", entropy=None)
    component = SePer(
        reader, ExactEntailer(), n_samples=4, max_tokens=2, adaptive=adaptive, on_event=events.append
    )
    result = component.run("Where?", ["Velm"], [FIRST])
    assert (result.before.truncated, result.after.truncated, result.truncated) == (4, 0, 4)
    [event] = [event for event in events if event.name == "seper.truncated"]
    assert event.warning
    assert event.data == {"question": "Where?", "truncated": 4, "samples": 8, "max_tokens": 2}
    assert "4 of 8 samples were cut" in result.explain()
    events.clear()
    whole = component.with_options(max_tokens=4).run("Where?", ["Velm"], [FIRST])
    assert (whole.truncated, "cut" in whole.explain(), events) == (0, False, [])


class EndsLike(ExactEntailer):
    """An answer means what its last word means."""

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        return super().entail([Pair(p.premise.split()[-1], p.hypothesis.split()[-1]) for p in pairs])


def test_a_long_answer_that_is_right_is_whole_by_default() -> None:
    long = "As far as anybody knows today " * 33 + "Velm"
    reader = FakeReader(lambda prompt: long if "born in Velm" in prompt else "Orun", entropy=None)
    result = SePer(reader, EndsLike(), n_samples=2).run("Where?", ["Velm"], [FIRST])
    assert SePerOptions().max_tokens == 512
    assert (result.delta, result.truncated) == (1.0, 0)
    cut = SePer(reader, EndsLike(), n_samples=2, max_tokens=64).run("Where?", ["Velm"], [FIRST])
    assert (cut.delta, cut.truncated) == (0.0, 2)


def test_an_empty_answer_means_nothing() -> None:
    reader = FakeReader([*sampled(("Velm", 0.5)), "", *sampled(("Velm", 0.5)), ""], entropy=None)
    for kernel in ("soft", "hard"):
        reader.add(*sampled(("Velm", 0.5)), "", *sampled(("Velm", 0.5)), "")
        result = SePer(reader, ExactEntailer(), n_samples=2, kernel=kernel).run("Where?", ["Velm"], [FIRST])  # type: ignore[arg-type]
        assert 0 < result.before.seper < 1


def test_passage_utilities() -> None:
    """The first passage alone settles the question; the second one is worth nothing."""
    reader = FakeReader(told, entropy=None)
    component = SePer(reader, ExactEntailer(), n_samples=3)
    found = component.utilities("Where?", ["Velm"], [FIRST, SECOND])
    assert [(u.passage.id, u.alone, u.lost) for u in found.passages] == [("1", 1.0, 1.0), ("2", 0.0, 0.0)]
    assert (found.whole.delta, found.whole.calls) == (1.0, 6)
    assert len(reader.history) == 1
    assert asyncio.run(component.autilities("Where?", ["Velm"], [FIRST, SECOND])) == found


def test_every_way_of_running_gives_the_same() -> None:
    reader = FakeReader(told, entropy=None)
    component = SePer(reader, ExactEntailer(), n_samples=3)
    cases = [SePerCase(f"Where {i}?", ["Velm"], [FIRST, SECOND][: 1 + i % 2]) for i in range(5)]
    alone = [component.run(*case) for case in cases]
    assert component.run_many(cases) == alone
    assert [asyncio.run(component.arun(*case)) for case in cases] == alone
    assert asyncio.run(component.arun_many(cases)) == alone


def test_results_come_in_order_and_cases_are_read_as_there_is_room() -> None:
    reader = FakeReader(told, entropy=None)
    component = SePer(reader, ExactEntailer(), n_samples=2)
    taken: list[int] = []

    def cases() -> Iterator[SePerCase]:
        for i in range(100):
            taken.append(i)
            yield SePerCase(f"Where {i}?", ["Velm"], [FIRST])

    found = component.iter_many(cases(), window=2)
    assert next(found).question == "Where 0?"
    assert len(taken) < 50
    assert [result.question for result in found] == [f"Where {i}?" for i in range(1, 100)]

    async def asynchronously() -> list[str]:
        return [result.question async for result in component.aiter_many(cases(), window=2)]

    assert asyncio.run(asynchronously()) == [f"Where {i}?" for i in range(100)]


def test_the_explanation_reads_well() -> None:
    text = seper().run("Where was Ada born?", ["Velm"], [FIRST]).explain()
    assert text.splitlines()[:2] == ["Where was Ada born?", "gold: Velm"]
    assert "ΔSePer +0.725" in text
    assert "  2 × Orun  weight 0.50, means gold 0.00" in text
    assert "  3 × Velm  weight 0.75, means gold 1.00" in text


@pytest.mark.parametrize(
    "arguments",
    [("", ["Velm"], [FIRST]), ("Where?", [], [FIRST]), ("Where?", [" "], [FIRST]), ("Where?", ["Velm"], [])],
)
def test_missing_input_is_refused(arguments: Any) -> None:
    with pytest.raises(InputError):
        seper().run(*arguments)


def test_settings_that_cannot_work_are_refused() -> None:
    for settings in ({"kernel": "medium"}, {"entailment_threshold": 0.0}, {"n_samples": 0}, {"golds": "all"}):
        with pytest.raises(ConfigurationError):
            seper(**settings)
    with pytest.raises(MissingServiceError, match="entailer"):
        SePer(FakeReader([]), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "near"), [("n_sample", "n_samples"), ("threshold", "entailment_threshold")])
def test_an_unknown_option_is_refused_and_the_near_one_named(name: str, near: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no option '{name}'. Did you mean.* {near}"):
        seper(**{name: 1})
    with pytest.raises(ConfigurationError, match=near):
        seper().with_options(**{name: 1})
    with pytest.raises(ConfigurationError, match=near):
        SePerOptions(**{name: 1})


def test_an_option_is_set_on_a_copy_never_in_place() -> None:
    component = seper()
    with pytest.raises(FrozenInstanceError):
        component.kernel = "hard"  # type: ignore[misc]
    changed = component.with_options(kernel="hard", n_samples=2)
    assert (component.kernel, changed.kernel, changed.sampling.n) == ("soft", "hard", 2)
    assert changed.reader is component.reader
    with pytest.raises(ConfigurationError, match="kernel must be one of soft, hard, got 'medium'"):
        component.with_options(kernel="medium")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_and_pickles_measure_the_same(copied: Callable[[SePer], SePer]) -> None:
    component = SePer(FakeReader(told, entropy=None), ExactEntailer(), n_samples=2, adaptive=Adaptive(0.5, 2))
    other = copied(component)
    assert other.chosen() == component.chosen()
    assert other.run("Where?", ["Velm"], [FIRST]) == component.run("Where?", ["Velm"], [FIRST])


def test_options_are_written_as_plain_values_and_read_again() -> None:
    prompts = {"closed_book": "Say {question}!"}
    component = seper(adaptive=Adaptive(0.5, 2), prompts=prompts, entailment_threshold=0.7, seed=3)
    written = json.loads(json.dumps(component.to_dict()))
    assert written["adaptive"] == {"width": 0.5, "first": 2}
    assert (written["reader"], written["entailer"]) == ("scripted", "table")
    again = SePer.from_dict(written, reader=component.reader, entailer=component.entailer)
    assert again == component
    assert again.adaptive == Adaptive(0.5, 2)
    with pytest.raises(ConfigurationError, match="unknown settings"):
        SePer.from_dict({**written, "tau": 1}, reader=component.reader, entailer=component.entailer)


def test_one_prompt_is_replaced_and_the_other_stays() -> None:
    component = seper(prompts={"closed_book": "Say {question}!"})
    component.run("Where?", ["Velm"], [FIRST])
    reader: Any = component.reader
    closed, shown = reader.prompts
    assert closed == "Say Where?!"
    assert "from the given documents" in shown
    with pytest.raises(PromptError, match="slots"):
        seper(prompts={"from_passages": "Say {question}!"})
    with pytest.raises(PromptError, match="Did you mean closed_book"):
        seper(prompts={"closed_books": "Say {question}!"})


@pytest.mark.parametrize("weights", ["distinct", "official", "frequency"])
@pytest.mark.parametrize("kernel", ["soft", "hard"])
def test_the_interval_is_that_of_a_plain_bootstrap(weights: Any, kernel: Any) -> None:
    """Resample the samples one by one, and let the measures score each resample."""
    from surerag.measures import answer_weights, seper_soft

    belief = seper(weights=weights, kernel=kernel).run("Where?", ["Velm"], [FIRST]).after
    texts = [answer.text for answer in belief.answers]
    logs = np.array([answer.log_likelihood for answer in belief.answers])
    degrees = np.array([answer.entailment for answer in belief.answers])
    if kernel == "hard":
        degrees = np.ones_like(degrees)
    rng = np.random.default_rng(1)
    plain = []
    for _ in range(2000):
        drawn = rng.integers(4, size=4)
        shares = answer_weights([texts[i] for i in drawn], logs[drawn], weights)
        plain.append(seper_soft(shares, degrees[drawn]))
    assert belief.interval == pytest.approx(np.quantile(plain, [0.025, 0.975]), abs=1e-6)
