"""A fake reader that answers from a script, for tests of your own code and of surerag."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from surerag.errors import ConfigurationError, ServiceError
from surerag.messages import (
    Chunk,
    EntropyTrace,
    Generation,
    Prompt,
    SamplingParams,
    TokenTrace,
    Usage,
    as_messages,
)
from surerag.readers.pieces import TrimmedPieces, cut_at_stop
from surerag.readers.protocol import BaseReader, BegunGeneration, Capabilities, UsageCounter, first_tokens

__all__ = ["Call", "FakeReader", "Reply", "Verb", "reply"]

R = TypeVar("R")
Verb = Literal["generate", "begin", "rest", "chunks", "close", "stream"]
Answer = str | Generation | BaseException | type[BaseException]
Reply = Answer | Callable[[str], Answer]
"""A reply in a script: a text, a generation, an error to raise, or a function of the prompt's text."""


def reply(
    text: str,
    *,
    entropy: float | Sequence[float] | EntropyTrace | None = 0.1,
    logprobs: float | Sequence[float] | None = -0.1,
    end_logprob: float | None = None,
) -> Generation:
    """Return a generation with a given text; each token is a word with the white space before it.

    Args:
        text: The answer.
        entropy: Entropy [nats]: one value for each token, or a single value for all tokens; an
            :class:`EntropyTrace` for intervals; None for no entropies.
        logprobs: Log-probability [nats]: one value for each token, or a single value for all tokens; None
            for a generation without a trace.
        end_logprob: Log-probability [nats] of the end token; None if it is not known.

    Example:
        >>> reply("In Velm.", entropy=[0.2, 2.1]).trace.entropy.lower
        (0.2, 2.1)
    """
    tokens = _words(text)
    trace = None
    if logprobs is not None:
        column = _column("logprobs", logprobs, tokens)
        if entropy is None or isinstance(entropy, EntropyTrace):
            trace = TokenTrace(tokens, column, entropy, end_logprob=end_logprob)
        else:
            values = _column("entropy", entropy, tokens)
            exact = EntropyTrace(values, values, exact=True)
            trace = TokenTrace(tokens, column, exact, end_logprob=end_logprob)
    return Generation(text.strip(), trace=trace, completion_tokens=len(tokens))


def _column(name: str, values: float | Sequence[float], tokens: tuple[str, ...]) -> tuple[float, ...]:
    if isinstance(values, int | float):
        return (float(values),) * len(tokens)
    if len(values) != len(tokens):
        raise ConfigurationError(
            f"{name} has {len(values)} values for {len(tokens)} tokens {list(tokens)}",
            hint="give one value for each word, or a single number for all",
        )
    return tuple(float(value) for value in values)


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\s*\S+", text))


def _tokens_of(generation: Generation) -> tuple[str, ...]:
    return generation.trace.tokens if generation.trace is not None else _words(generation.text)


def _head(generation: Generation, count: int) -> Generation:
    text = "".join(_tokens_of(generation)[:count]).strip()
    trace = generation.trace and first_tokens(generation.trace, count)
    return replace(generation, text=text, trace=trace, completion_tokens=count)


def _limited(generation: Generation, sampling: SamplingParams) -> Generation:
    tokens = _tokens_of(generation)
    text = ""
    for count, token in enumerate(tokens[: sampling.limit], start=1):
        text += token
        before = cut_at_stop(text, sampling.stop)
        if before is not None:
            return replace(_head(generation, count), text=before.strip(), finish="stop")
    if len(tokens) > sampling.limit:
        return replace(_head(generation, sampling.limit), finish="length")
    return replace(generation, completion_tokens=len(tokens))


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call of a fake reader, or of a generation that the reader began.

    ``rest``, ``chunks`` and ``close`` are calls of a begun generation. A call of an async method is recorded
    under the sync method's name; ``n_tokens`` is the argument of ``begin``.
    """

    verb: Verb
    prompts: tuple[str, ...]
    sampling: SamplingParams | None = None
    n_tokens: int | None = None


_LATEST = 10_000
"""Minimum number of calls that the history keeps; older calls are dropped to limit memory."""


class _BegunReply(BegunGeneration):
    def __init__(self, reader: FakeReader, prompt: str, whole: Generation, emitted: int) -> None:
        super().__init__(replace(_head(whole, emitted), finish="partial"))
        if emitted == whole.completion_tokens:
            self.partial = self.whole = whole
        else:
            reader._open.add(self)
        self._reader, self._prompt, self._reply, self._emitted = reader, prompt, whole, emitted

    def rest(self) -> Generation:
        self._complete("rest")
        self._reader._count(0, self._reply.completion_tokens - self._emitted, requests=0)
        return self._reply

    def chunks(self) -> Iterator[Chunk]:
        self._complete("chunks")
        yield from self._reader._pieces(self._reply, self._emitted)

    def close(self) -> None:
        self._reader._note("close", [self._prompt], None)
        self._end("closed")
        self._reader._open.discard(self)

    def _complete(self, verb: Verb) -> None:
        self._reader._note(verb, [self._prompt], None)
        if not self.done:
            self._check_open()
        self._end("completed")
        self._reader._open.discard(self)

    async def arest(self) -> Generation:
        return self.rest()

    async def aclose(self) -> None:
        self.close()


class FakeReader(BaseReader):
    """A fake reader with a queue of replies and a history of calls.

    Every answer (each sample of a prompt, and each begun or streamed answer) takes the next reply from the
    queue. Begun generations and streaming work as in a real reader, so that you can test methods that stop
    an answer early. ``usage`` counts answers and words; ``open_handles`` counts answers that are left open.

    Args:
        replies: The queue of replies; or a function of the prompt's text that gives every reply; or a
            mapping: the reply is the value of the first key that the prompt contains.
        entropy: Entropy [nats] of every token of plain-text replies; None for a reader without entropies.
        logprob: Log-probability [nats] of every token of plain-text replies; None for a reader without
            log-probabilities, and so without entropies.
        end_logprob: Log-probability [nats] of the end token of plain-text replies; None for a reader without
            log-probabilities of end tokens.
        default: Reply if the queue is empty, or if the prompt contains no key of the mapping; None raises a
            ServiceError in these cases.
        name: Identity of the model.
        capabilities: Capabilities that the reader claims; by default they follow from ``entropy`` and
            ``logprob``. Log-probabilities and entropies that the reader does not claim are left out.

    Attributes:
        history: The calls so far, in order; in a long run, at least the latest 10,000 calls.

    Example:
        >>> reader = FakeReader(["Paris"], entropy=0.1)
        >>> reader.generate(["Capital of France?"], SamplingParams())[0][0].text
        'Paris'
        >>> reader.history[0].prompts
        ('Capital of France?',)
    """

    def __init__(
        self,
        replies: Iterable[Reply] | Mapping[str, Answer] | Callable[[str], Answer] = (),
        *,
        entropy: float | None = 0.1,
        logprob: float | None = -0.1,
        end_logprob: float | None = None,
        default: Reply | None = None,
        name: str = "scripted",
        capabilities: Capabilities | None = None,
    ) -> None:
        if isinstance(replies, Mapping):
            replies = _by_key(replies, default)
        self._default = replies if callable(replies) else default
        self._queue: deque[Reply] = deque(() if callable(replies) else replies)
        self._entropy = entropy
        self._logprob, self._end_logprob = logprob, end_logprob
        self._name = name
        self._capabilities = capabilities or Capabilities(
            logprobs=logprob is not None,
            entropy="exact" if logprob is not None and entropy is not None else None,
            begin="native",
            stream=True,
            native_async=True,
        )
        self._open: set[_BegunReply] = set()
        self.history: list[Call] = []
        self._usage = UsageCounter()

    def __repr__(self) -> str:
        return f"FakeReader({len(self._queue)} replies left, {len(self.history)} calls)"

    @property
    def name(self) -> str:
        """Identity of the model."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities that the reader claims."""
        return self._capabilities

    @property
    def usage(self) -> Usage:
        """Numbers of answers, of words in their prompts, and of words in the answers, so far."""
        return self._usage.total

    @property
    def prompts(self) -> list[str]:
        """Texts of the prompts of all calls of ``generate``, ``begin`` and ``stream``, in order."""
        read = ("generate", "begin", "stream")
        return [prompt for call in self.history if call.verb in read for prompt in call.prompts]

    @property
    def open_handles(self) -> int:
        """Number of begun generations that were neither completed nor closed."""
        return len(self._open)

    def add(self, *replies: Reply) -> None:
        """Append replies to the queue."""
        self._queue.extend(replies)

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return the next replies, ``sampling.n`` for each prompt."""
        texts = self._note("generate", prompts, sampling)
        rows = [[self._next(text, sampling) for _ in range(sampling.n)] for text in texts]
        for answer in (answer for row in rows for answer in row):
            self._count(answer.prompt_tokens, answer.completion_tokens)
        return rows

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[BegunGeneration]:
        """Begin the next reply to each prompt; ``partial`` holds the reply's first ``n_tokens`` words."""
        texts = self._note("begin", prompts, sampling, n_tokens)
        return [self._begin(text, n_tokens, sampling) for text in texts]

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield the next reply word by word."""
        (text,) = self._note("stream", [prompt], sampling)
        generation = self._next(text, sampling)
        self._count(generation.prompt_tokens, 0)
        yield from self._pieces(generation, emitted=0)

    async def _await_verb(self, verb: Callable[..., R], *arguments: Any) -> R:
        return verb(*arguments)

    def _note(
        self,
        verb: Verb,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | None,
        n_tokens: int | None = None,
    ) -> tuple[str, ...]:
        texts = tuple("\n".join(turn.content for turn in as_messages(prompt)) for prompt in prompts)
        self.history.append(Call(verb, texts, sampling, n_tokens))
        if len(self.history) > 2 * _LATEST:
            del self.history[:_LATEST]
        return texts

    def _next(self, prompt: str, sampling: SamplingParams) -> Generation:
        try:
            answer: Reply | None = self._queue.popleft()
        except IndexError:
            answer = self._default
        if answer is None:
            raise ServiceError(
                f"the script of {self._name} is empty, but the prompt {prompt[:80]!r} needs a reply",
                hint="add a reply for every generation, or pass a default, or a function of the prompt",
            )
        if callable(answer) and not isinstance(answer, type):
            answer = answer(prompt)
        if isinstance(answer, BaseException | type):
            raise answer
        if isinstance(answer, str):
            answer = reply(
                answer, entropy=self._entropy, logprobs=self._logprob, end_logprob=self._end_logprob
            )
        generation = _limited(self._honest(answer), sampling)
        return replace(generation, prompt_tokens=generation.prompt_tokens or len(_words(prompt)))

    def _honest(self, generation: Generation) -> Generation:
        """Reduce a reply's log-probabilities and entropies to those that this reader claims to have."""
        trace = generation.trace if self._capabilities.logprobs else None
        if trace is not None and trace.entropy is not None and self._capabilities.entropy != "exact":
            bounded = self._capabilities.entropy == "bounded"
            trace = replace(trace, entropy=replace(trace.entropy, exact=False) if bounded else None)
        return replace(generation, trace=trace)

    def _count(self, read: int, emitted: int, requests: int = 1) -> None:
        self._usage.add(Usage(requests, read, emitted))

    def _begin(self, prompt: str, n_tokens: int, sampling: SamplingParams) -> BegunGeneration:
        whole = self._next(prompt, sampling)
        emitted = min(n_tokens, whole.completion_tokens)
        self._count(whole.prompt_tokens, emitted)
        return _BegunReply(self, prompt, whole, emitted)

    def _pieces(self, generation: Generation, emitted: int) -> Iterator[Chunk]:
        """Yield a reply word by word, and count all but the first ``emitted`` words in the usage."""
        trimmed = TrimmedPieces()
        for position, token in enumerate(_tokens_of(generation)):
            if position >= emitted:
                self._count(0, 1, requests=0)
            yield Chunk(trimmed.feed(token))
        yield Chunk("", generation)


def _by_key(replies: Mapping[str, Answer], default: Reply | None) -> Callable[[str], Answer]:
    def answer(prompt: str) -> Answer:
        chosen = next((replies[key] for key in replies if key in prompt), default)
        if chosen is None:
            raise ServiceError(
                f"no key of the replies is in the prompt {prompt[:80]!r}", hint="pass a default"
            )
        return chosen(prompt) if callable(chosen) and not isinstance(chosen, type) else chosen

    return answer
