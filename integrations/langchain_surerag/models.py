"""A LangChain model as a reader: it is called by ``invoke``, ``stream`` and ``generate_prompt`` alone.

Whatever the user put around the model (``bind``, ``with_config``, ``with_retry``, ``with_fallbacks``,
``configurable_fields``, callbacks) keeps working, because the outermost runnable is the one that is called.

Half of this file is what a call alone does not give: several samples in one request, samples that a cache
does not collapse, settings that a model rejects, retries of a stream that fails at once, and errors of ours.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import LLMResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor, ensure_config, merge_configs

from langchain_surerag.answers import Answer
from langchain_surerag.families import PIPELINE, family_of, leaves, unbound
from langchain_surerag.runs import PURPOSE, request_config
from langchain_surerag.streams import AsyncOpenStream, OpenStream
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    ContextLengthError,
    LogprobsRefusedError,
    MissingServiceError,
    RefusedError,
    ServiceError,
    SureragError,
    ThinkingBudgetError,
    TransientServiceError,
)
from surerag.messages import (
    Chunk,
    Generation,
    Message,
    PartialGeneration,
    Prompt,
    SamplingParams,
    Usage,
    as_messages,
)
from surerag.readers.failures import kind_of, status_of
from surerag.readers.logprobs import ANY_VOCABULARY
from surerag.readers.pieces import UsageCounter
from surerag.readers.protocol import BaseReader, Capabilities, Reader, begun_from_whole
from surerag.readers.thinking import THINKING_TOKENS
from surerag.readers.threads import in_thread
from surerag.text import replace_surrogates

T = TypeVar("T")
R = TypeVar("R")
_TURNS: Mapping[str, type[BaseMessage]] = {
    "system": SystemMessage,
    "user": HumanMessage,
    "assistant": AIMessage,
}
_SECRET = re.compile(r"Bearer\s+[^\s'\"]+|\bsk-[\w-]{6,}")
_UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class LeftOutWarning(UserWarning):
    """A model rejects a setting, and is called without it from then on."""


def reader_from_model(
    model: Runnable[Any, Any],
    *,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    vocabulary_size: int = ANY_VOCABULARY,
    max_concurrency: int = 8,
    thinking_tokens: int = THINKING_TOKENS,
) -> BaseReader:
    """Make a reader of a chat model or an LLM, with whatever is around it.

    ChatOpenAI and its relatives (chat completions), ChatOllama and ChatGoogleGenerativeAI give
    log-probabilities, entropies as intervals, and the first tokens by an open stream; OpenAI (completions)
    gives the same for whole answers; any other model gives text, HuggingFacePipeline and ChatHuggingFace
    among them. Of several models (fallbacks, alternatives) the reader promises what all can do. For a model
    in this process, ``TransformersReader(llm.pipeline.model, llm.pipeline.tokenizer)`` gives exact entropies.

    A length, and a temperature where one answer is generated, that the model was built or bound with hold.
    What else a method needs is sent; what the model rejects is left out from then on, where the method can do
    without it. Samples bypass LangChain's LLM cache, which would answer all of them with one.

    Args:
        model: The model; without prompt or output parser.
        logprobs: True for a class that takes OpenAI's keywords and returns its metadata; False to use a
            model's text alone.
        top_logprobs: Alternatives to request at each token, at most; by default what the model was built or
            bound with, else the most there are.
        vocabulary_size: Tokens that the model can emit; bounds the entropy from above.
        max_concurrency: Requests of one call at a time; a smaller one in the caller's config wins.
        thinking_tokens: Tokens for thoughts, besides those of the answer, once a model was seen to think.

    Warns:
        UserWarning: If a Hugging Face pipeline is passed as it is, of which LangChain returns text alone.

    Raises:
        ConfigurationError: If there is no language model in it, or a setting is out of bounds.

    Example:
        >>> from langchain_core.language_models import FakeListChatModel
        >>> reader = reader_from_model(FakeListChatModel(responses=["Velm"]))
        >>> [[answer]] = reader.generate(["Where was Ada born?"], SamplingParams())
        >>> answer.text, reader.capabilities.logprobs
        ('Velm', False)
    """
    for name, value, least in (
        ("max_concurrency", max_concurrency, 1),
        ("top_logprobs", top_logprobs, 1),
        ("vocabulary_size", vocabulary_size, 2),
        ("thinking_tokens", thinking_tokens, 0),
    ):
        if value is not None and value < least:
            raise ConfigurationError(f"{name} must be at least {least}, got {value!r}")
    reader = ModelReader(model, logprobs, top_logprobs, vocabulary_size, max_concurrency, thinking_tokens)
    if reader.family is PIPELINE:
        warnings.warn(f"{reader.described} is read as text. {PIPELINE.advice}", stacklevel=2)
    return reader


def reader_of(model: Any) -> BaseReader:
    """Return a model as a reader, and a reader as it is.

    Raises:
        MissingServiceError: If there is none.
        ConfigurationError: If it is something else.
    """
    if model is None:
        raise MissingServiceError("there is no model", hint="pass llm=…")
    if not isinstance(model, Runnable) and isinstance(model, Reader):
        return cast("BaseReader", model)
    return reader_from_model(model)


@contextmanager
def with_advice(reader: object) -> Iterator[None]:
    """Say in an error about missing log-probabilities what was passed, and what to pass instead."""
    try:
        yield
    except CapabilityError as error:
        if not isinstance(reader, ModelReader) or reader.capabilities.logprobs:
            raise
        raise CapabilityError(
            f"{reader.described} gives text only, and log-probabilities are needed",
            hint=reader.family.advice,
        ) from error


class _Request(NamedTuple):
    """One request: the place of its prompt, how to sample, the sample's number, and whether others follow."""

    place: int
    prompt: Prompt
    sampling: SamplingParams
    number: int = 0
    drawn: bool = False


class ModelReader(BaseReader):
    """A LangChain model behind the protocol of readers; made by :func:`reader_from_model`."""

    def __init__(
        self,
        model: Runnable[Any, Any],
        logprobs: bool | None,
        top_logprobs: int | None,
        vocabulary_size: int,
        max_concurrency: int,
        thinking_tokens: int,
    ) -> None:
        self.model = model
        self._leaves = tuple(leaves(model))
        self.family = family_of(self._leaves, logprobs)
        self._bare, self._bound, self._configs = unbound(model)
        self._is_bare = isinstance(self._bare, BaseChatModel | BaseLLM)
        self._completes = any(isinstance(leaf.model, BaseLLM) for leaf in self._leaves)
        traced = logprobs is not False and self.family.logprobs is not None
        # Of an LLM, only generate_prompt returns more than text, and what is around it has no such method.
        self._traced = traced and (self._is_bare or not self._completes)
        self.vocabulary_size = vocabulary_size
        bound = [leaf.setting("top_logprobs") for leaf in self._leaves]
        most = [top_logprobs, *bound, self.family.most_top]
        self.top_logprobs = min(number for number in most if isinstance(number, int) and number > 0)
        self._max_concurrency = max_concurrency
        self._thinking_tokens = thinking_tokens
        self._thinks = False
        self._rejected: frozenset[str] = frozenset()
        self._usage = UsageCounter()

    def __repr__(self) -> str:
        return f"ModelReader({self.name})"

    @property
    def name(self) -> str:
        """Identity of the model: its class, the model it names, and where that is."""
        return "|".join(dict.fromkeys(leaf.name for leaf in self._leaves))

    @property
    def described(self) -> str:
        """What was passed, for messages: the model's class, and what is around it."""
        names = ", ".join(dict.fromkeys(leaf.class_name for leaf in self._leaves))
        outer = type(self.model).__name__
        return names if outer == names else f"{outer} of {names}"

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do; of several, what all of them can."""
        return Capabilities(
            logprobs=self._traced,
            entropy="bounded" if self._traced else None,
            begin="native" if self._traced and not self._completes else "whole",
            stream=True,
            native_async=self.family is not PIPELINE,
            thinking="apart" if self._thinks else "none",
        )

    @property
    def max_tokens(self) -> int:
        """Length of an answer, at most, where nobody sets another: what the model was built or bound with."""
        return min(self._limits(), default=super().max_tokens)

    @property
    def usage(self) -> Usage:
        """Requests made, and tokens as far as the server counts them."""
        return self._usage.total

    def count_tokens(self, text: str) -> int:
        """Return the tokens of a text by the model's ``custom_get_token_ids``, else an estimate."""
        encode = getattr(self._bare, "custom_get_token_ids", None)
        return len(encode(text)) if callable(encode) else super().count_tokens(text)

    # Whole answers.

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""
        requests = self._requests(prompts, sampling)
        rows = self._each(self._answers, requests)
        missing = _missing(requests, rows)
        return _gathered([*requests, *missing], [*rows, *self._each(self._answers, missing)], len(prompts))

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``, with concurrent requests."""
        if self.family is PIPELINE:
            return await in_thread(self.generate, prompts, sampling)
        requests = self._requests(prompts, sampling)
        rows = await self._aeach(self._aanswers, requests)
        missing = _missing(requests, rows)
        more = await self._aeach(self._aanswers, missing)
        return _gathered([*requests, *missing], [*rows, *more], len(prompts))

    def _requests(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[_Request]:
        """Return one request a prompt where a model answers several times at once, else one a sample."""
        at_once = self.family.takes_n and self._is_bare and "n" not in self._rejected
        each = replace(sampling, n=sampling.n if at_once else 1)
        return [
            _Request(place, prompt, each, number, sampling.n > 1)
            for place, prompt in enumerate(prompts)
            for number in range(1 if at_once else sampling.n)
        ]

    def _answers(self, request: _Request) -> list[Generation]:
        while True:
            settings = self._settings(request)
            try:
                with self._errors():
                    owner, method, arguments, keywords = self._call(request, settings)
                    return self._read(getattr(owner, method)(*arguments, **keywords), request.sampling)
            except ServiceError as error:
                if not self._can_ask_again(error, settings, drawn=request.drawn):
                    raise

    async def _aanswers(self, request: _Request) -> list[Generation]:
        while True:
            settings = self._settings(request)
            try:
                with self._errors():
                    owner, method, arguments, keywords = self._call(request, settings)
                    result = await getattr(owner, f"a{method}")(*arguments, **keywords)
                    return self._read(result, request.sampling)
            except ServiceError as error:
                if not self._can_ask_again(error, settings, drawn=request.drawn):
                    raise

    def _call(
        self, request: _Request, settings: Mapping[str, Any]
    ) -> tuple[Any, str, tuple[Any, ...], dict[str, Any]]:
        """Return what to call: the object, its method, and the arguments."""
        config, keywords = request_config(PURPOSE.get()), self._keywords(settings)
        cached = request.drawn and (
            get_llm_cache() is not None or any(getattr(leaf.model, "cache", None) for leaf in self._leaves)
        )
        if not self._is_bare:
            if cached and self._completes:
                raise ConfigurationError(
                    f"{self.described} samples through LangChain's LLM cache, which answers all with one",
                    hint="build the LLM with cache=False, or pass it without what is around it",
                )
            value = _prompt_value(request.prompt, request.number if cached else None)
            return self.model, "invoke", (value, config), keywords
        owner = self._bare
        if cached and self._completes:
            owner = owner.model_copy(update={"cache": False})
        for one in self._configs:
            config = merge_configs(one, config)
        names = ("callbacks", "tags", "metadata", "run_name", "run_id")
        traced = {name: config.get(name) for name in names}
        number = request.number if cached and not self._completes else None
        value = _prompt_value(request.prompt, number)
        return owner, "generate_prompt", ([value],), {**traced, **self._bound, **keywords}

    def _read(self, result: Any, sampling: SamplingParams) -> list[Generation]:
        outputs: Sequence[Any] = [result]
        counted: Any = None
        if isinstance(result, LLMResult):
            outputs = result.generations[0] if result.generations else []
            counted = (result.llm_output or {}).get("token_usage")
        if not outputs:
            raise ServiceError(f"{self.name} returned no answer", hint="look at what its server returns")
        answers = [Answer(self, sampling) for _ in outputs]
        for answer, output in zip(answers, outputs, strict=True):
            answer.add(output)
            if isinstance(counted, Mapping):
                answer.count(counted)
        self._usage.add(answers[0].usage)
        generations = [answer.generation() for answer in answers]
        if len(generations) > 1:
            # A server counts the tokens of all samples together.
            tokens = [len(one.trace or ()) or one.completion_tokens // len(outputs) for one in generations]
            generations = [
                replace(one, completion_tokens=n) for one, n in zip(generations, tokens, strict=True)
            ]
        return generations

    # The first tokens, and on from there.

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Open a stream for each prompt and read its first ``n_tokens`` tokens."""
        if self.capabilities.begin != "native":
            return super().begin(prompts, n_tokens, sampling)
        streams = [self._stream(prompt, sampling) for prompt in prompts]
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
        if self.capabilities.begin != "native":
            answers = await self.agenerate(prompts, replace(sampling, n=1))
            return [begun_from_whole(answer[0], n_tokens) for answer in answers]
        streams = [self._astream(prompt, sampling) for prompt in prompts]
        try:
            return await self._aeach(lambda stream: stream.until(n_tokens), streams)
        except BaseException:
            for stream in streams:
                await stream.close()
            raise

    def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Read each open stream to its end."""
        if self.capabilities.begin != "native":
            return super().finish(begun)
        return self._each(lambda item: item.state.rest(), begun)

    async def afinish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Like ``finish``, without blocking the event loop."""
        if self.capabilities.begin != "native":
            return super().finish(begun)
        return await self._aeach(lambda item: item.state.rest(), begun)

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close each open stream."""
        for item in begun:
            if isinstance(item.state, OpenStream):
                item.state.close()

    async def acancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close each open stream."""
        for item in begun:
            if isinstance(item.state, AsyncOpenStream):
                await item.state.close()

    # Streams.

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer piece by piece."""
        if self._needs_whole(sampling):
            return super().stream(prompt, sampling)
        return self._stream(prompt, sampling).chunks()

    def finish_stream(self, begun: PartialGeneration) -> Iterator[Chunk]:
        """Yield what was begun, from its first token on."""
        native = isinstance(begun.state, OpenStream)
        return begun.state.chunks() if native else super().finish_stream(begun)

    def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``, without blocking the event loop."""
        if self.family is PIPELINE or self._needs_whole(sampling):
            return super().astream(prompt, sampling)
        # Made here, in the context of the caller; its chunks are read in another.
        return self._astream(prompt, sampling).chunks()

    def afinish_stream(self, begun: PartialGeneration) -> AsyncIterator[Chunk]:
        """Like ``finish_stream``, without blocking the event loop."""
        native = isinstance(begun.state, AsyncOpenStream)
        return begun.state.chunks() if native else super().afinish_stream(begun)

    def _needs_whole(self, sampling: SamplingParams) -> bool:
        """Whether log-probabilities are needed that come with whole answers alone."""
        return self._completes and self._traced and sampling.trace != "none"

    def _stream(self, prompt: Prompt, sampling: SamplingParams) -> OpenStream:
        answer, config = Answer(self, sampling, streamed=True), request_config(PURPOSE.get())
        pieces = self._pieces(_Request(0, prompt, replace(sampling, n=1)), config)
        return OpenStream(pieces, answer, _prompt_value(prompt).to_string(), self._usage.add)

    def _astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncOpenStream:
        answer, config = Answer(self, sampling, streamed=True), request_config(PURPOSE.get())
        pieces = self._apieces(_Request(0, prompt, replace(sampling, n=1)), config)
        return AsyncOpenStream(pieces, answer, _prompt_value(prompt).to_string(), self._usage.add)

    def _pieces(self, request: _Request, config: RunnableConfig) -> Iterator[Any]:
        """Yield what the model streams.

        A rejected request is made again without what was rejected. LangChain's retries are for whole
        answers: where there are some, a stream that fails at once gives way to such a one.
        """
        value, began = _prompt_value(request.prompt), False
        while True:
            settings = self._settings(request, streamed=True)
            try:
                with self._errors():
                    chunks = self.model.stream(value, config, **self._keywords(settings))
                    with closing(cast("Any", chunks)):
                        for chunk in chunks:
                            began = True
                            yield chunk
                return
            except ServiceError as error:
                if began or not (self._retries(error) or self._can_ask_again(error, settings)):
                    raise
                if self._retries(error):
                    break
        with self._errors():
            yield self.model.invoke(value, config, **self._keywords(self._settings(request)))

    async def _apieces(self, request: _Request, config: RunnableConfig) -> AsyncIterator[Any]:
        """Like :meth:`_pieces`, without blocking the event loop."""
        value, began = _prompt_value(request.prompt), False
        while True:
            settings = self._settings(request, streamed=True)
            try:
                with self._errors():
                    chunks = self.model.astream(value, config, **self._keywords(settings))
                    async with aclosing(cast("Any", chunks)):
                        async for chunk in chunks:
                            began = True
                            yield chunk
                return
            except ServiceError as error:
                if began or not (self._retries(error) or self._can_ask_again(error, settings)):
                    raise
                if self._retries(error):
                    break
        with self._errors():
            yield await self.model.ainvoke(value, config, **self._keywords(self._settings(request)))

    def _retries(self, error: ServiceError) -> bool:
        return error.retryable and any(leaf.retried for leaf in self._leaves)

    # What is sent, and what comes back of it.

    def _limits(self) -> list[int]:
        limits = [leaf.setting(*self.family.limits) for leaf in self._leaves]
        return [limit for limit in limits if isinstance(limit, int) and limit > 0]

    def _settings(self, request: _Request, *, streamed: bool = False) -> dict[str, Any]:
        """Return the settings of a request by OpenAI's names, without those that the model rejects."""
        sampling, drawn = request.sampling, request.drawn
        thinking = self._thinking_tokens if self._thinks else 0
        settings: dict[str, Any] = {"max_tokens": min([sampling.max_tokens, *self._limits()]) + thinking}
        if drawn or all(leaf.setting("temperature") is None for leaf in self._leaves):
            settings["temperature"] = sampling.temperature
        if sampling.top_p != 1:
            settings["top_p"] = sampling.top_p
        if drawn:
            settings["seed"] = sampling.seed + request.number
        if sampling.n > 1:
            settings["n"] = sampling.n
        if sampling.stop:
            settings["stop"] = list(sampling.stop)
        if self._traced and sampling.trace != "none":
            settings["logprobs"] = True
            if sampling.trace == "entropy":
                settings["top_logprobs"] = self.top_logprobs
        if streamed and self._counts_streams:
            settings["stream_usage"] = True
        for name in sorted(self._rejected & settings.keys()):
            if name in _needed(drawn=drawn):
                raise self._rejection(name, "it was rejected before")
            del settings[name]
        return settings

    @property
    def _counts_streams(self) -> bool:
        """Whether a stream can be asked for its tokens, by which one that repeats itself is recognised."""
        fields = [hasattr(leaf.model, "stream_usage") for leaf in self._leaves]
        return all(fields) and all(leaf.setting("stream_usage") is None for leaf in self._leaves)

    def _keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        others = {name: value for name, value in settings.items() if name != "stream_usage"}
        keywords = self.family.keywords(others, self._leaves[0].model)
        return {**keywords, "stream_usage": True} if "stream_usage" in settings else keywords

    def _can_ask_again(
        self, error: ServiceError, settings: Mapping[str, Any], *, drawn: bool = False
    ) -> bool:
        """Note what the model rejects; return whether to ask again without it.

        Raises:
            RefusedError: If it rejects what the method needs.
        """
        if isinstance(error, ThinkingBudgetError) and not self._thinks:
            self._thinks = True
            return True
        message = str(error).replace("stream_options", "stream_usage")
        names = {name for name in settings if re.search(rf"(?<![\w-]){name}(?![\w-])", message)}
        if not isinstance(error, RefusedError) or status_of(error) not in (None, 400, 422) or not names:
            return False
        most = re.search(r"top_logprobs\D+?(\d+)", message)
        if most and 0 < int(most[1]) < self.top_logprobs:
            self.top_logprobs = int(most[1])
            return True
        for name in sorted(names & _needed(drawn=drawn)):
            raise self._rejection(name, message) from error
        self._rejected |= names
        if felt := sorted(names & {"temperature", "top_p"}):
            warnings.warn(
                f"{self.name} rejects {', '.join(felt)}, and is called without", LeftOutWarning, stacklevel=2
            )
        return True

    def _rejection(self, name: str, message: str) -> RefusedError:
        kind = LogprobsRefusedError if "logprobs" in name else RefusedError
        hint = self.family.advice if "logprobs" in name else f"use a model that takes {name}"
        return kind(f"{self.name} rejects {name}: {message[:300]}", hint=hint)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what clients raise into our errors, with the cause and what the server sent."""
        try:
            yield
        except SureragError:
            raise
        except Exception as error:
            kind = kind_of(error)
            unreadable = kind is ServiceError and isinstance(error, _UNREADABLE)
            what = "got a reply that cannot be read" if unreadable else "failed"
            message = f"{self.name} {what}: {type(error).__name__}: {str(error)[:500]}"
            if (reply := _reply(error)) and reply not in message:
                message += f"; the server sent {reply!r}"
            masked = _SECRET.sub("[hidden]", message)
            hint = "look at what the server returns"
            if kind is TransientServiceError:
                hint = (
                    "check that the server can be reached, try again later, or raise the model's "
                    "max_retries or timeout"
                )
            elif kind is ContextLengthError:
                hint = "give the model fewer or shorter passages, or fewer max_tokens"
            elif kind is RefusedError:
                hint = "check the model's name, key, address and settings"
            # A key in a client's message must not follow in the traceback.
            raise kind(masked, hint=hint) from (None if any(map(_SECRET.search, _chain(error))) else error)

    # Several requests at once.

    def _each(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Call for every item, in threads where there are several; results in order."""
        workers = 1 if self.family is PIPELINE else min(self._at_a_time, len(items))
        if workers <= 1:
            return [call(item) for item in items]
        with ContextThreadPoolExecutor(workers) as pool:
            futures = [pool.submit(call, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                for future in futures:
                    future.cancel()
                raise

    async def _aeach(self, call: Callable[[T], Any], items: Sequence[T]) -> list[Any]:
        """Await a call for every item; the first failure cancels the others."""
        turn = asyncio.Semaphore(self._at_a_time)

        async def one(item: T) -> Any:
            async with turn:
                return await call(item)

        tasks = [asyncio.ensure_future(one(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    @property
    def _at_a_time(self) -> int:
        return min(ensure_config().get("max_concurrency") or self._max_concurrency, self._max_concurrency)


def _needed(*, drawn: bool) -> frozenset[str]:
    """Return the settings that a request cannot do without; randomness matters where several are drawn."""
    return frozenset({"logprobs", "top_logprobs"} | ({"temperature", "top_p"} if drawn else set()))


def _missing(requests: Sequence[_Request], rows: Sequence[Sequence[Generation]]) -> list[_Request]:
    """Return requests for the samples that servers left out of their answers."""
    return [
        request._replace(sampling=replace(request.sampling, n=1), number=number)
        for request, row in zip(requests, rows, strict=True)
        for number in range(len(row), request.sampling.n)
    ]


def _gathered(
    requests: Sequence[_Request], rows: Sequence[Sequence[Generation]], n_prompts: int
) -> list[list[Generation]]:
    """Return the answers of each prompt."""
    gathered: list[list[Generation]] = [[] for _ in range(n_prompts)]
    for request, row in zip(requests, rows, strict=True):
        gathered[request.place] += row[: request.sampling.n]
    return gathered


def _prompt_value(prompt: Prompt, number: int | None = None) -> PromptValue:
    """Return a prompt as LangChain's: a text where it is one user turn, else a conversation.

    A sample's number goes into its message's metadata, which no provider is sent and caches tell apart.
    """
    turns = [Message(role, replace_surrogates(content)) for role, content in as_messages(prompt)]
    if len(turns) == 1 and turns[0].role == "user" and number is None:
        return StringPromptValue(text=turns[0].content)
    messages = [_TURNS[role](content) for role, content in turns]
    if number is not None:
        messages[-1].response_metadata = {"sample": number}
    return ChatPromptValue(messages=messages)


def _chain(error: BaseException | None) -> Iterator[str]:
    """Yield the messages of an error and of its causes."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def _reply(error: BaseException | None) -> str:
    """Return the beginning of what a server sent, where an error or its cause carries it."""
    while error is not None:
        try:
            response = getattr(getattr(error, "response", None), "text", None)
        except Exception:
            response = None
        for text in (getattr(error, "doc", None), getattr(error, "body", None), response):
            if text:
                return str(text)[:300]
        error = error.__cause__ or error.__context__
    return ""
