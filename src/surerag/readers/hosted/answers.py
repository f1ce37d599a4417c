"""Replies of OpenAI-compatible servers as parts of answers; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surerag.messages import Usage
from surerag.readers.hosted.client import malformed
from surerag.readers.logprobs import entries_of
from surerag.readers.reading import Part, usage_of

Json = Mapping[str, Any]


def parts_of(answer: Json, *, logprobs: bool) -> list[Part]:
    """Return the choices of a whole answer.

    Raises:
        LogprobsError: If log-probabilities are requested, and malformed.
        ServiceError: If there is no choice, or one has no text where it should.
    """
    usage = usage_of(answer.get("usage"))
    return [_part_of(choice, usage, logprobs=logprobs) for choice in choices_of(answer)]


def next_part(piece: Json, *, logprobs: bool) -> Part:
    """Return a piece of a stream; the one that carries the usage may have no choice."""
    usage = usage_of(piece["usage"]) if isinstance(piece.get("usage"), Mapping) else None
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
