"""Log-probabilities of tokens, as servers write them, checked and made into traces; no I/O.

A missing or impossible log-probability is an error here, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from surerag.errors import LogprobsError
from surerag.measures.entropy import EntropyBounds, entropy_bounds
from surerag.messages import EntropyTrace, TokenTrace
from surerag.readers.hosted.text import Json, mended, shown

_ROUNDED_UP = 1e-3
"""How far above zero a log-probability may stand before it is taken for something else."""

NO_LOGPROBS_HINT = (
    "run reader.probe() to see what this server and model give; a model that thinks may give them with "
    'thinking=False (OpenAI\'s from gpt-5.1 on: reasoning_effort="none"). Without them, '
    'logprobs=False and gate="disagreement" (L-RAG), metric="disagreement" (DynQR) and weights="frequency" '
    "(ΔSePer) go by the answers' texts"
)


class Wanted(NamedTuple):
    """What a reader asks of each token.

    Attributes:
        logprobs: Whether log-probabilities are asked for at all.
        top: How many of the likeliest tokens are listed; 0 for the sampled one alone.
        vocabulary_size: Tokens that the model can emit, or a number no smaller.
    """

    logprobs: bool
    top: int
    vocabulary_size: int


class Step(NamedTuple):
    """One token: its text, its log-probability, and those of the likeliest tokens at its place.

    ``given`` is what it spells, if the server says so: a token may be part of a character.
    """

    token: str
    logprob: float
    likeliest: tuple[float, ...]
    given: bytes | None = None


def steps_of(logprobs: object, top: int) -> list[Step]:
    """Read log-probabilities in the form of the chat API, or in that of completions; none if there are none.

    Raises:
        LogprobsError: If they are malformed, or no natural logarithms of probabilities.
    """
    if not isinstance(logprobs, Mapping):
        return []
    content = logprobs.get("content")
    if isinstance(content, list):
        return [_chat_step(entry, top) for entry in content]
    tokens = logprobs.get("tokens")
    values = logprobs.get("token_logprobs")
    if tokens is None and values is None:
        return []
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        raise LogprobsError(
            "the server's log-probabilities are not one for each token", hint=NO_LOGPROBS_HINT
        )
    likeliest = likeliest_column(logprobs, len(tokens))
    return [completions_step(*entry, top) for entry in zip(tokens, values, likeliest, strict=True)]


def likeliest_column(columns: Json, length: int) -> list[Any]:
    """Return the likeliest tokens at each place of a completion; Nones where the server lists none.

    Raises:
        LogprobsError: If there is not one entry for each token.
    """
    listed = columns.get("top_logprobs") or [None] * length
    if not isinstance(listed, list) or len(listed) != length:
        raise LogprobsError(
            f"the server lists likeliest tokens as {shown(listed)!r} for {length} tokens",
            hint=NO_LOGPROBS_HINT,
        )
    return listed


def _chat_step(entry: object, top: int) -> Step:
    if not isinstance(entry, Mapping):
        raise LogprobsError(f"a token's log-probability is {shown(entry)!r}", hint=NO_LOGPROBS_HINT)
    token = mended(str(entry.get("token") or ""))
    listed = (entry.get("top_logprobs") or []) if top else []
    if not isinstance(listed, list):
        raise LogprobsError(
            f"the alternatives to the token {token!r} are {shown(listed)!r}", hint=NO_LOGPROBS_HINT
        )
    values = tuple(
        number(token, item.get("logprob") if isinstance(item, Mapping) else item, listed=True)
        for item in listed
    )
    return Step(token, number(token, entry.get("logprob")), values, _bytes(entry.get("bytes")))


def _bytes(given: object) -> bytes | None:
    if isinstance(given, list) and all(isinstance(item, int) and 0 <= item < 256 for item in given):
        return bytes(given)
    return None


def completions_step(token: object, value: object, likeliest: object, top: int) -> Step:
    """Return one token's step from its columns in a completion.

    Raises:
        LogprobsError: If a value is missing, or no natural logarithm of a probability.
    """
    listed = likeliest.values() if top and isinstance(likeliest, Mapping) else ()
    values = tuple(number(token, item, listed=True) for item in listed)
    return Step(mended(str(token)), number(token, value), values)


def number(token: object, value: object, *, listed: bool = False) -> float:
    """Return one log-probability; only a token that was not sampled may be impossible (minus infinity).

    Raises:
        LogprobsError: If it is missing, or no natural logarithm of a probability.
    """
    given = math.nan
    # Libraries that run in this process give numpy's numbers.
    if isinstance(value, int | float | np.floating) and not isinstance(value, bool):
        try:
            given = float(value)
        except OverflowError:
            given = -math.inf if value < 0 else math.inf
    if math.isnan(given) or given > _ROUNDED_UP or (given == -math.inf and not listed):
        raise LogprobsError(
            f"the log-probability of the token {shown(token)!r} is {shown(value)!r}, "
            "which is no natural logarithm of one",
            hint=NO_LOGPROBS_HINT,
        )
    return min(given, 0.0)


def trace_of(steps: Sequence[Step], wanted: Wanted) -> TokenTrace:
    """Return the trace of tokens, with intervals of entropy where likeliest tokens are listed.

    Raises:
        LogprobsError: If listed log-probabilities cannot belong to one distribution.
    """
    entropy = None
    if wanted.top:
        bounds = [_bounds(step, wanted) for step in steps]
        entropy = EntropyTrace(tuple(b.lower for b in bounds), tuple(b.upper for b in bounds), exact=False)
    return TokenTrace(
        tuple(step.token for step in steps), tuple(min(step.logprob, 0.0) for step in steps), entropy
    )


def _bounds(step: Step, wanted: Wanted) -> EntropyBounds:
    likeliest = sorted(step.likeliest, reverse=True)
    if not likeliest:
        raise LogprobsError(
            f"the server listed no alternatives to the token {step.token!r}",
            hint="pass top_logprobs=0 if you need no entropies, or another server or api",
        )
    # A server may add the sampled token to the list. Kept among the k likeliest, an unlikely one would
    # claim that no unlisted token is likelier than it.
    added = likeliest[wanted.top :]
    listed = likeliest[: wanted.top]
    sampled = min(added) if added else None
    if not added and len(listed) == wanted.top and step.logprob < listed[-1] - _ROUNDED_UP:
        sampled = step.logprob
    try:
        bounds = entropy_bounds(listed, wanted.vocabulary_size, sampled_logprob=sampled)
        if len(listed) < wanted.top:
            # Alternatives that look the same as text are listed once, so a likely one may be missing:
            # then the smallest entropy has all that is left on one token.
            together = entropy_bounds(listed, len(listed) + 1)
            bounds = EntropyBounds(min(bounds.lower, together.upper), bounds.upper)
    except ValueError as error:
        raise LogprobsError(
            f"the alternatives to the token {step.token!r} are no log-probabilities: {error}",
            hint="this server may return logits or probabilities; run reader.probe()",
        ) from None
    return bounds
