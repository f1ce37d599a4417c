"""LlamaIndex's ``OpenAI``, ``OpenAILike`` and their subclasses as readers with log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llama_index.core.llms import LLM

from llama_index_surerag._openai_requests import AsyncLine, Line, Requests
from llama_index_surerag._text_llm import LLMReader, LLMSettings, failures_of
from llama_index_surerag.prompts import flat_text
from surerag.errors import ConfigurationError, ServiceError, TransientServiceError
from surerag.readers import Capabilities
from surerag.readers.closing import HangUp, close_in_loop_when_dropped, close_when_dropped
from surerag.readers.openai.parse import Draft, Json, Wanted, choices_of, streamed_choice, usage_of
from surerag.readers.openai.requests import seed_of
from surerag.readers.pieces import TrimmedPieces
from surerag.types import Begun, Chunk, Generation, Prompt, Sampling, Usage


@dataclass(frozen=True)
class LogprobSettings:
    """What to ask for besides the answer, and how to read it.

    Attributes:
        top_logprobs: Likeliest tokens to list at each step.
        vocabulary_size: Number of tokens the model can emit.
        count: Length of a text in tokens, for servers that do not tell; None leaves it at 0.
    """

    top_logprobs: int
    vocabulary_size: int
    count: Callable[[str], int] | None = None


class _Open:
    """An answer that is being streamed; its line is hung up once this is dropped.

    Args:
        line: The open stream.
        draft: What came of it so far.
        loop: Where it is streamed; None for a sync stream.
    """

    def __init__(
        self, line: Line | AsyncLine, draft: Draft, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.stream = line.stream
        self.draft = draft
        self.loop = loop
        self.taken = False
        self.ended = False
        self.hang_up: HangUp = (
            close_when_dropped(self, line.hang_up)
            if isinstance(line, Line)
            else close_in_loop_when_dropped(self, line.hang_up)
        )


class OpenAILLMReader(LLMReader):
    """A reader over a user's OpenAI-compatible LLM.

    Args:
        llm: An ``OpenAI`` or a subclass.
        settings: How to use it.
        logprobs: What to ask for besides the answer.
    """

    def __init__(self, llm: LLM, settings: LLMSettings, logprobs: LogprobSettings) -> None:
        super().__init__(llm, settings)
        self._logprobs = logprobs
        self._wanted = Wanted(True, logprobs.top_logprobs, logprobs.vocabulary_size)
        self._requests = Requests(llm, logprobs.top_logprobs)

    @property
    def capabilities(self) -> Capabilities:
        """Bounded entropies; a gate holds the stream open."""
        return Capabilities(logprobs=True, entropy="bounded", begin="native", stream=True, native_async=True)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt.

        A server may return fewer choices than asked for: it is asked again for the rest. Greedy
        decoding gives one answer, however many are asked for.

        Raises:
            LogprobsError: If log-probabilities are missing.
            ServiceError: If the LLM fails.
        """
        return self._turns.map(lambda prompt: self._samples(prompt, sampling), prompts)

    def begin(self, prompts: Sequence[Prompt], n_tokens: int, sampling: Sampling) -> list[Begun]:
        """Read the first ``n_tokens`` tokens of each answer from a stream that stays open."""
        opened: list[_Open] = []
        try:
            return self._turns.map(lambda prompt: self._begin(prompt, n_tokens, sampling, opened), prompts)
        except BaseException:
            for handle in opened:
                self._close(handle)
            raise

    def finish(self, begun: Sequence[Begun]) -> list[Generation]:
        """Read the rest of open streams.

        Raises:
            ServiceError: If one was finished or cancelled before.
        """
        return self._turns.map(lambda item: _last(list(self.finish_stream(item))), begun)

    def cancel(self, begun: Sequence[Begun]) -> None:
        """Close open streams; the server stops generating."""
        for item in begun:
            self._close(_handle(item))

    def stream(self, prompt: Prompt, sampling: Sampling) -> Iterator[Chunk]:
        """Yield an answer piece by piece."""
        yield from self._rest(self._open(prompt, sampling))

    def finish_stream(self, begun: Begun) -> Iterator[Chunk]:
        """Yield what was begun from its first token on.

        Raises:
            ServiceError: If it was finished or cancelled before.
        """
        yield from self._rest(_take(begun, None))

    async def agenerate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Like ``generate``, awaiting the LLM's own async methods."""
        return await self._turns.amap(lambda prompt: self._asamples(prompt, sampling), prompts)

    async def abegin(self, prompts: Sequence[Prompt], n_tokens: int, sampling: Sampling) -> list[Begun]:
        """Like ``begin``; to be finished in the same event loop."""
        opened: list[_Open] = []
        try:
            return await self._turns.amap(
                lambda prompt: self._abegin(prompt, n_tokens, sampling, opened), prompts
            )
        except BaseException:
            for handle in opened:
                self._close(handle)
            raise

    async def afinish(self, begun: Sequence[Begun]) -> list[Generation]:
        """Like ``finish``."""

        async def one(item: Begun) -> Generation:
            return _last([chunk async for chunk in self.afinish_stream(item)])

        return await self._turns.amap(one, begun)

    async def acancel(self, begun: Sequence[Begun]) -> None:
        """Like ``cancel``: neither of them waits."""
        self.cancel(begun)

    async def astream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Chunk]:
        """Like ``stream``."""
        async for chunk in self._arest(await self._aopen(prompt, sampling)):
            yield chunk

    async def afinish_stream(self, begun: Begun) -> AsyncIterator[Chunk]:
        """Like ``finish_stream``."""
        async for chunk in self._arest(_take(begun, asyncio.get_running_loop())):
            yield chunk

    def _samples(self, prompt: Prompt, sampling: Sampling) -> list[Generation]:
        collecting = self._collect(prompt, sampling)
        with failures_of(self._llm):
            wanted = next(collecting)
            try:
                while True:
                    wanted = collecting.send(self._requests.ask(prompt, wanted))
            except StopIteration as stop:
                return list(stop.value)

    async def _asamples(self, prompt: Prompt, sampling: Sampling) -> list[Generation]:
        collecting = self._collect(prompt, sampling)
        with failures_of(self._llm):
            wanted = next(collecting)
            try:
                while True:
                    wanted = collecting.send(await self._requests.aask(prompt, wanted))
            except StopIteration as stop:
                return list(stop.value)

    def _collect(self, prompt: Prompt, sampling: Sampling) -> Generator[Sampling, Any, list[Generation]]:
        """Yield samplings to ask for until there are enough answers, and return these."""
        needed = sampling.n if sampling.temperature > 0 else 1
        found: list[Generation] = []
        while len(found) < needed:
            # Another seed each time: with the same one, a server would repeat itself.
            seed = seed_of(sampling.seed, len(found))
            answer = _plain((yield replace(sampling, n=needed - len(found), seed=seed)))
            choices = choices_of(answer)[: needed - len(found)]
            got = [self._whole(prompt, answer, choice) for choice in choices]
            self._count(1, got)
            found += got
        return found if sampling.temperature > 0 else found * sampling.n

    def _whole(self, prompt: Prompt, answer: Json, choice: Json) -> Generation:
        draft = self._draft(prompt)
        _note_usage(draft, answer)
        draft.feed(choice)
        # Some servers do not say why an answer ended; one that came whole has ended.
        draft.finish = draft.finish or "stop"
        return draft.generation()

    def _ended(self, handle: _Open) -> Generation:
        if handle.draft.finish is None:
            raise TransientServiceError(
                f"{type(self._llm).__name__}: the stream broke off before the answer ended", hint="ask again"
            )
        with failures_of(self._llm):
            return handle.draft.generation()

    def _draft(self, prompt: Prompt, limit: int | None = None) -> Draft:
        length = self._logprobs.count(flat_text(prompt)) if self._logprobs.count else 0
        return Draft(self._wanted, usage=Usage(1, length, 0), limit=limit)

    def _open(self, prompt: Prompt, sampling: Sampling) -> _Open:
        with failures_of(self._llm):
            line = self._requests.open(prompt, replace(sampling, n=1))
        return _Open(line, self._draft(prompt, sampling.max_tokens))

    async def _aopen(self, prompt: Prompt, sampling: Sampling) -> _Open:
        with failures_of(self._llm):
            line = await self._requests.aopen(prompt, replace(sampling, n=1))
        return _Open(line, self._draft(prompt, sampling.max_tokens), asyncio.get_running_loop())

    def _begin(self, prompt: Prompt, n_tokens: int, sampling: Sampling, opened: list[_Open]) -> Begun:
        handle = self._open(prompt, sampling)
        opened.append(handle)
        with failures_of(self._llm):
            for response in handle.stream:
                _feed(handle.draft, response)
                if handle.draft.tokens >= n_tokens and handle.draft.finish is None:
                    return Begun(handle.draft.generation(n_tokens), done=False, state=handle)
                if handle.draft.full:
                    break
        self._close(handle)
        return Begun(self._ended(handle), done=True, state=handle)

    async def _abegin(self, prompt: Prompt, n_tokens: int, sampling: Sampling, opened: list[_Open]) -> Begun:
        handle = await self._aopen(prompt, sampling)
        opened.append(handle)
        with failures_of(self._llm):
            async for response in handle.stream:
                _feed(handle.draft, response)
                if handle.draft.tokens >= n_tokens and handle.draft.finish is None:
                    return Begun(handle.draft.generation(n_tokens), done=False, state=handle)
                if handle.draft.full:
                    break
        self._close(handle)
        return Begun(self._ended(handle), done=True, state=handle)

    def _rest(self, handle: _Open) -> Iterator[Chunk]:
        pieces = TrimmedPieces()
        try:
            if handle.draft.text:
                yield Chunk(pieces.feed(handle.draft.text))
            if not handle.ended:
                with failures_of(self._llm):
                    for response in handle.stream:
                        yield Chunk(pieces.feed(_feed(handle.draft, response)))
                        if handle.draft.full:
                            break
        finally:
            self._close(handle)
        yield Chunk("", self._ended(handle))

    async def _arest(self, handle: _Open) -> AsyncIterator[Chunk]:
        pieces = TrimmedPieces()
        try:
            if handle.draft.text:
                yield Chunk(pieces.feed(handle.draft.text))
            if not handle.ended:
                with failures_of(self._llm):
                    async for response in handle.stream:
                        yield Chunk(pieces.feed(_feed(handle.draft, response)))
                        if handle.draft.full:
                            break
        finally:
            self._close(handle)
        yield Chunk("", self._ended(handle))

    def _close(self, handle: _Open) -> None:
        if not handle.ended:
            self._settle(handle)
            handle.hang_up()

    def _settle(self, handle: _Open) -> None:
        """Note that a stream has ended, and count what was read of it."""
        handle.ended = handle.taken = True
        read = Generation("", handle.draft.usage.prompt_tokens, completion_tokens=handle.draft.tokens)
        self._count(1, [read])


def _feed(draft: Draft, response: Any) -> str:
    """Take a streamed response and return the text that it adds."""
    piece = _plain(response.raw)
    _note_usage(draft, piece)
    choice = streamed_choice(piece)
    # The last piece may hold nothing but usage.
    return draft.feed(choice) if choice is not None else ""


def _plain(raw: Any) -> Json:
    """Return what the server sent as a mapping."""
    plain: Json = raw if isinstance(raw, Mapping) else raw.model_dump(warnings=False)
    return plain


def _note_usage(draft: Draft, answer: Json) -> None:
    usage = usage_of(answer)
    if usage.prompt_tokens:
        draft.usage = usage


def _handle(begun: Begun) -> _Open:
    if not isinstance(begun.state, _Open):
        raise ConfigurationError(
            "this was not begun by a reader of reader_from_llm", hint="finish it with its reader"
        )
    return begun.state


def _take(begun: Begun, loop: asyncio.AbstractEventLoop | None) -> _Open:
    """Return an open stream that nobody took before; an answer that has ended may be taken again."""
    handle = _handle(begun)
    if begun.done:
        return handle
    if handle.taken:
        raise ServiceError("this generation was finished or cancelled before", hint="begin it again")
    if handle.loop is not loop:
        raise ServiceError(
            "this generation was begun in another event loop, or in none",
            hint="finish it where it was begun: afinish after abegin, finish after begin",
        )
    handle.taken = True
    return handle


def _last(chunks: list[Chunk]) -> Generation:
    generation = chunks[-1].generation
    if generation is None:
        raise ServiceError("a stream ended without its generation")
    return generation
