"""The queue before a local model, as threads, event loops and forked processes use it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from surerag.drivers import run
from surerag.drivers.answering import Failed, answer_effects, queue_of
from surerag.effects import Generate
from surerag.errors import ConfigurationError
from surerag.messages import Generation, Prompt, SamplingParams
from surerag.services import Services
from tests.drivers.local_reader import LocalReader, ask_once
from tests.waiting import eventually


class Slow(LocalReader):
    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        time.sleep(0.02)
        return super().generate(prompts, sampling)


def test_many_threads_share_few_calls() -> None:
    queue = queue_of(reader := Slow())

    def work(number: int) -> None:
        queue.enter(number)
        for turn in range(6):
            [[answer]] = queue.answer(Generate((f"q{number}-{turn}",), SamplingParams()))
            assert answer.text == f"q{number}-{turn}"
        queue.leave(number)

    with ThreadPoolExecutor(64) as pool:
        for done in [pool.submit(work, number) for number in range(64)]:
            done.result()
    assert sum(size for _, size in reader.batches) == 384
    assert len(reader.batches) <= 20  # 6 would be the fewest
    assert len(reader.threads) == 1


@pytest.mark.parametrize("place", [0, 17, 63])
def test_one_bad_request_costs_the_others_few_calls(place: int) -> None:
    prompts = [f"q{number}" for number in range(64)]
    prompts[place] = "poison"
    outcomes = answer_effects(
        [Generate((prompt,), SamplingParams()) for prompt in prompts], reader := LocalReader()
    )
    assert [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Failed)] == [place]
    answers = [outcome[0][0].text for outcome in outcomes if not isinstance(outcome, Failed)]
    assert answers == [prompt for prompt in prompts if prompt != "poison"]
    assert len(reader.batches) <= 13


def test_different_settings_share_a_call() -> None:
    calls: list[int] = []

    class Together(LocalReader):
        def generate_each(
            self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]
        ) -> list[list[Generation]]:
            calls.append(len(prompts))
            return [self.generate([p], s)[0] for p, s in zip(prompts, samplings, strict=True)]

    different = [Generate((f"q{seed}",), SamplingParams(seed=seed, temperature=1.0)) for seed in range(8)]
    outcomes = answer_effects(different, Together())
    assert [outcome[0][0].text for outcome in outcomes] == [f"q{seed}" for seed in range(8)]
    assert calls == [8]


def test_equal_requests_are_asked_once_with_the_samples_of_the_largest() -> None:
    reader = LocalReader()
    effects = [Generate((prompt,), SamplingParams(n=n)) for prompt, n in [("a", 1), ("a", 3), ("b", 1)]]
    outcomes = answer_effects(effects, reader)
    texts = [[answer.text for answer in outcome[0]] for outcome in outcomes]
    assert texts == [["a"], ["a", "a#1", "a#2"], ["b"]]
    assert sum(size for _, size in reader.batches) == 2


def test_a_lone_caller_does_not_wait_for_company() -> None:
    services = Services(LocalReader())
    run(ask_once("first"), services)
    started = time.perf_counter()
    for turn in range(100):
        run(ask_once(f"q{turn}"), services)
    assert time.perf_counter() - started < 100 * 0.003


def test_a_program_that_is_busy_elsewhere_is_waited_for_once() -> None:
    queue = queue_of(reader := LocalReader())
    queue.enter("this one")
    queue.enter("busy elsewhere")
    queue.answer(Generate(("first",), SamplingParams()))
    started = time.perf_counter()
    for turn in range(100):
        queue.answer(Generate((f"q{turn}",), SamplingParams()))
    assert time.perf_counter() - started < 100 * 0.004
    assert len(reader.batches) == 101


def test_a_service_without_identity_is_refused() -> None:
    class Slotted:
        __slots__ = ()

    with pytest.raises(ConfigurationError, match="accepts weak references"):
        queue_of(Slotted())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_asks_the_model_that_was_busy_in_its_parent() -> None:
    services = Services(reader := LocalReader())
    reader.gate.clear()
    busy = threading.Thread(target=run, args=(ask_once("parent"), services))
    busy.start()
    assert eventually(lambda: queue_of(services.reader)._working)
    child = os.fork()
    if child == 0:
        reader.gate.set()
        os._exit(0 if run(ask_once("child"), services) == "child" else 1)
    reader.gate.set()
    busy.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_end_of_the_program_stops_the_model_and_waits_for_it() -> None:
    script = """
import threading, time
from surerag.drivers import run
from surerag.readers.calls import raise_if_cancelled
from surerag.services import Services
from tests.drivers.local_reader import LocalReader, ask_once

began = threading.Event()

class Model(LocalReader):
    def generate(self, prompts, sampling):
        began.set()
        try:
            while True:
                time.sleep(0.05)
                raise_if_cancelled()
        finally:
            print("stopped", flush=True)

threading.Thread(target=run, args=(ask_once("q"), Services(Model())), daemon=True).start()
began.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "stopped\n"
