"""Scores of given text over an API: the prompt's own log-probabilities, read back; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from surerag.errors import LogprobsError
from surerag.messages import Prompt, TokenTrace, as_messages
from surerag.readers.hosted.answers import choices_of
from surerag.readers.hosted.requests import Scoring
from surerag.readers.logprobs import (
    NO_LOGPROBS_HINT,
    entries_of,
    excerpt,
    trace_of_entries,
    without_surrogates,
)

Json = Mapping[str, Any]


def score_trace(how: Scoring, answer: Json, prompt: Prompt, continuation: str, top: int) -> TokenTrace:
    """Return the trace of the continuation alone.

    Raises:
        LogprobsError: If the server sent none, or none that can be separated from the prompt's.
        ServiceError: If the answer is malformed.
    """
    choice, continuation = choices_of(answer)[0], without_surrogates(continuation)
    if how == "echo":
        given = without_surrogates(as_messages(prompt)[0].content)
        if given + continuation not in str(choice.get("text")):
            raise LogprobsError("the server did not echo the text it was sent", hint=NO_LOGPROBS_HINT)
        entries = entries_of(choice.get("logprobs"))
        inside = _placed(entries, given, continuation) or _offset(choice, len(given), continuation)
    else:
        entries = _prompt_entries(choice.get("prompt_logprobs", answer.get("prompt_logprobs")))
        inside = _placed(entries, "", continuation.strip())
    if not inside:
        raise LogprobsError(
            f"{continuation[:60]!r} cannot be separated from its prompt by the server's tokens",
            hint="score texts that start where a token starts, or use TransformersReader",
        )
    return trace_of_entries([entries[place] for place in inside], top_logprobs=top)


def _prompt_entries(listed: object) -> list[Json]:
    """Return vLLM's prompt_logprobs as entries of the chat API; the given token stands first in each."""
    if not isinstance(listed, list):
        raise LogprobsError("the server sent no prompt_logprobs", hint=NO_LOGPROBS_HINT)
    # The first token has nothing before it.
    rows = [list(row.values()) for row in listed if isinstance(row, Mapping) and row]
    if not all(isinstance(item, Mapping) for row in rows for item in row):
        raise LogprobsError(f"the server's prompt_logprobs are {excerpt(listed)}", hint=NO_LOGPROBS_HINT)
    return [
        {"token": row[0].get("decoded_token"), "logprob": row[0].get("logprob"), "top_logprobs": row}
        for row in rows
    ]


def _placed(entries: Sequence[Json], prompt: str, continuation: str) -> range | None:
    """Find the continuation's tokens by their text; None if the tokens do not spell it."""
    tokens = [str(entry.get("token") or "") for entry in entries]
    spelled = "".join(tokens)
    start = spelled.find(prompt + continuation) if prompt else spelled.rfind(continuation)
    if start < 0:
        return None
    offsets = list(accumulate(map(len, tokens), initial=0))[:-1]
    return _between(offsets, start + len(prompt), len(continuation))


def _offset(choice: Json, start: int, continuation: str) -> range | None:
    """Find the continuation's tokens by the server's own offsets; None if it gives none."""
    logprobs = choice.get("logprobs")
    offsets = logprobs.get("text_offset") if isinstance(logprobs, Mapping) else None
    if not isinstance(offsets, list) or not all(isinstance(offset, int) for offset in offsets):
        return None
    return _between(offsets, start, len(continuation))


def _between(offsets: Sequence[int], start: int, length: int) -> range:
    """Return the tokens that reach into a stretch of text; one that merges with the prompt counts."""
    inside = [place for place, offset in enumerate(offsets) if start <= offset < start + length]
    first = inside[0] if inside else len(offsets)
    merged = first > 0 and (not inside or offsets[first] > start)
    return range(first - merged, inside[-1] + 1 if inside else first)
