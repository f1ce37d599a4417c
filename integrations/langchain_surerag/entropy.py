"""The entropy of a message, by the log-probabilities that came with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from langchain_core.messages import AIMessage

from langchain_surerag.families import OPENAI, Family
from surerag.errors import ConfigurationError, InputError, LogprobsError
from surerag.readers.logprobs import ANY_VOCABULARY, entries_of, token_trace
from surerag.readers.thinking import split_thoughts


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
    vocabulary_size: int = ANY_VOCABULARY,
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
    if not isinstance(message, AIMessage):
        raise InputError(
            f"expected a model's message, got {type(message).__name__}", hint="pass an AIMessage"
        )
    entries = entries_of(family.logprobs(message.response_metadata)) if family.logprobs else []
    if not entries:
        raise LogprobsError(
            f"this message has no log-probabilities; its metadata are {sorted(message.response_metadata)}",
            hint="request them: model.bind(logprobs=True, top_logprobs=20)",
        )
    thoughts, answer = split_thoughts(str(message.text))
    trace = token_trace(
        entries,
        answer,
        top_logprobs=max(min(len(entry.get("top_logprobs") or ()) for entry in entries), 1),
        vocabulary_size=vocabulary_size,
        thought=bool(thoughts),
    )
    if trace.entropy is None or not len(trace):
        raise InputError("this message has no text", hint="pass a message that answers in words")
    lower, middle, upper = (
        np.asarray(column[:n_tokens], dtype=np.float64)
        for column in (trace.entropy.lower, trace.entropy.middle, trace.entropy.upper)
    )
    return MessageEntropy(
        float(middle.mean()), float(lower.mean()), float(upper.mean()), float(middle.max()), len(middle)
    )
