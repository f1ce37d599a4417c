"""What a rewriter does for its reader on held-out queries, and how stages compare."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surerag import drivers
from surerag.drivers.progress import Progress
from surerag.effects import Program
from surerag.evaluation.dynqr.asking import AT_ONCE, SETTINGS
from surerag.evaluation.dynqr.training_results import StageRow
from surerag.evaluation.statistics import PairedDifference, paired_difference, share
from surerag.methods.rewrite_asking import RewriteAsking
from surerag.methods.rewrites import read_rewrite
from surerag.readers.protocol import Reader
from surerag.services import Retriever, Services, as_reader
from surerag.world.questions import Question, is_correct, normalise


class Held(NamedTuple):
    """One held-out query, rewritten and answered.

    Attributes:
        usable: Whether the reply is a query.
        clear: Whether it is the question in the world's own clear words.
        uncertainty: Perplexity of the reader's answer; infinite for one without a word.
        correct: Whether that answer is right.
    """

    usable: bool
    clear: bool
    uncertainty: float
    correct: bool


@dataclass(frozen=True, slots=True)
class Examined:
    """A rewriter, or none, on all held-out queries.

    Attributes:
        stage: How it is called.
        held: One a query, in the same order for all.
        triplets: Preferences it learnt from.
        seconds: What it took to make.
    """

    stage: str
    held: tuple[Held, ...]
    triplets: int = 0
    seconds: float = 0.0


class Rows(NamedTuple):
    """The table: stage after stage, then the other rewards."""

    stages: tuple[StageRow, ...]
    rewards: tuple[StageRow, ...]


def examine(
    questions: Sequence[Question],
    reader: Reader,
    rewriter: Reader | None,
    index: Retriever,
    progress: Progress,
) -> list[Held]:
    """Rewrite every query, retrieve with that, and answer; without a rewriter, with the query itself."""
    services = Services(
        reader=as_reader(reader),
        retriever=index,
        rewriter=None if rewriter is None else as_reader(rewriter),
    )
    programs = [_held(question, rewriter is not None) for question in questions]
    return drivers.run_many(programs, services, at_once=AT_ONCE, progress=progress)


def stage_rows(stages: Sequence[Examined], aligned: Sequence[Examined]) -> Rows:
    """Compare each stage with the one before, and each aligned rewriter with the distilled one.

    Args:
        stages: Original query, base, distilled.
        aligned: One for each reward, the reader's uncertainty first.
    """
    distilled = stages[-1]
    chain = [*stages, aligned[0]]
    before: list[Examined | None] = [None, *chain[:-1]]
    return Rows(
        tuple(_row(one, previous) for one, previous in zip(chain, before, strict=True)),
        tuple(_row(one, distilled) for one in aligned[1:]),
    )


def _held(question: Question, rewritten: bool) -> Program[Held]:
    asking = RewriteAsking(question.text, SETTINGS)
    query, usable = question.text, False
    if rewritten:
        [reply] = yield from asking.rewrite()
        rewrite = read_rewrite(reply, question.text, SETTINGS.max_words)
        usable = rewrite.trouble is None
        query = rewrite.text if usable else query
    found = yield from asking.retrieve(query)
    [attempt] = yield from asking.answer({query: found})
    return Held(
        usable=usable,
        clear=usable and normalise(query) == normalise(question.rewrite or ""),
        uncertainty=attempt.uncertainty,
        correct=is_correct(question, attempt.answer),
    )


def _row(one: Examined, previous: Examined | None) -> StageRow:
    told = [math.log(item.uncertainty) for item in one.held if math.isfinite(item.uncertainty)]
    return StageRow(
        stage=one.stage,
        usable=share([item.usable for item in one.held]),
        clear=share([item.clear for item in one.held]),
        uncertainty=math.exp(statistics.fmean(told)) if told else math.inf,
        against_previous=None if previous is None else _change(one, previous),
        accuracy=share([item.correct for item in one.held]),
        accuracy_against_previous=None
        if previous is None
        else paired_difference([item.correct for item in one.held], [item.correct for item in previous.held]),
        triplets=one.triplets,
        seconds=one.seconds,
    )


def _change(one: Examined, previous: Examined) -> PairedDifference | None:
    """Compare the logarithms of perplexities where both answers have one; None if no two have."""
    pairs = [
        (math.log(now.uncertainty), math.log(then.uncertainty))
        for now, then in zip(one.held, previous.held, strict=True)
        if math.isfinite(now.uncertainty) and math.isfinite(then.uncertainty)
    ]
    if not pairs:
        return None
    return paired_difference([now for now, _ in pairs], [then for _, then in pairs])
