"""A reader of surerag that calls a LangChain model together with its wrappers, such as retries."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
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
    BegunStream,
    Blocking,
    Capabilities,
    ClientReader,
    Keywords,
    Reader,
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
    """Make a reader of surerag from a chat model or an LLM; bindings, retries and fallbacks are kept.

    ChatOpenAI and similar classes (chat completions), ChatOllama and ChatGoogleGenerativeAI return
    log-probabilities, from which the reader computes an interval for each entropy. OpenAI (completions)
    returns log-probabilities only for whole answers, not for streams. All other models, including
    HuggingFacePipeline and ChatHuggingFace, return only text. With several models (fallbacks, alternatives),
    the reader has the capabilities that all these models share.

    If the model, a binding or the config sets a maximum length or a temperature, the reader keeps this
    setting; only samples are drawn at the method's own temperature. If the model rejects a setting that the
    method does not need, the reader stops sending this setting. Samples bypass LangChain's LLM cache, which
    would return the same answer for every sample.

    Args:
        model: The model, without prompt or output parser.
        logprobs: True if the model takes OpenAI's keywords and returns OpenAI's metadata; False to use only
            the model's text; None decides by the model's class.
        top_logprobs: Maximum number of alternatives to request for each token; by default the model's own
            setting, or else the largest number that its API allows.
        vocabulary_size: Number of tokens in the model's vocabulary, for the upper bound of entropies.
        max_concurrency: Maximum number of simultaneous requests of one call; a smaller number in the caller's
            config takes precedence.
        thinking_tokens: Tokens that a model may spend on thoughts, in addition to the tokens of the answer.
            The reader allows these tokens as soon as a reply of the model has contained thoughts.
        thinking: True to allow ``thinking_tokens`` from the first request on; ``"unmarked"`` does the same
            for a model that marks the end of its thoughts, but not their beginning.

    Warns:
        UserWarning: If the model is a Hugging Face pipeline, because LangChain returns only its text.

    Raises:
        ConfigurationError: If ``model`` contains no language model, or a setting is out of bounds.
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
        warnings.warn(f"{reader.described} gives only text. {PIPELINE.advice}", stacklevel=2)
    return reader


def reader_of(model: Any) -> BaseReader:
    """Return a reader of surerag for a LangChain model; return a reader unchanged."""
    if model is None:
        raise MissingServiceError("there is no model", hint="pass llm=…")
    if not isinstance(model, Runnable) and isinstance(model, Reader):
        return model
    if isinstance(own := getattr(model, "reader", None), Reader):  # a ChatReader has a reader of its own
        return own
    return reader_from_model(model)


def judge_of(judge: Any) -> Any:
    """Return a reader for a LangChain model; return an entailer of surerag, a reader or None unchanged."""
    kinds: Any = Runnable | Reader | Entailer | None
    check_kind(kinds, "a model, or an entailer of surerag", entailer=judge, hint="pass entailer=…")
    return reader_of(judge) if isinstance(judge, Runnable) else judge


class _Context(NamedTuple):
    config: RunnableConfig
    leaves: tuple[Leaf, ...]
    is_draft: bool


class ModelReader(ClientReader):
    """A LangChain model as a reader of surerag, made by :func:`reader_from_model`."""

    thinking_hint = "increase thinking_tokens=… of reader_from_model, or switch thinking off in the model"

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
        # For an LLM, only generate_prompt returns more than text, and wrappers do not have this method.
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
        """Identity of the model: its class, the model's name, and the host."""
        return self._name

    @property
    def described(self) -> str:
        """Description of the model for errors: its class, and the class of the wrapper around it."""
        outer = type(self.model).__name__
        return self._names if outer == self._names else f"{outer} of {self._names}"

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the model; for several models, the capabilities that all of them have."""
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
        """The smallest limit that the user set for an answer's length, in tokens; None if there is none."""
        return min(_limits(self._leaves(ensure_config())), default=None)

    def count_tokens(self, text: str) -> int:
        """Return a text's number of tokens by the model's ``custom_get_token_ids``, or else an estimate."""
        encode = getattr(self._bare, "custom_get_token_ids", None)
        return len(encode(text)) if callable(encode) else super().count_tokens(text)

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Convert settings under OpenAI's names to keyword arguments of a model call."""
        return self.family.keywords(settings, next(iter(leaves(self.model))).model)

    # Requests.

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
        most = min(self._most_top, self.learned.cap.get("top_logprobs", self._most_top))
        return most if sampling.lists_alternatives else 0

    def _limit(self, items: int) -> int:
        most = ensure_config().get("max_concurrency") or self._max_concurrency
        return 1 if self.family is PIPELINE else min(most, self._max_concurrency)

    def _streams(self, sampling: SamplingParams) -> bool:
        # Completions return log-probabilities only with whole answers, not in streams.
        needs_logprobs = sampling.trace != "none" and not sampling.optional_trace
        return not (self._completes and self._traced and needs_logprobs)

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
            # Overrides a user's n > 1: further answers would cost tokens and mix into a stream.
            "n": (sampling.n, sampling.n > 1 or any(leaf.setting("n") for leaf in models)),
            "stop": (list(sampling.stop), sampling.stop),
            "logprobs": (True, top is not None),
            "top_logprobs": (top, top),
            # With the server's count of tokens we can detect a stream that sends each piece twice.
            "stream_options": ({"include_usage": True}, request.streamed and _may_count(models)),
        }
        return settings | {name: value for name, (value, needed) in optional.items() if needed}

    # Calls and replies.

    async def _call(self, request: Request, keywords: Keywords, calls: Blocking) -> Sequence[ReplyPart]:
        cached = request.drawn and _is_cached(request.context.leaves)
        value = prompt_value(request.prompt, request.number if cached and not self._completes else None)
        own_keywords, config = self.keywords(keywords), request.context.config
        if self._is_bare:
            result = await self._generate_bare(value, config, own_keywords, calls, past_cache=cached)
            return self._parts_of(result, request)
        if cached and self._completes:
            raise ConfigurationError(
                f"{self.described} samples through LangChain's LLM cache, which repeats the first answer",
                hint="build the LLM with cache=False, or pass the LLM without the runnables around it",
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
        """Call the bare model with the keywords that its bindings add, to get all samples in one request.

        If ``past_cache`` is true, LangChain's cache is not used.
        """
        # A chat prompt has the sample's number, so the cache keeps samples apart; a text prompt has none.
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
        """Yield the parts of a streamed answer.

        If the stream fails before its first part, and a wrapper retries the model, request a whole answer.
        """
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
        return reply_part(piece, self.family.logprobs if request.top is not None else None)

    def open_stream(self, request: Request, calls: Blocking) -> BegunStream:
        """Return a stream; the generation starts when the first piece is read."""
        return (_Draft if request.context.is_draft else BegunStream)(self, request, calls)


class _Draft(BegunStream):
    """An answer that may be dropped; if it is completed, it is reported to LangChain as a separate run."""

    def __init__(self, reader: ClientReader, request: Request, calls: Blocking) -> None:
        super().__init__(reader, request, calls)
        self._run = AnswerRun(prompt_value(request.prompt).to_string(), calls)

    async def _rest(self) -> Generation:
        if self._run.is_watched:
            return cast("Generation", [chunk async for chunk in self._chunks()][-1].generation)
        answer = await super()._rest()
        if answer.text:
            await self._run.token(answer.text)
        await self._run.end()
        return answer

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        async with aclosing(super()._chunks()) as chunks:
            async for chunk in chunks:
                if chunk.text:
                    await self._run.token(chunk.text)
                if chunk.generation is not None:
                    await self._run.end()
                yield chunk


def reply_part(piece: Any, *keys: str | None) -> ReplyPart:
    """Convert a message, a message chunk, a generation or a text to a ReplyPart.

    Log-probabilities are taken from the first of ``keys`` that the metadata contain.
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
    return all(hasattr(one.model, "stream_usage") and one.setting("stream_usage") is None for one in models)


def _is_cached(models: Sequence[Leaf]) -> bool:
    return get_llm_cache() is not None or any(getattr(leaf.model, "cache", None) for leaf in models)


def _usage_of(message: BaseMessage) -> Usage | None:
    """Return the token counts of a message as the server sent them, or else as LangChain converted them."""
    if isinstance(counted := message.response_metadata.get("token_usage"), Mapping):
        return usage_of(counted)
    if not (counted := getattr(message, "usage_metadata", None)):
        return None
    output, prompt = counted.get("output_token_details") or {}, counted.get("input_token_details") or {}
    totals = {
        "prompt_tokens": counted.get("input_tokens"),
        "completion_tokens": counted.get("output_tokens"),
        "total_tokens": counted.get("total_tokens"),
    }
    details = {"completion_tokens_details": {"reasoning_tokens": output.get("reasoning")}}
    return usage_of({**totals, **details, "cached_tokens": prompt.get("cache_read")})


def prompt_value(prompt: Prompt, number: int | None = None) -> PromptValue:
    """Convert a prompt to LangChain's form.

    ``number`` is the number of a sample. It is put into the metadata, so that a cache stores each sample
    separately.
    """
    turns = [Message(role, replace_surrogates(content)) for role, content in as_messages(prompt)]
    if len(turns) == 1 and turns[0].role == "user" and number is None:
        return StringPromptValue(text=turns[0].content)
    messages = convert_to_messages([(role, content) for role, content in turns])
    if number is not None:
        messages[-1].response_metadata = {"sample": number}
    return ChatPromptValue(messages=messages)
