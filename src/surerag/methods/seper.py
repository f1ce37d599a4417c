"""SePer: what was retrieval worth to this reader?

Dai et al., "SePer: Measure Retrieval Utility Through the Lens of Semantic Perplexity Reduction",
Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.clustering import meaning_clusters
from surerag.effects import Program, emit, entail, generate
from surerag.errors import InputError
from surerag.measures import answer_weights, seper_hard, seper_soft
from surerag.measures.seper import Weights
from surerag.methods.seper_types import (
    Belief,
    Interval,
    PassageUtility,
    SampledAnswer,
    SePerResult,
    SePerSettings,
    UtilityResult,
)
from surerag.prompts import format_passages
from surerag.types import Generation, Pair, Passage

_CONTRADICTION, _NEUTRAL, _ENTAILMENT = range(3)
_RESAMPLES = 500


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

    The contexts share their beginnings, which a local reader reads once.

    Raises:
        InputError: If there is no question, gold answer or passage.
    """
    each = range(len(passages))
    left_out = [[*passages[:at], *passages[at + 1 :]] for at in each]
    contexts = [[], passages, *([passage] for passage in passages), *left_out]
    measured = yield from _beliefs(question, golds, contexts, settings)
    before, after, *single = (belief.seper for belief in measured.beliefs)
    alone, without = single[: len(passages)], single[len(passages) :]
    return UtilityResult(
        _result(question, golds, measured, settings),
        tuple(PassageUtility(passages[at], alone[at] - before, after - without[at]) for at in each),
    )


class _Measured(NamedTuple):
    """Beliefs in all contexts, and their resamples [contexts, resamples]."""

    beliefs: list[Belief]
    resamples: list[NDArray[np.float64]]
    judged: int
    weights: Weights


def _beliefs(
    question: str, golds: Sequence[str], contexts: Sequence[Sequence[Passage]], settings: SePerSettings
) -> Program[_Measured]:
    """Belief in the gold answers in several contexts; the first one is empty."""
    if not question.strip():
        raise InputError("the question is empty", hint="ask something")
    if not golds or not all(gold.strip() for gold in golds):
        raise InputError("SePer measures belief in gold answers, and one is missing or empty")
    if not contexts[1]:
        raise InputError("there is no passage to measure", hint="give at least one retrieved passage")
    prompts = [_prompt(question, passages, settings) for passages in contexts]
    samples = yield from generate(prompts, settings.sampling)
    weights = settings.weights
    if weights != "frequency" and any(answer.trace is None for row in samples for answer in row):
        weights = "frequency"
        yield from emit("seper.frequency_weights", warning=True, question=question)
    texts = list(dict.fromkeys(answer.text for row in samples for answer in row))
    wanted = _pairs(question if settings.question_in_entailment else "", texts, golds, settings)
    rows = yield from entail(wanted)
    verdicts = _Verdicts(dict(zip(((p.premise, p.hypothesis) for p in wanted), rows, strict=True)), settings)
    settings = replace(settings, weights=weights)
    believed = [_belief(row, golds, verdicts, settings, stream) for stream, row in enumerate(samples)]
    beliefs, resamples = zip(*believed, strict=True)
    return _Measured(list(beliefs), list(resamples), len(wanted), weights)


def _prompt(question: str, passages: Sequence[Passage], settings: SePerSettings) -> str:
    if not passages:
        return settings.prompts.closed_book.render(question=question)
    shown = format_passages(passage.text for passage in passages)
    return settings.prompts.from_passages.render(passages=shown, question=question)


def _pairs(question: str, texts: Sequence[str], golds: Sequence[str], settings: SePerSettings) -> list[Pair]:
    """List every pair that will be looked up; equal and empty statements need no judge."""
    answers = [text for text in texts if text]
    wanted = [(text, gold) for text in answers for gold in golds]
    if settings.kernel == "hard":
        wanted += [(a, b) for at, a in enumerate(answers) for b in answers[at + 1 :]]
    if settings.kernel == "hard" or settings.direction == "both":
        wanted += [(b, a) for a, b in wanted]
    return [Pair(a, b, question) for a, b in dict.fromkeys(wanted) if a != b]


class _Verdicts:
    """What the entailer said, as the settings read it."""

    def __init__(self, rows: Mapping[tuple[str, str], NDArray[np.float64]], settings: SePerSettings) -> None:
        self._rows = rows
        self._settings = settings

    def degree(self, answer: str, gold: str) -> float:
        """Degree to which an answer means a gold answer."""
        if not answer or answer == gold:
            return float(answer == gold)
        degrees = [self._rows[answer, gold][_ENTAILMENT]]
        if self._settings.direction == "both":
            degrees.append(self._rows[gold, answer][_ENTAILMENT])
        return float(max(degrees))

    def equivalent(self, first: str, second: str) -> bool:
        """Whether two answers entail each other."""
        if first == second or not first or not second:
            return first == second
        return all(self._label(*pair) == _ENTAILMENT for pair in ((first, second), (second, first)))

    def matches(self, answer: str, gold: str) -> bool:
        """Whether an answer means a gold answer, loosely or strictly."""
        if self._settings.match == "strict" or not answer or answer == gold:
            return self.equivalent(answer, gold)
        labels = {self._label(answer, gold), self._label(gold, answer)}
        return _CONTRADICTION not in labels and labels != {_NEUTRAL}

    def _label(self, premise: str, hypothesis: str) -> int:
        row = self._rows[premise, hypothesis]
        if self._settings.threshold is None:
            return int(row.argmax())
        if row[_ENTAILMENT] >= self._settings.threshold:
            return _ENTAILMENT
        return int(row[:_ENTAILMENT].argmax())


def _belief(
    samples: Sequence[Generation],
    golds: Sequence[str],
    verdicts: _Verdicts,
    settings: SePerSettings,
    stream: int,
) -> tuple[Belief, NDArray[np.float64]]:
    """Belief in one context (Algorithm 1, lines 2 and 3), and its bootstrap resamples."""
    texts = [sample.text for sample in samples]
    logs = [_log_likelihood(sample, settings) for sample in samples]
    degrees = np.array([[verdicts.degree(text, gold) for gold in golds] for text in texts])
    weights = _weights(texts, logs, settings)
    clusters, kernel = None, degrees
    if settings.kernel == "hard":
        clusters = meaning_clusters([[verdicts.equivalent(a, b) for b in texts] for a in texts])
        firsts = [texts[int(np.flatnonzero(clusters == label)[0])] for label in range(clusters.max() + 1)]
        matches = np.array(
            [[verdicts.matches(first, gold) for gold in golds] for first in firsts], dtype=float
        )
        kernel = matches[clusters]
    resamples = _resampled(texts, logs, kernel, settings, stream)
    belief = Belief(
        seper=(
            seper_soft(weights, degrees, settings.golds)
            if clusters is None
            else seper_hard(weights, clusters, matches, settings.golds)
        ),
        interval=_interval(resamples),
        answers=tuple(
            SampledAnswer(
                text=texts[i],
                log_likelihood=logs[i],
                weight=float(weights[i]),
                cluster=None if clusters is None else int(clusters[i]),
                entailment=tuple(degrees[i].tolist()),
            )
            for i in range(len(samples))
        ),
        prompt_tokens=samples[0].prompt_tokens,
        completion_tokens=sum(sample.completion_tokens for sample in samples),
    )
    return belief, resamples


def _result(question: str, golds: Sequence[str], measured: _Measured, settings: SePerSettings) -> SePerResult:
    before, after, *_ = measured.beliefs
    return SePerResult(
        question=question,
        golds=tuple(golds),
        before=before,
        after=after,
        delta=after.seper - before.seper,
        interval=_interval(measured.resamples[1] - measured.resamples[0]),
        weights=measured.weights,
        kernel=settings.kernel,
        calls=len(measured.beliefs),
        judged=measured.judged,
    )


def _log_likelihood(sample: Generation, settings: SePerSettings) -> float | None:
    if sample.trace is None:
        return None
    logs = np.asarray(sample.trace.logprobs)
    if len(logs) == 0:
        return 0.0
    return float(logs.mean() if settings.likelihood == "mean" else logs.sum())


def _weights(
    texts: Sequence[str], logs: Sequence[float | None], settings: SePerSettings
) -> NDArray[np.float64]:
    if settings.weights == "frequency":
        return answer_weights(texts, None, "frequency")
    return answer_weights(texts, np.array(logs, dtype=np.float64), settings.weights)


def _resampled(
    texts: Sequence[str],
    logs: Sequence[float | None],
    kernel: NDArray[np.float64],
    settings: SePerSettings,
    stream: int,
) -> NDArray[np.float64]:
    """SePer of bootstrap resamples of the samples, all at once, shape [resamples].

    A resample changes only how often each sample is there; under distinct weights, whether it is.
    """
    n = len(texts)
    rng = np.random.default_rng((settings.sampling.seed, stream))
    counts = rng.multinomial(n, np.full(n, 1 / n), size=_RESAMPLES).astype(np.float64)
    if settings.weights == "distinct":
        first = {text: at for at, text in reversed(list(enumerate(texts)))}
        counts = np.stack(
            [counts[:, [text == other for other in texts]].any(axis=1) for text in first], axis=1
        ).astype(np.float64)
        logs, kernel = [logs[at] for at in first.values()], kernel[list(first.values())]
    if settings.weights != "frequency":
        values = np.array(logs, dtype=np.float64)
        counts = counts * np.exp(values - values.max())
    shares = counts / counts.sum(axis=1, keepdims=True)
    if settings.golds == "any":
        kernel = kernel.max(axis=1, keepdims=True)
    over_golds = np.mean if settings.golds == "mean" else np.max
    beliefs: NDArray[np.float64] = over_golds(shares @ kernel, axis=1)
    return beliefs


def _interval(resamples: NDArray[np.float64]) -> Interval:
    lower, upper = np.quantile(resamples, [0.025, 0.975])
    return Interval(float(lower), float(upper))
