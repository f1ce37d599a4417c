"""Answers of OpenAI-compatible servers, whole or in pieces, checked and made into generations; no I/O.

Servers differ in what they leave out, add and count, and in where they put what a model thought first.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from surerag.errors import LogprobsError, ServiceError, ThinkingBudgetError, TransientServiceError
from surerag.messages import FinishReason, Generation, Usage
from surerag.readers.hosted.client import malformed
from surerag.readers.hosted.requests import TokenDetails
from surerag.readers.logprobs import (
    NO_LOGPROBS_HINT,
    answer_tokens,
    end_logprob,
    entries_of,
    token_of,
    trace_of,
    without_surrogates,
)
from surerag.readers.pieces import cut_at_stop, held_for_stop
from surerag.readers.thinking import ThoughtSplitter, without_end

Json = Mapping[str, Any]

_FINISH: dict[str, FinishReason] = {"length": "length", "content_filter": "content_filter"}
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")


class OpenedThoughtsError(ServiceError):
    """A stream that was taken for an answer had begun inside the model's thoughts."""


@dataclass
class Draft:
    """An answer as it comes in, in one piece or in many; thoughts before it are separated.

    Attributes:
        details: What was requested of each token.
        limit: Tokens of the answer at most; what a server sends beyond them is cut off.
        stop: Texts that end the answer, wherever the server does not see to it.
        opened: Whether the prompt's template opened the thoughts, so that the text begins inside them.
        budget: Tokens that were granted for thinking.
        streamed: Whether it comes in pieces.
        text: The answer so far, exactly as it came.
        entries: All tokens so far, those of thoughts included; empty where none are requested.
        finish: Why it ended; None while it goes on.
        full: Whether it was cut here, so that nothing more needs to be read.
        usage: The server's own count of tokens, once it came.
    """

    details: TokenDetails
    limit: int
    stop: tuple[str, ...] = ()
    opened: bool = False
    budget: int = 0
    streamed: bool = False
    text: str = ""
    entries: list[Json] = field(default_factory=list)
    finish: FinishReason | None = None
    full: bool = False
    usage: Usage = field(default_factory=Usage)
    _reasoning: str = ""
    _pieces: int = 0
    _emitted: int = 0
    _half: str = ""
    _last: Json | None = None
    _repeats: int = 0

    def __post_init__(self) -> None:
        self._splitter = ThoughtSplitter(opened=self.opened)

    @property
    def thought(self) -> bool:
        """Whether the model thought before it answered; marks with nothing between them are no thoughts."""
        return bool(self._reasoning.strip() or self._splitter.thoughts or self.usage.thinking_tokens)

    @property
    def tokens(self) -> int:
        """Tokens of the answer that came so far; none before it is clear that it has begun."""
        if not self.text.strip():
            return 0
        return len(self._inside()) if self.entries else self._pieces

    @property
    def starved(self) -> bool:
        """Whether thoughts that no tokens were granted for left too few for the answer, or may yet do so."""
        return (
            self.thought
            and not self.budget
            and self.finish != "stop"
            and (self.finish is None or self.tokens < self.limit)
        )

    def feed(self, choice: Json) -> str:
        """Take one choice of an answer, or of one piece of a stream, and return what it adds to the answer.

        Raises:
            LogprobsError: If log-probabilities are malformed.
            OpenedThoughtsError: If what was yielded of a stream turns out to have been thoughts.
            ServiceError: If the choice has no text where it should.
        """
        reason = choice.get("finish_reason")
        message = choice.get("message", choice.get("delta"))
        holder, key = (message, "content") if isinstance(message, Mapping) else (choice, "text")
        text, thoughts = holder.get(key), holder.get("reasoning_content") or holder.get("reasoning")
        if not isinstance(text, str | None) or (text is None and holder is choice and key not in choice):
            raise malformed(choice)
        ends = reason is not None or not self.streamed
        self._reasoning += thoughts if isinstance(thoughts, str) else ""
        if self.details.logprobs:
            self.entries += entries_of(choice.get("logprobs"))
        if ends:
            self.finish = _FINISH.get(str(reason), "stop")
        fresh = self._answer_part(self._in_full_characters(text or "", ends=ends))
        self._pieces += bool(fresh)
        self._repeats += bool(fresh) and choice == self._last
        self._last = choice
        if not ends and max(self._pieces, len(self.entries) - self.budget) > self.limit:
            # The server goes on behind the limit.
            self.entries, fresh = self.entries[: self.limit + self.budget], ""
            self.finish, self.full = "length", True
        self.text += fresh
        before = cut_at_stop(self.text, self.stop)
        if before is not None:
            self.text, self.finish, self.full = before, "stop", True
        return self._show()

    def generation(self, first: int | None = None) -> Generation:
        """Return what came so far; of its tokens only the ``first``, if that is set.

        Raises:
            LogprobsError: If log-probabilities do not cover the text, or cannot be ones.
            ThinkingBudgetError: If the answer ended before it began, inside the model's thoughts.
            TransientServiceError: If parts of it came twice.
        """
        text, finish = self.text.strip(), self.finish or "partial"
        if not text and self.finish == "length" and (self.thought or self._splitter.has_thoughts):
            raise self.budget_error()
        if self._came_twice():
            raise TransientServiceError("the server sent parts of its answer twice")
        if not text and finish == "stop":
            finish = "empty"
        trace, counted = None, self._text_tokens()
        if self.details.logprobs:
            if text and not self.entries:
                raise LogprobsError("the server's answer has no log-probabilities", hint=NO_LOGPROBS_HINT)
            inside = self._inside()
            own = self.entries[inside.start : inside.stop]
            most = self.limit if first is None else first
            if len(own) > most:
                own = own[:most]
                text, finish = _spelled(own, text), "length" if first is None else "partial"
            elif first is not None and self.finish is None:
                text, finish = _spelled(own, text), "partial"
            trace, counted = trace_of(own, top_logprobs=self.details.top), len(own)
            if finish == "stop" and not self.full:
                end = end_logprob(self.entries[inside.stop :], self.stop)
                trace = replace(trace, end_logprob=end)
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
        """How long the thoughts were, as exactly as it can be told."""
        if self.usage.thinking_tokens or not self.thought:
            return self.usage.thinking_tokens
        with suppress(LogprobsError):
            if self.entries and (start := self._inside().start):
                return start
        before = len(self._reasoning) or len(self._splitter.text) - len(self.text)
        return round(self.usage.completion_tokens * before / max(before + len(self.text), 1))

    def spent(self) -> Usage:
        """Return what the request cost: as the server counted, else by what came; thoughts apart."""
        counted = self.usage.completion_tokens + self.usage.thinking_tokens
        thinking = self.thinking_tokens
        answer = max(counted - thinking, 0) if counted else self._pieces
        return Usage(1, self.usage.prompt_tokens, answer, thinking, self.usage.cached_tokens)

    def budget_error(self) -> ThinkingBudgetError:
        """Return the error of an answer that thoughts left no room for."""
        return ThinkingBudgetError(
            f"the model was still thinking after {self.thinking_tokens or 'all its'} tokens, "
            f"{self.budget} of them granted for thinking and {self.limit} for the answer: no answer came",
            hint="raise max_tokens, or have the model answer at once with thinking=False, if it can",
        )

    def _inside(self) -> range:
        """Return which of the tokens are those of the answer; one that was cut has no end token."""
        tokens = [token_of(entry) for entry in self.entries]
        inside = answer_tokens(tokens, self.text, whole=self.finish is not None, thought=self.thought)
        end = inside.stop
        while inside and self.finish == "length" and tokens[end : end + 1] and tokens[end].isspace():
            end += 1
        return range(inside.start, end)

    def _text_tokens(self) -> int:
        """Return the answer's length as the server counted it; by its pieces where it did not."""
        counted = self.usage.completion_tokens + self.usage.thinking_tokens - self.thinking_tokens
        return max(counted, 0) or (self._pieces if self.streamed else 0)

    def _came_twice(self) -> bool:
        """Whether more pieces came than the server counts; where it never ends, whether they repeat."""
        counted = self.usage.completion_tokens + self.usage.thinking_tokens
        if self.full:
            return self.finish == "length" and 2 * self._repeats >= self._pieces - 1 > 1
        return self.streamed and 0 < counted < max(self._pieces, len(self.entries) - 1)

    def _answer_part(self, text: str) -> str:
        """Take text and return what of it belongs to the answer."""
        fresh = self._splitter.feed(text)
        if not self._splitter.has_thoughts and "</think>" in self._splitter.text[-len(text) - 8 :]:
            self.opened = True
            if self.streamed:
                raise OpenedThoughtsError(
                    "what was streamed turns out to be the model's thoughts: its prompt template opens them, "
                    "and only their end is marked",
                    hint="ask again, which works now that it is known; or call probe() once before",
                )
            self._splitter = ThoughtSplitter(opened=True)
            fresh = self._splitter.feed(text)
        fresh += self._splitter.end() if self.finish is not None else ""
        if self.finish == "stop" and self.opened and self._splitter.thinking:
            # What ends by itself without closing any thoughts had none.
            whole, self._splitter = self._splitter.text, ThoughtSplitter()
            fresh = self._splitter.feed(whole) + self._splitter.end()
        return without_end(fresh) if self._splitter.has_thoughts else fresh

    def _show(self) -> str:
        """Return what may be yielded by now: not what may become the beginning of a stop text."""
        held = held_for_stop(self.text, self.stop) if self.finish is None else 0
        fresh = self.text[self._emitted : len(self.text) - held]
        self._emitted += len(fresh)
        return fresh

    def _in_full_characters(self, text: str, *, ends: bool) -> str:
        """Join halves of a character (UTF-16 surrogates) that came apart; one that stays alone is none."""
        text, self._half = self._half + text, ""
        if text and not ends and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return without_surrogates(text)


def _spelled(entries: list[Json], text: str) -> str:
    """Return the beginning of a text that tokens spell, without a character that is cut in two."""
    tokens = [token if isinstance(token, bytes) else token.encode() for token in map(token_of, entries)]
    start = b"".join(tokens).decode("utf-8", "ignore").strip()
    return start if text.startswith(start) else text[: len(start)].strip()


def choices_of(answer: Json) -> list[Json]:
    """Return an answer's choices in the order of their index.

    Raises:
        ServiceError: If it has none.
    """
    choices = answer.get("choices")
    if (
        not isinstance(choices, list)
        or not choices
        or not all(
            isinstance(choice, Mapping) and isinstance(choice.get("index") or 0, int) for choice in choices
        )
    ):
        raise malformed(answer)
    return sorted(choices, key=lambda choice: choice.get("index") or 0)


def usage_of(answer: Json) -> Usage:
    """Return the server's own count of tokens for one request; zeros where it gives none.

    Most services count thoughts among the completion, some beside it: their total tells. Prompt tokens that
    were in the server's cache are among those of the prompt.
    """
    reported = answer.get("usage")
    counts = reported if isinstance(reported, Mapping) else {}
    details = counts.get("completion_tokens_details")
    thinking = token_count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else 0
    prompt, completion = (token_count(counts.get(f"{name}_tokens")) for name in ("prompt", "completion"))
    beside = token_count(counts.get("total_tokens")) == prompt + completion + thinking
    if thinking and thinking <= completion and not beside:
        completion -= thinking
    details = counts.get("prompt_tokens_details")
    cached = token_count(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    cached = max(cached, *(token_count(counts.get(name)) for name in _CACHED))
    return Usage(1, prompt, completion, thinking, min(cached, prompt))


def token_count(value: object) -> int:
    """Return a number of tokens; 0 for what is none, as where a server does not count."""
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0
