"""The same replies of a server over the SDK, LangChain and LlamaIndex: one answer, or one kind of error."""

from __future__ import annotations

import json
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike

from langchain_surerag import reader_from_model
from langchain_surerag.families import FAMILIES, TEXT
from llama_index_surerag import reader_from_llm
from surerag import OpenAIReader, SamplingParams
from surerag.errors import (
    InputError,
    LogprobsError,
    RefusedError,
    SureragError,
    ThinkingBudgetError,
    TransientServiceError,
)
from surerag.messages import Generation
from surerag.methods.dynqr.options import DynQROptions
from surerag.methods.lazy_rag.options import LazyRAGOptions
from surerag.readers import parameters, reading
from surerag.readers.logprobs import NO_LOGPROBS_HINT
from surerag.readers.parameters import LeftOutWarning
from surerag.readers.protocol import BaseReader

KEY = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"
PLAIN = SamplingParams(max_tokens=32, trace="logprobs")


def split(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def logprobs_of(tokens: list[str]) -> dict[str, Any]:
    other = {"token": "x", "logprob": -3.0}
    return {
        "content": [
            {
                "token": token,
                "logprob": -0.1,
                "bytes": list(token.encode("utf-8", "surrogatepass")),
                "top_logprobs": [{"token": token, "logprob": -0.1}, other],
            }
            for token in tokens
        ]
    }


@dataclass
class Reply:
    """What the server says to every request.

    Attributes:
        text: The answer.
        finish: Why it ended; None for a stream that breaks off.
        message: Further fields of the message.
        tokens: Tokens with log-probabilities, where they are others than those of the text.
        logprobs: What stands in the place of requested log-probabilities; True for themselves.
        usage: Counts of tokens, where they are others than those of the text.
        pieces: Pieces of a stream, where they are others than the tokens.
        twice: Whether each piece comes twice.
        status: The status; beside 200, the text is the message of an error.
        refuses: The setting that the error is for; other requests are answered with the text.
        choices: Texts of several choices, by their index, in the order in which they come.
    """

    text: str = ""
    finish: str | None = "stop"
    message: dict[str, Any] = field(default_factory=dict)
    tokens: list[str] | None = None
    logprobs: object = True
    usage: dict[str, Any] | None = None
    pieces: list[str] | None = None
    twice: bool = False
    status: int = 200
    refuses: str = ""
    choices: dict[int, str] | None = None

    def counts(self) -> dict[str, Any]:
        written = len(split(self.text))
        return self.usage or {
            "prompt_tokens": 10,
            "completion_tokens": written,
            "total_tokens": 10 + written,
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        reply: Reply = self.server.reply
        if reply.status != 200 and (not reply.refuses or body.get(reply.refuses)):
            self.whole({"error": {"message": reply.text.format(key=self.headers["Authorization"])}})
        elif body.get("stream"):
            self.stream(reply, body)
        else:
            texts = reply.choices or {0: reply.text}
            requested = reply.logprobs if body.get("logprobs") else None
            choices = [
                {
                    "index": index,
                    "finish_reason": reply.finish,
                    "message": {"role": "assistant", "content": text, **reply.message},
                    "logprobs": logprobs_of(reply.tokens or split(text)) if requested is True else requested,
                }
                for index, text in texts.items()
            ]
            base = {"id": "1", "object": "chat.completion", "created": 1, "model": "toy"}
            self.whole({**base, "choices": choices, "usage": reply.counts()})

    def whole(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(self.server.reply.status if "error" in answer else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, reply: Reply, body: dict[str, Any]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "toy"}
        events: list[dict[str, Any]] = []
        for piece in reply.pieces or split(reply.text):
            listed = logprobs_of([piece]) if body.get("logprobs") else None
            choice = {"index": 0, "finish_reason": None, "delta": {"content": piece}, "logprobs": listed}
            events += [{**base, "choices": [choice]}] * (2 if reply.twice else 1)
        if reply.finish:
            choice = {"index": 0, "finish_reason": reply.finish, "delta": {}, "logprobs": None}
            events.append({**base, "choices": [choice]})
        if body.get("stream_options"):
            events.append({**base, "choices": [], "usage": reply.counts()})
        try:
            for event in events:
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n" if reply.finish else b"")
        except OSError:
            pass


class Server(ThreadingHTTPServer):
    """A server with one reply."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = Reply()
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield running
        running.shutdown()


def _langchain(server: Server, **settings: Any) -> BaseReader:
    model = ChatOpenAI(model="toy", base_url=server.url, api_key=KEY, max_retries=0)
    return reader_from_model(model, **settings)


def _llama_index(server: Server, **settings: Any) -> BaseReader:
    llm = OpenAILike(
        model="toy", api_base=server.url, api_key=KEY, is_chat_model=True, max_retries=0, context_window=8000
    )
    return reader_from_llm(llm, **settings)


CLIENTS: dict[str, Callable[..., BaseReader]] = {
    "hosted": lambda server, **settings: OpenAIReader(
        "toy", base_url=server.url, api_key=KEY, max_retries=0, **settings
    ),
    "langchain": _langchain,
    "llama_index": _llama_index,
}


def _whole(reader: BaseReader, sampling: SamplingParams) -> Generation:
    return reader.generate(["q"], sampling)[0][0]


def _streamed(reader: BaseReader, sampling: SamplingParams) -> Generation:
    chunks = list(reader.stream("q", sampling))
    generation = chunks[-1].generation
    assert generation is not None
    assert "".join(chunk.text for chunk in chunks) == generation.text
    return generation


def _limit(body: dict[str, Any]) -> int:
    limit: int = body.get("max_tokens") or body["max_completion_tokens"]
    return limit


def _begun(reader: BaseReader, sampling: SamplingParams) -> Generation:
    return reader.begin(["q"], 2, sampling)[0].rest()


WAYS = {"whole": _whole, "stream": _streamed, "begin": _begun}
STREAMS = ("stream", "begin")
Expected = tuple[str, str, int, int] | type[SureragError]
"""Text, finish, tokens and thinking tokens; or the error."""

VELM: Expected = ("Velm lies", "stop", 2, 0)
CUT: Expected = ("Velm lies", "length", 2, 0)
CASES: dict[str, tuple[Reply, SamplingParams, tuple[str, ...], Expected]] = {
    "plain": (Reply("Velm lies"), PLAIN, tuple(WAYS), VELM),
    "a mark in the middle": (
        Reply("The tag </think> ends it."),
        PLAIN,
        tuple(WAYS),
        ("The tag </think> ends it.", "stop", 5, 0),
    ),
    "a mark that nothing ends": (
        Reply("<think> is the tag."),
        PLAIN,
        tuple(WAYS),
        ("<think> is the tag.", "stop", 4, 0),
    ),
    "stop text ignored": (
        Reply("Velm lies\nQuestion: next one"),
        SamplingParams(max_tokens=32, trace="logprobs", stop=("\nQuestion",)),
        tuple(WAYS),
        VELM,
    ),
    "limit ignored": (
        Reply("Velm lies on the long river Orun."),
        SamplingParams(max_tokens=3, trace="logprobs"),
        tuple(WAYS),
        ("Velm lies on", "length", 3, 0),
    ),
    "limit ignored, text alone": (
        Reply("Velm lies on the long river Orun."),
        SamplingParams(max_tokens=3, trace="none"),
        tuple(WAYS),
        ("Velm lies on", "length", 3, 0),
    ),
    "withheld": (
        Reply("Velm lies", finish="content_filter"),
        PLAIN,
        tuple(WAYS),
        ("Velm lies", "content_filter", 2, 0),
    ),
    "model_length": (Reply("Velm lies", finish="model_length"), PLAIN, tuple(WAYS), CUT),
    "max_tokens": (Reply("Velm lies", finish="max_tokens"), PLAIN, tuple(WAYS), CUT),
    "thoughts counted beside the answer": (
        Reply(
            "Velm lies",
            usage={
                "prompt_tokens": 10,
                "completion_tokens": 25,
                "total_tokens": 55,
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
        ),
        PLAIN,
        tuple(WAYS),
        ("Velm lies", "stop", 2, 20),
    ),
    "halves of a character": (
        Reply(
            "Hi 😀",
            pieces=["Hi ", "\ud83d", "\ude00"],
            usage={"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
        ),
        SamplingParams(max_tokens=32, trace="none"),
        STREAMS,
        ("Hi 😀", "stop", 3, 0),
    ),
    "every piece twice": (
        Reply("Velm lies on the Orun.", twice=True),
        PLAIN,
        STREAMS,
        TransientServiceError,
    ),
    "broken off": (Reply("Velm lies on the", finish=None), PLAIN, STREAMS, TransientServiceError),
    "thoughts without an answer": (
        Reply("<think>Rhine? No", finish="length"),
        PLAIN,
        tuple(WAYS),
        ThinkingBudgetError,
    ),
    "thoughts in a field": (
        Reply(
            "Velm lies",
            message={"reasoning": "Rhine? No."},
            tokens=["<think>", "Rhine?", " No.", "</think>", "Velm", " lies"],
        ),
        PLAIN,
        ("whole",),
        ("Velm lies", "stop", 2, 4),
    ),
    "empty": (Reply(""), PLAIN, tuple(WAYS), ("", "empty", 0, 0)),
    "refused": (
        Reply("x", message={"content": None, "refusal": "no"}),
        PLAIN,
        ("whole",),
        ("", "empty", 0, 0),
    ),
    "no reason of the end, at the limit": (
        Reply("Velm lies", finish=None),
        SamplingParams(max_tokens=2, trace="logprobs"),
        ("whole",),
        CUT,
    ),
}

EACH_CLIENT = pytest.mark.parametrize("client", CLIENTS)


@EACH_CLIENT
@pytest.mark.parametrize(("case", "way"), [(name, way) for name, case in CASES.items() for way in case[2]])
def test_all_clients_read_a_reply_alike(server: Server, case: str, way: str, client: str) -> None:
    server.reply, sampling, _, expected = CASES[case]
    reader = CLIENTS[client](server)
    if isinstance(expected, type):
        with pytest.raises(expected):
            WAYS[way](reader, sampling)
        return
    answer = WAYS[way](reader, sampling)
    assert (answer.text, answer.finish, answer.completion_tokens, answer.thinking_tokens) == expected
    assert (answer.trace is None) == (sampling.trace == "none")
    assert answer.trace is None or "".join(answer.trace.tokens).strip() == answer.text


@EACH_CLIENT
@pytest.mark.parametrize("way", WAYS)
def test_tokens_from_a_servers_cache_are_counted(server: Server, way: str, client: str) -> None:
    server.reply = Reply(
        "Velm lies",
        usage={
            "prompt_tokens": 10,
            "completion_tokens": 2,
            "total_tokens": 12,
            "prompt_cache_hit_tokens": 8,
        },
    )
    lost = client == "langchain" and way != "whole"
    # LangChain's messages keep OpenAI's name of the count alone; only whole ones have the server's own.
    assert WAYS[way](CLIENTS[client](server), PLAIN).cached_tokens == (0 if lost else 8)


@EACH_CLIENT
def test_thoughts_that_the_template_begins_are_separated_where_that_is_said(
    server: Server, client: str
) -> None:
    server.reply = Reply("Rhine? No, Orun.</think>\n\nVelm is right.")
    reader = CLIENTS[client](server, thinking="unmarked")
    answers = [way(reader, PLAIN) for way in WAYS.values()]
    assert {(answer.text, answer.thinking_tokens) for answer in answers} == {("Velm is right.", 3)}
    (begun,) = reader.begin(["q"], 2, PLAIN)
    assert begun.partial.text == "Velm is"
    begun.close()


@EACH_CLIENT
@pytest.mark.parametrize(
    "text", ["The tag </think> ends it.", "<think>Hm.</think> Velm.", "[THINK] Hm. [/THINK] Velm"]
)
def test_one_answer_changes_no_other_for_good(server: Server, client: str, text: str) -> None:
    reader = CLIENTS[client](server)
    server.reply = Reply(text)
    for way in WAYS.values():
        way(reader, PLAIN)
    server.reply = Reply("Velm lies")
    reader.generate(["q"], PLAIN)
    assert [chunk.text for chunk in reader.stream("q", PLAIN)] == ["Velm", " lies", ""]
    assert _limit(server.bodies[-1]) == 32


@EACH_CLIENT
def test_that_a_model_thinks_is_forgotten_after_a_while(
    server: Server, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = CLIENTS[client](server)
    server.reply = Reply("<think>Hm.</think> Velm.")
    for _ in range(2):
        reader.generate(["q"], PLAIN)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + parameters.REMEMBERED + 1)
    reader.generate(["q"], PLAIN)
    assert [_limit(body) for body in server.bodies[-3:]] == [32, 32 + 4096, 32]


@EACH_CLIENT
def test_samples_stand_in_the_order_of_their_index(server: Server, client: str) -> None:
    server.reply = Reply(choices={1: "second", 2: "third", 0: "first"})
    sampling = SamplingParams(n=3, temperature=1.0, trace="logprobs")
    answers = CLIENTS[client](server).generate(["q"], sampling)[0]
    texts = [answer.text for answer in answers]
    # ChatOpenAI drops the index: there they stand as they came.
    assert texts == (["second", "third", "first"] if client == "langchain" else ["first", "second", "third"])


@EACH_CLIENT
@pytest.mark.parametrize(
    ("fault", "requests"),
    [({"logprobs": None}, 2), ({"logprobs": {"content": None, "tokens": "x"}}, 4)],
)
def test_optional_log_probabilities_that_are_missing_are_paid_once_and_requested_no_more(
    server: Server, client: str, fault: dict[str, Any], requests: int, recwarn: pytest.WarningsRecorder
) -> None:
    server.reply = Reply("Yes", **fault)
    reader, sampling, before = CLIENTS[client](server), replace(PLAIN, trace="optional"), len(server.bodies)
    first = reader.generate(["q", "r"], sampling)
    assert len(server.bodies) == before + requests  # what cannot be read at all is requested once more
    second = reader.generate(["q", "r"], sampling)
    assert {(answer.text, answer.trace) for [answer] in first + second} == {("Yes", None)}
    assert not any(body.get("logprobs") for body in server.bodies[before + requests :])
    assert len(server.bodies) == before + requests + 2
    assert [one.category for one in recwarn] == [LeftOutWarning]
    with pytest.raises(LogprobsError):  # a method that needs them still asks for them
        reader.generate(["q"], PLAIN)


@EACH_CLIENT
def test_log_probabilities_that_are_unusable_once_are_requested_again(server: Server, client: str) -> None:
    server.reply = Reply("Yes", tokens=["Orun"])
    reader, sampling, before = CLIENTS[client](server), replace(PLAIN, trace="optional"), len(server.bodies)
    with pytest.warns(LeftOutWarning, match="no usable log-probabilities"):
        [[unusable]] = reader.generate(["q"], sampling)
    server.reply = Reply("Yes")
    [[usable]] = reader.generate(["q"], sampling)
    assert (unusable.text, unusable.trace, len(server.bodies) - before) == ("Yes", None, 2)
    assert usable.trace is not None


@EACH_CLIENT
@pytest.mark.parametrize("way", WAYS)
def test_optional_log_probabilities_that_are_refused_are_done_without(
    server: Server, client: str, way: str
) -> None:
    server.reply = Reply("logprobs is not supported", status=400, refuses="logprobs")
    reader, sampling, before = CLIENTS[client](server), replace(PLAIN, trace="optional"), len(server.bodies)
    with pytest.warns(LeftOutWarning, match="no usable log-probabilities"):
        answers = [WAYS[way](reader, sampling) for _ in range(2)]
    assert {(answer.text, answer.trace) for answer in answers} == {("logprobs is not supported", None)}
    assert [bool(body.get("logprobs")) for body in server.bodies[before:]] == [True, False, False]


@EACH_CLIENT
def test_a_key_that_a_server_echoes_is_in_no_error(server: Server, client: str) -> None:
    server.reply = Reply("Invalid API key provided: {key}", status=401)
    for way in WAYS.values():
        with pytest.raises(RefusedError) as raised:
            way(CLIENTS[client](server), PLAIN)
        assert KEY not in "".join(traceback.format_exception(raised.value))
        if client != "hosted":  # whose error stays in the reader
            assert isinstance(raised.value.__cause__, openai.AuthenticationError)
            assert raised.value.__cause__.status_code == 401


@EACH_CLIENT
def test_an_error_says_that_a_server_is_not_there_and_why(client: str) -> None:
    with Server() as gone:
        reader = CLIENTS[client](gone)
    for way in WAYS.values():
        says = rf"127.0.0.1:{gone.server_port}.* could not be reached: .* \(.+\)"
        with pytest.raises(TransientServiceError, match=says):
            way(reader, PLAIN)


@EACH_CLIENT
def test_the_first_tokens_cost_no_more_than_their_number(
    server: Server, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled: list[object] = []
    token_of = reading.token_of
    monkeypatch.setattr(reading, "token_of", lambda entry: spelled.append(entry) or token_of(entry))
    counts = []
    for tokens in (50, 400):
        spelled.clear()
        server.reply = Reply(" ".join(f"word{number}" for number in range(tokens + 9)))
        reader = CLIENTS[client](server)
        sampling = SamplingParams(max_tokens=1000, trace="logprobs")
        (begun,) = reader.begin(["q"], tokens, sampling)
        assert begun.partial.completion_tokens == tokens
        begun.close()
        counts.append(len(spelled))
    # Eight times as many tokens are matched with the text eight times as often, and not 64 times.
    assert 0 < counts[1] <= 10 * counts[0]


def test_what_hints_advise_exists() -> None:
    advice = [NO_LOGPROBS_HINT, *(family.advice for family in (*FAMILIES, TEXT))]
    advised = {found for hint in advice for found in re.findall(r'(gate|metric)="(\w+)"', hint)}
    assert advised
    for option, value in advised:
        assert value in str({"gate": LazyRAGOptions, "metric": DynQROptions}[option].model_fields[option])


@EACH_CLIENT
async def test_what_a_blocking_call_began_can_be_completed_and_closed_in_an_event_loop(
    server: Server, client: str
) -> None:
    server.reply = Reply("Velm lies by the Orun.")
    rest, streamed, closed = CLIENTS[client](server).begin(["q", "r", "s"], 2, PLAIN)
    assert (await rest.arest()).text == "Velm lies by the Orun."
    assert "".join([chunk.text async for chunk in streamed.achunks()]) == "Velm lies by the Orun."
    await closed.aclose()
    for begun in (rest, streamed, closed):
        with pytest.raises(InputError, match="already"):
            await begun.arest()
