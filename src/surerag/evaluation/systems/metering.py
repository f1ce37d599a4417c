"""What a program costs: tokens, calls and seconds of the models that it asks, seen from around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from surerag.drivers.spending import spent_on
from surerag.effects import Begin, Effect, Entail, Generate, Program, Retrieve
from surerag.entailment.judge import JudgeEntailer
from surerag.journal import Answers
from surerag.prices import Costs
from surerag.readers.protocol import BaseReader
from surerag.recording import ClockedReader, RecordedReader, generation_key
from surerag.services import Retriever, Services
from surerag.types import Generation, Passage, Prompt, Sampling

R = TypeVar("R")
_SECONDS = "seconds:"


class MeteredReader(RecordedReader):
    """A reader that is asked everything once, and whose every answer keeps the seconds that it took.

    How much of its trace an answer needs is no part of what was asked: answers are kept with all of it, so
    that two systems that ask the same share an answer. In a batch each prompt takes its share of the time.

    Args:
        reader: Who is asked.
        answers: Where answers are kept.
        max_concurrency: Prompts of one call that a server is asked at the same time.
    """

    def __init__(self, reader: BaseReader, answers: Answers, *, max_concurrency: int = 16) -> None:
        super().__init__(
            ClockedReader(reader, self._took), answers, max_concurrency=max_concurrency, entropies=True
        )
        self._answers, self._counts = answers, reader

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""
        return super().generate(prompts, _whole(sampling))

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has for the reader."""
        return self._counts.count_tokens(text)

    def _took(self, seconds: Mapping[str, float]) -> None:
        self._answers.put({f"{_SECONDS}{key}": value for key, value in seconds.items()})

    def seconds(self, prompt: Prompt, sampling: Sampling) -> float:
        """Return how long an answer took; 0 where that is not known."""
        return float(self._answers.get(_SECONDS + generation_key(self.name, prompt, _whole(sampling))) or 0.0)


def _whole(sampling: Sampling) -> Sampling:
    return replace(sampling, trace="entropy")


class ClockedRetriever:
    """A retriever that remembers how long each query took; in a batch each takes its share.

    Args:
        retriever: Who is asked.
    """

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._took: dict[str, float] = {}

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Return passages, best first."""
        began = time.perf_counter()
        found = self._retriever.retrieve(query, k)
        self._took[query] = time.perf_counter() - began
        return found

    def retrieve_many(self, queries: Sequence[str], k: int | None) -> Sequence[Sequence[Passage]]:
        """Return what :meth:`retrieve` returns for each query."""
        many = getattr(self._retriever, "retrieve_many", None)
        if many is None:
            return [self.retrieve(query, k) for query in queries]
        began = time.perf_counter()
        found: Sequence[Sequence[Passage]] = many(queries, k)
        self._took.update(dict.fromkeys(queries, (time.perf_counter() - began) / max(len(queries), 1)))
        return found

    def seconds(self, query: str) -> float:
        """Return how long a query took; 0 where it was never asked."""
        return self._took.get(query, 0.0)


def clocked(services: Services) -> Services:
    """Return services whose retrievers remember how long they took."""
    return replace(
        services,
        retriever=None if services.retriever is None else ClockedRetriever(services.retriever),
        summaries=None if services.summaries is None else ClockedRetriever(services.summaries),
    )


@dataclass(slots=True)
class Meter:
    """What a program asked of models, and what that cost.

    Attributes:
        costs: Tokens and calls; calls are answers asked of a model, and pairs asked of an entailer.
        asked: Prompts with their samplings.
        sought: Queries, each as often as it was asked.
    """

    costs: Costs = field(default_factory=Costs)
    asked: list[tuple[Prompt, Sampling]] = field(default_factory=list)
    sought: list[str] = field(default_factory=list)

    def note(self, effect: Effect, answer: Any, services: Services) -> None:
        """Count an effect that was answered."""
        self.costs += spent_on(effect, answer, services)
        match effect:
            case Generate(prompts, sampling):
                self.asked += [(prompt, sampling) for prompt in prompts]
            case Begin(prompts, _, sampling):
                self.asked += [(prompt, replace(sampling, n=1)) for prompt in prompts]
            case Retrieve(query):
                self.sought.append(query)
            case Entail(pairs) if isinstance(services.entailer, JudgeEntailer):
                self.asked += services.entailer.asked_for(pairs)
            case _:
                pass

    def total(self, services: Services) -> Costs:
        """Return what was spent, with the seconds that the services took for what was asked."""
        reader, took = services.reader, 0.0
        if isinstance(reader, MeteredReader):
            took += sum(reader.seconds(*one) for one in self.asked)
        for retriever in (services.retriever, services.summaries):
            if isinstance(retriever, ClockedRetriever):
                took += sum(retriever.seconds(query) for query in self.sought)
        return replace(self.costs, seconds=took)


@dataclass(frozen=True, slots=True)
class Metered(Generic[R]):
    """What came of a program, and what it cost."""

    result: R
    meter: Meter


def metered(program: Program[R], services: Services) -> Program[Metered[R]]:
    """Run a program to its end, and count what it asks of services."""
    meter = Meter()
    move: Callable[[], Effect] = partial(next, program)
    while True:
        try:
            effect = move()
        except StopIteration as end:
            return Metered(end.value, meter)
        try:
            answer = yield effect
        except Exception as error:
            move = partial(program.throw, error)
            continue
        except BaseException:
            program.close()
            raise
        meter.note(effect, answer, services)
        move = partial(program.send, answer)
