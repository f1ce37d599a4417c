"""SePer: what was retrieval worth to this reader?

Dai et al., "SePer: Measure Retrieval Utility Through the Lens of Semantic Perplexity Reduction",
Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Program, emit, entail, generate
from surerag.errors import InputError
from surerag.measures.seper import Weights
from surerag.messages import Generation, Passage, Prompt, Template
from surerag.methods.inputs import check_golds, check_passages, check_question
from surerag.methods.seper.options import SePerOptions
from surerag.methods.seper.result import Drawn, PassageUtility, SePerResult, UtilityResult
from surerag.methods.seper.scoring import (
    Scored,
    Verdicts,
    cautious_interval,
    interval_of,
    pairs_to_judge,
    score,
)
from surerag.prompts import format_passages


def delta_seper(
    question: str, golds: Sequence[str], passages: Sequence[Passage], options: SePerOptions
) -> Program[SePerResult]:
    """Algorithm 1: sample without and with context, weigh, judge, subtract.

    Args:
        question: Not empty.
        golds: Gold answers, at least one.
        passages: What was retrieved, at least one.
        options: What steers the method.

    Raises:
        InputError: If there is no question, gold answer or passage.
    """
    measured = yield from _beliefs(question, golds, [[], passages], options)
    return _result(question, golds, measured, options)


def passage_utilities(
    question: str, golds: Sequence[str], passages: Sequence[Passage], options: SePerOptions
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
    measured = yield from _beliefs(question, golds, contexts, options)
    before, after, *single = (one.belief.seper for one in measured.scored)
    alone, without = single[: len(passages)], single[len(passages) :]
    return UtilityResult(
        _result(question, golds, measured, options),
        tuple(PassageUtility(passages[at], alone[at] - before, after - without[at]) for at in each),
    )


def context_prompt(question: str, passages: Sequence[Passage], options: SePerOptions) -> Prompt:
    """Return what the reader is asked in one context; an empty one is the closed book."""
    prompts: Mapping[str, Template] = options.prompts
    if not passages:
        return prompts["closed_book"].render(question=question)
    shown = format_passages(passage.text for passage in passages)
    return prompts["from_passages"].render(passages=shown, question=question)


class _Measured(NamedTuple):
    """Beliefs in all contexts, and what they cost."""

    scored: list[Scored]
    judged: int
    weights: Weights
    calls: int
    drawn: Drawn | None


def _beliefs(
    question: str, golds: Sequence[str], contexts: Sequence[Sequence[Passage]], options: SePerOptions
) -> Program[_Measured]:
    """Belief in the gold answers in several contexts: the first one empty, the second ΔSePer's own."""
    check_question(question)
    check_passages(contexts[1])
    check_golds(golds)
    if not contexts[1]:
        raise InputError("there is no passage to measure", hint="give at least one retrieved passage")
    prompts = [context_prompt(question, passages, options) for passages in contexts]
    rows: dict[tuple[str, str], NDArray[np.float64]] = {}
    calls = repeated = 0
    weights = options.rules.weights
    for n in steps_of(options):
        samples = yield from generate(prompts, replace(options.sampling, n=n))
        calls += len(prompts)
        if weights != "frequency" and any(one.trace is None for row in samples for one in row):
            weights = "frequency"
            yield from emit("seper.frequency_weights", warning=True, question=question)
        texts = [[sample.text for sample in row] for row in samples]
        wanted = [p for p in pairs_to_judge(question, texts, golds, options) if p[:2] not in rows]
        if wanted:
            found = yield from entail(wanted)
            rows.update(
                ((pair.premise, pair.hypothesis), row) for pair, row in zip(wanted, found, strict=True)
            )
        verdicts = Verdicts(rows, options)
        scored = [score(row, golds, verdicts, options, weights, stream) for stream, row in enumerate(samples)]
        drawn = _drawn(scored, n, repeated, options)
        if drawn is None or drawn.reached or n == options.n_samples:
            break
        repeated += _tokens(samples[:2])
    if truncated := sum(one.belief.truncated for one in scored):
        yield from emit(
            "seper.truncated",
            warning=True,
            question=question,
            truncated=truncated,
            samples=sum(len(one.belief.answers) for one in scored),
            max_tokens=options.max_tokens,
        )
    return _Measured(scored, len(rows), weights, calls, drawn)


def steps_of(options: SePerOptions) -> Iterator[int]:
    """Samples to have after each step: all at once, or the first few and then twice as many each time.

    A step asks for all samples from the first one on: that they are the same ones as before is what a
    reader promises of one seed, and none promises to go on from the n-th.
    """
    most = options.n_samples
    n = most if options.adaptive is None else options.adaptive.first
    while n < most:
        yield n
        n *= 2
    yield most


def _drawn(scored: Sequence[Scored], n: int, repeated: int, options: SePerOptions) -> Drawn | None:
    if options.adaptive is None:
        return None
    before, after = scored[:2]
    interval = cautious_interval(before, after)
    return Drawn(n, options.n_samples, options.adaptive.width, interval, repeated)


def _tokens(samples: Sequence[Sequence[Generation]]) -> int:
    return sum(row[0].prompt_tokens + sum(one.completion_tokens for one in row) for row in samples)


def _result(question: str, golds: Sequence[str], measured: _Measured, options: SePerOptions) -> SePerResult:
    before, after, *_ = measured.scored
    return SePerResult(
        question=question,
        golds=tuple(golds),
        before=before.belief,
        after=after.belief,
        delta=after.belief.seper - before.belief.seper,
        interval=interval_of(after.resamples - before.resamples),
        weights=measured.weights,
        kernel=options.kernel,
        calls=measured.calls,
        judged=measured.judged,
        drawn=measured.drawn,
    )
