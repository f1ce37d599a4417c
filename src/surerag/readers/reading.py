"""Check an answer that a client delivers, whole or in pieces, and turn it into a generation; no I/O.

A client turns its replies into :class:`ReplyPart` objects. This module handles, for all clients,
what servers omit, add or count wrongly, and the different places where servers put a model's thoughts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple

from surerag.errors import LogprobsError, ThinkingBudgetError, TransientServiceError
from surerag.messages import (
    FinishReason,
    Generation,
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
from surerag.readers.pieces import ThoughtSplitter, cut_at_stop, held_for_stop
from surerag.text import TokenEstimate, prefix_of_tokens

Json = Mapping[str, Any]

_THINK = "<think>"
THINKING_HINT = (
    "raise max_tokens, or switch thinking off with thinking=False, if the model can answer at once"
)

_CUT = frozenset(
    {"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"}
)
_WITHHELD = frozenset(
    {"content_filter", "safety", "prohibited_content", "blocklist", "recitation", "refusal"}
)

_ESTIMATE_FACTOR = 2.2
"""Largest factor by which an estimated length is wrong (:func:`surerag.text.estimated_tokens`)."""
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")


class ReplyPart(NamedTuple):
    """A part of an answer that a client delivers: the whole answer, or the next piece of a stream.

    Attributes:
        text: The text, including any thoughts between marks.
        thoughts: Thoughts that the service sent separately from the text.
        entries: Tokens with log-probabilities, as in ``logprobs.content`` of OpenAI's chat API; empty without
            log-probabilities.
        finish: Why the answer ended, in the service's words, or empty if the service gives no reason; None if
            the answer is not complete.
        usage: The service's token counts for all answers to the request; None if this part has none.
    """

    text: str = ""
    thoughts: str = ""
    entries: Sequence[Json] = ()
    finish: str | None = None
    usage: Usage | None = None


def finish_of(reason: object) -> FinishReason:
    """Return the FinishReason that corresponds to a service's reason for the end of an answer.

    Example:
        >>> finish_of("FinishReason.MAX_TOKENS"), finish_of("SAFETY"), finish_of("eos")
        ('length', 'content_filter', 'stop')
    """
    word = str(reason).rpartition(".")[2].lower()
    return "length" if word in _CUT else "content_filter" if word in _WITHHELD else "stop"


def usage_of(reported: object) -> Usage:
    """Return a server's token counts for one request, read from OpenAI's format; zeros without counts.

    Most services count thoughts as completion tokens, and others do not; the total number of tokens
    shows how a server counts.

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
    """Return a number of tokens; 0 if the value is not a number, because some servers do not count."""
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0


@dataclass(eq=False)
class Reading:
    """Receives one answer, whole or in pieces, and separates the answer from the thoughts before it.

    Args:
        sampling: Parameters of the answer. An answer that exceeds the maximum length, or goes on after a
            stop text, is cut.
        top: Number of likeliest tokens that were requested for each token. 0 if only each token's own
            log-probability was requested; None if no log-probability was requested.
        streamed: Whether the answer comes in pieces.
        token_pieces: Whether a piece of the stream is a token, so that pieces are counted as tokens if the
            server lists no tokens.
        budget: Number of tokens that the request added for thoughts.
        in_thoughts: Whether the prompt's template begins the thoughts, so that the text begins inside them.
        limit_sent: Whether the request contained the maximum length of the answer.
        vocabulary_size: Number of tokens in the model's vocabulary, or any larger number.
        name: Name of the model, for errors.
        hint: Hint of the error that is raised if log-probabilities are missing.
        thinking_hint: Hint of the error that is raised if the thoughts used up all tokens.

    Attributes:
        text: The text so far, exactly as it came.
        entries: Entries of all tokens so far, including thoughts (see :class:`ReplyPart`); empty if no
            log-probabilities were requested.
        finish: Why the answer ended; None while it is not complete.
        full: Whether the answer was cut, so that no more pieces need to be read.
        usage: The server's own token counts, once they came.
        counted: Whether the cost of the answer was added to a reader's usage.
        closes_thoughts: Whether the text contains the closing mark of thoughts without their opening mark.
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
        self._splitter = ThoughtSplitter(opening_mark=_THINK if self.in_thoughts else "")
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
        """Whether the model thought before it answered; empty thoughts between marks do not count."""
        return bool(self._thoughts_apart.strip() or self._splitter.thoughts or self.usage.thinking_tokens)

    @property
    def tokens(self) -> int:
        """Number of tokens of the answer so far; 0 until it is clear that the answer has begun."""
        if not self.text.strip():
            return 0
        return len(self._answer_span()) if self.entries else len(self._pieces)

    def has_tokens(self, n_tokens: int) -> bool:
        """Return whether the answer has at least ``n_tokens`` tokens so far."""
        if not self.text.strip():
            return False
        if not self.entries:
            return len(self._pieces) >= n_tokens
        if len(self.entries) >= max(n_tokens, self._entries_needed):
            missing = n_tokens - len(self._answer_span())
            # Until this many entries have come, the answer cannot be long enough, and the search is skipped.
            self._entries_needed = len(self.entries) + missing
            return missing <= 0
        return False

    @property
    def starved(self) -> bool:
        """Whether thoughts may have used up the token limit; False if the limit was raised for thoughts."""
        unfinished = self.finish is None or (self.finish != "stop" and self.tokens < self._limit)
        return self.thought and not self.budget and unfinished and self.sampling.max_tokens is not None

    def feed(self, part: ReplyPart) -> str:
        """Take the whole answer or its next piece, and return the new part of the answer's text.

        The returned text lacks an end that later pieces may cut off, such as the first half of a stop text.
        """
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
        """Return the answer so far.

        If ``first`` is given and the answer has log-probabilities, return only its first ``first`` tokens.

        Raises:
            LogprobsError: If log-probabilities are required, and some are missing or invalid.
            ThinkingBudgetError: If the output ended inside the model's thoughts, before the answer began.
            TransientServiceError: If the server sent parts of the answer twice.
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
        """Number of tokens of the thoughts; an estimate if the server neither lists nor counts them."""
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
        """Return the numbers of tokens that the request used; estimates if the server does not count them."""
        answer, thinking = self._counted_tokens(), self.thinking_tokens
        return Usage(1, self.usage.prompt_tokens, answer, thinking, self.usage.cached_tokens)

    def budget_error(self) -> ThinkingBudgetError:
        """Return the error to raise if the model was still thinking when its tokens were used up."""
        return ThinkingBudgetError(
            f"{self._whose}the model was still thinking after {self.thinking_tokens or 'all its'} tokens, so "
            f"there is no answer; the request allowed {self.budget} tokens for thinking and "
            f"{self.sampling.max_tokens} for the answer",
            hint=self.thinking_hint,
        )

    def cut_off_error(self) -> TransientServiceError:
        """Return the error to raise if a stream ended before its answer was complete."""
        error = TransientServiceError(
            f"{self._whose}the server's answer was cut off after {self.text[-60:]!r}", hint="ask again"
        )
        error.broken = True
        return error

    def _cut_to_tokens(
        self, text: str, finish: FinishReason, first: int | None, top: int
    ) -> tuple[str, FinishReason, TokenTrace]:
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
        """Return the indices of the answer's tokens in ``entries``."""
        so_far = (len(self.entries), self.text, self.finish, self.thought)
        if self._span is None or self._span[0] != so_far:
            self._span = (so_far, self._find_answer_span())
        return self._span[1]

    def _find_answer_span(self) -> range:
        tokens = [token_of(entry) for entry in self.entries]
        with self._named_errors():
            inside = answer_tokens(tokens, self.text, whole=self.finish is not None, thought=self.thought)
        end = inside.stop
        # An answer that was cut has no end token, so white space after its text counts as part of it.
        while inside and self.finish == "length" and tokens[end : end + 1] and tokens[end].isspace():
            end += 1
        return range(inside.start, end)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except LogprobsError as error:
            raise LogprobsError(f"{self._whose}{error.message}", hint=self.hint) from None

    @property
    def _server_count(self) -> int:
        return self.usage.completion_tokens + self.usage.thinking_tokens

    def _counted_tokens(self) -> int:
        """Return the server's count of the answer's tokens, or else the number of the stream's pieces."""
        counted = self._server_count - self.thinking_tokens
        pieces = min(len(self._pieces), self._limit) if self.full else len(self._pieces)
        return max(counted, 0) or (pieces if self.streamed else 0)

    def _goes_on_behind_the_limit(self) -> bool:
        pieces = len(self._pieces) if self.token_pieces else 0
        return max(pieces, len(self.entries) - self.budget) > self._limit

    def _held_at_the_limit(self, fresh: str) -> int:
        """Cut an answer that is longer than the limit, and return how many of its last characters must wait.

        Only the next piece shows whether these characters exceed the limit.
        """
        allowed = self._limit
        if self.entries or self.full or self._length.feed(fresh) <= allowed:
            return 0
        exceeds = self._exceeds(allowed)
        waits = not exceeds and self.finish is None and not self.token_pieces
        end = prefix_of_tokens(self.text, allowed) if exceeds or waits else 0
        if exceeds:
            self.text = self.text[: max(end, self._shown_length)]
            self.finish, self.full = "length", True
        return len(self.text) - end if waits else 0

    def _exceeds(self, allowed: int) -> bool:
        """Whether the answer has more than ``allowed`` tokens by the server's count, or by an estimate."""
        if self.finish is not None and (counted := self._server_count - self.thinking_tokens) > 0:
            return counted > (_ESTIMATE_FACTOR * allowed if self.thought else allowed)
        if self.finish == "length" and self.limit_sent and not self.budget:
            return False
        return not self.limit_sent or self._length.total > _ESTIMATE_FACTOR * allowed

    def _came_twice(self) -> bool:
        """Whether the server sent parts of the answer twice, judged by token counts or equal pieces."""
        if not self.streamed:
            return False
        if self._server_count and not self.full:
            pieces = len(self._pieces) if self.token_pieces else 0
            return self._server_count < max(pieces, len(self.entries) - 1)
        # An answer may itself repeat one or two words, so three different pieces are required.
        return len(set(self._pieces)) > 2 and self._pieces[:-1:2] == self._pieces[1::2]

    def _answer_part(self, text: str) -> str:
        """Take the next text from the server and return the part that belongs to the answer."""
        fresh = self._splitter.feed(text)
        seen = self._splitter.text[-len(text) - len(_THINK) :]
        self.closes_thoughts |= not self._splitter.has_thoughts and "</think>" in seen
        fresh += self._splitter.end() if self.finish is not None else ""
        if self.finish == "stop" and self._splitter.unclosed:
            # If an output ends by itself and closes no thoughts, it has no thoughts.
            whole, self._splitter = self._splitter.text, ThoughtSplitter(plain=True)
            fresh = self._splitter.feed(whole)
        return fresh

    def _in_full_characters(self, text: str, *, ends: bool) -> str:
        """Return a piece of text; keep half a character (a UTF-16 surrogate) at its end for the next."""
        text, self._half = self._half + text, ""
        if text and not ends and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return without_surrogates(text)


def _text_of_tokens(entries: Sequence[Json], text: str) -> str:
    tokens = [token if isinstance(token, bytes) else token.encode() for token in map(token_of, entries)]
    start = b"".join(tokens).decode("utf-8", "ignore").strip()
    return start if text.startswith(start) else text[: len(start)].strip()
