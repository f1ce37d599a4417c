"""Replies of OpenAI-compatible servers as parts of answers; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surerag.messages import Usage
from surerag.readers.hosted.client import malformed
from surerag.readers.logprobs import entries_of
from surerag.readers.reading import Part

Json = Mapping[str, Any]

_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")


def parts_of(answer: Json, *, logprobs: bool) -> list[Part]:
    """Return the choices of a whole answer.

    Raises:
        LogprobsError: If log-probabilities are requested, and malformed.
        ServiceError: If there is no choice, or one has no text where it should.
    """
    usage = usage_of(answer)
    return [_part_of(choice, usage, logprobs=logprobs) for choice in choices_of(answer)]


def next_part(piece: Json, *, logprobs: bool) -> Part:
    """Return a piece of a stream; the one that carries the usage may have no choice."""
    usage = usage_of(piece) if isinstance(piece.get("usage"), Mapping) else None
    if not piece.get("choices"):
        return Part(usage=usage)
    return _part_of(choices_of(piece)[0], usage, logprobs=logprobs)


def _part_of(choice: Json, usage: Usage | None, *, logprobs: bool) -> Part:
    message = choice.get("message", choice.get("delta"))
    holder, key = (message, "content") if isinstance(message, Mapping) else (choice, "text")
    text, thoughts = holder.get(key), holder.get("reasoning_content") or holder.get("reasoning")
    if not isinstance(text, str | None) or (text is None and holder is choice and key not in choice):
        raise malformed(choice)
    reason = choice.get("finish_reason")
    return Part(
        text or "",
        thoughts if isinstance(thoughts, str) else "",
        entries_of(choice.get("logprobs")) if logprobs else (),
        None if reason is None else str(reason),
        usage,
    )


def choices_of(answer: Json) -> list[Json]:
    """Return an answer's choices in the order of their index.

    Raises:
        ServiceError: If it has none.
    """
    choices = answer.get("choices")
    if (
        not isinstance(choices, list)
        or not choices
        or not all(
            isinstance(choice, Mapping) and isinstance(choice.get("index") or 0, int) for choice in choices
        )
    ):
        raise malformed(answer)
    return sorted(choices, key=lambda choice: choice.get("index") or 0)


def usage_of(answer: Json) -> Usage:
    """Return the server's own count of tokens for one request; zeros where it gives none.

    Most services count thoughts among the completion, some beside it: their total tells. Prompt tokens that
    were in the server's cache are among those of the prompt.
    """
    reported = answer.get("usage")
    counts = reported if isinstance(reported, Mapping) else {}
    details = counts.get("completion_tokens_details")
    thinking = token_count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else 0
    prompt, completion = (token_count(counts.get(f"{name}_tokens")) for name in ("prompt", "completion"))
    beside = token_count(counts.get("total_tokens")) == prompt + completion + thinking
    if thinking and thinking <= completion and not beside:
        completion -= thinking
    details = counts.get("prompt_tokens_details")
    cached = token_count(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    cached = max(cached, *(token_count(counts.get(name)) for name in _CACHED))
    return Usage(1, prompt, completion, thinking, min(cached, prompt))


def token_count(value: object) -> int:
    """Return a number of tokens; 0 for what is none, as where a server does not count."""
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0
