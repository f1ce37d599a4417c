"""The uncertainty of an answer by the metrics of DynQR's Table 5; larger means less certain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from surerag.errors import LogprobsError
from surerag.measures import (
    discrete_semantic_entropy,
    energy,
    length_normalized_entropy,
    lowest_probability,
    perplexity,
)
from surerag.messages import Generation, TraceKind
from surerag.methods.shared import Needs, check_reports, checked_number, meaning_clusters, trace_of
from surerag.readers.protocol import Reader

MetricName = Literal[
    "perplexity", "lowest_probability", "energy", "token_entropy", "ln_entropy", "semantic_entropy"
]
Metric = MetricName | Callable[[Generation], float]

_NEEDS: dict[MetricName, Needs] = {
    "perplexity": "logprobs",
    "lowest_probability": "logprobs",
    "energy": "energy",
    "token_entropy": "entropy",
    "ln_entropy": "logprobs",
    "semantic_entropy": "text",
}

_OF_LOGPROBS: dict[str, Callable[[Sequence[float]], float]] = {
    "perplexity": perplexity,
    "lowest_probability": lowest_probability,
}

_OF_TEXT = 'metric="semantic_entropy"'

SAMPLED: tuple[MetricName, ...] = ("ln_entropy", "semantic_entropy")
"""Names of the metrics that need sampled answers, and therefore more calls of the reader."""


def metric_name(metric: Metric) -> str:
    """Return the name of a metric; for a function, it is the function's name."""
    return metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)


def trace_kind(metric: Metric) -> TraceKind:
    """Return which trace a metric needs with the answer: log-probabilities only, or also token entropies.

    The metric ``"semantic_entropy"`` needs no trace. The trace is then optional; it is used only for the
    ``certainty`` of the result.
    """
    if callable(metric) or _NEEDS[metric] == "entropy":
        return "entropy"
    return "optional_entropy" if _NEEDS[metric] == "text" else "logprobs"


def check_metric(metric: Metric, reader: Reader) -> None:
    """Raise CapabilityError unless a reader reports what a metric needs, such as log-probabilities."""
    needs = "text" if callable(metric) else _NEEDS[metric]
    check_reports(reader, needs, f"the metric {metric_name(metric)}", _OF_TEXT, 'metric="perplexity"')


def _ln_entropy(samples: Sequence[Generation]) -> float:
    logprobs = [trace.logprobs for one in samples if len(trace := trace_of(one, _OF_TEXT))]
    return length_normalized_entropy(logprobs) if logprobs else math.inf


def uncertainty_of(metric: Metric, answer: Generation, samples: Sequence[Generation] = ()) -> float:
    """Return how uncertain a reader is of its answer (U of Eq. 3); infinity for an empty answer.

    Args:
        metric: ``"perplexity"`` (the paper's choice); ``"lowest_probability"``, −log of the probability of
            the least likely token, in nats; ``"energy"``, the mean of −logsumexp of the logits;
            ``"token_entropy"``, the tokens' mean entropy in nats (if only bounds are known, their middle);
            ``"ln_entropy"``, the length-normalised entropy of samples, in nats per token;
            ``"semantic_entropy"``, the discrete semantic entropy of samples, in nats; or a function of the
            answer.
        answer: The answer.
        samples: Sampled answers to the same prompt, for ``"ln_entropy"`` and ``"semantic_entropy"``.

    Raises:
        LogprobsError: If the answer or a sample lacks the log-probabilities or entropies for the metric.
        ConfigurationError: If the function does not return a number.

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
        return _ln_entropy(samples)
    trace = trace_of(answer, _OF_TEXT)
    if len(trace) == 0:
        return math.inf
    if metric in _OF_LOGPROBS:
        return _OF_LOGPROBS[metric](trace.logprobs)
    if metric == "energy" and trace.logsumexp is not None:
        return energy(trace.logsumexp)
    if metric == "token_entropy" and trace.entropy is not None:
        return float(np.mean(trace.entropy.middle))
    raise LogprobsError(
        f"an answer came back without the {'logits' if metric == 'energy' else 'entropies'} that the metric "
        f"{metric} needs",
        hint="use a local model, or metric='perplexity'",
    )
