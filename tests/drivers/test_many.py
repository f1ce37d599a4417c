"""Many programs: merged, in order, each on its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import numpy as np
import pytest
from numpy.typing import NDArray

from surerag.drivers import iter_many, run_many
from surerag.drivers.answering import queue_of
from surerag.effects import ContinueGeneration, Embed, Entail, Program, Retrieve, StartGeneration, perform
from surerag.errors import ConfigurationError, ServiceError
from surerag.messages import Pair, Passage, SamplingParams
from surerag.readers.fake import FakeReader
from surerag.readers.protocol import BaseReader
from surerag.services import Services
from tests.drivers.local_reader import LocalReader, ask_once

label: ContextVar[str] = ContextVar("label", default="none")


def gated(prompt: str) -> Program[str]:
    [begun] = yield from perform(StartGeneration([prompt], 1, SamplingParams()))
    if prompt.startswith("drop"):
        return "dropped"
    whole = yield from perform(ContinueGeneration(begun))
    return whole.text


def test_questions_to_a_local_model_become_few_batches_in_order() -> None:
    reader = LocalReader()
    prompts = [f"question {i}" for i in range(50)]
    assert run_many([ask_once(prompt) for prompt in prompts], Services(reader)) == prompts
    assert len(reader.batches) <= 5  # 1 on an idle machine


def test_a_failure_is_raised_in_its_place_or_returned() -> None:
    done: list[tuple[int, int | None]] = []
    programs = [ask_once("a"), ask_once("poison"), ask_once("b")]
    first, failure, last = run_many(
        programs,
        Services(LocalReader()),
        progress=lambda n, total: done.append((n, total)),
        return_exceptions=True,
    )
    assert (first, last, done) == ("a", "b", [(1, 3), (2, 3), (3, 3)])
    assert isinstance(failure, ServiceError)

    results = iter_many([ask_once("a"), ask_once("poison"), ask_once("b")], Services(LocalReader()))
    assert next(results) == "a"
    with pytest.raises(ServiceError, match="poisoned"):
        next(results)


def test_begun_generations_finish_and_dropped_ones_are_freed() -> None:
    reader = LocalReader(answer=lambda prompt: f"{prompt} and more")
    prompts = ["keep a", "drop b", "keep c"]
    results = run_many([gated(prompt) for prompt in prompts], Services(reader))
    assert results == ["keep a and more", "dropped", "keep c and more"]
    assert reader.open == set()


class _Vectors:
    name = "vectors"
    local = True

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, texts: Sequence[str], kind: str) -> NDArray[np.float32]:
        self.texts += texts
        return np.array([[len(text)] for text in texts], dtype=np.float32)


class _Judge:
    name = "judge"
    local = True

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        return np.array([[0, 0, float(pair.premise == pair.hypothesis)] for pair in pairs])


class _Corpus:
    """A retriever that takes many queries."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage(query)]

    def retrieve_many(self, queries: Sequence[str], k: int | None) -> list[list[Passage]]:
        return [[Passage(query)] for query in queries]


def test_merged_services_give_every_program_its_own() -> None:
    services = Services(encoder=_Vectors(), retriever=_Corpus(), entailer=_Judge())

    def program(text: str) -> Program[tuple[float, float, str]]:
        vectors = yield from perform(Embed([text, "shared"], "document"))
        links = yield from perform(Entail([Pair(text, text), Pair("x", "y")]))
        [passage] = yield from perform(Retrieve(text, 1))
        return float(vectors[0, 0]), float(links[0, 2]), passage.text

    texts = ["a", "abc", "a", "bb"] * 4
    expected = [(float(len(text)), 1.0, text) for text in texts]
    assert run_many([program(text) for text in texts], services) == expected


def test_the_users_own_services_run_in_each_programs_context() -> None:
    class Corpus:
        def retrieve(self, query: str, k: int | None) -> list[Passage]:
            before = label.get()
            label.set(query)
            return [Passage(before)]

    def program(query: str) -> Program[tuple[str, str]]:
        [passage] = yield from perform(Retrieve(query, 1))
        return passage.text, label.get()

    token = label.set("caller")
    try:
        results = run_many([program("a"), program("b")], Services(retriever=Corpus()))
    finally:
        label.reset(token)
    assert results == [("caller", "a"), ("caller", "b")]


def test_programs_are_read_only_as_there_is_room() -> None:
    started: list[int] = []
    room = threading.Semaphore(0)

    def script(prompt: str) -> str:
        room.acquire()
        return prompt

    def programs() -> Iterator[Program[str]]:
        for i in range(12):
            started.append(i)
            yield ask_once(f"q{i}")

    with ThreadPoolExecutor(1) as pool:
        reader = FakeReader(script)
        future = pool.submit(run_many, programs(), Services(reader), window=3)
        while len(reader.history) < 3:
            pass
        assert len(started) == 3
        room.release(12)
        assert future.result() == [f"q{i}" for i in range(12)]


def test_results_come_as_they_are_ready_and_a_closed_iterator_starts_no_more() -> None:
    started: list[int] = []

    def programs() -> Iterator[Program[str]]:
        for i in range(1000):
            started.append(i)
            yield ask_once(f"q{i}")

    results = iter_many(programs(), Services(LocalReader()), window=2)
    assert [next(results) for _ in range(3)] == ["q0", "q1", "q2"]
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert len(started) < 20


@pytest.mark.parametrize("reader", [LocalReader(), FakeReader(["a"])])
def test_running_nothing_at_a_time_is_refused(reader: BaseReader) -> None:
    with pytest.raises(ConfigurationError, match="window"):
        run_many([ask_once("a")], Services(reader), window=0)


def test_programs_that_never_ran_are_not_waited_for() -> None:
    services = Services(reader := LocalReader())
    reader.gate.clear()
    results = iter_many([ask_once(f"q{i}") for i in range(8)], services, window=2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, results)
        reader.gate.set()
        assert first.result() == "q0"
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert not queue_of(services.reader)._programs
