"""Asking a LangChain model through whatever the user wrapped around it.

Bindings, retries, fallbacks and configurable fields are LangChain's own runnables around a model. They
are kept: only the model at the bottom is replaced by a :class:`Leaf`, which asks it in the way that
keeps log-probabilities and every sample. So retries retry, fallbacks fall back, bound keywords and
callbacks arrive, and ``configurable`` reaches the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel, BaseLanguageModel, BaseLLM
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, Generation, LLMResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableSequence,
    RunnableWithFallbacks,
    ensure_config,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable

from langchain_surerag._connections import OpenedStreams
from langchain_surerag._holding import Hold
from langchain_surerag._memory import Memory
from langchain_surerag._overheard import OVERHEARD, Overheard
from langchain_surerag._passes import PASS, Pass, tagged
from langchain_surerag.dialects import Asked, Dialect, DialectOptions, LanguageModel, dialect_of
from surerag.errors import ConfigurationError
from surerag.messages import Generation as Answer
from surerag.messages import Prompt, SamplingParams, Usage, as_messages
from surerag.readers.hosted.parse import usage_of as counted


def prompt_value(prompt: Prompt) -> PromptValue:
    """Return a prompt as LangChain's: a text where it is one user turn, else a conversation."""
    turns = as_messages(prompt)
    if len(turns) == 1 and turns[0].role == "user":
        return StringPromptValue(text=turns[0].content)
    classes: dict[str, type[BaseMessage]] = {
        "system": SystemMessage,
        "user": HumanMessage,
        "assistant": AIMessage,
    }
    return ChatPromptValue(messages=[classes[role](content=content) for role, content in turns])


def text_of(prompt: Prompt) -> str:
    """Return a prompt as an LLM gets it: a conversation with its roles written out."""
    return prompt_value(prompt).to_string()


def usage_of(result: LLMResult) -> Usage:
    """Return the server's own count of tokens for one request; zeros where it gives none."""
    return counted({"usage": (result.llm_output or {}).get("token_usage")})


class Missing(NamedTuple):
    """A sample that a server left out: whose it is, and how to ask for it alone."""

    place: int
    prompt: Prompt
    asked: Asked


def missing(
    found: Sequence[Sequence[Answer]], prompts: Sequence[Prompt], sampling: SamplingParams
) -> list[Missing]:
    """Return the samples that are still to be asked for, each by a request of its own."""
    return [
        Missing(place, prompt, Asked(sampling, 1, number))
        for place, (prompt, answers) in enumerate(zip(prompts, found, strict=True))
        for number in range(len(answers), sampling.n)
    ]


def filled(
    found: Sequence[Sequence[Answer]],
    left_out: Sequence[Missing],
    more: Sequence[Sequence[Answer]],
    n: int,
) -> list[list[Answer]]:
    """Return ``n`` samples for each prompt: those found, then those asked for again."""
    samples = [list(answers[:n]) for answers in found]
    for item, answers in zip(left_out, more, strict=True):
        samples[item.place].append(answers[0])
    return samples


@dataclass(frozen=True, eq=False)
class Replied:
    """What a model answered, and the dialect that can read it."""

    dialect: Dialect
    result: LLMResult


@dataclass(frozen=True, eq=False)
class Piece:
    """One chunk of what a model streams, and the dialect that can read it."""

    dialect: Dialect
    chunk: Generation


@dataclass(eq=False)
class Call:
    """A request on its way: what it is for, and whether anybody still wants to hear its answer.

    Attributes:
        at: The pass it belongs to; of the program that makes it, where nothing else is said.
        hold: Keeps a draft from those who would show it, until it is settled whether it is the answer.
        stopped: Whether the rest is not wanted, so that the model's own run ends, and ends well.
    """

    at: Pass | None = field(default_factory=PASS.get)
    hold: Hold | None = None
    stopped: bool = False

    def __post_init__(self) -> None:
        self._chunks: deque[Generation] = deque()
        if self.at == "gate":
            self.hold = Hold()

    def seen_by(self, config: RunnableConfig | None) -> RunnableConfig:
        """Return a config whose run says what it is for, and is seen by those who may see it by now."""
        found = tagged(ensure_config(config), self.at)
        return {**found, "callbacks": self.over(found.get("callbacks"))}

    def over(self, callbacks: Callbacks) -> Callbacks:
        """Return callbacks without those who have to wait."""
        return callbacks if self.hold is None else self.hold.over(callbacks)

    def watched(self, model: LanguageModel) -> LanguageModel:
        """Return a copy of a model whose stream ends, as if it had come to its end, when this is stopped.

        A stream that is merely dropped would be noted as a run that failed.
        """
        original: Any = model

        def stream(*args: Any, **keywords: Any) -> Iterator[Any]:
            with closing(original._stream(*args, **keywords)) as chunks:
                for chunk in chunks:
                    self._chunks.append(chunk)
                    yield chunk
                    if self.stopped:
                        return

        async def astream(*args: Any, **keywords: Any) -> AsyncIterator[Any]:
            async with aclosing(original._astream(*args, **keywords)) as chunks:
                async for chunk in chunks:
                    self._chunks.append(chunk)
                    yield chunk
                    if self.stopped:
                        return

        self._chunks.clear()
        copy = model.model_copy(update={"callbacks": self.over(model.callbacks)})
        # Pydantic has no place for methods; an instance's own come before its class's.
        object.__setattr__(copy, "_stream", stream)
        object.__setattr__(copy, "_astream", astream)
        return copy

    def behind(self, streamed: Any) -> list[Generation]:
        """Return the chunks behind what a model's ``stream`` yielded: an LLM's yields their bare text."""
        found = list(self._chunks)
        self._chunks.clear()
        if not isinstance(streamed, str):
            return [ChatGeneration(message=streamed, generation_info=streamed.response_metadata)]
        return found or [Generation(text=streamed)]


class Setup(NamedTuple):
    """What the user says about a reader's models, and what the reader learns about them."""

    options: DialectOptions
    memory: Memory


def graft(model: object, setup: Setup) -> Runnable[PromptValue, Replied]:
    """Return the model's runnable with a leaf in the model's place.

    Raises:
        ConfigurationError: If there is no language model at the bottom.
    """
    if is_configurable(model):
        return Configured(model, setup)
    match model:
        case BaseLanguageModel():
            return Leaf(model, setup)
        case DynamicRunnable():
            return Configured(model, setup)
        case RunnableBindingBase():
            return cast("Runnable[PromptValue, Replied]", _with(model, bound=graft(model.bound, setup)))
        case RunnableWithFallbacks():
            first, *others = [graft(item, setup) for item in model.runnables]
            return cast("Runnable[PromptValue, Replied]", _with(model, runnable=first, fallbacks=others))
        case RunnableSequence() if leaves(model.first, setup.options):
            raise ConfigurationError(
                f"expected a chat model or an LLM, got a sequence that begins with {_named(model.first)}",
                hint="pass the model itself, not what with_structured_output or a parser makes of it: the "
                "parts write their prompts and read the answers themselves",
            )
        case _:
            raise ConfigurationError(
                f"expected a chat model or an LLM, got {type(model).__name__}",
                hint="pass the model itself, without prompt or output parser; bind, with_config, with_retry, "
                "with_fallbacks and configurable_fields may be around it",
            )


def leaves(model: object, options: DialectOptions) -> list[Dialect]:
    """Return the dialect of every model that may come to answer, keywords bound on the way included."""
    if is_configurable(model):
        return leaves(_settled(model, None), options)
    match model:
        case DynamicRunnable():
            alternatives = [
                item for item in getattr(model, "alternatives", {}).values() if isinstance(item, Runnable)
            ]
            return [dialect for item in (model.default, *alternatives) for dialect in leaves(item, options)]
        case RunnableBindingBase():
            return [dialect.bound_with(model.kwargs) for dialect in leaves(model.bound, options)]
        case RunnableWithFallbacks():
            return [dialect for item in model.runnables for dialect in leaves(item, options)]
        case BaseLanguageModel():
            return [dialect_of(model, options)]
        case _:
            return []


def _with(wrapper: Any, **changes: object) -> object:
    """Copy a wrapper around something else; ``model_copy`` leaves its type and all other settings alone."""
    return wrapper.model_copy(update=changes)


def is_configurable(model: object) -> bool:
    """Whether this is what ``init_chat_model`` returns for a model that the config decides."""
    return type(model).__name__ == "_ConfigurableModel" and isinstance(model, Runnable)


def _settled(model: Any, config: RunnableConfig | None) -> Runnable[Any, Any]:
    """Return the model that ``init_chat_model`` makes for a config, with what was declared on it.

    Raises:
        ConfigurationError: If none can be made.
    """
    try:
        return cast("Runnable[Any, Any]", model._model(config))
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigurationError(
            f"init_chat_model makes no model: {error}",
            hint='name a default, as in init_chat_model("openai:gpt-4.1", configurable_fields="any")',
        ) from error


def _named(model: Runnable[Any, Any]) -> str:
    while isinstance(model, RunnableBindingBase):
        model = model.bound
    return type(model).__name__


class Leaf(Runnable[PromptValue, Replied]):
    """One model, asked in its dialect. It opens no run of its own: the model does."""

    def __init__(self, model: LanguageModel, setup: Setup) -> None:
        self._dialect = dialect_of(model, setup.options)
        self._memory = setup.memory

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        """Name the model, as traces show it."""
        return self._dialect.model.get_name(suffix, name=name)

    def invoke(self, input: PromptValue, config: RunnableConfig | None = None, **kwargs: Any) -> Replied:
        """Ask for whole answers; ``asked`` says which, all other keywords are the user's."""
        call = kwargs.pop("call", None) or Call()
        traced = _traced(call.seen_by(config))
        while True:
            request = self._request(**kwargs)
            try:
                with request.dialect.asking():
                    result = request.model.generate_prompt([input], **traced, **request.arguments)
            except Exception as error:
                if self._memory.learn(request.dialect, kwargs["asked"], error):
                    continue
                raise
            return request.replied(result)

    async def ainvoke(
        self, input: PromptValue, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Replied:
        """Like :meth:`invoke`, without blocking."""
        call = kwargs.pop("call", None) or Call()
        traced = _traced(call.seen_by(config))
        while True:
            request = self._request(**kwargs)
            try:
                with request.dialect.asking():
                    result = await request.model.agenerate_prompt([input], **traced, **request.arguments)
            except Exception as error:
                if self._memory.learn(request.dialect, kwargs["asked"], error):
                    continue
                raise
            return request.replied(result)

    def stream(
        self, input: PromptValue, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """Ask for an answer in chunks; yields a :class:`Piece` for each."""
        call = kwargs.pop("call", None) or Call()
        while True:
            request = self._request(**kwargs)
            begun = False
            try:
                with closing(request.pieces(input, config, call)) as pieces:
                    for piece in pieces:
                        begun = True
                        yield piece
            except Exception as error:
                if not begun and self._memory.learn(request.dialect, kwargs["asked"], error):
                    continue
                raise
            return

    async def astream(
        self, input: PromptValue, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Like :meth:`stream`, without blocking."""
        call = kwargs.pop("call", None) or Call()
        while True:
            request = self._request(**kwargs)
            begun = False
            try:
                async with aclosing(request.apieces(input, config, call)) as pieces:
                    async for piece in pieces:
                        begun = True
                        yield piece
            except Exception as error:
                if not begun and self._memory.learn(request.dialect, kwargs["asked"], error):
                    continue
                raise
            return

    def _request(self, *, asked: Asked, **bound: Any) -> _Request:
        dialect = self._memory.informed(self._dialect.bound_with(bound))
        self._memory.require(dialect, asked)
        self._memory.tell(dialect, asked)
        return _Request(dialect, *dialect.prepared(asked))


class _Request(NamedTuple):
    dialect: Dialect
    model: LanguageModel
    arguments: dict[str, Any]
    opened: OpenedStreams
    overheard: Overheard | None

    def replied(self, result: LLMResult) -> Replied:
        """Return what was answered, with what LangChain left out of it."""
        for answer in result.generations[0][:1] if result.generations else []:
            self._complete(answer)
        return Replied(self.dialect, result)

    def pieces(self, input: PromptValue, config: RunnableConfig | None, call: Call) -> Generator[Piece]:
        """Yield what the model streams."""
        chunks = call.watched(self.model).stream(input, call.seen_by(config), **self.arguments)
        try:
            with self.dialect.asking(), closing(cast("Any", chunks)):
                for chunk in chunks:
                    for found in call.behind(chunk):
                        yield Piece(self.dialect, self._complete(found))
        finally:
            self.opened.close()

    async def apieces(
        self, input: PromptValue, config: RunnableConfig | None, call: Call
    ) -> AsyncGenerator[Piece]:
        """Like :meth:`pieces`, without blocking."""
        chunks = call.watched(self.model).astream(input, call.seen_by(config), **self.arguments)
        try:
            with self.dialect.asking():
                async with aclosing(cast("Any", chunks)):
                    async for chunk in chunks:
                        for found in call.behind(chunk):
                            yield Piece(self.dialect, self._complete(found))
        finally:
            await self.opened.aclose()

    def _complete(self, answer: Generation) -> Generation:
        """Put back what LangChain left out."""
        if self.overheard is not None and (entries := self.overheard.take()):
            answer.generation_info = {**(answer.generation_info or {}), OVERHEARD: {"content": entries}}
        return answer


class Configured(Runnable[PromptValue, Replied]):
    """A model whose fields or identity the caller's config decides, at each call.

    It was declared by ``configurable_fields`` or ``configurable_alternatives``, or by ``init_chat_model``.
    """

    def __init__(self, model: Any, setup: Setup) -> None:
        self._model = model
        self._setup = setup
        graft(_settled(model, None) if is_configurable(model) else model.default, setup)

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        """Name the model, as traces show it."""
        return str(self._model.get_name(suffix, name=name))

    def _settled(
        self, config: RunnableConfig | None
    ) -> tuple[Runnable[PromptValue, Replied], RunnableConfig]:
        settled = ensure_config(config)
        if is_configurable(self._model):
            return graft(_settled(self._model, settled), self._setup), settled
        model, settled = self._model.prepare(settled)
        return graft(model, self._setup), settled

    def invoke(self, input: PromptValue, config: RunnableConfig | None = None, **kwargs: Any) -> Replied:
        """Ask the model that the config names."""
        model, config = self._settled(config)
        return model.invoke(input, config, **kwargs)

    async def ainvoke(
        self, input: PromptValue, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Replied:
        """Like :meth:`invoke`, without blocking."""
        model, config = self._settled(config)
        return await model.ainvoke(input, config, **kwargs)

    def stream(
        self, input: PromptValue, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """Stream from the model that the config names."""
        model, config = self._settled(config)
        yield from model.stream(input, config, **kwargs)

    async def astream(
        self, input: PromptValue, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Like :meth:`stream`, without blocking."""
        model, config = self._settled(config)
        async with aclosing(cast("Any", model.astream(input, config, **kwargs))) as pieces:
            async for piece in pieces:
                yield piece


def _traced(config: RunnableConfig) -> dict[str, Any]:
    """Return the part of a config that ``generate_prompt`` takes, as a model's own ``invoke`` does."""
    return {
        "callbacks": config.get("callbacks"),
        "tags": config.get("tags"),
        "metadata": config.get("metadata"),
        "run_name": config.get("run_name"),
        "run_id": config.get("run_id"),
    }


def can_stream(model: LanguageModel) -> bool:
    """Whether a model's ``stream`` yields more than one chunk."""
    if isinstance(model, BaseChatModel):
        off = model.disable_streaming is True or (
            "streaming" in model.model_fields_set and getattr(model, "streaming", None) is False
        )
        implemented = type(model)._stream is not BaseChatModel._stream
        return implemented and not off
    return isinstance(model, BaseLLM) and type(model)._stream is not BaseLLM._stream
