"""A minute of ``make soak``, and that it would notice what it is there to notice."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak.__main__ import Complaints
from benchmarks.soak.asking import Way, is_right
from benchmarks.soak.load import Ledger, jobs
from benchmarks.soak.vitals import Vitals, at_rest, grown, vitals
from surerag.errors import ServiceError

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures as Linux does")


@pytest.mark.timeout(1900)
def test_a_minute_of_everything_at_once() -> None:
    small = "--threads 20 --loops 50 --questions 600 --kills 2 --every 2 --patience 120".split()
    command = [sys.executable, "-m", "benchmarks.soak", *small]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing asked twice" in done.stdout


def measured(count: int = 20, **growth: float) -> list[Vitals]:
    calm = Vitals(0, 0, 300, 1_000_000, 100, 200, 300)
    return [
        calm._replace(**{name: getattr(calm, name) + at * step for name, step in growth.items()})
        for at in range(count)
    ]


def test_what_grows_is_noticed() -> None:
    assert grown(measured()) == []
    for name, step in (("memory", 10), ("blocks", 20_000), ("sockets", 5), ("threads", 5), ("tasks", 20)):
        [told] = grown(measured(**{name: step}))
        assert told.startswith(f"{name} grew from")
    assert "nothing can be said" in grown(measured(2))[0]


def test_what_is_left_at_the_end_is_noticed() -> None:
    before = vitals(0.0, 0)
    assert at_rest(before, 0.0, 0)[1] == []
    _, [told] = at_rest(before._replace(threads=-10), 0.0, 0, patience=0.0)
    assert told.startswith("threads at rest:")


def test_answers_have_to_speak_of_their_own_question() -> None:
    assert is_right(["Item 7 is in room 7."], 7)
    assert is_right(["on on on"], 7)
    assert not any(is_right(texts, 7) for texts in ([], [""], ["Item 77"], ["Item 7 and item 8"], ["7", "8"]))


def test_a_ledger_tells_what_should_not_have_happened() -> None:
    ledger = Ledger((OSError,))
    core, chain = (Way(family, "m", lambda _: [], lambda _: None) for family in ("core", "langchain"))
    ledger.answered(core, "sync", 1, ["1"])
    ledger.failed(core, "sync", 2, ServiceError("no"))
    ledger.failed(chain, "sync", 3, OSError("no"))
    ledger.left(core, "sync", 4, "cancelled", 3)
    assert not ledger.troubles
    ledger.answered(core, "sync", 5, ["6"])
    ledger.failed(core, "sync", 6, OSError("no"))
    ledger.left(core, "sync", 7, "cancelled", 300)
    ledger.answered(core, "sync", 1, ["1"])
    assert list(ledger.troubles) == [
        "a wrong answer", "OSError in core", "a cancelled call went on", "two outcomes of one question",
    ]  # fmt: skip
    assert ledger.done == sum(ledger.outcomes.values()) == 8


def test_asyncio_is_heard_but_for_what_it_says_of_abandoned_generators() -> None:
    ledger = Ledger(())
    logger = logging.Logger("asyncio")
    logger.addHandler(Complaints(ledger))
    logger.error("aclose(): asynchronous generator is already running")
    destroyed = "Task was destroyed but it is pending!\ntask: <Task coro="
    logger.error(f"{destroyed}<<async_generator_athrow without __name__>()>>")
    assert not ledger.troubles
    logger.error(f"{destroyed}<LazyRAG.arun()>>")
    assert list(ledger.troubles) == ["asyncio complains: Task was destroyed but it is pending!\ntask:"]


def test_every_question_is_dealt_out_once() -> None:
    in_loops, others = (list(dealt) for dealt in jobs(1000, 37, 0))
    assert [number for job in in_loops + others for number in job.numbers] == list(range(1, 1001))
    assert len(in_loops) == 37 and all(job.in_loop for job in in_loops)
    assert not any(job.in_loop for job in others) and {len(job.numbers) for job in others} == {1, 4}


def test_a_hang_is_told_with_all_stacks() -> None:
    hanging = (
        "import asyncio\n"
        "from benchmarks.soak.vitals import Watch, count_tasks_here\n"
        "async def stuck(): count_tasks_here(); await asyncio.Event().wait()\n"
        "with Watch(lambda: 0, 60, patience=4): asyncio.run(stuck())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hanging], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "in stuck" in done.stdout
    assert "Timeout" in done.stderr and "asyncio/runners.py" in done.stderr
