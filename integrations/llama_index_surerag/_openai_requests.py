"""Requests to a user's OpenAI-compatible LLM, made through its own methods.

So its callbacks, retries and rate limit stay in force. What a sampling asks for is set on a copy of
the LLM, whose constructor's ``max_tokens``, ``logprobs`` and ``additional_kwargs`` would otherwise
override what is passed with a call.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from llama_index.core.llms import LLM

from llama_index_surerag._fanout import PerLoop
from llama_index_surerag._hangup import EndableAsyncClient, EndableClient
from llama_index_surerag._prompting import messages_for, text_for
from surerag.errors import CapabilityError
from surerag.types import Prompt, Sampling

_OURS = frozenset(
    {"n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed"}
    | {"logprobs", "top_logprobs", "stream"}
)
"""Fields of a request that a sampling decides, whatever ``additional_kwargs`` say."""


class Line(NamedTuple):
    """An open stream, and the client that can end it."""

    stream: Any
    client: Any


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
        self._aclients: PerLoop[Any] = PerLoop(lambda: _client_of_this_loop(self._base))

    @property
    def chat(self) -> bool:
        """Whether the LLM speaks the chat format."""
        return bool(self._base.metadata.is_chat_model)

    def ask(self, prompt: Prompt, sampling: Sampling) -> Any:
        """Return the raw response, with as many choices as the server cares to give."""
        llm, options = self._view(sampling), _options(sampling)
        if self.chat:
            return llm.chat(messages_for(llm, prompt), **options).raw
        return llm.complete(text_for(llm, prompt), formatted=True, **options).raw

    async def aask(self, prompt: Prompt, sampling: Sampling) -> Any:
        """Like ``ask``."""
        llm, options = self._aview(sampling), _options(sampling)
        if self.chat:
            return (await llm.achat(messages_for(llm, prompt), **options)).raw
        return (await llm.acomplete(text_for(llm, prompt), formatted=True, **options)).raw

    def open(self, prompt: Prompt, sampling: Sampling) -> Line:
        """Open a stream of LlamaIndex responses, each with a raw chunk."""
        llm, options = self._view(sampling), _options(sampling) | self._with_usage()
        client = EndableClient(llm._get_client())
        llm._client, llm.reuse_client = client, True
        if self.chat:
            return Line(llm.stream_chat(messages_for(llm, prompt), **options), client)
        return Line(llm.stream_complete(text_for(llm, prompt), formatted=True, **options), client)

    async def aopen(self, prompt: Prompt, sampling: Sampling) -> Line:
        """Like ``open``."""
        llm, options = self._aview(sampling), _options(sampling) | self._with_usage()
        client = EndableAsyncClient(llm._get_aclient())
        llm._aclient, llm.reuse_client = client, True
        if self.chat:
            return Line(await llm.astream_chat(messages_for(llm, prompt), **options), client)
        return Line(await llm.astream_complete(text_for(llm, prompt), formatted=True, **options), client)

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
            llm._aclient = self._aclients.get()
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


def _client_of_this_loop(base: Any) -> Any:
    """Return an async client with the LLM's settings and connections of its own.

    A client that the user built over an HTTP client of their own is used as it is.
    """
    if base._aclient is None:
        return base.model_copy()._get_aclient()
    http = base._aclient._client
    if type(http).__name__ != "AsyncHttpxClientWrapper":
        return base._aclient
    return base._aclient.copy(http_client=type(http)(base_url=http.base_url, timeout=http.timeout))
