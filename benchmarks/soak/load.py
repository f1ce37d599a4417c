"""Many threads and event loops that ask at once, and what became of each question."""

from __future__ import annotations

import asyncio
import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.soak.asking import Texts, Way, is_right
from benchmarks.soak.vitals import count_tasks_here
from surerag.errors import SureragError

PROMPT_TURNS = 300
"""Turns of its event loop, of at least 10 ms each, within which a cancelled call has ended, and what was
abandoned is closed. Seconds would tell how many threads want the processor."""

_BATCH = 4


class Job(NamedTuple):
    """Questions for one thread: asked in an event loop of their own, or one way or another without."""

    numbers: Sequence[int]
    in_loop: bool
    seed: int


class Ledger:
    """What became of each question, and what should not have happened.

    Args:
        provider_errors: What LangChain's users may get beside ours: a provider's own errors.
    """

    def __init__(self, provider_errors: tuple[type[Exception], ...]) -> None:
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()
        self.details: list[str] = []
        self.done = 0
        self.slowest_cancellation = 0
        self._asked: set[int] = set()
        self._provider_errors = provider_errors
        self._lock = threading.Lock()

    def answered(self, way: Way, manner: str, number: int, texts: Texts) -> None:
        """Note an answer."""
        if is_right(texts, number):
            self._note(way, manner, number, "right")
        else:
            self.trouble("a wrong answer", f"{way.family} {way.method} {manner} {number}: {texts!r}")
            self._note(way, manner, number, "wrong")

    def failed(self, way: Way, manner: str, number: int, error: BaseException) -> None:
        """Note an error."""
        foreign = self._provider_errors if way.family == "langchain" else ()
        if not isinstance(error, (SureragError, *foreign)):
            told = "".join(traceback.format_exception(error))
            self.trouble(
                f"{type(error).__name__} in {way.family}", f"{way.method} {manner} {number}:\n{told}"
            )
        with self._lock:
            self.errors[f"{way.family}: {type(error).__name__}"] += 1
        self._note(way, manner, number, "error")

    def left(self, way: Way, manner: str, number: int, how: str, turns: int = 0) -> None:
        """Note a question whose asker went away."""
        self.slowest_cancellation = max(self.slowest_cancellation, turns)
        if turns >= PROMPT_TURNS:
            self.trouble("a cancelled call went on", f"{way.family} {way.method} {manner}")
        self._note(way, manner, number, how)

    def broken(self, thread: threading.ExceptHookArgs) -> None:
        """Note a thread that ended with an exception; for ``threading.excepthook``."""
        told = "".join(traceback.format_exception(thread.exc_type, thread.exc_value, thread.exc_traceback))
        self.trouble("a thread broke", told)

    def trouble(self, kind: str, detail: str) -> None:
        """Note what should not have happened; a few of each kind in detail."""
        with self._lock:
            self.troubles[kind] += 1
            if self.troubles[kind] <= 2:
                self.details.append(f"{kind}: {detail[:6000]}")

    def _note(self, way: Way, manner: str, number: int, outcome: str) -> None:
        with self._lock:
            twice = number in self._asked
            self._asked.add(number)
            self.outcomes[outcome] += 1
            self.ways[f"{way.family}, {way.method}, {manner}"] += 1
            self.done += 1
        if twice:
            self.trouble("two outcomes of one question", f"{number}")


class Dealt(NamedTuple):
    """Two heaps of jobs, each for threads of its own: so the load stays the same to the end."""

    in_loops: Iterator[Job]
    others: Iterator[Job]


def jobs(questions: int, loops: int, seed: int) -> Dealt:
    """Deal questions out: half of them to event loops, a quarter of the others in batches."""
    half, rng = questions // 2, random.Random(seed)
    rest = questions - half
    batches = rest // _BATCH // 4
    sizes = [_BATCH] * batches + [1] * (rest - batches * _BATCH)
    rng.shuffle(sizes)
    return Dealt(
        _numbered(_shares(half, loops), 1, True, random.Random(seed + 1)),
        _numbered(sizes, half + 1, False, random.Random(seed + 2)),
    )


def _numbered(sizes: Sequence[int], first: int, in_loop: bool, rng: random.Random) -> Iterator[Job]:
    for size in sizes:
        yield Job(range(first, first + size), in_loop, rng.randrange(2**32))
        first += size


def _shares(total: int, parts: int) -> list[int]:
    return [total * (at + 1) // parts - total * at // parts for at in range(parts)]


def work(waiting: Iterator[Job], turn: threading.Lock, ways: Sequence[Way], ledger: Ledger) -> None:
    """Do one job after the other."""
    while True:
        with turn:
            job = next(waiting, None)
        if job is None:
            return
        rng = random.Random(job.seed)
        if job.in_loop:
            asyncio.run(_in_loop(job, ways, ledger, rng))
        elif len(job.numbers) > 1:
            _batch(job, rng.choice([way for way in ways if way.many]), ledger)
        else:
            _one(job.numbers[0], ways, ledger, rng)


def _one(number: int, ways: Sequence[Way], ledger: Ledger, rng: random.Random) -> None:
    if rng.random() < 0.4:
        way = rng.choice([way for way in ways if way.stream])
        _stream(way, number, ledger, abandoned=rng.random() < 0.4)
        return
    way = rng.choice(ways)
    try:
        texts = way.ask(number)
    except Exception as error:
        ledger.failed(way, "sync", number, error)
    else:
        ledger.answered(way, "sync", number, texts)


def _stream(way: Way, number: int, ledger: Ledger, *, abandoned: bool) -> None:
    assert way.stream is not None
    try:
        pieces = way.stream(number)
        if abandoned:
            next(pieces, None)
            del pieces
        else:
            text = "".join(pieces)
    except Exception as error:
        ledger.failed(way, "stream", number, error)
        return
    if abandoned:
        ledger.left(way, "stream", number, "abandoned")
    else:
        ledger.answered(way, "stream", number, [text])


def _batch(job: Job, way: Way, ledger: Ledger) -> None:
    assert way.many is not None
    try:
        found = way.many(job.numbers)
    except Exception as error:
        for number in job.numbers:
            ledger.failed(way, "batch", number, error)
        return
    _settle(job.numbers, way, "batch", found, ledger)


def _settle(
    numbers: Sequence[int], way: Way, manner: str, found: Sequence[Texts | Exception], ledger: Ledger
) -> None:
    if len(found) != len(numbers):
        ledger.trouble(
            "a batch of another length", f"{way.family} {way.method}: {len(found)} of {len(numbers)}"
        )
    for number, outcome in zip(numbers, found, strict=False):
        if isinstance(outcome, Exception):
            ledger.failed(way, manner, number, outcome)
        else:
            ledger.answered(way, manner, number, outcome)


async def _in_loop(job: Job, ways: Sequence[Way], ledger: Ledger, rng: random.Random) -> None:
    count_tasks_here()
    numbers = list(job.numbers)
    tasks = []
    if len(numbers) >= 2 * _BATCH:
        together, numbers = numbers[:_BATCH], numbers[_BATCH:]
        tasks.append(_abatch(together, rng.choice([way for way in ways if way.amany]), ledger))
    for number in numbers:
        dice = rng.random()
        if dice < 0.3:
            way = rng.choice([way for way in ways if way.astream])
            tasks.append(_astream(way, number, ledger, abandoned=dice < 0.12))
        elif dice < 0.5:
            tasks.append(_cancelled(rng.choice(ways), number, ledger, rng.random() * 0.3))
        else:
            tasks.append(_aone(rng.choice(ways), number, ledger))
    await asyncio.gather(*tasks)
    # An event loop that ends closes abandoned generators within one another all at once, and complains of it.
    if await _turns_until(lambda: len(asyncio.all_tasks()) == 1) >= PROMPT_TURNS:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        ledger.trouble("tasks were left in a loop", "\n".join(map(repr, left)))


async def _turns_until(done: Callable[[], bool]) -> int:
    for turn in range(PROMPT_TURNS):
        if done():
            return turn
        await asyncio.sleep(0.01)
    return PROMPT_TURNS


async def _aone(way: Way, number: int, ledger: Ledger) -> None:
    try:
        texts = await way.aask(number)
    except Exception as error:
        ledger.failed(way, "async", number, error)
    else:
        ledger.answered(way, "async", number, texts)


async def _astream(way: Way, number: int, ledger: Ledger, *, abandoned: bool) -> None:
    assert way.astream is not None
    text = ""
    try:
        async for piece in way.astream(number):
            text += piece
            if abandoned:
                break
    except Exception as error:
        ledger.failed(way, "async stream", number, error)
        return
    if abandoned:
        ledger.left(way, "async stream", number, "abandoned")
    else:
        ledger.answered(way, "async stream", number, [text])


async def _abatch(numbers: Sequence[int], way: Way, ledger: Ledger) -> None:
    assert way.amany is not None
    try:
        found = await way.amany(numbers)
    except Exception as error:
        for number in numbers:
            ledger.failed(way, "async batch", number, error)
        return
    _settle(numbers, way, "async batch", found, ledger)


async def _cancelled(way: Way, number: int, ledger: Ledger, patience: float) -> None:
    task = asyncio.ensure_future(way.aask(number))
    await asyncio.wait([task], timeout=patience)
    task.cancel()
    turns = await _turns_until(task.done)
    await asyncio.wait([task])
    if task.cancelled():
        ledger.left(way, "cancelled", number, "cancelled", turns)
    elif (error := task.exception()) is not None:
        ledger.failed(way, "cancelled", number, error)
    else:
        ledger.answered(way, "cancelled", number, task.result())
