"""Adaptive sampling: it stops when it knows enough, and its samples are those of a fixed run."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from surerag import Adaptive, Passage, SePer, SePerOptions
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError
from surerag.messages import Event, Generation, Pair, Prompt, SamplingParams
from surerag.methods.seper.scoring import Verdicts, cautious_interval, score
from surerag.readers.fake import reply
from surerag.readers.protocol import BaseReader, Capabilities

PASSAGE = Passage("Ada was born in Velm.", id="1")


class Dice(BaseReader):
    """Says the right answer with one probability without context, and another with it."""

    name = "dice"
    capabilities = Capabilities(logprobs=True, entropy=None, local=True)

    def __init__(self, before: float, after: float, *, logprobs: bool = True) -> None:
        self.beliefs, self.logprobs = (before, after), logprobs
        self.asked: list[int] = []

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        self.asked.append(sampling.n)
        return [[self._say(str(prompt), sampling.seed, i) for i in range(sampling.n)] for prompt in prompts]

    def _say(self, prompt: str, seed: int, sample: int) -> Generation:
        right = self.beliefs["Documents" in prompt]
        rng = random.Random(f"{prompt} {seed} {sample}")
        text, probability = ("Velm", right) if rng.random() < right else ("Orun", 1 - right)
        return reply(text, entropy=None, logprobs=math.log(max(probability, 1e-6)) if self.logprobs else None)


def seper(reader: Any, *, n: int = 40, width: float = 0.4, first: int = 5, **settings: Any) -> SePer:
    return SePer(reader, ExactEntailer(), n_samples=n, adaptive=Adaptive(width, first), **settings)


def test_a_certain_reader_is_asked_less_than_an_uncertain_one() -> None:
    certain = seper(Dice(0.0, 1.0)).run("Where?", ["Velm"], [PASSAGE])
    doubtful = seper(Dice(0.5, 0.5), weights="frequency").run("Where?", ["Velm"], [PASSAGE])
    assert certain.drawn is not None
    assert doubtful.drawn is not None
    assert (certain.drawn.samples, certain.drawn.reached) == (10, True)
    # Wilson's upper end for 0 of 10 is z² / (10 + z²); Newcombe combines both ends as the legs of a triangle.
    lower = 1 - math.sqrt(2) * 3.841459 / 13.841459
    assert certain.drawn.interval == pytest.approx((lower, 1.0), abs=1e-5)
    assert (doubtful.drawn.samples, doubtful.drawn.most) == (40, 40)
    assert len(certain.before.answers) == 10
    assert "10 of at most 40 samples" in certain.explain()


@pytest.mark.parametrize("weights", ["distinct", "official", "frequency"])
@pytest.mark.parametrize("kernel", ["soft", "hard"])
def test_it_gives_what_a_fixed_run_of_as_many_samples_gives(weights: Any, kernel: Any) -> None:
    for seed in range(3):
        reader = Dice(0.2, 0.9)
        settings = {"weights": weights, "kernel": kernel, "seed": seed}
        found = seper(reader, width=0.5, **settings).run("Where?", ["Velm"], [PASSAGE])
        assert found.drawn is not None
        n = found.drawn.samples
        fixed = SePer(Dice(0.2, 0.9), ExactEntailer(), n_samples=n, **settings).run(
            "Where?", ["Velm"], [PASSAGE]
        )
        assert (found.before, found.after, found.delta) == (fixed.before, fixed.after, fixed.delta)
        assert found.interval == fixed.interval
        full = SePer(Dice(0.2, 0.9), ExactEntailer(), n_samples=40, **settings).run(
            "Where?", ["Velm"], [PASSAGE]
        )
        assert full.after.answers[0].text == found.after.answers[0].text
        assert [a.text for a in full.after.answers[:n]] == [a.text for a in found.after.answers]
        assert reader.asked == [5, 10, 20, 40][: reader.asked.index(n) + 1]


def test_the_maximum_ends_it_and_is_said() -> None:
    reader = Dice(0.5, 0.5)
    found = seper(reader, n=12, width=0.01).run("Where?", ["Velm"], [PASSAGE])
    assert reader.asked == [5, 10, 12]
    assert found.drawn is not None
    assert (found.drawn.samples, found.drawn.most, found.drawn.reached) == (12, 12, False)
    assert found.calls == 6
    one = found.before.prompt_tokens + found.after.prompt_tokens
    # Words said: one a sample, 5 and 10 of them in vain, and 12, in each of two contexts.
    assert found.drawn.repeated_tokens == 2 * one + 2 * (5 + 10)
    assert found.tokens == 3 * one + 2 * (5 + 10 + 12)


def test_pairs_are_judged_once_over_all_steps() -> None:
    asked: list[Pair] = []

    class Watching(ExactEntailer):
        def entail(self, pairs: Sequence[Pair]) -> Any:
            asked.extend(pairs)
            return super().entail(pairs)

    component = SePer(Dice(0.5, 0.5), Watching(), n_samples=40, adaptive=Adaptive(0.1), kernel="hard")
    found = component.run("Where?", ["Velm"], [PASSAGE])
    assert len(asked) == len(set(asked)) == found.judged


def test_the_interval_holds_the_bootstraps_and_covers_the_truth() -> None:
    """Of many runs on a reader of known belief, the interval holds the true difference nearly always."""
    covered = total = 0
    for seed in range(150):
        found = seper(Dice(0.2, 0.8), n=10, width=0.1, weights="frequency", seed=seed).run(
            "Where?", ["Velm"], [PASSAGE]
        )
        assert found.drawn is not None
        low, high = found.drawn.interval
        assert low <= found.interval.lower <= found.interval.upper <= high
        covered += low <= 0.6 <= high
        total += 1
    assert covered / total >= 0.95


def test_the_analytic_part_is_newcombes() -> None:
    """Newcombe 1998, table II, (a): 56 of 70 less 48 of 80 is 0.2000, from 0.0524 to 0.3339."""
    options = SePerOptions(weights="frequency")

    def counted(right: int, n: int, stream: int) -> Any:
        samples = [Generation("Velm")] * right + [Generation("Orun")] * (n - right)
        rows = {("Orun", "Velm"): np.array([1.0, 0, 0]), ("Velm", "Orun"): np.array([1.0, 0, 0])}
        return score(samples, ["Velm"], Verdicts(rows, options), options, "frequency", stream)

    before, after = counted(48, 80, 0), counted(56, 70, 1)
    one = (before.resamples[:1] * 0 + 0.6, after.resamples[:1] * 0 + 0.8)
    narrow = before._replace(resamples=one[0]), after._replace(resamples=one[1])
    assert cautious_interval(*narrow) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    wilson = stats.binomtest(0, 5).proportion_ci(method="wilson").high
    assert wilson == pytest.approx(0.4345, abs=1e-4)  # what five samples that agree leave open


def test_utilities_and_every_way_of_running() -> None:
    reader = Dice(0.1, 0.9)
    component = seper(reader, width=0.6)
    found = component.run("Where?", ["Velm"], [PASSAGE])
    assert asyncio.run(component.arun("Where?", ["Velm"], [PASSAGE])) == found
    assert component.run_many([("Where?", ["Velm"], [PASSAGE])]) == [found]
    reader.asked.clear()
    parts = component.utilities("Where?", ["Velm"], [PASSAGE, Passage("Bo paints.")])
    assert parts.whole.drawn is not None
    assert reader.asked[-1] == parts.whole.drawn.samples


def test_a_reader_without_log_probabilities_is_named_once() -> None:
    events: list[Event] = []
    component = seper(Dice(0.5, 0.5, logprobs=False), width=0.1, on_event=events.append)
    found = component.run("Where?", ["Velm"], [PASSAGE])
    assert found.weights == "frequency"
    assert [event.name for event in events] == ["seper.frequency_weights"]


@pytest.mark.parametrize("arguments", [{"width": 0.0}, {"width": 2.5}, {"first": 1}])
def test_steps_that_cannot_work_are_refused(arguments: Any) -> None:
    with pytest.raises(ConfigurationError):
        Adaptive(**arguments)
    with pytest.raises(ConfigurationError, match="more than all 4"):
        seper(Dice(0, 1), n=4)
