"""A LangChain model as a reader: its outermost runnable is called, so that what is around it holds."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from numbers import Real
from typing import Any, Literal, NamedTuple, cast

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs

from langchain_surerag.families import PIPELINE, Leaf, family_of, leaves, limit_name, unbound
from langchain_surerag.runs import PURPOSE, AnswerRun, request_config
from surerag import SamplingParams, Usage
from surerag.errors import ConfigurationError, MissingServiceError, check_at_least, check_kind
from surerag.messages import Chunk, Generation, Message, Prompt, as_messages
from surerag.readers import (
    ANY_VOCABULARY,
    THINKING_TOKENS,
    BaseReader,
    Blocking,
    Capabilities,
    ClientReader,
    Keywords,
    OpenReading,
    Reader,
    Reading,
    ReplyPart,
    Request,
    entries_of,
    secrets_in,
    usage_of,
)
from surerag.services import Entailer
from surerag.text import replace_surrogates

_REASONS = ("finish_reason", "done_reason", "stop_reason")


def reader_from_model(
    model: Runnable[Any, Any],
    *,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    vocabulary_size: int = ANY_VOCABULARY,
    max_concurrency: int = 8,
    thinking_tokens: int = THINKING_TOKENS,
    thinking: Literal[True, "unmarked"] | None = None,
) -> ModelReader:
    """Make a reader of a chat model or an LLM, with whatever is around it.

    ChatOpenAI and its relatives (chat completions), ChatOllama and ChatGoogleGenerativeAI give
    log-probabilities and entropies as intervals, OpenAI (completions) for whole answers alone; any other
    model gives text, HuggingFacePipeline and ChatHuggingFace among them. Of several models (fallbacks,
    alternatives) the reader promises what all can do.

    A length, and a temperature where one answer is generated, that the model was built or bound with, or that
    the config chooses, hold. What the model rejects is left out from then on, where the method can do without
    it. Samples bypass LangChain's LLM cache, which would answer all of them with one.

    Args:
        model: The model; without prompt or output parser.
        logprobs: True for a class that takes OpenAI's keywords and returns its metadata; False to use a
            model's text alone.
        top_logprobs: Alternatives to request at each token, at most; by default what the model was built or
            bound with, else the most there are.
        vocabulary_size: Tokens that the model can emit; bounds the entropy from above.
        max_concurrency: Requests of one call at a time; a smaller one in the caller's config wins.
        thinking_tokens: Tokens for thoughts, besides those of the answer, once a model was seen to think.
        thinking: True grants them from the first request on; ``"unmarked"`` says besides that answers begin
            inside the thoughts, and only the end of these is marked.

    Warns:
        UserWarning: If a Hugging Face pipeline is passed as it is, of which LangChain returns text alone.

    Raises:
        ConfigurationError: If there is no language model in it, or a setting is out of bounds.
    """
    check_kind(Real, "a number", max_concurrency=max_concurrency, vocabulary_size=vocabulary_size)
    check_kind(Real, "a number", thinking_tokens=thinking_tokens)
    check_at_least(1, max_concurrency=max_concurrency, top_logprobs=top_logprobs)
    check_at_least(2, vocabulary_size=vocabulary_size)
    check_at_least(0, thinking_tokens=thinking_tokens)
    reader = ModelReader(
        model, logprobs, top_logprobs, vocabulary_size, max_concurrency, thinking_tokens, thinking
    )
    if reader.family is PIPELINE:
        warnings.warn(f"{reader.described} is read as text. {PIPELINE.advice}", stacklevel=2)
    return reader


def reader_of(model: Any) -> BaseReader:
    """Return a model as a reader of its own, and a reader as it is, with all that it has learned."""
    if model is None:
        raise MissingServiceError("there is no model", hint="pass llm=…")
    if not isinstance(model, Runnable) and isinstance(model, Reader):
        return model
    if isinstance(own := getattr(model, "reader", None), Reader):  # of a ChatReader
        return own
    return reader_from_model(model)


def judge_of(judge: Any) -> Any:
    """Return a model that judges in words as a reader, and an entailer of surerag, or None, as it is."""
    kinds: Any = Runnable | Reader | Entailer | None
    check_kind(kinds, "a model, or an entailer of surerag", entailer=judge, hint="pass entailer=…")
    return reader_of(judge) if isinstance(judge, Runnable) else judge


class _Context(NamedTuple):
    """What a request carries of its caller: the config, what that makes of the model, and the purpose."""

    config: RunnableConfig
    leaves: tuple[Leaf, ...]
    in_own_run: bool


class ModelReader(ClientReader):
    """A LangChain model behind the protocol of readers; made by :func:`reader_from_model`."""

    thinking_hint = "raise thinking_tokens=… of reader_from_model, or switch thinking off in the model"

    def __init__(
        self,
        model: Runnable[Any, Any],
        logprobs: bool | None,
        top_logprobs: int | None,
        vocabulary_size: int,
        max_concurrency: int,
        thinking_tokens: int,
        thinking: Literal[True, "unmarked"] | None = None,
    ) -> None:
        super().__init__(thinking=thinking)
        self.model = model
        models = tuple(leaves(model))
        self.family = family_of(models, logprobs)
        self.advice = self.family.advice
        self._bare, self._bound, self._configs = unbound(model)
        self._is_bare = isinstance(self._bare, BaseChatModel | BaseLLM)
        self._completes = any(isinstance(leaf.model, BaseLLM) for leaf in models)
        self._names = ", ".join(dict.fromkeys(leaf.class_name for leaf in models))
        self._name = "|".join(dict.fromkeys(leaf.name for leaf in models))
        traced = logprobs is not False and self.family.logprobs is not None
        # Of an LLM, only generate_prompt returns more than text, and what is around it has no such method.
        self._traced = traced and (self._is_bare or not self._completes)
        self._together = self.family.takes_n and self._is_bare
        self.vocabulary_size = vocabulary_size
        self.token_pieces = self.family.logprobs is not None
        most = [top_logprobs, *(leaf.setting("top_logprobs") for leaf in models), self.family.most_top]
        self._most_top = min(number for number in most if isinstance(number, int) and number > 0)
        self._max_concurrency = max_concurrency
        self.thinking_tokens = thinking_tokens

    @property
    def name(self) -> str:
        """Identity of the model: its class, the model it names, and where that is."""
        return self._name

    @property
    def described(self) -> str:
        """What was passed, for messages: the model's class, and what is around it."""
        outer = type(self.model).__name__
        return self._names if outer == self._names else f"{outer} of {self._names}"

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
    def max_tokens(self) -> int | None:
        """Length of an answer, at most, where nobody sets another: what the model was built or bound with."""
        return min(_limits(self._leaves(ensure_config())), default=None)

    def count_tokens(self, text: str) -> int:
        """Return the tokens of a text by the model's ``custom_get_token_ids``, else an estimate."""
        encode = getattr(self._bare, "custom_get_token_ids", None)
        return len(encode(text)) if callable(encode) else super().count_tokens(text)

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings by OpenAI's names as keywords of a call."""
        return self.family.keywords(settings, next(iter(leaves(self.model))).model)

    # What is sent.

    def _leaves(self, config: RunnableConfig) -> tuple[Leaf, ...]:
        return tuple(leaves(self.model, config.get("configurable")))

    def _request(self, prompt: Prompt, sampling: SamplingParams) -> Request:
        purpose = PURPOSE.get()
        config = request_config(purpose)
        context = _Context(config, self._leaves(config), purpose == "draft")
        limits = [*_limits(context.leaves), *([sampling.max_tokens] if sampling.max_tokens else [])]
        limited = replace(sampling, max_tokens=min(limits, default=None))
        return super()._request(prompt, limited)._replace(context=context)

    def _top(self, sampling: SamplingParams) -> int | None:
        if not self._traced or sampling.trace == "none":
            return None
        most = min(self._most_top, self.supported.cap.get("top_logprobs", self._most_top))
        return most if sampling.lists_alternatives else 0

    def _limit(self, items: int) -> int:
        most = ensure_config().get("max_concurrency") or self._max_concurrency
        return 1 if self.family is PIPELINE else min(most, self._max_concurrency)

    def _streams(self, sampling: SamplingParams) -> bool:
        # Completions have log-probabilities with whole answers alone.
        wanted = sampling.trace != "none" and not sampling.optional_trace
        return not (self._completes and self._traced and wanted)

    @property
    def _sends_limit(self) -> bool:
        texts = [leaf.model for leaf in leaves(self.model)] if self.family.classes == () else []
        return all(map(limit_name, texts))

    @property
    def _retries(self) -> int:
        return max((leaf.retries for leaf in leaves(self.model)), default=0)

    def _secrets(self) -> Iterator[str]:
        for leaf in leaves(self.model):
            yield from secrets_in(leaf.model)
            yield from secrets_in(leaf.bound)

    def _keywords(self, request: Request) -> Keywords:
        sampling, models = request.sampling, request.context.leaves
        # Without alternatives, llama.cpp sends no log-probabilities at all.
        top = None if request.top is None else max(request.top, 1)
        settings: Keywords = {}
        if sampling.max_tokens is not None:
            settings["max_tokens"] = sampling.max_tokens + request.budget
        if request.drawn or all(leaf.setting("temperature") is None for leaf in models):
            settings["temperature"] = sampling.temperature
        if request.drawn:
            settings["seed"] = sampling.seed
        optional = {
            # Answers that the user asks for besides would be paid, and mixed into a stream.
            "n": (sampling.n, sampling.n > 1 or any(leaf.setting("n") for leaf in models)),
            "stop": (list(sampling.stop), sampling.stop),
            "logprobs": (True, top is not None),
            "top_logprobs": (top, top),
            # A stream that counts its tokens is recognised where it repeats itself.
            "stream_options": ({"include_usage": True}, request.streamed and _may_count(models)),
        }
        return settings | {name: value for name, (value, needed) in optional.items() if needed}

    # What is called, and what comes back.

    async def _call(self, request: Request, keywords: Keywords, calls: Blocking) -> Sequence[ReplyPart]:
        cached = request.drawn and _is_cached(request.context.leaves)
        value = prompt_value(request.prompt, request.number if cached and not self._completes else None)
        own_keywords, config = self.keywords(keywords), request.context.config
        if self._is_bare:
            result = await self._generate_bare(value, config, own_keywords, calls, past_cache=cached)
            return self._parts_of(result, request)
        if cached and self._completes:
            raise ConfigurationError(
                f"{self.described} samples through LangChain's LLM cache, which answers all with one",
                hint="build the LLM with cache=False, or pass it without what is around it",
            )
        return [self._part(await calls.call(self.model, "invoke", value, config, **own_keywords), request)]

    async def _generate_bare(
        self,
        value: PromptValue,
        config: RunnableConfig,
        own_keywords: Keywords,
        calls: Blocking,
        *,
        past_cache: bool,
    ) -> LLMResult:
        """Ask the model below plain bindings, which returns every sample, with what is bound to it."""
        # A chat model's cache tells samples apart by their number.
        uncached = past_cache and self._completes
        owner = self._bare.model_copy(update={"cache": False}) if uncached else self._bare
        config = merge_configs(*self._configs, config)
        names = ("callbacks", "tags", "metadata", "run_name", "run_id")
        traced = {name: config.get(name) for name in names}
        result: LLMResult = await calls.call(
            owner, "generate_prompt", [value], **{**traced, **self._bound, **own_keywords}
        )
        return result

    def _parts_of(self, result: LLMResult, request: Request) -> list[ReplyPart]:
        counted = (result.llm_output or {}).get("token_usage")
        usage = usage_of(counted) if counted else None
        outputs = result.generations[0] if result.generations else []
        parts = [self._part(output, request) for output in outputs]
        return [part._replace(usage=usage or part.usage) for part in parts]

    async def _open(self, request: Request, keywords: Keywords, calls: Blocking) -> AsyncGenerator[ReplyPart]:
        """Yield what the model streams; with retries, a whole answer where the stream fails at once."""
        value, config, began = prompt_value(request.prompt), request.context.config, False
        chunks = calls.stream(self.model, "stream", value, config, **self.keywords(keywords))
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    began = True
                    yield self._part(chunk, request)
        except Exception as error:
            failure = self._failure(error)
            retried = any(leaf.retried for leaf in request.context.leaves)
            if began or not failure.retryable or not retried:
                raise
        else:
            if not self.family.has_finish:
                yield ReplyPart(finish="")
            return
        whole = {name: value for name, value in keywords.items() if name != "stream_options"}
        message = await calls.call(self.model, "invoke", value, config, **self.keywords(whole))
        part = self._part(message, request)
        yield part._replace(finish=part.finish or "")

    def _part(self, piece: Any, request: Request) -> ReplyPart:
        """Return a message, its chunk, an output of ``generate`` or a text as a part of an answer."""
        return reply_part(piece, self.family.logprobs if request.top is not None else None)

    def open_reading(self, request: Request, calls: Blocking) -> OpenReading:
        """Return an answer with nothing read yet; what may be thrown away is shown by a run of its own."""
        if not request.context.in_own_run:
            return super().open_reading(request, calls)
        prompt = prompt_value(request.prompt).to_string()
        run = AnswerRun(prompt, calls)
        return _ReadingInRun(lambda: self._start_reading(request, calls), self._retries, run)


class _ReadingInRun(OpenReading):
    """An answer whose text is shown by a run, should it be read to its end."""

    def __init__(
        self, start: Callable[[], tuple[Reading, AsyncGenerator[ReplyPart]]], retries: int, run: AnswerRun
    ) -> None:
        super().__init__(start, retries)
        self._run = run

    async def rest(self) -> Generation:
        if self._run.is_watched:
            return cast("Generation", [chunk async for chunk in self.chunks()][-1].generation)
        answer = await super().rest()
        if answer.text:
            await self._run.token(answer.text)
        await self._run.end()
        return answer

    async def chunks(self) -> AsyncGenerator[Chunk]:
        async with aclosing(super().chunks()) as chunks:
            async for chunk in chunks:
                if chunk.text:
                    await self._run.token(chunk.text)
                if chunk.generation is not None:
                    await self._run.end()
                yield chunk


def reply_part(piece: Any, *keys: str | None) -> ReplyPart:
    """Return a message, its chunk, an output of ``generate`` or a text as a part of an answer.

    Log-probabilities are read from the first of the keys that its metadata have.
    """
    message = piece.message if isinstance(piece, ChatGeneration) else piece
    metadata: Mapping[str, Any] = getattr(message, "generation_info", None) or {}
    thoughts, usage = "", None
    if isinstance(message, BaseMessage):
        metadata, usage = message.response_metadata, _usage_of(message)
        thoughts = str(message.additional_kwargs.get("reasoning_content") or "")
    listed = next((metadata[key] for key in keys if key and metadata.get(key)), None)
    return ReplyPart(
        message if isinstance(message, str) else str(message.text),
        thoughts,
        entries_of(listed),
        next((str(metadata[name]) for name in _REASONS if metadata.get(name)), None),
        usage,
    )


def _limits(models: Sequence[Leaf]) -> list[int]:
    return [leaf.limit for leaf in models if leaf.limit is not None]


def _may_count(models: Sequence[Leaf]) -> bool:
    """Tell whether models can count the tokens of a stream, and the user has not said otherwise."""
    return all(hasattr(one.model, "stream_usage") and one.setting("stream_usage") is None for one in models)


def _is_cached(models: Sequence[Leaf]) -> bool:
    """Tell whether LangChain may answer the same request from a cache."""
    return get_llm_cache() is not None or any(getattr(leaf.model, "cache", None) for leaf in models)


def _usage_of(message: BaseMessage) -> Usage | None:
    """Return the count of tokens that came with a message: the server's own, else LangChain's form of it."""
    if isinstance(counted := message.response_metadata.get("token_usage"), Mapping):
        return usage_of(counted)
    if not (counted := getattr(message, "usage_metadata", None)):
        return None
    written, read = counted.get("output_token_details") or {}, counted.get("input_token_details") or {}
    totals = {
        "prompt_tokens": counted.get("input_tokens"),
        "completion_tokens": counted.get("output_tokens"),
        "total_tokens": counted.get("total_tokens"),
    }
    details = {"completion_tokens_details": {"reasoning_tokens": written.get("reasoning")}}
    return usage_of({**totals, **details, "cached_tokens": read.get("cache_read")})


def prompt_value(prompt: Prompt, number: int | None = None) -> PromptValue:
    """Return a prompt as LangChain's; a sample's number is metadata, which caches see, not providers."""
    turns = [Message(role, replace_surrogates(content)) for role, content in as_messages(prompt)]
    if len(turns) == 1 and turns[0].role == "user" and number is None:
        return StringPromptValue(text=turns[0].content)
    messages = convert_to_messages([(role, content) for role, content in turns])
    if number is not None:
        messages[-1].response_metadata = {"sample": number}
    return ChatPromptValue(messages=messages)
