"""A crowd before one real model: threads and tasks; some requests fail, some are given up."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest

from surerag.drivers.answering import ask
from surerag.drivers.merging import queue_of
from surerag.effects import CancelGeneration, ContinueGeneration, Effect, Generate, Score, StartGeneration
from surerag.errors import ContextLengthError
from surerag.messages import PartialGeneration, SamplingParams
from surerag.readers.local import TransformersReader
from surerag.readers.threads import in_thread
from tests.readers.tiny_models import tiny_model, tiny_tokenizer
from tests.waiting import eventually

THREADS, TASKS, LOOPS, EACH = 64, 64, 4, 8
CONTEXT = "Velm lies on the Orun, which springs in the hills of Tarn. "
PROMPTS = [CONTEXT + "Where?", CONTEXT + "Who is the mayor?", "The Orun", "Ada", "Where was Ada Tarn born?"]
TOO_LONG = "z" * 600
SAMPLINGS = [
    SamplingParams(n=n, temperature=temperature, seed=seed, max_tokens=most)
    for n, temperature, seed, most in [(1, 0.0, 0, 6), (1, 1.0, 1, 8), (3, 0.8, 2, 4), (2, 1.0, 3, 6)]
]


def asked(rng: random.Random) -> Effect:
    """Return one request of a mixed kind; one in twenty cannot be answered."""
    prompt = TOO_LONG if rng.random() < 0.05 else rng.choice(PROMPTS)
    sampling, kind = rng.choice(SAMPLINGS), rng.random()
    if kind < 0.2:
        return Score((prompt,), (" ba be bi",))
    return StartGeneration((prompt,), 2, sampling) if kind < 0.5 else Generate((prompt,), sampling)


def bad(effect: Effect) -> bool:
    return TOO_LONG in effect.prompts  # type: ignore[union-attr]  # the three that are asked


def expected_of(reader: TransformersReader) -> dict[Any, list[str]]:
    """Return what each prompt is answered alone."""
    return {
        (prompt, sampling): [answer.text for answer in reader.generate([prompt], sampling)[0]]
        for prompt in PROMPTS
        for sampling in SAMPLINGS
    }


class Straight:
    """Asks the reader itself, as drivers do where its calls need no merging."""

    program = staticmethod(nullcontext)

    def __init__(self, reader: TransformersReader) -> None:
        self._reader = reader

    def ask(self, effect: Effect) -> Any:
        return ask(effect, self._reader)

    async def aask(self, effect: Effect) -> Any:
        return await in_thread(self.ask, effect)


@pytest.mark.parametrize("engine", ["own", "continuous"])
def test_nothing_is_lost_and_nothing_is_mixed_up(engine: Any) -> None:
    own = TransformersReader(tiny_model("llama"), tiny_tokenizer())
    alone = expected_of(own)
    scored = {prompt: own.score([prompt], [" ba be bi"])[0].logprobs for prompt in PROMPTS}
    # Room for few of them at a time, so that some have to wait.
    reader = TransformersReader(tiny_model("llama"), tiny_tokenizer(), engine=engine, max_batch_tokens=2048)
    queue: Any = queue_of(reader) if reader.capabilities.local else Straight(reader)
    outcomes: Counter[str] = Counter()
    troubles: list[BaseException] = []
    handles: list[PartialGeneration] = []
    turn = threading.Lock()

    def note(kind: str) -> None:
        with turn:
            outcomes[kind] += 1

    def check(effect: Effect, answer: Any) -> None:
        assert not bad(effect)
        match effect:
            case Score((prompt,), _):
                assert all(abs(a - b) < 1e-4 for a, b in zip(answer[0].logprobs, scored[prompt], strict=True))
            case Generate((prompt,), sampling):
                assert [one.text for one in answer[0]] == alone[prompt, sampling]
            case StartGeneration((prompt,), _, sampling):
                assert alone[prompt, sampling][0].startswith(answer[0].partial.text)
        note("answered")

    def finished(effect: Effect, answer: Any) -> None:
        if isinstance(effect, StartGeneration):
            [prompt] = effect.prompts
            assert answer[0].text == alone[prompt, effect.sampling][0]

    def thread(number: int) -> None:
        rng = random.Random(number)
        try:
            with queue.program():
                for _ in range(EACH):
                    effect = asked(rng)
                    try:
                        answer = queue.ask(effect)
                    except ContextLengthError:
                        assert bad(effect)
                        note("failed")
                        continue
                    check(effect, answer)
                    if isinstance(effect, StartGeneration):
                        handles.extend(answer)
                        if rng.random() < 0.5:
                            queue.ask(CancelGeneration(tuple(answer)))
                        else:
                            finished(effect, queue.ask(ContinueGeneration(tuple(answer))))
        except BaseException as error:
            troubles.append(error)

    async def task(number: int) -> None:
        rng = random.Random(1000 + number)
        with queue.program():
            for _ in range(EACH):
                effect = asked(rng)
                patience = rng.random() * 0.05 if rng.random() < 0.4 else 120
                try:
                    answer = await asyncio.wait_for(queue.aask(effect), patience)
                except TimeoutError:
                    note("given up")
                    continue
                except ContextLengthError:
                    assert bad(effect)
                    note("failed")
                    continue
                check(effect, answer)
                if isinstance(effect, StartGeneration):
                    handles.extend(answer)
                    finished(effect, await queue.aask(ContinueGeneration(tuple(answer))))

    async def tasks(loop: int) -> None:
        await asyncio.gather(*(task(number) for number in range(loop, TASKS, LOOPS)))

    def event_loop(loop: int) -> None:
        try:
            asyncio.run(tasks(loop))
        except BaseException as error:
            troubles.append(error)

    crowd = [threading.Thread(target=thread, args=(number,), daemon=True) for number in range(THREADS)]
    crowd += [threading.Thread(target=event_loop, args=(loop,), daemon=True) for loop in range(LOOPS)]
    for member in crowd:
        member.start()
    for member in crowd:
        member.join(timeout=240)
    assert not any(member.is_alive() for member in crowd)
    assert not troubles, troubles
    assert sum(outcomes.values()) == (THREADS + TASKS) * EACH
    assert outcomes["failed"] > 20
    assert outcomes["given up"] > 20
    # Whatever was begun is freed, whether it was finished or cancelled.
    if engine == "own":
        assert eventually(lambda: not (queue._leading.locked() or queue._pending))
        assert all(item.state.block is None for item in handles)
    else:
        assert all(item.state.seat is None for item in handles)
        running: Any = reader._engine
        assert eventually(lambda: not running._loop.tickets.names and running._loop.idle)
