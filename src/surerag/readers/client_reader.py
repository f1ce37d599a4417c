"""The base class of readers that call a model through a client, such as an SDK.

A derived class says how to call its client. This module decides, for all clients, which parameters to send,
when to repeat a request, and how to read the reply. The coroutines of this module await the async
calls of a client for async callers. For sync callers they use the client's blocking calls, and never suspend.
"""

from __future__ import annotations

import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, cast

from surerag.errors import (
    ConfigurationError,
    InputError,
    LogprobsError,
    LogprobsRefusedError,
    RefusedError,
    ServiceError,
    SureragError,
    ThinkingBudgetError,
    TransientServiceError,
)
from surerag.messages import Chunk, Generation, Prompt, SamplingParams, Usage, as_messages
from surerag.readers.calls import AWAITING, BLOCKING, Blocking, in_thread, run_blocking
from surerag.readers.failures import client_failure, without_secrets
from surerag.readers.logprobs import ANY_VOCABULARY, NO_LOGPROBS_HINT
from surerag.readers.parameters import (
    TEMPERATURE_HINT,
    Change,
    Learned,
    Refusal,
    needed_parameters,
    warn_of_missing_logprobs,
)
from surerag.readers.pieces import THINKING_TOKENS, TrimmedPieces
from surerag.readers.protocol import BaseReader, BegunGeneration, UsageCounter, begun_from_whole
from surerag.readers.reading import THINKING_HINT, Reading, ReplyPart

R = TypeVar("R")
Thinking = bool | Literal["unmarked"]
"""Whether a model thinks; ``"unmarked"`` if the model thinks, and only the end of its thoughts has a mark."""
Keywords = dict[str, Any]
"""Settings of a request under OpenAI's names."""
_GIVES_LOGPROBS, _GIVES_NO_LOGPROBS = "answers have log-probabilities", "answers have none"
_WARNED_OF_LOGPROBS = "a warning said that answers have no log-probabilities"
_THINKS, CLOSES_THOUGHTS = "the model thinks before it answers", "an answer ended thoughts"
_SEED_STEP = 0x9E3779B1
_SEED_RANGE = 2**31


def seed_of(seed: int, sample: int) -> int:
    """Return the seed of sample number ``sample``; sample 0 has the request's own ``seed``."""
    return (seed + sample * _SEED_STEP) % _SEED_RANGE


class Request(NamedTuple):
    """One request to a model.

    Attributes:
        top: Number of likeliest tokens to list for each token. With 0, only each token's own log-probability
            is requested; with None, no log-probability is requested.
        number: Index of this request's first sample among all samples of the prompt.
        drawn: Whether the caller wants several random samples, of which this request may get only some.
        budget: Number of tokens for thoughts, in addition to the maximum length of the answer.
        context: Data that the client's framework needs, such as LangChain's config.
    """

    prompt: Prompt
    sampling: SamplingParams
    top: int | None = None
    number: int = 0
    drawn: bool = False
    streamed: bool = False
    budget: int = 0
    context: Any = None


class ClientReader(BaseReader):
    """Base of readers that call a model through a client, such as an SDK.

    A derived class defines ``name`` and ``capabilities``, what to send (``_keywords``, ``_top``), how to send
    a request (``_call``, ``_open``) and which texts are secret (``_secrets``). The other methods have
    defaults. ``learned`` holds facts about the model, such as the parameters that the model rejects.
    """

    _sync_calls: Blocking = BLOCKING
    advice: str = NO_LOGPROBS_HINT
    """Hint of the error that is raised if required log-probabilities are missing."""
    thinking_tokens: int = THINKING_TOKENS
    """Number of tokens for thoughts that a request to a thinking model adds to the maximum length."""
    thinking_hint: str = THINKING_HINT
    """Hint of the error that is raised if thoughts used up all tokens."""
    vocabulary_size: int = ANY_VOCABULARY
    """Number of tokens in the model's vocabulary, or any larger number."""
    token_pieces: bool = True
    """Whether each piece of a stream is one token."""
    _top_parameter: str = "top_logprobs"
    """Name of the setting for the number of likeliest tokens to list."""

    def __init__(self, *, thinking: Thinking | None = None) -> None:
        if thinking not in (None, True, False, "unmarked"):
            raise ConfigurationError(f"thinking must be True, False, 'unmarked' or None, got {thinking!r}")
        self.thinking = thinking
        self._together = True
        self.learned = Learned()
        self._usage = UsageCounter()

    # Methods that derived classes define or override.

    def _keywords(self, request: Request) -> Keywords:
        """Return the settings of a request under OpenAI's names, including any that the model may reject."""
        raise NotImplementedError

    async def _call(self, request: Request, keywords: Keywords, calls: Blocking) -> Sequence[ReplyPart]:
        """Send a request and return its answers, in order."""
        raise NotImplementedError

    def _open(self, request: Request, keywords: Keywords, calls: Blocking) -> AsyncGenerator[ReplyPart]:
        """Send a request and yield the answer in pieces, as a stream."""
        raise NotImplementedError

    def _secrets(self) -> Iterable[str]:
        """Return the secrets that no error may show."""
        return ()

    def _top(self, sampling: SamplingParams) -> int | None:
        """Return the number of likeliest tokens to request for each token, as in :class:`Request`."""
        raise NotImplementedError

    def _reading(self, request: Request) -> Reading:
        reading = Reading(
            request.sampling,
            top=self._listed_alternatives(request),
            streamed=request.streamed,
            token_pieces=self.token_pieces,
            budget=request.budget,
            in_thoughts=self.thinking == "unmarked",
            limit_sent=self._sends_limit and "max_tokens" not in self.learned.drop,
            vocabulary_size=self.vocabulary_size,
            name=self.name,
            hint=self.advice,
            thinking_hint=self.thinking_hint,
        )
        if request.streamed:
            # The server counts the tokens only at the end of the stream.
            reading.usage = self._counted_usage(None, request.prompt)
        return reading

    def _counted_usage(self, usage: Usage | None, prompt: Prompt) -> Usage:
        """Return a server's token counts; if it did not count the prompt's tokens, estimate their number."""
        usage = usage or Usage(1)
        tokens = usage.prompt_tokens or sum(self.count_tokens(turn.content) for turn in as_messages(prompt))
        return replace(usage, prompt_tokens=tokens)

    def _needed_settings(self, request: Request) -> Collection[str]:
        """Return the settings without which the request's answer would be useless."""
        return needed_parameters(replace(request.sampling, n=2) if request.drawn else request.sampling)

    def _streams(self, sampling: SamplingParams) -> bool:
        """Return whether answers with the requested log-probabilities can be streamed."""
        return self.capabilities.stream

    @property
    def _thinks(self) -> bool:
        return bool(self.thinking) or _THINKS in self.learned

    def _budget(self) -> int:
        """Return the number of tokens to add for thoughts; 0 if the model is not known to think."""
        return self.thinking_tokens if self._thinks else 0

    @property
    def _sends_limit(self) -> bool:
        """Whether the client has a setting for the maximum length of an answer."""
        return True

    @property
    def _retries(self) -> int:
        """Maximum number of repetitions of a request whose connection breaks before the reply was used."""
        return 0

    def _limit(self, items: int) -> int:
        """Return the maximum number of concurrent requests of a call that makes ``items`` requests."""
        return items

    def _run_work(self, work: Coroutine[Any, Any, R]) -> R:
        return run_blocking(self._without_secrets(work))

    async def _await_work(self, work: Coroutine[Any, Any, R]) -> R:
        return await self._without_secrets(work)

    def _hang_up(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine that closes a stream; a finaliser may call this."""
        run_blocking(self._without_secrets(work))

    def _note(self, reading: Reading) -> None:
        """Record whether the model thought; warn if an answer closes thoughts that it did not open."""
        if reading.thought:
            self.learned.note(_THINKS)
        elif reading.finish is not None:
            self.learned.forget(_THINKS)
        if reading.closes_thoughts and not self.thinking and self.learned.note(CLOSES_THOUGHTS):
            warnings.warn(
                f"an answer of {self.name} holds </think> without <think>, and is returned unchanged; if the "
                'model\'s prompt template begins the thoughts, build the reader with thinking="unmarked"',
                stacklevel=2,
            )

    # The methods of a reader.

    @property
    def gives_logprobs(self) -> bool:
        """Whether the model is expected to return log-probabilities with its answers."""
        return self.capabilities.logprobs and _GIVES_NO_LOGPROBS not in self.learned

    @property
    def usage(self) -> Usage:
        """Numbers of answered requests, and of tokens in their prompts and answers."""
        return self._usage.total

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order.

        If a server returns fewer samples than requested, the missing samples are requested again. At
        temperature 0, only one answer is generated; it is returned as every sample.

        Raises:
            ServiceError: If the server fails, or sends a malformed answer.
        """
        return self._run_work(self._generate(prompts, sampling, self._sync_calls))

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[BegunGeneration]:
        """Begin an answer to each prompt: read ``n_tokens`` tokens of the answer; the stream stays open."""
        return self._run_work(self._begin(prompts, n_tokens, sampling, self._sync_calls))

    async def _await_verb(self, verb: Callable[..., R], *arguments: Any) -> R:
        """Run a method such as ``generate`` without blocking the event loop.

        If the client's I/O is asynchronous, await the reader's own coroutine, here ``_generate``. Otherwise,
        run the method in a thread.
        """
        work = getattr(self, f"_{getattr(verb, '__name__', '')}", None)
        if work is None or not self.capabilities.native_async:
            return await in_thread(verb, *arguments)
        coroutine: Coroutine[Any, Any, R] = work(*arguments, AWAITING)
        return await self._await_work(coroutine)

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer piece by piece; closing the iterator closes the connection."""
        if not self._streams(sampling):
            return super().stream(prompt, sampling)
        return self._iterate(self._chunks(self._request(prompt, replace(sampling, n=1)), self._sync_calls))

    def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``, without blocking the event loop."""
        if not (self.capabilities.native_async and self._streams(sampling)):
            return super().astream(prompt, sampling)
        return self._aiterate(self._chunks(self._request(prompt, replace(sampling, n=1)), AWAITING))

    # Requests.

    def _request(self, prompt: Prompt, sampling: SamplingParams) -> Request:
        useless = sampling.optional_trace and _GIVES_NO_LOGPROBS in self.learned
        return Request(prompt, sampling, None if useless else self._top(sampling))

    def _listed_alternatives(self, request: Request) -> int | None:
        """Return how many alternatives of each token to request: at most as many as the model lists."""
        most = self.learned.cap.get(self._top_parameter)
        return request.top if most is None or request.top is None else min(request.top, most)

    def _allowed_keywords(self, request: Request, trial: Sequence[Change] = ()) -> Keywords:
        """Adapt a request's settings to the model; if a needed setting is rejected, raise RefusedError."""
        whole = self._keywords(request)
        if missing := sorted(self.learned.drop & set(self._needed_settings(request)) & set(whole)):
            message = f"{self.name} rejects {' and '.join(missing)}"
            if "logprobs" in missing[0]:
                raise LogprobsRefusedError(message, hint=self.advice)
            raise RefusedError(message, hint=TEMPERATURE_HINT if missing[0] == "temperature" else "")
        return self.learned.apply(whole, trial)

    def _suggested_changes(
        self, error: Exception, request: Request, sent: Keywords, trial: Sequence[Change]
    ) -> list[Change]:
        """Return changes with which a refused request may succeed; raise the error if no change can help."""
        failure, whole = self._failure(error), self._keywords(request)
        if not isinstance(failure, RefusedError):
            raise failure
        if self.learned.apply(whole, trial) != sent:
            # Meanwhile a concurrent request has changed the settings that this reader sends. So this request
            # is sent again with the new settings.
            return []
        texts = [turn.content for turn in as_messages(request.prompt)]
        refusal = Refusal.of(failure.message, failure.parameters, [*texts, *_texts_in(whole)])
        changes = self.learned.suggested(refusal, whole, trial, self._needed_settings(request))
        if changes:
            return changes
        if refusal.concerns("logprobs") and "logprobs" in sent:
            raise LogprobsRefusedError(failure.message, hint=self.advice) from failure.__cause__
        hint = TEMPERATURE_HINT if refusal.concerns("temperature") and "temperature" in sent else failure.hint
        raise RefusedError(failure.message, hint=hint, parameters=failure.parameters) from failure.__cause__

    def _failure(self, error: Exception) -> SureragError:
        return client_failure(error, self.name, self._secrets())

    async def _without_secrets(self, work: Coroutine[Any, Any, R]) -> R:
        try:
            return await work
        except Exception as error:
            failure = without_secrets(error, self._secrets())
        raise failure

    # Whole answers.

    async def _generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, calls: Blocking
    ) -> list[list[Generation]]:
        count = sampling.n if sampling.temperature > 0 else 1
        size = count if self._together else 1
        requests = [
            (place, self._sample(prompt, sampling, number, size, drawn=count > 1))
            for place, prompt in enumerate(prompts)
            for number in range(0, count, size)
        ]
        rows: list[list[Generation]] = [[] for _ in prompts]
        while requests:
            answered = await calls.each(
                lambda item: self.answers(item[1], calls), requests, self._limit(len(requests))
            )
            missing = []
            for (place, request), answers in zip(requests, answered, strict=True):
                rows[place] += answers[: request.sampling.n]
                missing += [
                    (place, self._sample(prompts[place], sampling, request.number + number, 1, drawn=True))
                    for number in range(len(answers), request.sampling.n)
                ]
                self._together = self._together and (len(answers) > 1 or not missing)
            requests = missing
        return [row * (sampling.n // count) for row in rows]

    def _sample(
        self, prompt: Prompt, sampling: SamplingParams, number: int, size: int, *, drawn: bool
    ) -> Request:
        some = replace(sampling, n=size, seed=seed_of(sampling.seed, number))
        return self._request(prompt, some)._replace(number=number, drawn=drawn)

    async def answers(self, request: Request, calls: Blocking) -> list[Generation]:
        """Send a request and return its answers as generations."""
        readings = await self.readings(request, calls)
        answers = [reading.generation() for reading in readings]
        if request.top is not None:
            self._note_logprobs(request, readings, lacks=any(answer.trace is None for answer in answers))
        return answers

    def _note_logprobs(self, request: Request, readings: Iterable[Reading], *, lacks: bool) -> None:
        """Record whether the model returns log-probabilities; warn once if an answer ``lacks`` them."""
        readings = [reading for reading in readings if reading.text.strip()]
        if any(reading.entries for reading in readings):
            self.learned.note(_GIVES_LOGPROBS)
        elif readings and _GIVES_LOGPROBS not in self.learned:
            self.learned.note(_GIVES_NO_LOGPROBS)
        if lacks and request.sampling.refusable_trace and self.learned.note(_WARNED_OF_LOGPROBS):
            warn_of_missing_logprobs(self.name)

    async def readings(self, request: Request, calls: Blocking) -> list[Reading]:
        """Send a request and return a :class:`Reading` for each answer.

        If thoughts left too few tokens for the answers, the request is repeated with more tokens.
        """
        readings = await self.read_answers(request._replace(budget=self._budget()), calls)
        if self.thinking_tokens and any(reading.starved for reading in readings[: request.sampling.n]):
            readings = await self.read_answers(request._replace(budget=self.thinking_tokens), calls)
        return readings

    async def read_answers(self, request: Request, calls: Blocking) -> list[Reading]:
        """Send a request and return a :class:`Reading` for each answer.

        If optional log-probabilities cause an error, the request is repeated without them.
        """
        while True:
            try:
                parts = await self._send(request, calls)
                break
            except LogprobsError:
                if not request.sampling.refusable_trace or request.top is None:
                    raise
            request = request._replace(top=None)
        usage = self._counted_usage(parts[0].usage, request.prompt)
        readings = [self._reading(request) for _ in parts]
        for reading, part in zip(readings, parts, strict=True):
            reading.feed(part._replace(usage=_usage_share(usage, len(parts))))
            self._note(reading)
        # The server counts the thinking tokens of all answers together.
        thinking = usage.thinking_tokens or min(
            sum(reading.thinking_tokens for reading in readings), usage.completion_tokens
        )
        answered = usage.completion_tokens - (thinking - usage.thinking_tokens)
        self._usage.add(Usage(1, usage.prompt_tokens, answered, thinking, usage.cached_tokens))
        return readings

    async def _send(self, request: Request, calls: Blocking) -> Sequence[ReplyPart]:
        """Send a request; if the model rejects parameters, repeat the request with the parameters changed.

        If the connection breaks, repeat the request at most ``_retries`` times.
        """
        trial: list[Change] = []
        retries = self._retries
        while True:
            keywords = self._allowed_keywords(request, trial)
            try:
                parts = await self._call(request, keywords, calls)
            except Exception as error:
                failure = error
            else:
                if not parts:
                    raise ServiceError(
                        f"{self.name} returned no answer", hint="look at what the model's server returns"
                    )
                self.learned.confirm(trial, self.name)
                return parts
            # The error is handled outside of ``except``. Otherwise a new error would keep the client's error,
            # which may hold a secret, as its ``__context__``.
            if retries and getattr(self._failure(failure), "broken", False):
                retries -= 1
            else:
                trial += self._suggested_changes(failure, request, keywords, trial)

    # Streams.

    async def _begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams, calls: Blocking
    ) -> list[BegunGeneration]:
        if self.capabilities.begin != "native":
            answers = await self._generate(prompts, replace(sampling, n=1), calls)
            return [begun_from_whole(answer, n_tokens) for (answer,) in answers]
        requests = [self._request(prompt, replace(sampling, n=1)) for prompt in prompts]
        begun: list[BegunGeneration] = []

        async def start(request: Request) -> BegunGeneration:
            item = await self._start(request, n_tokens, calls)
            begun.append(item)
            return item

        try:
            return await calls.each(start, requests, self._limit(len(prompts)))
        except BaseException:
            for item in begun:
                if isinstance(item, BegunStream):
                    await item._close()
            raise

    async def _start(self, request: Request, n_tokens: int, calls: Blocking) -> BegunGeneration:
        request = request._replace(streamed=True, budget=self._budget())
        while True:
            stream = self.open_stream(request, calls)
            try:
                begun = await stream.until(n_tokens)
            except ThinkingBudgetError:
                self._note(stream.reading)
                if request.budget or not self.thinking_tokens:
                    raise
                request = request._replace(budget=self.thinking_tokens)
            else:
                self._note(stream.reading)
                if request.top is not None:
                    self._note_logprobs(request, [stream.reading], lacks=begun.partial.trace is None)
                return begun

    def open_stream(self, request: Request, calls: Blocking) -> BegunStream:
        """Return a begun answer whose stream has not been read yet."""
        return BegunStream(self, request, calls)

    async def _parts(self, request: Request, reading: Reading, calls: Blocking) -> AsyncGenerator[ReplyPart]:
        began, trial = False, list[Change]()
        try:
            while True:
                try:
                    keywords = self._allowed_keywords(request, trial)
                    try:
                        async with aclosing(self._open(request, keywords, calls)) as parts:
                            async for part in parts:
                                if not began:
                                    began = True
                                    self.learned.confirm(trial, self.name)
                                yield part
                        return
                    except Exception as error:
                        failure = error
                    if began:
                        raise self._failure(failure)
                    trial += self._suggested_changes(failure, request, keywords, trial)
                except LogprobsError:
                    if began or not request.sampling.refusable_trace or request.top is None:
                        raise
                    request = request._replace(top=None)
        finally:
            if began:
                self._note_end(reading)

    def _note_end(self, reading: Reading) -> None:
        """Record a stream's token counts and whether the model thought, once for each ``reading``."""
        if not reading.counted:
            reading.counted = True
            self._usage.add(reading.spent())
            ClientReader._note(self, reading)

    async def _chunks(self, request: Request, calls: Blocking) -> AsyncGenerator[Chunk]:
        begun = await self._start(request, 1, calls)
        if not isinstance(begun, BegunStream):
            for chunk in begun.chunks():
                yield chunk
            return
        async with aclosing(begun._chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    def _iterate(self, chunks: AsyncGenerator[Chunk]) -> Iterator[Chunk]:
        try:
            while (chunk := self._run_work(_next(chunks))) is not None:
                yield chunk
        finally:
            self._hang_up(chunks.aclose())

    async def _aiterate(self, chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
        try:
            while (chunk := await self._await_work(_next(chunks))) is not None:
                yield chunk
        finally:
            await self._await_work(chunks.aclose())


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(one)
    elif isinstance(value, str):
        yield value


async def _next(chunks: AsyncGenerator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)


def _usage_share(usage: Usage, answers: int) -> Usage:
    """Return one answer's share of the token counts that a server gave for several answers together."""
    if answers == 1:
        return usage
    return Usage(1, usage.prompt_tokens, 0, -(-usage.thinking_tokens // answers), usage.cached_tokens)


class BegunStream(BegunGeneration):
    """An answer that is read from a stream as far as needed, and later completed or closed.

    If the connection breaks, the whole answer is requested again, unless the caller has already received part
    of the text.

    Raises:
        InputError: From ``rest`` and ``chunks``, if the answer was completed or closed before.
    """

    def __init__(self, reader: ClientReader, request: Request, calls: Blocking) -> None:
        self.whole = None
        self._reader, self._request, self._calls = reader, request, calls
        self._retries = reader._retries
        self._has_shown_text = False
        self._open()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an answer that is still being generated cannot be copied or pickled; call rest() and copy "
            "the generation that it returns"
        )

    def _open(self) -> None:
        self.reading = self._reader._reading(self._request)
        self._parts = self._reader._parts(self._request, self.reading, self._calls)
        self._trimmed, self._text = TrimmedPieces(), ""
        self._began = self._ended = False

    def rest(self) -> Generation:
        """Read the stream to its end, and return the whole answer."""
        return self._reader._run_work(self._rest())

    def chunks(self) -> Iterator[Chunk]:
        """Yield the whole text of the answer; closing the iterator closes the connection."""
        return self._reader._iterate(self._chunks())

    def close(self) -> None:
        """Close the connection; closing again does nothing."""
        self._reader._note_end(self.reading)
        self._reader._hang_up(self._close())

    async def arest(self) -> Generation:
        """Like ``rest``, without blocking the event loop."""
        return await (self._reader._await_work(self._rest()) if self._calls.prefix else super().arest())

    def achunks(self) -> AsyncIterator[Chunk]:
        """Like ``chunks``, without blocking the event loop."""
        return self._reader._aiterate(self._chunks()) if self._calls.prefix else super().achunks()

    async def aclose(self) -> None:
        """Like ``close``, without blocking the event loop."""
        await (self._reader._await_work(self._close()) if self._calls.prefix else super().aclose())

    async def until(self, n_tokens: int) -> BegunGeneration:
        """Read the answer's first ``n_tokens`` tokens, or the whole answer if it has fewer.

        Raises:
            ThinkingBudgetError: If thoughts used up all tokens.
        """
        try:
            while not self._ended and (
                self.reading.finish is not None or not self.reading.has_tokens(n_tokens)
            ):
                await self._advance()
            if self.reading.starved:
                raise self.reading.budget_error()
            if self._ended:
                return begun_from_whole(self.reading.generation(), n_tokens)
            self.partial = self.reading.generation(n_tokens)
            return self
        except BaseException:
            await self._close()
            raise

    async def _rest(self) -> Generation:
        return cast("Generation", [chunk async for chunk in self._read(shows=False)][-1].generation)

    def _chunks(self) -> AsyncGenerator[Chunk]:
        return self._read(shows=True)

    async def _read(self, *, shows: bool) -> AsyncGenerator[Chunk]:
        self._check_open()
        self._end("completed")
        try:
            while True:
                if shows and self._text:
                    piece, self._text = self._text, ""
                    self._has_shown_text = True
                    yield Chunk(piece)
                if self._ended:
                    break
                await self._advance()
            if self.reading.finish is None:
                raise self._end_error()
            yield Chunk("", self.reading.generation())
        finally:
            await self._close()

    async def _close(self) -> None:
        if not self._ended:
            self._fate = "closed"
        self._end("closed")
        self._ended = True
        # If another task is reading the next part, that task closes the connection afterwards.
        if not getattr(self._parts, "ag_running", False):
            await self._parts.aclose()

    def _end_error(self) -> SureragError:
        if self._fate == "closed":
            return InputError(
                "this generation was closed while its answer was read", hint="begin the generation again"
            )
        return self.reading.cut_off_error()

    async def _advance(self) -> None:
        """Read the next part; after a transient failure, repeat the request if the caller has no text yet."""
        try:
            part = None if self.reading.full else await anext(self._parts, None)
            if part is None and self.reading.finish is None:
                raise self._end_error()
        except TransientServiceError as error:
            if self._has_shown_text or self._ended or not self._retries or not (self._began or error.broken):
                raise
            self._retries -= 1
            self._open()
            return
        self._began = True
        if part is not None:
            self._text += self._trimmed.feed(self.reading.feed(part))
        if part is None or self.reading.full or self._ended:
            self._ended = True
            await self._parts.aclose()
