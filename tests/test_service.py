"""The cookbook's web service starts, streams server-sent events, and stops what nobody reads."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain.agents import create_agent
from langchain_classic.chains import RetrievalQA, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI
from llama_index.core import Document, SummaryIndex

import llama_index_surerag
from langchain_surerag import (
    CertaintyChain,
    ChatReader,
    LazyRetrievalChain,
    SelectiveAnswer,
    with_certainty,
)
from surerag import AbstentionPolicy, Certainty, FakeReader
from surerag.errors import ConfigurationError
from tests.servers.fake_openai import FakeOpenAI
from tests.waiting import eventually

uvicorn = pytest.importorskip("uvicorn")
TestClient = pytest.importorskip("fastapi.testclient").TestClient
service = pytest.importorskip("cookbooks.service", exc_type=ImportError)


def load(server: FakeOpenAI) -> Callable[[], Any]:
    """Return a function that loads a chain over the scripted server."""
    model = ChatOpenAI(model="toy", base_url=server.base_url, api_key="k", max_retries=0)
    return lambda: ChatPromptTemplate.from_template("{question}") | with_certainty(model)


@contextmanager
def started(app: Any) -> Iterator[str]:
    """Serve an application on a free port, and yield its address."""
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/ask"
    running.should_exit = True
    thread.join()


def ask(chain: Any, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    """Ask a service of a chain without a server, and return the names and the data of the events."""
    with TestClient(service.create_app(lambda: chain)) as client:
        return events("/ask", client.post, **body)


def events(address: str, post: Any = httpx.post, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    """Ask, and return the names and the data of the events."""
    response = post(address, json=body, timeout=10)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [event.split("\n") for event in response.text.split("\n\n") if event]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


@pytest.fixture
def address(fake_openai: FakeOpenAI) -> Iterator[str]:
    """Serve a chain over the scripted server."""
    with started(service.create_app(load(fake_openai), seconds=2)) as url:
        yield url


def test_an_answer_is_streamed_and_its_certainty_is_the_end(address: str, fake_openai: FakeOpenAI) -> None:
    fake_openai.answers, fake_openai.logprob = ["Ada was born in Velm"], -0.01
    *tokens, (name, end) = events(address, question="Where was Ada born?")
    assert "".join(data["text"] for _, data in tokens) == "Ada was born in Velm" == end["answer"]
    assert len(tokens) > 2 and {name for name, _ in tokens} == {"token"}
    assert name == "end" and end["shown"] and 0 < end["uncertainty"] < 0.1


@pytest.mark.parametrize("draft", [True, False])
def test_an_unsure_answer_is_not_shown(
    draft: bool, address: str, fake_openai: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_openai.answers, fake_openai.logprob = ["Orun"], -0.7
    monkeypatch.setattr(service, "LIMIT", 0.5)
    *tokens, (_, end) = events(address, question="Where was Ada born?", draft=draft)
    assert bool(tokens) == draft
    assert not end["shown"] and end["answer"] == service.NO_ANSWER


class Nothing(BaseRetriever):
    """A retriever that finds nothing."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
        return []


def model(answer: str = "Ada was born in Velm", entropy: float = 0.25) -> ChatReader:
    return ChatReader(FakeReader([answer], entropy=entropy))


ASK = ChatPromptTemplate.from_template("{question}")
WITH_DOCUMENTS = ChatPromptTemplate.from_template("{context} {input}")
POLICY = AbstentionPolicy(0.5, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
CHAINS: dict[str, Callable[[], Any]] = {
    "message": lambda: ASK | model(),
    "model": model,
    "text": lambda: ASK | model() | StrOutputParser(),
    "function": lambda: ASK | model() | (lambda message: {"answer": message.text}),
    "mapping of a message": lambda: {"answer": ASK | model()} | RunnableLambda(lambda found: found),
    "json": lambda: ASK | model('{"answer": "Ada was born in Velm"}') | JsonOutputParser(),
    "CertaintyChain": lambda: CertaintyChain(ASK | model() | StrOutputParser()),
    "SelectiveAnswer": lambda: SelectiveAnswer(ASK | model(), POLICY),
    "create_retrieval_chain": lambda: create_retrieval_chain(
        Nothing(), create_stuff_documents_chain(model(), WITH_DOCUMENTS)
    ),
    "CertaintyChain of create_retrieval_chain": lambda: CertaintyChain(
        create_retrieval_chain(Nothing(), create_stuff_documents_chain(model(), WITH_DOCUMENTS))
    ),
    "LazyRetrievalChain": lambda: LazyRetrievalChain(
        llm=model(), retriever=Nothing(), summaries=Nothing(), summaries_are_public=True
    ),
    "agent": lambda: create_agent(model(), []),
}


@pytest.mark.parametrize("draft", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_chains_may_end_in_all_that_holds_an_answer(name: str, draft: bool) -> None:
    *tokens, (last, end) = ask(CHAINS[name](), question="Where was Ada born?", draft=draft)
    assert last == "end" and end["shown"] and end["uncertainty"] == pytest.approx(0.25)
    assert "".join(data["text"] for _, data in tokens) == end["answer"] == "Ada was born in Velm"


@pytest.mark.parametrize("name", ["RetrievalQA", "number", "two inputs", "a function"])
def test_a_chain_that_the_service_cannot_use_is_refused_at_the_start(name: str) -> None:
    def count(text: str) -> int:
        return len(text)

    chain, reason = {
        "RetrievalQA": (RetrievalQA.from_chain_type(model(), retriever=Nothing()), "has the keys result"),
        "number": (ASK | model() | StrOutputParser() | count, "has the type integer"),
        "two inputs": (WITH_DOCUMENTS | model(), "needs the inputs context, input"),
        "a function": (count, "chain must be a chain, graph or agent, got a function"),
    }[name]
    with pytest.raises(ConfigurationError, match=reason), TestClient(service.create_app(lambda: chain)):
        pass


def test_a_withheld_answer_is_withheld_whatever_the_limit_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "LIMIT", 9.0)
    _, (_, end) = ask(SelectiveAnswer(ASK | model(entropy=2.0), POLICY), question="Where?")
    assert not end["shown"] and end["probability"] == 0.1


def test_the_log_says_why_no_answer_is_shown(
    caplog: pytest.LogCaptureFixture, fake_openai: FakeOpenAI
) -> None:
    chat = ChatOpenAI(model="toy", base_url=fake_openai.base_url, api_key="k")
    with pytest.warns(match="with_certainty"):
        *_, (_, end) = ask(ASK | chat, question="Where?")
    assert not end["shown"] and end["uncertainty"] is None
    assert "the model was not asked for log-probabilities" in caplog.text


def test_a_chain_that_ends_without_an_answer_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    chain = ASK | model() | (lambda message: {"text": 1})
    assert ask(chain, question="Where?") == [("error", {"message": "the model did not answer"})]
    assert "the chain ended without an answer" in caplog.text


def test_a_policy_of_another_model_is_named_before_any_token_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = FakeReader(lambda prompt: "Ada was born in Velm", entropy=0.25)
    chain = CertaintyChain(ASK | ChatReader(reader) | RunnablePassthrough())
    scope = Certainty.from_dict(chain.invoke("Where?")["certainty"]).scope
    assert {"reader", "prompt", "settings"} <= set(scope)
    path = tmp_path / "policy.json"
    monkeypatch.setenv("POLICY", str(path))
    for part in ("reader", "prompt", "settings"):
        replace(POLICY, scope={**scope, part: "another"}).save(path)
        assert ask(chain, question="Where?") == [("error", {"message": service.NO_FIT})]
        assert f"the policy was calibrated for the {part} 'another'" in caplog.text
    replace(POLICY, scope=scope).save(path)
    with TestClient(service.create_app(lambda: chain)) as client:
        first, second = (events("/ask", client.post, question="Where was Ada born?") for _ in range(2))
    assert len(first) == 2 < len(second), "tokens are streamed after the policy was seen to fit"
    assert first[-1] == second[-1] and first[-1][1]["shown"]


@pytest.mark.parametrize("part", ["reader", "prompt", "settings"])
def test_a_policy_of_another_model_is_refused_at_the_start(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = ASK | model()
    scope = Certainty.from_dict(CertaintyChain(chain).invoke("Where?")["certainty"]).scope
    monkeypatch.setenv("POLICY", str(tmp_path / "policy.json"))
    replace(POLICY, scope={**scope, part: "another"}).save(tmp_path / "policy.json")
    with (
        pytest.raises(ConfigurationError, match=f"was calibrated for the {part} 'another'"),
        TestClient(service.create_app(lambda: chain)),
    ):
        pass


def test_a_second_policy_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY", str(tmp_path / "policy.json"))
    POLICY.save(tmp_path / "policy.json")
    with pytest.raises(ConfigurationError, match="SelectiveAnswer has a policy of its own"):
        ask(SelectiveAnswer(ASK | model(), POLICY), question="Where?")


def test_a_policy_without_a_guarantee_is_named_at_the_start_and_for_each_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("POLICY", str(tmp_path / "policy.json"))
    replace(POLICY, threshold=-math.inf).save(tmp_path / "policy.json")
    chain = ASK | ChatReader(FakeReader(lambda prompt: "Velm", entropy=0.25))
    with TestClient(service.create_app(lambda: chain)) as client:
        for count in (1, 2):
            assert caplog.text.count("no guarantee is possible with 100 questions") == count
            assert caplog.text.count(service.MORE) == count
            assert not events("/ask", client.post, question="Where?")[-1][1]["shown"]


UNKNOWN = "Das weiß ich nicht."


@pytest.mark.parametrize("place", ["chain", "argument", "environment"])
def test_the_sentence_of_the_user_replaces_an_unsure_answer(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain: Any = ASK | model(entropy=2.0)
    if place == "chain":
        chain = SelectiveAnswer(chain, POLICY, abstention=UNKNOWN)
    if place == "environment":
        monkeypatch.setenv("ABSTENTION", UNKNOWN)
    app = service.create_app(lambda: chain, abstention=UNKNOWN if place == "argument" else "")
    with TestClient(app) as client:
        (_, end) = events("/ask", client.post, question="Where?")[-1]
    assert not end["shown"] and end["answer"] == UNKNOWN


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("entropy", [0.25, 2.0])
def test_an_engine_of_llama_index_is_served(
    entropy: float, streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llama_index_surerag.with_certainty(FakeReader(lambda prompt: "Ada was born", entropy=entropy))
    index = SummaryIndex.from_documents([Document(text="Ada was born in Velm.")])
    engine = index.as_query_engine(llm=llm, streaming=streaming)
    *tokens, (_, end) = ask(engine, question="Where?")
    assert "".join(data["text"] for _, data in tokens) == "Ada was born"
    assert end["shown"] == (entropy < 1) and end["uncertainty"] == pytest.approx(entropy)
    monkeypatch.setenv("POLICY", str(tmp_path / "policy.json"))
    POLICY.save(tmp_path / "policy.json")
    _, decided = ask(engine, question="Where?")[-1]
    assert decided["shown"] == (entropy < 0.5) and decided["probability"] is not None
    monkeypatch.delenv("POLICY")
    selecting = llama_index_surerag.AbstainingQueryEngine(engine, POLICY, abstention=UNKNOWN)
    _, selected = ask(selecting, question="Where?")[-1]
    assert selected["answer"] == ("Ada was born" if entropy < 0.5 else UNKNOWN)


INTERRUPTED = """
import sys
import uvicorn
from langchain_openai import ChatOpenAI
from cookbooks import service

def load():
    return ChatOpenAI(model="toy", base_url=sys.argv[1], api_key="k", max_retries=0, logprobs=True)

uvicorn.run(service.create_app(load), port=int(sys.argv[2]))
"""


def test_ctrl_c_ends_the_running_answers_and_the_service(fake_openai: FakeOpenAI) -> None:
    fake_openai.answers, fake_openai.options["pace"] = ["Velm " * 500], 0.05
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [sys.executable, "-c", INTERRUPTED, fake_openai.base_url, str(port)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        url = f"http://127.0.0.1:{port}/ask"
        assert eventually(lambda: answers(port))
        with httpx.stream("POST", url, json={"question": "Where?"}, timeout=20) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            rest = [*lines]
        _, log = process.communicate(timeout=20)
    assert 'data: {"message": "the service was stopped"}' in rest
    assert process.returncode == 0 and "Traceback" not in log and "Finished server process" in log


def answers(port: int) -> bool:
    """Return whether a server accepts connections at a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_an_import_reads_no_policy() -> None:
    code = "from cookbooks.service import load_chain"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "POLICY": "nofile"}, check=True)


def test_a_policy_that_cannot_be_read_ends_the_service_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, service.__file__],
        env={**os.environ, "POLICY": "nofile"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Set POLICY to a file that policy.save(…) wrote, or unset it" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("question", ["", " \n\t", "x" * 2001, 7, None])
def test_a_question_without_words_is_refused(question: Any, address: str) -> None:
    assert httpx.post(address, json={"question": question}).status_code == 422


def test_a_refusal_does_not_repeat_the_question(address: str) -> None:
    headers = {"Content-Type": "application/json"}
    for body in (b'{"question": "secret \\ud800"}', json.dumps({"question": "secret" * 1000}).encode()):
        response = httpx.post(address, content=body, headers=headers)
        assert response.status_code == 422 and "question" in response.text
        assert "secret" not in response.text


def test_a_server_without_the_name_of_a_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASE_URL", "http://localhost:1/v1")
    monkeypatch.delenv("MODEL", raising=False)
    with pytest.raises(ConfigurationError, match="MODEL is not set"):
        service.load_chain()


def test_a_failure_is_an_event_that_names_no_host(address: str, fake_openai: FakeOpenAI) -> None:
    fake_openai.fault = "500"
    assert events(address, question="Where?") == [("error", {"message": "the model did not answer"})]


def test_what_takes_too_long_is_an_event(address: str, fake_openai: FakeOpenAI) -> None:
    fake_openai.answers, fake_openai.options["pace"] = ["Velm " * 100], 0.1
    assert events(address, question="Where?")[-1] == ("error", {"message": "no answer within 2 seconds"})


def test_a_client_that_leaves_ends_the_generation(address: str, fake_openai: FakeOpenAI) -> None:
    fake_openai.answers, fake_openai.options["pace"] = ["Velm " * 60], 0.02
    with httpx.stream("POST", address, json={"question": "Where?"}) as response:
        next(response.iter_lines())
    for _ in range(100):
        if fake_openai.streams and fake_openai.streams[-1]["closed"]:
            break
        time.sleep(0.01)
    assert fake_openai.streams[-1]["closed"]
    assert fake_openai.streams[-1]["sent"] < 60
