"""The contenders of the benchmark of SePer, on one set of models, questions and samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from benchmarks import _seper_floor, _seper_plain
from benchmarks._seper_models import DEBERTA_SMALL, NLIShape, load_nli, load_reader, save_nli, save_reader
from benchmarks._seper_world import PROMPTS, Pool, Repetition, cases, pools, prompts
from benchmarks.models import SMALL, Shape
from surerag import SePer, SePerCase, SePerResult, TransformersReader
from surerag.entailment import NLIEntailer
from surerag.types import Generation, Pair, Sampling
from surerag.world import Question, World

KERNELS = ("soft", "hard")
Clock = Callable[[], float]


class Work(NamedTuple):
    """How much is asked, of models of what size."""

    context_tokens: int = 1000
    samples: int = 10
    max_tokens: int = 32
    reader: Shape = SMALL
    nli: NLIShape = DEBERTA_SMALL


class Times(NamedTuple):
    """Seconds by component, and in total, which is measured by itself."""

    without: float
    with_context: float
    entailment: float
    total: float


class Judging(NamedTuple):
    """How fast pairs of answers were judged.

    Attributes:
        asked: Ordered pairs of the samples for one prompt, over all prompts.
        judged: Pairs that went through the classifier for it.
        seconds: What it took.
    """

    asked: int
    judged: int
    seconds: float


class Setting(NamedTuple):
    """Models and questions that all contenders share."""

    work: Work
    asked: list[SePerCase]
    prompts: Mapping[str, list[str]]
    pools: list[Pool]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    nli: PreTrainedModel
    nli_tokenizer: PreTrainedTokenizerFast
    reader: TransformersReader
    clock: Clock


class Ours(NamedTuple):
    """What the package took, and what it found.

    Attributes:
        times: By kernel.
        results: By kernel, one a question.
        samples: The answers, by ``"without"`` and ``"with"``: those that the results are about.
        pairs: That the entailer was given, by kernel, with the question before both statements.
    """

    times: dict[str, Times]
    results: dict[str, list[SePerResult]]
    samples: dict[str, list[list[Generation]]]
    pairs: dict[str, list[tuple[str, str]]]


class Plain(NamedTuple):
    """What the straightforward way took, and how far its scores are from the package's."""

    times: dict[str, Times]
    judged: dict[str, int]
    difference: float
    distinct: dict[str, list[int]]


def prepare(
    folder: Path,
    world: World,
    questions: Sequence[Question],
    measured: Mapping[str, Sequence[Repetition]],
    work: Work,
    clock: Clock,
) -> Setting:
    """Build the models for these questions, write them to a folder, and load them from there."""
    asked = cases(world, questions, work.context_tokens)
    shown = prompts(asked)
    drawn = pools(asked, measured, work.samples, longest=work.max_tokens - 1)
    save_reader(folder / "reader", (text for rows in shown.values() for text in rows), drawn, work.reader)
    said = [" ".join(pool.answers) for pool in drawn]
    save_nli(folder / "nli", [*said, *(" ".join((c.question, *c.golds)) for c in asked)], work.nli)
    model, tokenizer = load_reader(folder / "reader")
    nli, nli_tokenizer = load_nli(folder / "nli")
    reader = TransformersReader(model, tokenizer)
    return Setting(work, asked, shown, drawn, model, tokenizer, nli, nli_tokenizer, reader, clock)


class _Noting:
    """An entailer that notes what it is given and how long it takes."""

    local = True

    def __init__(self, setting: Setting) -> None:
        self._entailer = NLIEntailer(setting.nli, setting.nli_tokenizer)
        self._clock = setting.clock
        self.name = self._entailer.name
        self.pairs: list[Pair] = []
        self.seconds = 0.0

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        started = self._clock()
        found = self._entailer.entail(pairs)
        self.seconds += self._clock() - started
        self.pairs += pairs
        return found


def ours(setting: Setting, seed: int) -> Ours:
    """Measure the package: each component by itself, and then the whole, with either kernel."""
    work, clock = setting.work, setting.clock
    sampling = Sampling(n=work.samples, temperature=1.0, max_tokens=work.max_tokens, seed=seed)
    seconds, samples = {}, {}
    for name, asked in setting.prompts.items():
        started = clock()
        samples[name] = setting.reader.generate(asked, sampling)
        seconds[name] = clock() - started
    times, results, pairs = {}, {}, {}
    for kernel in KERNELS:
        entailer = _Noting(setting)
        seper = _seper(setting, entailer, kernel, seed)
        started = clock()
        results[kernel] = seper.run_many(setting.asked)
        total = clock() - started
        times[kernel] = Times(seconds["without"], seconds["with"], entailer.seconds, total)
        pairs[kernel] = [statements(pair) for pair in entailer.pairs]
    return Ours(times, results, samples, pairs)


def _seper(setting: Setting, entailer: _Noting, kernel: str, seed: int) -> SePer:
    work = setting.work
    shared = {"n_samples": work.samples, "max_tokens": work.max_tokens, "prompts": PROMPTS}
    return SePer(setting.reader, entailer, kernel=kernel, clusters="first", seed=seed, **shared)


def statements(pair: Pair) -> tuple[str, str]:
    """Return a pair as the classifier reads it, with the question before both statements."""
    return f"{pair.question} {pair.premise}".strip(), f"{pair.question} {pair.hypothesis}".strip()


def plain(setting: Setting, found: Ours) -> Plain:
    """Measure the straightforward way: its own samples, and its judgement of the package's.

    So both score the same samples, and nothing is judged twice for the sake of the comparison.
    """
    clock = setting.clock
    seconds, distinct = {}, {}
    for name, asked in setting.prompts.items():
        started = clock()
        rows = [
            _seper_plain.sample(
                setting.model, setting.tokenizer, prompt, setting.work.samples, setting.work.max_tokens
            )
            for prompt in asked
        ]
        seconds[name] = clock() - started
        distinct[name] = [len({one.text for one in row}) for row in rows]
    times, judged, difference = {}, {}, 0.0
    for kernel in KERNELS:
        judge = _seper_plain.PairwiseNLI(setting.nli, setting.nli_tokenizer, clock)
        started = clock()
        scores = [plain_delta(result, judge, kernel) for result in found.results[kernel]]
        entailment = clock() - started
        generating = seconds["without"], seconds["with"]
        times[kernel] = Times(*generating, entailment, sum(generating) + entailment)
        judged[kernel] = judge.judged
        gaps = [abs(a - b.delta) for a, b in zip(scores, found.results[kernel], strict=True)]
        difference = max(difference, *gaps)
    return Plain(times, judged, difference, distinct)


def plain_delta(result: SePerResult, judge: _seper_plain.Judge, kernel: str) -> float:
    """Return ΔSePer of a result's samples, scored the straightforward way."""
    before, after = (
        _seper_plain.belief(
            [_seper_plain.Sample(one.text, one.log_likelihood or 0.0) for one in belief.answers],
            result.question,
            result.golds,
            judge,
            kernel,
        )
        for belief in (result.before, result.after)
    )
    return after - before


def floor(setting: Setting, found: Ours) -> dict[str, Times]:
    """Measure the forward passes alone that these samples and pairs need."""
    seconds = {}
    for name, rows in found.samples.items():
        encoded = [
            _seper_floor.Encoded(
                setting.tokenizer(prompt)["input_ids"],
                tuple(one.completion_tokens + (one.finish == "stop") for one in row),
            )
            for prompt, row in zip(setting.prompts[name], rows, strict=True)
        ]
        seconds[name] = _seper_floor.decoding_seconds(setting.model, encoded, setting.clock)
    times = {}
    for kernel, pairs in found.pairs.items():
        judging = _seper_floor.judging_seconds(setting.nli, setting.nli_tokenizer, pairs, setting.clock)
        times[kernel] = Times(seconds["without"], seconds["with"], judging, sum(seconds.values()) + judging)
    return times


def answers_by_prompt(setting: Setting, found: Ours) -> list[list[str]]:
    """Return, for each prompt, the question with each of its samples: what all judge pairwise."""
    return [
        [f"{case.question} {one.text}" for one in row]
        for rows in found.samples.values()
        for case, row in zip(setting.asked, rows, strict=True)
    ]


def judging(setting: Setting, answers: Sequence[Sequence[str]]) -> Judging:
    """Measure the package's entailer on all ordered pairs of the answers to each prompt."""
    entailer = NLIEntailer(setting.nli, setting.nli_tokenizer)
    started = setting.clock()
    pairs = [Pair(a, b) for row in answers for a, b in permutations(row, 2) if a != b]
    if pairs:
        entailer.entail(pairs)
    return Judging(count(answers), len(set(pairs)), setting.clock() - started)


def plain_judging(setting: Setting, answers: Sequence[Sequence[str]], most: int = 16) -> Judging:
    """Measure pairs one at a time, on a few prompts: the rate does not depend on how many there are."""
    chosen = random.Random(0).sample(list(answers), min(most, len(answers)))
    judge = _seper_plain.PairwiseNLI(setting.nli, setting.nli_tokenizer, setting.clock)
    started = setting.clock()
    for row in chosen:
        for a, b in permutations(row, 2):
            if a != b:
                judge(a, b)
    return Judging(count(chosen), judge.judged, setting.clock() - started)


def count(answers: Sequence[Sequence[str]]) -> int:
    """Count ordered pairs of the answers to each prompt, equal ones among them."""
    return sum(len(row) * (len(row) - 1) for row in answers)
