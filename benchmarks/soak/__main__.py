"""Everything at once, for a long time, over a bad server: nothing may hang, leak, get lost or mixed up.

    python -m benchmarks.soak
    python -m benchmarks.soak --threads 20 --loops 50 --questions 600 --kills 2 --every 2

Threads and event loops ask thousands of questions through the core and both frameworks: sync, async, streamed
and in batches; some streams are abandoned, some calls cancelled. Meanwhile ``surerag evaluate`` and
``surerag train-rewriter`` are killed and resumed. It prints a table of what the process holds, and fails if
that grows, or if a question has no outcome, an answer speaks of another question, or an error is none of
those that are promised.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence

import httpx
import openai

from benchmarks.soak import asking
from benchmarks.soak.asking import Way
from benchmarks.soak.load import Job, Ledger, jobs, work
from benchmarks.soak.vitals import (
    HEADER,
    Vitals,
    Watch,
    allow_many_files,
    at_rest,
    count_tasks_here,
    grown,
    lower_priority,
    row,
    vitals,
)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20, help="no question is asked after so many")
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument(
        "--loops", type=int, default=1000, help="event loops, one after the other in each thread"
    )
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--faults", type=float, default=0.3, help="share of requests that go wrong")
    parser.add_argument("--kills", type=int, default=20, help="of evaluate and train-rewriter together")
    parser.add_argument("--every", type=float, default=60, help="seconds between measurements")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds without an outcome before it hangs"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


_OF_ENDING_LOOPS = ("asynchronous generator is already running", "async_generator_athrow")
"""What an event loop says if it ends while it closes abandoned generators, whosever they are: that two were
closed at once, or that closing one, a task of the loop's own, was cut short."""


class Complaints(logging.Handler):
    """Takes what asyncio complains of: tasks whose errors nobody saw, and loops that were closed too soon."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.ERROR)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        """Note a complaint."""
        told = self.format(record)
        if not any(known in told for known in _OF_ENDING_LOOPS):
            self._ledger.trouble(f"asyncio complains: {record.getMessage().partition(' <')[0]}", told)


@contextlib.contextmanager
def serving(share: float, seed: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Run the faulty server; yield its address, and a dictionary that gets its counts at the end."""
    command = [sys.executable, "-m", "benchmarks.soak.server", str(share), str(seed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        counts: dict[str, object] = {}
        try:
            yield server.stdout.readline().strip(), counts
            server.stdin.close()
            counts |= json.loads(server.stdout.readline())
        finally:
            server.kill()


def until(deadline: float, waiting: Iterator[Job]) -> Iterator[Job]:
    """Deal jobs out as long as there is time."""
    for job in waiting:
        if time.monotonic() > deadline:
            return
        yield job


def load(ways: Sequence[Way], ledger: Ledger, given: argparse.Namespace) -> list[Vitals]:
    """Ask all questions; return what was measured meanwhile."""
    deadline = time.monotonic() + 60 * given.minutes
    heaps = [until(deadline, heap) for heap in jobs(given.questions, given.loops, given.seed)]
    turn = threading.Lock()
    workers = [
        threading.Thread(target=work, args=(heaps[number % 2], turn, ways, ledger), daemon=True)
        for number in range(given.threads)
    ]
    with Watch(lambda: ledger.done, given.every, given.patience) as watch:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return watch.taken


def main() -> int:
    """Run it; return 0 if all went well."""
    given = arguments()
    lower_priority()
    allow_many_files()
    logging.getLogger("surerag").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    ledger = Ledger((openai.OpenAIError, httpx.HTTPError))
    logging.getLogger("asyncio").addHandler(Complaints(ledger))
    logging.getLogger("asyncio").propagate = False
    threading.excepthook = ledger.broken
    killing = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.soak.kills", str(given.kills), str(given.seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with serving(given.faults, given.seed) as (url, counts):
        ways, end = asking.core(url)
        ways += asking.llama_index(url) + asking.langchain(url)
        once_each(ways)
        started = time.monotonic()
        before = vitals(started, 0)
        print(HEADER, row(before), sep="\n", flush=True)
        taken = load(ways, ledger, given)
        # Connections that waited for too long are closed when the next question comes.
        time.sleep(6)
        once_each(ways)
        end()
        rest, remaining = at_rest(before, started, ledger.done)
        print(row(rest), flush=True)
    report(ledger, counts)
    killed, _ = killing.communicate()
    print(killed.rstrip())
    asked = sum(ledger.outcomes.values())
    troubles = [
        *(f"{count} × {kind}" for kind, count in ledger.troubles.items()),
        *grown(taken),
        *remaining,
        *(["the killed commands did not end as they should"] if killing.returncode else []),
    ]
    if asked < given.questions and not ledger.troubles:
        print(f"{given.minutes:g} minutes were enough for {asked} of {given.questions} questions")
    for detail in ledger.details:
        print(detail)
    for trouble in troubles:
        print(f"NOT GOOD: {trouble}")
    return int(bool(troubles))


def once_each(ways: Sequence[Way]) -> None:
    """Ask by every way once, whatever comes of it: what is made when first used is there then."""
    for way in ways:
        with contextlib.suppress(Exception):
            way.ask(0)
        with contextlib.suppress(Exception):
            asyncio.run(_counted(way))


async def _counted(way: Way) -> None:
    count_tasks_here()
    await way.aask(0)


def report(ledger: Ledger, counts: dict[str, object]) -> None:
    """Print what became of the questions, and what the server did."""
    for title, counter in (("Outcomes", ledger.outcomes), ("Errors", ledger.errors), ("Ways", ledger.ways)):
        print(f"{title}: {', '.join(f'{name} {count}' for name, count in counter.most_common())}")
    faults = counts["faults"]
    assert isinstance(faults, dict)
    print(
        f"Requests: {counts['requests']}; honest: {counts['honest']}; {len(faults)} kinds of faults:",
    )
    print(", ".join(f"{name} {count}" for name, count in sorted(faults.items())))
    print(f"Slowest cancellation: {ledger.slowest_cancellation} turns of its event loop")


if __name__ == "__main__":
    sys.exit(main())
