"""Readers behind an OpenAI-compatible API: OpenAI itself, vLLM, llama.cpp and whatever speaks like them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

from surerag.errors import CapabilityError, ConfigurationError, ServiceError, ThinkingBudgetError
from surerag.messages import Chunk, Generation, PartialGeneration, Prompt, SamplingParams, TokenTrace, Usage
from surerag.readers.hosted.clients import Clients
from surerag.readers.hosted.knowledge import Knowledge
from surerag.readers.hosted.limits import DEADLINE, MAX_BYTES, Limits
from surerag.readers.hosted.logprobs import Wanted
from surerag.readers.hosted.parse import Api, Draft, UnforeseenThoughtsError
from surerag.readers.hosted.plans import Plan, afollow, ainquire, follow, inquire, samples, scores
from surerag.readers.hosted.probe import PROBE_PROMPTS, Inquiry, Probe, probing
from surerag.readers.hosted.requests import Ask, answer_at_once, body_of, wanted_for
from surerag.readers.hosted.retry import RetryPolicy
from surerag.readers.hosted.score import Scoring
from surerag.readers.hosted.stream import AsyncOpenStream, OpenStream
from surerag.readers.hosted.transport import Transport
from surerag.readers.protocol import BaseReader, Capabilities
from surerag.readers.thinking import THINKING_TOKENS
from surerag.readers.threads import in_thread

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

R = TypeVar("R")

_OPENAI_MOST: Mapping[Api, int] = {"chat": 20, "completions": 5, "responses": 20}
_ANY_VOCABULARY = 300_000


class OpenAIReader(BaseReader):
    """A model behind an OpenAI-compatible server.

    Log-probabilities are those that the server returns. Most compute them before temperature, top-p and
    penalties, as a reader promises; some compute them after. :meth:`probe` finds out, and what a
    server does not do, ``capabilities`` do not claim from then on.

    Entropies are intervals (``"bounded"``): a server lists only the likeliest tokens. More
    ``top_logprobs`` and the model's own ``vocabulary_size`` make them narrower.

    Of a model that thinks before it answers, text, trace, the first tokens of ``begin`` and the limit on
    tokens are those of the answer; its thoughts are counted apart (``Generation.thinking_tokens``). That it
    thinks is learnt from its first answer, or from :meth:`probe`, and stands in ``capabilities`` from then
    on. Where only the end of the thoughts is marked, as by templates that open them, call :meth:`probe`: a
    first answer that is shorter than its thoughts cannot be told from one.

    A parameter that the service refuses is left out from then on where the answer can do without it, with a
    ``LeftOutWarning`` where that may be felt; where it cannot, the service's own words are in the error.

    A generation that was begun holds a connection until it is finished or cancelled; it counts towards
    ``max_concurrency`` only while it is read. What the server read for a cancelled one is missing from
    the prompt tokens in ``usage``: servers tell at the end of a stream.

    Args:
        model: Name of the model, as the server knows it.
        base_url: The API's root, such as ``http://localhost:8000/v1``; default the environment's
            ``OPENAI_BASE_URL``, or OpenAI itself.
        api_key: Default the environment's ``OPENAI_API_KEY``. It is in no representation, no pickle
            and no error.
        api: ``"chat"``; ``"completions"``, for models without a chat template and for scoring; or OpenAI's
            ``"responses"``.
        logprobs: Whether to ask for log-probabilities.
        top_logprobs: How many of the likeliest tokens to list for each; 0 for no entropies. The
            default is the most that OpenAI allows: 20, and 5 for completions. Neither is asked for where a
            method needs only the text.
        vocabulary_size: Tokens that the model can emit. The default is larger than any vocabulary in
            use, which keeps intervals true but makes them wider than they need be.
        score_entropies: Whether ``score`` asks for entropies as well: ``top_logprobs`` alternatives for every
            token of prompt and text, which are megabytes for a long prompt.
        scoring: How given text is scored, if you know: ``"echo"`` (completions) or
            ``"prompt_logprobs"`` (vLLM). Otherwise :meth:`probe` finds out.
        thinking: False switches thinking off, in the ways that services document; a model that thinks all the
            same is an error. True says that the model thinks, so that its first request already has tokens to
            do so. None takes what comes, and tells it apart.
        thinking_tokens: Tokens that a model which thinks gets for its thoughts, beside those of the answer.
        max_concurrency: Requests under way at most: over all threads for sync calls, and in each event
            loop for async ones. A server that takes fewer (429, 503, answers that come later and later) is
            asked for fewer at once, and for more again step by step.
        timeout: Seconds to wait for an answer, or for the next piece of a stream.
        deadline: Seconds that one answer may take in all, streams included; the pauses of whoever reads a
            stream are not counted. A server that drips is otherwise never late.
        max_bytes: Size of one answer at most.
        retries: How often to ask again after 429, 5xx, time-outs and broken connections.
        max_wait: Longest pause before asking again, in seconds; a server that asks for a longer one is
            not asked again.
        extra_body: Further fields of every request's body, such as ``{"repeat_penalty": 1.0}`` for a
            server that penalises repetition of its own accord. They win over what the reader would say.
        client: Your own ``openai.OpenAI``; its retries are switched off in favour of ``retries``.
        async_client: Your own ``openai.AsyncOpenAI``, likewise, for use in one event loop.

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
        logprobs: bool = True,
        top_logprobs: int | None = None,
        vocabulary_size: int = _ANY_VOCABULARY,
        scoring: Scoring | None = None,
        score_entropies: bool = False,
        thinking: bool | None = None,
        thinking_tokens: int = THINKING_TOKENS,
        max_concurrency: int = 16,
        timeout: float = 60.0,
        deadline: float = DEADLINE,
        max_bytes: int = MAX_BYTES,
        retries: int = 3,
        max_wait: float = 60.0,
        extra_body: Mapping[str, Any] | None = None,
        client: OpenAI | None = None,
        async_client: AsyncOpenAI | None = None,
    ) -> None:
        if api not in _OPENAI_MOST:
            raise ConfigurationError(f"api must be 'chat', 'completions' or 'responses', got {api!r}")
        if scoring == "echo" and api != "completions":
            raise ConfigurationError(
                f"the {api} API has no echo", hint='use api="completions" to score by echo'
            )
        for name, value, least in (
            ("max_concurrency", max_concurrency, 1),
            ("retries", retries, 0),
            ("top_logprobs", top_logprobs or 0, 0),
            ("vocabulary_size", vocabulary_size, 1),
            ("thinking_tokens", thinking_tokens, 1),
        ):
            if value < least:
                raise ConfigurationError(f"{name} must be at least {least}, got {value!r}")
        self._model = model
        self._api: Api = api
        most = _OPENAI_MOST[api] if top_logprobs is None else top_logprobs
        self._wanted = Wanted(logprobs, most if logprobs else 0, vocabulary_size)
        self._scoring = scoring
        self._score_entropies = score_entropies
        self._streams = True
        self._known = Knowledge(model, api, thinking, thinking_tokens)
        clients = Clients(
            base_url,
            api_key,
            timeout=timeout,
            max_concurrency=max_concurrency,
            limits=Limits(deadline, max_bytes),
            client=client,
            async_client=async_client,
        )
        self._clients = clients
        told = answer_at_once(api) if thinking is False else {}
        policy = RetryPolicy(retries, max_wait)
        self._transport = Transport(clients, policy, extra_body or {}, told, self._known)

    def __repr__(self) -> str:
        return f"OpenAIReader({self.name!r}, api={self._api!r}, top_logprobs={self._wanted.top})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def name(self) -> str:
        """Model and address, without credentials: the paths of one host may lead to different models."""
        return f"{self._model}@{self._clients.address}"

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that the upper ends of entropies assume."""
        return self._wanted.vocabulary_size

    @property
    def capabilities(self) -> Capabilities:
        """What the server is asked for, and, once probed, was found to do."""
        off: Literal["off", "none"] = "off" if self._known.switched_off else "none"
        return Capabilities(
            logprobs=self._wanted.logprobs,
            entropy="bounded" if self._wanted.top else None,
            score=self._wanted.logprobs and self._scoring is not None,
            begin="native" if self._streams else "whole",
            stream=self._streams,
            native_async=True,
            thinking="apart" if self._known.thinks else off,
        )

    @property
    def usage(self) -> Usage:
        """Requests that were answered, and the tokens that the server counted for them."""
        return self._transport.usage

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order.

        A server that ignores ``n`` is asked again for the samples that it left out. At temperature 0
        one answer stands for all samples.

        Raises:
            LogprobsError: If the server leaves log-probabilities out, or sends malformed ones.
            ContextLengthError: If a prompt does not fit the model's window.
            ThinkingBudgetError: If the model was still thinking when its tokens were spent.
            CapabilityError: If it thinks although it was told not to.
            RefusedError: If the server refuses what cannot be left out.
            TransientServiceError: If the server still fails after all retries.
            ServiceError: If its answer is malformed.
        """
        return follow(self._samples(prompts, sampling), self._transport)

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``, over the async client."""
        return await afollow(self._samples(prompts, sampling), self._transport)

    def score(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Return the trace of each continuation after its prompt.

        Raises:
            CapabilityError: If the server cannot score, or was not asked yet whether it can.
            LogprobsError: If the server leaves log-probabilities out, or sends malformed ones.
            ServiceError: As ``generate``.
        """
        return follow(self._scores(prompts, continuations), self._transport)

    async def ascore(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Like ``score``, over the async client."""
        return await afollow(self._scores(prompts, continuations), self._transport)

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Return the first ``n_tokens`` tokens for each prompt, the rest of its stream unread.

        Raises:
            ServiceError: As ``generate``.
        """
        if not self._streams:
            return super().begin(prompts, n_tokens, sampling)
        opened: list[PartialGeneration] = []

        def one(prompt: Prompt) -> PartialGeneration:
            begun = self._open(prompt, sampling, lambda stream: stream.begun(n_tokens))
            opened.append(begun)
            return begun

        try:
            return self._clients.each(one, prompts)
        except BaseException:
            self.cancel(opened)
            raise

    async def abegin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Like ``begin``, over the async client."""
        if not self._streams:
            return await super().abegin(prompts, n_tokens, sampling)
        opened: list[PartialGeneration] = []

        async def one(prompt: Prompt) -> PartialGeneration:
            begun = await self._aopen(prompt, sampling, lambda stream: stream.begun(n_tokens))
            opened.append(begun)
            return begun

        try:
            return await self._clients.aeach(one, prompts)
        except BaseException:
            await self.acancel(opened)
            raise

    def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Return whole generations of what was begun, reading their streams on.

        Raises:
            TransientServiceError: If a stream breaks off.
            ServiceError: If one was finished or cancelled before.
        """
        if not self._streams:
            return super().finish(begun)
        return self._clients.each(_finish, begun)

    async def afinish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Like ``finish``, over the async client."""
        if not self._streams:
            return await super().afinish(begun)
        return await self._clients.aeach(_afinish, begun)

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close the streams of what was begun; those that are closed already stay as they are."""
        for item in begun:
            if isinstance(item.state, OpenStream | AsyncOpenStream):
                item.state.close()

    async def acancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Like ``cancel``: neither of them waits."""
        self.cancel(begun)

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer piece by piece; closing the iterator closes the connection.

        Raises:
            ServiceError: As ``generate``.
        """
        if not self._streams:
            yield from super().stream(prompt, sampling)
            return
        (opened,) = self._clients.each(
            lambda asked: self._open(asked, sampling, lambda stream: stream.primed()), [prompt]
        )
        with closing(opened.chunks()) as chunks:
            yield from chunks

    async def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``, over the async client."""
        if not self._streams:
            async for chunk in super().astream(prompt, sampling):
                yield chunk
            return
        (opened,) = await self._clients.aeach(
            lambda asked: self._aopen(asked, sampling, lambda stream: stream.primed()), [prompt]
        )
        async with aclosing(opened.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    def finish_stream(self, begun: PartialGeneration) -> Iterator[Chunk]:
        """Yield what was begun from its first token on; closing the iterator closes the connection.

        Raises:
            ServiceError: If it was finished or cancelled before.
        """
        if begun.done or not isinstance(begun.state, OpenStream):
            yield from super().finish_stream(begun)
            return
        with closing(begun.state.chunks()) as chunks:
            yield from chunks

    async def afinish_stream(self, begun: PartialGeneration) -> AsyncIterator[Chunk]:
        """Like ``finish_stream``, over the async client."""
        if begun.done or not isinstance(begun.state, AsyncOpenStream):
            async for chunk in super().afinish_stream(begun):
                yield chunk
            return
        async with aclosing(begun.state.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    def probe(self, prompt: Prompt | None = None) -> Probe:
        """Find out what the server can do, by asking it about a dozen small questions.

        From then on ``capabilities`` tell what was found, and what the server lacks is not asked for.

        Args:
            prompt: What to ask; it should be answered with a few words. Default one of several.

        Returns:
            What was found; print it to read it.

        Raises:
            ServiceError: If the server does not even answer a plain question.
        """
        return self._learn(inquire(self._probing(prompt), self._transport))

    async def aprobe(self, prompt: Prompt | None = None) -> Probe:
        """Like ``probe``, over the async client."""
        return self._learn(await ainquire(self._probing(prompt), self._transport))

    def close(self) -> None:
        """Close the sync client, unless it is yours; another is made when it is needed."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the sync client and that of the running event loop, unless they are yours."""
        await self._clients.aclose()

    def _samples(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> Plan[list[list[Generation]]]:
        return samples(self._known, self._model, prompts, sampling, self._wanted, self._transport.count)

    def _scores(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> Plan[list[TokenTrace]]:
        if self._scoring is None or not self._wanted.logprobs:
            raise CapabilityError(
                f"{self.name} was not found to score given text",
                hint='call probe() to find out whether it can; api="completions" can more often than "chat"',
            )
        wanted = self._wanted if self._score_entropies else self._wanted._replace(top=0)
        return (yield from scores(self._scoring, self._known, self._model, prompts, continuations, wanted))

    def _open(self, prompt: Prompt, sampling: SamplingParams, use: Callable[[OpenStream], R]) -> R:
        """Open a stream and use it; again, if only then it shows that the model thinks."""
        asked = self._streamed(prompt, sampling)
        try:
            return self._transport.open(asked.ask, asked.draft, use)
        except (ThinkingBudgetError, UnforeseenThoughtsError) as error:
            if not self._forewarned(asked, error):
                raise
        again = self._streamed(prompt, sampling)
        return self._transport.open(again.ask, again.draft, use)

    async def _aopen(
        self, prompt: Prompt, sampling: SamplingParams, use: Callable[[AsyncOpenStream], Awaitable[R]]
    ) -> R:
        asked = self._streamed(prompt, sampling)
        try:
            return await self._transport.aopen(asked.ask, asked.draft, use)
        except (ThinkingBudgetError, UnforeseenThoughtsError) as error:
            if not self._forewarned(asked, error):
                raise
        again = self._streamed(prompt, sampling)
        return await self._transport.aopen(again.ask, again.draft, use)

    def _streamed(self, prompt: Prompt, sampling: SamplingParams) -> _Streamed:
        self._known.allow()
        one, budget = replace(sampling, n=1), self._known.budget
        wanted = wanted_for(one, self._wanted)
        fields: dict[str, Any] = {"stream": True}
        if self._api != "responses":
            fields["stream_options"] = {"include_usage": True}
        body = body_of(self._api, self._model, prompt, one, wanted, budget) | fields

        def draft() -> Draft:
            return self._known.draft(wanted, one, budget=budget, streamed=True)

        return _Streamed(Ask(self._api, body, sampling=one), draft, budget, self._known.opened)

    def _forewarned(self, asked: _Streamed, error: ServiceError) -> bool:
        """Note what a failed stream shows, and return whether asking again, knowing it, may do."""
        if isinstance(error, UnforeseenThoughtsError):
            self._known.saw_opened()
            return not asked.opened
        return self._known.thinks and not asked.budget

    def _probing(self, prompt: Prompt | None) -> Inquiry[Probe]:
        prompts = PROBE_PROMPTS if prompt is None else (prompt,)
        return probing(self.name, self._model, self._known, self._wanted.vocabulary_size, prompts)

    def _learn(self, found: Probe) -> Probe:
        promised = found.logprobs and found.raw_logprobs is not False
        top = min(self._wanted.top, found.top_logprobs) if promised else 0
        self._wanted = self._wanted._replace(logprobs=self._wanted.logprobs and promised, top=top)
        self._scoring = found.scoring
        self._streams = found.streams and (found.stream_logprobs or not self._wanted.logprobs)
        self._known.together = found.samples
        return found


class _Streamed(NamedTuple):
    """A request for a stream, and what was known when it was made."""

    ask: Ask
    draft: Callable[[], Draft]
    budget: int
    opened: bool


def _finish(begun: PartialGeneration) -> Generation:
    return begun.partial if begun.done else _sync(begun).finish()


async def _afinish(begun: PartialGeneration) -> Generation:
    if begun.done:
        return begun.partial
    if isinstance(begun.state, AsyncOpenStream):
        return await begun.state.finish()
    return await in_thread(_sync(begun).finish)


def _sync(begun: PartialGeneration) -> OpenStream:
    if not isinstance(begun.state, OpenStream):
        raise ConfigurationError(
            "this was begun by another reader, or in an event loop",
            hint="finish it with the reader that began it, and with afinish what abegin began",
        )
    return begun.state
