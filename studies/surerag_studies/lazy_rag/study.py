"""The L-RAG study, from a seed to its findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from surerag import LazyRAG
from surerag.drivers.progress import Stages
from surerag.errors import ConfigurationError
from surerag.evaluation.gate import (
    Answers,
    ask_all,
    calibrated,
    looked_up,
    records,
    report_of,
    threshold_of,
    world_questions,
)
from surerag.evaluation.gate.asking import ask, signal
from surerag.evaluation.gate.results import Agreement
from surerag.readers.protocol import Reader
from surerag.services import Encoder
from surerag.world.regimes import TODAY, Regime
from surerag.world.tiers import Tiers, index_world
from surerag.world.world import World
from surerag_studies.lazy_rag.analysis import study_of
from surerag_studies.lazy_rag.gates import compared_gates
from surerag_studies.lazy_rag.results import LazyRagStudy
from surerag_studies.worlds import world_of

MAX_LOSS = 0.01
"""Accuracy that calibration may give up against always retrieving: half of what the study allows."""

SUMMARIES = 1
PASSAGES = 3
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
    """

    study: LazyRagStudy
    answers: Answers
    rag: LazyRAG


def lazy_rag_study(
    reader: Reader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    calibration_seed: int | None = None,
    n_calibration: int | None = None,
    regime: Regime = TODAY,
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
        regime: What misleads in both worlds; by default nothing does.
        index: Makes the two tiers of the world that is asked.
        stages: Told how far each stage is.

    Raises:
        ConfigurationError: If both worlds are the same.
        CapabilityError: If the reader reports no entropies.
    """
    other = seed + 1 if calibration_seed is None else calibration_seed
    if other == seed:
        raise ConfigurationError("calibration and study would use the same world", hint="choose another seed")
    n_tuning = n_calibration or min(n, MOST_CALIBRATION)
    tune = world_of(regime, n_tuning, other)
    sample = world_questions(tune, tune.questions(n_tuning))
    tuning = looked_up(pipeline(reader, index_world(tune, encoder)), sample)
    calibration = calibrated(tuning, sample, stages, max_loss=MAX_LOSS)

    world = world_of(regime, n, seed)
    questions = world_questions(world, world.questions(n))
    live = pipeline(reader, index(world, encoder))
    rag = looked_up(live, questions)
    answers = ask_all(rag, questions, stages)
    report = report_of(records(answers), threshold_of(calibration, MAX_LOSS, seed=other), rag)
    agreement = _agreement(rag, calibration.threshold, answers, stages)
    gates = compared_gates(rag, answers, stages)
    study = study_of(report, agreement, gates, seed=seed, encoder=encoder.name, regime=regime.name)
    return Finding(study, answers, live.with_options(threshold=calibration.threshold))


def pipeline(reader: Reader, tiers: Tiers) -> LazyRAG:
    """Return L-RAG over both tiers of a world, as the studies ask it."""
    return LazyRAG(
        reader,
        tiers.passages,
        tiers.summaries,
        top_n=PASSAGES,
        n_summaries=SUMMARIES,
        max_tokens=MAX_TOKENS,
    )


def _agreement(rag: LazyRAG, threshold: float, answers: Answers, stages: Stages) -> Agreement:
    """Run the component itself at a threshold, and compare with what both completed passes say."""
    some = answers.questions[:LARGEST_CHECK]
    own = ask(rag.with_options(mode="lazy", threshold=threshold), some, stages("Lazy"))
    opened = [signal(result) > threshold for result in answers.first[: len(some)]]
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
