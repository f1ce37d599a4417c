"""Readers that call an OpenAI-compatible API: OpenAI itself, vLLM, llama.cpp and others."""

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
    """A model on an OpenAI-compatible server.

    The server computes the log-probabilities. Most servers compute them before temperature, top-p and
    penalties, as surerag needs them; some servers compute them after these steps. :meth:`probe` tests this.
    After the probe, ``capabilities`` list only what the server can do.

    Entropies are intervals (``"bounded"``), computed from the likeliest tokens, their total probability and
    an upper limit of the vocabulary's size (300,000 tokens).

    For a model that thinks, the text, the log-probabilities, the first tokens of ``begin`` and the maximum
    length concern only the answer, not the thoughts. The reader recognises a thinking model by marks at the
    beginning of its answers, by the server's fields for thoughts, or by :meth:`probe`. Some prompt templates
    open the thoughts, so that the output contains only the closing mark. For such a model pass
    ``thinking="unmarked"``, or call :meth:`probe`, which detects the closing mark.

    If the service rejects a parameter that the answer does not depend on, and the same request succeeds
    without the parameter, the reader omits the parameter for 15 minutes, and a ``LeftOutWarning`` names the
    parameter.

    A generation that was begun holds a connection until the generation is completed or closed. The
    connection counts towards ``max_concurrency`` only while the reader reads from it.

    Args:
        model: Name of the model on the server.
        base_url: Root of the API, such as ``http://localhost:8000/v1``. The default is the environment
            variable ``OPENAI_BASE_URL``, or else OpenAI's own address.
        api_key: The API key. The default is the environment variable ``OPENAI_API_KEY``. No representation,
            pickle or error shows the key.
        api: ``"chat"``; or ``"completions"``, for models without a chat template.
        top_logprobs: Number of likeliest tokens that the server lists for each token of the answer; with 0
            there are no entropies. The default is the most that OpenAI allows: 20, and 5 for completions.
        thinking: False switches thinking off; if the model thinks nevertheless, the reader raises an error.
            True raises the maximum length in every request, to leave room for thoughts. ``"unmarked"`` does
            the same for a model whose output begins inside the thoughts, and contains only the closing mark.
        max_tokens: Maximum length of an answer [tokens] if a method sets none.
        max_concurrency: Maximum number of concurrent requests.
        timeout: Seconds to wait for an answer, or for the next piece of a stream; one request may take ten
            times as long in total.
        max_retries: Maximum number of times that the SDK repeats a request after status 429 or 5xx, a
            time-out or a broken connection.
        extra_body: Further fields of every request; they replace fields of the same name.
        client: Your own ``openai.AsyncOpenAI``, in place of base_url, api_key, timeout and max_retries. The
            reader uses the client on an event loop of its own, and never closes the client.

    Attributes:
        top: Number of likeliest tokens that are requested for each token; None if the server has no
            log-probabilities.

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
        """Return the reader itself, because a client cannot be copied; copied pipelines share the reader."""
        return self

    __deepcopy__ = __copy__

    @property
    def name(self) -> str:
        """Model and address without credentials; the address has its path, which may select the model."""
        return f"{self.model}@{self._client.address}"

    @property
    def max_tokens(self) -> int | None:
        """Maximum length of an answer [tokens] if a method sets none."""
        return self._max_tokens or super().max_tokens

    @property
    def capabilities(self) -> Capabilities:
        """What the reader can do; until a probe has tested the server, we assume that requests succeed."""
        return Capabilities(
            logprobs=self.top is not None,
            entropy="bounded" if self.top else None,
            begin="native" if self._streamed else "whole",
            stream=self._streamed,
            native_async=True,
            thinking="apart" if self._thinks else "off" if self.thinking is False else "none",
        )

    def probe(self) -> Probe:
        """Find out what the server can do by sending it about ten small questions.

        Afterwards ``capabilities`` show the result, and the reader does not request what the server lacks.

        Raises:
            ServiceError: If the server does not even answer a plain question.
        """
        result = self._run_work(probe(self))
        promised = result.logprobs and result.raw_logprobs is not False
        self.top = min(self.top or 0, result.top_logprobs) if promised else None
        self._streamed = result.streams and (result.stream_logprobs or not promised)
        return result

    def close(self) -> None:
        """Close the client, unless you passed it in; the next request makes a new client."""
        run(self._client.aclose())

    async def aclose(self) -> None:
        """Like ``close``, without blocking the event loop."""
        await arun(self._client.aclose())

    # How the reader calls the server.

    @property
    def _retries(self) -> int:
        return self._client.max_retries

    _sync_calls = AWAITING  # sync methods await the client, too, on the background event loop

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
