"""Uncertainty of an answer, by the metrics of DynQR's Table 5; larger is less certain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from surerag.decisions.features import score_features
from surerag.errors import LogprobsError
from surerag.measures import (
    discrete_semantic_entropy,
    energy,
    length_normalized_entropy,
    lowest_probability,
    perplexity,
)
from surerag.messages import Generation, Passage, TokenTrace, TraceKind
from surerag.methods.functions import name_of, number_from

MetricName = Literal[
    "perplexity", "ln_entropy", "token_entropy", "lowest_probability", "energy", "disagreement"
]
Metric = MetricName | Callable[[Generation], float]
"""``"perplexity"`` (about 1 to 2, the paper's choice); ``"ln_entropy"``, length-normalised entropy over
sampled answers (nats a token); ``"token_entropy"``, mean entropy of the answer's steps (nats; the middle of
each interval where only top log-probabilities are known); ``"lowest_probability"``, −log of the least likely
token; ``"energy"``, −logsumexp of the raw logits, averaged over steps (negative as a rule). Not of the paper:
``"disagreement"`` (nats), the discrete semantic entropy of sampled answers, without log-probabilities. Or a
function of your own on a generation, larger for a less certain one, which may combine several metrics."""

METRICS: tuple[MetricName, ...] = get_args(MetricName)

SAMPLED: tuple[MetricName, ...] = ("ln_entropy", "disagreement")
"""Metrics of sampled answers, which cost as many more."""


FEATURES: tuple[MetricName, ...] = ("perplexity", "token_entropy", "lowest_probability", "energy")
"""Metrics that an answer's own trace tells, at no further call: what a benefit model may read."""


def features_of(answer: Generation, passages: Sequence[Passage] = ()) -> dict[str, float]:
    """Return what is at hand once a question is answered: a benefit model may read it.

    Args:
        answer: The first answer.
        passages: What it was answered from, best first.

    Returns:
        Every uncertainty that the answer's trace tells, its length in ``words``, and, where the retriever
        gives scores, ``top_score`` and ``score_gap``.

    Example:
        >>> from surerag.readers.fake import reply
        >>> found = features_of(reply("In Velm", logprobs=-0.1), [Passage("Velm.", score=0.5)])
        >>> found["words"], found["top_score"]
        (2.0, 0.5)
    """
    found = {"words": float(len(answer.text.split()))}
    found.update(score_features([passage.score for passage in passages]))
    for name in FEATURES:
        try:
            found[name] = uncertainty_of(name, answer)
        except LogprobsError:
            # A reader that cannot tell it leaves it out; a model that was fitted to it is refused at once.
            continue
    return found


def metric_name(metric: Metric) -> str:
    """Return the name of a metric; a function goes by its own name.

    Example:
        >>> metric_name("energy"), metric_name(len)
        ('energy', 'len')
    """
    return metric if isinstance(metric, str) else name_of(metric)


def trace_of(metric: Metric) -> TraceKind:
    """Return what a metric reads of an answer's trace; a function of one's own may read all of it.

    Example:
        >>> trace_of("perplexity"), trace_of("token_entropy"), trace_of("disagreement")
        ('logprobs', 'entropy', 'none')
    """
    if metric == "disagreement":
        return "none"
    return "logprobs" if metric in ("perplexity", "ln_entropy", "lowest_probability") else "entropy"


def uncertainty_of(
    metric: Metric,
    answer: Generation,
    samples: Sequence[Generation] = (),
    clusters: Sequence[int] = (),
) -> float:
    """Return how uncertain a reader is of its answer.

    An answer without a word tells nothing, whatever the metric: it is infinitely uncertain.

    Args:
        metric: Which uncertainty.
        answer: The answer.
        samples: Sampled answers to the same prompt, for ``"ln_entropy"``; those without a word say nothing of
            any token, and are left out.
        clusters: Meaning cluster of each sampled answer, for ``"disagreement"``.

    Raises:
        LogprobsError: If the generations lack what the metric needs.
        ConfigurationError: If a function returns something that is not a number.

    Example:
        >>> from surerag.readers.fake import reply
        >>> round(uncertainty_of("perplexity", reply("In Velm", logprobs=[-0.1, -0.3])), 4)
        1.2214
        >>> uncertainty_of("perplexity", reply(""))
        inf
    """
    if not answer.text.strip():
        return math.inf
    if callable(metric):
        return number_from(metric(answer), f"the metric {metric_name(metric)}")
    if metric == "disagreement":
        return discrete_semantic_entropy(clusters)
    if metric == "ln_entropy":
        spoken = [trace.logprobs for trace in map(_trace, samples) if len(trace)]
        return length_normalized_entropy(spoken) if spoken else math.inf
    trace = _trace(answer)
    if len(trace) == 0:
        return math.inf
    match metric:
        case "perplexity":
            return perplexity(trace.logprobs)
        case "lowest_probability":
            return lowest_probability(trace.logprobs)
        case "token_entropy":
            if trace.entropy is None:
                raise _lacking("entropies", "a local model, or a server that returns top log-probabilities")
            return float(np.mean(trace.entropy.middle))
        case "energy":
            if trace.logsumexp is None:
                raise _lacking("log-sum-exps of logits", "a local model (TransformersReader)")
            return energy(trace.logsumexp)


def _trace(generation: Generation) -> TokenTrace:
    if generation.trace is None:
        raise _lacking("log-probabilities", "a reader that promises them, or a metric of your own on texts")
    return generation.trace


def _lacking(what: str, use: str) -> LogprobsError:
    return LogprobsError(f"an answer came back without {what}", hint=f"use {use}")
