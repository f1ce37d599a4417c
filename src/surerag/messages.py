"""Small immutable classes of the data that methods, drivers and services exchange."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Protocol, get_args

from surerag.errors import ConfigurationError, InputError, LogprobsError, check_kind

Role = Literal["system", "user", "assistant"]


class Message(NamedTuple):
    """One turn of a conversation."""

    role: Role
    content: str


Prompt = str | tuple[Message, ...]
"""A prompt: the text of one user turn, or a whole conversation."""


def as_messages(prompt: Prompt) -> tuple[Message, ...]:
    """Return a prompt as conversation turns; a string is one user turn.

    Example:
        >>> as_messages("Where?")
        (Message(role='user', content='Where?'),)
    """
    return (Message("user", prompt),) if isinstance(prompt, str) else prompt


class Template(Protocol):
    """A prompt with slots: :class:`surerag.prompts.PromptTemplate`, or a framework's equivalent."""

    @property
    def name(self) -> str:
        """Name of the prompt in ``get_prompts`` and ``update_prompts`` of the integrations."""

    @property
    def text(self) -> str:
        """The template's text."""

    def require(self, *slots: str) -> Template:
        """Return this template if it has exactly these slots, or raise PromptError."""

    def render(self, **values: str) -> Prompt:
        """Fill every slot, and mark lines of values that imitate the template (:mod:`surerag.framing`)."""


NO_SUMMARY = "no_summary"
"""Metadata key of a passage that stands for a document without a summary, among L-RAG's summaries."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that a retriever returns.

    Among L-RAG's summaries, a passage with the metadata key ``NO_SUMMARY`` represents a document that has no
    summary.

    Attributes:
        id: Identifier in the corpus; methods keep it.
        score: The retriever's score, if there is one.
        metadata: The source's metadata; methods never change it.
        embedding: Vector of the text if the retriever already has it; it is stored as a tuple.
        origin: The framework's own object (a node, a document). It is not compared and not serialised.

    Raises:
        InputError: If the text is not a string, or the metadata are not a mapping.
    """

    text: str
    id: str = ""
    score: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    embedding: Sequence[float] | None = field(default=None, repr=False)
    origin: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InputError(
                f"expected a string as the text of passage {self.id!r}, got {type(self.text).__name__}",
                hint="pass the text as a string, and leave out passages without a text",
            )
        if not isinstance(self.metadata, Mapping):
            raise InputError(
                f"expected a mapping as the metadata of passage {self.id!r}, got "
                f"{type(self.metadata).__name__}",
                hint="pass the metadata as a mapping, or leave out metadata=…",
            )
        if self.embedding is not None and not isinstance(self.embedding, tuple):
            object.__setattr__(self, "embedding", tuple(self.embedding))


class Pair(NamedTuple):
    """Two statements, or two answers to ``question``; an entailer judges if the first entails the second."""

    premise: str
    hypothesis: str
    question: str = ""


ANSWER_TOKENS = 256
"""Maximum length of an answer in tokens, if neither the user nor the model sets a limit."""

TraceKind = Literal[
    "none", "optional", "optional_entropy", "expected", "expected_entropy", "logprobs", "entropy"
]
"""What the trace of an answer contains: nothing, the log-probability of each token, or also the entropy of
each token. With ``optional…`` and ``expected…``, an answer without a trace is accepted. If a service refuses
to return log-probabilities, this is an error, except with ``optional…``."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings with which a model generates answers.

    Attributes:
        n: Number of independent samples for each prompt.
        temperature: Sampling temperature; 0 is greedy decoding.
        max_tokens: Maximum number of tokens for each sample; None leaves the length to the model.
        stop: Texts that end a generation; they are not part of the generated text.
        seed: Random seed; sample ``i`` of a prompt depends only on the prompt, this seed and ``i``.
        trace: What the reader must return with each answer: log-probabilities, also entropies, or ``"none"``;
            see :data:`TraceKind`. A reader may return more if this costs nothing.

    Raises:
        ConfigurationError: If a value is out of range.
    """

    n: int = 1
    temperature: float = 0.0
    max_tokens: int | None = 64
    stop: tuple[str, ...] = ()
    seed: int = 0
    trace: TraceKind = "entropy"

    @property
    def limit(self) -> int:
        """``max_tokens`` as a number; ``sys.maxsize`` if ``max_tokens`` is None."""
        return sys.maxsize if self.max_tokens is None else self.max_tokens

    @property
    def optional_trace(self) -> bool:
        """Whether an answer that comes without log-probabilities is accepted; otherwise it is an error."""
        return self.trace.startswith(("optional", "expected"))

    @property
    def refusable_trace(self) -> bool:
        """Whether to ask again without log-probabilities if a service refuses to return them."""
        return self.trace.startswith("optional")

    @property
    def lists_alternatives(self) -> bool:
        """Whether the likeliest alternatives to each token are needed, for the token's entropy."""
        return self.trace.endswith("entropy")

    def __post_init__(self) -> None:
        check_kind(Integral, "a whole number", n=self.n, max_tokens=self.limit, seed=self.seed)
        check_kind(Real, "a number", temperature=self.temperature)
        requirements = (
            ("trace", self.trace in get_args(TraceKind), ", ".join(get_args(TraceKind))),
            ("n", self.n >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < math.inf, "0 or more"),
            ("max_tokens", self.limit >= 1, "at least 1, or None"),
            (
                "stop",
                isinstance(self.stop, tuple) and all(isinstance(text, str) and text for text in self.stop),
                "a tuple of non-empty texts",
            ),
        )
        for name, valid, expected in requirements:
            if not valid:
                raise ConfigurationError(f"{name} must be {expected}, got {getattr(self, name)!r}")


ROUNDED_UP = 1e-3
"""Largest rounding error that is accepted in log-probabilities and entropies. A log-probability between 0 and
this number counts as 0; a larger log-probability is an error."""


@dataclass(frozen=True, slots=True)
class EntropyTrace:
    """Entropy of the next-token distribution at each step, in nats, as an interval.

    A full-vocabulary entropy is an interval of width zero; top-k log-probabilities give a wider interval.

    Attributes:
        lower: Smallest possible entropy, one value per step.
        upper: Largest possible entropy, one value per step.
        exact: Whether the full vocabulary was known, so that ``lower`` equals ``upper``.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    exact: bool

    @property
    def middle(self) -> tuple[float, ...]:
        """Middle of each step's interval; it is the entropy itself if the entropy is exact."""
        return tuple((low + high) / 2 for low, high in zip(self.lower, self.upper, strict=True))

    def check(self) -> None:
        """Raise LogprobsError if an entropy is negative, or ``lower`` is greater than ``upper``."""
        for low, high in zip(self.lower, self.upper, strict=True):
            if not -ROUNDED_UP <= low <= high + ROUNDED_UP:
                raise LogprobsError(
                    f"expected entropies in nats, 0 <= lower <= upper, got lower={low:g} and upper={high:g}",
                    hint="compute an entropy as -sum(p * ln p); lower is the smallest possible entropy",
                )


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """Log-probabilities and entropies of tokens that a model generated or scored.

    Attributes:
        tokens: Text of each token. The end token is not among them.
        logprobs: Natural log of the model's probability of each token, at temperature 1 and without top-k or
            top-p filters.
        entropy: Entropy at each step, if the reader knows it.
        logsumexp: Log-sum-exp of the raw logits at each step, for the measure ``energy``; only local readers
            know it.
        end_logprob: Natural log of the probability of the end token after these tokens. None if a limit or a
            stop text ended the answer, if the model only scored a given text, or if the server does not list
            the end token.

    Raises:
        LogprobsError: If a value is missing, not finite or impossible, or lengths differ.
    """

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    entropy: EntropyTrace | None = None
    logsumexp: tuple[float, ...] | None = None
    end_logprob: float | None = None

    def __post_init__(self) -> None:
        columns: list[tuple[float, ...]] = [self.logprobs]
        if self.entropy is not None:
            columns += [self.entropy.lower, self.entropy.upper]
        if self.logsumexp is not None:
            columns.append(self.logsumexp)
        for column in columns:
            if len(column) != len(self.tokens):
                raise LogprobsError(
                    f"expected {len(self.tokens)} values in a trace, one for each token, got {len(column)}",
                    hint="give every token its log-probability and its entropy",
                )
        if self.end_logprob is not None:
            columns.append((self.end_logprob,))
        for column in columns:
            if not all(isinstance(value, float | int) and math.isfinite(value) for value in column):
                raise LogprobsError(
                    f"expected finite numbers in a trace, got {column!r}",
                    hint="use a server or model that returns the log-probability of every sampled token",
                )
        largest = max(self.logprobs + (() if self.end_logprob is None else (self.end_logprob,)), default=0.0)
        if largest > ROUNDED_UP:
            raise LogprobsError(
                f"expected natural logarithms of probabilities in a trace, got {largest:g}",
                hint="pass log-probabilities (0 or less), not probabilities or logits",
            )
        if self.entropy is not None:
            self.entropy.check()

    def __len__(self) -> int:
        return len(self.tokens)


FinishReason = Literal["stop", "length", "partial", "content_filter", "empty"]


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled answer.

    Attributes:
        text: The answer, without the stop text, stripped of surrounding white space.
        prompt_tokens: Length of the prompt in tokens.
        trace: Log-probabilities and entropies of the answer, without thoughts that precede the answer; None
            if the reader does not provide a trace.
        finish: Why the generation ended: ``"stop"`` (by itself, or at a stop text), ``"length"`` (at
            ``max_tokens``), ``"content_filter"`` (a filter withheld all or a part of the answer), ``"empty"``
            (without any text), or ``"partial"`` (it has not ended yet).
        completion_tokens: Number of tokens of the answer; 0 if the reader does not know the number.
        thinking_tokens: Tokens of thoughts before the answer; neither ``text`` nor ``completion_tokens``
            includes them.
        cached_tokens: The part of ``prompt_tokens`` that the server had in its cache; 0 if the server does
            not report it.
    """

    text: str
    prompt_tokens: int = 0
    trace: TokenTrace | None = None
    finish: FinishReason = "stop"
    completion_tokens: int = 0
    thinking_tokens: int = 0
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        if self.finish == "stop" and not self.text.strip():
            object.__setattr__(self, "finish", "empty")

    @property
    def is_cut(self) -> bool:
        """Whether text may be missing, because of ``max_tokens`` or because a filter withheld it."""
        return self.finish in ("length", "content_filter")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed answer; the last piece has the whole generation."""

    text: str
    generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A decision, fallback or warning of a method.

    Attributes:
        name: Name of the event, such as ``"lazy_rag.gate"``.
        data: Plain values only: numbers, strings, and lists and mappings of plain values.
        warning: Whether to log the event as a warning, as for a fallback.
        detail: The object that the data describe, for code in this process; it is not serialised.
    """

    name: str
    data: Mapping[str, Any] = field(default_factory=dict)
    warning: bool = False
    detail: Any = field(default=None, repr=False, compare=False)


EVENT_SENTENCES: dict[str, str] = {}
"""The sentence that a log shows for an event, by the event's name. Slots are fields of the event's data."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of model calls and tokens, for one question or for all calls of a reader so far.

    Attributes:
        requests: Calls of models: answers generated, and pairs judged by an entailer.
        prompt_tokens: Tokens of prompts.
        completion_tokens: Tokens of answers, without thoughts.
        thinking_tokens: Tokens of thoughts before answers.
        cached_tokens: The part of ``prompt_tokens`` that a server reported to have in its cache.
        seconds: Wall time of the question; 0 for a reader.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    thinking_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.thinking_tokens + other.thinking_tokens,
            self.cached_tokens + other.cached_tokens,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True)
class Result:
    """Base class of all results. The driver fills in the calls, tokens and seconds of the question."""

    usage: Usage = field(default=Usage(), kw_only=True, compare=False)
