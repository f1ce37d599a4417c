"""Ways in which a server may misbehave, by name; set ``FakeOpenAI.fault`` to one of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Fault = Callable[[Any, Json], None]

_EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
_JSON = _EVENTS.replace(b"text/event-stream", b"application/json")


def _head(body: Json) -> bytes:
    return _EVENTS if body.get("stream") else _JSON


def _raw(data: bytes) -> Fault:
    return lambda handler, body: handler.wfile.write(data)


def _status(status: int, message: object = "not now", **headers: str) -> Fault:
    sent = json.dumps({"error": {"message": message}}).encode()
    return lambda handler, body: handler.send(status, sent, **headers)


def _body(data: bytes, kind: str = "application/json") -> Fault:
    """Send these bytes in place of an answer; in a stream, as the data of an event."""

    def fault(handler: Any, body: Json) -> None:
        if body.get("stream") and kind == "application/json":
            handler.wfile.write(_EVENTS + b"data: " + data + b"\n\n" + b"data: [DONE]\n\n")
        else:
            handler.send(200, data, Content_Type=kind)

    return fault


def _changed(change: Callable[[Json], object]) -> Fault:
    """Change an honest answer, or every piece of an honest stream."""

    def fault(handler: Any, body: Json) -> None:
        if body.get("stream"):
            pieces = handler.pieces(body)
            for piece in pieces:
                change(piece)
            handler.stream(pieces)
            return
        answer = handler.whole(body)
        change(answer)
        handler.send(200, json.dumps(answer).encode())

    return fault


def _set(**fields: Any) -> Fault:
    return _changed(lambda answer: answer.update(fields))


def _choices(change: Callable[[Json], object]) -> Fault:
    return _changed(lambda answer: [change(choice) for choice in answer["choices"]])


def _entries(change: Callable[[Json], object]) -> Fault:
    """Change each token's log-probabilities, in both forms of the API."""

    def each(choice: Json) -> None:
        listed = choice.get("logprobs") or {}
        for entry in listed.get("content") or []:
            change(entry)
        if "tokens" in listed:
            columns = zip(listed["tokens"], listed["token_logprobs"], listed["top_logprobs"], strict=True)
            rows = [{"token": t, "logprob": v, "top_logprobs": top} for t, v, top in columns]
            for row in rows:
                change(row)
            listed["tokens"] = [row["token"] for row in rows]
            listed["token_logprobs"] = [row["logprob"] for row in rows]
            listed["top_logprobs"] = [row["top_logprobs"] for row in rows]

    return _choices(each)


def _ended(reason: str) -> Fault:
    def end(choice: Json) -> None:
        if choice["finish_reason"] is not None:
            choice["finish_reason"] = reason

    return _choices(end)


def _write(choice: Json, text: object) -> None:
    for holder, key in (
        (choice.get("message"), "content"),
        (choice.get("delta"), "content"),
        (choice, "text"),
    ):
        if isinstance(holder, dict) and holder.get(key):
            holder[key] = text


def _empty(choice: Json) -> None:
    _write(choice, "")
    choice["logprobs"] = None


def _until_hung_up(data: bytes) -> Fault:
    def fault(handler: Any, body: Json) -> None:
        handler.wfile.write(_head(body))
        ends = time.monotonic() + 30
        while time.monotonic() < ends and not handler.hung_up():
            handler.wfile.write(data)
            time.sleep(0.02)

    return fault


def _flood(handler: Any, body: Json) -> None:
    handler.wfile.write(_head(body))
    for _ in range(300):
        handler.wfile.write(b" " * 2**20)


def _midway(handler: Any, body: Json) -> None:
    if body.get("stream"):
        sent = b"".join(
            b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in handler.pieces(body)[:3]
        )
        handler.wfile.write(_EVENTS + sent[:-9])
    else:
        handler.wfile.write(_JSON.replace(b"\r\n\r\n", b"\r\nContent-Length: 900\r\n\r\n{"))


def _without_end(handler: Any, body: Json) -> None:
    """A stream that is closed without finish_reason and [DONE]; a whole answer without finish_reason."""
    if body.get("stream"):
        handler.stream(handler.pieces(body)[:3], done=False)
    else:
        answer = handler.whole(body)
        for choice in answer["choices"]:
            choice["finish_reason"] = None
        handler.send(200, json.dumps(answer).encode())


def _twice(handler: Any, body: Json) -> None:
    """Each piece of a stream comes twice; a whole answer is honest."""
    if body.get("stream"):
        handler.stream([piece for piece in handler.pieces(body) for _ in range(2)])
    else:
        handler.send(200, json.dumps(handler.whole(body)).encode())


FAULTS: dict[str, Fault] = {
    "hangs up": lambda handler, body: None,
    "hangs up midway": _midway,
    "no HTTP": _raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "drips": _until_hung_up(b" "),
    "comments for ever": _until_hung_up(b": still here\n\n"),
    "flood": _flood,
    "redirects for ever": lambda handler, body: handler.send(307, b"", Location=handler.path),
    "500": _status(500),
    "429": _status(429),
    "429 with a wait": _status(429, Retry_After="0"),
    "401": _status(401, "Incorrect API key provided"),
    "404": _status(404, "The model 'toy' does not exist"),
    "too long": _status(400, "This model's maximum context length is 8 tokens"),
    "error is a number": lambda handler, body: handler.send(400, b"7"),
    "HTML": _body(b"<html><body>Log in</body></html>", "text/html"),
    "empty body": _body(b""),
    "null": _body(b"null"),
    "a list": _body(b"[]"),
    "not JSON": _body(b"{not json"),
    "deep JSON": _body(b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "not UTF-8": _body(b'{"choices": "\xff\xfe"}'),
    "error with status 200": _set(error={"message": "overloaded"}, choices=None),
    "no choices": _set(choices=[]),
    "choices are a number": _set(choices=5),
    "choices are numbers": _set(choices=[5]),
    "content is a number": _choices(lambda choice: _write(choice, 7)),
    "usage is text": _set(usage="lots"),
    "empty answer": _choices(_empty),
    "cut": _ended("length"),
    "withheld": _ended("content_filter"),
    "no end": _without_end,
    "every chunk twice": _twice,
    "logprobs are null": _choices(lambda choice: choice.update(logprobs=None)),
    "logprobs are a number": _choices(lambda choice: choice.update(logprobs=5)),
    "logprob is null": _entries(lambda entry: entry.update(logprob=None)),
    "logprob is positive": _entries(lambda entry: entry.update(logprob=3.0)),
    "logprob is NaN": _entries(lambda entry: entry.update(logprob=float("nan"))),
    "top_logprobs is a number": _entries(lambda entry: entry.update(top_logprobs=5)),
    "tokens spell another text": _choices(lambda choice: _write(choice, "Quite another answer.")),
    "lone surrogate": _choices(lambda choice: _write(choice, " \ud83d")),
}
"""Each is called with the request's handler and body."""
