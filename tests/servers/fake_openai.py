"""An OpenAI-compatible server in this process, for tests.

    with FakeOpenAI(Script(["Paris"])) as server:
        reader = OpenAIReader("toy", base_url=server.base_url)
        ...
        assert len(server.requests) == 1

It serves ``/v1/chat/completions`` and ``/v1/completions``, whole and streamed (one token a chunk), with
log-probabilities, ``n``, seeds, stop texts, ``echo`` and vLLM's ``prompt_logprobs``. What answers is a
``ToyModel`` (real distributions over twenty words) or a ``Script`` (your texts).

What it did is on record: ``requests`` (paths, bodies, headers), ``peak`` (most requests at once) and
``streams`` (how many tokens each was sent, and whether the client closed it before its end).

How it misbehaves is up to you:

- ``server.fail(429, headers={"Retry-After": "0"})`` fails the next requests; so do ``body=b""`` with
  status 200, or ``body=b"{not json"``;
- ``Quirks`` for what real servers do all the time: ignoring ``n``, leaving log-probabilities out or null,
  computing them after temperature, refusing parameters, counting the end token, breaking streams off;
- ``Quirks(most_at_once=4)`` answers 429 to what comes beyond, and ``seconds`` is how long an answer takes;
- ``hold_after=n`` sends n tokens of each stream and then nothing until the client closes it or
  ``server.release()`` is called: what returns before was content with n tokens;
- ``server.fault`` takes over every request: one of ``tests.servers.faults``;
- ``server.pause()`` lets requests come in, and answers none before ``server.release()``.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.servers.toy_model import END, Said, Script, Token, ToyModel, heated, split

Json = dict[str, Any]


@dataclass(frozen=True)
class Quirks:
    """What this server does that others do not."""

    ignores_n: bool = False
    prefix_cache: bool = False
    ignores_seed: bool = False
    no_logprobs: bool = False
    null_logprobs: bool = False
    null_token_logprob: bool = False
    positive_logprobs: bool = False
    no_stream_logprobs: bool = False
    after_temperature: bool = False
    counts_end_token: bool = False
    adds_sampled_to_top: bool = False
    max_top: int = 20
    refuses: tuple[str, ...] = ()
    refusal: str = "Unsupported parameter"
    echo: bool = True
    prompt_logprobs: bool = False
    breaks_stream_after: int | None = None
    empty_first_piece: bool = True
    tokens_per_piece: int = 1
    finish_reason: str | None = None
    most_at_once: int | None = None
    seconds: float = 0.0


@dataclass
class Request:
    """A request that came in, and the client's end of its connection."""

    path: str
    body: Json
    headers: Mapping[str, str]
    port: int


@dataclass
class StreamRecord:
    """One stream: tokens sent, and whether the client closed it before it ended."""

    sent: int = 0
    closed_early: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> Self:
        """Wait until the stream is over, one way or the other."""
        if not self.over.wait(timeout=60):
            raise AssertionError("the stream is still open")
        return self


@dataclass
class _Failure:
    status: int
    body: bytes
    headers: Mapping[str, str]


class FakeOpenAI:
    """The server; see the module's docstring.

    Args:
        model: What answers; default a ``ToyModel``.
        quirks: What it does differently.
        hold_after: Tokens of each stream to send before waiting.
    """

    def __init__(
        self,
        model: ToyModel | Script | None = None,
        quirks: Quirks | None = None,
        *,
        hold_after: int | None = None,
    ) -> None:
        self.model = model or ToyModel()
        self.quirks = quirks or Quirks()
        self.hold_after = hold_after
        self.fault: Callable[[Wire], None] | None = None
        self.requests: list[Request] = []
        self.read: list[list[str]] = []
        self.streams: list[StreamRecord] = []
        self.peak = 0
        self.turned_away = 0
        self._failures: deque[_Failure] = deque()
        self._in_flight = 0
        self._changed = threading.Condition()
        self._open = threading.Event()
        self._open.set()
        self._released = threading.Event()
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()

    def fail(
        self,
        status: int,
        times: int = 1,
        *,
        body: bytes = b'{"error": {"message": "not now"}}',
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer the next requests with a status and body of yours."""
        self._failures.extend([_Failure(status, body, headers or {})] * times)

    def become(self, **quirks: Any) -> None:
        """Change some quirks."""
        self.quirks = replace(self.quirks, **quirks)

    def pause(self) -> None:
        """Answer nothing until released."""
        self._open.clear()

    def release(self) -> None:
        """Go on with everything that was held."""
        self._open.set()
        self._released.set()

    def wait_for(self, in_flight: int) -> None:
        """Wait until so many requests are under way."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._in_flight >= in_flight, timeout=60):
                raise AssertionError(f"{self._in_flight} requests under way, not {in_flight}")

    def wait_for_tokens(self, count: int) -> None:
        """Wait until the first stream was sent so many tokens."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.streams and self.streams[0].sent >= count, timeout=60):
                raise AssertionError(f"no stream was sent {count} tokens")

    def sent(self, record: StreamRecord, tokens: int) -> None:
        """Note tokens that a stream was sent."""
        with self._changed:
            record.sent += tokens
            self._changed.notify_all()

    def entered(self, request: Request) -> _Failure | None:
        """Note a request; return how it shall fail, if it shall."""
        with self._changed:
            self.requests.append(request)
            self._in_flight += 1
            self.peak = max(self.peak, self._in_flight)
            failure = self._failures.popleft() if self._failures else None
            most = self.quirks.most_at_once
            if most is not None and self._in_flight > most:
                self.turned_away += 1
                failure = _Failure(429, b'{"error": {"message": "too many"}}', {"retry-after-ms": "5"})
            self._changed.notify_all()
        self._open.wait()
        if failure is None:
            time.sleep(self.quirks.seconds)
        return failure

    def fault_for(self, body: Json) -> Callable[[Wire], None] | None:
        """Choose what goes wrong with a request; None for an honest answer."""
        return self.fault

    def left(self) -> None:
        """Note that a request was answered."""
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    def held(self, record: StreamRecord, connection: socket.socket) -> bool:
        """Wait while a stream is held; return whether its client has closed it."""
        while self.hold_after is not None and record.sent >= self.hold_after:
            if _closed(connection):
                return True
            if self._released.wait(timeout=0.01):
                break
        return _closed(connection)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # The default queue of five overflows under tests of concurrency, and a refused client waits a second.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what these tests are about."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Wire:
    """What a fault writes to."""

    def __init__(self, handler: _Handler, asked: Json) -> None:
        self.asked = asked
        self.chat = "chat" in handler.path
        self._handler = handler

    def raw(self, data: bytes) -> None:
        """Write bytes as they are, the status line included."""
        self._handler.wfile.write(data)
        self._handler.wfile.flush()

    def body(self, body: bytes, status: int = 200, **headers: str) -> None:
        """Answer in full; underscores in names of headers stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._handler._send(status, body, {"Connection": "close", **named})

    def honest(self) -> Json:
        """Return what a good server answers."""
        return self._handler._whole(self.asked)

    def honest_pieces(self) -> list[Json]:
        """Return what a good server streams."""
        return [piece for piece, _ in self._handler._pieces(self.asked)]

    def hung_up(self) -> bool:
        """Whether the client has closed the connection."""
        return _closed(self._handler.connection)


class _Handler(BaseHTTPRequestHandler):
    fake: FakeOpenAI
    protocol_version = "HTTP/1.1"
    # Headers and body are separate writes; held together they would wait for the client's delayed
    # acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_POST(self) -> None:
        sent = self.rfile.read(length := int(self.headers["Content-Length"]))
        if len(sent) < length:
            raise ConnectionResetError
        body = json.loads(sent)
        failure = self.fake.entered(Request(self.path, body, dict(self.headers), self.client_address[1]))
        try:
            if (fault := self.fake.fault_for(body)) is not None:
                self.close_connection = True
                fault(Wire(self, body))
            elif failure is not None:
                self._send(failure.status, failure.body, failure.headers)
            elif refused := [name for name in self.fake.quirks.refuses if name in body]:
                message = f"{self.fake.quirks.refusal}: {refused[0]}"
                self._send(400, json.dumps({"error": {"message": message}}).encode())
            elif body.get("stream"):
                self._stream(body)
            else:
                self._send(200, json.dumps(self._whole(body)).encode())
        finally:
            self.fake.left()

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _whole(self, body: Json) -> Json:
        quirks, chat = self.fake.quirks, "chat" in self.path
        prompt = prompt_of(body)
        count = 1 if quirks.ignores_n else body.get("n", 1)
        choices, generated = [], 0
        for index in range(count):
            said, text = _say(self.fake, body, prompt, index)
            generated += len(said.tokens)
            tokens = said.tokens
            if body.get("echo") and quirks.echo and not chat:
                tokens, text = self.fake.model.read(prompt) + tokens, prompt + text
            choice: Json = {"index": index, "finish_reason": quirks.finish_reason or said.finish}
            choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice["logprobs"] = _logprobs(tokens, body, quirks, chat)
            if len(tokens) > len(said.tokens) and choice["logprobs"]:
                choice["logprobs"]["token_logprobs"][0] = None
                choice["logprobs"]["top_logprobs"][0] = None
            choices.append(choice)
        read = len(split(prompt))
        answer: Json = {"object": "chat.completion" if chat else "text_completion", "choices": choices}
        if quirks.prompt_logprobs and "prompt_logprobs" in body:
            answer["prompt_logprobs"] = _prompt_logprobs(self.fake.model.read(prompt), body)
        counts = {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}
        return {**answer, "usage": {**counts, **self._cached(prompt)}}

    def _cached(self, prompt: str) -> Json:
        """Count the tokens that this prompt begins with as one before it did, and remember it."""
        if not self.fake.quirks.prefix_cache:
            return {}
        tokens = list(split(prompt))
        known = max((_common(tokens, before) for before in self.fake.read), default=0)
        self.fake.read.append(tokens)
        return {"prompt_tokens_details": {"cached_tokens": known}}

    def _stream(self, body: Json) -> None:
        record = StreamRecord()
        self.fake.streams.append(record)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece, tokens in self._pieces(body):
                if self.fake.held(record, self.connection):
                    raise ConnectionResetError
                if record.sent == self.fake.quirks.breaks_stream_after:
                    self.close_connection = True
                    return
                self._chunk(b"data: " + json.dumps(piece).encode() + b"\n\n")
                self.fake.sent(record, tokens)
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except (ConnectionResetError, BrokenPipeError):
            record.closed_early = True
            self.close_connection = True
        finally:
            record.over.set()

    def _pieces(self, body: Json) -> Iterator[tuple[Json, int]]:
        quirks, chat = self.fake.quirks, "chat" in self.path
        prompt = prompt_of(body)
        said, text = _say(self.fake, body, prompt, 0)
        if chat and quirks.empty_first_piece:
            yield _piece(chat, "", None), 0
        size = quirks.tokens_per_piece
        shown = 0
        for start in range(0, len(said.tokens), size):
            tokens = said.tokens[start : start + size]
            words = "".join(token.text for token in tokens)
            piece = text[shown : shown + len(words)]
            shown += len(words)
            logprobs = None if quirks.no_stream_logprobs else _logprobs(tokens, body, quirks, chat)
            yield _piece(chat, piece, logprobs), len(tokens)
        yield _piece(chat, "", None, said.finish), 0
        if body.get("stream_options", {}).get("include_usage"):
            counts = {"prompt_tokens": len(split(prompt)), "completion_tokens": len(said.tokens)}
            yield {"object": "chunk", "choices": [], "usage": {**counts, **self._cached(prompt)}}, 0

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _common(tokens: list[str], before: list[str]) -> int:
    """Count the tokens that two prompts begin with alike."""
    return next(
        (at for at, pair in enumerate(zip(tokens, before, strict=False)) if len({*pair}) > 1),
        min(len(tokens), len(before)),
    )


def prompt_of(body: Json) -> str:
    """The text that a request asks with."""
    if "prompt" in body:
        given = body["prompt"]
        return str(given[0] if isinstance(given, list) else given)
    turns = [_text_of(message["content"]) for message in body["messages"]]
    return (
        "\n".join(turns[:-1]) + turns[-1] if body["messages"][-1]["role"] == "assistant" else "\n".join(turns)
    )


def _text_of(content: Any) -> str:
    """The text of a message's content, which may be a list of blocks."""
    if not isinstance(content, list):
        return str(content)
    return "".join(block["text"] for block in content if block.get("type") == "text")


def _say(fake: FakeOpenAI, body: Json, prompt: str, index: int) -> tuple[Said, str]:
    temperature = body.get("temperature", 1.0)
    seed = 0 if fake.quirks.ignores_seed else (body.get("seed") or 0)
    said = fake.model.say(prompt, temperature, seed * 1000 + index, body.get("max_tokens", 16))
    if fake.quirks.after_temperature and temperature:
        said = said._replace(tokens=[_after(token, temperature) for token in said.tokens])
    text = "".join(token.text for token in said.tokens)
    stops = [text.find(stop) for stop in body.get("stop") or () if stop in text]
    if stops:
        text = text[: min(stops)]
        kept: list[Token] = []
        for token in said.tokens:
            if len("".join(t.text for t in kept)) >= len(text):
                break
            kept.append(token)
        said = Said(kept, "stop")
    if fake.quirks.counts_end_token and said.finish == "stop":
        said.tokens.append(Token(END, -0.5, {END: -0.5, " more": -1.0}))
    return said, text


def _after(token: Token, temperature: float) -> Token:
    changed = heated(token.everything, temperature)
    return Token(token.text, changed[token.text], changed)


def _logprobs(tokens: list[Token], body: Json, quirks: Quirks, chat: bool) -> Json | None:
    asked = body.get("logprobs")
    if asked in (None, False) or quirks.no_logprobs or quirks.null_logprobs:
        return None
    k = min(body.get("top_logprobs", 0) if chat else asked, quirks.max_top)
    sign = -1 if quirks.positive_logprobs else 1
    values = [None if quirks.null_token_logprob else sign * token.logprob for token in tokens]
    tops = [top_of(token, k, quirks) for token in tokens]
    if chat:
        content = [
            {
                "token": token.text,
                "logprob": value,
                "top_logprobs": [{"token": word, "logprob": p} for word, p in top.items()],
            }
            for token, value, top in zip(tokens, values, tops, strict=True)
        ]
        return {"content": content}
    offsets = [sum(len(token.text) for token in tokens[:i]) for i in range(len(tokens))]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def top_of(token: Token, k: int, quirks: Quirks) -> dict[str, float]:
    """The likeliest tokens, as a server lists them."""
    top = token.top(k)
    return {**top, token.text: token.logprob} if quirks.adds_sampled_to_top else top


def _prompt_logprobs(tokens: list[Token], body: Json) -> list[Json | None]:
    entries: list[Json | None] = [None]
    for token in tokens[1:]:
        listed = {token.text: token.logprob, **token.top(body["prompt_logprobs"])}
        entries.append(
            {str(i): {"logprob": p, "decoded_token": word} for i, (word, p) in enumerate(listed.items())}
        )
    return entries


def _piece(chat: bool, text: str, logprobs: Json | None, finish: str | None = None) -> Json:
    choice: Json = {"index": 0, "finish_reason": finish, "logprobs": logprobs}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    return {"object": "chat.completion.chunk" if chat else "text_completion", "choices": [choice]}


def _closed(connection: socket.socket) -> bool:
    # Unlike select, it knows files beyond the first thousand.
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    if not poller.poll(0):
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except ConnectionResetError:
        return True
