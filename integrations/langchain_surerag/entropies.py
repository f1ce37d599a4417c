"""How uncertain a model was of a message that it wrote, read from the log-probabilities that came with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration

from langchain_surerag.dialects import Dialect, DialectOptions, dialect_of
from langchain_surerag.dialects.openai import OpenAIChatDialect, ResponsesDialect
from surerag.errors import CapabilityError, ConfigurationError, InputError, LogprobsError
from surerag.messages import Generation
from surerag.readers.hosted.parse import Draft
from surerag.readers.hosted.parse import Wanted as Listed

VOCABULARY = 300_000

ASK_HINT = (
    "ask the model for them: ChatOpenAI(…, logprobs=True, top_logprobs=20), or model.bind(logprobs=True, "
    "top_logprobs=20); the middleware of langchain_surerag.agents does so by itself"
)


@dataclass(frozen=True, slots=True)
class MessageEntropy:
    """Entropy of the tokens of a message, in nats.

    Attributes:
        mean: Over all tokens that were looked at; the middle of the interval, where there is one.
        lower: Smallest value that the mean can have.
        upper: Largest value that the mean can have.
        first: Of the first token.
        largest: Of the least certain token.
        n_tokens: Tokens that were looked at.
    """

    mean: float
    lower: float
    upper: float
    first: float
    largest: float
    n_tokens: int

    def __float__(self) -> float:
        return self.mean


def entropy_of(
    message: AIMessage,
    *,
    n_tokens: int | None = None,
    model: BaseChatModel | None = None,
    vocabulary_size: int = VOCABULARY,
) -> MessageEntropy:
    """Return how uncertain a model was of what it wrote, by the log-probabilities in the message's metadata.

    Servers list the likeliest tokens alone: their entropy is an interval, whose middle is given (see
    :func:`surerag.measures.entropy_bounds`). Thoughts before an answer are left out.

    Args:
        message: A model's message, whole.
        n_tokens: Look at so many tokens from the beginning (L-RAG, Eq. 3), or at all.
        model: Who wrote it, where that is no model of OpenAI's kind.
        vocabulary_size: Tokens that the model can emit; bounds the entropy from above.

    Raises:
        InputError: If this is no model's message, or it has no text.
        LogprobsError: If it has no log-probabilities with alternatives.

    Example:
        >>> near = [{"token": "Velm", "logprob": -0.01}, {"token": "Tarn", "logprob": -4.6}]
        >>> said = AIMessage("Velm", response_metadata={
        ...     "logprobs": {"content": [{"token": "Velm", "logprob": -0.01, "top_logprobs": near}]}})
        >>> round(entropy_of(said, vocabulary_size=2).mean, 3)
        0.056
    """
    if n_tokens is not None and n_tokens < 1:
        raise ConfigurationError(f"n_tokens must be at least 1, got {n_tokens!r}")
    generation = generation_of(message, model=model, vocabulary_size=vocabulary_size)
    trace = generation.trace
    if trace is None or trace.entropy is None:
        raise LogprobsError("this message comes without alternatives to its tokens", hint=ASK_HINT)
    if not len(trace):
        raise InputError("this message says nothing", hint="give a message that has text")
    lower, middle, upper = (
        np.asarray(column[:n_tokens], dtype=np.float64)
        for column in (trace.entropy.lower, trace.entropy.middle, trace.entropy.upper)
    )
    return MessageEntropy(
        float(middle.mean()),
        float(lower.mean()),
        float(upper.mean()),
        float(middle[0]),
        float(middle.max()),
        len(middle),
    )


def generation_of(
    message: Any, *, model: BaseChatModel | None = None, vocabulary_size: int = VOCABULARY
) -> Generation:
    """Return a message as the answer of a reader, with its trace.

    Raises:
        InputError: If this is no model's message.
        LogprobsError: If it has no log-probabilities.
    """
    if not isinstance(message, AIMessage):
        raise InputError(
            f"expected a model's message, got {type(message).__name__}", hint="pass an AIMessage"
        )
    dialect = _dialect(model)
    choice = dialect.choice(ChatGeneration(message=message))
    if not choice.get("logprobs"):
        raise LogprobsError("this message comes without log-probabilities", hint=ASK_HINT)
    draft = Draft(Listed(True, _listed(choice["logprobs"]), vocabulary_size))
    draft.feed({**choice, "finish_reason": choice["finish_reason"] or "stop"})
    return draft.generation()


def asks_for_entropy(model: Any) -> dict[str, Any]:
    """Return the settings by which a chat model returns what :func:`entropy_of` reads.

    Raises:
        CapabilityError: If none are known.
    """
    dialect = dialect_of(model, DialectOptions())
    if not dialect.traces or isinstance(dialect, ResponsesDialect):
        raise CapabilityError(
            f"{type(model).__name__} gives no log-probabilities that reach its messages", hint=dialect.fix
        )
    return dialect.keywords({"logprobs": True, "top_logprobs": dialect.top_logprobs})


def _dialect(model: BaseChatModel | None) -> Dialect:
    if model is not None:
        return dialect_of(model, DialectOptions())
    # Reading, it asks nothing of a model.
    return OpenAIChatDialect(cast("Any", None), DialectOptions())


def _listed(logprobs: Any) -> int:
    """Return how many alternatives a token has, at least: fewer bound an entropy less."""
    entries = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(entries, list):
        return 0
    numbers = [len(entry.get("top_logprobs") or ()) if isinstance(entry, Mapping) else 0 for entry in entries]
    return int(min(numbers, default=0)) if math.prod(numbers) else 0
