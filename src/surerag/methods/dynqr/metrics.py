"""Uncertainty of an answer, by the metrics of DynQR's Table 5; larger is less certain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from surerag.errors import CapabilityError, LogprobsError
from surerag.measures import discrete_semantic_entropy, length_normalized_entropy, perplexity
from surerag.messages import Generation, TokenTrace, TraceKind
from surerag.methods.shared import checked_number, function_name, meaning_clusters
from surerag.readers.protocol import Reader

MetricName = Literal["perplexity", "token_entropy", "ln_entropy", "semantic_entropy"]
Metric = MetricName | Callable[[Generation], float]

SAMPLED: tuple[MetricName, ...] = ("ln_entropy", "semantic_entropy")
"""Metrics of sampled answers, each of which is a call of the reader."""


def metric_name(metric: Metric) -> str:
    """Return the name of a metric.

    Example:
        >>> metric_name("perplexity"), metric_name(len)
        ('perplexity', 'len')
    """
    return metric if isinstance(metric, str) else function_name(metric)


def trace_of(metric: Metric) -> TraceKind:
    """Return what a metric reads of an answer's trace; a function may read all of it.

    Example:
        >>> trace_of("perplexity"), trace_of("token_entropy"), trace_of("semantic_entropy")
        ('logprobs', 'entropy', 'none')
    """
    if metric == "semantic_entropy":
        return "none"
    return "logprobs" if metric in ("perplexity", "ln_entropy") else "entropy"


def check_metric(metric: Metric, reader: Reader) -> None:
    """Check that a reader reports what a metric needs.

    Raises:
        CapabilityError: If it does not.
    """
    can = reader.capabilities
    needed = "none" if callable(metric) else trace_of(metric)
    if needed == "none" or (can.logprobs if needed == "logprobs" else can.entropy is not None):
        return
    missing = "entropies" if needed == "entropy" else "log-probabilities"
    raise CapabilityError(
        f"the metric {metric_name(metric)} needs {missing}, and {reader.name} returns none",
        hint='pass metric="semantic_entropy", which needs text only, or a function of your own; or use a '
        "local model (TransformersReader), or a server that returns log-probabilities",
    )


def uncertainty_of(metric: Metric, answer: Generation, samples: Sequence[Generation] = ()) -> float:
    """Return how uncertain a reader is of its answer.

    Args:
        metric: ``"perplexity"`` (the paper's choice); ``"token_entropy"``, the mean entropy of the steps in
            nats (the middle of each interval); ``"ln_entropy"``, the length-normalised entropy over samples,
            in nats a token; ``"semantic_entropy"``, the discrete semantic entropy of samples, in nats; or a
            function of the answer.
        answer: The answer; an empty one is infinitely uncertain.
        samples: Sampled answers to the same prompt, for the last two.

    Raises:
        LogprobsError: If the generations lack what the metric needs.
        ConfigurationError: If a function returns something that is no number.

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
        return checked_number(metric(answer), f"the metric {metric_name(metric)}")
    if metric == "semantic_entropy":
        return discrete_semantic_entropy(meaning_clusters([sample.text for sample in samples]))
    if metric == "ln_entropy":
        logprobs = [trace.logprobs for trace in map(_trace, samples) if len(trace)]
        return length_normalized_entropy(logprobs) if logprobs else math.inf
    trace = _trace(answer)
    if len(trace) == 0:
        return math.inf
    if metric == "perplexity":
        return perplexity(trace.logprobs)
    if trace.entropy is None:
        raise LogprobsError(
            "an answer came back without entropies",
            hint="use a local model, or a server that returns top log-probabilities",
        )
    return float(np.mean(trace.entropy.middle))


def _trace(generation: Generation) -> TokenTrace:
    if generation.trace is None:
        raise LogprobsError(
            "an answer came back without log-probabilities",
            hint="use a reader that reports them, or metric='semantic_entropy'",
        )
    return generation.trace
