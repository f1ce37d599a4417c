"""Readers behind an OpenAI-compatible API: OpenAI itself, vLLM, llama.cpp and others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from surerag.errors import CapabilityError, ConfigurationError, check_at_least, check_kind
from surerag.messages import SamplingParams
from surerag.readers.calls import AWAITING, Blocking
from surerag.readers.client_reader import ClientReader, Keywords, Request, Thinking
from surerag.readers.hosted.client import Client, arun, public_fields, run, run_soon
from surerag.readers.hosted.probe import Probe, probe
from surerag.readers.hosted.wire import THINKING_OFF, Api, body_of, next_reply_part, reply_parts
from surerag.readers.protocol import Capabilities
from surerag.readers.reading import Reading, ReplyPart

if TYPE_CHECKING:
    from openai import AsyncOpenAI

R = TypeVar("R")
_TOP_LOGPROBS: Mapping[Api, int] = {"chat": 20, "completions": 5}


class OpenAIReader(ClientReader):
    """A model behind an OpenAI-compatible server.

    Log-probabilities are those that the server returns. Most compute them before temperature, top-p and
    penalties, as a reader promises; some compute them after. :meth:`probe` shows which, and what a server
    does not do, ``capabilities`` do not claim from then on.

    Entropies are intervals (``"bounded"``) from the likeliest tokens, their mass and the largest vocabulary
    in use.

    Of a model that thinks before it answers, text, trace, the first tokens of ``begin`` and the limit on
    tokens are those of the answer. That it thinks is seen from the beginning of its answers, from the
    server's own fields, or by :meth:`probe`. Where only the end of the thoughts is marked, because the prompt
    template begins them, ``thinking="unmarked"`` says so, and :meth:`probe` finds it out.

    A parameter that the service rejects is left out for 15 minutes where the answer can do without it, once
    the same request succeeded without it, with a ``LeftOutWarning`` that names it.

    A generation that was begun holds a connection until it is finished or cancelled; it counts towards
    ``max_concurrency`` only while it is read.

    Args:
        model: Name of the model, as the server has it.
        base_url: The API's root, such as ``http://localhost:8000/v1``; default the environment's
            ``OPENAI_BASE_URL``, or OpenAI itself.
        api_key: Default the environment's ``OPENAI_API_KEY``. It is in no representation, pickle or error.
        api: ``"chat"``; or ``"completions"``, for models without a chat template.
        top_logprobs: How many of the likeliest tokens to list for each; 0 for no entropies. The default is
            the most that OpenAI allows: 20, and 5 for completions.
        thinking: False switches thinking off, and a model that thinks all the same is an error; True grants
            tokens for thoughts from the first request on; ``"unmarked"`` says besides that answers begin
            inside the thoughts, and only the end of these is marked.
        max_tokens: Length of an answer at most, where a method sets none.
        max_concurrency: Requests under way at most.
        timeout: Seconds to wait for an answer, or for the next piece of a stream; one request may take ten
            times as long in all.
        max_retries: How often the SDK asks again after 429, 5xx, time-outs and broken connections.
        extra_body: Further fields of every request; they win over what the reader would send.
        client: Your own ``openai.AsyncOpenAI``, in place of base_url, api_key, timeout and max_retries. It is
            used on the reader's own event loop, and stays yours to close.

    Attributes:
        top: How many of the likeliest tokens are requested; None where the server has no log-probabilities.

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
        thinking: Thinking | None = None,
        max_tokens: int | None = None,
        max_concurrency: int = 16,
        timeout: float = 60.0,
        max_retries: int = 3,
        extra_body: Mapping[str, Any] | None = None,
        client: AsyncOpenAI | None = None,
    ) -> None:
        if not isinstance(api, str) or api not in _TOP_LOGPROBS:
            raise ConfigurationError(f"api must be 'chat' or 'completions', got {api!r}")
        check_kind(str, "a text", model=model, base_url=base_url or "", api_key=api_key or "")
        check_kind(Mapping, "a mapping of fields to values", extra_body=extra_body or {})
        check_kind(Real, "a number", max_concurrency=max_concurrency, timeout=timeout)
        check_at_least(1, max_concurrency=max_concurrency, max_tokens=max_tokens or 1)
        check_at_least(0, max_retries=max_retries, top_logprobs=top_logprobs)
        check_at_least(1e-3, timeout=timeout)
        super().__init__(thinking=thinking)
        self.model, self.api = model, api
        self.top: int | None = _TOP_LOGPROBS[api] if top_logprobs is None else top_logprobs
        self._top_parameter = "top_logprobs" if api == "chat" else "logprobs"
        self._max_tokens = max_tokens
        self._extra_body = dict(extra_body or {})
        self._client = Client(
            base_url, api_key, timeout, max_retries, max_concurrency, own=client, secrets=self._extra_body
        )
        self._streamed = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_extra_body": public_fields(self._extra_body)}

    def __repr__(self) -> str:
        return f"OpenAIReader({self.name!r}, api={self.api!r}, top_logprobs={self.top or 0})"

    def __copy__(self, memo: object = None) -> OpenAIReader:
        """Return the reader itself: copies of a pipeline share its client, which no copy could carry."""
        return self

    __deepcopy__ = __copy__

    @property
    def name(self) -> str:
        """Model and address, without credentials: the paths of one host may lead to different models."""
        return f"{self.model}@{self._client.address}"

    @property
    def max_tokens(self) -> int | None:
        """Length of an answer at most, where a method sets none."""
        return self._max_tokens or super().max_tokens

    @property
    def capabilities(self) -> Capabilities:
        """What the reader requests of the server; after a probe, what the server can do."""
        return Capabilities(
            logprobs=self.top is not None,
            entropy="bounded" if self.top else None,
            begin="native" if self._streamed else "whole",
            stream=self._streamed,
            native_async=True,
            thinking="apart" if self._thinks else "off" if self.thinking is False else "none",
        )

    def probe(self) -> Probe:
        """Find out what the server can do, by asking it about ten small questions.

        From then on ``capabilities`` tell it, and what the server lacks is not requested.

        Raises:
            ServiceError: If the server does not even answer a plain question.
        """
        result = self._run_work(probe(self))
        promised = result.logprobs and result.raw_logprobs is not False
        self.top = min(self.top or 0, result.top_logprobs) if promised else None
        self._streamed = result.streams and (result.stream_logprobs or not promised)
        return result

    def close(self) -> None:
        """Close the client, unless it is yours; a new client is made when one is needed."""
        run(self._client.aclose())

    async def aclose(self) -> None:
        """Like ``close``, without blocking the event loop."""
        await arun(self._client.aclose())

    # How it is asked.

    @property
    def _retries(self) -> int:
        return self._client.max_retries

    _sync_calls = AWAITING  # in the client's own event loop

    def _run_work(self, work: Coroutine[Any, Any, R]) -> R:
        return run(self._without_secrets(work))

    async def _await_work(self, work: Coroutine[Any, Any, R]) -> R:
        return await arun(self._without_secrets(work))

    def _hang_up(self, work: Coroutine[Any, Any, object]) -> None:
        run_soon(work)

    def _secrets(self) -> Iterator[str]:
        return self._client.secrets()

    def _top(self, sampling: SamplingParams) -> int | None:
        if self.top is None or sampling.trace == "none":
            return None
        return self.top if sampling.lists_alternatives else 0

    def _keywords(self, request: Request) -> Keywords:
        switches = THINKING_OFF if self.thinking is False and self.api == "chat" else {}
        return {**switches, **body_of(self.api, self.model, request), **self._extra_body}

    def _needed_settings(self, request: Request) -> Collection[str]:
        return {*super()._needed_settings(request), *self._extra_body}

    async def _call(self, request: Request, keywords: Keywords, calls: Blocking) -> Sequence[ReplyPart]:
        return reply_parts(await self._client.post(keywords), logprobs=request.top is not None)

    async def _open(
        self, request: Request, keywords: Keywords, calls: Blocking
    ) -> AsyncGenerator[ReplyPart, None]:
        async with aclosing(self._client.stream(keywords)) as pieces:
            async for piece in pieces:
                yield next_reply_part(piece, logprobs=request.top is not None)

    def _note(self, reading: Reading) -> None:
        if reading.thought and self.thinking is False:
            raise CapabilityError(
                f"{self.name} thinks before it answers although thinking=False was passed",
                hint="use thinking=None, or a model whose thinking can be switched off",
            )
        super()._note(reading)
