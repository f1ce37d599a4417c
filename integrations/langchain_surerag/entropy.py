"""Log-probabilities in OpenAI's form, read from metadata: traces of tokens, and the entropy of a message."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from langchain_core.messages import AIMessage

from langchain_surerag.families import OPENAI, Family
from surerag.errors import ConfigurationError, InputError, LogprobsError
from surerag.measures import entropy_bounds
from surerag.messages import EntropyTrace, TokenTrace
from surerag.readers.thinking import answer_tokens, split_thoughts

VOCABULARY = 300_000
"""Tokens that a model can emit, where its vocabulary is unknown: no model has many more."""

ASK_HINT = "ask for them: model.bind(logprobs=True, top_logprobs=20)"


def trace_of(
    entries: Sequence[Any],
    answer: str,
    *,
    whole: bool = True,
    thought: bool = False,
    alternatives: bool = True,
    vocabulary_size: int = VOCABULARY,
) -> TokenTrace:
    """Return the trace of an answer's tokens, those of thoughts and of the end left out.

    Args:
        entries: ``{"token", "logprob", "top_logprobs": [{"token", "logprob"}, …]}`` for each token.
        answer: The answer's text, without thoughts.
        whole: Whether the answer is complete.
        thought: Whether the model is known to have thought first.
        alternatives: Whether the entropy is needed, which is bounded by the listed alternatives.
        vocabulary_size: Tokens that the model can emit.

    Raises:
        LogprobsError: If an entry is malformed, or the tokens do not spell the answer.
    """
    tokens = [_token(entry) for entry in entries]
    inside = answer_tokens(tokens, answer, whole=whole, thought=thought)
    chosen = [entries[place] for place in inside]
    logprobs = tuple(_logprob(entry) for entry in chosen)
    entropy = None
    if alternatives:
        bounds = [
            _bounds(entry, value, vocabulary_size) for entry, value in zip(chosen, logprobs, strict=True)
        ]
        entropy = EntropyTrace(
            tuple(low for low, _ in bounds), tuple(high for _, high in bounds), exact=False
        )
    return TokenTrace(tuple(str(entry.get("token", "")) for entry in chosen), logprobs, entropy)


def _token(entry: Any) -> str | bytes:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("token"), str):
        raise LogprobsError(f"an entry of the log-probabilities is {str(entry)[:120]!r}", hint=ASK_HINT)
    spelled = entry.get("bytes")
    return bytes(spelled) if isinstance(spelled, list) and spelled else entry["token"]


def _logprob(entry: Mapping[str, Any]) -> float:
    value = entry.get("logprob")
    if not isinstance(value, int | float) or not math.isfinite(value) or value > 1e-3:
        raise LogprobsError(
            f"the log-probability of the token {entry.get('token')!r} is {value!r}",
            hint="use a server that returns the log-probability of every sampled token",
        )
    return min(float(value), 0.0)


def _bounds(entry: Mapping[str, Any], sampled: float, vocabulary_size: int) -> tuple[float, float]:
    listed = entry.get("top_logprobs")
    if not isinstance(listed, Sequence) or not listed:
        raise LogprobsError(
            f"no alternatives are listed beside the token {entry.get('token')!r}", hint=ASK_HINT
        )
    values = [_logprob(other) for other in listed]
    outside = entry.get("token") not in [other.get("token") for other in listed]
    try:
        return entropy_bounds(values, vocabulary_size, sampled_logprob=sampled if outside else None)
    except ValueError as error:
        raise LogprobsError(f"the listed log-probabilities are no distribution: {error}") from error


@dataclass(frozen=True, slots=True)
class MessageEntropy:
    """Entropy of the tokens of a message, in nats.

    Attributes:
        mean: Over all tokens that were read; the middle of the interval.
        lower: Smallest value that the mean can have.
        upper: Largest value that the mean can have.
        largest: Of the least certain token.
        n_tokens: Tokens that were read.
    """

    mean: float
    lower: float
    upper: float
    largest: float
    n_tokens: int


def entropy_of(
    message: AIMessage,
    *,
    n_tokens: int | None = None,
    family: Family = OPENAI,
    vocabulary_size: int = VOCABULARY,
) -> MessageEntropy:
    """Return how uncertain a model was of what it wrote, by the log-probabilities in the message's metadata.

    Servers list the likeliest tokens alone: their entropy is an interval, whose middle is ``mean``. Thoughts
    before an answer are left out.

    Args:
        message: A model's message, whole.
        n_tokens: Read so many tokens from the beginning (L-RAG, Eq. 3); None reads all.
        family: Where the log-probabilities are; OpenAI's place by default.
        vocabulary_size: Tokens that the model can emit; bounds the entropy from above.

    Raises:
        InputError: If this is no model's message, or it has no text.
        LogprobsError: If it has no log-probabilities with alternatives.

    Example:
        >>> near = [{"token": "Velm", "logprob": -0.01}, {"token": "Tarn", "logprob": -4.6}]
        >>> message = AIMessage("Velm", response_metadata={
        ...     "logprobs": {"content": [{"token": "Velm", "logprob": -0.01, "top_logprobs": near}]}})
        >>> round(entropy_of(message, vocabulary_size=2).mean, 3)
        0.056
    """
    if n_tokens is not None and n_tokens < 1:
        raise ConfigurationError(f"n_tokens must be at least 1, got {n_tokens!r}")
    trace = trace_of_message(message, family=family, vocabulary_size=vocabulary_size)
    if trace.entropy is None or not len(trace):
        raise InputError("this message has no text", hint="pass a message that answers in words")
    lower, middle, upper = (
        np.asarray(column[:n_tokens], dtype=np.float64)
        for column in (trace.entropy.lower, trace.entropy.middle, trace.entropy.upper)
    )
    return MessageEntropy(
        float(middle.mean()), float(lower.mean()), float(upper.mean()), float(middle.max()), len(middle)
    )


def trace_of_message(
    message: AIMessage, *, family: Family = OPENAI, vocabulary_size: int = VOCABULARY
) -> TokenTrace:
    """Return the trace of a whole message.

    Raises:
        InputError: If this is no model's message.
        LogprobsError: If it has no log-probabilities.
    """
    if not isinstance(message, AIMessage):
        raise InputError(
            f"expected a model's message, got {type(message).__name__}", hint="pass an AIMessage"
        )
    entries = family.entries(message.response_metadata) if family.entries else None
    if not entries:
        raise LogprobsError(
            f"this message has no log-probabilities; its metadata are {sorted(message.response_metadata)}",
            hint=ASK_HINT,
        )
    thoughts, answer = split_thoughts(str(message.text))
    return trace_of(entries, answer, thought=bool(thoughts), vocabulary_size=vocabulary_size)
