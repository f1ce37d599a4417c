"""Readers and entailers whose answers are kept, so that nothing is asked twice."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from surerag.drivers.answering import is_local
from surerag.effects import Effect, Program
from surerag.journal import Answers
from surerag.readers.protocol import BaseReader, Capabilities
from surerag.services import Entailer
from surerag.types import Generation, Pair, Prompt, Sampling, TokenTrace, Usage, as_messages

R = TypeVar("R")


class RecordedReader(BaseReader):
    """Asks a reader for what was not asked before; equal requests of several threads are one.

    A model in this process is asked in batches, and a batch is kept as a whole. A server is asked prompt
    by prompt, at most ``max_concurrency`` at a time, and each answer is kept when it comes: its text, tokens,
    log-probabilities and counts; entropies are not.

    Args:
        reader: Who is asked.
        answers: Where answers are kept.
        max_concurrency: Prompts of one call that a server is asked at the same time.
    """

    def __init__(self, reader: BaseReader, answers: Answers, *, max_concurrency: int = 16) -> None:
        self._reader = reader
        self._once = _Once(answers)
        self._max_concurrency = max_concurrency

    def __repr__(self) -> str:
        return f"RecordedReader({self._reader!r})"

    @property
    def name(self) -> str:
        """Identity of the model."""
        return self._reader.name

    @property
    def capabilities(self) -> Capabilities:
        """What the reader can do, but for entropies and what is never asked through here."""
        own = self._reader.capabilities
        return Capabilities(logprobs=own.logprobs, entropy=None, local=own.local)

    @property
    def usage(self) -> Usage:
        """What the reader was asked in this process."""
        return self._reader.usage

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has for the reader."""
        return self._reader.count_tokens(text)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""

        def ask(missing: Sequence[Prompt]) -> list[Any]:
            rows = self._reader.generate(missing, sampling)
            return [[_stored(sample) for sample in row] for row in rows]

        keys = [generation_key(self.name, prompt, sampling) for prompt in prompts]
        if self._reader.capabilities.local or len(prompts) == 1:
            found = self._once.ask(keys, prompts, ask)
        else:
            found = self._one_by_one(keys, prompts, ask)
        return [[_generation(sample) for sample in row] for row in found]

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
            [_key("entail", self.name, list(pair)) for pair in pairs],
            pairs,
            lambda missing: self._entailer.entail(missing).tolist(),
        )
        return np.array(rows, dtype=np.float64).reshape(len(rows), 3)


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


def _key(*asked: Any) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode("ascii")).hexdigest()[:32]


def _stored(generation: Generation) -> dict[str, Any]:
    stored: dict[str, Any] = {
        "text": generation.text,
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.completion_tokens,
        "thinking_tokens": generation.thinking_tokens,
        "cached_tokens": generation.cached_tokens,
        "finish": generation.finish,
    }
    if generation.trace is not None:
        stored["tokens"] = list(generation.trace.tokens)
        stored["logprobs"] = [float(value) for value in generation.trace.logprobs]
    return stored


def _generation(stored: dict[str, Any]) -> Generation:
    trace = None
    if "logprobs" in stored:
        trace = TokenTrace(tuple(stored["tokens"]), tuple(stored["logprobs"]))
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
