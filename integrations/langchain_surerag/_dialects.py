"""Dialects: how each kind of LangChain model is asked for log-probabilities, and its open streams closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple
from urllib.parse import urlsplit

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.outputs import ChatGeneration, Generation

from surerag.errors import CapabilityError, LogprobsError, ServiceError, SureragError
from surerag.readers.openai.limits import Limits, abound, bound
from surerag.readers.openai.loops import client_of_this_loop
from surerag.readers.openai.parse import Wanted, token_count
from surerag.types import Sampling, Usage

LIMITS = Limits()
"""What a server may take for one answer: the models have no setting for it."""


class OpenedStreams:
    """Remembers the connections that a model opens, so that they can be closed when its stream is.

    LangChain's OpenAI LLM, unlike its chat models, leaves that to the garbage collector, and an answer
    that nobody reads any more goes on being generated until then.
    """

    def __init__(self) -> None:
        self._streams: list[Any] = []

    def watched(self, model: Any) -> dict[str, Any]:
        """Return the model's clients, watched, as fields for a copy of it.

        Their streams are remembered, and all their answers kept within limits.
        """
        kinds = {"client": _Client, "async_client": _AsyncClient}
        return {
            name: kind(getattr(model, name), self._streams)
            for name, kind in kinds.items()
            if hasattr(getattr(model, name, None), "with_streaming_response")
        }

    def close(self) -> None:
        """Close what was opened; again does nothing."""
        while self._streams:
            self._streams.pop().close()

    async def aclose(self) -> None:
        """Like :meth:`close`, for the async client."""
        while self._streams:
            await self._streams.pop().close()


class _Raw(NamedTuple):
    """A whole answer, in the form of the SDK's raw responses."""

    parsed: Any
    headers: Any
    http_response: Any

    def parse(self) -> Any:
        return self.parsed


class _Client:
    """Stands in for ``client.completions`` or ``client.chat.completions``."""

    def __init__(self, client: Any, streams: list[Any]) -> None:
        self._client = client
        self._streams = streams

    @property
    def with_raw_response(self) -> _RawClient:
        return _RawClient(self._client, self._streams)

    def create(self, **arguments: Any) -> Any:
        if not arguments.get("stream"):
            return self.with_raw_response.create(**arguments).parsed
        stream = self._client.create(**arguments)
        bound(stream.response, LIMITS)
        self._streams.append(stream)
        return stream


class _RawClient(_Client):
    def create(self, **arguments: Any) -> Any:
        if not arguments.get("stream"):
            with self._client.with_streaming_response.create(**arguments) as response:
                bound(response.http_response, LIMITS)
                return _Raw(response.parse(), response.headers, response.http_response)
        raw = self._client.with_raw_response.create(**arguments)
        bound(raw.http_response, LIMITS)
        self._streams.append(raw.http_response)
        return raw


class _AsyncClient:
    """Like the sync one; each event loop has connections of its own."""

    def __init__(self, client: Any, streams: list[Any]) -> None:
        self._client = client
        self._streams = streams

    @property
    def with_raw_response(self) -> _AsyncRawClient:
        return _AsyncRawClient(self._client, self._streams)

    async def create(self, **arguments: Any) -> Any:
        if not arguments.get("stream"):
            return (await self.with_raw_response.create(**arguments)).parsed
        stream = await self._here().create(**arguments)
        abound(stream.response, LIMITS)
        self._streams.append(stream)
        return stream

    def _here(self) -> Any:
        return type(self._client)(client_of_this_loop(self._client._client))


class _AsyncRawClient(_AsyncClient):
    async def create(self, **arguments: Any) -> Any:
        if not arguments.get("stream"):
            async with self._here().with_streaming_response.create(**arguments) as response:
                abound(response.http_response, LIMITS)
                return _Raw(await response.parse(), response.headers, response.http_response)
        raw = await self._here().with_raw_response.create(**arguments)
        abound(raw.http_response, LIMITS)
        self._streams.append(_AsyncResponse(raw.http_response))
        return raw


class _AsyncResponse(NamedTuple):
    response: Any

    async def close(self) -> None:
        await self.response.aclose()


LanguageModel = BaseLanguageModel[Any]
Scoring = Literal["echo", "probe"]
"""How it is settled that given text can be scored: the user knows, or the server is tried."""

CHAT_TOP_LOGPROBS = 20
COMPLETIONS_TOP_LOGPROBS = 5
"""The most that OpenAI lists a token; a model that was told another number keeps it."""


@dataclass(frozen=True)
class DialectOptions:
    """What the user says about a model; see :func:`~langchain_surerag.reader_from_model`."""

    logprobs: bool | None = None
    top_logprobs: int | None = None
    vocabulary_size: int = 300_000
    scoring: Scoring | None = None


@dataclass(frozen=True)
class Asked:
    """One request: ``n`` samples of one prompt, the first of them number ``first`` of all that are wanted."""

    sampling: Sampling
    n: int = 1
    first: int = 0
    echo: bool = False
    streamed: bool = False

    @property
    def sampled(self) -> bool:
        """Whether asking again may, and should, give something else."""
        return self.sampling.temperature > 0

    @property
    def seed(self) -> int:
        """A seed of its own for every sample that is asked for separately."""
        return self.sampling.seed + self.first


class Prepared(NamedTuple):
    """A model, the keywords to call it with, and the connections it opens, where it has to be watched."""

    model: LanguageModel
    arguments: dict[str, Any]
    opened: OpenedStreams


@dataclass(frozen=True, eq=False)
class Dialect(ABC):
    """How one model is asked and read.

    Attributes:
        model: The user's model.
        options: What the user said about it.
        bound: Keywords that the user bound to it.
    """

    model: LanguageModel
    options: DialectOptions
    bound: Mapping[str, Any] = field(default_factory=dict)
    logprobs: ClassVar[bool] = True
    scores: ClassVar[bool] = False
    fix: ClassVar[str] = ""

    def bound_with(self, keywords: Mapping[str, Any]) -> Dialect:
        """Return the same with further keywords bound; later ones win."""
        return replace(self, bound={**self.bound, **keywords}) if keywords else self

    def check(self) -> None:  # noqa: B027  # most dialects have nothing to refuse
        """Refuse a model that cannot answer in this dialect.

        Raises:
            CapabilityError: With the setting to change.
        """

    @abstractmethod
    def prepared(self, asked: Asked) -> Prepared:
        """Return the model, or a copy with other settings, and the keywords that ask for this."""

    def choice(self, answer: Generation) -> dict[str, Any]:
        """Return an answer, or a chunk of one, in the form in which OpenAI's API has it."""
        info = dict(answer.generation_info or {})
        if isinstance(answer, ChatGeneration):
            # LangChain moves a provider's marks into the message's metadata; some put them there themselves.
            info |= answer.message.response_metadata
        marks = {"logprobs": info.get("logprobs"), "finish_reason": info.get("finish_reason")}
        if isinstance(answer, ChatGeneration):
            return {"message": {"content": str(answer.message.text)}, **marks}
        return {"text": answer.text, **marks}

    def usage(self, answer: Generation) -> Usage:
        """Return what the model counted for one answer; zeros where it did not."""
        message = answer.message if isinstance(answer, ChatGeneration) else None
        counted = getattr(message, "usage_metadata", None) or {}
        return Usage(1, token_count(counted.get("input_tokens")), token_count(counted.get("output_tokens")))

    @property
    def top_logprobs(self) -> int:
        """Alternatives a token that are asked for."""
        return 0

    def wanted(self, *, traced: bool) -> Wanted:
        """Return what has to be there in an answer."""
        return Wanted(traced, self.top_logprobs, self.options.vocabulary_size)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Say in errors about log-probabilities whose they are, and what to change."""
        try:
            yield
        except LogprobsError as error:
            found = str(error).removesuffix(f". {error.hint[:1].upper()}{error.hint[1:]}.")
            raise LogprobsError(f"{type(self.model).__name__}: {found}", hint=self.fix) from error

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Give a name to what LangChain stumbles over in a server's answer.

        A provider's own errors pass: retries, fallbacks and callers tell them apart by their classes.
        """
        try:
            yield
        except SureragError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise ServiceError(
                f"{type(self.model).__name__} could not make or read its request: "
                f"{type(error).__name__}: {str(error)[:300]}",
                hint="look at what its server returns, and at the keywords bound to it",
            ) from error

    def _copied(self, asked: Asked, **changes: object) -> LanguageModel:
        """Copy the model only if something changes: copies of stateful fakes would go separate ways."""
        if asked.sampled and (self.model.cache or (self.model.cache is None and get_llm_cache() is not None)):
            changes["cache"] = False
        return self.model.model_copy(update=changes) if changes else self.model


class ChatDialect(Dialect):
    """Chat models over OpenAI's chat completions API, or with its keywords and metadata."""

    fix = (
        "use a model and a server that return them over the chat completions API (reasoning models do not), "
        "or a local model; logprobs=False makes a reader without them"
    )

    @property
    def top_logprobs(self) -> int:
        """What the user says, bound or built it with, else the most that OpenAI lists."""
        built = getattr(self.model, "top_logprobs", None)
        return _first_given(
            self.options.top_logprobs, self.bound.get("top_logprobs"), built, CHAT_TOP_LOGPROBS
        )

    def check(self) -> None:
        """Refuse the Responses API, which loses log-probabilities."""
        if getattr(self.model, "use_responses_api", None):
            name = type(self.model).__name__
            raise CapabilityError(
                f"{name} is set to the Responses API, which loses log-probabilities",
                hint=f"build it with {name}(…, use_responses_api=False)",
            )

    def prepared(self, asked: Asked) -> Prepared:
        """Ask for log-probabilities and, outside streams, for all samples at once."""
        arguments = {**self.bound, **_openai_arguments(asked), "logprobs": True}
        if self.top_logprobs:
            arguments["top_logprobs"] = self.top_logprobs
        if _is_a(self.model, "BaseChatOpenAI"):
            if asked.n > 1:
                # A listening callback handler would turn this into one stream, with the samples mixed up.
                arguments["stream"] = False
            if asked.streamed and getattr(self.model, "stream_usage", None) is None:
                # Undecided: LangChain then asks OpenAI alone for the count of tokens.
                arguments.setdefault("stream_usage", True)
            if extra := self._extra_body(asked):
                arguments["extra_body"] = extra
        # Left open, a bound keyword could still lead to the Responses API.
        undecided = getattr(self.model, "use_responses_api", False) is None
        changes: dict[str, object] = {"use_responses_api": False} if undecided else {}
        opened = OpenedStreams()
        if _is_a(self.model, "BaseChatOpenAI"):
            changes |= opened.watched(self.model)
        return Prepared(self._copied(asked, **changes), arguments, opened)

    def _extra_body(self, asked: Asked) -> dict[str, Any]:
        """Say what the SDK has no keyword for, and what ChatOpenAI renames for OpenAI alone."""
        extra = _extra_body(self, asked)
        base = getattr(self.model, "openai_api_base", None)
        if base and not (urlsplit(base).hostname or "").endswith("openai.com"):
            # Many servers know max_tokens alone; ChatOpenAI sends max_completion_tokens.
            extra["max_tokens"] = asked.sampling.max_tokens
        return extra


class CompletionsDialect(Dialect):
    """LLMs over OpenAI's completions API."""

    scores = True
    fix = "use a server that returns them for completions, or a local model; logprobs=False does without"

    @property
    def top_logprobs(self) -> int:
        """What the user says, bound or built it with, else the most that OpenAI lists."""
        built = getattr(self.model, "logprobs", None)
        return _first_given(
            self.options.top_logprobs, self.bound.get("logprobs"), built, COMPLETIONS_TOP_LOGPROBS
        )

    def prepared(self, asked: Asked) -> Prepared:
        """Ask for log-probabilities and all samples at once; or to echo the prompt with its own."""
        arguments = {**self.bound, **_openai_arguments(asked), "logprobs": self.top_logprobs}
        if asked.echo:
            arguments |= {"echo": True, "max_tokens": 1, "temperature": 0.0}
        if extra := _extra_body(self, asked):
            arguments["extra_body"] = extra
        opened = OpenedStreams()
        changes: dict[str, object] = opened.watched(self.model)
        if getattr(self.model, "streaming", False) and not asked.streamed:
            # A streaming LLM answers with one sample, however many are asked for.
            changes["streaming"] = False
        return Prepared(self._copied(asked, **changes), arguments, opened)


class TextDialect(Dialect):
    """Any other model: text in, text out."""

    logprobs = False
    fix = "use ChatOpenAI, OpenAI, HuggingFacePipeline, ChatHuggingFace, or a reader of surerag"

    def prepared(self, asked: Asked) -> Prepared:
        """Set what the model has fields for: keywords that a provider does not know would fail."""
        sampling = asked.sampling
        wanted = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            **dict.fromkeys(("max_tokens", "max_output_tokens", "num_predict"), sampling.max_tokens),
        }
        known = type(self.model).model_fields
        changes = {name: value for name, value in wanted.items() if name in known and value is not None}
        stop = {"stop": list(sampling.stop)} if sampling.stop else {}
        opened = OpenedStreams()
        if _is_a(self.model, "BaseOpenAI") or _is_a(self.model, "BaseChatOpenAI"):
            changes |= opened.watched(self.model)
        return Prepared(self._copied(asked, **changes), {**self.bound, **stop}, opened)


def dialect_of(model: LanguageModel, options: DialectOptions) -> Dialect:
    """Choose how to talk to a model, by its class and by what the user says about it."""
    if options.logprobs is False:
        return TextDialect(model, options)
    if isinstance(model, BaseChatModel):
        if options.logprobs or _is_a(model, "BaseChatOpenAI"):
            return ChatDialect(model, options)
    elif options.logprobs or _is_a(model, "BaseOpenAI"):
        return CompletionsDialect(model, options)
    return TextDialect(model, options)


def _is_a(model: object, name: str) -> bool:
    """Whether a class of this name is among a model's; its package need not be installed to ask."""
    return any(base.__name__ == name for base in type(model).__mro__)


def _openai_arguments(asked: Asked) -> dict[str, Any]:
    sampling = asked.sampling
    arguments: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "n": asked.n,
    }
    if asked.sampled:
        arguments["seed"] = asked.seed
    if sampling.stop:
        arguments["stop"] = list(sampling.stop)
    return arguments


def _extra_body(dialect: Dialect, asked: Asked) -> dict[str, Any]:
    extra = {**(getattr(dialect.model, "extra_body", None) or {}), **dialect.bound.get("extra_body", {})}
    if asked.sampling.top_k is not None:
        extra["top_k"] = asked.sampling.top_k
    return extra


def _first_given(*values: int | None) -> int:
    return next(value for value in values if value is not None)
