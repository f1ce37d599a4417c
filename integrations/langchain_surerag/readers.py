"""A user's own LangChain model as a reader."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import LLMResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue
from langchain_core.runnables import Runnable, ensure_config

from langchain_surerag._asking import Piece, Replied, can_stream, graft, leaves
from langchain_surerag._dialects import Asked, Dialect, DialectOptions
from langchain_surerag._drafts import Draft
from langchain_surerag._huggingface import pipeline_reader
from langchain_surerag._streams import AsyncOpenStream, OpenStream
from surerag.errors import ConfigurationError, ServiceError
from surerag.readers import BaseReader, Capabilities
from surerag.readers.openai.score import score_trace
from surerag.readers.protocol import begun_from_whole
from surerag.types import Begun, Chunk, Generation, Prompt, Sampling, TokenTrace, Usage, as_messages

T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S", OpenStream, AsyncOpenStream)


def reader_from_model(
    model: Runnable[Any, Any],
    *,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    vocabulary_size: int = 300_000,
    max_concurrency: int = 8,
) -> BaseReader:
    """Make a reader of a chat model or an LLM, with whatever is wrapped around it.

    ========================================  =============================================================
    model                                     what the reader gives
    ========================================  =============================================================
    ChatOpenAI and its relatives              log-probabilities, entropy as an interval, first tokens by an
                                              open stream
    OpenAI (completions) and its relatives    the same, and scores of given text where the server can echo
    HuggingFacePipeline, ChatHuggingFace      a TransformersReader on its model: exact entropies, batches
    any other                                 text only
    ========================================  =============================================================

    ``bind``, ``with_config``, ``with_retry``, ``with_fallbacks`` and ``configurable_fields`` around a model
    keep working; of several models, the reader promises what all of them can do. Calls run under the run
    of the chain that asks. Samples at a temperature above 0 bypass LangChain's LLM cache, which would
    answer all of them with one. The model's own errors, retries and time-outs stay LangChain's.

    Args:
        model: The model; without prompt or output parser.
        logprobs: True for a class that is not known here, but takes OpenAI's keywords and returns its
            metadata; False to use only a model's text.
        top_logprobs: Alternatives to ask for at each token; 0 for none, and no entropies. By default what
            the model was built or bound with, else 20 for chat and 5 for completions.
        vocabulary_size: Tokens that the model can emit; bounds the entropy from above where only the
            likeliest tokens are known.
        max_concurrency: Requests of one call that may be under way at the same time; a smaller
            ``max_concurrency`` in the caller's config wins.

    Raises:
        ConfigurationError: If there is no language model in it.
        CapabilityError: If the model is set to an API that loses log-probabilities.

    Example:
        >>> from langchain_core.language_models import FakeListChatModel
        >>> from surerag.types import Sampling
        >>> reader = reader_from_model(FakeListChatModel(responses=["Velm"]))
        >>> reader.generate(["Where was Ada born?"], Sampling())[0][0].text, reader.capabilities.logprobs
        ('Velm', False)
    """
    local = pipeline_reader(model) if logprobs is not False else None
    if local is not None:
        return local
    return ModelReader(
        model, DialectOptions(logprobs, top_logprobs, vocabulary_size), max_concurrency=max_concurrency
    )


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
        self._capabilities = _common(dialects)
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
        missing = _missing(found, prompts, sampling)
        more = self._each(lambda item: self._answers(item.prompt, item.asked), missing)
        return _filled(found, missing, more, sampling.n)

    async def agenerate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Like ``generate``, with concurrent requests."""
        whole = Asked(sampling, sampling.n)
        found = await self._aeach(lambda prompt: self._aanswers(prompt, whole), prompts)
        missing = _missing(found, prompts, sampling)
        more = await self._aeach(lambda item: self._aanswers(item.prompt, item.asked), missing)
        return _filled(found, missing, more, sampling.n)

    def _answers(self, prompt: Prompt, asked: Asked) -> list[Generation]:
        return self._read(self._grafted.invoke(_prompt_value(prompt), asked=asked), asked)

    async def _aanswers(self, prompt: Prompt, asked: Asked) -> list[Generation]:
        return self._read(await self._grafted.ainvoke(_prompt_value(prompt), asked=asked), asked)

    def _read(self, replied: Replied, asked: Asked) -> list[Generation]:
        answers = replied.result.generations[0] if replied.result.generations else []
        if not answers:
            raise ServiceError(f"{self._name} returned no answer", hint="look at what its server returns")
        drafts = [self._draft(asked.sampling) for _ in answers]
        for draft, answer in zip(drafts, answers, strict=True):
            draft.add(replied.dialect, answer)
            draft.end()
        usage = _usage_of(replied.result)
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
        pieces = self._grafted.stream(_prompt_value(prompt), asked=Asked(sampling, streamed=True))
        return OpenStream(cast("Iterator[Piece]", pieces), self._draft(sampling), self._count)

    def _aopened(self, prompt: Prompt, sampling: Sampling) -> AsyncOpenStream:
        pieces = self._grafted.astream(_prompt_value(prompt), asked=Asked(sampling, streamed=True))
        return AsyncOpenStream(cast("AsyncIterator[Piece]", pieces), self._draft(sampling), self._count)

    def _draft(self, sampling: Sampling) -> Draft:
        return Draft(sampling, traced=self._capabilities.logprobs)

    # Given text.

    def score(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Return the trace of each continuation after its prompt, through an echoed completion."""
        if not self._capabilities.score:
            return super().score(prompts, continuations)
        pairs = [_Pair(_text(prompt), text) for prompt, text in zip(prompts, continuations, strict=True)]
        return self._each(
            lambda pair: self._scored(pair, self._grafted.invoke(pair.joined, asked=_ECHO)), pairs
        )

    async def ascore(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Like ``score``, with concurrent requests."""
        if not self._capabilities.score:
            return super().score(prompts, continuations)

        async def scored(pair: _Pair) -> TokenTrace:
            return self._scored(pair, await self._grafted.ainvoke(pair.joined, asked=_ECHO))

        return await self._aeach(
            scored, [_Pair(_text(prompt), text) for prompt, text in zip(prompts, continuations, strict=True)]
        )

    def _scored(self, pair: _Pair, replied: Replied) -> TokenTrace:
        self._count(_usage_of(replied.result))
        dialect = replied.dialect
        choices = [dialect.choice(answer) for answer in replied.result.generations[0][:1]]
        with dialect.blamed():
            return score_trace("echo", {"choices": choices}, *pair, dialect.wanted(traced=True))

    # Many requests at once.

    def _limit(self, wanted: int) -> int:
        return min(wanted, self._max_concurrency, ensure_config().get("max_concurrency") or wanted)

    def _each(self, call: Callable[[T], U], items: Sequence[T]) -> list[U]:
        limit = self._limit(len(items))
        if limit <= 1:
            return [call(item) for item in items]
        with ThreadPoolExecutor(limit, thread_name_prefix="surerag-langchain") as pool:
            # Each thread gets the caller's context, and with it the run that its calls belong to.
            futures = [pool.submit(contextvars.copy_context().run, call, item) for item in items]
            return [future.result() for future in futures]

    async def _aeach(self, call: Callable[[T], Coroutine[Any, Any, U]], items: Sequence[T]) -> list[U]:
        turn = asyncio.Semaphore(max(1, self._limit(len(items))))

        async def one(item: T) -> U:
            async with turn:
                return await call(item)

        tasks = [asyncio.create_task(one(item)) for item in items]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def _count(self, usage: Usage) -> None:
        with self._lock:
            self._usage += usage


class _Pair(NamedTuple):
    prompt: str
    continuation: str

    @property
    def joined(self) -> PromptValue:
        return StringPromptValue(text=self.prompt + self.continuation)


class _Missing(NamedTuple):
    """A sample that a server left out: whose it is, and how to ask for it alone."""

    place: int
    prompt: Prompt
    asked: Asked


_ECHO = Asked(Sampling(max_tokens=1), echo=True)


def _missing(
    found: Sequence[Sequence[Generation]], prompts: Sequence[Prompt], sampling: Sampling
) -> list[_Missing]:
    return [
        _Missing(place, prompt, Asked(sampling, 1, number))
        for place, (prompt, answers) in enumerate(zip(prompts, found, strict=True))
        for number in range(len(answers), sampling.n)
    ]


def _filled(
    found: Sequence[Sequence[Generation]],
    missing: Sequence[_Missing],
    more: Sequence[Sequence[Generation]],
    n: int,
) -> list[list[Generation]]:
    samples = [list(answers[:n]) for answers in found]
    for item, answers in zip(missing, more, strict=True):
        samples[item.place].append(answers[0])
    return samples


def _common(dialects: Sequence[Dialect]) -> Capabilities:
    logprobs = all(dialect.logprobs for dialect in dialects)
    streams = all(can_stream(dialect.model) for dialect in dialects)
    return Capabilities(
        logprobs=logprobs,
        entropy="bounded" if logprobs and all(dialect.top_logprobs for dialect in dialects) else None,
        score=all(dialect.scores for dialect in dialects),
        begin="native" if logprobs and streams else "whole",
        stream=streams,
        # LangChain's own async entry points are awaited; what a model does there is its business.
        native_async=True,
    )


def _name(model: BaseLanguageModel[Any]) -> str:
    names = (getattr(model, attribute, None) for attribute in ("model_name", "model", "model_id", "repo_id"))
    asked = next((name for name in names if isinstance(name, str) and name), "")
    return f"{type(model).__name__}({asked})"


def _prompt_value(prompt: Prompt) -> PromptValue:
    turns = as_messages(prompt)
    if len(turns) == 1 and turns[0].role == "user":
        return StringPromptValue(text=turns[0].content)
    classes: dict[str, type[BaseMessage]] = {
        "system": SystemMessage,
        "user": HumanMessage,
        "assistant": AIMessage,
    }
    return ChatPromptValue(messages=[classes[role](content=content) for role, content in turns])


def _text(prompt: Prompt) -> str:
    return _prompt_value(prompt).to_string()


def _usage_of(result: LLMResult) -> Usage:
    counted = (result.llm_output or {}).get("token_usage") or {}
    return Usage(1, counted.get("prompt_tokens") or 0, counted.get("completion_tokens") or 0)


def _state(begun: Begun, kind: type[S]) -> S:
    if not isinstance(begun.state, kind):
        raise ServiceError(
            "this was begun in another way than it is to be finished",
            hint="use begin with finish and cancel, abegin with afinish and acancel, of one reader",
        )
    return begun.state
