"""From samples and verdicts to a belief: the arithmetic of SePer's Algorithm 1, lines 2 and 3."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.clustering import meaning_clusters
from surerag.measures import answer_weights, seper_hard, seper_soft
from surerag.measures.seper import Golds, Weights
from surerag.messages import Generation, Pair
from surerag.methods.seper.options import Likelihood, SePerOptions
from surerag.methods.seper.result import Belief, Interval, SampledAnswer

_CONTRADICTION, _NEUTRAL, _ENTAILMENT = range(3)
_RESAMPLES = 500
_QUANTILE = 1.959964
"""Of the normal law, for a two-sided interval of 95 %."""


class Scored(NamedTuple):
    """Belief in one context.

    Attributes:
        belief: With every sample.
        resamples: SePer of bootstrap resamples of the samples, shape [resamples].
        share: SePer if every sample counted the same: what the analytic interval is about.
    """

    belief: Belief
    resamples: NDArray[np.float64]
    share: float


class Verdicts:
    """What the entailer said, as the options read it.

    Args:
        rows: Probabilities of contradiction, neutral and entailment by (premise, hypothesis).
        options: Direction, match and entailment threshold.
    """

    def __init__(self, rows: Mapping[tuple[str, str], NDArray[np.float64]], options: SePerOptions) -> None:
        self._rows = rows
        self._options = options
        self._rules = options.rules

    def degree(self, answer: str, gold: str) -> float:
        """Degree to which an answer means a gold answer."""
        if not answer or answer == gold:
            return float(answer == gold)
        degrees = [self._rows[answer, gold][_ENTAILMENT]]
        if self._rules.direction == "both":
            degrees.append(self._rows[gold, answer][_ENTAILMENT])
        return float(max(degrees))

    def equivalent(self, first: str, second: str) -> bool:
        """Whether two answers entail each other; the second verdict is read only if the first says so."""
        if first == second or not first or not second:
            return first == second
        return all(self.entails(*pair) for pair in ((first, second), (second, first)))

    def entails(self, premise: str, hypothesis: str) -> bool:
        """Whether one statement entails another."""
        return self._label(premise, hypothesis) == _ENTAILMENT

    def matches(self, answer: str, gold: str) -> bool:
        """Whether an answer means a gold answer, loosely or strictly."""
        if self._rules.match == "strict" or not answer or answer == gold:
            return self.equivalent(answer, gold)
        labels = {self._label(answer, gold), self._label(gold, answer)}
        return _CONTRADICTION not in labels and labels != {_NEUTRAL}

    def _label(self, premise: str, hypothesis: str) -> int:
        row = self._rows[premise, hypothesis]
        if self._options.entailment_threshold is None:
            return int(row.argmax())
        if row[_ENTAILMENT] >= self._options.entailment_threshold:
            return _ENTAILMENT
        return int(row[:_ENTAILMENT].argmax())


def pairs_to_judge(
    question: str, contexts: Sequence[Sequence[str]], golds: Sequence[str], options: SePerOptions
) -> list[Pair]:
    """List every pair that will be looked up, once; equal and empty statements need no judge.

    Args:
        question: As asked.
        contexts: The answers in each context; clusters are formed within one.
        golds: The gold answers.
        options: What decides which pairs are needed.
    """
    rules = options.rules
    rows = [list(dict.fromkeys(text for text in texts if text)) for texts in contexts]
    answers = dict.fromkeys(text for texts in rows for text in texts)
    wanted = [(text, gold) for text in answers for gold in golds]
    if options.kernel == "hard":
        wanted += [pair for texts in rows for pair in combinations(texts, 2)]
    if options.kernel == "hard" or rules.direction == "both":
        wanted += [(b, a) for a, b in wanted]
    shown = question if rules.question_in_entailment else ""
    return [Pair(a, b, shown) for a, b in dict.fromkeys(wanted) if a != b]


def score(
    samples: Sequence[Generation],
    golds: Sequence[str],
    verdicts: Verdicts,
    options: SePerOptions,
    weights: Weights,
    stream: int,
) -> Scored:
    """Return the belief in one context, and its bootstrap resamples.

    Args:
        samples: Answers in this context.
        golds: The gold answers.
        verdicts: On every pair of :func:`pairs_to_judge`.
        options: What steers the method.
        weights: The weighting; the option's, unless there are no log-probabilities.
        stream: Number of the context, so that no two contexts are resampled alike.
    """
    rules = options.rules
    texts = [sample.text for sample in samples]
    logs = [log_likelihood(sample, rules.likelihood) for sample in samples]
    degrees = np.array([[verdicts.degree(text, gold) for gold in golds] for text in texts])
    shares = _weights(texts, logs, weights)
    clusters, kernel = None, degrees
    if options.kernel == "hard":
        linkage = rules.clusters
        clusters = meaning_clusters([[verdicts.equivalent(a, b) for b in texts] for a in texts], linkage)
        members = [np.flatnonzero(clusters == label) for label in range(clusters.max() + 1)]
        # The first member stands for its cluster, or all of them have to match.
        judged = [some[:1] if linkage == "first" else some for some in members]
        matches = np.array(
            [[all(verdicts.matches(texts[at], gold) for at in some) for gold in golds] for some in judged],
            dtype=float,
        )
        kernel = matches[clusters]
    rng = np.random.default_rng((options.seed, stream))
    n = len(texts)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    resamples = beliefs_of_counts(counts, texts, logs, kernel, weights, rules.golds)
    belief = Belief(
        seper=(
            seper_soft(shares, degrees, rules.golds)
            if clusters is None
            else seper_hard(shares, clusters, matches, rules.golds)
        ),
        interval=interval_of(resamples),
        answers=tuple(
            SampledAnswer(
                text=texts[i],
                log_likelihood=logs[i],
                weight=float(shares[i]),
                cluster=None if clusters is None else int(clusters[i]),
                entailment=tuple(degrees[i].tolist()),
            )
            for i in range(n)
        ),
        prompt_tokens=samples[0].prompt_tokens,
        completion_tokens=sum(sample.completion_tokens for sample in samples),
        truncated=sum(sample.finish == "length" for sample in samples),
    )
    return Scored(belief, resamples, seper_soft(np.full(n, 1 / n), kernel, rules.golds))


def log_likelihood(sample: Generation, likelihood: Likelihood) -> float | None:
    """Return an answer's log-likelihood: the mean or the sum over its tokens; 0 if it is empty.

    None where the reader has no log-probabilities.
    """
    if sample.trace is None:
        return None
    logs = np.asarray(sample.trace.logprobs)
    if len(logs) == 0:
        return 0.0
    return float(logs.mean() if likelihood == "mean" else logs.sum())


def beliefs_of_counts(
    counts: NDArray[np.int64],
    texts: Sequence[str],
    logs: Sequence[float | None],
    kernel: NDArray[np.float64],
    weights: Weights,
    golds: Golds,
) -> NDArray[np.float64]:
    """SePer of many resamples of one context's samples, all at once.

    A resample changes only how often each sample is there; under distinct weights, whether it is.

    Args:
        counts: How often each sample is in each resample, shape [resamples, N].
        texts: The samples.
        logs: Log-likelihood of each; not needed for ``"frequency"``.
        kernel: How far each sample means each gold answer, shape [N, golds].
        weights: See :func:`surerag.measures.answer_weights`.
        golds: See :func:`surerag.measures.seper_soft`.

    Returns:
        Beliefs, shape [resamples].
    """
    present = counts.astype(np.float64)
    if weights in ("distinct", "probability"):
        first = {text: at for at, text in reversed(list(enumerate(texts)))}
        present = np.stack(
            [present[:, [text == other for other in texts]].any(axis=1) for text in first], axis=1
        ).astype(np.float64)
        logs, kernel = [logs[at] for at in first.values()], kernel[list(first.values())]
    if weights != "frequency":
        values = np.array(logs, dtype=np.float64)
        present = present * np.exp(values if weights == "probability" else values - values.max())
    shares = present if weights == "probability" else present / present.sum(axis=1, keepdims=True)
    if golds == "any":
        kernel = kernel.max(axis=1, keepdims=True)
    over_golds = np.mean if golds == "mean" else np.max
    beliefs: NDArray[np.float64] = over_golds(shares @ kernel, axis=1)
    return beliefs


def interval_of(resamples: NDArray[np.float64]) -> Interval:
    """Return the middle 95 % of bootstrap resamples: ``np.quantile``, at a fifth of its time."""
    ordered = np.sort(resamples)
    return Interval(_quantile(ordered, 0.025), _quantile(ordered, 0.975))


def _quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Return a quantile of sorted values, interpolated from the nearer one."""
    place = (len(ordered) - 1) * share
    at = int(place)
    low, high = float(ordered[at]), float(ordered[min(at + 1, len(ordered) - 1)])
    part = place - at
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def cautious_interval(before: Scored, after: Scored) -> Interval:
    """Return an interval of ΔSePer that does not collapse where all samples agree; see ``Adaptive``."""
    found = interval_of(after.resamples - before.resamples)
    (low_0, high_0), (low_1, high_1) = (
        _wilson(scored.share, len(scored.belief.answers)) for scored in (before, after)
    )
    delta = after.share - before.share
    lower = delta - math.hypot(after.share - low_1, high_0 - before.share)
    upper = delta + math.hypot(high_1 - after.share, before.share - low_0)
    return Interval(min(found.lower, lower), max(found.upper, upper))


def _wilson(share: float, n: int) -> Interval:
    """Wilson's interval of a share; for a mean of values in [0, 1], which vary no more, it is cautious."""
    square = _QUANTILE**2
    centre = (share + square / (2 * n)) / (1 + square / n)
    reach = _QUANTILE / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return Interval(min(centre - reach, share), max(centre + reach, share))


def _weights(texts: Sequence[str], logs: Sequence[float | None], weights: Weights) -> NDArray[np.float64]:
    if weights == "frequency":
        return answer_weights(texts, None, "frequency")
    return answer_weights(texts, np.array(logs, dtype=np.float64), weights)
