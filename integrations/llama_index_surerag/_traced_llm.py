"""LLMs with log-probabilities as readers: one request for many answers, streams that are held open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

from llama_index.core.llms import LLM

from llama_index_surerag._open_answers import OpenAnswer, last, note_usage, opened_by, take
from llama_index_surerag._sources import Source, Vocabulary
from llama_index_surerag._text_llm import LLMReader, LLMSettings, failures_of, spent_thinking
from llama_index_surerag.prompts import flat_text
from surerag.errors import ThinkingBudgetError, TransientServiceError
from surerag.messages import Chunk, FinishReason, Generation, PartialGeneration, Prompt, SamplingParams, Usage
from surerag.readers import Capabilities
from surerag.readers.closing import aawait_closed, await_closed
from surerag.readers.hosted.parse import (
    Draft,
    Json,
    UnforeseenThoughtsError,
    Wanted,
    choices_of,
    streamed_choice,
)
from surerag.readers.hosted.requests import seed_of
from surerag.readers.pieces import TrimmedPieces
from surerag.readers.protocol import begun_from_whole


class _Request(NamedTuple):
    """One request of those that bring the samples of a prompt."""

    n: int
    seed: int


class _Job(NamedTuple):
    """Samples of a prompt that are asked for together: how many, and which is the first."""

    prompt: Prompt
    first: int
    samples: int


class TracedLLMReader(LLMReader):
    """A reader over a user's LLM that can be asked for log-probabilities.

    Args:
        llm: The LLM.
        settings: How to use it.
        source: Asks it.
        vocabulary: What is known of its tokens.
        logprobs: False to never ask for log-probabilities.
    """

    def __init__(
        self,
        llm: LLM,
        settings: LLMSettings,
        source: Source,
        vocabulary: Vocabulary,
        *,
        logprobs: bool = True,
    ) -> None:
        super().__init__(llm, settings)
        self._source = source
        self._vocabulary = vocabulary
        self._logprobs = logprobs

    @property
    def capabilities(self) -> Capabilities:
        """Bounded entropies, where likeliest tokens are listed; a gate holds the stream open, if it can."""
        return Capabilities(
            logprobs=self._logprobs,
            entropy="bounded" if self._logprobs and self._source.top_logprobs else None,
            begin="native" if self._source.streams else "whole",
            stream=self._source.streams or not self._logprobs,
            native_async=self._source.native_async,
            thinking=self._thinking,
        )

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt.

        A server may return fewer choices than asked for: it is asked again for the rest. Greedy
        decoding gives one answer, however many are asked for.

        Raises:
            LogprobsError: If log-probabilities are missing.
            RefusedError: If the service refuses what the method depends on.
            ServiceError: If the LLM fails.
        """
        sampling = self._fitting(sampling)
        jobs = self._jobs(prompts, sampling)
        return _rows(self._turns.map(lambda job: self._samples(job, sampling), jobs), prompts, sampling)

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Read the first ``n_tokens`` tokens of each answer from a stream that stays open.

        Of an LLM whose streams carry no log-probabilities, the whole answer is read.
        """
        sampling = self._fitting(sampling)
        if not self._held_open(sampling):
            return super().begin(prompts, n_tokens, sampling)
        opened: list[OpenAnswer] = []
        try:
            return self._turns.map(lambda prompt: self._begin(prompt, n_tokens, sampling, opened), prompts)
        except BaseException:
            for handle in opened:
                self._close(handle)
            raise

    def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Read the rest of open streams.

        Raises:
            ServiceError: If one was finished or cancelled before.
        """
        return self._turns.map(lambda item: last(list(self.finish_stream(item))), begun)

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close open streams; the server stops generating, and those who watch the LLM see its calls end."""
        await_closed(*self._hang_up(begun))

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer piece by piece; in one piece, if its trace cannot be streamed."""
        sampling = self._fitting(sampling)
        if not self._held_open(sampling):
            yield from super().stream(prompt, sampling)
            return
        had_room = self._settings.manners.thinks
        try:
            yield from self._rest(self._open(prompt, sampling))
        except ThinkingBudgetError as error:
            # Nothing but thoughts came, so that nothing was shown.
            self._give_room(error, had_room)
            yield from self._rest(self._open(prompt, sampling))

    def finish_stream(self, begun: PartialGeneration) -> Iterator[Chunk]:
        """Yield what was begun from its first token on.

        Raises:
            ServiceError: If it was finished or cancelled before.
        """
        if isinstance(begun.state, Generation):
            yield Chunk(begun.state.text, begun.state)
            return
        yield from self._rest(take(begun, None))

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``, awaiting the LLM's own async methods; in threads, if it has none."""
        if not self._source.native_async:
            return await super().agenerate(prompts, sampling)
        sampling = self._fitting(sampling)
        jobs = self._jobs(prompts, sampling)
        found = await self._turns.amap(lambda job: self._asamples(job, sampling), jobs)
        return _rows(found, prompts, sampling)

    async def abegin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Like ``begin``; to be finished in the same event loop."""
        sampling = self._fitting(sampling)
        if not self._held_open(sampling) or not self._source.native_async:
            answers = await self.agenerate(prompts, replace(sampling, n=1))
            return [begun_from_whole(answer[0], n_tokens) for answer in answers]
        opened: list[OpenAnswer] = []
        try:
            return await self._turns.amap(
                lambda prompt: self._abegin(prompt, n_tokens, sampling, opened), prompts
            )
        except BaseException:
            for handle in opened:
                self._close(handle)
            raise

    async def afinish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Like ``finish``."""

        async def one(item: PartialGeneration) -> Generation:
            return last([chunk async for chunk in self.afinish_stream(item)])

        return await self._turns.amap(one, begun)

    async def acancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Like ``cancel``."""
        await aawait_closed(*self._hang_up(begun))

    async def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``."""
        sampling = self._fitting(sampling)
        if not self._source.native_async:
            async for chunk in super().astream(prompt, sampling):
                yield chunk
            return
        if not self._held_open(sampling):
            [[whole]] = await self.agenerate([prompt], replace(sampling, n=1))
            yield Chunk(whole.text, whole)
            return
        had_room = self._settings.manners.thinks
        try:
            async for chunk in self._arest(await self._aopen(prompt, sampling)):
                yield chunk
        except ThinkingBudgetError as error:
            self._give_room(error, had_room)
            async for chunk in self._arest(await self._aopen(prompt, sampling)):
                yield chunk

    async def afinish_stream(self, begun: PartialGeneration) -> AsyncIterator[Chunk]:
        """Like ``finish_stream``."""
        if isinstance(begun.state, Generation):
            yield Chunk(begun.state.text, begun.state)
            return
        async for chunk in self._arest(take(begun, asyncio.get_running_loop())):
            yield chunk

    def _failures(self) -> AbstractContextManager[None]:
        return failures_of(self._llm, self._settings.manners.logprobs_hint)

    def _fitting(self, sampling: SamplingParams) -> SamplingParams:
        """Return what can be asked of this reader: one that was made for text alone gives no traces."""
        return sampling if self._logprobs else replace(sampling, trace="none")

    def _held_open(self, sampling: SamplingParams) -> bool:
        return self._source.streams or sampling.trace == "none"

    def _jobs(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[_Job]:
        """Return what to ask for: all samples of a prompt at a time, or each by itself."""
        count = sampling.n if sampling.temperature > 0 else 1
        if count == 1 or self._source.several:
            return [_Job(prompt, 0, count) for prompt in prompts]
        return [_Job(prompt, sample, 1) for prompt in prompts for sample in range(count)]

    def _samples(self, job: _Job, sampling: SamplingParams) -> list[Generation]:
        collecting = self._collect(job, sampling)
        with self._failures():
            wanted = next(collecting)
            try:
                while True:
                    wanted = collecting.send(self._source.ask(job.prompt, sampling, *wanted))
            except StopIteration as stop:
                return list(stop.value)

    async def _asamples(self, job: _Job, sampling: SamplingParams) -> list[Generation]:
        collecting = self._collect(job, sampling)
        with self._failures():
            wanted = next(collecting)
            try:
                while True:
                    wanted = collecting.send(await self._source.aask(job.prompt, sampling, *wanted))
            except StopIteration as stop:
                return list(stop.value)

    def _collect(self, job: _Job, sampling: SamplingParams) -> Generator[_Request, Json, list[Generation]]:
        """Yield requests to make until there are enough answers, and return these."""
        found: list[Generation] = []
        while len(found) < job.samples:
            missing = job.samples - len(found)
            had_room = self._settings.manners.thinks
            # Another seed each time: with the same one, a server would repeat itself.
            answer = yield _Request(missing, seed_of(sampling.seed, job.first + len(found)))
            try:
                choices = choices_of(answer)[:missing]
                got = [self._whole(job.prompt, sampling, answer, choice) for choice in choices]
            except ThinkingBudgetError as error:
                self._give_room(error, had_room)
                continue
            self._count(1, got)
            if not had_room and any(one.thinking_tokens and one.finish == "length" for one in got):
                # Thoughts took of a limit that was meant for the answer; it is not sent any more.
                continue
            found += got
        return found

    def _whole(self, prompt: Prompt, sampling: SamplingParams, answer: Json, choice: Json) -> Generation:
        draft = self._draft(prompt, sampling)
        note_usage(draft, answer)
        draft.feed(choice)
        # Some servers do not say why an answer ended; one that came whole has ended.
        draft.finish = draft.finish or self._why_ended(draft)
        return self._noted(draft)

    def _give_room(self, error: ThinkingBudgetError, had_room: bool) -> None:
        """Note that a model thinks, so that it is asked without a limit that was meant for its answer.

        Raises:
            ThinkingBudgetError: If it was asked so already.
        """
        self._count(1)
        if had_room:
            raise spent_thinking(self._llm) from error
        self._settings.manners.thinks = True

    def _ended(self, handle: OpenAnswer) -> Generation:
        if handle.draft.finish is None:
            raise TransientServiceError(
                f"{type(self._llm).__name__}: the stream broke off before the answer ended", hint="ask again"
            )
        with self._failures():
            return self._noted(handle.draft)

    def _noted(self, draft: Draft) -> Generation:
        """Return a whole answer, and note what it shows of how its model thinks."""
        self._settings.manners.opened |= draft.opened
        generation = draft.generation()
        self._settings.manners.thinks |= generation.thinking_tokens > 0
        return generation

    def _end(self, handle: OpenAnswer) -> str:
        """Note the end of a stream that does not tell of it, and return the text that was held back."""
        draft = handle.draft
        if self._source.tells_end or draft.finish is not None:
            return ""
        return draft.feed({"delta": {"content": ""}, "finish_reason": self._why_ended(draft)})

    def _why_ended(self, draft: Draft) -> FinishReason:
        """Return why a whole answer ended whose service does not say.

        Where nothing tells an answer that was cut from one that just fitted, it is taken for cut.
        """
        counted = draft.wanted.logprobs and not self._source.tells_end
        return "length" if counted and draft.limit is not None and draft.tokens >= draft.limit else "stop"

    def _draft(self, prompt: Prompt, sampling: SamplingParams) -> Draft:
        length = self._vocabulary.count(flat_text(prompt)) if self._vocabulary.count else 0
        return Draft(
            self._wanted(sampling),
            usage=Usage(1, length, 0),
            limit=sampling.max_tokens,
            stop=sampling.stop,
            opened=self._settings.manners.opened,
        )

    def _wanted(self, sampling: SamplingParams) -> Wanted:
        top = self._source.top_logprobs if sampling.trace == "entropy" else 0
        return Wanted(sampling.trace != "none", top, self._vocabulary.size)

    def _open(self, prompt: Prompt, sampling: SamplingParams) -> OpenAnswer:
        sampling = replace(sampling, n=1)
        with self._failures():
            line = self._source.open(prompt, sampling)
        return OpenAnswer(line, self._draft(prompt, sampling), sampling)

    async def _aopen(self, prompt: Prompt, sampling: SamplingParams) -> OpenAnswer:
        sampling = replace(sampling, n=1)
        with self._failures():
            line = await self._source.aopen(prompt, sampling)
        draft = self._draft(prompt, sampling)
        return OpenAnswer(line, draft, sampling, asyncio.get_running_loop())

    def _begin(
        self, prompt: Prompt, n_tokens: int, sampling: SamplingParams, opened: list[OpenAnswer]
    ) -> PartialGeneration:
        had_room = self._settings.manners.thinks
        handle = self._open(prompt, sampling)
        opened.append(handle)
        with self._failures():
            for response in handle.stream:
                handle.shown += self._feed(handle, response)
                if handle.draft.tokens >= n_tokens and handle.draft.finish is None:
                    return PartialGeneration(handle.draft.generation(n_tokens), done=False, state=handle)
                if handle.draft.full:
                    break
        handle.shown += self._end(handle)
        await_closed(self._close(handle))
        try:
            return PartialGeneration(self._ended(handle), done=True, state=handle)
        except ThinkingBudgetError as error:
            self._give_room(error, had_room)
            return self._begin(prompt, n_tokens, sampling, opened)

    async def _abegin(
        self, prompt: Prompt, n_tokens: int, sampling: SamplingParams, opened: list[OpenAnswer]
    ) -> PartialGeneration:
        had_room = self._settings.manners.thinks
        handle = await self._aopen(prompt, sampling)
        opened.append(handle)
        with self._failures():
            async for response in handle.stream:
                handle.shown += self._feed(handle, response)
                if handle.draft.tokens >= n_tokens and handle.draft.finish is None:
                    return PartialGeneration(handle.draft.generation(n_tokens), done=False, state=handle)
                if handle.draft.full:
                    break
        handle.shown += self._end(handle)
        await aawait_closed(self._close(handle))
        try:
            return PartialGeneration(self._ended(handle), done=True, state=handle)
        except ThinkingBudgetError as error:
            self._give_room(error, had_room)
            return await self._abegin(prompt, n_tokens, sampling, opened)

    def _rest(self, handle: OpenAnswer) -> Iterator[Chunk]:
        pieces = TrimmedPieces()
        try:
            if handle.shown:
                yield Chunk(pieces.feed(handle.shown))
            if not handle.ended:
                with self._failures():
                    for response in handle.stream:
                        yield Chunk(pieces.feed(self._feed(handle, response)))
                        if handle.draft.full:
                            break
                    yield Chunk(pieces.feed(self._end(handle)))
                await_closed(self._close(handle))
        finally:
            self._close(handle)
        yield Chunk("", self._ended(handle))

    async def _arest(self, handle: OpenAnswer) -> AsyncIterator[Chunk]:
        pieces = TrimmedPieces()
        try:
            if handle.shown:
                yield Chunk(pieces.feed(handle.shown))
            if not handle.ended:
                with self._failures():
                    async for response in handle.stream:
                        yield Chunk(pieces.feed(self._feed(handle, response)))
                        if handle.draft.full:
                            break
                    yield Chunk(pieces.feed(self._end(handle)))
                await aawait_closed(self._close(handle))
        finally:
            self._close(handle)
        yield Chunk("", self._ended(handle))

    def _feed(self, handle: OpenAnswer, response: Any) -> str:
        """Take a streamed response and return the text that it adds."""
        draft, piece = handle.draft, self._source.piece(response)
        if not draft.steps:
            # The request was made when its first piece was asked for; it may have taught a lower limit.
            draft.wanted = self._wanted(handle.sampling)
        note_usage(draft, piece)
        choice = streamed_choice(piece)
        if choice is None:
            # The last piece may hold nothing but usage.
            return ""
        try:
            return draft.feed(choice)
        except UnforeseenThoughtsError:
            self._settings.manners.opened = True
            raise

    def _hang_up(self, begun: Sequence[PartialGeneration]) -> list[Future[None] | None]:
        return [self._close(opened_by(item)) for item in begun if not isinstance(item.state, Generation)]

    def _close(self, handle: OpenAnswer) -> Future[None] | None:
        if handle.ended:
            return None
        self._settle(handle)
        return handle.hang_up()

    def _settle(self, handle: OpenAnswer) -> None:
        """Note that a stream has ended, and count what was read of it."""
        handle.ended = handle.taken = True
        usage = handle.draft.usage
        read = Generation(
            "",
            usage.prompt_tokens,
            completion_tokens=handle.draft.tokens,
            cached_tokens=usage.cached_tokens,
        )
        self._count(1, [read])


def _rows(
    found: list[list[Generation]], prompts: Sequence[Prompt], sampling: SamplingParams
) -> list[list[Generation]]:
    """Return the samples of each prompt, whether they came together or one by one."""
    each = len(found) // max(len(prompts), 1)
    rows = [
        [answer for answers in found[start : start + each] for answer in answers]
        for start in range(0, len(found), max(each, 1))
    ]
    return rows if sampling.temperature > 0 else [row * sampling.n for row in rows]
