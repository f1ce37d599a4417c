"""One program in the caller's thread."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from surerag import FakeReader, evaluate
from surerag.drivers import run
from surerag.effects import (
    ContinueGeneration,
    Embed,
    Generate,
    Program,
    Retrieve,
    StartGeneration,
    emit,
    perform,
)
from surerag.errors import ConfigurationError, MissingServiceError, ServiceError
from surerag.messages import Event, Passage, Result, SamplingParams
from surerag.services import Services
from tests.drivers.local_reader import LocalReader, ask_once

label: ContextVar[str] = ContextVar("label", default="none")


def test_a_program_gets_its_answers_and_returns_its_result() -> None:
    assert run(ask_once("hello"), Services(LocalReader())) == "hello"


def test_a_failure_is_raised_inside_the_program_which_may_go_on() -> None:
    def careful() -> Program[str]:
        try:
            yield from perform(Generate(["poison"], SamplingParams()))
        except ServiceError:
            return (yield from ask_once("antidote"))
        return "not reached"

    assert run(careful(), Services(LocalReader())) == "antidote"


def test_a_missing_service_is_named() -> None:
    def program() -> Program[None]:
        yield from perform(Embed(["text"], "query"))

    with pytest.raises(MissingServiceError, match=r"encoder=…"):
        run(program(), Services(LocalReader()))


def test_services_of_the_user_run_in_the_callers_thread_and_context() -> None:
    seen: list[tuple[int, str]] = []

    class Retriever:
        def retrieve(self, query: str, k: int) -> list[Passage]:
            seen.append((threading.get_ident(), label.get()))
            return []

    def program() -> Program[str]:
        yield from perform(Retrieve("q", 1))
        return label.get()

    token = label.set("caller")
    try:
        reader = LocalReader()
        assert run(program(), Services(reader, retriever=Retriever())) == "caller"
        run(ask_once("q"), Services(reader))
    finally:
        label.reset(token)
    assert seen == [(threading.get_ident(), "caller")]


def test_what_a_program_leaves_open_is_cancelled() -> None:
    reader = LocalReader(answer=lambda prompt: "one two three")

    def forgetful() -> Program[str]:
        [kept, _] = yield from perform(StartGeneration(["a", "b"], 1, SamplingParams()))
        whole = yield from perform(ContinueGeneration(kept))
        return whole.text

    def failing() -> Program[None]:
        yield from perform(StartGeneration(["a"], 1, SamplingParams()))
        raise ValueError("mine")

    assert run(forgetful(), Services(reader)) == "one two three"
    with pytest.raises(ValueError, match="mine"):
        run(failing(), Services(reader))
    assert reader.open == set()


def test_events_reach_the_listener_and_warnings_the_log(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def program() -> Program[str]:
        yield from emit("fine", value=1)
        yield from emit("odd", warning=True, value=2)
        return (yield from ask_once("q"))

    run(program(), Services(LocalReader()), on_event=heard.append)
    assert [(event.name, dict(event.data)) for event in heard] == [
        ("fine", {"value": 1}),
        ("odd", {"value": 2}),
    ]
    assert [record.message for record in caplog.records] == ["Odd; value: 2 [odd]"]


class Returning:
    """A retriever that returns the same whatever it is asked for."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def retrieve(self, query: str, k: int | None) -> Any:
        return self._answer


def test_of_a_retriever_that_returns_more_than_is_asked_for_the_best_are_taken() -> None:
    more = [Passage("Velm"), Passage("Orun")]
    assert run(perform(Retrieve("Where?", 1)), Services(retriever=Returning(more))) == more[:1]
    assert run(perform(Retrieve("Where?", None)), Services(retriever=Returning(more))) == more


@pytest.mark.parametrize("answer", [None, "Velm", ["Velm"]])
def test_what_a_retriever_returns_has_to_be_passages(answer: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"passages from the retriever Returning, got (NoneType|str)"
    ):
        run(perform(Retrieve("Where?", 1)), Services(retriever=Returning(answer)))


@dataclass(frozen=True)
class MyResult(Result):
    """What a method of one's own returns."""

    answer: str
    passages: tuple[Passage, ...]


def my_method(question: str) -> Program[MyResult]:
    passages = yield from perform(Retrieve(question, 1))
    [[draft]] = yield from perform(Generate([question], SamplingParams()))
    [[answer]] = yield from perform(Generate([f"{passages[0].text} {draft.text}"], SamplingParams()))
    return MyResult(answer.text, tuple(passages))


def test_a_method_of_ones_own_reports_its_usage_by_deriving_its_result(tmp_path: Path) -> None:
    class Search:
        def retrieve(self, query: str, k: int | None) -> list[Passage]:
            return [Passage("Ada was born in Velm.")]

    services = Services(reader=FakeReader(lambda prompt: "In Velm"), retriever=Search())
    usage = run(my_method("Where?"), services).usage
    assert (usage.requests, usage.completion_tokens) == (2, 4) and usage.prompt_tokens > 5
    assert usage.seconds > 0
    system = {"mine": lambda question: run(my_method(question), services)}
    with evaluate(system, ["Where was Ada born?", "Where?"], tmp_path / "run.db") as rows:
        for row in rows.answered("mine").values():
            assert row.answer is not None and row.answer.usage is not None
            assert row.answer.usage.requests == 2 and row.answer.contexts == ("Ada was born in Velm.",)
