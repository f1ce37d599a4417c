"""Many programs in the caller's thread, their questions to a local model merged into large batches."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from surerag.drivers.answering import ask_merged, is_local, service_of, try_ask
from surerag.drivers.asynchronous import AHEAD, unless_failed
from surerag.drivers.progress import Progress, reporting
from surerag.drivers.session import Failed, Listener, Outcome, Session, check_window
from surerag.drivers.sync import run
from surerag.effects import ContinueGeneration, Effect, Generate, Program, Retrieve, Score, StartGeneration
from surerag.services import Services

R = TypeVar("R")


def run_many(
    programs: Iterable[Program[R]],
    services: Services,
    *,
    window: int = 64,
    on_event: Listener | None = None,
    progress: Progress = False,
    return_exceptions: bool = False,
) -> list[R]:
    """Run many programs, at most ``window`` at a time.

    With a local reader, the model is asked when every running program waits for it, as one batch. With
    a server, programs run concurrently in threads, and the reader's own limit bounds the requests.

    Args:
        programs: Methods at work; may be a generator, which is then read as there is room.
        services: Who answers them.
        window: Programs that run at the same time.
        on_event: Called with every event of every program.
        progress: True shows a bar on a terminal; a callable gets (done, total or None).
        return_exceptions: Put a program's exception in its place in the list, instead of raising the
            first one after all programs have ended.

    Returns:
        Results in the order of the programs.

    Raises:
        ConfigurationError: If ``window`` is less than 1.
        Exception: The first failure, after the other programs have run to their ends.
    """
    total = len(programs) if isinstance(programs, Sized) else None
    results: list[R | Exception] = []
    with reporting(progress, total) as advance:
        for result in _outcomes(programs, services, window, on_event):
            results.append(result)
            advance()
    return unless_failed(results, return_exceptions=return_exceptions)


def iter_many(
    programs: Iterable[Program[R]],
    services: Services,
    *,
    window: int = 64,
    on_event: Listener | None = None,
) -> Iterator[R]:
    """Yield the programs' results in order, as they come, and keep none; see :func:`run_many`.

    Programs are read as there is room: one that takes long holds back those behind it, and no more than a few
    windows of them are started meanwhile. Closing the iterator ends what is still at work.

    Raises:
        ConfigurationError: If ``window`` is less than 1.
        Exception: A program's failure, in its place; the others then end.
    """
    with closing(_outcomes(programs, services, window, on_event)) as results:
        for result in results:
            if isinstance(result, Exception):
                raise result
            yield result


def _outcomes(
    programs: Iterable[Program[R]], services: Services, window: int, on_event: Listener | None
) -> Generator[R | Exception]:
    check_window(window)
    if services.reader is None or is_local(services.reader):
        return _Waves(services, on_event).run(iter(programs), window)
    return _in_threads(programs, services, window, on_event)


def _in_threads(
    programs: Iterable[Program[R]], services: Services, window: int, on_event: Listener | None
) -> Generator[R | Exception]:
    def settle(program: Program[R]) -> R | Exception:
        try:
            return run(program, services, on_event=on_event)
        except Exception as error:
            return error

    waiting: deque[Future[R | Exception]] = deque()
    with ThreadPoolExecutor(window, thread_name_prefix="surerag-run-many") as pool:
        try:
            for program in programs:
                waiting.append(pool.submit(contextvars.copy_context().run, settle, program))
                # The next program is read when there is a thread for it, and room for its result.
                while True:
                    while waiting and waiting[0].done():
                        yield waiting.popleft().result()
                    running = [future for future in waiting if not future.done()]
                    if len(running) >= window:
                        wait(running, return_when=FIRST_COMPLETED)
                    elif len(waiting) >= AHEAD * window:
                        wait([waiting[0]])
                    else:
                        break
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class _Live(NamedTuple):
    place: int
    session: Session[Any]


class _Waves:
    """Drives programs in lockstep: all other questions first, the reader when everyone waits for it."""

    def __init__(self, services: Services, on_event: Listener | None) -> None:
        self._services = services
        self._on_event = on_event
        self._results: dict[int, Any] = {}

    def run(self, programs: Iterator[Program[Any]], window: int) -> Generator[Any]:
        """Yield results in order; the programs behind one that takes long wait once they are far ahead."""
        live: list[_Live] = []
        started = taken = 0
        more = True
        try:
            while more or live:
                while more and len(live) < window and started < taken + AHEAD * window:
                    program = next(programs, None)
                    if program is None:
                        more = False
                    else:
                        live += self._started(
                            _Live(started, Session(program, self._services, self._on_event))
                        )
                        started += 1
                while taken in self._results:
                    yield self._results.pop(taken)
                    taken += 1
                live = self._wave(live)
            while taken in self._results:
                yield self._results.pop(taken)
                taken += 1
        finally:
            for item in live:
                self._close(item.session)

    def _started(self, item: _Live) -> list[_Live]:
        return self._stepped(item, item.session.start)

    def _stepped(self, item: _Live, step: Any) -> list[_Live]:
        """Take one step; return the item while it lives."""
        try:
            step()
        except Exception as error:
            self._results[item.place] = error
        else:
            if not item.session.done:
                return [item]
            self._results[item.place] = item.session.result
        self._close(item.session)
        return []

    def _close(self, session: Session[Any]) -> None:
        left = session.close()
        if left and self._services.reader is not None:
            self._services.reader.cancel(left)

    def _wave(self, live: list[_Live]) -> list[_Live]:
        if not live:
            return []
        others = [
            item
            for item in live
            if not isinstance(item.session.effect, Generate | StartGeneration | ContinueGeneration | Score)
        ]
        chosen = others or live
        outcomes = dict(zip((item.place for item in chosen), self._outcomes(chosen), strict=True))
        kept: list[_Live] = []
        for item in live:
            outcome = outcomes.get(item.place)
            kept += (
                [item]
                if outcome is None
                else self._stepped(item, lambda i=item, o=outcome: i.session.advance(o))
            )
        return kept

    def _outcomes(self, items: list[_Live]) -> list[Outcome]:
        """Ask every service once for all that wait for it."""
        waiting: dict[int, list[_Live]] = {}
        asked: dict[int, Any] = {}
        outcomes: dict[int, Outcome] = {}
        for item in items:
            try:
                service = service_of(_effect(item), self._services)
            except Exception as error:
                outcomes[item.place] = Failed(error)
            else:
                waiting.setdefault(id(service), []).append(item)
                asked[id(service)] = service
        for key, members in waiting.items():
            answers = _ask_all(members, asked[key])
            outcomes.update(zip((item.place for item in members), answers, strict=True))
        return [outcomes[item.place] for item in items]


def _effect(item: _Live) -> Effect:
    if item.session.effect is None:
        raise RuntimeError("the program has ended")
    return item.session.effect


def _ask_all(items: list[_Live], service: Any) -> list[Outcome]:
    effects = [_effect(item) for item in items]
    if is_local(service) or (isinstance(effects[0], Retrieve) and hasattr(service, "retrieve_many")):
        return ask_merged(effects, service)
    # The user's own objects are not merged, but need not wait for one another either.
    with ThreadPoolExecutor(min(len(items), 16), thread_name_prefix="surerag-ask") as pool:
        futures = [
            pool.submit(item.session.context.run, try_ask, effect, service)
            for item, effect in zip(items, effects, strict=True)
        ]
        return [future.result() for future in futures]
