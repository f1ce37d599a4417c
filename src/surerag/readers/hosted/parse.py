"""Answers of OpenAI-compatible servers, checked and made into generations; no I/O.

Servers differ in what they leave out, add and count, and in where they put what a model thought before it
answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from surerag.errors import LogprobsError, ServiceError, ThinkingBudgetError
from surerag.messages import FinishReason, Generation, Usage
from surerag.readers.hosted.alignment import after_head, answer_start, is_closing
from surerag.readers.hosted.logprobs import NO_LOGPROBS_HINT, Step, Wanted, steps_of, trace_of
from surerag.readers.hosted.spelling import Token, spelled, spelled_by_first
from surerag.readers.hosted.text import Json, malformed, mended
from surerag.readers.pieces import cut_at_stop, held_for_stop
from surerag.readers.thinking import ThoughtSplitter, without_end

__all__ = ["Api", "Draft", "Json", "Wanted", "choices_of", "streamed_choice", "token_count", "usage_of"]

Api = Literal["chat", "completions", "responses"]

BUDGET_HINT = (
    "raise thinking_tokens=…, or have the model answer at once with thinking=False, if it can be switched off"
)


class UnforeseenThoughtsError(ServiceError):
    """A stream that was taken for an answer turned out to have begun inside the model's thoughts."""


@dataclass
class Draft:
    """An answer as it comes in, in one piece or in many; what was thought before it is told apart.

    Attributes:
        wanted: What was asked for.
        text: The answer so far, exactly as it came.
        steps: All tokens so far, those of thoughts included; empty where log-probabilities are not wanted.
        pieces: Pieces of the answer that came; counts tokens where there are no steps.
        finish: Why it ended; None while it goes on.
        usage: The server's own count of tokens, once it came.
        limit: Tokens of the answer that were asked for at most; what a server sends beyond them is cut off.
        full: Whether it was cut off, so that nothing more needs to be read.
        stop: Texts that end the answer, wherever the server does not see to it.
        opened: Whether the prompt's template opened the thoughts, so that the text begins inside them.
        budget: Tokens that were granted for thinking, for the message of an error.
        reasoning: ThoughtSplitter that came in a field of their own.
    """

    wanted: Wanted
    text: str = ""
    steps: list[Step] = field(default_factory=list)
    pieces: int = 0
    finish: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    limit: int | None = None
    full: bool = False
    stop: tuple[str, ...] = ()
    opened: bool = False
    budget: int = 0
    reasoning: str = ""
    _thoughts: ThoughtSplitter = field(init=False)
    _thought_pieces: int = 0
    _listed_apart: int = 0
    _marked: bool = False
    _whole: bool = False
    _first: int | None = None
    _shown: int = 0
    _half: str = ""

    def __post_init__(self) -> None:
        self._thoughts = ThoughtSplitter(opened=self.opened)

    @property
    def tokens(self) -> int:
        """Tokens of the answer that came so far; none before it is known that it has begun."""
        if self._thoughts.thinking and self.finish is None:
            return 0
        return len(self.steps) - self._start() if self.wanted.logprobs else self.pieces

    @property
    def answer_steps(self) -> list[Step]:
        """The tokens of the answer, and what stands behind its end."""
        return self.steps[self._start() :]

    @property
    def thought(self) -> bool:
        """Whether the model thought before it answered; marks with nothing between them are no thoughts."""
        return bool(
            self.reasoning.strip()
            or self._thoughts.thoughts
            or self._listed_apart
            or self.usage.thinking_tokens
            or (self._marked and self._start() > 1 and not self._thoughts.has_thoughts)
        )

    @property
    def starved(self) -> bool:
        """Whether thoughts that no tokens were granted for left too few for the answer, or may yet do so."""
        if self.budget or self.limit is None or self.finish == "stop" or not self.thought:
            return False
        return self.finish is None or self.tokens < self.limit

    def feed(self, choice: Json) -> str:
        """Take one choice of an answer, or of one piece of a stream, and return what it adds to the answer.

        Raises:
            LogprobsError: If log-probabilities are wanted and missing or malformed.
            UnforeseenThoughtsError: If what was shown of a stream turns out to have been thoughts.
            ServiceError: If the choice has no text where it should, or was withheld.
        """
        ended = choice.get("finish_reason") is not None
        text = self._in_full_characters(_text(choice), ends=ended)
        reasoning = _reasoning(choice)
        steps = steps_of(choice.get("logprobs"), self.wanted.top) if self.wanted.logprobs else []
        self.reasoning += reasoning
        self._thought_pieces += bool(reasoning)
        self._listed_apart += _count_apart(choice)
        self._marked = self._marked or any(is_closing(step.token) for step in steps)
        self.steps += steps
        self.finish = _finish(choice.get("finish_reason")) or self.finish
        self._whole = ended and not self._thoughts.text
        fresh = self._told_apart(text)
        self.text += fresh
        self.pieces += bool(fresh)
        if self.wanted.logprobs and fresh and not steps and not self._covered():
            raise LogprobsError("the server's answer has no log-probabilities", hint=NO_LOGPROBS_HINT)
        before = cut_at_stop(self.text, self.stop)
        if before is not None:
            self.text, self.finish, self.full = before, "stop", True
        elif self.finish is None and self.limit is not None and self.tokens > self.limit:
            self._cut(self.limit)
        return self._show()

    def generation(self, first: int | None = None) -> Generation:
        """Return what came so far; of its tokens only the ``first``, if given.

        Raises:
            LogprobsError: If log-probabilities do not cover the text, or cannot be ones.
            ThinkingBudgetError: If the answer ended before it began, inside the model's thoughts.
        """
        if self.finish is not None:
            self.text += self._thoughts.end()
        if self._ended_inside():
            raise self.budget_error()
        cut = first is not None and (self.finish is None or self.tokens > first)
        finish: FinishReason = "partial" if cut else self.finish or "partial"
        if not self.wanted.logprobs:
            return self._text_alone(finish)
        steps, text = self._checked(), self.text
        most = first if cut else self.limit
        if most is not None and len(steps) > most:
            steps, text = steps[:most], spelled_by_first(text, self._spelling, most)
            finish = finish if cut else "length"
        return Generation(
            text.strip(),
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=self.usage.cached_tokens,
            trace=trace_of(steps, self.wanted),
            finish=finish,
            completion_tokens=len(steps),
            thinking_tokens=self._thinking_tokens(),
        )

    def spent(self) -> Usage:
        """Return what the request cost: as the server counted, else by what came; thoughts apart."""
        counted = self.usage.completion_tokens + self.usage.thinking_tokens
        thinking = self._thinking_tokens()
        answer = max(counted - thinking, 0) if counted else self.tokens
        return Usage(1, self.usage.prompt_tokens, answer, thinking, self.usage.cached_tokens)

    @property
    def _spelling(self) -> list[Token]:
        return self._tokens()[self._start() :]

    def _tokens(self) -> list[Token]:
        return [Token(step.token, step.given) for step in self.steps]

    def _told_apart(self, text: str) -> str:
        """Take text, and return what of it belongs to the answer."""
        fresh = self._thoughts.feed(text)
        if not self._thoughts.has_thoughts and "</think>" in text:
            if not self._whole:
                raise UnforeseenThoughtsError(
                    "what was streamed turns out to be the model's thoughts: its prompt template opens them, "
                    "and only their end is marked",
                    hint="ask again, which works now that it is known; or call probe() once before",
                )
            self._thoughts, self.opened = ThoughtSplitter(opened=True), True
            fresh = self._thoughts.feed(text)
        fresh += self._thoughts.end() if self.finish is not None else ""
        if self.opened and self.finish == "stop" and self._thoughts.thinking:
            # What ends of its own accord without closing any thoughts had none.
            said, self._thoughts = self._thoughts.text, ThoughtSplitter()
            fresh = self._thoughts.feed(said) + self._thoughts.end()
        return without_end(fresh) if self._thoughts.has_thoughts else fresh

    def _show(self) -> str:
        """Return what may be shown by now: not what may become the beginning of a stop text."""
        held = held_for_stop(self.text, self.stop) if self.finish is None else 0
        fresh = self.text[self._shown : len(self.text) - held]
        self._shown += len(fresh)
        return fresh

    def _start(self) -> int:
        """Return where the answer's tokens begin."""
        if self._first is None or self.finish is not None:
            told = self.reasoning.strip() or self.usage.thinking_tokens or self._marked
            if self._thoughts.has_thoughts:
                begins = self._thoughts.begins
                head = None if begins is None else self._thoughts.text[:begins]
                found = len(self.steps) if head is None else after_head(head, self._tokens())
            else:
                found = answer_start(self.text, self._tokens()) if told else 0
            # What was found in a beginning is kept, until the end shows all that there is to align.
            self._first = found if self.text.strip() or self.finish is not None else None
            return found or 0
        return self._first

    def _ended_inside(self) -> bool:
        if self.finish is None or self.text.strip():
            return False
        if self._thoughts.has_thoughts and self._thoughts.begins is None:
            return True
        # A stop text that was meant for the answer may have stood in the thoughts.
        early = self.finish == "length" or (self.stop and not self.budget and not self.full)
        return bool(early) and self.thought

    def budget_error(self) -> ThinkingBudgetError:
        """Return the error of an answer that thoughts left no room for."""
        spent = self._thinking_tokens()
        granted = f"max_tokens={self.limit}" if self.limit is not None else "its max_tokens"
        if self.budget:
            granted = f"thinking_tokens={self.budget} and {granted}"
        return ThinkingBudgetError(
            f"the model was still thinking after {spent or 'all its'} tokens, with {granted}: no answer came",
            hint=BUDGET_HINT,
        )

    def _text_alone(self, finish: FinishReason) -> Generation:
        """Return an answer without log-probabilities, its tokens as the server counted them."""
        thinking = self._thinking_tokens()
        counted = self.usage.completion_tokens + self.usage.thinking_tokens
        length, text = max(counted - thinking, 0) or self.pieces, self.text.strip()
        if self._whole and self.limit is not None and length > self.limit:
            # It went on into what was left of the thoughts' budget. Which words are its first tokens is not
            # known; they are taken to be of equal length.
            text = text[: len(text) * self.limit // length].rpartition(" ")[0].rstrip()
            length, finish = self.limit, "length"
        return Generation(
            text,
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=self.usage.cached_tokens,
            finish=finish,
            completion_tokens=length,
            thinking_tokens=thinking,
        )

    def _thinking_tokens(self) -> int:
        """Return how long the thoughts were, as exactly as it can be told."""
        known = self._listed_apart or (self._start() if self.wanted.logprobs else 0)
        if known or self.usage.thinking_tokens:
            return known or self.usage.thinking_tokens
        before = len(self._thoughts.text) - len(self.text) if self._thoughts.has_thoughts else len(self.reasoning)
        if before <= 0:
            return 0
        # The server counted both together: by their share of what was said.
        share = before / (before + len(self.text))
        return round(self.usage.completion_tokens * share) or self._thought_pieces

    def _covered(self) -> bool:
        """Whether the tokens that came spell the answer, and maybe more.

        A server that holds text back, for a stop text or half a character, sends it after its tokens.
        """
        found = spelled(self.text, self._spelling)
        return found is not None and found.whole

    def _checked(self) -> list[Step]:
        """Return the tokens of the answer: those behind its end are the end token, or those of a stop text.

        Raises:
            LogprobsError: If the tokens do not spell the answer.
        """
        found = spelled(self.text, self._spelling)
        if found is None or (self.finish == "length" and found.whole and not found.exact):
            tokens = "".join(step.token for step in self.steps)
            raise LogprobsError(
                f"the server's tokens spell another text than its answer: {tokens[:60]!r} for "
                f"{self.text.strip()[:60]!r}",
                hint="use another server, or pass logprobs=False if you do not need them",
            )
        if not found.whole:
            raise LogprobsError(
                f"the server's {len(self.steps)} log-probabilities cover a part of its answer "
                f"{self.text.strip()[:60]!r}",
                hint=NO_LOGPROBS_HINT,
            )
        answer = self.answer_steps
        return answer[: found.tokens] if self.finish == "stop" else answer

    def _cut(self, limit: int) -> None:
        """End an answer that the server did not end when it was long enough."""
        if self.wanted.logprobs:
            start = self._start()
            text = spelled_by_first(self.text, self._spelling, limit)
            self.steps = self.steps[: start + limit]
            self.text = self.text[: max(len(text), self._shown)]
        else:
            self.text, self.pieces = self.text[: self._shown], limit
        self.finish, self.full = "length", True

    def _in_full_characters(self, text: str, *, ends: bool) -> str:
        """Join halves of a character (UTF-16 surrogates) that came apart; one that stays alone is none."""
        text, self._half = self._half + text, ""
        if not ends and text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return mended(text)


def choices_of(answer: object) -> list[Json]:
    """Return an answer's choices in the order of their index.

    Raises:
        ServiceError: If it is no JSON object with choices.
    """
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if (
        not isinstance(choices, list)
        or not choices
        or not all(isinstance(choice, Mapping) for choice in choices)
    ):
        raise malformed(answer)
    if not all(isinstance(choice.get("index") or 0, int) for choice in choices):
        raise malformed(answer)
    return sorted(choices, key=lambda choice: choice.get("index") or 0)


def streamed_choice(piece: Json) -> Json | None:
    """Return the choice in one piece of a stream; None where it has none, as the one that carries the usage.

    Raises:
        ServiceError: If it is no choice.
    """
    choices = piece.get("choices")
    if not choices:
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], Mapping):
        raise malformed(piece)
    choice: Json = choices[0]
    return choice


def usage_of(answer: Json) -> Usage:
    """Return the server's own count of tokens for one request; zeros where it gives none.

    Most services count thoughts among the completion, some beside it: their total tells. Prompt tokens that
    were in the server's cache are among those of the prompt.
    """
    given = answer.get("usage")
    counts = given if isinstance(given, Mapping) else {}
    details = counts.get("completion_tokens_details", counts.get("output_tokens_details"))
    thinking = token_count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else 0
    prompt = token_count(counts.get("prompt_tokens", counts.get("input_tokens")))
    completion = token_count(counts.get("completion_tokens", counts.get("output_tokens")))
    beside = token_count(counts.get("total_tokens")) == prompt + completion + thinking
    if thinking and thinking <= completion and not beside:
        completion -= thinking
    return Usage(1, prompt, completion, thinking, min(_cached(counts), prompt))


_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
"""Where services that have no details of a prompt tell it: Moonshot; DeepSeek; Anthropic, through proxies."""


def _cached(counts: Json) -> int:
    """Return the prompt tokens that a server had in its cache; 0 where it does not tell."""
    details = counts.get("prompt_tokens_details", counts.get("input_tokens_details"))
    told = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return max(token_count(told), *(token_count(counts.get(name)) for name in _CACHED))


def token_count(value: object) -> int:
    """Return a number of tokens; 0 for what is none, as where a server does not count."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
    return int(value) if number else 0  # type: ignore[call-overload]  # a number, as was just found


def _text(choice: Json) -> str:
    message = choice.get("message", choice.get("delta"))
    holder, key = (message, "content") if isinstance(message, Mapping) else (choice, "text")
    text = holder.get(key)
    if text is None and (isinstance(message, Mapping) or "text" in choice):
        return ""
    if not isinstance(text, str):
        raise malformed(choice)
    return text


def _reasoning(choice: Json) -> str:
    """Return thoughts in a field of their own, whose name differs from server to server."""
    message = choice.get("message", choice.get("delta"))
    holder = message if isinstance(message, Mapping) else choice
    given = holder.get("reasoning_content") or holder.get("reasoning")
    return mended(given) if isinstance(given, str) else ""


def _count_apart(choice: Json) -> int:
    """Return how many tokens of thoughts have a list of log-probabilities of their own (Cerebras)."""
    message = choice.get("message", choice.get("delta"))
    inner = message.get("reasoning_logprobs") if isinstance(message, Mapping) else None
    listed = choice.get("reasoning_logprobs", inner)
    content = listed.get("content") if isinstance(listed, Mapping) else listed
    return len(content) if isinstance(content, list) else 0


def _finish(reason: object) -> FinishReason | None:
    if reason is None:
        return None
    if reason == "content_filter":
        raise ServiceError("the server withheld its answer (content filter)")
    if reason == "error":
        raise ServiceError("the server broke its answer off with an error")
    return "length" if reason == "length" else "stop"
