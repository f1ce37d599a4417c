"""The cookbook's web service starts, streams server-sent events, and stops what nobody reads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

from langchain_surerag import with_certainty
from tests.servers.fake_openai import FakeOpenAI

uvicorn = pytest.importorskip("uvicorn")
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


def events(address: str, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    """Ask, and return the names and the data of the events."""
    response = httpx.post(address, json=body, timeout=10)
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


def test_a_question_without_words_is_refused(address: str) -> None:
    assert httpx.post(address, json={"question": ""}).status_code == 422


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
