"""What can be known of an answer before anyone says whether it is right: uncertainties and features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from surerag.decisions.features import score_features
from surerag.drivers import run
from surerag.measures import (
    discrete_semantic_entropy,
    energy,
    length_normalized_entropy,
    lowest_probability,
    margin_bounds,
    perplexity,
)
from surerag.methods.lazy_rag.gate import FIRST_TOKENS, LENGTH
from surerag.methods.meanings import meanings_of
from surerag.services import Services
from surerag.types import Generation, TokenTrace

UNCERTAINTIES = (
    "perplexity",
    "token_entropy",
    "mean_entropy_8",
    "largest_entropy",
    "want_of_margin_8",
    "lowest_probability",
    "energy",
    "disagreement",
    "ln_entropy",
)
"""Signals that are larger for a less certain reader; the others are features of another kind."""


def signals_of(
    text: str,
    trace: TokenTrace | None,
    clusters: Sequence[int] = (),
    sampled: Sequence[TokenTrace] = (),
    scores: Sequence[float] = (),
) -> Mapping[str, float]:
    """Return the signals of an answer by name: those that its reader's report allows.

    Of an answer without a word, uncertainties are infinite, as for the gates.

    Args:
        text: The answer.
        trace: Of its tokens. ``perplexity``, ``lowest_probability`` and ``want_of_margin_8`` need
            log-probabilities; ``token_entropy`` (mean over all steps), ``mean_entropy_8`` (of the first 8, as
            L-RAG's gate reads them) and ``largest_entropy`` entropies, of an interval its middle; ``energy``
            log-sum-exps.
        clusters: Meaning cluster of each sampled answer: ``disagreement``, in nats.
        sampled: Traces of the sampled answers: ``ln_entropy``.
        scores: Of the retrieved passages or summaries, best first: ``top_score``, and ``score_gap`` between
            the first two.

    Example:
        >>> found = signals_of("in Velm", TokenTrace(("in", " Velm"), (-0.1, -0.3)), clusters=[0, 0, 1])
        >>> {name: round(value, 3) for name, value in found.items()}
        {'length': 2.0, 'length_8': 2.0, 'perplexity': 1.221, 'lowest_probability': 0.3, \
'want_of_margin_8': 0.266, 'disagreement': 0.637}
    """
    empty = not text.strip()
    found: dict[str, float] = {"length": float(len(trace)) if trace is not None else float(len(text.split()))}
    if trace is not None:
        found[LENGTH] = float(min(len(trace), FIRST_TOKENS))
        silent = empty or len(trace) == 0
        found.update(dict.fromkeys(_names(trace), math.inf) if silent else _of_tokens(trace))
    if clusters:
        found["disagreement"] = math.inf if empty else discrete_semantic_entropy(clusters)
    spoken = [one.logprobs for one in sampled if len(one)]
    if sampled:
        found["ln_entropy"] = math.inf if empty or not spoken else length_normalized_entropy(spoken)
    return {**found, **score_features(scores)}


def meaning_clusters(samples: Sequence[Generation]) -> tuple[int, ...]:
    """Group sampled answers by meaning, as their words tell it."""
    return run(meanings_of("", samples, "words"), Services()).clusters if samples else ()


def _names(trace: TokenTrace) -> list[str]:
    names = ["perplexity", "lowest_probability", "want_of_margin_8"]
    if trace.entropy is not None:
        names += ["token_entropy", "mean_entropy_8", "largest_entropy"]
    return names + (["energy"] if trace.logsumexp is not None else [])


def _of_tokens(trace: TokenTrace) -> dict[str, float]:
    bounds = np.array([margin_bounds(value) for value in trace.logprobs[:FIRST_TOKENS]])
    found = {
        "perplexity": perplexity(trace.logprobs),
        "lowest_probability": lowest_probability(trace.logprobs),
        "want_of_margin_8": float(bounds.mean()),
    }
    if trace.entropy is not None:
        steps = np.asarray(trace.entropy.middle)
        found["token_entropy"] = float(steps.mean())
        found["mean_entropy_8"] = float(steps[:FIRST_TOKENS].mean())
        found["largest_entropy"] = float(steps.max())
    if trace.logsumexp is not None:
        found["energy"] = energy(trace.logsumexp)
    return found
