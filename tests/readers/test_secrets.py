"""No secret leaves a reader, whatever a server echoes: all three readers, all that an error becomes."""

from __future__ import annotations

import base64
import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest
from langchain_core.embeddings import Embeddings
from langchain_openai import ChatOpenAI
from llama_index.core.embeddings import BaseEmbedding
from llama_index.llms.openai_like import OpenAILike

from langchain_surerag import reader_from_model
from langchain_surerag.retrieval import encoder_of as langchain_encoder
from llama_index_surerag import reader_from_llm
from llama_index_surerag.services import encoder_of as llama_index_encoder
from surerag import (
    ClusterCompressor,
    DenseRefiner,
    FakeReader,
    LazyRAG,
    OpenAIReader,
    Passage,
    SamplingParams,
)
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ContextLengthError, RefusedError, SureragError, TransientServiceError
from surerag.evaluation import evaluate
from surerag.messages import Generation
from surerag.readers.failures import masked, service_error, without_secrets
from surerag.readers.protocol import BaseReader, BegunGeneration
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.faults import FAULTS

KEY = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"
ODD_KEY = "Az+/9_x=7f8e7d6c5b4a3928"
SAMPLING = SamplingParams(max_tokens=6, trace="logprobs")

READERS: dict[str, Callable[[str, str], BaseReader]] = {
    "hosted": lambda url, key: OpenAIReader("toy", base_url=url, api_key=key, max_retries=0),
    "LangChain": lambda url, key: reader_from_model(
        ChatOpenAI(model="toy", base_url=url, api_key=key, max_retries=0)  # type: ignore[arg-type]  # a str
    ),
    "LlamaIndex": lambda url, key: reader_from_llm(
        OpenAILike(model="toy", api_base=url, api_key=key, is_chat_model=True, max_retries=0)
    ),
}


def answer(**choice: Any) -> bytes:
    message = {"role": "assistant", "content": "Velm"}
    entry = {"token": "Velm", "logprob": -0.1, "top_logprobs": []}
    whole = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": [entry]}}
    return json.dumps({"id": "1", "object": "chat.completion", "choices": [{**whole, **choice}]}).encode()


def said(text: str) -> bytes:
    return json.dumps({"error": {"message": f"Invalid API key provided: {text}", "code": text}}).encode()


ECHOES: dict[str, Callable[[str], tuple[int, str, bytes]]] = {
    "401": lambda text: (401, "application/json", said(text)),
    "401 as text": lambda text: (401, "text/plain", text.encode()),
    "500": lambda text: (500, "application/json", said(text)),
    "500, long": lambda text: (500, "text/plain", ("x" * 280 + text + "y" * 900).encode()),
    "error with status 200": lambda text: (200, "application/json", said(text)),
    "no choices": lambda text: (200, "application/json", json.dumps({"detail": text}).encode()),
    "a bad choice": lambda text: (200, "application/json", json.dumps({"choices": [text]}).encode()),
    "HTML": lambda text: (200, "text/html", f"<html>no key {text}</html>".encode()),
    "plain text": lambda text: (200, "text/plain", f"no key {text}".encode()),
    "not UTF-8": lambda text: (200, "application/json", b'{"choices": "\xff' + text.encode() + b'"}'),
    "cut off by us": lambda text: (200, "application/json", json.dumps({"x": "y" * 85 + text}).encode()),
    "a log-probability": lambda text: (
        200,
        "application/json",
        answer(logprobs={"content": [{"token": "Velm", "logprob": text, "top_logprobs": []}]}),
    ),
    "log-probabilities": lambda text: (200, "application/json", answer(logprobs={"content": text})),
}

SPELLED: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "upper case": str.upper,
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "Basic": lambda key: base64.b64encode(f"ada:{key}".encode()).decode(),
    "in an address": lambda key: f"http://ada:{quote(key, safe='')}@host/v1?key={quote(key, safe='')}",
}


FURTHER: dict[str, Callable[[str], str]] = {
    "percent-encoded twice": lambda key: quote(quote(key, safe=""), safe=""),
    "every character percent-encoded": lambda key: "".join(f"%{ord(one):02X}" for one in key),
    "HTML entities": lambda key: "".join(f"&#{ord(one)};" for one in key),
    "hexadecimal entities": lambda key: "".join(f"&#x{ord(one):x};" for one in key),
    "hex": lambda key: key.encode().hex(),
    "hex in capitals": lambda key: key.encode().hex(" ").upper(),
    "on lines": lambda key: "\r\n  ".join(key[at : at + 10] for at in range(0, len(key), 10)),
    "escapes of Python": lambda key: "".join(f"\\x{ord(one):02x}" for one in key),
    "escapes of JSON": lambda key: "".join(f"\\u{ord(one):04x}" for one in key),
}


def everything_in(error: BaseException | None) -> Iterator[str]:
    """Yield all texts of an error and of those behind it."""
    while error is not None:
        yield from (str(error), repr(error.args), repr(vars(error)))
        with suppress(Exception):
            yield vars(error)["response"].text
        yield from getattr(error, "__notes__", ())
        for member in getattr(error, "exceptions", ()):
            yield from everything_in(member)
        error = error.__cause__ or error.__context__


def assert_hidden(key: str, *texts: str) -> None:
    for text in texts:
        lower = text.lower()
        assert key.lower()[:8] not in lower
        assert quote(key, safe="").lower()[:8] not in lower
        for before in ("", "ada:"):
            assert base64.b64encode(f"{before}{key}".encode()).decode()[8:24] not in text


class Search:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage("Velm lies by the sea.", id="velm")]


@pytest.fixture
def echo(fake_openai: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], str]:
    def echo(echoed: str, spelled: str, key: str) -> str:
        status, kind, data = ECHOES[echoed](SPELLED[spelled](key))
        monkeypatch.setitem(
            FAULTS, "echo", lambda handler, body: handler.send(status, data, Content_Type=kind)
        )
        fake_openai.fault = "echo"
        return fake_openai.base_url

    return echo


@pytest.mark.parametrize(
    ("echoed", "spelled", "key"),
    [
        *((echoed, "as it is", KEY) for echoed in ECHOES),
        *(("no choices", spelled, ODD_KEY) for spelled in SPELLED),
        ("401", "Basic", ODD_KEY),
    ],
)
@pytest.mark.parametrize("name", READERS)
def test_no_error_shows_a_key_that_the_server_echoes(
    echo: Any, name: str, echoed: str, spelled: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reader = READERS[name](echo(echoed, spelled, key), key)

    def ask(question: str) -> str:
        return reader.generate([question], SAMPLING)[0][0].text

    def ask_in_pieces() -> object:
        return BegunGeneration.rest_of(reader.begin(["Where?"], 2, SAMPLING))

    with pytest.raises(SureragError) as caught:
        ask("Where?")
    errors: list[BaseException] = [caught.value]
    for attempt in (ask_in_pieces, lambda: evaluate({"one": ask}, [("Where?", "Velm")]).rows):
        try:
            shown = repr(attempt())
        except SureragError as error:
            errors.append(error)
        else:
            assert_hidden(key, shown)
    assert_hidden(key, caplog.text)
    for error in errors:
        assert_hidden(key, "".join(traceback.format_exception(error)), *everything_in(error))


@pytest.mark.parametrize("name", READERS)
def test_no_decision_shows_a_key_that_the_server_echoes(
    echo: Any, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = READERS[name](echo("500", "as it is", KEY), KEY)
    # What passes degrades: the first pass fails, and the second one does not.
    monkeypatch.setattr(type(reader), "generate", lambda *_: [[Generation("By the sea.")]])
    result = LazyRAG(reader, Search(), "A page about towns.", gate="entropy").run("Where is Velm?")
    assert "failed" in result.decision.reason
    assert "failed" in caplog.text
    assert_hidden(KEY, repr(result), caplog.text)


class Refused:
    """A search whose client shows a key that nobody could tell us before."""

    def retrieve(self, query: str, k: int | None = None) -> list[Passage]:
        raise ValueError("no search with sk-12345678 at https://ada:secret@host/")


def test_no_decision_shows_a_key_in_an_error_of_a_service(caplog: pytest.LogCaptureFixture) -> None:
    shown = "ValueError: no search with [key] at https://[key]@host/"
    lazy = LazyRAG(FakeReader(["Velm"]), Search(), Refused(), gate="abstention").run("Where?")
    assert lazy.decision.reason.endswith(": ValueError") and shown in caplog.text

    class Failing(HashingEncoder):
        def encode(self, texts: Any, kind: Any) -> Any:
            raise ValueError("no search with sk-12345678 at https://ada:secret@host/")

    passages = [Passage("Velm."), Passage("Orun.")]
    compressed = ClusterCompressor(FakeReader(["Velm"]), Failing(), top_n=1).run("Where?", passages)
    assert compressed.clusters[0].reason == "ValueError"
    refiner = DenseRefiner(
        FakeReader(lambda _: ValueError("sk-12345678")), ExactEntailer(), Failing(), top_n=1
    )
    assert refiner.run("Where?", passages).failure == "ValueError"
    assert "sk-12345678" not in caplog.text and "secret" not in caplog.text


def refuse(*_: object) -> Any:
    response = httpx.Response(401, text=KEY, request=httpx.Request("POST", "http://host/v1"))
    raise openai.AuthenticationError(f"Invalid key {KEY}", response=response, body=None)


class LangChainEmbeddings(Embeddings):
    def __init__(self) -> None:
        self.api_key = KEY

    embed_documents = embed_query = refuse


class LlamaIndexEmbeddings(BaseEmbedding):
    api_key: str = KEY
    _get_query_embedding = _get_text_embedding = _aget_query_embedding = _aget_text_embedding = refuse


@pytest.mark.parametrize(
    "encoder", [langchain_encoder(LangChainEmbeddings()), llama_index_encoder(LlamaIndexEmbeddings())]
)
async def test_a_refused_embedding_is_raised_and_shows_no_key(encoder: Any) -> None:
    passages = [Passage("Velm lies by the sea."), Passage("Orun is a river.")]
    tool = ClusterCompressor(FakeReader(["Velm"]), encoder, top_n=1)
    for kind in ("query", "document"):
        with pytest.raises(RefusedError, match=r"answered 401: Invalid key \[key\]") as caught:
            encoder.encode(["Where?"], kind)
        with pytest.raises(RefusedError, match=r"answered 401: Invalid key \[key\]") as awaited:
            await encoder.aencode(["Where?"], kind)
        for error in (caught.value, awaited.value):
            assert_hidden(KEY, "".join(traceback.format_exception(error)), *everything_in(error))
    with pytest.raises(RefusedError):
        tool.run("Where?", passages)
    with pytest.raises(RefusedError):
        await tool.arun("Where?", passages)


def test_an_error_that_shows_a_secret_is_replaced_and_ours_keeps_its_class() -> None:
    client_error = ValueError("slow down")
    client_error.response = httpx.Response(429, text=f"slow down, {KEY}")  # type: ignore[attr-defined]  # a client's
    ours = ContextLengthError(f"too long for {KEY}", hint="shorten it", inputs=["Where?"])
    ours.__cause__ = client_error
    safe = without_secrets(ours, [KEY])
    assert isinstance(safe, ContextLengthError)
    assert (safe.message, safe.hint, safe.inputs) == ("too long for [key]", "shorten it", ("Where?",))
    assert (type(safe.__cause__), str(safe.__cause__)) == (ValueError, "slow down")
    assert_hidden(KEY, *everything_in(safe))
    clean = ValueError("no secret")
    assert without_secrets(clean, [KEY]) is clean


def test_a_clients_error_keeps_its_class_and_status_and_no_request_or_response() -> None:
    request = httpx.Request("POST", "http://host/v1", headers={"Authorization": KEY})
    response = httpx.Response(429, text=KEY, request=request)
    error = openai.RateLimitError("slow down", response=response, body={"message": KEY, "code": f"no {KEY}"})
    safe = without_secrets(error, [KEY])
    assert isinstance(safe, openai.RateLimitError)
    assert (str(safe), safe.status_code, safe.code) == ("slow down", 429, "no [key]")
    assert not {"request", "response", "body"} & set(vars(safe))
    assert_hidden(KEY, *everything_in(safe))
    odd = without_secrets(httpx.HTTPStatusError(KEY, request=request, response=response), [KEY])
    assert (type(odd), odd.status_code) == (httpx.HTTPStatusError, 429)  # type: ignore[attr-defined]  # a number
    missing = without_secrets(KeyError(KEY), [KEY])
    assert (type(missing), str(missing)) == (Exception, "KeyError: '[key]'")


def test_members_of_groups_notes_and_circles_of_causes_show_no_secret() -> None:
    inner, circle = ValueError("no answer"), ValueError(f"Invalid key {KEY}")
    inner.__cause__, circle.__cause__ = ConnectionError(f"sent {KEY}"), circle
    inner.add_note(f"with {KEY}")
    clean = KeyError("clean")
    ours = TransientServiceError("busy")
    ours.add_note(f"sent {KEY}")
    ours.__cause__ = ExceptionGroup("two", [inner, ExceptionGroup(KEY, [clean]), circle])
    safe = without_secrets(ours, [KEY])
    shown = "".join(traceback.format_exception(safe))
    assert shown.count("[key]") >= 5
    assert_hidden(KEY, shown, *everything_in(safe.__cause__.exceptions[0]))
    assert safe.__cause__.exceptions[1].exceptions == (clean,)
    assert service_error(circle, "toy", [KEY]).message == "toy failed with ValueError: Invalid key [key]"


@pytest.mark.parametrize(
    ("secret", "shown"), [(KEY, KEY[:10]), ("pass\\word\"9f8e'7d", "pass\\word\"9f8e'7d")]
)
def test_a_secret_that_is_cut_off_or_escaped_is_hidden_behind_an_error(secret: str, shown: str) -> None:
    ours = ContextLengthError("too long", hint="shorten it")
    ours.__cause__ = KeyError(shown)
    ours.__cause__.body = {"error": [shown, shown.encode()]}  # type: ignore[attr-defined]  # a client's
    safe = without_secrets(ours, [secret])
    assert_hidden(shown, str(safe.__cause__), repr(safe.__cause__), repr(vars(safe.__cause__)))
    assert_hidden(repr(shown)[1:-1], str(safe.__cause__))


@pytest.mark.parametrize("size", [1, 3, 7, 8, 16, 40])
def test_a_secret_is_hidden_at_every_place_of_base64(size: int) -> None:
    key = (KEY * 2)[:size]
    for before in range(6):
        for behind in range(3):
            encoded = base64.b64encode(b"x" * before + key.encode() + b"y" * behind).decode()
            shown = masked(f"sent {encoded} there", [key])
            assert shown == (f"sent {encoded} there" if size < 7 else "sent [key] there"), (before, behind)


@pytest.mark.parametrize("key", ["EMPTY", "none", "k"])
def test_a_short_key_is_hidden_as_a_word_alone(key: str) -> None:
    text = f"an empty answer, nonetheless; {key}."
    assert masked(text, [key]) == "an empty answer, nonetheless; [key]."


@pytest.mark.parametrize("key", [KEY, ODD_KEY])
@pytest.mark.parametrize("spelled", FURTHER)
def test_a_secret_is_hidden_in_further_spellings(spelled: str, key: str) -> None:
    for before, behind in (("no key ", "."), ('"', '" at 9'), ("", "")):
        assert masked(f"{before}{FURTHER[spelled](key)}{behind}", [key]) == f"{before}[key]{behind}"


def test_masking_many_texts_takes_a_moment() -> None:
    text, started = "a reply without a key. " * 3000, time.process_time()
    for _ in range(20):
        masked(text, [KEY])
    assert time.process_time() - started < 5
