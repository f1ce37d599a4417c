"""SePer: what was retrieval worth to this reader?

Dai et al., "SePer: Measure Retrieval Utility Through the Lens of Semantic Perplexity Reduction",
Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Program, emit, entail, generate
from surerag.errors import InputError
from surerag.measures.seper import Weights
from surerag.methods.seper_scoring import (
    Scored,
    Verdicts,
    cautious_interval,
    interval_of,
    pairs_to_judge,
    score,
)
from surerag.methods.seper_types import (
    Drawn,
    PassageUtility,
    SePerResult,
    SePerSettings,
    UtilityResult,
)
from surerag.prompts import format_passages
from surerag.types import Generation, Passage


def delta_seper(
    question: str, golds: Sequence[str], passages: Sequence[Passage], settings: SePerSettings
) -> Program[SePerResult]:
    """Algorithm 1: sample without and with context, weigh, judge, subtract.

    Args:
        question: Not empty.
        golds: Gold answers, at least one.
        passages: What was retrieved, at least one.
        settings: What steers the method.

    Raises:
        InputError: If there is no question, gold answer or passage.
    """
    measured = yield from _beliefs(question, golds, [[], passages], settings)
    return _result(question, golds, measured, settings)


def passage_utilities(
    question: str, golds: Sequence[str], passages: Sequence[Passage], settings: SePerSettings
) -> Program[UtilityResult]:
    """ΔSePer of each passage, added alone and left out: 2k + 2 contexts, asked all at once.

    The contexts share their beginnings, which a local reader reads once. Adaptive sampling goes by the
    interval of all passages together, and draws as many samples in every context.

    Raises:
        InputError: If there is no question, gold answer or passage.
    """
    each = range(len(passages))
    left_out = [[*passages[:at], *passages[at + 1 :]] for at in each]
    contexts = [[], passages, *([passage] for passage in passages), *left_out]
    measured = yield from _beliefs(question, golds, contexts, settings)
    before, after, *single = (one.belief.seper for one in measured.scored)
    alone, without = single[: len(passages)], single[len(passages) :]
    return UtilityResult(
        _result(question, golds, measured, settings),
        tuple(PassageUtility(passages[at], alone[at] - before, after - without[at]) for at in each),
    )


def context_prompt(question: str, passages: Sequence[Passage], settings: SePerSettings) -> str:
    """Return what the reader is asked in one context; an empty one is the closed book."""
    if not passages:
        return settings.prompts.closed_book.render(question=question)
    shown = format_passages(passage.text for passage in passages)
    return settings.prompts.from_passages.render(passages=shown, question=question)


class _Measured(NamedTuple):
    """Beliefs in all contexts, and what they cost."""

    scored: list[Scored]
    judged: int
    weights: Weights
    calls: int
    drawn: Drawn | None


def _beliefs(
    question: str, golds: Sequence[str], contexts: Sequence[Sequence[Passage]], settings: SePerSettings
) -> Program[_Measured]:
    """Belief in the gold answers in several contexts: the first one empty, the second ΔSePer's own."""
    if not question.strip():
        raise InputError("the question is empty", hint="ask something")
    if not golds or not all(gold.strip() for gold in golds):
        raise InputError("SePer measures belief in gold answers, and one is missing or empty")
    if not contexts[1]:
        raise InputError("there is no passage to measure", hint="give at least one retrieved passage")
    prompts = [context_prompt(question, passages, settings) for passages in contexts]
    rows: dict[tuple[str, str], NDArray[np.float64]] = {}
    calls = repeated = 0
    for n in _steps(settings):
        samples = yield from generate(prompts, replace(settings.sampling, n=n))
        calls += len(prompts)
        if settings.weights != "frequency" and any(one.trace is None for row in samples for one in row):
            settings = replace(settings, weights="frequency")
            yield from emit("seper.frequency_weights", warning=True, question=question)
        texts = [[sample.text for sample in row] for row in samples]
        wanted = [p for p in pairs_to_judge(question, texts, golds, settings) if p[:2] not in rows]
        if wanted:
            found = yield from entail(wanted)
            rows.update(
                ((pair.premise, pair.hypothesis), row) for pair, row in zip(wanted, found, strict=True)
            )
        verdicts = Verdicts(rows, settings)
        scored = [score(row, golds, verdicts, settings, stream) for stream, row in enumerate(samples)]
        drawn = _drawn(scored, n, repeated, settings)
        if drawn is None or drawn.reached or n == settings.sampling.n:
            break
        repeated += _tokens(samples[:2])
    return _Measured(scored, len(rows), settings.weights, calls, drawn)


def _steps(settings: SePerSettings) -> Iterator[int]:
    """Samples to have after each step: all at once, or the first few and then twice as many each time.

    A step asks for all samples from the first one on: that they are the same ones as before is what a
    reader promises of one seed, and none promises to go on from the n-th.
    """
    most = settings.sampling.n
    n = most if settings.adaptive is None else settings.adaptive.first
    while n < most:
        yield n
        n *= 2
    yield most


def _drawn(scored: Sequence[Scored], n: int, repeated: int, settings: SePerSettings) -> Drawn | None:
    if settings.adaptive is None:
        return None
    before, after = scored[:2]
    interval = cautious_interval(before, after)
    return Drawn(n, settings.sampling.n, settings.adaptive.width, interval, repeated)


def _tokens(samples: Sequence[Sequence[Generation]]) -> int:
    return sum(row[0].prompt_tokens + sum(one.completion_tokens for one in row) for row in samples)


def _result(question: str, golds: Sequence[str], measured: _Measured, settings: SePerSettings) -> SePerResult:
    before, after, *_ = measured.scored
    return SePerResult(
        question=question,
        golds=tuple(golds),
        before=before.belief,
        after=after.belief,
        delta=after.belief.seper - before.belief.seper,
        interval=interval_of(after.resamples - before.resamples),
        weights=measured.weights,
        kernel=settings.kernel,
        calls=measured.calls,
        judged=measured.judged,
        drawn=measured.drawn,
    )
