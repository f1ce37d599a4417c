"""A LangChain model as a reader: whole answers, first tokens, streams, and scores where its server echoes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from langchain_core.prompt_values import PromptValue, StringPromptValue
from langchain_core.runnables import Runnable, ensure_config

from langchain_surerag._asking import (
    Call,
    Leaf,
    Replied,
    Setup,
    can_stream,
    filled,
    graft,
    leaves,
    missing,
    prompt_value,
    text_of,
    usage_of,
)
from langchain_surerag._memory import Memory, identity
from langchain_surerag._passes import PASS
from langchain_surerag._streams import AsyncOpenStream, Draft, OpenStream, Source
from langchain_surerag.dialects import Asked, Dialect, DialectOptions, Scoring, Thinking
from surerag.errors import CapabilityError, ConfigurationError, ServiceError, ThinkingBudgetError
from surerag.messages import Chunk, Generation, PartialGeneration, Prompt, SamplingParams, TokenTrace, Usage
from surerag.readers import BaseReader, Capabilities
from surerag.readers.failures import refusals
from surerag.readers.fan_out import aeach, each
from surerag.readers.hosted.probe import PROBE_PROMPTS
from surerag.readers.hosted.score import score_trace
from surerag.readers.protocol import begun_from_whole
from surerag.readers.usage import UsageCount

ECHO = Asked(SamplingParams(max_tokens=1), echo=True)
SCORING_HINT = (
    'pass scoring="probe" to reader_from_model to try a completions server, scoring="echo" if you know that '
    "it echoes rightly, or use a local model"
)

_SAID = Asked(SamplingParams(temperature=1.0, max_tokens=6, seed=1))
"""Sampled, so that its tokens are of different likelihood, and a wrong place shows."""
_SAME = 0.02
"""Log-probabilities nearer than this are the same: servers that batch differ in the last digits."""
_PASSING = frozenset({401, 403, 408, 409, 425, 429})
"""Statuses that say nothing about what a server can do."""


class Pair(NamedTuple):
    """A text, and what follows it and is to be scored."""

    prompt: str
    continuation: str

    @property
    def joined(self) -> PromptValue:
        """Both as one text, as it is echoed."""
        return StringPromptValue(text=self.prompt + self.continuation)


def read_back(pair: Pair, replied: Replied) -> TokenTrace:
    """Return the trace of a continuation that was echoed.

    Raises:
        LogprobsError: If the server did not echo it with log-probabilities.
    """
    dialect = replied.dialect
    choices = [dialect.choice(answer) for answer in replied.result.generations[0][:1]]
    with dialect.blamed():
        return score_trace("echo", {"choices": choices}, *pair, dialect.wanted("entropy"))


def obstacle_to_scoring(dialects: Sequence[Dialect], scoring: Scoring | None) -> str:
    """Return why given text cannot be scored, or nothing if it can.

    Args:
        dialects: The models that may come to answer; all of them have to be able to.
        scoring: What the user says about it; ``"probe"`` asks each model here and now.

    Raises:
        CapabilityError: If echo is insisted on where there is none.
        ConfigurationError: If ``scoring`` is something else.
    """
    if scoring not in (None, "echo", "probe"):
        raise ConfigurationError(f"unknown scoring {scoring!r}", hint='choose "probe", "echo" or None')
    without = [type(dialect.model).__name__ for dialect in dialects if not dialect.scores]
    if without:
        obstacle = f"{', '.join(dict.fromkeys(without))} has no echo; LLMs over OpenAI's completions API do"
        if scoring == "echo":
            raise CapabilityError(obstacle, hint="leave scoring out, or use a local model")
        return obstacle
    if scoring is None:
        return "it is not known whether its server echoes with the right log-probabilities"
    if scoring == "echo":
        return ""
    return next((found for dialect in dialects if (found := _misreading(dialect))), "")


def _misreading(dialect: Dialect) -> str:
    """Have a model's own words read back; return what is wrong with that, or nothing."""
    try:
        for prompt in PROBE_PROMPTS:
            said = _said(dialect, prompt)
            if said is not None and _tells(said):
                return _compared(dialect, prompt, said)
    except ServiceError as error:
        return str(error)
    return "it says too little to any of the probe's questions to tell"


def _said(dialect: Dialect, prompt: str) -> TokenTrace | None:
    replied = _leaf(dialect).invoke(StringPromptValue(text=prompt), asked=_SAID, **dialect.bound)
    draft = Draft(_SAID.sampling)
    for answer in replied.result.generations[0][:1]:
        draft.add(replied.dialect, answer)
    return draft.generation().trace


def _tells(said: TokenTrace) -> bool:
    """Whether a wrong place would show: some neighbours differ."""
    return any(abs(a - b) > 2 * _SAME for a, b in zip(said.logprobs, said.logprobs[1:], strict=False))


def _compared(dialect: Dialect, prompt: str, said: TokenTrace) -> str:
    pair = Pair(prompt, "".join(said.tokens))
    try:
        replied = _leaf(dialect).invoke(pair.joined, asked=ECHO, **dialect.bound)
    except Exception as error:
        status = getattr(error, "status_code", None)
        if not isinstance(status, int) or not 400 <= status < 500 or status in _PASSING:
            raise
        return f"its server refused to echo a prompt (status {status})"
    read = read_back(pair, replied)
    if read.tokens != said.tokens:
        return "its server splits what the model said into other tokens when it echoes it"
    if any(abs(a - b) > _SAME for a, b in zip(read.logprobs, said.logprobs, strict=True)):
        return "its server echoes other log-probabilities than those of the same words when said"
    return ""


def _leaf(dialect: Dialect) -> Leaf:
    return Leaf(dialect.model, Setup(dialect.options, Memory()))


T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", OpenStream, AsyncOpenStream)


class ModelReader(BaseReader):
    """A LangChain model behind the protocol of readers; made by :func:`reader_from_model`.

    What the model's provider refuses for good (key, address, model, parameters) is a ``RefusedError``, which
    no method degrades; all its other errors stay what they are in LangChain.

    Attributes:
        model: The user's own object.
    """

    def __init__(self, model: Runnable[Any, Any], options: DialectOptions, *, max_concurrency: int) -> None:
        if max_concurrency < 1:
            raise ConfigurationError(f"max_concurrency must be at least 1, got {max_concurrency!r}")
        if options.top_logprobs is not None and options.top_logprobs < 0:
            raise ConfigurationError(f"top_logprobs must be 0 or more, got {options.top_logprobs!r}")
        self.model = model
        self._memory = Memory()
        self._grafted = graft(model, Setup(options, self._memory))
        self._dialects = dialects = leaves(model, options)
        self._obstacle = obstacle_to_scoring(dialects, options.scoring)
        self._capabilities = _common(dialects, scores=not self._obstacle)
        self._name = "|".join(dict.fromkeys(identity(dialect.model) for dialect in dialects))
        self._serial = any(dialect.serial for dialect in dialects)
        self._max_concurrency = max_concurrency
        self._usage = UsageCount()

    def __repr__(self) -> str:
        return f"ModelReader({self._name})"

    @property
    def name(self) -> str:
        """Identity of the model: its class and the name of what it asks."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do; of several, what all of them can."""
        known = {self._memory.informed(dialect).thinking for dialect in self._dialects}
        thinking: Thinking = "apart" if "apart" in known else "off" if known == {"off"} else "none"
        return replace(self._capabilities, thinking=thinking)

    @property
    def advice(self) -> str:
        """What to do where its log-probabilities are needed and it has none."""
        return next((dialect.fix for dialect in self._dialects if not dialect.traces), "")

    @property
    def max_tokens(self) -> int:
        """Length of an answer, at most, where nobody sets another: what the model was built or bound with."""
        held = [dialect.held().get("max_tokens") for dialect in self._dialects]
        lengths = [length for length in held if isinstance(length, int) and length > 0]
        return min(lengths, default=super().max_tokens)

    @property
    def usage(self) -> Usage:
        """Requests made, and tokens as far as the server counts them."""
        return self._usage.total

    # Whole answers.

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""
        whole = Asked(sampling, sampling.n)
        found = self._each(lambda prompt: self._answers(prompt, whole), prompts)
        left_out = missing(found, prompts, sampling)
        more = self._each(lambda item: self._answers(item.prompt, item.asked), left_out)
        return filled(found, left_out, more, sampling.n)

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``, with concurrent requests."""
        whole = Asked(sampling, sampling.n)
        found = await self._aeach(lambda prompt: self._aanswers(prompt, whole), prompts)
        left_out = missing(found, prompts, sampling)
        more = await self._aeach(lambda item: self._aanswers(item.prompt, item.asked), left_out)
        return filled(found, left_out, more, sampling.n)

    def _answers(self, prompt: Prompt, asked: Asked) -> list[Generation]:
        while True:
            with refusals(self._name):
                replied = self._grafted.invoke(prompt_value(prompt), asked=asked)
            if (found := self._read(replied, asked)) is not None:
                return found

    async def _aanswers(self, prompt: Prompt, asked: Asked) -> list[Generation]:
        while True:
            with refusals(self._name):
                replied = await self._grafted.ainvoke(prompt_value(prompt), asked=asked)
            if (found := self._read(replied, asked)) is not None:
                return found

    def _read(self, replied: Replied, asked: Asked) -> list[Generation] | None:
        """Return the answers; None if they ended within thoughts that no tokens had been allowed for.

        Raises:
            ThinkingBudgetError: If they did so although they had been.
        """
        answers = replied.result.generations[0] if replied.result.generations else []
        if not answers:
            raise ServiceError(f"{self._name} returned no answer", hint="look at what its server returns")
        drafts = [Draft(asked.sampling) for _ in answers]
        for draft, answer in zip(drafts, answers, strict=True):
            draft.add(replied.dialect, answer)
        usage = usage_of(replied.result)
        counted = drafts[0].usage
        self._count(counted if counted.prompt_tokens or not usage.prompt_tokens else usage)
        news = [self._memory.saw(draft) for draft in drafts]
        try:
            found = [draft.generation() for draft in drafts]
        except ThinkingBudgetError:
            if any(news):
                return None
            raise
        return [
            replace(
                item,
                prompt_tokens=item.prompt_tokens or usage.prompt_tokens,
                cached_tokens=item.cached_tokens or usage.cached_tokens,
            )
            for item in found
        ]

    # The first tokens, and on from there.

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
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

    async def abegin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Like ``begin``, without blocking the event loop."""
        if self._capabilities.begin != "native":
            answers = await self.agenerate(prompts, replace(sampling, n=1))
            return [begun_from_whole(answer[0], n_tokens) for answer in answers]
        streams = [self._aopened(prompt, sampling) for prompt in prompts]
        try:
            return await self._aeach(lambda stream: stream.until(n_tokens), streams)
        except BaseException:
            for stream in streams:
                stream.close()
            raise

    def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Read each open stream to its end."""
        if self._capabilities.begin != "native":
            return super().finish(begun)
        return self._each(lambda item: _state(item, OpenStream).rest(), begun)

    async def afinish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Like ``finish``, without blocking the event loop."""
        if self._capabilities.begin != "native":
            return super().finish(begun)
        return await self._aeach(lambda item: _state(item, AsyncOpenStream).rest(), begun)

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        """End each open stream."""
        for item in begun:
            if self._capabilities.begin == "native":
                _state(item, OpenStream).drop()

    async def acancel(self, begun: Sequence[PartialGeneration]) -> None:
        """End each open stream."""
        for item in begun:
            if self._capabilities.begin == "native":
                await _state(item, AsyncOpenStream).drop()

    # Streams.

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer piece by piece."""
        if self._serial:
            return super().stream(prompt, sampling)
        return self._opened(prompt, sampling).chunks()

    def finish_stream(self, begun: PartialGeneration) -> Iterator[Chunk]:
        """Yield what was begun, from its first token on."""
        if self._capabilities.begin != "native":
            return super().finish_stream(begun)
        return _state(begun, OpenStream).chunks()

    def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``, without blocking the event loop."""
        # Opened here, in the context of the program that asks; the chunks are read in another.
        return self._awhole(prompt, sampling) if self._serial else self._aopened(prompt, sampling).chunks()

    async def _awhole(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        [[answer]] = await self.agenerate([prompt], replace(sampling, n=1))
        yield Chunk(answer.text, answer)

    async def afinish_stream(self, begun: PartialGeneration) -> AsyncIterator[Chunk]:
        """Like ``finish_stream``, without blocking the event loop."""
        if self._capabilities.begin != "native":
            for chunk in super().finish_stream(begun):
                yield chunk
            return
        async with aclosing(_state(begun, AsyncOpenStream).chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    def _opened(self, prompt: Prompt, sampling: SamplingParams) -> OpenStream:
        return OpenStream(self._source(self._grafted.stream, prompt, sampling))

    def _aopened(self, prompt: Prompt, sampling: SamplingParams) -> AsyncOpenStream:
        return AsyncOpenStream(self._source(self._grafted.astream, prompt, sampling))

    def _source(self, stream: Callable[..., Any], prompt: Prompt, sampling: SamplingParams) -> Source:
        asked = Asked(sampling, streamed=True)
        at = PASS.get()
        return Source(
            lambda call: stream(prompt_value(prompt), asked=asked, call=call),
            lambda: Call(at),
            sampling,
            self._count,
            self._memory.saw,
            self._name,
        )

    # Given text.

    def score(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Return the trace of each continuation after its prompt, through an echoed completion.

        Raises:
            CapabilityError: If the server is not known to echo with the right log-probabilities.
        """

        def scored(pair: Pair) -> TokenTrace:
            with refusals(self._name):
                replied = self._grafted.invoke(pair.joined, asked=ECHO)
            return self._scored(pair, replied)

        return self._each(scored, self._pairs(prompts, continuations))

    async def ascore(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Like ``score``, with concurrent requests."""

        async def scored(pair: Pair) -> TokenTrace:
            with refusals(self._name):
                replied = await self._grafted.ainvoke(pair.joined, asked=ECHO)
            return self._scored(pair, replied)

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
        self._usage.add(usage)


def _common(dialects: Sequence[Dialect], *, scores: bool) -> Capabilities:
    logprobs = all(dialect.traces for dialect in dialects)
    streams = all(can_stream(dialect.model) and not dialect.serial for dialect in dialects)
    return Capabilities(
        logprobs=logprobs,
        entropy="bounded" if logprobs and all(dialect.top_logprobs for dialect in dialects) else None,
        score=scores,
        begin="native" if logprobs and streams else "whole",
        stream=streams,
        # LangChain's own async entry points are awaited; what a model does there is its business.
        native_async=True,
    )


def _state(begun: PartialGeneration, kind: type[S]) -> S:
    if not isinstance(begun.state, kind):
        raise ServiceError(
            "this was begun in another way than it is to be finished",
            hint="use begin with finish and cancel, abegin with afinish and acancel, of one reader",
        )
    return begun.state
