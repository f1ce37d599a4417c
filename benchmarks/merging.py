"""The merging queue before a local model: how near many callers come to the fewest calls for all of them.

Run ``python -m benchmarks.merging``. The model sleeps instead of working, so that only the queue is measured;
calls are counted, and the floor is the time of those fewest calls.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.models import arguments
from surerag.drivers.merging import queue_of
from surerag.effects import Generate
from surerag.errors import ContextLengthError, SureragError
from surerag.readers.protocol import BaseReader, Capabilities
from surerag.messages import Generation, Prompt, SamplingParams

CALL = 0.020
"""Seconds that a call takes, whatever its size."""


class Sleeper(BaseReader):
    """Answers every prompt with itself, after a while; counts its calls."""

    name = "sleeper"
    capabilities = Capabilities(logprobs=False, entropy=None, local=True)

    def __init__(self, seconds: float = CALL, longest: int = 100) -> None:
        self.calls = 0
        self._seconds, self._longest = seconds, longest

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Answer; refuse prompts that are too long."""
        return self.generate_each(prompts, [sampling] * len(prompts))

    def generate_each(
        self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]
    ) -> list[list[Generation]]:
        """Answer each in its own way, in one call."""
        self.calls += 1
        if unfit := [prompt for prompt in prompts if len(str(prompt)) > self._longest]:
            raise ContextLengthError("too long", inputs=unfit)
        time.sleep(self._seconds)
        return [[Generation(str(prompt))] * way.n for prompt, way in zip(prompts, samplings, strict=True)]


class Row(NamedTuple):
    """What one kind of crowd took.

    Attributes:
        work: What was asked.
        seconds: Median of the turns.
        spread: Least and most.
        floor: Seconds of the fewest calls.
        calls: Median number of calls.
    """

    work: str
    seconds: float
    spread: tuple[float, float]
    floor: float
    calls: float


def crowd(threads: int, rounds: int, ask: Callable[[int, int], Generate]) -> tuple[float, int]:
    """Let threads ask one thing after the other; return the seconds, and the model's calls."""
    reader = Sleeper()
    queue = queue_of(reader)

    def work(number: int) -> None:
        queue.enter(number)
        for turn in range(rounds):
            try:
                queue.ask(ask(number, turn))
            except SureragError:
                continue
        queue.leave(number)

    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return time.perf_counter() - started, reader.calls


def plain(number: int, turn: int) -> Generate:
    """Return a question of its own."""
    return Generate((f"{number} {turn}",), SamplingParams())


def one_too_long(number: int, turn: int) -> Generate:
    """Return a question; the first thread's does not fit the window."""
    return Generate(("x" * 200 if number == 0 else f"{number} {turn}",), SamplingParams())


def each_its_own_way(number: int, turn: int) -> Generate:
    """Return a question that is sampled as no other one."""
    sampling = SamplingParams(temperature=1.0, seed=number, max_tokens=10 + number, stop=("x",) * (number % 2))
    return Generate((f"{number} {turn}",), sampling)


def beside_an_idle_program(asked: int) -> tuple[float, int]:
    """Return the seconds a request of a single caller while another program does something else."""
    reader = Sleeper(seconds=0)
    queue = queue_of(reader)
    queue.enter("this one")
    queue.enter("an idle one")
    queue.ask(plain(0, 0))
    started = time.perf_counter()
    for turn in range(asked):
        queue.ask(plain(1, turn))
    return (time.perf_counter() - started) / asked, reader.calls


def measured(work: str, run: Callable[[], tuple[float, int]], floor: float, turns: int) -> Row:
    """Run some work several times."""
    found = [run() for _ in range(turns)]
    seconds = [one for one, _ in found]
    return Row(
        work,
        statistics.median(seconds),
        (min(seconds), max(seconds)),
        floor,
        statistics.median(calls for _, calls in found),
    )


def main() -> None:
    """Measure, and print a table."""
    given = arguments(__doc__ or "").parse_args()
    threads, rounds = (4, 2) if given.tiny else (64, 6)
    floor = rounds * CALL
    rows = [
        measured(
            f"{threads} threads, {rounds} questions each",
            lambda: crowd(threads, rounds, plain),
            floor,
            given.turns,
        ),
        measured(
            "the same, sampled each in its own way",
            lambda: crowd(threads, rounds, each_its_own_way),
            floor,
            given.turns,
        ),
        measured(
            "one thread's prompts are too long", lambda: crowd(threads, 1, one_too_long), CALL, given.turns
        ),
        measured("one caller beside an idle program", lambda: beside_an_idle_program(200), 0.0, given.turns),
    ]
    table = Table(title="The merging queue")
    for column in ("work", "seconds", "of the floor", "calls"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        times = f"{row.seconds:.4f} ({row.spread[0]:.4f} to {row.spread[1]:.4f})"
        table.add_row(
            row.work, times, f"{row.seconds / row.floor:.2f}" if row.floor else "", f"{row.calls:g}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
