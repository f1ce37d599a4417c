"""The queue before a local model, as separate threads see it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from surerag.drivers import run
from surerag.drivers.merging import queue_of
from surerag.effects import Generate, Program, generate
from surerag.errors import ConfigurationError, ServiceError
from surerag.services import Services
from surerag.types import Sampling
from tests.drivers.local_reader import LocalReader


def ask_once(prompt: str) -> Program[str]:
    [[answer]] = yield from generate([prompt], Sampling())
    return answer.text


def test_threads_that_wait_while_the_model_is_busy_form_the_next_batch() -> None:
    reader = LocalReader()
    services = Services(reader)
    reader.gate.clear()
    queue = queue_of(services.reader)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(run, ask_once("first"), services)
        while queue._pending or not queue._leading.locked():
            pass
        others = [pool.submit(run, ask_once(f"q{i}"), services) for i in range(8)]
        while len(queue._pending) < 8:
            pass
        reader.gate.set()
        assert first.result() == "first"
        assert [other.result() for other in others] == [f"q{i}" for i in range(8)]
    assert reader.batches == [("generate", 1), ("generate", 8)]


def test_a_failure_reaches_only_the_thread_that_caused_it() -> None:
    reader = LocalReader()
    services = Services(reader)
    prompts = [f"q{i}" for i in range(6)] + ["poison"]

    def one(prompt: str) -> object:
        try:
            return run(ask_once(prompt), services)
        except ServiceError as error:
            return error

    with ThreadPoolExecutor(7) as pool:
        results = list(pool.map(one, prompts))
    assert results[:6] == prompts[:6]
    assert isinstance(results[6], ServiceError)


def test_an_interrupt_in_the_leader_releases_those_who_wait() -> None:
    class Interrupted(LocalReader):
        def generate(self, prompts: object, sampling: object) -> list[object]:  # type: ignore[override]
            raise KeyboardInterrupt

    queue = queue_of(reader := Interrupted())
    with pytest.raises(KeyboardInterrupt):
        queue.ask(Generate(("a",), Sampling()))
    assert not queue._leading.locked()
    assert reader.open == set()


def test_every_component_of_a_model_shares_its_queue() -> None:
    reader = LocalReader()
    assert queue_of(reader) is queue_of(reader)
    assert queue_of(reader) is not queue_of(LocalReader())


def test_a_service_without_identity_is_refused() -> None:
    class Slotted:
        __slots__ = ()

    with pytest.raises(ConfigurationError, match="weakly referable"):
        queue_of(Slotted())


def test_many_threads_many_rounds() -> None:
    """Stress: nothing is lost, mixed up, or asked twice."""
    reader = LocalReader()
    services = Services(reader)
    start = threading.Barrier(12)

    def worker(number: int) -> list[str]:
        start.wait()
        return [run(ask_once(f"{number}.{turn}"), services) for turn in range(25)]

    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(worker, range(12)))
    assert results == [[f"{number}.{turn}" for turn in range(25)] for number in range(12)]
    assert sum(size for _, size in reader.batches) == 300
