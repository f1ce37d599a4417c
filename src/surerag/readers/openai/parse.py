"""Answers of OpenAI-compatible servers, checked and made into generations; no I/O.

Servers differ in what they leave out, add and count. Here a missing or impossible log-probability is
an error, never a guess.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from surerag.errors import LogprobsError, ServiceError
from surerag.measures.entropy import EntropyBounds, entropy_bounds
from surerag.readers.openai.spelling import Token, spelled, spelled_by_first
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
    """One token: its text, its log-probability, and those of the likeliest tokens at its place.

    ``given`` is what it spells, if the server says so: a token may be part of a character.
    """

    token: str
    logprob: float
    likeliest: tuple[float, ...]
    given: bytes | None = None


@dataclass
class Draft:
    """An answer as it comes in, in one piece or in many.

    Attributes:
        text: What was said so far, exactly as it came.
        steps: The tokens so far; empty where log-probabilities are not wanted.
        pieces: Pieces of text that came; counts tokens where there are no steps.
        finish: Why it ended; None while it goes on.
        usage: The server's own count of tokens, once it came.
        limit: Tokens that were asked for at most; what a server sends beyond them is cut off.
        full: Whether it was cut off, so that nothing more needs to be read.
    """

    wanted: Wanted
    text: str = ""
    steps: list[Step] = field(default_factory=list)
    pieces: int = 0
    finish: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    limit: int | None = None
    full: bool = False
    _half: str = ""

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
        text = self._in_full_characters(_text(choice), ends=choice.get("finish_reason") is not None)
        steps = _steps(choice.get("logprobs"), self.wanted.top) if self.wanted.logprobs else []
        if self.wanted.logprobs and text and not steps and not self._covers(self.text + text):
            raise LogprobsError("the server's answer has no log-probabilities", hint=NO_LOGPROBS_HINT)
        shown = len(self.text)
        self.text += text
        self.steps += steps
        self.pieces += bool(text)
        self.finish = _finish(choice.get("finish_reason")) or self.finish
        if self.finish is None and self.limit is not None and self.tokens > self.limit:
            self._cut(self.limit, shown)
        return self.text[shown:]

    def generation(self, first: int | None = None) -> Generation:
        """Return what came so far; of its tokens only the ``first``, if given.

        Raises:
            LogprobsError: If log-probabilities do not cover the text, or cannot be ones.
        """
        cut = first is not None and (self.finish is None or self.tokens > first)
        finish: FinishReason = "partial" if cut else self.finish or "partial"
        if not self.wanted.logprobs:
            return Generation(
                self.text.strip(),
                prompt_tokens=self.usage.prompt_tokens,
                finish=finish,
                completion_tokens=self.usage.completion_tokens or self.pieces,
            )
        steps, text = self._checked(), self.text
        if cut and first is not None and len(steps) > first:
            steps, text = steps[:first], spelled_by_first(text, self._spelling, first)
        return Generation(
            text.strip(),
            prompt_tokens=self.usage.prompt_tokens,
            trace=trace_of(steps, self.wanted),
            finish=finish,
            completion_tokens=len(steps),
        )

    @property
    def _spelling(self) -> list[Token]:
        return [Token(step.token, step.given) for step in self.steps]

    def _covers(self, text: str) -> bool:
        """Whether the tokens that came spell a text, and maybe more.

        A server that holds text back, for a stop text or half a character, sends it after its tokens.
        """
        found = spelled(text, self._spelling)
        return found is not None and found.whole

    def _checked(self) -> list[Step]:
        """Return the tokens of the text: those behind its end are the end token, or those of a stop text.

        Raises:
            LogprobsError: If the tokens do not spell the text.
        """
        found = spelled(self.text, self._spelling)
        if found is None or (self.finish == "length" and found.whole and not found.exact):
            tokens = "".join(step.token for step in self.steps)
            raise LogprobsError(
                f"the server's tokens spell another text than its answer: {tokens[:60]!r} for "
                f"{self.text.strip()[:60]!r}",
                hint="a reasoning model's tokens are those of its thoughts, too: switch these off, "
                "use another server, or pass logprobs=False if you do not need them",
            )
        if not found.whole:
            raise LogprobsError(
                f"the server's {len(self.steps)} log-probabilities cover a part of its answer "
                f"{self.text.strip()[:60]!r}",
                hint=NO_LOGPROBS_HINT,
            )
        return self.steps[: found.tokens] if self.finish == "stop" else list(self.steps)

    def _cut(self, limit: int, shown: int) -> None:
        """End an answer that the server did not end when it was long enough."""
        if self.wanted.logprobs:
            text = spelled_by_first(self.text, self._spelling, limit)
            self.steps = self.steps[:limit]
            self.text = self.text[: max(len(text), shown)]
        else:
            self.text, self.pieces = self.text[:shown], limit
        self.finish, self.full = "length", True

    def _in_full_characters(self, text: str, *, ends: bool) -> str:
        """Join halves of a character (UTF-16 surrogates) that came apart; one that stays alone is none."""
        text, self._half = self._half + text, ""
        if not ends and text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return mended(text)


def mended(text: str) -> str:
    r"""Return a text that can be encoded: pairs of surrogates joined, single ones replaced.

    Example:
        >>> mended("\ud83d\ude00"), mended("a\ud83d")
        ('😀', 'a�')
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def json_of(text: str) -> Any:
    """Parse what a server sent.

    Raises:
        ServiceError: If it is no JSON, or none that can be read: too deep, or with numbers of thousands of
            digits.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise malformed(text) from None


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


def malformed(answer: object) -> ServiceError:
    """Return the error for an answer that is no OpenAI-compatible one."""
    found = "an empty answer" if answer in (None, "", {}) else f"the answer {shown(answer)!r}"
    return ServiceError(
        f"the server returned {found}, where a JSON object with choices was expected",
        hint="check that base_url ends with the API's root, such as http://localhost:8000/v1",
    )


def shown(value: object) -> str:
    """Return the beginning of a value for an error's message; some cannot be written at all."""
    try:
        return mended(str(value)[:120])
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"


def usage_of(answer: Json) -> Usage:
    """Return the server's own count of tokens for one request; zeros where it gives none."""
    given = answer.get("usage")
    counts = given if isinstance(given, Mapping) else {}
    return Usage(1, token_count(counts.get("prompt_tokens")), token_count(counts.get("completion_tokens")))


def token_count(value: object) -> int:
    """Return a number of tokens; 0 for what is none, as where a server does not count."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
    return int(value) if number else 0  # type: ignore[call-overload]  # a number, as was just found


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
    likeliest = likeliest_column(logprobs, len(tokens))
    return [completions_step(*entry, top) for entry in zip(tokens, values, likeliest, strict=True)]


def likeliest_column(columns: Json, length: int) -> list[Any]:
    """Return the likeliest tokens at each place of a completion; Nones where the server lists none.

    Raises:
        LogprobsError: If there is not one entry for each token.
    """
    listed = columns.get("top_logprobs") or [None] * length
    if not isinstance(listed, list) or len(listed) != length:
        raise LogprobsError(
            f"the server lists likeliest tokens as {shown(listed)!r} for {length} tokens",
            hint=NO_LOGPROBS_HINT,
        )
    return listed


def _chat_step(entry: object, top: int) -> Step:
    if not isinstance(entry, Mapping):
        raise LogprobsError(f"a token's log-probability is {shown(entry)!r}", hint=NO_LOGPROBS_HINT)
    token = mended(str(entry.get("token") or ""))
    listed = (entry.get("top_logprobs") or []) if top else []
    if not isinstance(listed, list):
        raise LogprobsError(
            f"the alternatives to the token {token!r} are {shown(listed)!r}", hint=NO_LOGPROBS_HINT
        )
    values = tuple(
        number(token, item.get("logprob") if isinstance(item, Mapping) else item, listed=True)
        for item in listed
    )
    return Step(token, number(token, entry.get("logprob")), values, _bytes(entry.get("bytes")))


def _bytes(given: object) -> bytes | None:
    if isinstance(given, list) and all(isinstance(item, int) and 0 <= item < 256 for item in given):
        return bytes(given)
    return None


def completions_step(token: object, value: object, likeliest: object, top: int) -> Step:
    """Return one token's step from its columns in a completion.

    Raises:
        LogprobsError: If a value is missing, or no natural logarithm of a probability.
    """
    listed = likeliest.values() if top and isinstance(likeliest, Mapping) else ()
    values = tuple(number(token, item, listed=True) for item in listed)
    return Step(mended(str(token)), number(token, value), values)


def number(token: object, value: object, *, listed: bool = False) -> float:
    """Return one log-probability; only a token that was not sampled may be impossible (minus infinity).

    Raises:
        LogprobsError: If it is missing, or no natural logarithm of a probability.
    """
    given = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            given = float(value)
        except OverflowError:
            given = -math.inf if value < 0 else math.inf
    if math.isnan(given) or given > _ROUNDED_UP or (given == -math.inf and not listed):
        raise LogprobsError(
            f"the log-probability of the token {shown(token)!r} is {shown(value)!r}, "
            "which is no natural logarithm of one",
            hint=NO_LOGPROBS_HINT,
        )
    return min(given, 0.0)
