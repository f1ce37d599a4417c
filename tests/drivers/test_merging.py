"""The queue before a local model, as separate threads see it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, thread

import pytest

from surerag.drivers import merge_settings, run
from surerag.drivers.answering import ask_merged
from surerag.drivers.merging import queue_of
from surerag.drivers.session import Answered, Failed
from surerag.effects import Generate, Program, generate
from surerag.errors import ConfigurationError, ContextLengthError, ServiceError
from surerag.messages import Generation, Prompt, SamplingParams
from surerag.services import Services
from tests.drivers.local_reader import LocalReader


def ask_once(prompt: str) -> Program[str]:
    [[answer]] = yield from generate([prompt], SamplingParams())
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
        queue.ask(Generate(("a",), SamplingParams()))
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


def asked_by_threads(reader: LocalReader, count: int, rounds: int) -> None:
    """Let so many threads ask so many times, each the next as soon as it has the last."""
    queue = queue_of(reader)

    def work(number: int) -> None:
        with queue.program():
            for turn in range(rounds):
                [[answer]] = queue.ask(Generate((f"q{number}-{turn}",), SamplingParams()))
                assert answer.text == f"q{number}-{turn}"

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, number) for number in range(count)]:
            done.result()


class Slow(LocalReader):
    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        time.sleep(0.02)
        return super().generate(prompts, sampling)


def test_many_threads_share_few_calls() -> None:
    asked_by_threads(reader := Slow(), 64, 6)
    assert sum(size for _, size in reader.batches) == 384
    # Six would be the fewest. Those whose answers are there do not wait for a call of others.
    assert len(reader.batches) <= 40


def test_nobody_waits_for_a_program_that_does_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_settings, "window", 0.2)
    queue = queue_of(reader := Slow())
    with queue.program(), queue.program():
        queue.ask(Generate(("first",), SamplingParams()))
        started = time.monotonic()
        for turn in range(20):
            queue.ask(Generate((f"q{turn}",), SamplingParams()))
        assert time.monotonic() - started < 20 * 0.2
    # Two that meet again are worth waiting for again.
    asked_by_threads(reader, 2, 20)
    assert max(size for _, size in reader.batches) == 2


def test_different_settings_share_a_call() -> None:
    reader = LocalReader()
    different = [
        Generate(
            (f"q{seed}",),
            SamplingParams(seed=seed, max_tokens=10 + seed, temperature=1.0, stop=("x",) * (seed % 2)),
        )
        for seed in range(8)
    ]
    calls: list[int] = []

    class Together(LocalReader):
        def generate_each(
            self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]
        ) -> list[list[Generation]]:
            calls.append(len(prompts))
            return [self.generate([p], s)[0] for p, s in zip(prompts, samplings, strict=True)]

    outcomes = ask_merged(different, Together())
    assert [outcome.value[0][0].text for outcome in outcomes] == [f"q{seed}" for seed in range(8)]
    assert calls == [8]
    # A reader that knows no better is asked once for each setting.
    ask_merged(different, reader)
    assert [size for _, size in reader.batches] == [1] * 8


class Window(LocalReader):
    """Refuses prompts of more than ten characters, and says which."""

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        self._note("generate", prompts)
        if unfit := [prompt for prompt in prompts if len(str(prompt)) > 10]:
            raise ContextLengthError("too long", inputs=unfit)
        return [[self._whole(str(prompt))] for prompt in prompts]


@pytest.mark.parametrize("place", [0, 17, 63])
def test_one_bad_request_costs_the_others_few_calls(place: int) -> None:
    long, poisoned = [f"q{number}" for number in range(64)], [f"q{number}" for number in range(64)]
    long[place], poisoned[place] = "q" * 20, "poison"
    for reader, prompts, most in ((Window(), long, 3), (LocalReader(), poisoned, 13)):
        outcomes = ask_merged([Generate((prompt,), SamplingParams()) for prompt in prompts], reader)
        failed = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Failed)]
        assert failed == [place]
        answers = [o.value[0][0].text for o in outcomes if isinstance(o, Answered)]
        assert answers == [prompt for index, prompt in enumerate(prompts) if index != place]
        assert len(reader.batches) <= most


def test_a_program_that_ends_in_the_middle_of_anything_waits_for_nobody() -> None:
    # The garbage collector ends dropped programs wherever it runs: here while a thread holds the lock of all
    # thread pools, which a leader may be waiting for.
    queue = queue_of(reader := LocalReader())
    dropped = queue.program()
    dropped.__enter__()

    async def ask() -> str:
        [[answer]] = await queue.aask(Generate(("q",), SamplingParams()))
        return str(answer.text)

    with ThreadPoolExecutor(2) as pool:
        pool.submit(time.sleep, 0).result()
        asking = threading.Thread(target=lambda: asyncio.run(ask()))
        ending = threading.Thread(target=dropped.__exit__, args=(None, None, None), daemon=True)
        with thread._global_shutdown_lock:
            asking.start()
            while not queue._leading.locked():
                time.sleep(0.001)
            ending.start()
            ending.join(timeout=10)
            ended = not ending.is_alive()
        asking.join(timeout=10)
    assert ended
    assert not asking.is_alive()
    assert reader.batches == [("generate", 1)]
