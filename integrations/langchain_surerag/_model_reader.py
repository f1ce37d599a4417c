"""A LangChain model behind the protocol of readers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar, cast

from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable, ensure_config

from langchain_surerag._asking import Piece, Replied, can_stream, graft, leaves
from langchain_surerag._dialects import Asked, Dialect, DialectOptions
from langchain_surerag._drafts import Draft
from langchain_surerag._exchange import filled, missing, prompt_value, text_of, usage_of
from langchain_surerag._scoring import ECHO, SCORING_HINT, Pair, obstacle_to_scoring, read_back
from langchain_surerag._streams import AsyncOpenStream, OpenStream
from surerag.errors import CapabilityError, ConfigurationError, ServiceError
from surerag.readers import BaseReader, Capabilities
from surerag.readers.fan_out import aeach, each
from surerag.readers.protocol import begun_from_whole
from surerag.types import Begun, Chunk, Generation, Prompt, Sampling, TokenTrace, Usage

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", OpenStream, AsyncOpenStream)


class ModelReader(BaseReader):
    """A LangChain model behind the protocol of readers; made by :func:`reader_from_model`.

    Attributes:
        model: The user's own object.
    """

    def __init__(self, model: Runnable[Any, Any], options: DialectOptions, *, max_concurrency: int) -> None:
        if max_concurrency < 1:
            raise ConfigurationError(f"max_concurrency must be at least 1, got {max_concurrency!r}")
        if options.top_logprobs is not None and options.top_logprobs < 0:
            raise ConfigurationError(f"top_logprobs must be 0 or more, got {options.top_logprobs!r}")
        self.model = model
        self._grafted = graft(model, options)
        dialects = leaves(model, options)
        for dialect in dialects:
            dialect.check()
        self._obstacle = obstacle_to_scoring(dialects, options.scoring)
        self._capabilities = _common(dialects, scores=not self._obstacle)
        self._name = "|".join(dict.fromkeys(_name(dialect.model) for dialect in dialects))
        self._max_concurrency = max_concurrency
        self._usage = Usage()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ModelReader({self._name})"

    @property
    def name(self) -> str:
        """Identity of the model: its class and the name of what it asks."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do; of several, what all of them can."""
        return self._capabilities

    @property
    def usage(self) -> Usage:
        """Requests made, and tokens as far as the server counts them."""
        return self._usage

    # Whole answers.

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""
        whole = Asked(sampling, sampling.n)
        found = self._each(lambda prompt: self._answers(prompt, whole), prompts)
        left_out = missing(found, prompts, sampling)
        more = self._each(lambda item: self._answers(item.prompt, item.asked), left_out)
        return filled(found, left_out, more, sampling.n)

    async def agenerate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Like ``generate``, with concurrent requests."""
        whole = Asked(sampling, sampling.n)
        found = await self._aeach(lambda prompt: self._aanswers(prompt, whole), prompts)
        left_out = missing(found, prompts, sampling)
        more = await self._aeach(lambda item: self._aanswers(item.prompt, item.asked), left_out)
        return filled(found, left_out, more, sampling.n)

    def _answers(self, prompt: Prompt, asked: Asked) -> list[Generation]:
        return self._read(self._grafted.invoke(prompt_value(prompt), asked=asked), asked)

    async def _aanswers(self, prompt: Prompt, asked: Asked) -> list[Generation]:
        return self._read(await self._grafted.ainvoke(prompt_value(prompt), asked=asked), asked)

    def _read(self, replied: Replied, asked: Asked) -> list[Generation]:
        answers = replied.result.generations[0] if replied.result.generations else []
        if not answers:
            raise ServiceError(f"{self._name} returned no answer", hint="look at what its server returns")
        drafts = [self._draft(asked.sampling) for _ in answers]
        for draft, answer in zip(drafts, answers, strict=True):
            draft.add(replied.dialect, answer)
            draft.end()
        usage = usage_of(replied.result)
        self._count(usage if usage.prompt_tokens else drafts[0].usage)
        found = [draft.generation() for draft in drafts]
        return [replace(item, prompt_tokens=item.prompt_tokens or usage.prompt_tokens) for item in found]

    # The first tokens, and on from there.

    def begin(self, prompts: Sequence[Prompt], n_tokens: int, sampling: Sampling) -> list[Begun]:
        """Open a stream for each prompt and read its first ``n_tokens`` tokens."""
        if self._capabilities.begin != "native":
            return super().begin(prompts, n_tokens, sampling)
        streams = [self._opened(prompt, sampling) for prompt in prompts]
        try:
            return self._each(lambda stream: stream.until(n_tokens), streams)
        except BaseException:
            for stream in streams:
                stream.close()
            raise

    async def abegin(self, prompts: Sequence[Prompt], n_tokens: int, sampling: Sampling) -> list[Begun]:
        """Like ``begin``, without blocking the event loop."""
        if self._capabilities.begin != "native":
            answers = await self.agenerate(prompts, replace(sampling, n=1))
            return [begun_from_whole(answer[0], n_tokens) for answer in answers]
        streams = [self._aopened(prompt, sampling) for prompt in prompts]
        try:
            return await self._aeach(lambda stream: stream.until(n_tokens), streams)
        except BaseException:
            for stream in streams:
                await stream.aclose()
            raise

    def finish(self, begun: Sequence[Begun]) -> list[Generation]:
        """Read each open stream to its end."""
        if self._capabilities.begin != "native":
            return super().finish(begun)
        return self._each(lambda item: _state(item, OpenStream).rest(), begun)

    async def afinish(self, begun: Sequence[Begun]) -> list[Generation]:
        """Like ``finish``, without blocking the event loop."""
        if self._capabilities.begin != "native":
            return super().finish(begun)
        return await self._aeach(lambda item: _state(item, AsyncOpenStream).rest(), begun)

    def cancel(self, begun: Sequence[Begun]) -> None:
        """Close each open stream."""
        for item in begun:
            if self._capabilities.begin == "native":
                _state(item, OpenStream).close()

    async def acancel(self, begun: Sequence[Begun]) -> None:
        """Close each open stream."""
        for item in begun:
            if self._capabilities.begin == "native":
                await _state(item, AsyncOpenStream).aclose()

    # Streams.

    def stream(self, prompt: Prompt, sampling: Sampling) -> Iterator[Chunk]:
        """Yield an answer piece by piece."""
        return self._opened(prompt, sampling).chunks()

    def finish_stream(self, begun: Begun) -> Iterator[Chunk]:
        """Yield what was begun, from its first token on."""
        if self._capabilities.begin != "native":
            return super().finish_stream(begun)
        return _state(begun, OpenStream).chunks()

    async def astream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Chunk]:
        """Like ``stream``, without blocking the event loop."""
        async with aclosing(self._aopened(prompt, sampling).chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def afinish_stream(self, begun: Begun) -> AsyncIterator[Chunk]:
        """Like ``finish_stream``, without blocking the event loop."""
        if self._capabilities.begin != "native":
            for chunk in super().finish_stream(begun):
                yield chunk
            return
        async with aclosing(_state(begun, AsyncOpenStream).chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    def _opened(self, prompt: Prompt, sampling: Sampling) -> OpenStream:
        pieces = self._grafted.stream(prompt_value(prompt), asked=Asked(sampling, streamed=True))
        return OpenStream(cast("Iterator[Piece]", pieces), self._draft(sampling), self._count)

    def _aopened(self, prompt: Prompt, sampling: Sampling) -> AsyncOpenStream:
        pieces = self._grafted.astream(prompt_value(prompt), asked=Asked(sampling, streamed=True))
        return AsyncOpenStream(cast("AsyncIterator[Piece]", pieces), self._draft(sampling), self._count)

    def _draft(self, sampling: Sampling) -> Draft:
        return Draft(sampling, traced=self._capabilities.logprobs)

    # Given text.

    def score(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Return the trace of each continuation after its prompt, through an echoed completion.

        Raises:
            CapabilityError: If the server is not known to echo with the right log-probabilities.
        """
        return self._each(
            lambda pair: self._scored(pair, self._grafted.invoke(pair.joined, asked=ECHO)),
            self._pairs(prompts, continuations),
        )

    async def ascore(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Like ``score``, with concurrent requests."""

        async def scored(pair: Pair) -> TokenTrace:
            return self._scored(pair, await self._grafted.ainvoke(pair.joined, asked=ECHO))

        return await self._aeach(scored, self._pairs(prompts, continuations))

    def _pairs(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[Pair]:
        if self._obstacle:
            raise CapabilityError(
                f"{self._name} cannot score given text: {self._obstacle}", hint=SCORING_HINT
            )
        return [
            Pair(text_of(prompt), continuation)
            for prompt, continuation in zip(prompts, continuations, strict=True)
        ]

    def _scored(self, pair: Pair, replied: Replied) -> TokenTrace:
        self._count(usage_of(replied.result))
        return read_back(pair, replied)

    # Many requests at once.

    def _limit(self, wanted: int) -> int:
        return max(1, min(wanted, self._max_concurrency, ensure_config().get("max_concurrency") or wanted))

    def _each(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        return each(call, items, self._limit(len(items)))

    async def _aeach(self, call: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
        return await aeach(call, items, asyncio.Semaphore(self._limit(len(items))))

    def _count(self, usage: Usage) -> None:
        with self._lock:
            self._usage += usage


def _common(dialects: Sequence[Dialect], *, scores: bool) -> Capabilities:
    logprobs = all(dialect.logprobs for dialect in dialects)
    streams = all(can_stream(dialect.model) for dialect in dialects)
    return Capabilities(
        logprobs=logprobs,
        entropy="bounded" if logprobs and all(dialect.top_logprobs for dialect in dialects) else None,
        score=scores,
        begin="native" if logprobs and streams else "whole",
        stream=streams,
        # LangChain's own async entry points are awaited; what a model does there is its business.
        native_async=True,
    )


def _name(model: BaseLanguageModel[Any]) -> str:
    names = (getattr(model, attribute, None) for attribute in ("model_name", "model", "model_id", "repo_id"))
    asked = next((name for name in names if isinstance(name, str) and name), "")
    return f"{type(model).__name__}({asked})"


def _state(begun: Begun, kind: type[S]) -> S:
    if not isinstance(begun.state, kind):
        raise ServiceError(
            "this was begun in another way than it is to be finished",
            hint="use begin with finish and cancel, abegin with afinish and acancel, of one reader",
        )
    return begun.state
