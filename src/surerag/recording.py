"""Readers, entailers and retrievers whose answers are kept, so that nothing is asked twice."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from surerag.drivers.answering import is_local
from surerag.effects import Effect, Program
from surerag.journal import Answers
from surerag.readers.protocol import BaseReader, Capabilities, ReaderAround
from surerag.services import Entailer, Retriever
from surerag.types import (
    EntropyTrace,
    Generation,
    Pair,
    Passage,
    Prompt,
    Sampling,
    TokenTrace,
    TraceKind,
    Usage,
    as_messages,
)

R = TypeVar("R")


class ClockedReader(ReaderAround):
    """Asks a reader for as much of the trace as it can give, and tells how long each answer took.

    In a batch each prompt takes its share of the time.

    Args:
        reader: Who is asked.
        took: Told of seconds by :func:`generation_key`, before the answers are returned.
    """

    def __init__(self, reader: BaseReader, took: Callable[[Mapping[str, float]], None]) -> None:
        super().__init__(reader)
        self._took = took
        can = reader.capabilities
        self._trace: TraceKind = "entropy" if can.entropy else "logprobs" if can.logprobs else "none"

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""
        began = time.perf_counter()
        found = self._reader.generate(prompts, replace(sampling, trace=self._trace))
        each = (time.perf_counter() - began) / max(len(prompts), 1)
        self._took({generation_key(self.name, prompt, sampling): each for prompt in prompts})
        return found


class Tab:
    """What the answers that a run used cost, each counted once, whether it was asked now or found."""

    def __init__(self) -> None:
        self.usage = Usage()
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def note(self, key: str, samples: Sequence[Mapping[str, Any]]) -> None:
        """Count the samples of a prompt, as they are kept."""
        with self._lock:
            if key in self._seen:
                return
            self._seen.add(key)
            first = samples[0]
            self.usage += Usage(
                len(samples),
                first["prompt_tokens"],
                sum(one["completion_tokens"] for one in samples),
                sum(one.get("thinking_tokens", 0) for one in samples),
                first.get("cached_tokens", 0),
            )


class RecordedReader(ReaderAround):
    """Asks a reader for what was not asked before; equal requests of several threads are one.

    A model in this process is asked in batches, and a batch is kept as a whole. A server is asked prompt
    by prompt, at most ``max_concurrency`` at a time, and each answer is kept when it comes: its text, tokens,
    log-probabilities and counts; entropies and log-sum-exps only where asked for.

    Args:
        reader: Who is asked.
        answers: Where answers are kept.
        max_concurrency: Prompts of one call that a server is asked at the same time.
        entropies: Whether to keep each step's entropy and log-sum-exp as well.
        tab: Where to count what is used.
    """

    def __init__(
        self,
        reader: BaseReader,
        answers: Answers,
        *,
        max_concurrency: int = 16,
        entropies: bool = False,
        tab: Tab | None = None,
    ) -> None:
        super().__init__(reader)
        self._tab = tab
        self._once = _Once(answers)
        self._max_concurrency = max_concurrency
        self._entropies = entropies

    def __repr__(self) -> str:
        return f"RecordedReader({self._reader!r})"

    @property
    def capabilities(self) -> Capabilities:
        """What the reader can do, but for what is not kept, or never asked through here."""
        own = self._reader.capabilities
        return Capabilities(
            logprobs=own.logprobs,
            entropy=own.entropy if self._entropies else None,
            energy=own.energy and self._entropies,
            local=own.local,
            thinking=own.thinking,
        )

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has for the reader."""
        return self._reader.count_tokens(text)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""

        def ask(missing: Sequence[Prompt]) -> list[Any]:
            rows = self._reader.generate(missing, sampling)
            return [[stored_generation(sample, entropies=self._entropies) for sample in row] for row in rows]

        keys = [generation_key(self.name, prompt, sampling) for prompt in prompts]
        if self._reader.capabilities.local or len(prompts) == 1:
            found = self._once.ask(keys, prompts, ask)
        else:
            found = self._one_by_one(keys, prompts, ask)
        if self._tab is not None:
            for key, row in zip(keys, found, strict=True):
                self._tab.note(key, row)
        return [[kept_generation(sample) for sample in row] for row in found]

    def _one_by_one(
        self, keys: Sequence[str], prompts: Sequence[Prompt], ask: Callable[[Sequence[Prompt]], list[Any]]
    ) -> list[Any]:
        with ThreadPoolExecutor(
            min(len(keys), self._max_concurrency), thread_name_prefix="surerag-ask"
        ) as pool:
            futures = [
                pool.submit(self._once.ask, [key], [prompt], ask)
                for key, prompt in zip(keys, prompts, strict=True)
            ]
        return [future.result()[0] for future in futures]


class RecordedEntailer:
    """Asks an entailer about pairs that it was not asked about before.

    Args:
        entailer: Who is asked.
        answers: Where judgements are kept.
    """

    def __init__(self, entailer: Entailer, answers: Answers) -> None:
        self._entailer = entailer
        self._once = _Once(answers)

    def __repr__(self) -> str:
        return f"RecordedEntailer({self._entailer!r})"

    @property
    def name(self) -> str:
        """Identity of the entailer."""
        return self._entailer.name

    @property
    def local(self) -> bool:
        """Whether pairs of many callers should be merged."""
        return is_local(self._entailer)

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return probabilities [pairs, 3]: contradiction, neutral, entailment."""
        rows = self._once.ask(
            [entailment_key(self.name, pair) for pair in pairs],
            pairs,
            lambda missing: self._entailer.entail(missing).tolist(),
        )
        return np.array(rows, dtype=np.float64).reshape(len(rows), 3)


class RecordedRetriever:
    """Asks a retriever for what it was not asked for before; texts, ids, scores and metadata are kept.

    A framework's own object behind a passage, and its vector, are not.

    Args:
        retriever: Who is asked.
        answers: Where passages are kept.
        name: What it is called where they are kept: another name, other passages.
    """

    def __init__(self, retriever: Retriever, answers: Answers, *, name: str) -> None:
        self._retriever = retriever
        self._once = _Once(answers)
        self.name = name

    def __repr__(self) -> str:
        return f"RecordedRetriever({self._retriever!r})"

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return passages, best first."""
        return self.retrieve_many([query], k)[0]

    def retrieve_many(self, queries: Sequence[str], k: int | None) -> list[list[Passage]]:
        """Return what :meth:`retrieve` returns for each query."""

        def ask(missing: Sequence[str]) -> list[Any]:
            many = getattr(self._retriever, "retrieve_many", None)
            found = many(missing, k) if many else [self._retriever.retrieve(query, k) for query in missing]
            return [[_stored_passage(passage) for passage in passages] for passages in found]

        keys = [retrieval_key(self.name, query, k) for query in queries]
        return [[Passage(**passage) for passage in row] for row in self._once.ask(keys, queries, ask)]


class _Once:
    """Looks an answer up, waits for the thread that is asking for it, or asks."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._asking: dict[str, Future[Any]] = {}

    def ask(self, keys: Sequence[str], items: Sequence[Any], ask: Callable[[Any], list[Any]]) -> list[Any]:
        """Return an answer for each item; ``ask`` gets those that nobody has, or is asking for."""
        found: dict[str, Any] = {}
        mine: dict[str, Any] = {}
        others: dict[str, Future[Any]] = {}
        with self._lock:
            for key, item in zip(keys, items, strict=True):
                if key in found or key in mine or key in others:
                    continue
                if key in self._asking:
                    others[key] = self._asking[key]
                elif (answer := self._answers.get(key)) is not None:
                    found[key] = answer
                else:
                    mine[key] = item
                    self._asking[key] = Future()
        # Own questions first: nobody waits for a thread that waits.
        if mine:
            found.update(self._asked(mine, ask))
        found.update({key: future.result() for key, future in others.items()})
        return [found[key] for key in keys]

    def _asked(self, mine: dict[str, Any], ask: Callable[[Any], list[Any]]) -> dict[str, Any]:
        try:
            self._answers.check()
            answers = dict(zip(mine, ask(list(mine.values())), strict=True))
            self._answers.put(answers)
        except BaseException as error:
            for future in self._released(mine):
                future.set_exception(error)
            raise
        for key, future in zip(mine, self._released(mine), strict=True):
            future.set_result(answers[key])
        return answers

    def _released(self, keys: Iterable[str]) -> list[Future[Any]]:
        with self._lock:
            return [self._asking.pop(key) for key in keys]


def while_kept(program: Program[R], answers: Answers) -> Program[R]:
    """Ask nothing more for a program once answers can no longer be kept.

    Raises:
        StorageError: Inside the driver, instead of the program's next effect.
    """
    step: Callable[[], Effect] = partial(next, program)
    while True:
        try:
            effect = step()
        except StopIteration as end:
            return cast("R", end.value)
        answers.check()
        try:
            step = partial(program.send, (yield effect))
        except BaseException as error:
            step = partial(program.throw, error)


def generation_key(reader: str, prompt: Prompt, sampling: Sampling) -> str:
    """Return the digest under which the samples of a prompt are kept."""
    return _key("generate", reader, [list(turn) for turn in as_messages(prompt)], asdict(sampling))


def entailment_key(entailer: str, pair: Pair) -> str:
    """Return the digest under which a judgement on a pair is kept."""
    return _key("entail", entailer, list(pair))


def retrieval_key(retriever: str, query: str, k: int | None) -> str:
    """Return the digest under which the passages of a query are kept."""
    return _key("retrieve", retriever, query, k)


def _key(*asked: Any) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode("ascii")).hexdigest()[:32]


def stored_generation(generation: Generation, *, entropies: bool = False) -> dict[str, Any]:
    """Return a generation as plain JSON values.

    Args:
        generation: What a reader answered.
        entropies: Whether to keep each step's entropy and log-sum-exp as well.
    """
    stored: dict[str, Any] = {
        "text": generation.text,
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.completion_tokens,
        "thinking_tokens": generation.thinking_tokens,
        "cached_tokens": generation.cached_tokens,
        "finish": generation.finish,
    }
    if generation.trace is not None:
        trace = generation.trace
        stored["tokens"] = list(trace.tokens)
        stored["logprobs"] = _floats(trace.logprobs)
        if entropies and trace.entropy is not None:
            stored["entropy_lower"] = _floats(trace.entropy.lower)
            stored["entropy_upper"] = _floats(trace.entropy.upper)
            stored["entropy_exact"] = trace.entropy.exact
        if entropies and trace.logsumexp is not None:
            stored["logsumexp"] = _floats(trace.logsumexp)
    return stored


def kept_generation(stored: Mapping[str, Any]) -> Generation:
    """Return the generation that :func:`stored_generation` wrote down."""
    trace = None
    if stored.get("logprobs") is not None:
        entropy = None
        if stored.get("entropy_lower") is not None:
            entropy = EntropyTrace(
                tuple(stored["entropy_lower"]), tuple(stored["entropy_upper"]), stored["entropy_exact"]
            )
        energies = stored.get("logsumexp")
        trace = TokenTrace(
            tuple(stored["tokens"]),
            tuple(stored["logprobs"]),
            entropy,
            None if energies is None else tuple(energies),
        )
    return Generation(
        text=stored["text"],
        prompt_tokens=stored["prompt_tokens"],
        trace=trace,
        finish=stored["finish"],
        completion_tokens=stored["completion_tokens"],
        thinking_tokens=stored["thinking_tokens"],
        # What was stored before servers' caches were counted does not tell.
        cached_tokens=stored.get("cached_tokens", 0),
    )


def _stored_passage(passage: Passage) -> dict[str, Any]:
    plain = {key: value for key, value in passage.metadata.items() if _is_plain(value)}
    return {"text": passage.text, "id": passage.id, "score": passage.score, "metadata": plain}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _floats(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values]
