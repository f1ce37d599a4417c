"""A LangChain model as a reader: it is called by ``invoke``, ``stream`` and ``generate`` alone.

Whatever the user put around the model (``bind``, ``with_config``, ``with_retry``, ``with_fallbacks``,
``configurable_fields``, callbacks) keeps working, because the outermost runnable is the one that is called.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.outputs import Generation as Output
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor, ensure_config, merge_configs

from langchain_surerag.families import PIPELINE, WAYS_OUT, Leaf, family_of, leaves, unbound
from langchain_surerag.runs import PURPOSE, AnswerRun, request_config
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    LogprobsError,
    LogprobsRefusedError,
    MissingServiceError,
    RefusedError,
    ServiceError,
    SureragError,
    ThinkingBudgetError,
    TransientServiceError,
)
from surerag.messages import Chunk, Generation, PartialGeneration, Prompt, SamplingParams, Usage, as_messages
from surerag.readers.failures import kind_of
from surerag.readers.logprobs import ANY_VOCABULARY, answer_tokens, entries_of, token_of, trace_of
from surerag.readers.pieces import TrimmedPieces, cut_at_stop
from surerag.readers.protocol import BaseReader, Capabilities, Reader, begun_from_whole
from surerag.readers.thinking import THINKING_TOKENS, ThoughtSplitter
from surerag.readers.threads import in_thread
from surerag.readers.usage import UsageCount

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

    =========================================  ==========================================================
    model                                      what the reader gives
    =========================================  ==========================================================
    ChatOpenAI and its relatives (chat         log-probabilities, entropy as an interval, the first
    completions), ChatOllama,                  tokens by an open stream
    ChatGoogleGenerativeAI
    OpenAI (completions) and its relatives     log-probabilities and entropy, of whole answers
    any other, HuggingFacePipeline and         text only
    ChatHuggingFace among them
    =========================================  ==========================================================

    Of several models (fallbacks, alternatives) the reader promises what all of them can do. For a model in
    this process, ``TransformersReader(llm.pipeline.model, llm.pipeline.tokenizer)`` gives exact entropies. A
    length, and a temperature where one answer is asked for, that the model was built or bound with hold; what
    a method needs beside them is sent.

    Args:
        model: The model; without prompt or output parser.
        logprobs: True for a class that takes OpenAI's keywords and returns its metadata; False to use a
            model's text alone.
        top_logprobs: Alternatives to ask for at each token; the most there are by default.
        vocabulary_size: Tokens that the model can emit; bounds the entropy from above.
        max_concurrency: Requests of one call at a time; a smaller one in the caller's config wins.
        thinking_tokens: Tokens allowed for thoughts, besides those of the answer, once a model was seen to
            think.

    Warns:
        UserWarning: If a Hugging Face pipeline is passed as it is, of which LangChain returns text alone.

    Raises:
        ConfigurationError: If there is no language model in it, or a setting is out of bounds.

    Example:
        >>> from langchain_core.language_models import FakeListChatModel
        >>> reader = reader_from_model(FakeListChatModel(responses=["Velm"]))
        >>> reader.generate(["Where was Ada born?"], SamplingParams())[0][0].text, reader.capabilities.logprobs
        ('Velm', False)
    """
    reader = ModelReader(
        model,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        vocabulary_size=vocabulary_size,
        max_concurrency=max_concurrency,
        thinking_tokens=thinking_tokens,
    )
    if reader.family is PIPELINE:
        warnings.warn(f"{reader.name} is read as text. {PIPELINE.advice}", stacklevel=2)
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
def with_advice(*readers: Any) -> Iterator[None]:
    """Say in the error about a model that lacks something what was passed and what to pass in its place."""
    try:
        yield
    except CapabilityError as error:
        lacking = [
            reader
            for reader in readers
            if isinstance(reader, ModelReader) and not reader.capabilities.logprobs
        ]
        if not lacking:
            raise
        raise CapabilityError(
            f"{lacking[0].described} gives text only, and log-probabilities are needed",
            hint=lacking[0].family.advice,
        ) from error


class ModelReader(BaseReader):
    """A LangChain model behind the protocol of readers; made by :func:`reader_from_model`."""

    def __init__(
        self,
        model: Runnable[Any, Any],
        *,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        vocabulary_size: int = ANY_VOCABULARY,
        max_concurrency: int = 8,
        thinking_tokens: int = THINKING_TOKENS,
    ) -> None:
        for name, value, least in (
            ("max_concurrency", max_concurrency, 1),
            ("top_logprobs", top_logprobs, 1),
            ("vocabulary_size", vocabulary_size, 2),
            ("thinking_tokens", thinking_tokens, 0),
        ):
            if value is not None and value < least:
                raise ConfigurationError(f"{name} must be at least {least}, got {value!r}")
        self.model = model
        self._leaves = tuple(leaves(model))
        self.family = family_of(self._leaves, logprobs)
        self._traced = logprobs is not False and self.family.logprobs is not None
        self._bare, self._bound, self._configs = unbound(model)
        self._completes = any(isinstance(leaf.model, BaseLLM) for leaf in self._leaves)
        if self._completes and self._traced and not isinstance(self._bare, BaseLLM):
            # What is around an LLM passes its text alone.
            self._traced = False
        self.vocabulary_size = vocabulary_size
        self.top_logprobs = min(top_logprobs or self.family.most_top, self.family.most_top)
        self._max_concurrency = max_concurrency
        self._thinking_tokens = thinking_tokens
        self._thinks = False
        self._rejected: frozenset[str] = frozenset()
        self._usage = UsageCount()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ModelReader({self.name})"

    @property
    def name(self) -> str:
        """Identity of the model: its class, the model it names, and where that is."""
        return "|".join(dict.fromkeys(leaf.name for leaf in self._leaves))

    @property
    def described(self) -> str:
        """What was passed, for messages: the model, and what is around it."""
        names = ", ".join(dict.fromkeys(leaf.class_name for leaf in self._leaves))
        outer = type(self.model).__name__
        return names if outer == names else f"{outer} of {names}"

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do; of several, what all of them can."""
        native = self._traced and not self._completes
        return Capabilities(
            logprobs=self._traced,
            entropy="bounded" if self._traced else None,
            begin="native" if native else "whole",
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

    def _limits(self) -> list[int]:
        limits = [leaf.setting(*self.family.limits) for leaf in self._leaves]
        return [limit for limit in limits if isinstance(limit, int) and limit > 0]

    # Whole answers.

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""
        requests = self._requests(prompts, sampling)
        answers = self._each(lambda request: self._answers(*request), requests)
        missing = self._missing(requests, answers)
        more = self._each(lambda request: self._answers(*request), missing)
        return _gathered(len(prompts), [*requests, *missing], [*answers, *more], sampling.n)

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``, with concurrent requests."""
        if self.family is PIPELINE:
            return await in_thread(self.generate, prompts, sampling)
        requests = self._requests(prompts, sampling)
        answers = await self._aeach(lambda request: self._aanswers(*request), requests)
        missing = self._missing(requests, answers)
        more = await self._aeach(lambda request: self._aanswers(*request), missing)
        return _gathered(len(prompts), [*requests, *missing], [*answers, *more], sampling.n)

    def _requests(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[_Request]:
        """Return one request a prompt where a model answers several times at once, else one a sample."""
        at_once = self.family.takes_n and self._is_bare and "n" not in self._rejected
        return [
            (place, prompt, replace(sampling, n=sampling.n if at_once else 1), number, sampling.n > 1)
            for place, prompt in enumerate(prompts)
            for number in range(1 if at_once else sampling.n)
        ]

    def _missing(
        self, requests: Sequence[_Request], answers: Sequence[Sequence[Generation]]
    ) -> list[_Request]:
        """Return requests for the samples that a server left out of its answers."""
        return [
            (place, prompt, replace(sampling, n=1), number, True)
            for (place, prompt, sampling, _, _), row in zip(requests, answers, strict=True)
            for number in range(len(row), sampling.n)
        ]

    @property
    def _is_bare(self) -> bool:
        return isinstance(self._bare, BaseChatModel | BaseLLM)

    def _answers(
        self, place: int, prompt: Prompt, sampling: SamplingParams, number: int, drawn: bool
    ) -> list[Generation]:
        while True:
            settings = self._settings(sampling, number, drawn)
            try:
                with self._errors(settings):
                    if self._is_bare:
                        result = self._uncached(drawn).generate_prompt(
                            [_prompt_value(prompt, number if drawn else None)], **self._call(settings)
                        )
                    else:
                        result = self.model.invoke(
                            _prompt_value(prompt, number if drawn else None),
                            request_config(PURPOSE.get()),
                            **self._keywords(settings),
                        )
                    return self._read(result, sampling)
            except ServiceError as error:
                if not self._can_ask_again(error, settings, drawn):
                    raise

    async def _aanswers(
        self, place: int, prompt: Prompt, sampling: SamplingParams, number: int, drawn: bool
    ) -> list[Generation]:
        while True:
            settings = self._settings(sampling, number, drawn)
            try:
                with self._errors(settings):
                    if self._is_bare:
                        result = await self._uncached(drawn).agenerate_prompt(
                            [_prompt_value(prompt, number if drawn else None)], **self._call(settings)
                        )
                    else:
                        result = await self.model.ainvoke(
                            _prompt_value(prompt, number if drawn else None),
                            request_config(PURPOSE.get()),
                            **self._keywords(settings),
                        )
                    return self._read(result, sampling)
            except ServiceError as error:
                if not self._can_ask_again(error, settings, drawn):
                    raise

    def _uncached(self, drawn: bool) -> Any:
        """Return the bare model; for samples of an LLM a copy that does not read the cache.

        Messages of samples differ in their metadata, so a cache keeps those of chat models apart.
        """
        if drawn and isinstance(self._bare, BaseLLM):
            return self._bare.model_copy(update={"cache": False})
        return self._bare

    def _call(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keywords of ``generate_prompt``: those bound and ours, and the parts of the config."""
        config = request_config(PURPOSE.get())
        for one in self._configs:
            config = merge_configs(one, config)
        traced = {
            name: config.get(name) for name in ("callbacks", "tags", "metadata", "run_name", "run_id")
        }
        return {**traced, **self._bound, **self._keywords(settings)}

    def _read(self, result: Any, sampling: SamplingParams) -> list[Generation]:
        outputs: Sequence[Any] = [result]
        if isinstance(result, LLMResult):
            outputs = result.generations[0] if result.generations else []
        if not outputs:
            raise ServiceError(f"{self.name} returned no answer", hint="look at what its server returns")
        answers = []
        for output in outputs:
            answer = _Answer(self, sampling)
            answer.add(output)
            answers.append(answer)
        counted = (result.llm_output or {}).get("token_usage") if isinstance(result, LLMResult) else None
        self._usage.add(replace(answers[0].usage, requests=1))
        generations = [answer.generation() for answer in answers]
        if isinstance(counted, Mapping) and not generations[0].prompt_tokens:
            read = counted.get("prompt_tokens")
            generations = [replace(one, prompt_tokens=read or 0) for one in generations]
        return generations

    # The first tokens, and on from there.

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Open a stream for each prompt and read its first ``n_tokens`` tokens."""
        if self.capabilities.begin != "native":
            return super().begin(prompts, n_tokens, sampling)
        streams = [_OpenStream(self, prompt, replace(sampling, n=1)) for prompt in prompts]
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
        streams = [_AsyncOpenStream(self, prompt, replace(sampling, n=1)) for prompt in prompts]
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
        return self._each(lambda item: [*item.state.chunks()][-1].generation, begun)

    async def afinish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Like ``finish``, without blocking the event loop."""
        if self.capabilities.begin != "native":
            return super().finish(begun)

        async def last(item: PartialGeneration) -> Generation:
            return [chunk async for chunk in item.state.chunks()][-1].generation

        return await self._aeach(last, begun)

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close each open stream."""
        for item in begun:
            if isinstance(item.state, _OpenStream):
                item.state.close()

    async def acancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close each open stream."""
        for item in begun:
            if isinstance(item.state, _AsyncOpenStream):
                await item.state.close()

    # Streams.

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer piece by piece."""
        if self._completes and self._traced and sampling.trace != "none":
            return super().stream(prompt, sampling)
        return _OpenStream(self, prompt, replace(sampling, n=1)).chunks()

    def finish_stream(self, begun: PartialGeneration) -> Iterator[Chunk]:
        """Yield what was begun, from its first token on."""
        if self.capabilities.begin != "native":
            return super().finish_stream(begun)
        return cast("_OpenStream", begun.state).chunks()

    def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``, without blocking the event loop."""
        if self.family is PIPELINE or (self._completes and self._traced and sampling.trace != "none"):
            return super().astream(prompt, sampling)
        # Made here, in the context of the caller; its chunks are read in another.
        return _AsyncOpenStream(self, prompt, replace(sampling, n=1)).chunks()

    def afinish_stream(self, begun: PartialGeneration) -> AsyncIterator[Chunk]:
        """Like ``finish_stream``, without blocking the event loop."""
        if self.capabilities.begin != "native":
            return super().afinish_stream(begun)
        return cast("_AsyncOpenStream", begun.state).chunks()

    def chunks(self, prompt: Prompt, sampling: SamplingParams, config: RunnableConfig) -> Iterator[Any]:
        """Yield what the model streams; a request that is rejected is made again without what was rejected."""
        while True:
            settings = self._settings(sampling, 0, drawn=False)
            began = False
            try:
                with self._errors(settings):
                    stream = self.model.stream(_prompt_value(prompt), config, **self._keywords(settings))
                    with closing(cast("Any", stream)):
                        for piece in stream:
                            began = True
                            yield piece
                return
            except ServiceError as error:
                if began or not self._can_ask_again(error, settings, drawn=False):
                    if began or not error.retryable or not any(leaf.retried for leaf in self._leaves):
                        raise
                    break
        # Retries are for whole answers in LangChain, not for streams.
        with self._errors(settings):
            yield self.model.invoke(_prompt_value(prompt), config, **self._keywords(settings))

    async def achunks(
        self, prompt: Prompt, sampling: SamplingParams, config: RunnableConfig
    ) -> AsyncIterator[Any]:
        """Like :meth:`chunks`, without blocking the event loop."""
        while True:
            settings = self._settings(sampling, 0, drawn=False)
            began = False
            try:
                with self._errors(settings):
                    stream = self.model.astream(_prompt_value(prompt), config, **self._keywords(settings))
                    async with aclosing(cast("Any", stream)):
                        async for piece in stream:
                            began = True
                            yield piece
                return
            except ServiceError as error:
                if began or not self._can_ask_again(error, settings, drawn=False):
                    if began or not error.retryable or not any(leaf.retried for leaf in self._leaves):
                        raise
                    break
        with self._errors(settings):
            yield await self.model.ainvoke(_prompt_value(prompt), config, **self._keywords(settings))

    # What is sent, and what comes back of it.

    def _settings(self, sampling: SamplingParams, number: int, drawn: bool) -> dict[str, Any]:
        """Return the settings of one request by OpenAI's names, without those that the model rejects."""
        thinking = self._thinking_tokens if self._thinks else 0
        settings: dict[str, Any] = {"max_tokens": min([sampling.max_tokens, *self._limits()]) + thinking}
        if drawn or all(leaf.setting("temperature") is None for leaf in self._leaves):
            settings["temperature"] = sampling.temperature
        if sampling.top_p != 1:
            settings["top_p"] = sampling.top_p
        if drawn:
            settings["seed"] = sampling.seed + number
        if sampling.n > 1:
            settings["n"] = sampling.n
        if sampling.stop:
            settings["stop"] = list(sampling.stop)
        if self._traced and sampling.trace != "none":
            settings["logprobs"] = True
            if sampling.trace == "entropy":
                settings["top_logprobs"] = self.top_logprobs
        missing = self._rejected & {"temperature", "top_p"} & settings.keys()
        if drawn and missing:
            raise self._rejection(sorted(missing)[0], "it was rejected before")
        return {name: value for name, value in settings.items() if name not in self._rejected}

    def _keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return self.family.keywords(settings, self._leaves[0].model)

    def _can_ask_again(self, error: ServiceError, settings: Mapping[str, Any], drawn: bool) -> bool:
        """Note what the model rejects; return whether to ask again without it.

        Raises:
            RefusedError: If it rejects what the method needs.
        """
        if isinstance(error, ThinkingBudgetError) and not self._thinks:
            self._thinks = True
            return True
        if not isinstance(error, RefusedError):
            return False
        message = str(error)
        names = [name for name in settings if re.search(rf"(?<![\w-]){name}(?![\w-])", message)]
        if "top_logprobs" in names and (limit := re.search(r"(\d+)\D*$", message.split("top_logprobs")[-1])):
            most = int(limit[1])
            if 0 < most < self.top_logprobs:
                self.top_logprobs = most
                return True
        needed = {"logprobs", "top_logprobs", *(("temperature", "top_p") if drawn else ())}
        for name in names:
            if name in needed:
                raise self._rejection(name, message) from error
        if not names:
            return False
        with self._lock:
            self._rejected |= set(names)
        if {"temperature", "top_p"} & set(names):
            warnings.warn(
                f"{self.name} rejects {' and '.join(names)}, and is called without", LeftOutWarning, stacklevel=3
            )
        return True

    def _rejection(self, name: str, message: str) -> RefusedError:
        kind = LogprobsRefusedError if "logprobs" in name else RefusedError
        hint = self.family.advice if "logprobs" in name else f"use a model that takes {name}"
        return kind(f"{self.name} rejects {name}: {message[:300]}", hint=hint)

    @contextmanager
    def _errors(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Turn what clients raise into our errors, with the cause and what the server sent."""
        try:
            yield
        except SureragError:
            raise
        except Exception as error:
            kind = kind_of(error)
            unreadable = kind is ServiceError and isinstance(error, _UNREADABLE)
            text = "sent a reply that cannot be read" if unreadable else "failed"
            message = f"{self.name} {text}: {type(error).__name__}: {str(error)[:500]}"
            if sent := _sent(error):
                message += f"; the server sent {sent!r}"
            masked = _SECRET.sub("[hidden]", message)
            hint = (
                "check the model's name, key, address and settings"
                if kind is RefusedError
                else "look at the server's log"
            )
            # Where a client's own message holds a key, it must not follow in the traceback.
            raise kind(masked, hint=hint) from (None if masked != message else error)

    # Several requests at once.

    def _each(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Call for every item, in threads where there are several; results in order."""
        workers = min(self._at_a_time, len(items))
        if workers <= 1 or self.family is PIPELINE:
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

    def note(self, answer: _Answer) -> None:
        """Count what an answer cost that was streamed."""
        self._usage.add(replace(answer.usage, requests=1))

    def no_logprobs(self, metadata: Mapping[str, Any]) -> LogprobsError:
        """Return the error about an answer without log-probabilities."""
        sent = json.dumps(metadata, default=str)[:300]
        return LogprobsError(
            f"{self.described} was asked for log-probabilities, and its answer has none; "
            f"it came with the metadata {sent}",
            hint=self.family.advice,
        )


_Request = tuple[int, Prompt, SamplingParams, int, bool]
"""Place of the prompt, the prompt, how to sample, number of the sample, and whether it is one of several."""


class _Answer:
    """One answer, whole or on its way: text, entries and metadata as they come, thoughts left out."""

    def __init__(self, reader: ModelReader, sampling: SamplingParams) -> None:
        self._reader = reader
        self._sampling = sampling
        self._splitter = ThoughtSplitter()
        self._entries: list[Mapping[str, Any]] = []
        self._metadata: dict[str, Any] = {}
        self._thought = False
        self._usage: dict[str, Any] = {}
        self._tail = ""

    @property
    def traced(self) -> bool:
        """Whether log-probabilities were asked for."""
        return self._reader.capabilities.logprobs and self._sampling.trace != "none"

    def add(self, piece: Any) -> str:
        """Take a chunk, or the whole, and return what it adds to the answer."""
        message = piece.message if isinstance(piece, ChatGeneration) else piece
        text, metadata = (
            (message, {})
            if isinstance(message, str)
            else (message.text, message.generation_info or {})
            if isinstance(message, Output)
            else (str(message.text), message.response_metadata)
        )
        if isinstance(message, BaseMessage):
            self._thought |= bool(message.additional_kwargs.get("reasoning_content"))
            for name, value in (getattr(message, "usage_metadata", None) or {}).items():
                self._usage[name] = value
        if self.traced and self._reader.family.logprobs is not None:
            self._entries += entries_of(self._reader.family.logprobs(metadata))
        self._metadata.update({name: value for name, value in metadata.items() if value is not None})
        return self._splitter.feed(str(text))

    def end(self) -> str:
        """Note that nothing follows, and return what was held back.

        Raises:
            TransientServiceError: If it is a stream that was cut off.
        """
        return self._splitter.end()

    @property
    def text(self) -> str:
        """The answer so far."""
        text = self._splitter.answer if self._splitter.begins is not None else ""
        cut = cut_at_stop(text, self._sampling.stop)
        return text if cut is None else cut

    @property
    def stopped(self) -> bool:
        """Whether a stop text came, which the server did not obey."""
        return cut_at_stop(self._splitter.answer, self._sampling.stop) is not None

    @property
    def finish(self) -> str | None:
        """Why it ended, in the provider's words, if that is known."""
        reasons = (self._metadata.get(name) for name in ("finish_reason", "done_reason", "stop_reason"))
        return next((str(reason).lower() for reason in reasons if reason), None)

    @property
    def usage(self) -> Usage:
        """What the server counted."""
        read, written = self._usage.get("input_tokens") or 0, self._usage.get("output_tokens") or 0
        thought = (self._usage.get("output_token_details") or {}).get("reasoning") or 0
        cached = (self._usage.get("input_token_details") or {}).get("cache_read") or 0
        return Usage(1, read, max(written - thought, 0), thought, min(cached, read))

    def n_tokens(self) -> int:
        """Return the tokens of the answer so far."""
        if not self.traced or not self.text.strip():
            return 0
        return len(self._trace(whole=False))

    def _trace(self, *, whole: bool) -> Any:
        if not self._entries:
            raise self._reader.no_logprobs(self._metadata)
        try:
            inside = answer_tokens(
                map(token_of, self._entries),
                self.text,
                whole=whole,
                thought=self._thought or self._splitter.has_thoughts,
            )
            return trace_of(
                self._entries[inside.start : inside.stop],
                top_logprobs=self._reader.top_logprobs if self._sampling.trace == "entropy" else 0,
                vocabulary_size=self._reader.vocabulary_size,
            )
        except LogprobsError as error:
            raise LogprobsError(
                f"{self._reader.described}: {error}", hint=self._reader.family.advice
            ) from error

    def partial(self, n_tokens: int) -> Generation:
        """Return the first tokens."""
        trace = self._trace(whole=False) if self.text.strip() else None
        whole = Generation(self.text.strip(), trace=trace, completion_tokens=len(trace or ()))
        head = begun_from_whole(whole, n_tokens).partial
        usage = self.usage
        return replace(head, finish="partial", prompt_tokens=usage.prompt_tokens)

    def generation(self) -> Generation:
        """Return the whole answer.

        Raises:
            ThinkingBudgetError: If it ended within its thoughts.
            LogprobsError: If log-probabilities were asked for, and do not cover it.
        """
        self._splitter.end()
        text, usage = self.text.strip(), self.usage
        cut = self.finish in _CUT
        if not text and cut and (self._splitter.has_thoughts or self._thought or usage.thinking_tokens):
            raise ThinkingBudgetError(
                f"{self._reader.name} was still thinking when its tokens were spent",
                hint="raise thinking_tokens=… of reader_from_model, or switch thinking off in the model",
            )
        if not text and self.finish in _WITHHELD:
            raise ServiceError(
                f"{self._reader.name} withheld its answer: {self.finish}", hint="rephrase the question"
            )
        trace = self._trace(whole=True) if self.traced and text else None
        counted = usage.completion_tokens
        if trace is not None and counted and len(trace) > counted:
            raise ServiceError(
                f"{self._reader.name} sent {len(trace)} tokens and counted {counted}: its stream repeats itself",
                hint="ask again, or look at what stands between you and the server",
            )
        return Generation(
            text,
            usage.prompt_tokens,
            trace,
            "length" if cut or self.finish in _WITHHELD else "stop",
            counted or len(trace or ()),
            usage.thinking_tokens,
            usage.cached_tokens,
        )


_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
_WITHHELD = frozenset({"content_filter", "safety", "prohibited_content", "blocklist", "recitation", "refusal"})


class _StreamState:
    """What sync and async streams share."""

    def __init__(self, reader: ModelReader, prompt: Prompt, sampling: SamplingParams) -> None:
        self._reader, self._prompt, self._sampling = reader, prompt, sampling
        self._purpose = PURPOSE.get()
        self._config = ensure_config()
        self._answer = _Answer(reader, sampling)
        self._run = AnswerRun(_prompt_value(prompt).to_string(), self._config)
        self._trimmed = TrimmedPieces()
        self._ready = ""
        self._ended = self._used = False

    def _take(self, piece: Any) -> None:
        """Take a chunk; None says that nothing follows."""
        self._ready += self._trimmed.feed(self._answer.end() if piece is None else self._answer.add(piece))
        self._ended = piece is None or self._answer.stopped
        if not self._ended:
            return
        self._reader.note(self._answer)
        if self._reader.family.has_finish and self._answer.finish is None and not self._answer.stopped:
            raise TransientServiceError(
                f"the stream of {self._reader.name} was cut off after {len(self._answer.text)} characters: "
                "it gives no reason for its end",
                hint="ask again",
            )

    def _partial(self, n_tokens: int) -> PartialGeneration:
        if self._ended:
            return PartialGeneration(self._answer.generation(), done=True, state=self)
        return PartialGeneration(self._answer.partial(n_tokens), done=False, state=self)

    def _use(self) -> bool:
        """Return whether a run of its own shows the answer: the model's was that of a draft."""
        if self._used:
            raise ServiceError("what was begun is finished or cancelled already", hint="begin it again")
        self._used = True
        return self._purpose == "draft"

    def _next(self) -> str:
        """Return what can be shown by now, without what follows a stop text."""
        piece, self._ready = self._ready, ""
        return piece


class _OpenStream(_StreamState):
    """A stream that is read by blocking."""

    def __init__(self, reader: ModelReader, prompt: Prompt, sampling: SamplingParams) -> None:
        super().__init__(reader, prompt, sampling)
        self._pieces = reader.chunks(prompt, sampling, request_config(self._purpose))

    def until(self, n_tokens: int) -> PartialGeneration:
        """Read the first ``n_tokens`` tokens, or all if there are fewer."""
        while not self._ended and self._answer.n_tokens() < n_tokens:
            self._advance()
        return self._partial(n_tokens)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all text; the last chunk has the generation."""
        shows = self._use()
        try:
            while True:
                if piece := self._next():
                    if shows:
                        self._run.token(piece)
                    yield Chunk(piece)
                if self._ended:
                    break
                self._advance()
            if shows:
                self._run.end()
            yield Chunk("", self._answer.generation())
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading, and close the connection; again does nothing."""
        self._used = True
        cast("Any", self._pieces).close()

    def _advance(self) -> None:
        try:
            self._take(next(self._pieces, None))
        except BaseException:
            self.close()
            raise


class _AsyncOpenStream(_StreamState):
    """A stream that is read without blocking."""

    def __init__(self, reader: ModelReader, prompt: Prompt, sampling: SamplingParams) -> None:
        super().__init__(reader, prompt, sampling)
        self._pieces = reader.achunks(prompt, sampling, request_config(self._purpose))

    async def until(self, n_tokens: int) -> PartialGeneration:
        """Read the first ``n_tokens`` tokens, or all if there are fewer."""
        while not self._ended and self._answer.n_tokens() < n_tokens:
            await self._advance()
        return self._partial(n_tokens)

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield all text; the last chunk has the generation."""
        shows = self._use()
        try:
            while True:
                if piece := self._next():
                    if shows:
                        await self._run.atoken(piece)
                    yield Chunk(piece)
                if self._ended:
                    break
                await self._advance()
            if shows:
                await self._run.aend()
            yield Chunk("", self._answer.generation())
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop reading, and close the connection; again does nothing."""
        self._used = True
        await cast("Any", self._pieces).aclose()

    async def _advance(self) -> None:
        try:
            self._take(await anext(self._pieces, None))
        except BaseException:
            await self.close()
            raise


def _prompt_value(prompt: Prompt, number: int | None = None) -> PromptValue:
    """Return a prompt as LangChain's: a text where it is one user turn, else a conversation.

    A sample's number goes into its message's metadata, which no provider is sent and caches tell apart.
    """
    turns = as_messages(prompt)
    single = len(turns) == 1 and turns[0].role == "user"
    if single and number is None:
        return StringPromptValue(text=turns[0].content)
    messages = [_TURNS[role](content) for role, content in turns]
    if number is not None:
        messages[-1].response_metadata = {"sample": number}
    return _Turns(messages=messages, single=single)


class _Turns(ChatPromptValue):
    """A conversation; one of a single turn is its bare text for an LLM."""

    single: bool = False

    def to_string(self) -> str:
        """Return the text for an LLM."""
        return str(self.messages[0].text) if self.single else super().to_string()


def _gathered(
    n_prompts: int, requests: Sequence[_Request], answers: Sequence[Sequence[Generation]], n: int
) -> list[list[Generation]]:
    """Return ``n`` answers for each prompt."""
    rows: list[list[Generation]] = [[] for _ in range(n_prompts)]
    for (place, *_), row in zip(requests, answers, strict=True):
        rows[place] += row
    return [row[:n] for row in rows]


def _sent(error: BaseException | None) -> str:
    """Return the beginning of what a server sent, where an error or its cause carries it."""
    while error is not None:
        for found in (getattr(error, "doc", None), getattr(error, "body", None)):
            if found:
                return str(found)[:300]
        try:
            text = getattr(getattr(error, "response", None), "text", None)
        except Exception:
            text = None
        if isinstance(text, str) and text:
            return text[:300]
        error = error.__cause__ or error.__context__
    return ""
