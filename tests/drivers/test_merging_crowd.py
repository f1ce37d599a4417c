"""A crowd before one model: threads, and tasks of several event loops; some requests fail or are given up."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

from surerag.drivers.answering import queue_of
from surerag.effects import CancelGeneration, ContinueGeneration, Effect, Generate, StartGeneration
from surerag.errors import ServiceError
from surerag.messages import Generation, Prompt, SamplingParams
from surerag.readers.protocol import BegunGeneration
from tests.drivers.local_reader import LocalReader
from tests.waiting import eventually

THREADS, TASKS, LOOPS, EACH = 64, 64, 4, 8


class Crowded(LocalReader):
    """Takes a moment, counts what it is asked, and lets no two calls overlap unseen."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self._busy = threading.Lock()

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        assert self._busy.acquire(blocking=False), "two batches at once"
        try:
            time.sleep(0.001)
            self.asked.update(map(str, prompts))
            return super().generate(prompts, sampling)
        finally:
            self._busy.release()

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[BegunGeneration]:
        time.sleep(0.001)
        return super().begin(prompts, n_tokens, sampling)


def effects(name: str, rng: random.Random) -> list[Effect]:
    """Return one request of a mixed kind; one in twenty fails."""
    prompt = f"{name} poison" if rng.random() < 0.05 else f"{name} says so"
    sampling = SamplingParams(
        n=rng.choice([1, 1, 3]), temperature=1.0, seed=rng.randrange(3), max_tokens=rng.choice([8, 16])
    )
    return (
        [StartGeneration((prompt,), 1, sampling)] if rng.random() < 0.4 else [Generate((prompt,), sampling)]
    )


def check(effect: Effect, answer: object) -> None:
    assert isinstance(effect, Generate | StartGeneration)
    [own] = effect.prompts
    assert "poison" not in str(own)
    texts = (
        [item.text for item in answer[0]]  # type: ignore[index]  # rows of generations
        if isinstance(effect, Generate)
        else [begun.partial.text for begun in answer]  # type: ignore[attr-defined]  # what was begun
    )
    assert all(text.startswith(str(own).split()[0]) for text in texts), (own, texts)
    if isinstance(effect, Generate):
        assert len(texts) == effect.sampling.n


def test_nothing_is_lost_and_nothing_is_mixed_up() -> None:
    reader = Crowded()
    queue = queue_of(reader)
    outcomes: Counter[str] = Counter()
    troubles: list[BaseException] = []
    turn = threading.Lock()

    def note(kind: str) -> None:
        with turn:
            outcomes[kind] += 1

    def settle(effect: Effect, answer: list[BegunGeneration]) -> None:
        if isinstance(effect, StartGeneration):
            queue.answer((CancelGeneration if random.random() < 0.5 else ContinueGeneration)(answer[0]))

    def thread(number: int) -> None:
        rng = random.Random(number)
        try:
            queue.enter(number)
            for turn_ in range(EACH):
                [effect] = effects(f"thread{number}-{turn_}", rng)
                try:
                    answer = queue.answer(effect)
                except ServiceError:
                    assert "poison" in str(effect.prompts[0])  # type: ignore[union-attr]  # StartGeneration or Generate
                    note("failed")
                else:
                    check(effect, answer)
                    settle(effect, answer)
                    note("answered")
            queue.leave(number)
        except BaseException as error:
            troubles.append(error)

    async def task(number: int) -> None:
        rng = random.Random(1000 + number)
        queue.enter(-number)
        for turn_ in range(EACH):
            [effect] = effects(f"task{number}-{turn_}", rng)
            patience = rng.random() * 0.004 if rng.random() < 0.2 else 60
            try:
                answer = await asyncio.wait_for(queue.aanswer(effect), patience)
            except TimeoutError:
                note("given up")
            except ServiceError:
                assert "poison" in str(effect.prompts[0])  # type: ignore[union-attr]  # StartGeneration or Generate
                note("failed")
            else:
                check(effect, answer)
                if isinstance(effect, StartGeneration):
                    await queue.aanswer(CancelGeneration(answer[0]))
                note("answered")
        queue.leave(-number)

    async def tasks(loop: int) -> None:
        await asyncio.gather(*(task(number) for number in range(loop, TASKS, LOOPS)))

    def event_loop(loop: int) -> None:
        try:
            asyncio.run(tasks(loop))
        except BaseException as error:
            troubles.append(error)

    crowd = [threading.Thread(target=thread, args=(number,)) for number in range(THREADS)]
    crowd += [threading.Thread(target=event_loop, args=(loop,)) for loop in range(LOOPS)]
    for member in crowd:
        member.start()
    for member in crowd:
        member.join(timeout=120)
    assert not any(member.is_alive() for member in crowd)
    assert not troubles, troubles
    assert sum(outcomes.values()) == (THREADS + TASKS) * EACH
    assert outcomes["failed"] > 10
    assert outcomes["given up"] > 10
    # What was begun for callers that had gone is freed, and the queue is at rest.
    assert eventually(lambda: not (reader.open or queue._pending))
