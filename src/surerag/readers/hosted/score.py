"""Scoring of given text over an API: the prompt's own log-probabilities, read back; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from surerag.errors import LogprobsError
from surerag.messages import Message, Prompt, TokenTrace, as_messages
from surerag.readers.hosted.logprobs import (
    NO_LOGPROBS_HINT,
    Step,
    Wanted,
    completions_step,
    likeliest_column,
    number,
    trace_of,
)
from surerag.readers.hosted.parse import Api, choices_of
from surerag.readers.hosted.requests import Ask, logprobs_body, prompt_body
from surerag.readers.hosted.text import Json

Scoring = Literal["echo", "prompt_logprobs"]
"""How a server reads given text back: completions with ``echo``, or the field that vLLM adds."""

_KEPT = frozenset({"echo", "logprobs", "prompt_logprobs", "add_generation_prompt", "continue_final_message"})
"""Fields without which nothing would be scored."""

_ReadStep = Callable[[int], Step]
"""Reads the step at a position, on demand: the prompt's own may be null, and are not looked at."""


def score_ask(how: Scoring, api: Api, model: str, prompt: Prompt, continuation: str, wanted: Wanted) -> Ask:
    """Return the request that has a continuation of a prompt read back.

    Raises:
        InputError: If a conversation is to go to the completions API.
    """
    limits = {"model": model, "max_tokens": 1, "temperature": 0.0}
    if api == "completions":
        body = {"prompt": prompt_body(api, prompt)["prompt"] + continuation, **limits}
        if how == "echo":
            return Ask(api, {**body, "echo": True, **logprobs_body(api, wanted)}, kept=_KEPT)
        return Ask(api, {**body, "prompt_logprobs": wanted.top}, kept=_KEPT)
    answered = (*as_messages(prompt), Message("assistant", continuation))
    template = {"add_generation_prompt": False, "continue_final_message": True}
    body = {**prompt_body(api, answered), **limits, **template, "prompt_logprobs": wanted.top}
    return Ask(api, body, kept=_KEPT)


def score_trace(how: Scoring, answer: Json, prompt: Prompt, continuation: str, wanted: Wanted) -> TokenTrace:
    """Return the trace of the continuation alone.

    Raises:
        LogprobsError: If the server sent none, or none that can be told from the prompt's.
        ServiceError: If the answer is malformed.
    """
    choice = choices_of(answer)[0]
    if how == "echo":
        given = as_messages(prompt)[0].content
        if given + continuation not in str(choice.get("text")):
            raise LogprobsError("the server did not echo the text it was given", hint=NO_LOGPROBS_HINT)
        tokens, read = _echoed(choice, wanted.top)
        inside = _placed(tokens, given, continuation) or _offset(choice, len(given), continuation)
    else:
        tokens, read = _prompt_logprobs(answer, choice)
        inside = _placed(tokens, "", continuation.strip())
    if inside is None:
        raise LogprobsError(
            f"the continuation {continuation[:60]!r} cannot be told from its prompt in the server's tokens",
            hint="score texts that start where a token starts, or use TransformersReader",
        )
    return trace_of([read(position) for position in inside], wanted)


def _echoed(choice: Json, top: int) -> tuple[list[str], _ReadStep]:
    logprobs = choice.get("logprobs")
    columns = logprobs if isinstance(logprobs, Mapping) else {}
    tokens, values = columns.get("tokens"), columns.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        raise LogprobsError("the server echoed no log-probabilities", hint=NO_LOGPROBS_HINT)
    rows = list(zip(tokens, values, likeliest_column(columns, len(tokens)), strict=True))
    return [str(token) for token in tokens], lambda position: completions_step(*rows[position], top)


def _prompt_logprobs(answer: Json, choice: Json) -> tuple[list[str], _ReadStep]:
    listed = choice.get("prompt_logprobs", answer.get("prompt_logprobs"))
    if not isinstance(listed, list):
        raise LogprobsError("the server sent no prompt_logprobs", hint=NO_LOGPROBS_HINT)
    # The first token has nothing before it. In the others, the given token stands first.
    entries = [list(entry.values()) for entry in listed if isinstance(entry, Mapping) and entry]
    if not all(isinstance(item, Mapping) for entry in entries for item in entry):
        raise LogprobsError("the server's prompt_logprobs are no log-probabilities", hint=NO_LOGPROBS_HINT)
    tokens = [str(entry[0].get("decoded_token", "")) for entry in entries]
    return tokens, lambda position: _entry_step(tokens[position], entries[position])


def _entry_step(token: str, entry: list[Json]) -> Step:
    values = tuple(number(token, item.get("logprob"), listed=True) for item in entry)
    return Step(token, number(token, entry[0].get("logprob")), values)


def _placed(tokens: Sequence[str], prompt: str, continuation: str) -> range | None:
    """Find the continuation's tokens by their text; None if the tokens do not spell it."""
    spelled = "".join(tokens)
    start = spelled.find(prompt + continuation) if prompt else spelled.rfind(continuation)
    if start < 0:
        return None
    offsets, position = [], 0
    for token in tokens:
        offsets.append(position)
        position += len(token)
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
    inside = [p for p, offset in enumerate(offsets) if start <= offset < start + length]
    first = inside[0] if inside else len(offsets)
    merged = first > 0 and (not inside or offsets[first] > start)
    return range(first - merged, inside[-1] + 1 if inside else first)
