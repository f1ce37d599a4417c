"""Requests to a user's OpenAI-compatible LLM, made through its own methods, and streams to hang up.

So its callbacks, retries and rate limit stay in force. What a sampling asks for is set on a copy of
the LLM, whose constructor's ``max_tokens``, ``logprobs`` and ``additional_kwargs`` would otherwise
override what is passed with a call.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

from llama_index.core.llms import LLM

from llama_index_surerag.prompts import messages_for, text_for
from surerag.errors import CapabilityError
from surerag.readers.openai.limits import Limits, abound, bound
from surerag.readers.openai.loops import client_of_this_loop
from surerag.types import Prompt, Sampling

LIMITS = Limits()
"""What a server may take for one answer: the LLM has no setting for it."""


class Line(NamedTuple):
    """A sync stream of an LLM's responses, and the client that can end it."""

    stream: Any
    client: EndableClient

    def hang_up(self) -> None:
        """End the stream; what comes after counts for nothing, errors included."""
        self.client.ended = True
        with suppress(Exception):
            for _ in self.stream:
                pass


class AsyncLine(NamedTuple):
    """An async stream of an LLM's responses, and the client that can end it."""

    stream: Any
    client: EndableAsyncClient

    async def hang_up(self) -> None:
        """End the stream; what comes after counts for nothing, errors included."""
        self.client.ended = True
        with suppress(Exception):
            async for _ in self.stream:
                pass


class EndableClient:
    """Stands in for the SDK's sync client during one request.

    Args:
        client: The SDK's client.
    """

    def __init__(self, client: Any) -> None:
        self.ended = False
        self.completions = SimpleNamespace(create=self._of(client.completions))
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._of(client.chat.completions)))

    def _of(self, resource: Any) -> Any:
        def create(**body: Any) -> Any:
            if not body.get("stream"):
                with resource.with_streaming_response.create(**body) as response:
                    bound(response.http_response, LIMITS)
                    return response.parse()
            # An LLM sends its request only when its stream is read; that may be in order to end it.
            return iter(()) if self.ended else self._read(resource.create(**body))

        return create

    def _read(self, pieces: Any) -> Iterator[Any]:
        bound(pieces.response, LIMITS)
        try:
            for piece in pieces:
                yield piece
                if self.ended:
                    return
        finally:
            pieces.close()


class EndableAsyncClient:
    """Stands in for the SDK's async client during one request.

    Args:
        client: The SDK's client.
    """

    def __init__(self, client: Any) -> None:
        self.ended = False
        self.completions = SimpleNamespace(create=self._of(client.completions))
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._of(client.chat.completions)))

    def _of(self, resource: Any) -> Any:
        async def create(**body: Any) -> Any:
            if not body.get("stream"):
                async with resource.with_streaming_response.create(**body) as response:
                    abound(response.http_response, LIMITS)
                    return await response.parse()
            return _nothing() if self.ended else self._read(await resource.create(**body))

        return create

    async def _read(self, pieces: Any) -> AsyncIterator[Any]:
        abound(pieces.response, LIMITS)
        try:
            async for piece in pieces:
                yield piece
                if self.ended:
                    return
        finally:
            await pieces.close()


async def _nothing() -> AsyncIterator[Any]:
    pieces: tuple[Any, ...] = ()
    for piece in pieces:
        yield piece


def lend(llm: LLM) -> EndableClient:
    """Lend a copy of an OpenAI-compatible LLM a client whose stream can be ended."""
    copy: Any = llm
    client = EndableClient(copy._get_client())
    copy._client, copy.reuse_client = client, True
    return client


def alend(llm: LLM) -> EndableAsyncClient:
    """Like :func:`lend`, for its async methods."""
    copy: Any = llm
    client = EndableAsyncClient(copy._get_aclient())
    copy._aclient, copy.reuse_client = client, True
    return client


_OURS = frozenset(
    {"n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed"}
    | {"logprobs", "top_logprobs", "stream"}
)
"""Fields of a request that a sampling decides, whatever ``additional_kwargs`` say."""


class Requests:
    """What a reader asks of one LLM.

    An async client's connections belong to an event loop, so each loop gets a client of its own.

    Args:
        llm: An ``OpenAI`` or a subclass.
        top_logprobs: Likeliest tokens to list at each step.
    """

    def __init__(self, llm: LLM, top_logprobs: int) -> None:
        self._base: Any = llm.model_copy()
        self._top_logprobs = top_logprobs
        self._lock = threading.Lock()

    @property
    def chat(self) -> bool:
        """Whether the LLM speaks the chat format."""
        return bool(self._base.metadata.is_chat_model)

    def ask(self, prompt: Prompt, sampling: Sampling) -> Any:
        """Return the raw response, with as many choices as the server cares to give."""
        llm, options = self._view(sampling), _options(sampling)
        lend(llm)
        if self.chat:
            return llm.chat(messages_for(llm, prompt), **options).raw
        return llm.complete(text_for(llm, prompt), formatted=True, **options).raw

    async def aask(self, prompt: Prompt, sampling: Sampling) -> Any:
        """Like ``ask``."""
        llm, options = self._aview(sampling), _options(sampling)
        alend(llm)
        if self.chat:
            return (await llm.achat(messages_for(llm, prompt), **options)).raw
        return (await llm.acomplete(text_for(llm, prompt), formatted=True, **options)).raw

    def open(self, prompt: Prompt, sampling: Sampling) -> Line:
        """Open a stream of LlamaIndex responses, each with a raw chunk."""
        llm, options = self._view(sampling), _options(sampling) | self._with_usage()
        client = lend(llm)
        if self.chat:
            return Line(llm.stream_chat(messages_for(llm, prompt), **options), client)
        return Line(llm.stream_complete(text_for(llm, prompt), formatted=True, **options), client)

    async def aopen(self, prompt: Prompt, sampling: Sampling) -> AsyncLine:
        """Like ``open``."""
        llm, options = self._aview(sampling), _options(sampling) | self._with_usage()
        client = alend(llm)
        if self.chat:
            return AsyncLine(await llm.astream_chat(messages_for(llm, prompt), **options), client)
        return AsyncLine(await llm.astream_complete(text_for(llm, prompt), formatted=True, **options), client)

    def _with_usage(self) -> dict[str, Any]:
        return self._base.additional_kwargs.get("stream_options") or {
            "stream_options": {"include_usage": True}
        }

    def _view(self, sampling: Sampling) -> Any:
        if self._base.reuse_client:
            with self._lock:
                self._base._get_client()
        return self._with(sampling)

    def _aview(self, sampling: Sampling) -> Any:
        llm = self._with(sampling)
        if llm.reuse_client:
            with self._lock:
                client = self._base._get_aclient()
            llm._aclient = client_of_this_loop(client)
        return llm

    def _with(self, sampling: Sampling) -> Any:
        kept = {name: value for name, value in self._base.additional_kwargs.items() if name not in _OURS}
        return self._base.model_copy(
            update={
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "logprobs": True,
                "top_logprobs": self._top_logprobs,
                "additional_kwargs": kept,
            }
        )


def _options(sampling: Sampling) -> dict[str, Any]:
    if sampling.top_k is not None:
        raise CapabilityError(
            "an OpenAI-compatible LLM takes no top_k",
            hint="leave top_k out, or set it in the LLM's additional_kwargs",
        )
    options: dict[str, Any] = {}
    if sampling.temperature > 0:
        # Greedy decoding needs neither, and some servers refuse them.
        options |= {"seed": sampling.seed, "top_p": sampling.top_p}
    if sampling.n > 1:
        options["n"] = sampling.n
    if sampling.stop:
        options["stop"] = list(sampling.stop)
    return options
