"""A unit of work: some questions, asked of every system, and their answers scored."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

from surerag import drivers
from surerag.errors import MISCONFIGURED, StorageError
from surerag.evaluation.rows import Question
from surerag.evaluation.systems.metering import Metered, MeteredReader, clocked, metered
from surerag.evaluation.systems.rows import row
from surerag.evaluation.systems.scoring import Scoring
from surerag.evaluation.systems.system import (
    CalledSystem,
    ProgramSystem,
    System,
    SystemAnswer,
    Wrap,
    answered,
)
from surerag.journal import Answers
from surerag.prices import Costs, Prices
from surerag.readers.protocol import BaseReader
from surerag.types import Passage

_ENDING = (*MISCONFIGURED, StorageError)
"""What ends a whole comparison: it would come again with every question, or no answer could be kept."""


class Waiter:
    """Waits for what coroutine functions return, on a loop that is there, or on one of its own.

    Args:
        loop: The caller's; None for one of its own, in a thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._own: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._own.join()
            self._loop.close()

    def __call__(self, given: Awaitable[Any]) -> Any:
        """Return what an awaitable comes to."""

        async def awaited() -> Any:
            return await given

        return asyncio.run_coroutine_threadsafe(awaited(), self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._own = threading.Thread(
                    target=self._loop.run_forever, name="surerag-compare", daemon=True
                )
                self._own.start()
            return self._loop


@dataclass(frozen=True)
class Work:
    """What is done with each unit.

    Attributes:
        systems: By name, in the order in which they are told of.
        scoring: What is measured.
        prices: What answers cost.
        window: Questions at work at a time.
        max_concurrency: Calls of a user's own system, or requests at a server, at a time.
        wait: For coroutine functions.
    """

    systems: Mapping[str, System]
    scoring: Scoring
    prices: Prices
    window: int
    max_concurrency: int
    wait: Callable[[Awaitable[Any]], Any]

    def rows(self, questions: Sequence[Question], answers: Answers) -> list[dict[str, Any]]:
        """Ask all systems, and score what they say; every question gets a row from each system.

        Args:
            questions: The unit.
            answers: Where whatever is asked is kept.

        Raises:
            Exception: What ends a comparison: see :data:`_ENDING`.
        """
        readers: dict[int, MeteredReader] = {}

        def wrap(reader: BaseReader) -> BaseReader:
            kept = readers.get(id(reader))
            if kept is None:
                kept = MeteredReader(reader, answers, max_concurrency=self.max_concurrency)
                readers[id(reader)] = kept
            return kept

        found: dict[str, list[SystemAnswer | Exception]] = {}
        for name, system in self.systems.items():
            if isinstance(system, ProgramSystem):
                found[name] = self._run(system.keeping(wrap), questions)
            else:
                found[name] = self._call(name, system, questions, answers)
        scores = self._scores(questions, found, wrap, answers)
        return [
            self._row(question, name, found[name][at], scores[name][at])
            for at, question in enumerate(questions)
            for name in self.systems
        ]

    def _run(self, system: ProgramSystem, questions: Sequence[Question]) -> list[SystemAnswer | Exception]:
        services = clocked(system.services)
        programs = [metered(system.program(question.text), services) for question in questions]
        outcomes: Sequence[Metered[Any] | Exception] = drivers.run_many(
            programs, services, window=self.window, return_exceptions=True
        )
        found: list[SystemAnswer | Exception] = []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                found.append(_single(outcome))
                continue
            costs = outcome.meter.total(services)
            found.append(self._priced(replace(answered(outcome.result), costs=costs, model=system.model)))
        return found

    def _call(
        self, name: str, system: CalledSystem, questions: Sequence[Question], answers: Answers
    ) -> list[SystemAnswer | Exception]:
        def ask(question: Question) -> SystemAnswer | Exception:
            key = _key(name, question)
            kept = answers.get(key)
            if kept is None:
                answers.check()
                try:
                    kept = _stored(system.asked(question.text, self.wait))
                except Exception as error:
                    return _single(error)
                answers.put({key: kept})
            return self._priced(_restored(kept))

        with ThreadPoolExecutor(self.max_concurrency, thread_name_prefix="surerag-compare") as pool:
            futures = [pool.submit(ask, question) for question in questions]
            try:
                return [future.result() for future in futures]
            except BaseException:
                for future in futures:
                    future.cancel()
                raise

    def _priced(self, answer: SystemAnswer) -> SystemAnswer:
        if answer.costs.money is not None:
            return answer
        return replace(answer, costs=self.prices.priced(answer.costs, answer.model))

    def _scores(
        self,
        questions: Sequence[Question],
        found: Mapping[str, Sequence[SystemAnswer | Exception]],
        wrap: Wrap,
        answers: Answers,
    ) -> dict[str, list[dict[str, float | None]]]:
        scoring = self.scoring.keeping(wrap, answers)
        scores: dict[str, list[dict[str, float | None]]] = {
            name: [
                {} if isinstance(one, Exception) else dict(scoring.by_words(one.text, question.golds))
                for question, one in zip(questions, outcomes, strict=True)
            ]
            for name, outcomes in found.items()
        }
        places = []
        for name, outcomes in found.items():
            for at, (question, one) in enumerate(zip(questions, outcomes, strict=True)):
                if isinstance(one, Exception):
                    continue
                for measure, program in scoring.programs(question.text, question.golds, one).items():
                    places.append((name, at, measure, program))
        values: Sequence[Any] = drivers.run_many(
            [place[-1] for place in places], scoring.services, window=self.window, return_exceptions=True
        )
        for (name, at, measure, _), value in zip(places, values, strict=True):
            # What could not be measured is not there; what ends everything ends it here as well.
            scores[name][at][measure] = None if isinstance(value, Exception) else value
            if isinstance(value, Exception):
                _single(value)
        reference = found.get(scoring.reference)
        for name, outcomes in found.items() if reference is not None else ():
            for at, (one, other) in enumerate(zip(outcomes, reference or (), strict=True)):
                if not isinstance(one, Exception) and not isinstance(other, Exception):
                    scores[name][at]["agreement"] = scoring.agreement(one.text, other.text)
        return scores

    def _row(
        self,
        question: Question,
        name: str,
        found: SystemAnswer | Exception,
        scores: Mapping[str, float | None],
    ) -> dict[str, Any]:
        id_ = question.id or question.text
        if isinstance(found, Exception):
            told = f"{type(found).__name__}: {found}"
            return row(id_, question.text, question.golds, name, None, {}, told)
        return row(id_, question.text, question.golds, name, found, scores)


def _single(error: Exception) -> Exception:
    """Return a question's own failure; raise what is everybody's."""
    if isinstance(error, _ENDING):
        raise error
    return error


def _key(system: str, question: Question) -> str:
    told = json.dumps(["compare", system, question.id, question.text])
    return hashlib.sha256(told.encode("ascii")).hexdigest()


def _stored(answer: SystemAnswer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "contexts": [[one.text, one.id] for one in answer.contexts],
        "costs": answer.costs.to_dict(),
        "retrieved": answer.retrieved,
        "model": answer.model,
    }


def _restored(kept: Mapping[str, Any]) -> SystemAnswer:
    contexts = tuple(Passage(text, id=name) for text, name in kept["contexts"])
    return SystemAnswer(kept["text"], contexts, Costs(**kept["costs"]), kept["retrieved"], kept["model"])
