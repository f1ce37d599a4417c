"""Asks systems the same questions, and stores each answer as soon as it arrives."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

from surerag.errors import (
    MISCONFIGURED,
    ConfigurationError,
    ServiceError,
    StorageError,
    check_at_least,
    check_kind,
)
from surerag.evaluation.questions import Question, as_questions
from surerag.evaluation.report import notebook_html
from surerag.evaluation.run import FAILURES, Metric, OnChange, Row, Run
from surerag.evaluation.systems import System, as_answer, as_system
from surerag.progress import Progress, reporting
from surerag.readers.calls import maybe_await
from surerag.readers.failures import described
from surerag.text import printable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class EvaluationRun(Run):
    """An evaluation run: the answers of systems to questions, in a file or in memory.

    Args:
        path: Path of the file; None creates an empty run in memory.
        metrics: Names of metrics, or a mapping from names to functions of an answer and its references.
        create: Whether to open the file for writing, and create it if necessary. By default, the file is
            opened read-only, which also works on a read-only disk.

    Raises:
        InputError: If the file does not exist, is not a run, is damaged, or was written by a newer version
            of surerag. A damaged row raises this error only when rows are first needed.
        StorageError: If the file cannot be read or written.
    """

    def _repr_html_(self) -> str:
        return notebook_html(self)


def evaluate(
    systems: Mapping[str, Any],
    questions: Iterable[Any] | str | Path,
    path: str | Path | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] = ("contains", "exact_match", "f1"),
    at_a_time: int = 1,
    on_change: OnChange = "refuse",
    progress: Progress = False,
) -> EvaluationRun:
    """Ask all systems the same questions, and return the run with their answers.

    Each answer is stored as soon as it arrives. After an interruption, call this function again with the same
    arguments to continue. A failed question is stored with its error, and is asked again at the next call. A
    system that fails on :data:`FAILURES` questions in a row gets no more questions; the other systems go on.

    Args:
        systems: The systems by name. A system is a LlamaIndex query engine, a LangChain runnable, a function
            or coroutine function from a question to an answer, or a component of surerag.
        questions: A file (:func:`~surerag.evaluation.read_questions`), or a list of texts, pairs (question,
            references), mappings or :class:`~surerag.evaluation.Question` objects.
        path: SQLite file of the run; None keeps the run in memory.
        columns: The column names of the file by field, such as ``{"question": "Q", "references": "A"}``; see
            :func:`~surerag.evaluation.read_questions`.
        metrics: Names (``"exact_match"``, ``"f1"``, ``"contains"``), or a mapping from names to functions of
            an answer and its references.
        at_a_time: Number of questions that one system gets at the same time. With more than 1, the seconds of
            a question are the wall time of these questions divided by their number.
        on_change: What to do if the file contains other questions, or other settings of a system:
            ``"refuse"`` raises an error; ``"ask"`` asks all changed questions or systems again. If only the
            reference answers have changed, the stored answers are scored again, and nothing is asked.
        progress: True shows a progress bar. A function is called with the number of answers so far and the
            number of all answers.

    Raises:
        ConfigurationError: If a system cannot answer questions, or the file contains a run with other
            questions or settings.
        InputError: If there are no questions.
        ServiceError: If every system fails on :data:`FAILURES` questions in a row.
        StorageError: If the file cannot be written, or another process is adding answers to it.

    Example:
        >>> from surerag.evaluation import summarize
        >>> questions = [("Where was Ada born?", "Velm"), ("Where was Bo born?", "Orun")]
        >>> run = evaluate({"guess": lambda question: "Velm"}, questions)
        >>> summarize(run, "exact_match")["guess"].value
        0.5
    """
    with _background_loop() as loop:
        stop = threading.Event()
        return _evaluate(
            systems, questions, path, loop, stop, columns, metrics, at_a_time, on_change, progress
        )


async def aevaluate(
    systems: Mapping[str, Any],
    questions: Iterable[Any] | str | Path,
    path: str | Path | None = None,
    **options: Any,
) -> EvaluationRun:
    """Ask all systems the same questions without blocking the event loop.

    Systems that are coroutine functions run in this event loop.

    ``systems``, ``questions``, ``path`` and ``options`` are the arguments of :func:`evaluate`. The
    result and the errors are also the same.
    """
    loop, stop = asyncio.get_running_loop(), threading.Event()
    try:
        return await asyncio.to_thread(_evaluate, systems, questions, path, loop, stop, **options)
    finally:
        stop.set()


def _evaluate(
    systems: Mapping[str, Any],
    questions: Iterable[Any] | str | Path,
    path: str | Path | None,
    loop: asyncio.AbstractEventLoop,
    stop: threading.Event,
    columns: Mapping[str, str] | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] = ("contains", "exact_match", "f1"),
    at_a_time: int = 1,
    on_change: OnChange = "refuse",
    progress: Progress = False,
) -> EvaluationRun:
    check_at_least(1, at_a_time=at_a_time)
    check_kind(Mapping, "systems by their names", systems=systems)
    if on_change not in get_args(OnChange):
        raise ConfigurationError(f"on_change must be 'refuse' or 'ask', got {on_change!r}")
    chosen = [as_system(name, target) for name, target in systems.items()]
    if not chosen:
        raise ConfigurationError("there are no systems to evaluate", hint="pass {name: system}")
    asked = as_questions(questions, columns)
    run = EvaluationRun(path, metrics, create=True)
    try:
        with _lock_systems(run.path, [system.name for system in chosen]):
            run.begin(chosen, asked, on_change)
            missing = {system.name: run.missing(system, asked) for system in chosen}
            total = len(chosen) * len(asked)
            place = f"Answers, stored in {printable(str(path))}" if path else "Answers"
            with reporting(progress, total, place) as advance:
                advance(total - sum(map(len, missing.values())))
                for _ in _ask_missing(
                    chosen, asked, missing, at_a_time, lambda system, some: _ask(system, some, loop, run)
                ):
                    advance()
                    if stop.is_set():
                        return run
    except BaseException:
        run.close()
        raise
    return run


def _ask_missing(
    systems: Sequence[System],
    questions: Sequence[Question],
    missing: Mapping[str, set[str]],
    at_a_time: int,
    ask: Callable[[System, Sequence[Question]], Iterator[Row]],
) -> Iterator[Row]:
    failures, latest = dict.fromkeys(missing, 0), ""
    for start, system in product(range(0, len(questions), at_a_time), systems):
        batch = [q for q in questions[start : start + at_a_time] if q.key in missing[system.name]]
        if not batch or failures[system.name] >= FAILURES:
            continue
        for row in ask(system, batch):
            failures[row.system] = failures[row.system] + 1 if row.error else 0
            latest = f"{row.system} failed on {FAILURES} questions in a row: {row.error}"
            yield row
    if min(failures.values()) >= FAILURES:
        raise ServiceError(latest, hint="the answers so far are stored; repeat the call to continue")


def _ask(
    system: System, batch: Sequence[Question], loop: asyncio.AbstractEventLoop, run: EvaluationRun
) -> Iterator[Row]:
    def answer(question: Question) -> Row:
        started = time.perf_counter()
        try:
            value = system.answer(question)
            if inspect.isawaitable(value):
                value = asyncio.run_coroutine_threadsafe(maybe_await(value), loop).result()
            row = Row(system.name, question, as_answer(value))
        except MISCONFIGURED:
            raise
        except Exception as error:
            row = Row(system.name, question, None, described(error))
        seconds = time.perf_counter() - started if len(batch) == 1 else None
        row = replace(row, seconds=seconds, at_a_time=len(batch))
        run.add(system, row)
        return row

    if len(batch) < 2:
        yield from map(answer, batch)
        return
    started, rows = time.perf_counter(), []
    # After an interrupt, the pool waits for the requests in progress, and their answers are stored.
    with ThreadPoolExecutor(len(batch)) as pool:
        futures = [pool.submit(copy_context().run, answer, question) for question in batch]
        for future in as_completed(futures):
            rows.append(future.result())
            yield rows[-1]
    seconds = (time.perf_counter() - started) / len(rows)
    for row in rows:
        run.add(system, replace(row, seconds=seconds))


@contextmanager
def _background_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        if not loop.is_running():
            loop.close()


@contextmanager
def _lock_systems(path: Path | None, systems: Sequence[str]) -> Iterator[None]:
    if path is None or fcntl is None:
        yield
        return
    lock = path.with_name(f"{path.name}-lock")
    try:
        file = lock.open("a+b")
    except OSError as error:
        raise StorageError(
            f"the run {path} cannot be written: {error}",
            hint="name a file in an existing folder in which you may write",
        ) from error
    with file:
        for system in systems:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, zlib.crc32(system.encode()))
            except OSError:
                raise StorageError(
                    f"another process is adding answers of {system} to the run {path}",
                    hint="wait until the other process ends, or write to another file",
                ) from None
        try:
            yield
        finally:
            with suppress(OSError):  # the lock file stays if another process has locked other systems
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock.unlink(missing_ok=True)
