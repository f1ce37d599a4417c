"""An answer as a client delivers it, whole or in pieces, checked and made into a generation; no I/O.

A client turns its replies into parts; what servers leave out, add and count wrongly, and where they put what
a model thought first, is dealt with here, once for all clients. :class:`OpenReading` does so over a stream
that is read as far as needed, and then continued or closed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple, cast

from surerag.errors import LogprobsError, ServiceError, ThinkingBudgetError, TransientServiceError
from surerag.messages import (
    Chunk,
    FinishReason,
    Generation,
    PartialGeneration,
    SamplingParams,
    TokenTrace,
    Usage,
)
from surerag.readers.logprobs import (
    ANY_VOCABULARY,
    NO_LOGPROBS_HINT,
    answer_tokens,
    end_logprob,
    token_of,
    trace_of_entries,
    without_surrogates,
)
from surerag.readers.pieces import TrimmedPieces, cut_at_stop, held_for_stop
from surerag.readers.protocol import begun_from_whole
from surerag.readers.thinking import ThoughtSplitter
from surerag.text import TokenEstimate, prefix_of_tokens

Json = Mapping[str, Any]

_THINK = "<think>"
THINKING_HINT = "raise max_tokens, or have the model answer at once with thinking=False, if it can"

_CUT = frozenset(
    {"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"}
)
_WITHHELD = frozenset(
    {"content_filter", "safety", "prohibited_content", "blocklist", "recitation", "refusal"}
)


_ESTIMATE_FACTOR = 2.2
"""An estimate of a length is off by no larger factor (:func:`surerag.text.estimated_tokens`)."""
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")


class ReplyPart(NamedTuple):
    """What a client delivers of one answer: all of it, or the next piece of a stream.

    Attributes:
        text: The text, thoughts between marks among it.
        thoughts: What came apart as thoughts.
        entries: Tokens with log-probabilities, as entries of OpenAI's chat API; empty where there are none.
        finish: Why the answer ended, in the service's words, or empty where it gives no reason; None where it
            goes on.
        usage: The service's own count of tokens, of all answers to the request; None where it has not come.
    """

    text: str = ""
    thoughts: str = ""
    entries: Sequence[Json] = ()
    finish: str | None = None
    usage: Usage | None = None


def finish_of(reason: object) -> FinishReason:
    """Return a service's reason for the end of an answer as one of ours.

    Example:
        >>> finish_of("FinishReason.MAX_TOKENS"), finish_of("SAFETY"), finish_of("eos")
        ('length', 'content_filter', 'stop')
    """
    word = str(reason).rpartition(".")[2].lower()
    return "length" if word in _CUT else "content_filter" if word in _WITHHELD else "stop"


def usage_of(reported: object) -> Usage:
    """Return a server's own count of tokens for one request, in OpenAI's form; zeros where it gives none.

    Most services count thoughts among the completion, some beside it: their total tells.

    Example:
        >>> counts = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        >>> usage = usage_of({**counts, "completion_tokens_details": {"reasoning_tokens": 3}})
        >>> usage.completion_tokens, usage.thinking_tokens
        (2, 3)
    """
    if not isinstance(reported, Mapping):
        return Usage(1)
    counts: Mapping[str, Any] = reported
    details = counts.get("completion_tokens_details")
    thinking = _token_count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else 0
    prompt, completion = (_token_count(counts.get(f"{name}_tokens")) for name in ("prompt", "completion"))
    beside = _token_count(counts.get("total_tokens")) == prompt + completion + thinking
    if thinking and thinking <= completion and not beside:
        completion -= thinking
    details = counts.get("prompt_tokens_details")
    cached = _token_count(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    cached = max(cached, *(_token_count(counts.get(name)) for name in _CACHED))
    return Usage(1, prompt, completion, thinking, min(cached, prompt))


def _token_count(value: object) -> int:
    """Return a number of tokens; 0 for a value that is no number, as from a server that does not count."""
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0


@dataclass(eq=False)
class Reading:
    """One answer while it comes in, in one piece or in many; thoughts before it are separated.

    Args:
        sampling: How the answer is sampled: its length at most, and the texts that end it. Both are enforced
            here where the server does not.
        top: Likeliest tokens that were requested with each; 0 for log-probabilities alone, None for neither.
        streamed: Whether it comes in pieces.
        token_pieces: Whether a piece of the stream is a token, so that pieces count where none are listed.
        budget: Tokens that were granted for thinking.
        in_thoughts: Whether the prompt's template begins the thoughts, so that the text begins inside them.
        limit_sent: Whether the server was told how long the answer may be.
        vocabulary_size: Tokens that the model can emit, or a number no smaller.
        name: Of the model, for errors; their hints are ``hint`` where log-probabilities are missing, and
            ``thinking_hint`` where thoughts leave no room for an answer.

    Attributes:
        text: The answer so far, exactly as it came.
        entries: All tokens so far, those of thoughts included; empty where none are requested.
        finish: Why it ended; None while it goes on.
        full: Whether it was cut here, so that nothing more needs to be read.
        usage: The server's own count of tokens, once it came.
        counted: Whether its cost was added to a reader's usage.
        closes_thoughts: Whether its text holds the end of thoughts whose beginning it does not hold.
    """

    sampling: SamplingParams
    _: KW_ONLY
    top: int | None = None
    streamed: bool = False
    token_pieces: bool = False
    budget: int = 0
    in_thoughts: bool = False
    limit_sent: bool = True
    vocabulary_size: int = ANY_VOCABULARY
    name: str = ""
    hint: str = NO_LOGPROBS_HINT
    thinking_hint: str = THINKING_HINT

    def __post_init__(self) -> None:
        self.text = ""
        self.entries: list[Json] = []
        self.finish: FinishReason | None = None
        self.full = self.counted = self.closes_thoughts = False
        self.usage = Usage()
        self._splitter = ThoughtSplitter(inside=_THINK if self.in_thoughts else "")
        self._thoughts_apart = self._half = ""
        self._has_reason = False
        self._pieces: list[str] = []
        self._shown_length = self._entries_needed = 0
        self._length = TokenEstimate()
        self._limit = self.sampling.limit
        self._span: tuple[tuple[object, ...], range] | None = None
        self._whose = f"{self.name}: " if self.name else ""

    @property
    def thought(self) -> bool:
        """Whether the model thought before it answered; marks without a text between them are no thoughts."""
        return bool(self._thoughts_apart.strip() or self._splitter.thoughts or self.usage.thinking_tokens)

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far; none before it is clear that the answer has begun."""
        if not self.text.strip():
            return 0
        return len(self._answer_span()) if self.entries else len(self._pieces)

    def has_tokens(self, n_tokens: int) -> bool:
        """Tell whether ``n_tokens`` tokens of the answer came; all calls together take linear time."""
        if not self.text.strip():
            return False
        if not self.entries:
            return len(self._pieces) >= n_tokens
        if len(self.entries) >= max(n_tokens, self._entries_needed):
            missing = n_tokens - len(self._answer_span())
            # Each of the missing ones is an entry that is still to come.
            self._entries_needed = len(self.entries) + missing
            return missing <= 0
        return False

    @property
    def starved(self) -> bool:
        """Whether thoughts without tokens of their own left too few for the answer, or may yet do so."""
        unfinished = self.finish is None or (self.finish != "stop" and self.tokens < self._limit)
        return self.thought and not self.budget and unfinished and self.sampling.max_tokens is not None

    def feed(self, part: ReplyPart) -> str:
        """Take all of an answer or its next piece, and return what it adds to the answer."""
        ends = part.finish is not None or not self.streamed
        self._thoughts_apart += part.thoughts
        self.usage = part.usage or self.usage
        if self.top is not None:
            self.entries += part.entries
        if ends:
            self.finish, self._has_reason = finish_of(part.finish), bool(part.finish)
        fresh = self._answer_part(self._in_full_characters(part.text, ends=ends))
        self._pieces += [fresh] if fresh else []
        if not ends and self._goes_on_behind_the_limit():
            self.entries, fresh = self.entries[: self._limit + self.budget], ""
            self.finish, self.full = "length", True
        self.text += fresh
        before = cut_at_stop(self.text, self.sampling.stop)
        if before is not None:
            self.text, self.finish, self.full = before, "stop", True
        held = held_for_stop(self.text, self.sampling.stop) if self.finish is None else 0
        held = max(held, self._held_at_the_limit(fresh))
        ready = self.text[self._shown_length : len(self.text) - held]
        self._shown_length += len(ready)
        return ready

    def generation(self, first: int | None = None) -> Generation:
        """Return the answer so far; with log-probabilities, only its ``first`` tokens, if that is set.

        Raises:
            LogprobsError: If log-probabilities do not cover the text, or are none, unless they are optional.
            ThinkingBudgetError: If the answer ended before it began, inside the model's thoughts.
            TransientServiceError: If parts of it came twice.
        """
        text, finish = self.text.strip(), self.finish or "partial"
        if not text and self.finish == "length" and (self.thought or self._splitter.has_thoughts):
            raise self.budget_error()
        if self._came_twice():
            raise TransientServiceError(f"{self._whose}the server sent parts of its answer twice")
        trace, counted = None, self._counted_tokens()
        if self.full and not self.streamed:
            counted = min(counted, self._limit)
        if self.top is not None:
            try:
                text, finish, trace = self._cut_to_tokens(text, finish, first, self.top)
                counted = len(trace)
            except LogprobsError:
                if not self.sampling.optional_trace:
                    raise
        return Generation(
            text,
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=self.usage.cached_tokens,
            trace=trace,
            finish=finish,
            completion_tokens=counted,
            thinking_tokens=self.thinking_tokens,
        )

    @property
    def thinking_tokens(self) -> int:
        """Number of tokens of the thoughts, as exactly as it can be known."""
        if self.usage.thinking_tokens:
            return self.usage.thinking_tokens
        with suppress(LogprobsError):
            if self.entries and self.text.strip() and (start := self._answer_span().start):
                return start
        if not self.thought:
            return 0
        before = len(self._thoughts_apart) or len(self._splitter.text) - len(self.text)
        return round(self.usage.completion_tokens * before / max(before + len(self.text), 1))

    def spent(self) -> Usage:
        """Return the cost of the request: the server's counts, else our own; thoughts are counted apart."""
        answer, thinking = self._counted_tokens(), self.thinking_tokens
        return Usage(1, self.usage.prompt_tokens, answer, thinking, self.usage.cached_tokens)

    def budget_error(self) -> ThinkingBudgetError:
        """Return the error for thoughts that left no tokens for the answer."""
        return ThinkingBudgetError(
            f"{self._whose}the model was still thinking after {self.thinking_tokens or 'all its'} tokens, no "
            f"answer came: {self.budget} were for thinking, {self.sampling.max_tokens} for the answer",
            hint=self.thinking_hint,
        )

    def cut_off_error(self) -> TransientServiceError:
        """Return the error of a stream that ended before the answer did."""
        error = TransientServiceError(
            f"{self._whose}the server's answer was cut off after {self.text[-60:]!r}", hint="ask again"
        )
        error.broken = True
        return error

    def _cut_to_tokens(
        self, text: str, finish: FinishReason, first: int | None, top: int
    ) -> tuple[str, FinishReason, TokenTrace]:
        """Return text, reason of the end and trace, cut to the tokens that were requested."""
        if text and not self.entries:
            raise LogprobsError(f"{self._whose}the server's answer has no log-probabilities", hint=self.hint)
        inside = self._answer_span()
        own, behind = self.entries[inside.start : inside.stop], self.entries[inside.stop :]
        most = self._limit if first is None else first
        if len(own) > most or (first is not None and self.finish is None):
            own = own[:most]
            text, finish = _text_of_tokens(own, text), "length" if first is None else "partial"
        if (
            finish == "stop"
            and not self._has_reason
            and len(own) == self.sampling.max_tokens
            and not self.full
        ):
            finish = "length"
        with self._named_errors():
            trace = self._trace_of(own, top)
        if finish == "stop" and not self.full:
            trace = replace(trace, end_logprob=end_logprob(behind, self.sampling.stop))
        return text, finish, trace

    def _trace_of(self, entries: Sequence[Json], top: int) -> TokenTrace:
        try:
            return trace_of_entries(entries, top_logprobs=top, vocabulary_size=self.vocabulary_size)
        except LogprobsError:
            if not top or not self.sampling.optional_trace:
                raise
            return trace_of_entries(entries, top_logprobs=0)

    def _answer_span(self) -> range:
        """Return which tokens are the answer's; an answer that was cut has no end token."""
        so_far = (len(self.entries), self.text, self.finish, self.thought)
        if self._span is None or self._span[0] != so_far:
            self._span = (so_far, self._find_answer_span())
        return self._span[1]

    def _find_answer_span(self) -> range:
        tokens = [token_of(entry) for entry in self.entries]
        with self._named_errors():
            inside = answer_tokens(tokens, self.text, whole=self.finish is not None, thought=self.thought)
        end = inside.stop
        while inside and self.finish == "length" and tokens[end : end + 1] and tokens[end].isspace():
            end += 1
        return range(inside.start, end)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Name the model in an error about log-probabilities, and say what helps."""
        try:
            yield
        except LogprobsError as error:
            raise LogprobsError(f"{self._whose}{error.message}", hint=self.hint) from None

    @property
    def _server_count(self) -> int:
        return self.usage.completion_tokens + self.usage.thinking_tokens

    def _counted_tokens(self) -> int:
        """Return the answer's length as the server counted it, else the number of its pieces."""
        counted = self._server_count - self.thinking_tokens
        pieces = min(len(self._pieces), self._limit) if self.full else len(self._pieces)
        return max(counted, 0) or (pieces if self.streamed else 0)

    def _goes_on_behind_the_limit(self) -> bool:
        pieces = len(self._pieces) if self.token_pieces else 0
        return max(pieces, len(self.entries) - self.budget) > self._limit

    def _held_at_the_limit(self, fresh: str) -> int:
        """Cut a text that is longer than allowed; return how many characters are held until that is known.

        Without log-probabilities lengths are estimates, which give way to what the server says.
        """
        allowed = self._limit
        if self.entries or self.full or self._length.feed(fresh) <= allowed:
            return 0
        exceeds = not self.limit_sent or self._length.total > _ESTIMATE_FACTOR * allowed
        if self.finish is not None and (counted := self._server_count - self.thinking_tokens) > 0:
            exceeds = counted > (_ESTIMATE_FACTOR * allowed if self.thought else allowed)
        elif self.finish == "length" and self.limit_sent and not self.budget:
            exceeds = False
        end = prefix_of_tokens(self.text, allowed)
        if exceeds:
            self.text = self.text[: max(end, self._shown_length)]
            self.finish, self.full = "length", True
        waits = self.finish is None and not self.token_pieces
        return len(self.text) - end if waits else 0

    def _came_twice(self) -> bool:
        """Whether more tokens came than the server counted; without its count: each piece came twice."""
        if not self.streamed:
            return False
        if self._server_count and not self.full:
            pieces = len(self._pieces) if self.token_pieces else 0
            return self._server_count < max(pieces, len(self.entries) - 1)
        # An answer may repeat one or two words.
        return len(set(self._pieces)) > 2 and self._pieces[:-1:2] == self._pieces[1::2]

    def _answer_part(self, text: str) -> str:
        """Take a text and return its part of the answer; a mark in the middle of the answer is text."""
        fresh = self._splitter.feed(text)
        seen = self._splitter.text[-len(text) - len(_THINK) :]
        self.closes_thoughts |= not self._splitter.has_thoughts and "</think>" in seen
        fresh += self._splitter.end() if self.finish is not None else ""
        if self.finish == "stop" and self._splitter.unclosed:
            # What ends by itself without closing any thoughts had none.
            whole, self._splitter = self._splitter.text, ThoughtSplitter(plain=True)
            fresh = self._splitter.feed(whole)
        return fresh

    def _in_full_characters(self, text: str, *, ends: bool) -> str:
        """Join halves of a character (UTF-16 surrogates) from two pieces; replace a half that stays alone."""
        text, self._half = self._half + text, ""
        if text and not ends and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return without_surrogates(text)


def _text_of_tokens(entries: Sequence[Json], text: str) -> str:
    """Return the beginning of a text that tokens spell, without a character that is cut in two."""
    tokens = [token if isinstance(token, bytes) else token.encode() for token in map(token_of, entries)]
    start = b"".join(tokens).decode("utf-8", "ignore").strip()
    return start if text.startswith(start) else text[: len(start)].strip()


class OpenReading:
    """An answer over a stream, which is read as far as needed, and then continued or closed.

    Where its connection breaks, it is requested again, whole, unless some of its text was shown already.

    Args:
        start: Sends the request, and returns what takes in its answer, and the parts of that.
        retries: How often to ask again.
    """

    def __init__(
        self, start: Callable[[], tuple[Reading, AsyncGenerator[ReplyPart]]], retries: int = 0
    ) -> None:
        self._start, self._retries = start, retries
        self._has_shown_text = False
        self._fate = ""
        self._open()

    def _open(self) -> None:
        self.reading, self._parts = self._start()
        self._trimmed, self._text = TrimmedPieces(), ""
        self._began = self._done = False

    async def until(self, n_tokens: int) -> PartialGeneration:
        """Read the first ``n_tokens`` tokens, or all if there are fewer, or raise ThinkingBudgetError."""
        try:
            while not self._done and (
                self.reading.finish is not None or not self.reading.has_tokens(n_tokens)
            ):
                await self._advance()
            if self.reading.starved:
                raise self.reading.budget_error()
            if not self._done:
                return PartialGeneration(self.reading.generation(n_tokens), done=False, state=self)
            return begun_from_whole(self.reading.generation(), n_tokens)
        except BaseException:
            await self.close()
            raise

    async def rest(self) -> Generation:
        """Read to the end."""
        return cast("Generation", [chunk async for chunk in self._read(shows=False)][-1].generation)

    def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield all text from the first token on; the last chunk has the generation.

        Raises:
            ServiceError: If it was finished or cancelled before.
        """
        return self._read(shows=True)

    async def _read(self, *, shows: bool) -> AsyncGenerator[Chunk]:
        if self._fate:
            raise ServiceError(f"what was begun is {self._fate} already", hint="begin it again")
        self._fate = "finished"
        try:
            while True:
                if shows and self._text:
                    piece, self._text = self._text, ""
                    self._has_shown_text = True
                    yield Chunk(piece)
                if self._done:
                    break
                await self._advance()
            if self.reading.finish is None:
                raise self.reading.cut_off_error()
            yield Chunk("", self.reading.generation())
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop reading, and close the connection; a second call does nothing."""
        self._fate, self._done = self._fate or "cancelled", True
        # Whoever reads the next part at this moment closes the connection behind it.
        if not getattr(self._parts, "ag_running", False):
            await self._parts.aclose()

    async def _advance(self) -> None:
        """Take the next part; after a transient failure ask again, if no text was shown yet."""
        try:
            part = None if self.reading.full else await anext(self._parts, None)
            if part is None and self.reading.finish is None:
                raise self.reading.cut_off_error()
        except TransientServiceError as error:
            if self._has_shown_text or self._done or not self._retries or not (self._began or error.broken):
                raise
            self._retries -= 1
            self._open()
            return
        self._began = True
        if part is not None:
            self._text += self._trimmed.feed(self.reading.feed(part))
        if part is None or self.reading.full or self._done:
            self._done = True
            await self._parts.aclose()
