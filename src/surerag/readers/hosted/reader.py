"""Readers behind an OpenAI-compatible API: OpenAI itself, vLLM, llama.cpp and whatever speaks like them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from surerag.errors import ConfigurationError
from surerag.messages import Chunk, Generation, PartialGeneration, Prompt, SamplingParams, TokenTrace, Usage
from surerag.readers.hosted.client import Client, arun, run
from surerag.readers.hosted.probe import Probe, probe
from surerag.readers.hosted.requests import Api, TokenDetails
from surerag.readers.hosted.service import Service, cancel, claim
from surerag.readers.protocol import BaseReader, Capabilities

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_TOP_LOGPROBS: Mapping[Api, int] = {"chat": 20, "completions": 5}


class OpenAIReader(BaseReader):
    """A model behind an OpenAI-compatible server.

    Log-probabilities are those that the server returns. Most compute them before temperature, top-p and
    penalties, as a reader promises; some compute them after. :meth:`probe` shows which, and what a server
    does not do, ``capabilities`` do not claim from then on.

    Entropies are intervals (``"bounded"``) from the likeliest tokens, their mass and the largest vocabulary
    in use.

    Of a model that thinks before it answers, text, trace, the first tokens of ``begin`` and the limit on
    tokens are those of the answer; its thoughts are counted apart (``Generation.thinking_tokens``). That it
    thinks is learnt from its first answer, or from :meth:`probe`. Where only the end of the thoughts is
    marked, as by templates that open them, call :meth:`probe` first: a first answer that is shorter than its
    thoughts cannot be separated from them.

    A parameter that the service rejects is left out from then on where the answer can do without it, with a
    ``LeftOutWarning`` where that changes how it samples; where it cannot, the error holds its words.

    A generation that was begun holds a connection until it is finished or cancelled; it counts towards
    ``max_concurrency`` only while it is read.

    Args:
        model: Name of the model, as the server has it.
        base_url: The API's root, such as ``http://localhost:8000/v1``; default the environment's
            ``OPENAI_BASE_URL``, or OpenAI itself.
        api_key: Default the environment's ``OPENAI_API_KEY``. It is in no representation, pickle or error.
        api: ``"chat"``; or ``"completions"``, for models without a chat template and for scoring.
        top_logprobs: How many of the likeliest tokens to list for each; 0 for no entropies. The default is
            the most that OpenAI allows: 20, and 5 for completions.
        thinking: False switches thinking off, in the ways that services document; a model that thinks all the
            same is an error. True grants tokens for thoughts from the first request on.
        max_tokens: Length of an answer at most, where a method sets none.
        max_concurrency: Requests under way at most.
        timeout: Seconds to wait for an answer, or for the next piece of a stream. One request may take ten
            times as long in all, so that a server that drips ends.
        max_retries: How often the SDK asks again after 429, 5xx, time-outs and broken connections.
        extra_body: Further fields of every request's body, such as ``{"repeat_penalty": 1.0}`` for a server
            that penalises repetition of its own accord. They win over what the reader would send.
        client: Your own ``openai.AsyncOpenAI``, in place of base_url, api_key, timeout and max_retries. It is
            used on the reader's own event loop, and stays yours to close.

    Raises:
        MissingExtraError: If the openai SDK is not installed.
        ConfigurationError: If a setting cannot work.

    Example:
        >>> reader = OpenAIReader("tiny", base_url="http://localhost:8000/v1", api_key="secret")
        >>> reader.name, reader.capabilities.entropy
        ('tiny@localhost:8000/v1', 'bounded')
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api: Api = "chat",
        top_logprobs: int | None = None,
        thinking: bool | None = None,
        max_tokens: int | None = None,
        max_concurrency: int = 16,
        timeout: float = 60.0,
        max_retries: int = 3,
        extra_body: Mapping[str, Any] | None = None,
        client: AsyncOpenAI | None = None,
    ) -> None:
        if api not in _TOP_LOGPROBS:
            raise ConfigurationError(f"api must be 'chat' or 'completions', got {api!r}")
        for name, value, least in (
            ("max_concurrency", max_concurrency, 1),
            ("max_retries", max_retries, 0),
            ("top_logprobs", top_logprobs or 0, 0),
            ("max_tokens", max_tokens or 1, 1),
            ("timeout", timeout, 1e-3),
        ):
            if not value >= least:
                raise ConfigurationError(f"{name} must be at least {least}, got {value!r}")
        self._max_tokens = max_tokens
        fields = dict(extra_body or {})
        self._service = Service(
            Client(base_url, api_key, timeout, max_retries, max_concurrency, own=client, secrets=fields),
            model,
            api,
            TokenDetails(True, _TOP_LOGPROBS[api] if top_logprobs is None else top_logprobs),
            thinking,
            fields,
            thinks=thinking is True,
        )

    def __repr__(self) -> str:
        service = self._service
        return f"OpenAIReader({self.name!r}, api={service.api!r}, top_logprobs={service.details.top})"

    def __copy__(self) -> OpenAIReader:
        """Return the reader itself: copies of a pipeline share its client, which no copy could carry."""
        return self

    def __deepcopy__(self, memo: object) -> OpenAIReader:
        """Return the reader itself, as a shallow copy does."""
        return self

    @property
    def name(self) -> str:
        """Model and address, without credentials: the paths of one host may lead to different models."""
        return self._service.name

    @property
    def max_tokens(self) -> int:
        """Length of an answer at most, where a method sets none."""
        return self._max_tokens or super().max_tokens

    @property
    def capabilities(self) -> Capabilities:
        """What the server is asked for, and, once probed, what it does."""
        service = self._service
        return Capabilities(
            logprobs=service.details.logprobs,
            entropy="bounded" if service.details.top else None,
            score=service.details.logprobs and service.scoring is not None,
            begin="native" if service.streams else "whole",
            stream=service.streams,
            native_async=True,
            thinking="apart" if service.thinks else "off" if service.thinking is False else "none",
        )

    @property
    def usage(self) -> Usage:
        """Requests that were answered, and the tokens that the server counted for them."""
        return self._service.usage.total

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order.

        A server that ignores ``n`` is asked again for the samples that it left out. At temperature 0
        one answer stands for all samples.

        Raises:
            ServiceError: If the server fails, or sends a malformed answer: TransientServiceError if it still
                fails after all retries, RefusedError if it rejects what cannot be left out, LogprobsError,
                ContextLengthError, ThinkingBudgetError.
            CapabilityError: If the model thinks although thinking was switched off.
        """
        return run(self._service.generate(prompts, sampling))

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``, without blocking the event loop."""
        return await arun(self._service.generate(prompts, sampling))

    def score(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Return the trace of each continuation after its prompt.

        Raises:
            CapabilityError: If the server cannot score, or was not probed yet.
            ServiceError: As ``generate``.
        """
        return run(self._service.score(prompts, continuations))

    async def ascore(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Like ``score``, without blocking the event loop."""
        return await arun(self._service.score(prompts, continuations))

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Return the first ``n_tokens`` tokens for each prompt, the rest of its stream unread."""
        return run(self._service.begin(prompts, n_tokens, sampling))

    async def abegin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Like ``begin``, without blocking the event loop."""
        return await arun(self._service.begin(prompts, n_tokens, sampling))

    def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Return whole generations of what was begun, reading their streams on; each once."""
        return run(self._service.finish(begun))

    async def afinish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Like ``finish``, without blocking the event loop."""
        return await arun(self._service.finish(begun))

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close the streams of what was begun; those that are closed already stay as they are."""
        cancel(begun)

    async def acancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Like ``cancel``: neither of them waits."""
        cancel(begun)

    def finish_stream(self, begun: PartialGeneration) -> Iterator[Chunk]:
        """Yield what was begun from its first token on; closing the iterator closes the connection."""
        answer = claim(begun)
        if answer is None:
            yield from super().finish_stream(begun)
            return
        try:
            chunk = Chunk("")
            while chunk.generation is None:
                chunk = run(answer.chunk())
                yield chunk
        finally:
            answer.end()

    async def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``, without blocking the event loop."""
        (begun,) = await self.abegin([prompt], 1, sampling)
        async with aclosing(self.afinish_stream(begun)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def afinish_stream(self, begun: PartialGeneration) -> AsyncGenerator[Chunk, None]:
        """Like ``finish_stream``, without blocking the event loop."""
        answer = claim(begun)
        if answer is None:
            (whole,) = await self.afinish([begun])
            yield Chunk(whole.text, whole)
            return
        try:
            chunk = Chunk("")
            while chunk.generation is None:
                chunk = await arun(answer.chunk())
                yield chunk
        finally:
            answer.end()

    def probe(self, prompt: Prompt | None = None) -> Probe:
        """Find out what the server can do, by asking it about ten small questions.

        From then on ``capabilities`` tell it, and what the server lacks is not requested.

        Args:
            prompt: What to ask; it should be answered with a few words. Default one of several.

        Raises:
            ServiceError: If the server does not even answer a plain question.
        """
        return self._learn(run(probe(self._service, prompt)))

    async def aprobe(self, prompt: Prompt | None = None) -> Probe:
        """Like ``probe``, without blocking the event loop."""
        return self._learn(await arun(probe(self._service, prompt)))

    def _learn(self, result: Probe) -> Probe:
        service, promised = self._service, result.logprobs and result.raw_logprobs is not False
        top = min(service.details.top, result.top_logprobs) if promised else 0
        service.details = TokenDetails(promised, top)
        service.scoring = result.scoring
        service.streams = result.streams and (result.stream_logprobs or not promised)
        service.together = result.samples
        return result

    def close(self) -> None:
        """Close the client, unless it is yours; another is made when it is needed."""
        run(self._service.client.aclose())

    async def aclose(self) -> None:
        """Like ``close``, without blocking the event loop."""
        await arun(self._service.client.aclose())
