"""The protocol of a reader (a model that answers), and default methods for new readers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from surerag.errors import ConfigurationError, InputError
from surerag.messages import (
    ANSWER_TOKENS,
    Chunk,
    EntropyTrace,
    Generation,
    Prompt,
    SamplingParams,
    TokenTrace,
    Usage,
)
from surerag.readers.calls import in_thread, start_in_thread
from surerag.text import estimated_tokens

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a reader can do; surerag's methods refuse a reader that lacks a capability that they need.

    Attributes:
        logprobs: Whether generations carry the model's log-probability of every sampled token.
        entropy: ``"exact"`` (full vocabulary), ``"bounded"`` (an interval), or None if there
            are no entropies.
        energy: Whether generations carry the log-sum-exp of the raw logits of every step.
        begin: ``"native"`` if a generation can stop after n tokens and continue later without processing the
            prompt again; ``"whole"`` if ``begin`` generates the whole answer and returns its first n tokens.
        stream: Whether answers can be streamed in more than one piece.
        local: Whether calls should be merged into batches (a model in this process), rather than
            sent one by one (a server).
        native_async: Whether async methods, such as ``agenerate``, await real I/O, not a worker thread.
        thinking: ``"none"`` if the model is not known to think before it answers; ``"off"`` if it can think,
            but thinking is switched off; ``"apart"`` if it thinks, and its thoughts are not in the answer.
    """

    logprobs: bool
    entropy: Literal["exact", "bounded"] | None
    energy: bool = False
    begin: Literal["native", "whole"] = "whole"
    stream: bool = False
    local: bool = False
    native_async: bool = False
    thinking: Literal["none", "off", "apart"] = "none"


class UsageCounter:
    """Adds up token usage; several threads may share one counter."""

    def __init__(self, total: Usage | None = None) -> None:
        self.total = total or Usage()
        # The lock is re-entrant, because a finaliser may run while its own thread holds the lock.
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type[UsageCounter], tuple[Usage]]:
        return UsageCounter, (self.total,)

    def add(self, usage: Usage) -> None:
        """Add ``usage`` to the total."""
        with self._lock:
            self.total += usage


class BegunGeneration:
    """A begun answer with its first tokens. Complete it by ``rest`` or ``chunks``, or else ``close`` it.

    This base class serves readers that always generate the whole answer. If your reader can pause an answer,
    derive a class that overrides ``rest``, ``chunks`` and ``close``, and for a local reader
    ``_rest_together``.

    Attributes:
        partial: The generation so far.
        whole: The whole answer if the reader has it already, else None.
    """

    _fate: Literal["", "completed", "closed"] = ""

    def __init__(self, partial: Generation, whole: Generation | None = None) -> None:
        self.partial, self.whole = partial, whole

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.partial.text!r}, done={self.done})"

    @property
    def done(self) -> bool:
        """Whether the generation has ended, so that ``partial`` is the whole answer."""
        return self.partial is self.whole

    def rest(self) -> Generation:
        """Return the whole answer; generate its missing part first.

        Raises:
            InputError: If the generation was closed, or its answer was streamed by ``chunks``, before the
                reader had the whole answer.
        """
        if self.whole is None:
            raise NotImplementedError
        return self.whole

    def chunks(self) -> Iterator[Chunk]:
        """Yield the whole text, including its beginning; the last chunk holds the generation."""
        whole = self.rest()
        yield Chunk(whole.text, whole)

    def close(self) -> None:
        """Stop the generation and free its memory or connection; do nothing if it has ended or is closed."""

    async def arest(self) -> Generation:
        """Like ``rest``, without blocking the event loop."""
        return await in_thread(self.rest) if self.whole is None else self.whole

    async def achunks(self) -> AsyncIterator[Chunk]:
        """Like ``chunks``, without blocking the event loop."""
        async for chunk in _stepped(self.chunks()):
            yield chunk

    async def aclose(self) -> None:
        """Like ``close``, without blocking the event loop."""
        if self.whole is None:
            await in_thread(self.close)

    @staticmethod
    def rest_of(begun: Sequence[BegunGeneration]) -> list[Generation]:
        """Complete begun generations of one reader, in one batch if possible; return the whole answers."""
        waiting = [item for item in begun if item.whole is None]
        answers = waiting[0]._rest_together(waiting) if waiting else []
        completed = dict(zip(map(id, waiting), answers, strict=True))
        return [item.whole or completed[id(item)] for item in begun]

    def _rest_together(self, begun: Sequence[Any]) -> list[Generation]:
        """Complete several generations of one reader, and return their whole answers.

        ``begun`` has this generation and others of the same reader.
        """
        return [item.rest() for item in begun]

    def _check_open(self) -> None:
        if self._fate:
            raise InputError(f"this generation is {self._fate} already", hint="begin the generation again")

    def _end(self, fate: Literal["completed", "closed"]) -> None:
        self._fate = self._fate or fate


class BaseReader:
    """Base class of readers, with all methods of a reader.

    A derived class must define ``name``, ``capabilities`` and ``generate``. The other methods call
    ``generate`` by default; override a method if your model can do better.

    Log-probabilities are natural logs of the sampled tokens' probabilities in the model's own distribution at
    temperature 1, whatever the sampling temperature, top-p or penalties. A generation's
    ``trace`` (its tokens with their log-probabilities) does not contain the end token.
    """

    @property
    def name(self) -> str:
        """Identity of the model, to which calibrations and cache entries belong."""
        raise NotImplementedError

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of this reader."""
        raise NotImplementedError

    @property
    def gives_logprobs(self) -> bool:
        """Whether the reader is expected to return log-probabilities with its answers."""
        return self.capabilities.logprobs

    @property
    def max_tokens(self) -> int | None:
        """Default maximum length of an answer [tokens]; None means that the model decides."""
        return ANSWER_TOKENS

    @property
    def usage(self) -> Usage:
        """Calls and tokens of this reader so far; zeros if the reader does not count."""
        return Usage()

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has for this model; an estimate if only a server can count tokens."""
        return estimated_tokens(text)

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order.

        ``sampling.trace`` says what the traces contain; with ``"optional"``, a missing trace is no error.
        """
        raise NotImplementedError

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[BegunGeneration]:
        """Begin an answer to each prompt; ``partial`` of each answer holds its first ``n_tokens`` tokens.

        This default generates the whole answer, and puts its first tokens into ``partial``.
        """
        answers = self.generate(prompts, replace(sampling, n=1))
        return [begun_from_whole(answer[0], n_tokens) for answer in answers]

    def generate_each(
        self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]
    ) -> list[list[Generation]]:
        """Like ``generate``, but each prompt has its own sampling parameters.

        This default calls ``generate`` once for each distinct value of the parameters.
        """
        return in_groups(prompts, samplings, self.generate)

    def begin_each(
        self, prompts: Sequence[Prompt], n_tokens: int, samplings: Sequence[SamplingParams]
    ) -> list[BegunGeneration]:
        """Like ``begin``, but each prompt has its own sampling parameters; see :meth:`generate_each`."""
        begun: list[BegunGeneration] = []

        def begin(some: Sequence[Prompt], sampling: SamplingParams) -> list[BegunGeneration]:
            started = self.begin(some, n_tokens, sampling)
            begun.extend(started)
            return started

        try:
            return in_groups(prompts, samplings, begin)
        except BaseException:
            with ExitStack() as closing:  # closes every answer, even if another answer fails to close
                for item in begun:
                    closing.callback(item.close)
            raise

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer (the first sample) piece by piece; the last chunk holds the generation."""
        yield from self.begin([prompt], 1, sampling)[0].chunks()

    async def _await_verb(self, verb: Callable[..., R], *arguments: Any) -> R:
        """Run a method in a thread and await it; a reader whose methods never block overrides this."""
        return await in_thread(verb, *arguments)

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``, without blocking the event loop."""
        return await self._await_verb(self.generate, prompts, sampling)

    async def abegin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[BegunGeneration]:
        """Like ``begin``, without blocking the event loop."""
        return await self._await_verb(self.begin, prompts, n_tokens, sampling)

    async def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``, without blocking the event loop."""
        async for chunk in _stepped(self.stream(prompt, sampling)):
            yield chunk


def in_groups(
    prompts: Sequence[Prompt],
    samplings: Sequence[SamplingParams],
    call: Callable[[Sequence[Prompt], SamplingParams], Sequence[R]],
) -> list[R]:
    """Call a function once for each group of prompts with equal parameters; return the results in order."""
    members: dict[SamplingParams, list[int]] = {}
    for index, sampling in enumerate(samplings):
        members.setdefault(sampling, []).append(index)
    results: dict[int, R] = {}
    for sampling, group in members.items():
        results.update(zip(group, call([prompts[index] for index in group], sampling), strict=True))
    return [results[index] for index in range(len(prompts))]


def first_tokens(trace: TokenTrace, count: int) -> TokenTrace:
    """Return the trace of the first ``count`` tokens."""
    return tokens_of_trace(trace, slice(count))


def tokens_of_trace(trace: TokenTrace, part: slice) -> TokenTrace:
    """Return the trace of the tokens that a slice selects."""
    entropy = trace.entropy and EntropyTrace(
        trace.entropy.lower[part], trace.entropy.upper[part], trace.entropy.exact
    )
    energy = trace.logsumexp and trace.logsumexp[part]
    return TokenTrace(trace.tokens[part], trace.logprobs[part], entropy, energy)


def begun_from_whole(generation: Generation, n_tokens: int) -> BegunGeneration:
    """Return a begun generation with the first ``n_tokens`` tokens of a whole generation."""
    trace = generation.trace
    if trace is None or len(trace) <= n_tokens:
        return BegunGeneration(generation, generation)
    head = first_tokens(trace, n_tokens)
    partial = replace(
        generation,
        text="".join(head.tokens).strip(),
        trace=head,
        finish="partial",
        completion_tokens=n_tokens,
    )
    return BegunGeneration(partial, generation)


async def _stepped(chunks: Iterator[Chunk]) -> AsyncIterator[Chunk]:
    """Run each step of a blocking iterator in a thread; close the iterator when the consumer stops."""
    step: Future[Chunk | None] | None = None
    try:
        while True:
            step = start_in_thread(next, chunks, None)
            chunk = await asyncio.wrap_future(step)
            if chunk is None:
                return
            yield chunk
    finally:
        if step is None or step.done():
            close_iterator(chunks)
        else:
            # The step of a cancelled consumer continues in its thread; the iterator can be closed afterwards.
            step.add_done_callback(lambda _: close_iterator(chunks))


def close_iterator(chunks: Iterator[Chunk]) -> None:
    """Close an iterator of chunks if it can be closed, like a generator or an open stream."""
    close = getattr(chunks, "close", None)
    if close is not None:
        close()


Reader = BaseReader
"""Another name of :class:`BaseReader`, for annotations."""


def as_reader(reader: object) -> BaseReader:
    """Return the object unchanged if it is a reader.

    Raises:
        ConfigurationError: If the object is not a reader, but for example a framework's model.
    """
    if isinstance(reader, BaseReader):
        return reader
    if isinstance(reader, str):
        raise ConfigurationError(
            f"expected a reader, got the text {reader!r}",
            hint=f"pass a framework's model, OpenAIReader({reader!r}) or "
            f"TransformersReader.from_pretrained({reader!r})",
        )
    raise ConfigurationError(
        f"expected a reader, got {type(reader).__name__}",
        hint="use TransformersReader or OpenAIReader, or derive from BaseReader; pass a framework's model to "
        "surerag's components for this framework",
    )
