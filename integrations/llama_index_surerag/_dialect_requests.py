"""Requests to an LLM as its dialect says, and its answers in the form of OpenAI's chat API."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any

from llama_index.core.llms import LLM, CustomLLM

from llama_index_surerag._lent import AsyncLine, Line
from llama_index_surerag._manners import Manners
from llama_index_surerag._settings import asked
from llama_index_surerag.dialects import LLMAnswer, LLMDialect
from llama_index_surerag.prompts import messages_for, text_for
from surerag.messages import Prompt, SamplingParams
from surerag.readers.hosted.parse import Json
from surerag.readers.pieces import cut_at_stop

CallOptions = Callable[[SamplingParams], Mapping[str, Any]]
"""What to pass to the LLM with each call, for a sampling: ``{"temperature": sampling.temperature}``."""

_in_process = threading.Lock()
"""Models in this process that answer one request at a time, and may be wrapped by more than one LLM."""


class DialectRequests:
    """What a reader asks of one LLM whose dialect is known.

    Args:
        llm: The LLM.
        dialect: How it is asked and read.
        manners: What it was found to refuse.
        top_logprobs: Likeliest tokens to ask for; as many as there may be, if 0.
        call_options: What the user passes with each call besides.
    """

    several = tells_end = False

    def __init__(
        self,
        llm: LLM,
        dialect: LLMDialect,
        manners: Manners,
        top_logprobs: int = 0,
        call_options: CallOptions | None = None,
    ) -> None:
        self._llm: Any = llm
        self._call_options = call_options
        self._dialect = dialect
        self._manners = manners
        self._top_logprobs = min(top_logprobs, dialect.top_logprobs) or dialect.top_logprobs
        self._traced = "logprobs" in dialect.takes
        self.streams = dialect.streams
        self.native_async = has_native_async(llm) and not dialect.alone

    @property
    def top_logprobs(self) -> int:
        """Likeliest tokens that the service lists, as far as is known."""
        return self._manners.most("top_logprobs", self._top_logprobs)

    @property
    def chat(self) -> bool:
        """Whether the LLM speaks the chat format."""
        return bool(self._llm.metadata.is_chat_model)

    def answer(self, prompt: Prompt, sampling: SamplingParams, seed: int) -> LLMAnswer:
        """Ask for one answer and read it."""

        def call(given: Mapping[str, Any]) -> Any:
            llm = self._dialect.view(self._llm, given)
            options = self._options(given, sampling)
            if self.chat:
                return llm.chat(messages_for(self._llm, prompt), **options)
            return llm.complete(text_for(self._llm, prompt), formatted=True, **options)

        with self._alone():
            response = self._manners.send(self._parameters(sampling, seed), sampling, call)
        return self._dialect.read(response)

    async def aanswer(self, prompt: Prompt, sampling: SamplingParams, seed: int) -> LLMAnswer:
        """Like ``answer``."""

        async def call(given: Mapping[str, Any]) -> Any:
            llm = await self._dialect.aview(self._llm, given)
            options = self._options(given, sampling)
            if self.chat:
                return await llm.achat(messages_for(self._llm, prompt), **options)
            return await llm.acomplete(text_for(self._llm, prompt), formatted=True, **options)

        parameters = self._parameters(sampling, seed)
        return self._dialect.read(await self._manners.asend(parameters, sampling, call))

    def ask(self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int) -> Json:
        """Return an answer with one choice."""
        return _in_openai_form(_cut(self.answer(prompt, sampling, seed), sampling), "message")

    async def aask(self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int) -> Json:
        """Like ``ask``."""
        return _in_openai_form(_cut(await self.aanswer(prompt, sampling, seed), sampling), "message")

    def open(self, prompt: Prompt, sampling: SamplingParams) -> Line:
        """Open a stream of LlamaIndex responses, each of which :meth:`piece` reads."""

        def call(given: Mapping[str, Any]) -> Iterator[Any]:
            llm = self._dialect.view(self._llm, given)
            options = self._options(given, sampling)
            if self.chat:
                return _Begun(llm.stream_chat(messages_for(self._llm, prompt), **options))
            return _Begun(llm.stream_complete(text_for(self._llm, prompt), formatted=True, **options))

        parameters = self._parameters(sampling, sampling.seed)
        with self._alone():
            pieces = self._manners.send(parameters, sampling, call)
            # A model in this process has one state: nobody else may ask it before its answer is whole.
            return Line(iter(list(pieces)) if self._dialect.alone else pieces)

    async def aopen(self, prompt: Prompt, sampling: SamplingParams) -> AsyncLine:
        """Like ``open``."""

        async def call(given: Mapping[str, Any]) -> AsyncIterator[Any]:
            llm = await self._dialect.aview(self._llm, given)
            options = self._options(given, sampling)
            if self.chat:
                return await _AsyncBegun.of(
                    await llm.astream_chat(messages_for(self._llm, prompt), **options)
                )
            text = text_for(self._llm, prompt)
            return await _AsyncBegun.of(await llm.astream_complete(text, formatted=True, **options))

        parameters = self._parameters(sampling, sampling.seed)
        return AsyncLine(await self._manners.asend(parameters, sampling, call))

    def piece(self, response: Any) -> Json:
        """Return a streamed response in the form of OpenAI's API."""
        return _in_openai_form(self._dialect.piece(response), "delta")

    def _parameters(self, sampling: SamplingParams, seed: int) -> dict[str, Any]:
        dialect = self._dialect
        if not self._traced and "top_k" not in dialect.takes:
            # An LLM of which only text is known answers as it was built.
            sampling = replace(sampling, top_k=None)
        found = asked(
            replace(sampling, seed=seed),
            dialect.built(self._llm),
            takes=dialect.takes,
            top_logprobs=self._top_logprobs,
            thinks=self._manners.thinks,
        )
        self._manners.tell(found.overridden)
        return {**(dialect.uncut if sampling.temperature > 0 else {}), **found.parameters}

    def _options(self, given: Mapping[str, Any], sampling: SamplingParams) -> dict[str, Any]:
        own = self._call_options(sampling) if self._call_options else {}
        return {**self._dialect.options(self._llm, given), **own}

    def _alone(self) -> AbstractContextManager[Any]:
        return _in_process if self._dialect.alone else nullcontext()


def has_native_async(llm: LLM) -> bool:
    """Whether an LLM awaits real I/O; a ``CustomLLM`` that keeps the inherited async methods blocks."""
    # By name: LlamaIndex wraps inherited methods anew in every subclass.
    own: dict[str, bool] = {
        method: getattr(type(llm), method).__qualname__ != f"{CustomLLM.__name__}.{method}"
        for method in ("achat", "acomplete")
    }
    if own["achat"] == own["acomplete"]:
        # Which of them is asked makes no difference, and metadata may ask a server.
        return own["achat"]
    return own["achat" if llm.metadata.is_chat_model else "acomplete"]


def _cut(answer: LLMAnswer, sampling: SamplingParams) -> LLMAnswer:
    """Return an answer up to its stop text, of which the LLM may know nothing."""
    before = cut_at_stop(answer.text, sampling.stop)
    return answer if before is None else replace(answer, text=before, finish="stop")


class _Begun:
    """A stream whose request was made: an LLM makes it when the first piece is asked for."""

    def __init__(self, pieces: Iterator[Any]) -> None:
        self._pieces = iter(pieces)
        self._first = list(islice(self._pieces, 1))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._first.pop() if self._first else next(self._pieces)

    def close(self) -> None:
        """Close the LLM's own stream."""
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


class _AsyncBegun:
    """Like ``_Begun``."""

    def __init__(self, pieces: AsyncIterator[Any], first: list[Any]) -> None:
        self._pieces = pieces
        self._first = first

    @classmethod
    async def of(cls, pieces: AsyncIterator[Any]) -> _AsyncBegun:
        stream = aiter(pieces)
        async for piece in stream:
            return cls(stream, [piece])
        return cls(stream, [])

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return self._first.pop() if self._first else await anext(self._pieces)

    async def aclose(self) -> None:
        """Close the LLM's own stream."""
        aclose = getattr(self._pieces, "aclose", None)
        if aclose is not None:
            await aclose()


def _in_openai_form(answer: LLMAnswer, key: str) -> Json:
    message = {"role": "assistant", "content": answer.text}
    if answer.thoughts:
        message["reasoning_content"] = answer.thoughts
    choice: dict[str, Any] = {"index": 0, key: message, "finish_reason": answer.finish}
    if answer.tokens is not None:
        choice["logprobs"] = {
            "content": [
                {
                    "token": token.text,
                    "logprob": token.logprob,
                    "top_logprobs": [
                        {"token": text, "logprob": logprob} for text, logprob in token.likeliest
                    ],
                }
                for token in answer.tokens
            ]
        }
    usage: dict[str, Any] = {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
    }
    if answer.thinking_tokens:
        usage["completion_tokens_details"] = {"reasoning_tokens": answer.thinking_tokens}
    if answer.cached_tokens:
        usage["prompt_tokens_details"] = {"cached_tokens": answer.cached_tokens}
    known = answer.prompt_tokens or answer.completion_tokens or answer.thinking_tokens
    return {"choices": [choice], **({"usage": usage} if known else {})}
