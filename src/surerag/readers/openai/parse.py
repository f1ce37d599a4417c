"""What an OpenAI-compatible server answered, checked and made into generations; no I/O.

Servers differ in what they leave out, add and count. Here a missing or impossible log-probability is
an error, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from surerag.errors import LogprobsError, ServiceError
from surerag.measures.entropy import EntropyBounds, entropy_bounds
from surerag.types import EntropyTrace, FinishReason, Generation, TokenTrace, Usage

Api = Literal["chat", "completions"]
Json = Mapping[str, Any]

_ROUNDED_UP = 1e-3
"""How far above zero a log-probability may stand before it is taken for something else."""

NO_LOGPROBS_HINT = (
    "run reader.probe() to see what this server and model give, or pass logprobs=False "
    "if you do not need them"
)


class Wanted(NamedTuple):
    """What a reader asks of each token.

    Attributes:
        logprobs: Whether log-probabilities are asked for at all.
        top: How many of the likeliest tokens are listed; 0 for the sampled one alone.
        vocabulary_size: Tokens that the model can emit, or a number no smaller.
    """

    logprobs: bool
    top: int
    vocabulary_size: int


class Step(NamedTuple):
    """One token: its text, its log-probability, and those of the likeliest tokens at its place."""

    token: str
    logprob: float
    likeliest: tuple[float, ...]


@dataclass
class Draft:
    """An answer as it comes in, in one piece or in many.

    Attributes:
        text: What was said so far, exactly as it came.
        steps: The tokens so far; empty where log-probabilities are not wanted.
        pieces: Pieces of text that came; counts tokens where there are no steps.
        finish: Why it ended; None while it goes on.
        usage: The server's own count of tokens, once it came.
    """

    wanted: Wanted
    text: str = ""
    steps: list[Step] = field(default_factory=list)
    pieces: int = 0
    finish: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)

    @property
    def tokens(self) -> int:
        """Tokens that came so far."""
        return len(self.steps) if self.wanted.logprobs else self.pieces

    def feed(self, choice: Json) -> str:
        """Take one choice of an answer, or of one piece of a stream, and return its text.

        Raises:
            LogprobsError: If log-probabilities are wanted and missing or malformed.
            ServiceError: If the choice has no text where it should, or was withheld.
        """
        text = _text(choice)
        steps = _steps(choice.get("logprobs"), self.wanted.top) if self.wanted.logprobs else []
        if self.wanted.logprobs and text and not steps and not self._covered(text):
            raise LogprobsError("the server's answer has no log-probabilities", hint=NO_LOGPROBS_HINT)
        self.text += text
        self.steps += steps
        self.pieces += bool(text)
        self.finish = _finish(choice.get("finish_reason")) or self.finish
        return text

    def generation(self, first: int | None = None) -> Generation:
        """Return what came so far; of its tokens only the ``first``, if given.

        Raises:
            LogprobsError: If log-probabilities do not cover the text, or cannot be ones.
        """
        ended = self.finish is not None and (first is None or self.tokens <= first)
        if ended or first is None:
            steps, text = self._without_end(), self.text
            finish: FinishReason = self.finish or "partial"
        else:
            steps, finish = self.steps[:first], "partial"
            text = self.text if len(self.steps) <= first else "".join(step.token for step in steps)
        if self.wanted.logprobs:
            _check_cover(text, steps)
        count = len(steps) if self.wanted.logprobs else self.usage.completion_tokens or self.pieces
        return Generation(
            text.strip(),
            prompt_tokens=self.usage.prompt_tokens,
            trace=trace_of(steps, self.wanted) if self.wanted.logprobs else None,
            finish=finish,
            completion_tokens=count,
        )

    def _covered(self, more: str) -> bool:
        """Whether tokens that came earlier already spell the text that comes now.

        A server that holds text back, for a stop text or half a character, sends it after its tokens.
        """
        spelled = "".join(step.token for step in self.steps)
        return len(spelled.lstrip()) >= len((self.text + more).lstrip())

    def _without_end(self) -> list[Step]:
        """Drop tokens behind the end of the text: the end token, or those of a stop text.

        Only where the tokens spell the text; a token that is half a character cannot be placed.
        """
        spelled = "".join(step.token for step in self.steps)
        text = self.text.lstrip()
        lead = len(spelled) - len(spelled.lstrip())
        if self.finish != "stop" or not spelled[lead:].startswith(text):
            return list(self.steps)
        kept, position = [], 0
        for step in self.steps:
            if position >= lead + len(text):
                break
            kept.append(step)
            position += len(step.token)
        return kept


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
    return sorted(choices, key=lambda choice: choice.get("index") or 0)


def malformed(answer: object) -> ServiceError:
    """Return the error for an answer that is no OpenAI-compatible one."""
    found = "an empty answer" if answer in (None, "", {}) else f"the answer {str(answer)[:120]!r}"
    return ServiceError(
        f"the server returned {found}, where a JSON object with choices was expected",
        hint="check that base_url ends with the API's root, such as http://localhost:8000/v1",
    )


def usage_of(answer: Json) -> Usage:
    """Return the server's own count of tokens for one request; zeros where it gives none."""
    given = answer.get("usage")
    counts = given if isinstance(given, Mapping) else {}
    return Usage(1, int(counts.get("prompt_tokens") or 0), int(counts.get("completion_tokens") or 0))


def trace_of(steps: Sequence[Step], wanted: Wanted) -> TokenTrace:
    """Return the trace of tokens, with intervals of entropy where likeliest tokens are listed.

    Raises:
        LogprobsError: If listed log-probabilities cannot belong to one distribution.
    """
    entropy = None
    if wanted.top:
        bounds = [_bounds(step, wanted) for step in steps]
        entropy = EntropyTrace(tuple(b.lower for b in bounds), tuple(b.upper for b in bounds), exact=False)
    return TokenTrace(
        tuple(step.token for step in steps), tuple(min(step.logprob, 0.0) for step in steps), entropy
    )


def _bounds(step: Step, wanted: Wanted) -> EntropyBounds:
    likeliest = sorted(step.likeliest, reverse=True)
    if not likeliest:
        raise LogprobsError(
            f"the server listed no alternatives to the token {step.token!r}",
            hint="pass top_logprobs=0 if you need no entropies, or another server or api",
        )
    # A server may add the sampled token to the list. Kept among the k likeliest, an unlikely one would
    # claim that no unlisted token is likelier than it.
    added = likeliest[wanted.top :]
    listed = likeliest[: wanted.top]
    sampled = min(added) if added else None
    if not added and len(listed) == wanted.top and step.logprob < listed[-1] - _ROUNDED_UP:
        sampled = step.logprob
    try:
        bounds = entropy_bounds(listed, wanted.vocabulary_size, sampled_logprob=sampled)
        if len(listed) < wanted.top:
            # Alternatives that look the same as text are listed once, so a likely one may be missing:
            # then the smallest entropy has all that is left on one token.
            together = entropy_bounds(listed, len(listed) + 1)
            bounds = EntropyBounds(min(bounds.lower, together.upper), bounds.upper)
    except ValueError as error:
        raise LogprobsError(
            f"the alternatives to the token {step.token!r} are no log-probabilities: {error}",
            hint="this server may return logits or probabilities; run reader.probe()",
        ) from None
    return bounds


def _text(choice: Json) -> str:
    message = choice.get("message", choice.get("delta"))
    holder, key = (message, "content") if isinstance(message, Mapping) else (choice, "text")
    text = holder.get(key)
    if text is None and (isinstance(message, Mapping) or "text" in choice):
        return ""
    if not isinstance(text, str):
        raise malformed(choice)
    return text


def _finish(reason: object) -> FinishReason | None:
    if reason is None:
        return None
    if reason == "content_filter":
        raise ServiceError("the server withheld its answer (content filter)")
    return "length" if reason == "length" else "stop"


def _steps(logprobs: object, top: int) -> list[Step]:
    """Read log-probabilities in the form of the chat API, or in that of completions."""
    if not isinstance(logprobs, Mapping):
        return []
    content = logprobs.get("content")
    if isinstance(content, list):
        return [_chat_step(entry, top) for entry in content]
    tokens = logprobs.get("tokens")
    values = logprobs.get("token_logprobs")
    if tokens is None and values is None:
        return []
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        raise LogprobsError(
            "the server's log-probabilities are not one for each token", hint=NO_LOGPROBS_HINT
        )
    likeliest = logprobs.get("top_logprobs") or [None] * len(tokens)
    return [completions_step(*entry, top) for entry in zip(tokens, values, likeliest, strict=False)]


def _chat_step(entry: object, top: int) -> Step:
    if not isinstance(entry, Mapping):
        raise LogprobsError(f"a token's log-probability is {entry!r}", hint=NO_LOGPROBS_HINT)
    token = str(entry.get("token", ""))
    listed = entry.get("top_logprobs") or [] if top else []
    values = tuple(
        number(token, item.get("logprob") if isinstance(item, Mapping) else item, listed=True)
        for item in listed
    )
    return Step(token, number(token, entry.get("logprob")), values)


def completions_step(token: object, value: object, likeliest: object, top: int) -> Step:
    """Return one token's step from its columns in a completion.

    Raises:
        LogprobsError: If a value is missing, or no natural logarithm of a probability.
    """
    listed = likeliest.values() if top and isinstance(likeliest, Mapping) else ()
    values = tuple(number(token, item, listed=True) for item in listed)
    return Step(str(token), number(token, value), values)


def number(token: object, value: object, *, listed: bool = False) -> float:
    """Return one log-probability; only a token that was not sampled may be impossible (minus infinity).

    Raises:
        LogprobsError: If it is missing, or no natural logarithm of a probability.
    """
    given = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if math.isnan(given) or given > _ROUNDED_UP or (given == -math.inf and not listed):
        raise LogprobsError(
            f"the log-probability of the token {token!r} is {value!r}, which is no natural logarithm of one",
            hint=NO_LOGPROBS_HINT,
        )
    return min(given, 0.0)


def _check_cover(text: str, steps: Sequence[Step]) -> None:
    """Refuse log-probabilities that leave part of the text out.

    Checked on plain ASCII alone: a token that is part of a character may have no text of its own.
    """
    spelled = sum(len(step.token) for step in steps)
    if text.isascii() and spelled < len(text.strip()):
        raise LogprobsError(
            f"the server's log-probabilities cover {spelled} of {len(text.strip())} characters of its answer",
            hint=NO_LOGPROBS_HINT,
        )
