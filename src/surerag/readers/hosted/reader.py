"""Readers behind an OpenAI-compatible API: OpenAI itself, vLLM, llama.cpp and whatever speaks like them."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    RefusedError,
    ThinkingBudgetError,
)
from surerag.messages import Chunk, Generation, PartialGeneration, Prompt, SamplingParams, TokenTrace, Usage
from surerag.readers.hosted.answers import Draft, OpenedThoughtsError, choices_of, usage_of
from surerag.readers.hosted.client import PARAMETER_HINTS, Client, arun, each, run, without_secrets
from surerag.readers.hosted.parameters import SupportedParameters, needed_parameters, warn_of_dropped
from surerag.readers.hosted.probe import PROBE_PROMPTS, Probe, probe
from surerag.readers.hosted.requests import (
    THINKING_OFF,
    Api,
    Scoring,
    TokenDetails,
    body_of,
    details_for,
    scoring_body,
    seed_of,
)
from surerag.readers.hosted.scoring import score_trace
from surerag.readers.hosted.streams import OpenAnswer
from surerag.readers.pieces import UsageCounter
from surerag.readers.protocol import BaseReader, Capabilities
from surerag.readers.thinking import THINKING_TOKENS

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Json = Mapping[str, Any]
R = TypeVar("R")
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
        self._model = model
        self._api: Api = api
        self._details = TokenDetails(True, _TOP_LOGPROBS[api] if top_logprobs is None else top_logprobs)
        self._thinking = thinking
        self._thinks = thinking is True
        self._opened = False
        self._max_tokens = max_tokens
        self._extra_body = dict(extra_body or {})
        self._supported = SupportedParameters()
        self._scoring: Scoring | None = None
        self._streams = True
        self._together = True
        self._usage = UsageCounter()
        self._client = Client(
            base_url,
            api_key,
            timeout=timeout,
            max_retries=max_retries,
            max_concurrency=max_concurrency,
            own=client,
            secrets=self._extra_body,
        )

    def __repr__(self) -> str:
        return f"OpenAIReader({self.name!r}, api={self._api!r}, top_logprobs={self._details.top})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_extra_body": without_secrets(self._extra_body)}

    def __copy__(self) -> OpenAIReader:
        """Return the reader itself: copies of a pipeline share its client, which no copy could carry."""
        return self

    def __deepcopy__(self, memo: object) -> OpenAIReader:
        """Return the reader itself, as a shallow copy does."""
        return self

    @property
    def name(self) -> str:
        """Model and address, without credentials: the paths of one host may lead to different models."""
        return f"{self._model}@{self._client.address}"

    @property
    def max_tokens(self) -> int:
        """Length of an answer at most, where a method sets none."""
        return self._max_tokens or super().max_tokens

    @property
    def capabilities(self) -> Capabilities:
        """What the server is asked for, and, once probed, what it does."""
        return Capabilities(
            logprobs=self._details.logprobs,
            entropy="bounded" if self._details.top else None,
            score=self._details.logprobs and self._scoring is not None,
            begin="native" if self._streams else "whole",
            stream=self._streams,
            native_async=True,
            thinking="apart" if self._thinks else "off" if self._thinking is False else "none",
        )

    @property
    def usage(self) -> Usage:
        """Requests that were answered, and the tokens that the server counted for them."""
        return self._usage.total

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
        return run(each([self._samples(prompt, sampling) for prompt in prompts]))

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``, without blocking the event loop."""
        return await arun(each([self._samples(prompt, sampling) for prompt in prompts]))

    def score(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Return the trace of each continuation after its prompt.

        Raises:
            CapabilityError: If the server cannot score, or was not probed yet.
            ServiceError: As ``generate``.
        """
        return run(each(self._scores(prompts, continuations)))

    async def ascore(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Like ``score``, without blocking the event loop."""
        return await arun(each(self._scores(prompts, continuations)))

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Return the first ``n_tokens`` tokens for each prompt, the rest of its stream unread."""
        if not self._streams:
            return super().begin(prompts, n_tokens, sampling)
        return run(self._begin_all(prompts, n_tokens, sampling))

    async def abegin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Like ``begin``, without blocking the event loop."""
        if not self._streams:
            return await super().abegin(prompts, n_tokens, sampling)
        return await arun(self._begin_all(prompts, n_tokens, sampling))

    def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Return whole generations of what was begun, reading their streams on; each once."""
        return run(each([self._finish(item) for item in begun]))

    async def afinish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Like ``finish``, without blocking the event loop."""
        return await arun(each([self._finish(item) for item in begun]))

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close the streams of what was begun; those that are closed already stay as they are."""
        for item in begun:
            if isinstance(item.state, OpenAnswer):
                item.state.close()

    async def acancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Like ``cancel``: neither of them waits."""
        self.cancel(begun)

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer piece by piece; closing the iterator closes the connection."""
        if not self._streams:
            return super().stream(prompt, sampling)
        return self._chunks(partial(self._begin, prompt, 1, sampling))

    def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``, without blocking the event loop."""
        if not self._streams:
            return super().astream(prompt, sampling)
        return self._achunks(partial(self._begin, prompt, 1, sampling))

    def finish_stream(self, begun: PartialGeneration) -> Iterator[Chunk]:
        """Yield what was begun from its first token on; closing the iterator closes the connection."""
        return self._chunks(partial(_ready, begun))

    def afinish_stream(self, begun: PartialGeneration) -> AsyncIterator[Chunk]:
        """Like ``finish_stream``, without blocking the event loop."""
        return self._achunks(partial(_ready, begun))

    def probe(self, prompt: Prompt | None = None) -> Probe:
        """Find out what the server can do, by asking it about a dozen small questions.

        From then on ``capabilities`` tell it, and what the server lacks is not requested.

        Args:
            prompt: What to ask; it should be answered with a few words. Default one of several.

        Raises:
            ServiceError: If the server does not even answer a plain question.
        """
        return self._learn(run(probe(self, PROBE_PROMPTS if prompt is None else (prompt,))))

    async def aprobe(self, prompt: Prompt | None = None) -> Probe:
        """Like ``probe``, without blocking the event loop."""
        return self._learn(await arun(probe(self, PROBE_PROMPTS if prompt is None else (prompt,))))

    def close(self) -> None:
        """Close the client, unless it is yours; another is made when it is needed."""
        run(self._client.aclose())

    async def aclose(self) -> None:
        """Like ``close``, without blocking the event loop."""
        await arun(self._client.aclose())

    async def _samples(self, prompt: Prompt, sampling: SamplingParams) -> list[Generation]:
        """Ask for ``sampling.n`` answers, and again for those that were left out or had no room."""
        details = details_for(sampling, self._details)
        count = sampling.n if sampling.temperature > 0 else 1
        answers: list[Generation] = []
        while len(answers) < count:
            budget, start = self._budget, len(answers)
            sizes = [count - start] if self._together else [1] * (count - start)
            parts = [
                replace(sampling, n=size, seed=seed_of(sampling.seed, start + place))
                for place, size in enumerate(sizes)
            ]
            bodies = [body_of(self._api, self._model, prompt, part, details, budget) for part in parts]
            # What may be left out is a matter of all samples, also where they are requested one by one.
            needed = needed_parameters(replace(sampling, n=count))
            replies = await each([self._post(body, needed, sampling) for body in bodies])
            for reply, size in zip(replies, sizes, strict=True):
                drafts = self._read(reply, details, sampling, budget)[:size]
                if not any(draft.starved for draft in drafts):
                    answers += [draft.generation() for draft in drafts]
                self._together = self._together and (len(drafts) == size or len(drafts) > 1)
        return answers * (sampling.n if count == 1 else 1)

    def _read(self, reply: Json, details: TokenDetails, sampling: SamplingParams, budget: int) -> list[Draft]:
        """Read all choices of one reply; its usage is one sum for all of them."""
        choices, usage = choices_of(reply), usage_of(reply)
        share = usage
        if len(choices) > 1:
            thinking = -(-usage.thinking_tokens // len(choices))
            share = Usage(1, usage.prompt_tokens, 0, thinking, usage.cached_tokens)
        drafts = []
        for choice in choices:
            draft = self._draft(details, sampling, budget=budget, usage=share)
            draft.feed(choice)
            self._note(draft)
            drafts.append(draft)
        thinking = usage.thinking_tokens or min(
            sum(draft.thinking_tokens for draft in drafts), usage.completion_tokens
        )
        answered = usage.completion_tokens - (thinking - usage.thinking_tokens)
        self._usage.add(Usage(1, usage.prompt_tokens, answered, thinking, usage.cached_tokens))
        return drafts

    def _scores(
        self, prompts: Sequence[Prompt], continuations: Sequence[str]
    ) -> list[Coroutine[Any, Any, TokenTrace]]:
        if self._scoring is None or not self._details.logprobs:
            raise CapabilityError(
                f"{self.name} is not known to score given text",
                hint='call probe() to find out whether it can; api="completions" can more often than "chat"',
            )
        return [self._score(self._scoring, *pair) for pair in zip(prompts, continuations, strict=True)]

    async def _score(self, how: Scoring, prompt: Prompt, continuation: str) -> TokenTrace:
        if not continuation:
            return TokenTrace((), ())
        details = TokenDetails(True, 0)
        body = scoring_body(how, self._api, self._model, prompt, continuation, details)
        reply = await self._post(body, set(body))
        self._usage.add(usage_of(reply))
        return score_trace(how, reply, prompt, continuation, details)

    async def _begin_all(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        begun: list[PartialGeneration] = []

        async def one(prompt: Prompt) -> PartialGeneration:
            begun.append(await self._begin(prompt, n_tokens, sampling))
            return begun[-1]

        try:
            return await each([one(prompt) for prompt in prompts])
        except BaseException:
            self.cancel(begun)
            raise

    async def _begin(self, prompt: Prompt, n_tokens: int, sampling: SamplingParams) -> PartialGeneration:
        """Open a stream and read its first tokens; again, if only then it shows that the model thinks."""
        one, details = replace(sampling, n=1), details_for(sampling, self._details)
        for again in (False, True):
            answer = await self._open(prompt, one, details)
            try:
                async with await self._client.turn():
                    begun = await answer.read(n_tokens)
                self._note(answer.draft)
                return begun
            except ThinkingBudgetError:
                self._note(answer.draft)
                if again or answer.draft.budget:
                    raise
            except OpenedThoughtsError:
                if again:
                    raise
            except BaseException:
                answer.close()
                raise
        raise AssertionError("unreachable")

    async def _open(self, prompt: Prompt, sampling: SamplingParams, details: TokenDetails) -> OpenAnswer:
        budget = self._budget
        body = body_of(self._api, self._model, prompt, sampling, details, budget)
        body["stream_options"] = {"include_usage": True}
        events = await self._send(self._client.open, body, needed_parameters(sampling), sampling)
        draft = self._draft(details, sampling, budget=budget, streamed=True)
        return OpenAnswer(events, draft, self._ended)

    def _ended(self, draft: Draft) -> None:
        self._usage.add(draft.spent())
        self._opened = self._opened or draft.opened
        self._thinks = self._thinks or draft.opened

    async def _finish(self, begun: PartialGeneration) -> Generation:
        if begun.done:
            return begun.partial
        if isinstance(begun.state, Generation):
            return begun.state
        answer = _open_answer(begun)
        answer.claim()
        async with await self._client.turn():
            while (chunk := await answer.chunk()) is not None:
                whole = chunk.generation
        return whole or answer.whole()

    def _chunks(self, begin: Callable[[], Coroutine[Any, Any, PartialGeneration]]) -> Iterator[Chunk]:
        begun = run(begin())
        if not isinstance(begun.state, OpenAnswer) or begun.done:
            yield from _whole(begun)
            return
        begun.state.claim()
        try:
            while (chunk := run(begun.state.chunk())) is not None:
                yield chunk
        finally:
            begun.state.abandon()

    async def _achunks(
        self, begin: Callable[[], Coroutine[Any, Any, PartialGeneration]]
    ) -> AsyncIterator[Chunk]:
        begun = await arun(begin())
        if not isinstance(begun.state, OpenAnswer) or begun.done:
            for chunk in _whole(begun):
                yield chunk
            return
        begun.state.claim()
        try:
            while True:
                piece: Chunk | None = await arun(begun.state.chunk())
                if piece is None:
                    return
                yield piece
        finally:
            begun.state.abandon()

    async def _post(
        self, body: Json, needed: Collection[str], sampling: SamplingParams | None = None
    ) -> Json:
        return await self._send(self._client.post, body, needed, sampling)

    async def _send(
        self,
        ask: Callable[[Json], Awaitable[R]],
        body: Json,
        needed: Collection[str],
        sampling: SamplingParams | None,
    ) -> R:
        """Send a request; again without what the model rejects and the answer can do without."""
        switches = THINKING_OFF if self._thinking is False and self._api == "chat" else {}
        whole = {**switches, **body, **self._extra_body}
        needed = {*needed, *self._extra_body}
        while True:
            if missing := sorted(self._supported.drop & needed & set(whole)):
                raise RefusedError(
                    f"{self.name} rejects {' and '.join(missing)}", hint=PARAMETER_HINTS.get(missing[0], "")
                )
            before, sent = set(self._supported.drop), self._supported.apply(whole)
            try:
                return await ask(sent)
            except RefusedError as error:
                # A request beside this one may have taught the same.
                learnt = self._supported.apply(whole) != sent
                if not learnt and not self._supported.learn(str(error), whole, needed):
                    raise
            if sampling is not None:
                warn_of_dropped(self.name, self._supported.drop - before, sampling)

    @property
    def _budget(self) -> int:
        """Tokens granted for thoughts."""
        return THINKING_TOKENS if self._thinks else 0

    def _draft(
        self,
        details: TokenDetails,
        sampling: SamplingParams,
        *,
        budget: int,
        usage: Usage | None = None,
        streamed: bool = False,
    ) -> Draft:
        listed = self._supported.cap.get("top_logprobs" if self._api == "chat" else "logprobs", details.top)
        return Draft(
            details._replace(top=min(details.top, listed)),
            limit=sampling.max_tokens,
            stop=sampling.stop,
            opened=self._opened,
            budget=budget,
            streamed=streamed,
            usage=usage or Usage(),
        )

    def _note(self, draft: Draft) -> None:
        """Note whether the model thinks.

        Raises:
            CapabilityError: If it does, although thinking was switched off.
        """
        if not draft.thought:
            return
        if self._thinking is False:
            raise CapabilityError(
                f"{self.name} thinks before it answers although thinking=False was passed",
                hint="use thinking=None, or a model whose thinking can be switched off",
            )
        self._thinks, self._opened = True, self._opened or draft.opened

    def _learn(self, result: Probe) -> Probe:
        promised = result.logprobs and result.raw_logprobs is not False
        self._details = TokenDetails(promised, min(self._details.top, result.top_logprobs) if promised else 0)
        self._scoring = result.scoring
        self._streams = result.streams and (result.stream_logprobs or not promised)
        self._together = result.samples
        return result


def _open_answer(begun: PartialGeneration) -> OpenAnswer:
    if not isinstance(begun.state, OpenAnswer):
        raise ConfigurationError(
            "this was begun by another reader", hint="finish it with the reader that began it"
        )
    return begun.state


async def _ready(begun: PartialGeneration) -> PartialGeneration:
    if not begun.done and not isinstance(begun.state, Generation):
        _open_answer(begun)
    return begun


def _whole(begun: PartialGeneration) -> Iterator[Chunk]:
    whole = begun.state if isinstance(begun.state, Generation) else begun.partial
    yield Chunk(whole.text, whole)
