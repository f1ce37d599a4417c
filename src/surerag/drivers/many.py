"""Many programs in the caller's thread, their questions to a local model merged into large batches."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from surerag.drivers.answering import ask_merged, is_local, service_of, try_ask
from surerag.drivers.asynchronous import unless_failed
from surerag.drivers.progress import Progress, reporting
from surerag.drivers.session import Failed, Listener, Outcome, Session, check_at_once
from surerag.drivers.sync import run
from surerag.effects import Begin, Effect, Finish, Generate, Program, Retrieve, Score
from surerag.services import Services

R = TypeVar("R")


def run_many(
    programs: Iterable[Program[R]],
    services: Services,
    *,
    at_once: int = 64,
    on_event: Listener | None = None,
    progress: Progress = False,
    return_exceptions: bool = False,
) -> list[R]:
    """Run many programs, at most ``at_once`` at a time.

    With a local reader, the model is asked when every running program waits for it, as one batch. With
    a server, programs run concurrently in threads, and the reader's own limit bounds the requests.

    Args:
        programs: Methods at work; may be a generator, which is then read as there is room.
        services: Who answers them.
        at_once: Programs that run at the same time.
        on_event: Called with every event of every program.
        progress: True shows a bar on a terminal; a callable gets (done, total or None).
        return_exceptions: Put a program's exception in its place in the list, instead of raising the
            first one after all programs have ended.

    Returns:
        Results in the order of the programs.

    Raises:
        ConfigurationError: If ``at_once`` is less than 1.
        Exception: The first failure, after the other programs have run to their ends.
    """
    check_at_once(at_once)
    total = len(programs) if isinstance(programs, Sized) else None
    reader = services.reader
    with reporting(progress, total) as advance:
        if reader is None or is_local(reader):
            results = _Waves(services, on_event, advance).run(iter(programs), at_once)
        else:
            results = _in_threads(programs, services, at_once, on_event, advance)
    return unless_failed(results, return_exceptions=return_exceptions)


def _in_threads(
    programs: Iterable[Program[R]],
    services: Services,
    at_once: int,
    on_event: Listener | None,
    advance: Callable[[], None],
) -> list[Any]:
    places = enumerate(programs)
    results: dict[int, Any] = {}
    lock = threading.Lock()

    def worker() -> None:
        while True:
            with lock:
                place, program = next(places, (0, None))
            if program is None:
                return
            try:
                results[place] = run(program, services, on_event=on_event)
            except Exception as error:
                results[place] = error
            with lock:
                advance()

    with ThreadPoolExecutor(at_once, thread_name_prefix="surerag-run-many") as pool:
        workers = [pool.submit(contextvars.copy_context().run, worker) for _ in range(at_once)]
        for future in workers:
            future.result()
    return [results[place] for place in sorted(results)]


class _Live(NamedTuple):
    place: int
    session: Session[Any]


class _Waves:
    """Drives programs in lockstep: all other questions first, the reader when everyone waits for it."""

    def __init__(self, services: Services, on_event: Listener | None, advance: Callable[[], None]) -> None:
        self._services = services
        self._on_event = on_event
        self._advance = advance
        self._results: dict[int, Any] = {}

    def run(self, programs: Iterator[Program[Any]], at_once: int) -> list[Any]:
        live: list[_Live] = []
        places = enumerate(programs)
        try:
            while True:
                while len(live) < at_once and (entry := next(places, None)) is not None:
                    live += self._started(_Live(entry[0], Session(entry[1], self._on_event)))
                if not live:
                    break
                live = self._wave(live)
        finally:
            for item in live:
                self._close(item.session)
        return [self._results[place] for place in sorted(self._results)]

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
        self._advance()
        return []

    def _close(self, session: Session[Any]) -> None:
        left = session.close()
        if left and self._services.reader is not None:
            self._services.reader.cancel(left)

    def _wave(self, live: list[_Live]) -> list[_Live]:
        others = [
            item for item in live if not isinstance(item.session.effect, Generate | Begin | Finish | Score)
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
