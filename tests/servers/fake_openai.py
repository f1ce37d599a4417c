"""An OpenAI-compatible server in this process, for tests.

    with FakeOpenAI(["Paris"]) as server:          # or the fixture ``fake_openai``; then server.answers = …
        reader = OpenAIReader("toy", base_url=server.base_url, api_key="k")
        ...
        assert server.requests[0]["path"] == "/v1/chat/completions"

It serves ``/v1/chat/completions`` and ``/v1/completions``, whole and streamed (one word a token, one token a
chunk), with log-probabilities, ``n``, ``seed`` and ``stop``.

- ``answers``: a list of texts (each taken once, the last one for ever), a function of the prompt's text, or
  None for a toy model with real distributions.
- ``logprob``: log-probability of every token of ``answers``; all that is left has the token " other".
- ``options``: what this server does unlike others; see OPTIONS, such as ``options["refuses"] = ("seed",)``.
- ``server.fault = "name"`` has every request fail in that way (see ``tests.servers.faults``);
  ``server.fail("429", times=2)`` only the next ones.
- ``requests``: the bodies that came in, with ``path`` and ``headers``; ``peak``: most requests at once;
  ``streams``: for each stream the tokens ``sent`` and whether it was ``closed`` by the client.
"""

from __future__ import annotations

import json
import math
import random
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Json = dict[str, Any]
Answers = Sequence[str] | Callable[[str], str] | None

END = "<end>"
WORDS = (
    " river",
    " Velm",
    " Orun",
    " Ada",
    " Tarn",
    " born",
    " in",
    " the",
    " was",
    " begins",
    " red",
    " ß",
    END,
)
OPTIONS: Json = {
    "ignores_n": False,  # one choice, whatever n (llama.cpp)
    "no_logprobs": False,
    "no_stream_logprobs": False,
    "needs_top": False,  # no log-probabilities unless alternatives are requested, too (llama.cpp)
    "ignores": (),  # parameters that are as if they were not there
    "after_temperature": False,  # log-probabilities of the tempered distribution
    "counts_end_token": False,  # the end token among the log-probabilities
    "max_top": 20,
    "refuses": (),  # parameters answered with 400
    "refusal": "Unsupported parameter: '{}'",
    "check": lambda body: None,  # returns what is sent with status 400; None where a request is taken
    "thoughts": "",  # thought before each answer
    "thoughts_in": "marks",  # or "field": reasoning_content
    "no_usage": False,
    "seconds": 0.0,  # before each answer
    "pace": 0.0,  # before each token of a stream
}


def split(text: str) -> list[str]:
    """Split a text into words, each with the white space before it."""
    return re.findall(r"\s*\S+|\s+$", text)


def distribution(context: Sequence[str]) -> dict[str, float]:
    """Return the toy model's next-token probabilities."""
    chance = random.Random("".join(context[-2:]).strip())
    # An answer has at least one word, and ends after a few.
    end = 1.5 if context[-1:] and context[-1] in WORDS else -20.0
    weights = {word: math.exp(chance.gauss(end * (word == END), 2)) for word in WORDS}
    total = math.fsum(weights.values())
    return {word: weight / total for word, weight in weights.items()}


def heated(probabilities: dict[str, float], temperature: float) -> dict[str, float]:
    """Return probabilities at a temperature above 0."""
    weights = {word: p ** (1 / temperature) for word, p in probabilities.items()}
    return {word: weight / math.fsum(weights.values()) for word, weight in weights.items()}


class FakeOpenAI:
    """The server; see the module's docstring."""

    def __init__(self, answers: Answers = None, *, logprob: float = -0.1, **options: Any) -> None:
        self.answers = answers
        self.logprob = logprob
        self.options: Json = {**OPTIONS, **options}
        self.fault: str | None = None
        self.requests: list[Json] = []
        self.streams: list[Json] = []
        self.peak = 0
        self._running = 0
        self._failures: list[str] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self}))

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fail(self, fault: str, times: int = 1) -> None:
        """Have the next requests fail in a way that ``tests.servers.faults`` names."""
        self._failures += [fault] * times

    def enter(self, request: Json) -> str | None:
        """Note a request and return its fault, if it has one."""
        with self._lock:
            self.requests.append(request)
            self._running += 1
            self.peak = max(self.peak, self._running)
            return self._failures.pop(0) if self._failures else self.fault

    def leave(self) -> None:
        """Note that a request was answered."""
        with self._lock:
            self._running -= 1

    def say(self, body: Json, prompt: str, index: int) -> tuple[list[str], list[dict[str, float]], str]:
        """Return an answer's tokens with the end token, their distributions, and why it ended."""
        temperature = body.get("temperature", 1.0)
        chance = random.Random(f"{prompt}|{body.get('seed', random.random())}|{index}")
        tokens: list[str] = []
        seen: list[dict[str, float]] = []
        written = None if self.answers is None else [*split(self._next(prompt)), END]
        limit = int(body.get("max_completion_tokens") or body.get("max_tokens") or 64)
        while len(tokens) < limit:
            if written is not None:
                token, p = written[len(tokens)], math.exp(self.logprob)
                probabilities = {token: p, " other": 1 - p}
            else:
                probabilities = distribution([*split(prompt), *tokens])
                drawn = heated(probabilities, temperature) if temperature else probabilities
                token = (
                    chance.choices(list(drawn), list(drawn.values()))[0]
                    if temperature
                    else max(probabilities, key=probabilities.__getitem__)
                )
                probabilities = drawn if self.options["after_temperature"] else probabilities
            tokens.append(token)
            seen.append(probabilities)
            if token == END:
                return tokens, seen, "stop"
            if any(stop in "".join(tokens) for stop in _stops(body)):
                return tokens, seen, "stop"
        return tokens, seen, "length"

    def _next(self, prompt: str) -> str:
        if callable(self.answers):
            return self.answers(prompt)
        with self._lock:
            answers = self.answers = list(self.answers or [""])
            return answers.pop(0) if len(answers) > 1 else answers[0]


def _stops(body: Json) -> list[str]:
    stop = body.get("stop") or []
    return [stop] if isinstance(stop, str) else stop


def _listed(tokens: list[str], seen: list[dict[str, float]], top: int, chat: bool) -> Json:
    """Return log-probabilities in the form of the chat or the completions API."""
    best = [dict(sorted(row.items(), key=lambda item: -item[1])[:top]) for row in seen]
    values = [math.log(row[token]) for token, row in zip(tokens, seen, strict=True)]
    if not chat:
        tops = [{name: math.log(p) for name, p in row.items() if p} for row in best]
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops}
    return {
        "content": [
            {
                "token": token,
                "logprob": value,
                "bytes": list(token.encode()),
                "top_logprobs": [{"token": name, "logprob": math.log(p)} for name, p in row.items() if p],
            }
            for token, value, row in zip(tokens, values, best, strict=True)
        ]
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what these tests are about."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    fake: FakeOpenAI
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.chat = "chat" in self.path
        fault = self.fake.enter({**body, "path": self.path, "headers": dict(self.headers)})
        time.sleep(self.fake.options["seconds"])
        # Before the answer is sent: a client may send its next request before this thread goes on.
        self.fake.leave()
        body = {name: value for name, value in body.items() if name not in self.fake.options["ignores"]}
        refused = [name for name in self.fake.options["refuses"] if name in body]
        complaint = self.fake.options["check"](body)
        if fault:
            from tests.servers.faults import FAULTS

            self.close_connection = True
            FAULTS[fault](self, body)
        elif complaint is not None:
            self.send(400, json.dumps(complaint).encode())
        elif refused:
            message = self.fake.options["refusal"].format(refused[0])
            self.send(400, json.dumps({"error": {"message": message}}).encode())
        elif body.get("stream"):
            self.stream(self.pieces(body))
        else:
            self.send(200, json.dumps(self.whole(body)).encode())

    def send(self, status: int, body: bytes, **headers: str) -> None:
        """Send a whole response."""
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def hung_up(self) -> bool:
        """Whether the client has closed the connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, 2) == b""  # 2 is MSG_PEEK

    def stream(self, pieces: Iterator[Json] | list[Json], *, done: bool = True) -> None:
        """Send pieces as server-sent events, and note how far the client read."""
        record = {"sent": 0, "closed": False}
        self.fake.streams.append(record)
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for piece in pieces:
                time.sleep(self.fake.options["pace"])
                if self.hung_up():
                    raise ConnectionResetError
                self.wfile.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
                record["sent"] += 1
            self.wfile.write(b"data: [DONE]\n\n" if done else b"")
        except ConnectionError:
            record["closed"] = True

    def whole(self, body: Json) -> Json:
        """Return an honest answer."""
        options, prompt = self.fake.options, self._prompt(body)
        answer: Json = {
            "id": "1",
            "object": "chat.completion" if self.chat else "text_completion",
            "model": "toy",
        }
        answer["choices"], counted = [], 0
        for index in range(1 if options["ignores_n"] else body.get("n") or 1):
            choice, tokens = self._choice(body, prompt, index)
            answer["choices"].append(choice)
            counted += tokens
        if not options["no_usage"]:
            answer["usage"] = _usage(prompt, counted)
        return answer

    def _choice(self, body: Json, prompt: str, index: int) -> tuple[Json, int]:
        options = self.fake.options
        tokens, seen, finish = self.fake.say(body, prompt, index)
        told = [token for token in tokens if token != END]
        text, listed = "".join(told), len(tokens) if options["counts_end_token"] else len(told)
        for stop in _stops(body):
            text = text.split(stop)[0]
        tokens, seen = tokens[:listed], seen[:listed]
        reasoning = None
        if options["thoughts"]:
            thoughts = split(f"<think>{options['thoughts']}</think>")
            tokens, seen = [*thoughts, *tokens], [*({token: 0.9, " x": 0.1} for token in thoughts), *seen]
            if options["thoughts_in"] == "field":
                reasoning = options["thoughts"]
            else:
                text = "".join(thoughts) + text
        choice: Json = {"index": index, "finish_reason": finish, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        if reasoning:
            choice["message"]["reasoning_content"] = reasoning
        lists = body.get("top_logprobs") or not self.chat or not options["needs_top"]
        if body.get("logprobs") and lists and not options["no_logprobs"]:
            top = body.get("top_logprobs", 0) if self.chat else body["logprobs"]
            choice["logprobs"] = _listed(tokens, seen, min(top, options["max_top"]), self.chat)
        return choice, len(tokens)

    def pieces(self, body: Json) -> list[Json]:
        """Return an honest answer as the pieces of a stream, one token each."""
        options, whole = self.fake.options, self.whole({**body, "n": 1})
        choice = whole["choices"][0]
        base = {
            "id": "1",
            "object": "chat.completion.chunk" if self.chat else "text_completion",
            "model": "toy",
        }

        def piece(text: str, logprobs: Json | None, finish: str | None, **delta: str) -> Json:
            held: Json = {"delta": {"content": text, **delta}} if self.chat else {"text": text}
            return {**base, "choices": [{"index": 0, "finish_reason": finish, "logprobs": logprobs, **held}]}

        logprobs = None if options["no_stream_logprobs"] else choice["logprobs"]
        texts = split(choice["message"]["content"] if self.chat else choice["text"])
        pieces = [piece("", None, None)] if self.chat else []
        if self.chat and choice["message"].get("reasoning_content"):
            pieces.append(piece("", None, None, reasoning_content=choice["message"]["reasoning_content"]))
        total = len(next(iter(logprobs.values()))) if logprobs else len(texts)
        listed = (logprobs or {}).get("tokens") or [
            row["token"] for row in (logprobs or {}).get("content", [])
        ]
        first = max(total - len(texts) - (listed[-1:] == [END]), 0)
        for place, text in enumerate(texts):
            span = slice(
                0 if place == 0 else first + place, total if place == len(texts) - 1 else first + place + 1
            )
            part = {name: column[span] for name, column in logprobs.items()} if logprobs else None
            pieces.append(piece(text, part, None))
        pieces.append(piece("", None, choice["finish_reason"]))
        if "usage" in whole and (body.get("stream_options") or {}).get("include_usage"):
            pieces.append({**base, "choices": [], "usage": whole["usage"]})
        return pieces

    def _prompt(self, body: Json) -> str:
        if not self.chat:
            return str(body["prompt"])
        return "\n".join(str(message["content"]) for message in body["messages"])


def _usage(prompt: str, generated: int) -> Json:
    read = len(split(prompt))
    return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}
