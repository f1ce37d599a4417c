"""LlamaIndex's responses as parts of answers; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from surerag.errors import LogprobsError
from surerag.messages import Usage
from surerag.readers.hosted.wire import next_part
from surerag.readers.hosted.wire import parts_of as choices_as_parts
from surerag.readers.reading import Part, usage_of

_FINISH = ("finish_reason", "stop_reason", "done_reason")
_COUNTS = {
    "prompt_tokens": ("prompt_tokens", "prompt_token_count", "input_tokens", "prompt_eval_count"),
    "completion_tokens": ("completion_tokens", "candidates_token_count", "output_tokens", "eval_count"),
    "total_tokens": ("total_tokens", "total_token_count"),
}
"""What services call the tokens of prompt and answer."""


def parts_of(response: Any, *, logprobs: bool) -> list[Part]:
    """Return the answers of a whole response: every choice of its raw one, else the response itself.

    Raises:
        LogprobsError: If log-probabilities are requested, and malformed.
        ServiceError: If there is no answer.
    """
    raw = _plain(response.raw)
    if isinstance(raw, Mapping) and "choices" in raw and (raw["choices"] or not _text_of(response)):
        return choices_as_parts(raw, logprobs=logprobs)
    return [_own_part(response, raw, _text_of(response), "", logprobs=logprobs)]


def part_of(response: Any, shown: str, *, logprobs: bool) -> tuple[Part, str]:
    """Return the next piece of a stream, and all text so far.

    Args:
        response: A response of the stream, which may hold all text so far.
        shown: The text of those before it, and of its thoughts behind a mark of their own.
        logprobs: Whether log-probabilities are requested.
    """
    raw = _plain(response.raw)
    if isinstance(raw, Mapping) and "choices" in raw:
        return next_part(raw, logprobs=logprobs), shown
    thoughts, _, text = shown.rpartition("\0")
    text_now, thoughts_now = _text_of(response), _thoughts_of(response)
    delta = text_now.removeprefix(text) if response.delta is None else response.delta
    part = _own_part(response, raw, delta, thoughts, logprobs=logprobs)
    return part, f"{thoughts_now or thoughts}\0{text + delta}"


def _plain(raw: Any) -> Any:
    """Return a client's objects as the JSON values that they were made of."""
    if hasattr(raw, "model_dump"):
        return raw.model_dump(exclude_unset=True, warnings=False)
    if isinstance(raw, Mapping):
        return {name: _plain(value) for name, value in raw.items()}
    return [_plain(one) for one in raw] if isinstance(raw, list) else raw


def _own_part(response: Any, raw: Any, text: str, thoughts: str, *, logprobs: bool) -> Part:
    """Return what LlamaIndex's own fields say of an answer, where the raw response has no choices."""
    known = raw if isinstance(raw, Mapping) else {}
    finish = next((str(known[name]) for name in _FINISH if known.get(name)), None)
    entries = _own_entries(response, known, text) if logprobs else []
    return Part(text, _thoughts_of(response).removeprefix(thoughts), entries, finish, _usage_in(known))


def _usage_in(raw: Mapping[str, Any]) -> Usage | None:
    counts = next((raw[name] for name in ("usage", "usage_metadata") if raw.get(name)), raw)
    renamed = {
        ours: next((counts[name] for name in names if counts.get(name)), 0) for ours, names in _COUNTS.items()
    }
    thoughts = counts.get("thoughts_token_count")
    details = {"completion_tokens_details": {"reasoning_tokens": thoughts}} if thoughts else {}
    usage = usage_of({**counts, **renamed, **details})
    return usage if usage.prompt_tokens or usage.completion_tokens else None


def _own_entries(response: Any, raw: Mapping[str, Any], text: str) -> Sequence[Mapping[str, Any]]:
    """Return the tokens of Gemini's result, or of ``response.logprobs``: lists of the likeliest tokens."""
    result = raw.get("logprobs_result") or {}
    if chosen := result.get("chosen_candidates"):
        top = result.get("top_candidates") or [{}] * len(chosen)
        return [
            {**_gemini(one), "top_logprobs": [_gemini(other) for other in others.get("candidates") or ()]}
            for one, others in zip(chosen, top, strict=False)
        ]
    entries, rest = list[Mapping[str, Any]](), text.lstrip()
    for listed in response.logprobs or ():
        sampled = _sampled(listed, rest, first=not entries)
        if sampled is None:
            break
        rest = rest[len(sampled.token if entries else sampled.token.lstrip()) :]
        others = [{"token": other.token, "logprob": other.logprob} for other in listed]
        top_logprobs = others if len(others) > 1 else []
        entries.append({"token": sampled.token, "logprob": sampled.logprob, "top_logprobs": top_logprobs})
    return entries


def _sampled(listed: Sequence[Any], rest: str, *, first: bool) -> Any:
    """Return the first of the likeliest tokens that goes on with the text; None at its end.

    Raises:
        LogprobsError: If none does.
    """
    for one in listed:
        token = one.token.lstrip() if first else one.token
        if token and rest.startswith(token):
            return one
    if rest.strip():
        raise LogprobsError(f"no token in response.logprobs goes on with {rest[:40]!r}")
    return None


def _gemini(candidate: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": candidate.get("token"), "logprob": candidate.get("log_probability")}


def _text_of(response: Any) -> str:
    if not hasattr(response, "message"):
        return response.text or ""
    return "".join(block.text or "" for block in response.message.blocks if block.block_type == "text")


def _thoughts_of(response: Any) -> str:
    blocks = response.message.blocks if hasattr(response, "message") else ()
    return "".join(block.content or "" for block in blocks if block.block_type == "thinking")
