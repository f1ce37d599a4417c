"""The L-RAG study, from a seed to its findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from surerag.calibration import Calibration, calibrate_threshold
from surerag.components import LazyRAG
from surerag.errors import ConfigurationError
from surerag.evaluation.lazy_rag.analysis import Setting, analyse
from surerag.evaluation.lazy_rag.asking import (
    Answers,
    Stages,
    Tiers,
    ask,
    ask_all,
    first_pass,
    index_world,
    looked_up,
    records,
    signal,
)
from surerag.evaluation.lazy_rag.results import Agreement, LazyRagStudy, Threshold
from surerag.evaluation.statistics import Estimate
from surerag.readers.protocol import Reader
from surerag.services import Encoder
from surerag.world.questions import Question, is_correct
from surerag.world.world import World

MAX_LOSS = 0.01
"""Accuracy that calibration may give up against always retrieving: half of what the study allows."""

SUMMARIES = 1
"""The paper's first pass reads one document's summary; in a corpus, that of the nearest document."""

MAX_TOKENS = 32
LARGEST_CHECK = 200
MOST_CALIBRATION = 1000


class Finding(NamedTuple):
    """The study, and what it was made from.

    Attributes:
        study: Every figure.
        answers: Every answer.
        rag: The pipeline at the calibrated threshold, over the world's own indices.
        world: The world that was asked.
        calibration: The threshold, as a pipeline takes it.
    """

    study: LazyRagStudy
    answers: Answers
    rag: LazyRAG
    world: World
    calibration: Calibration


def lazy_rag_study(
    reader: Reader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    calibration_seed: int | None = None,
    n_calibration: int | None = None,
    index: Callable[[World, Encoder], Tiers] = index_world,
    stages: Stages = lambda _: False,
) -> Finding:
    """Ask one world in every mode, at a threshold that was calibrated on another.

    Args:
        reader: Reports entropies.
        encoder: Behind both tiers.
        seed: Seed of the world that is asked.
        n: Questions.
        calibration_seed: Seed of the world for calibration; by default the next one.
        n_calibration: Questions for calibration; by default as many, at most 1,000.
        index: Makes the two tiers of the world that is asked.
        stages: Told how far each stage is.

    Raises:
        ConfigurationError: If both worlds are the same.
        CapabilityError: If the reader reports no entropies.
    """
    other = seed + 1 if calibration_seed is None else calibration_seed
    if other == seed:
        raise ConfigurationError("calibration and study would use the same world", hint="choose another seed")
    tune = World(seed=other)
    asked = tune.questions(n_calibration or min(n, MOST_CALIBRATION))
    tuning = _pipeline(reader, index_world(tune, encoder), asked)
    calibration = _calibrate(tuning, asked, stages)

    world = World(seed=seed)
    questions = world.questions(n)
    tiers = index(world, encoder)
    rag = _pipeline(reader, tiers, questions)
    answers = ask_all(rag, world, questions, stages)
    agreement = _agreement(rag, calibration.tau, answers, stages)
    threshold = Threshold(
        tau=Estimate(calibration.tau, calibration.lower, calibration.upper),
        rule=f"the largest τ that loses at most {100 * MAX_LOSS:g} point against always retrieving",
        seed=other,
        n=calibration.n,
        accuracy=calibration.accuracy or 0.0,
        retrieval_rate=calibration.rate,
    )
    setting = Setting(seed, reader.name, encoder.name, rag.k, rag.m, rag.gate_tokens, rag.aggregate)
    study = analyse(records(answers), threshold, agreement, setting)
    live = rag.with_settings(retriever=tiers.passages, summaries=tiers.summaries, tau=calibration.tau)
    return Finding(study, answers, live, world, calibration)


def _pipeline(reader: Reader, tiers: Tiers, questions: Sequence[Question]) -> LazyRAG:
    rag = LazyRAG(reader, tiers.passages, tiers.summaries, m=SUMMARIES, max_tokens=MAX_TOKENS)
    found = looked_up(tiers, questions, k=rag.k, m=rag.m)
    return rag.with_settings(retriever=found.passages, summaries=found.summaries)


def _calibrate(rag: LazyRAG, questions: Sequence[Question], stages: Stages) -> Calibration:
    """Take the lower end of the interval: the largest τ of one sample is too large for half of all others."""
    first = first_pass(rag, questions, stages("Calibration, first pass"))
    second = ask(rag.with_settings(mode="strong"), questions, stages("Calibration, second pass"))
    heard = [signal(result) for result in first]
    # A silent first pass opens the gate at any threshold: it stands above all others.
    above = max((value for value in heard if math.isfinite(value)), default=0.0) + 1.0
    signals = np.minimum(heard, above)
    without = np.array([is_correct(q, result.answer) for q, result in zip(questions, first, strict=True)])
    with_ = np.array([is_correct(q, result.answer) for q, result in zip(questions, second, strict=True)])
    found = calibrate_threshold(
        signals,
        max_loss=MAX_LOSS,
        correct_without=without,
        correct_with=with_,
        model=rag.reader.name,
        signal=rag.signal,
    )
    opens = signals > found.lower
    return replace(
        found,
        tau=found.lower,
        rate=float(opens.mean()),
        accuracy=float(np.where(opens, with_, without).mean()),
    )


def _agreement(rag: LazyRAG, tau: float, answers: Answers, stages: Stages) -> Agreement:
    """Run the component itself at a threshold, and compare with what both completed passes say."""
    some = answers.questions[:LARGEST_CHECK]
    own = ask(rag.with_settings(mode="lazy", tau=tau), some, stages("Lazy"))
    opened = [signal(result) > tau for result in answers.first[: len(some)]]
    expected = [
        (second if retrieve else first).answer
        for retrieve, first, second in zip(opened, answers.first, answers.strong, strict=False)
    ]
    return Agreement(
        n=len(some),
        same_answer=sum(result.answer == answer for result, answer in zip(own, expected, strict=True)),
        same_decision=sum(
            result.decision.retrieve == retrieve for result, retrieve in zip(own, opened, strict=True)
        ),
    )
