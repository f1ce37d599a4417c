"""Answers of OpenAI's Responses API, in the form of the chat API; no I/O.

Only their form differs: what is read from them, and how it is checked, is the same. Documented at
https://platform.openai.com/docs/api-reference/responses and .../responses-streaming.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from surerag.readers.hosted.text import Json

_THOUGHTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_ENDS = {"completed": "stop", "incomplete": "length"}


def chat_answer(answer: object) -> object:
    """Return a whole answer as one of the chat API; what is none is returned as it is."""
    if not isinstance(answer, Mapping) or not isinstance(answer.get("output"), list):
        return answer
    if answer.get("status") in ("failed", "cancelled"):
        return {"error": answer.get("error") or {"message": f"the response was {answer['status']}"}}
    parts = [part for item in answer["output"] for part in _parts(item, "message") if "text" in part]
    thoughts = [
        part
        for item in answer["output"]
        for key in ("content", "summary")
        for part in _parts(item, "reasoning", key)
    ]
    listed = [part.get("logprobs") for part in parts]
    tokens = [token for tokens in listed if isinstance(tokens, list) for token in tokens]
    choice = {
        "index": 0,
        "message": {"content": _joined(parts), "reasoning": _joined(thoughts)},
        "logprobs": {"content": tokens},
        "finish_reason": _finish(answer),
    }
    return {"choices": [choice], "usage": answer.get("usage")}


def chat_piece(event: Json) -> Json:
    """Return an event of a stream as a piece of the chat API; one without choices where it says nothing."""
    kind = str(event.get("type"))
    if kind == "error":
        return {"error": event}
    if kind == "response.output_text.delta":
        listed = event.get("logprobs")
        logprobs = {"content": listed} if listed else None
        return _piece({"content": event.get("delta")}, logprobs=logprobs)
    if kind in _THOUGHTS:
        return _piece({"reasoning": event.get("delta")})
    inner = event.get("response")
    if kind in ("response.completed", "response.incomplete") and isinstance(inner, Mapping):
        return {**_piece({}, finish=_finish(inner)), "usage": inner.get("usage")}
    if kind == "response.failed":
        error = inner.get("error") if isinstance(inner, Mapping) else None
        return {"error": error or {"message": "the response failed"}}
    return {}


def _parts(item: object, kind: str, key: str = "content") -> Iterator[Mapping[str, Any]]:
    if isinstance(item, Mapping) and item.get("type") == kind:
        content = item.get(key)
        if isinstance(content, list):
            yield from (part for part in content if isinstance(part, Mapping))


def _joined(parts: list[Mapping[str, Any]]) -> str:
    return "".join(str(part.get("text") or "") for part in parts)


def _finish(answer: Mapping[str, Any]) -> str:
    details = answer.get("incomplete_details")
    if isinstance(details, Mapping) and details.get("reason") == "content_filter":
        return "content_filter"
    return _ENDS.get(str(answer.get("status")), "stop")


def _piece(delta: Json, logprobs: Json | None = None, finish: str | None = None) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}
