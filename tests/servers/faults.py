"""Faults of servers, each with a name.

    with FakeOpenAI() as server:
        server.fault = FAULTS["drips"]

A fault answers every request, streamed or not, as a server would that is good but for this one thing.
``SURVIVED`` are those after which an answer is still right; after the others there must be an error.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.servers.fake_openai import Json, Wire

Fault = Callable[[Wire], None]

_EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
_LONG = 30.0
"""Seconds after which a fault that would last for ever gives in, so that a test that fails also ends."""


def _event(piece: object) -> bytes:
    return b"data: " + (piece if isinstance(piece, bytes) else json.dumps(piece).encode()) + b"\n\n"


def _answers(change: Callable[[Json], object]) -> Fault:
    """A fault in each answer, and in each piece of a stream: ``change`` gets it, and may return another."""

    def fault(wire: Wire) -> None:
        def changed(answer: Json) -> object:
            answer = copy.deepcopy(answer)
            other = change(answer)
            return answer if other is None else other

        if not wire.asked.get("stream"):
            found = changed(wire.honest())
            wire.body(found if isinstance(found, bytes) else json.dumps(found).encode())
            return
        wire.raw(_EVENTS)
        for piece in wire.honest_pieces():
            wire.raw(_event(changed(piece)))
        wire.raw(_event(b"[DONE]"))

    return fault


def _choices(change: Callable[[Json], object]) -> Fault:
    def of_answer(answer: Json) -> None:
        for choice in answer["choices"]:
            change(choice)

    return _answers(of_answer)


def _logprobs(change: Callable[[Json], object]) -> Fault:
    def of_choice(choice: Json) -> None:
        if choice.get("logprobs"):
            change(choice["logprobs"])

    return _choices(of_choice)


def _tokens(change: Callable[[Json], object]) -> Fault:
    """A fault in each token of the chat API, and in the columns of completions where it has the same name."""

    def of_logprobs(logprobs: Json) -> None:
        for entry in logprobs.get("content", ()):
            change(entry)
        if "tokens" in logprobs:
            rows = [
                {"token": token, "logprob": value, "top_logprobs": top}
                for token, value, top in zip(
                    logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
                )
            ]
            for row in rows:
                change(row)
            logprobs["tokens"] = [row.get("token") for row in rows]
            logprobs["token_logprobs"] = [row.get("logprob") for row in rows]
            logprobs["top_logprobs"] = [row.get("top_logprobs") for row in rows]

    return _logprobs(of_logprobs)


def _set(**fields: Any) -> Callable[[Json], None]:
    return lambda holder: holder.update(copy.deepcopy(fields))


def _literal(name: str, value: bytes) -> Fault:
    """A number that Python would not write, in place of each ``name``."""
    marked = json.dumps(f"<{name}>").encode()

    def mark(answer: Json) -> bytes:
        def walk(node: Any) -> None:
            if isinstance(node, dict):
                for key in node:
                    if key == name and isinstance(node[key], int | float):
                        node[key] = f"<{name}>"
                    elif key == "token_logprobs" and name == "logprob":
                        node[key] = [f"<{name}>" for _ in node[key]]
                    else:
                        walk(node[key])
            elif isinstance(node, list):
                for item in node:
                    walk(item)

        walk(answer)
        return json.dumps(answer).encode().replace(marked, value)

    return _answers(mark)


def _status(status: int, body: bytes = b'{"error": {"message": "not now"}}', **headers: str) -> Fault:
    return lambda wire: wire.body(body, status, **headers)


def _text(choice: Json, text: str) -> None:
    for holder, key in (
        (choice.get("message"), "content"),
        (choice.get("delta"), "content"),
        (choice, "text"),
    ):
        if isinstance(holder, dict) and holder.get(key):
            holder[key] = text


def _another_text(choice: Json) -> None:
    _text(choice, "Quite another answer than the tokens spell, and longer.")


def _uneven(logprobs: Json) -> None:
    if logprobs.get("top_logprobs"):
        logprobs["top_logprobs"] = logprobs["top_logprobs"][:-1] or [{}, {}]
    elif logprobs.get("content"):
        logprobs["content"] = []
    if "tokens" in logprobs:
        logprobs["token_logprobs"] = [*logprobs["token_logprobs"], -0.1]


def _comments(wire: Wire) -> None:
    wire.raw(_EVENTS)
    _until_hung_up(wire, b": still here\n\n")


def _drip(wire: Wire) -> None:
    head = _EVENTS if wire.asked.get("stream") else _EVENTS.replace(b"text/event-stream", b"application/json")
    wire.raw(head)
    _until_hung_up(wire, b" ")


def _until_hung_up(wire: Wire, data: bytes) -> None:
    ends = time.monotonic() + _LONG
    while time.monotonic() < ends and not wire.hung_up():
        wire.raw(data)
        time.sleep(0.02)


def _flood(wire: Wire) -> None:
    """Three hundred megabytes, written only as long as somebody reads them."""
    head = _EVENTS if wire.asked.get("stream") else _EVENTS.replace(b"text/event-stream", b"application/json")
    wire.raw(head)
    for _ in range(300):
        wire.raw(b" " * 2**20)


def _flood_of_errors(wire: Wire) -> None:
    wire.raw(b"HTTP/1.1 500 Oh no\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
    for _ in range(300):
        wire.raw(b"x" * 2**20)


def _endless(wire: Wire) -> None:
    """A stream that goes on behind ``max_tokens``, for as long as anybody listens."""
    if not wire.asked.get("stream"):
        wire.body(json.dumps(wire.honest()).encode())
        return
    wire.raw(_EVENTS)
    word = {"token": " on", "logprob": -0.1, "top_logprobs": [{"token": " on", "logprob": -0.1}]}
    columns = {"tokens": [" on"], "token_logprobs": [-0.1], "top_logprobs": [{" on": -0.1}]}
    choice: Json = {"index": 0, "finish_reason": None}
    if wire.chat:
        choice |= {"delta": {"content": " on"}, "logprobs": {"content": [word]}}
    else:
        choice |= {"text": " on", "logprobs": columns}
    piece = {"object": "chat.completion.chunk" if wire.chat else "text_completion", "choices": [choice]}
    ends = time.monotonic() + _LONG
    while time.monotonic() < ends and not wire.hung_up():
        wire.raw(_event(piece))
        time.sleep(0.001)


def _drip_headers(wire: Wire) -> None:
    wire.raw(b"HTTP/1.1 200 OK\r\nX: ")
    _until_hung_up(wire, b"x")


def _cut_off(wire: Wire) -> None:
    if wire.asked.get("stream"):
        wire.raw(_EVENTS)
        wire.raw(_event(wire.honest_pieces()[0])[:-7])
    else:
        wire.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{")


def _deep(_: Json) -> bytes:
    return b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


FAULTS: Mapping[str, Fault] = {
    # How it is sent.
    "hangs up at once": lambda wire: None,
    "hangs up in the middle": _cut_off,
    "no HTTP": lambda wire: wire.raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "comments for ever": _comments,
    "drips": _drip,
    "drips its headers": _drip_headers,
    "300 MB": _flood,
    "300 MB of error": _flood_of_errors,
    "not gzip": lambda wire: wire.body(b"plain", Content_Encoding="gzip"),
    "endless redirects": lambda wire: wire.body(b"", 307, Location="/v1/chat/completions"),
    "redirect to nowhere": lambda wire: wire.body(b"", 307, Location="http://[::bad"),
    "ignores max_tokens": _endless,
    # Statuses.
    "500": _status(500),
    "529": _status(529),
    "401": _status(401),
    "404": _status(404, b"<html>"),
    "error that is a number": _status(400, b"7"),
    "error that is deep": _status(400, b"[" * 100_000),
    "Retry-After: nan": _status(429, Retry_After="nan"),
    "Retry-After: inf": _status(429, Retry_After="inf"),
    "Retry-After: -1e400": _status(429, Retry_After="-1e400"),
    "Retry-After: year 99999": _status(429, Retry_After="Thu, 01 Jan 99999 00:00:00 GMT"),
    "Retry-After: year 1": _status(429, Retry_After="Mon, 01 Jan 0001 00:00:00 +1400"),
    "retry-after-ms: -5": _status(429, retry_after_ms="-5"),
    "retry-after-ms: nan": _status(429, retry_after_ms="nan"),
    # What it is.
    "empty": _answers(lambda _: b""),
    "null": _answers(lambda _: b"null"),
    "a list": _answers(lambda _: []),
    "not JSON": _answers(lambda _: b"{not json"),
    "deep JSON": _answers(_deep),
    "not UTF-8": _answers(lambda _: b'{"choices": "\xff\xfe"}'),
    "error with status 200": _answers(lambda _: {"error": {"message": "overloaded"}}),
    "choices are a number": _answers(_set(choices=5)),
    "choices are numbers": _answers(_set(choices=[5])),
    "index is text": _choices(_set(index="first")),
    "index is a list": _choices(_set(index=[0])),
    "content is a number": _choices(_set(message={"content": 7}, delta={"content": 7}, text=7)),
    "withheld": _choices(_set(finish_reason="content_filter")),
    "usage is text": _answers(_set(usage="lots")),
    "usage has text": _answers(_set(usage={"prompt_tokens": "many", "completion_tokens": []})),
    "usage is negative": _answers(_set(usage={"prompt_tokens": -3, "completion_tokens": -1})),
    "usage is NaN": _answers(_set(usage={"prompt_tokens": float("nan"), "completion_tokens": float("inf")})),
    # Log-probabilities.
    "logprobs are null": _choices(_set(logprobs=None)),
    "logprobs are a number": _choices(_set(logprobs=5)),
    "logprob is null": _tokens(_set(logprob=None)),
    "logprob is text": _tokens(_set(logprob="-0.1")),
    "logprob is positive": _tokens(_set(logprob=3.0)),
    "logprob is NaN": _tokens(_set(logprob=float("nan"))),
    "logprob of 400 digits": _literal("logprob", b"-1" + b"0" * 400),
    "logprob of 5,000 digits": _literal("logprob", b"-1" + b"0" * 5000),
    "logprob is -1e400": _literal("logprob", b"-1e400"),
    "top_logprobs: 5": _tokens(_set(top_logprobs=5)),
    "top_logprobs: [5]": _tokens(_set(top_logprobs=["5"])),
    "columns of unequal length": _logprobs(_uneven),
    "tokens spell another text": _choices(_another_text),
    "token is a lone surrogate": _tokens(_set(token="\ud800", bytes=None)),
}

SURVIVED = frozenset(
    {
        "usage is text",
        "usage has text",
        "usage is negative",
        "usage is NaN",
    }
)
"""Faults that change no answer."""

ONLY_CORE = frozenset({"300 MB of error", "drips its headers"})
"""Faults that end in time where the client is ours: the SDK reads headers and errors in its user's own."""
