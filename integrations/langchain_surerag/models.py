"""A LangChain model as a reader: it is called by ``invoke``, ``stream`` and ``generate_prompt`` alone.

Whatever the user put around the model (``bind``, ``with_config``, ``with_retry``, ``with_fallbacks``,
``configurable_fields``, callbacks) keeps working, because the outermost runnable is the one that is called.

Half of this file is what a call alone does not give: several samples in one request, samples that a cache
does not collapse, settings that a model rejects, retries of a stream that fails at once, and errors of ours.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import convert_to_messages
from langchain_core.outputs import LLMResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs

from langchain_surerag.answers import Answer, OpenStream
from langchain_surerag.calls import Awaiting, Blocking, Calls, iterate
from langchain_surerag.families import PIPELINE, family_of, leaves, unbound
from langchain_surerag.runs import PURPOSE, AnswerRun, request_config
from surerag.drivers import complete
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    LogprobsRefusedError,
    MissingServiceError,
    RefusedError,
    ServiceError,
    SureragError,
    ThinkingBudgetError,
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
from surerag.readers.failures import service_error
from surerag.readers.logprobs import ANY_VOCABULARY
from surerag.readers.parameters import SupportedParameters, needed_parameters, warn_of_dropped
from surerag.readers.pieces import UsageCounter
from surerag.readers.protocol import BaseReader, Capabilities, Reader, begun_from_whole
from surerag.readers.thinking import THINKING_TOKENS
from surerag.readers.threads import in_thread
from surerag.text import replace_surrogates

T = TypeVar("T")
R = TypeVar("R")
_SECRET = re.compile(r"Bearer\s+[^\s'\"]+|\bsk-[\w-]{6,}")


def reader_from_model(
    model: Runnable[Any, Any],
    *,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    vocabulary_size: int = ANY_VOCABULARY,
    max_concurrency: int = 8,
    thinking_tokens: int = THINKING_TOKENS,
) -> ModelReader:
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
    """Return a model as a reader, and a reader as it is."""
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

    @property
    def needed(self) -> frozenset[str]:
        """The settings that it cannot do without."""
        return needed_parameters(replace(self.sampling, n=2) if self.drawn else self.sampling)


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
        self._top_logprobs = min(number for number in most if isinstance(number, int) and number > 0)
        self._max_concurrency = max_concurrency
        self._thinking_tokens = thinking_tokens
        self._thinks = False
        self._supported = SupportedParameters()
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
    def top_logprobs(self) -> int:
        """Alternatives to request at each token."""
        return min(self._top_logprobs, self._supported.cap.get("top_logprobs", self._top_logprobs))

    @property
    def usage(self) -> Usage:
        """Requests made, and tokens as far as the server counts them."""
        return self._usage.total

    def count_tokens(self, text: str) -> int:
        """Return the tokens of a text by the model's ``custom_get_token_ids``, else an estimate."""
        encode = getattr(self._bare, "custom_get_token_ids", None)
        return len(encode(text)) if callable(encode) else super().count_tokens(text)

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings by OpenAI's names as keywords of a call."""
        return self.family.keywords(settings, self._leaves[0].model)

    # Whole answers.

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""
        return complete(self._generate(prompts, sampling, Blocking()))

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``, with concurrent requests."""
        if self.family is PIPELINE:
            return await in_thread(self.generate, prompts, sampling)
        return await self._generate(prompts, sampling, Awaiting())

    async def _generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, calls: Calls
    ) -> list[list[Generation]]:
        """Make one request a prompt where a model answers several times at once, else one a sample.

        Samples that a server leaves out of its answer are requested one by one.
        """
        at_once = self.family.takes_n and self._is_bare and self._supported.apply({"n": 2}) == {"n": 2}
        each = replace(sampling, n=sampling.n if at_once else 1)
        requests = [
            _Request(place, prompt, each, number, sampling.n > 1)
            for place, prompt in enumerate(prompts)
            for number in range(1 if at_once else sampling.n)
        ]
        generations: list[list[Generation]] = [[] for _ in prompts]
        while requests:
            missing = []
            rows = await self._each(lambda request: self._answers(request, calls), requests, calls)
            for request, row in zip(requests, rows, strict=True):
                generations[request.place] += row[: request.sampling.n]
                missing += [
                    request._replace(sampling=replace(request.sampling, n=1), number=number)
                    for number in range(len(row), request.sampling.n)
                ]
            requests = missing
        return generations

    async def _answers(self, request: _Request, calls: Calls) -> list[Generation]:
        while True:
            settings = self._settings(request)
            try:
                return self._read(await self._ask(request, settings, calls), request.sampling)
            except Exception as error:
                self._learn(error, request, settings)

    async def _ask(self, request: _Request, settings: Mapping[str, Any], calls: Calls) -> Any:
        config = request_config(PURPOSE.get())
        keywords = self.keywords(settings)
        cached = request.drawn and (
            get_llm_cache() is not None or any(getattr(leaf.model, "cache", None) for leaf in self._leaves)
        )
        value = _prompt_value(request.prompt, request.number if cached and not self._completes else None)
        if not self._is_bare:
            if cached and self._completes:
                raise ConfigurationError(
                    f"{self.described} samples through LangChain's LLM cache, which answers all with one",
                    hint="build the LLM with cache=False, or pass it without what is around it",
                )
            return await calls.call(self.model, "invoke", value, config, **keywords)
        uncached = cached and self._completes
        owner = self._bare.model_copy(update={"cache": False}) if uncached else self._bare
        config = merge_configs(*self._configs, config)
        names = ("callbacks", "tags", "metadata", "run_name", "run_id")
        traced = {name: config.get(name) for name in names}
        return await calls.call(owner, "generate_prompt", [value], **{**traced, **self._bound, **keywords})

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
        return complete(self._begin(prompts, n_tokens, sampling, Blocking()))

    async def abegin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Like ``begin``, without blocking the event loop."""
        if self.family is PIPELINE:
            return await in_thread(self.begin, prompts, n_tokens, sampling)
        return await self._begin(prompts, n_tokens, sampling, Awaiting())

    async def _begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams, calls: Calls
    ) -> list[PartialGeneration]:
        if self.capabilities.begin != "native":
            answers = await self._generate(prompts, replace(sampling, n=1), calls)
            return [begun_from_whole(answer[0], n_tokens) for answer in answers]
        streams = [self._open(prompt, sampling, calls) for prompt in prompts]
        try:
            return await self._each(lambda stream: stream.until(n_tokens), streams, calls)
        except BaseException:
            for stream in streams:
                await stream.close()
            raise

    def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Read each open stream to its end."""
        return complete(self._finish(begun, Blocking()))

    async def afinish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Like ``finish``, without blocking the event loop."""
        return await self._finish(begun, Awaiting())

    async def _finish(self, begun: Sequence[PartialGeneration], calls: Calls) -> list[Generation]:
        if self.capabilities.begin != "native":
            return super().finish(begun)
        return await self._each(lambda item: item.state.rest(), begun, calls)

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close each open stream."""
        complete(self.acancel(begun))

    async def acancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close each open stream."""
        for item in begun:
            if isinstance(item.state, OpenStream):
                await item.state.close()

    # Streams.

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer piece by piece."""
        if self._needs_whole(sampling):
            return super().stream(prompt, sampling)
        return iterate(self._open(prompt, sampling, Blocking()).chunks())

    def finish_stream(self, begun: PartialGeneration) -> Iterator[Chunk]:
        """Yield what was begun, from its first token on."""
        native = isinstance(begun.state, OpenStream)
        return iterate(begun.state.chunks()) if native else super().finish_stream(begun)

    def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``, without blocking the event loop."""
        if self.family is PIPELINE or self._needs_whole(sampling):
            return super().astream(prompt, sampling)
        return self._open(prompt, sampling, Awaiting()).chunks()

    def afinish_stream(self, begun: PartialGeneration) -> AsyncIterator[Chunk]:
        """Like ``finish_stream``, without blocking the event loop."""
        native = isinstance(begun.state, OpenStream)
        return begun.state.chunks() if native else super().afinish_stream(begun)

    def _needs_whole(self, sampling: SamplingParams) -> bool:
        """Whether log-probabilities are needed that come with whole answers alone."""
        return self._completes and self._traced and sampling.trace != "none"

    def _open(self, prompt: Prompt, sampling: SamplingParams, calls: Calls) -> OpenStream:
        """Return a stream under this context's config; it begins when it is read, maybe in another one."""
        value, run = _prompt_value(prompt), None
        if PURPOSE.get() == "draft":
            run = AnswerRun(value.to_string(), calls.callback_manager)
        request = _Request(0, prompt, replace(sampling, n=1))
        pieces = self._pieces(value, request, request_config(PURPOSE.get()), calls)
        return OpenStream(pieces, Answer(self, sampling, streamed=True), run, self._usage.add)

    async def _pieces(
        self, value: PromptValue, request: _Request, config: RunnableConfig, calls: Calls
    ) -> AsyncGenerator[Any]:
        """Yield what the model streams.

        LangChain's retries are for whole answers: where there are some, a stream that fails at once gives way
        to such a one.
        """
        began = whole = False
        while True:
            settings = self._settings(request, streamed=not whole)
            keywords = self.keywords(settings)
            try:
                if whole:
                    yield await calls.call(self.model, "invoke", value, config, **keywords)
                    return
                async with aclosing(calls.stream(self.model, value, config, **keywords)) as chunks:
                    async for chunk in chunks:
                        began = True
                        yield chunk
                return
            except Exception as error:
                failure = self._failure(error)
                if began:
                    raise failure from failure.__cause__
                passes = isinstance(failure, ServiceError) and failure.retryable
                if passes and not whole and any(leaf.retried for leaf in self._leaves):
                    whole = True
                else:
                    self._learn(error, request, settings)

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
        if streamed and all(
            hasattr(leaf.model, "stream_usage") and leaf.setting("stream_usage") is None
            for leaf in self._leaves
        ):
            # A stream that counts its tokens is recognised where it repeats itself.
            settings["stream_usage"] = True
        kept = {name: settings[name] for name in request.needed & settings.keys()}
        return {**kept, **self._supported.apply(settings)}

    def _learn(self, error: Exception, request: _Request, settings: Mapping[str, Any]) -> None:
        """Note that the model rejects a setting, or thinks; raise a failure that teaches neither."""
        failure = self._failure(error)
        teaches = isinstance(failure, RefusedError | ThinkingBudgetError)
        if teaches and settings != self._settings(request, streamed="stream_usage" in settings):
            return  # another request has noted it meanwhile
        if isinstance(failure, ThinkingBudgetError) and not self._thinks:
            self._thinks = True
            return
        message = str(error).replace("stream_options", "stream_usage")
        if isinstance(failure, RefusedError):
            if changed := self._supported.learn(message, settings, request.needed):
                warn_of_dropped(self.name, self._supported.drop & set(changed), request.sampling)
                return
            if "logprobs" in settings and "logprobs" in message:
                refused = LogprobsRefusedError(failure.args[0], hint=self.family.advice)
                raise refused from failure.__cause__
        raise failure from failure.__cause__

    def _failure(self, error: Exception) -> SureragError:
        """Return what a client raised as an error of ours, with the cause and what the server sent."""
        if isinstance(error, SureragError):
            return error
        message = str(error)[:500]
        if (reply := _reply(error)) and reply not in message:
            message += f"; the server sent {reply!r}"
        failure = service_error(error, self.name, _SECRET.sub("[hidden]", message))
        # A key in a client's message must not follow in the traceback.
        secret = _SECRET.search("".join(traceback.format_exception(error)))
        failure.__cause__ = None if secret else error
        return failure

    async def _each(
        self, call: Callable[[T], Coroutine[Any, Any, R]], items: Sequence[T], calls: Calls
    ) -> list[R]:
        most = min(ensure_config().get("max_concurrency") or self._max_concurrency, self._max_concurrency)
        return await calls.each(call, items, 1 if self.family is PIPELINE else most)


def _prompt_value(prompt: Prompt, number: int | None = None) -> PromptValue:
    """Return a prompt as LangChain's: a text where it is one user turn, else a conversation.

    A sample's number goes into its message's metadata, which no provider is sent and caches tell apart.
    """
    turns = [Message(role, replace_surrogates(content)) for role, content in as_messages(prompt)]
    if len(turns) == 1 and turns[0].role == "user" and number is None:
        return StringPromptValue(text=turns[0].content)
    messages = convert_to_messages([(role, content) for role, content in turns])
    if number is not None:
        messages[-1].response_metadata = {"sample": number}
    return ChatPromptValue(messages=messages)


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
