"""Requests to a user's OpenAI-compatible LLM, made through its own methods."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llama_index.core.llms import LLM

from llama_index_surerag._lent import Asking, AsyncLine, Body, LentAsyncClient, LentClient, Line
from llama_index_surerag._manners import Manners
from llama_index_surerag._settings import asked
from llama_index_surerag.prompts import messages_for, text_for
from surerag.messages import Prompt, SamplingParams
from surerag.readers.hosted.limits import Limits
from surerag.readers.hosted.loops import client_of_this_loop
from surerag.readers.hosted.parse import Json

_LIMITS = ("max_completion_tokens", "max_tokens")
"""What a limit on new tokens is called: the newer name first, which an LLM uses where it knows it must."""

_TAKES = frozenset(
    {"n", "max_tokens", "temperature", "top_p", "stop", "seed", "logprobs", "top_logprobs"}
    | {"stream_options"}
)

_OURS = _TAKES | {*_LIMITS}
"""Fields of a request that a method has a say in, whatever the LLM was built with."""


class OpenAIRequests:
    """What a reader asks of one ``OpenAI`` or a subclass.

    An async client's connections belong to an event loop, so each loop gets a client of its own.

    Args:
        llm: The LLM.
        manners: What it takes.
        top_logprobs: Likeliest tokens to list at each step, where entropies are needed.
        limits: What its service may take for one answer.
    """

    streams = native_async = tells_end = True

    def __init__(self, llm: LLM, manners: Manners, top_logprobs: int, limits: Limits) -> None:
        self._base: Any = llm.model_copy()
        self._manners = manners
        self._top_logprobs = top_logprobs
        self._limits = limits
        self._lock = threading.Lock()

    @property
    def top_logprobs(self) -> int:
        """Likeliest tokens that the server lists, as far as is known."""
        return self._manners.most("top_logprobs" if self.chat else "logprobs", self._top_logprobs)

    @property
    def several(self) -> bool:
        """Whether one request can bring several answers, as far as is known."""
        return self._manners.takes("n") and self._manners.most("n", 2) > 1

    @property
    def chat(self) -> bool:
        """Whether the LLM speaks the chat format."""
        return bool(self._base.metadata.is_chat_model)

    def ask(self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int) -> Json:
        """Return an answer with as many choices as the server cares to give."""
        llm = self._view(sampling)
        self._lend(llm, sampling, n, seed)
        if self.chat:
            return plain(llm.chat(messages_for(llm, prompt)).raw)
        return plain(llm.complete(text_for(llm, prompt), formatted=True).raw)

    async def aask(self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int) -> Json:
        """Like ``ask``."""
        llm = self._aview(sampling)
        self._alend(llm, sampling, n, seed)
        if self.chat:
            return plain((await llm.achat(messages_for(llm, prompt))).raw)
        return plain((await llm.acomplete(text_for(llm, prompt), formatted=True)).raw)

    def open(self, prompt: Prompt, sampling: SamplingParams) -> Line:
        """Open a stream of LlamaIndex responses, each of which :meth:`piece` reads."""
        llm = self._view(sampling)
        client = self._lend(llm, sampling, 1, sampling.seed)
        if self.chat:
            return Line(llm.stream_chat(messages_for(llm, prompt)), client)
        return Line(llm.stream_complete(text_for(llm, prompt), formatted=True), client)

    async def aopen(self, prompt: Prompt, sampling: SamplingParams) -> AsyncLine:
        """Like ``open``."""
        llm = self._aview(sampling)
        client = self._alend(llm, sampling, 1, sampling.seed)
        if self.chat:
            return AsyncLine(await llm.astream_chat(messages_for(llm, prompt)), client)
        return AsyncLine(await llm.astream_complete(text_for(llm, prompt), formatted=True), client)

    def piece(self, response: Any) -> Json:
        """Return a streamed response as the server sent it."""
        return plain(response.raw)

    def _body(self, body: dict[str, Any], sampling: SamplingParams, n: int, seed: int) -> Body:
        """Return what is sent in place of what the LLM would send."""
        built = {name: body[name] for name in _OURS if body.get(name) is not None}
        limit = next((name for name in _LIMITS if name in built), "max_tokens")
        if limit in built:
            built["max_tokens"] = built[limit]
        if built.get("temperature") == class_temperature(self._base):
            # Not the user's choice, but the class's.
            built.pop("temperature", None)
        found = asked(
            replace(sampling, seed=seed),
            built,
            takes=_TAKES,
            top_logprobs=self._top_logprobs,
            n=n,
            thinks=self._manners.thinks,
        )
        self._manners.tell(found.overridden)
        parameters = dict(found.parameters)
        if "max_tokens" in parameters:
            parameters[limit] = parameters.pop("max_tokens")
        if not self.chat and parameters.pop("logprobs", None):
            # Of 0 alternatives, some servers make no log-probabilities at all.
            parameters["logprobs"] = parameters.pop("top_logprobs", 1)
        if body.get("stream"):
            parameters["stream_options"] = body.get("stream_options") or {"include_usage": True}
        return Body({name: value for name, value in body.items() if name not in _OURS}, parameters)

    def _asking(self, sampling: SamplingParams, n: int, seed: int) -> Asking:
        return Asking(self._manners, sampling, lambda body: self._body(body, sampling, n, seed), self._limits)

    def _lend(self, llm: Any, sampling: SamplingParams, n: int, seed: int) -> LentClient:
        client = LentClient(llm._get_client(), self._asking(sampling, n, seed))
        llm._client, llm.reuse_client = client, True
        return client

    def _alend(self, llm: Any, sampling: SamplingParams, n: int, seed: int) -> LentAsyncClient:
        client = LentAsyncClient(llm._get_aclient(), self._asking(sampling, n, seed))
        llm._aclient, llm.reuse_client = client, True
        return client

    def _view(self, sampling: SamplingParams) -> Any:
        if self._base.reuse_client:
            with self._lock:
                # Made first, so that it is kept: the copy's own client would be made anew each time.
                self._base._get_client()
        return self._copy(sampling)

    def _aview(self, sampling: SamplingParams) -> Any:
        llm = self._copy(sampling)
        if llm.reuse_client:
            with self._lock:
                client = self._base._get_aclient()
            llm._aclient = client_of_this_loop(client)
        return llm

    def _copy(self, sampling: SamplingParams) -> Any:
        if self.chat or self._base.max_tokens is not None:
            return self._base.model_copy()
        # Without a limit, an LLM of the completions API counts the prompt's tokens to compute one.
        return self._base.model_copy(update={"max_tokens": sampling.max_tokens})


def plain(raw: Any) -> Json:
    """Return what the server sent as a mapping."""
    given: Json = raw if isinstance(raw, Mapping) else raw.model_dump(warnings=False)
    return given


def class_temperature(llm: Any) -> Any:
    """Return the temperature that an LLM has where its user chose none."""
    field = type(llm).model_fields.get("temperature")
    return None if field is None else field.default
