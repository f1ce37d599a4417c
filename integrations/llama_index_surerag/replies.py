"""What LlamaIndex's responses hold: answers, their tokens with log-probabilities, how they ended; no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from surerag.errors import LogprobsError, ServiceError
from surerag.measures.entropy import EntropyBounds, entropy_bounds
from surerag.messages import EntropyTrace, FinishReason, Generation, SamplingParams, TokenTrace
from surerag.readers.thinking import ThoughtSplitter, answer_tokens

VOCABULARY = 262_144
"""Tokens of the largest vocabularies; a smaller one only makes intervals of entropy narrower."""

_FINISH: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
}
_ROUNDING = 1e-3


class Token(NamedTuple):
    """A sampled token: its text or bytes, its log-probability, and those of the likeliest ones."""

    text: str | bytes
    logprob: float
    likeliest: tuple[float, ...]


@dataclass
class Reply:
    """One answer of a response, or of a stream so far.

    Attributes:
        text: All text, thoughts between marks among it.
        thoughts: What came apart as thoughts.
        tokens: All tokens with log-probabilities; empty where there are none.
        finish: As the server has it; None where it does not say.
        usage: The server's count of tokens, of all answers of the response together.
    """

    text: str = ""
    thoughts: str = ""
    tokens: list[Token] = field(default_factory=list)
    finish: str | None = None
    usage: Any = None


def get(value: Any, *names: str) -> Any:
    """Return an attribute of an attribute, or an entry of a mapping; None where one is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def replies_of(response: Any) -> list[Reply]:
    """Return the answers of a whole response: every choice of its raw one, else the response itself.

    Raises:
        ServiceError: If there is none.
    """
    raw = response.raw
    choices = get(raw, "choices")
    if choices is not None and not isinstance(choices, Sequence | Iterable):
        raise ServiceError(f"the server sent {choices!r} as its choices")
    usage = get(raw, "usage")
    if choices:
        return [_of_choice(choice, get(choice, "message"), usage) for choice in choices]
    if choices is not None and not _text_of(response):
        raise ServiceError("the server sent a reply without an answer", hint="look at the server's own log")
    thoughts = "".join(_thoughts_of(response))
    reply = Reply(_text_of(response), thoughts, usage=usage or get(raw, "usage_metadata"))
    reply.finish = _finish_of(raw)
    reply.tokens = _own_tokens(response, reply.text)
    return [reply]


class StreamedReply(Reply):
    """An answer that comes piece by piece.

    Attributes:
        done: Whether it ended.
        started: Whether a piece has come.
        shown: The answer so far, without thoughts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.done = False
        self.started = False
        self.shown = ""
        self._splitter = ThoughtSplitter()
        self._pieces = 0

    @property
    def n_tokens(self) -> int:
        """Tokens of the answer so far; pieces, where there are no log-probabilities."""
        if not self.shown.strip():
            return 0
        if not self.tokens:
            return self._pieces
        texts = [token.text for token in self.tokens]
        return len(answer_tokens(texts, self.shown, whole=False, thought=bool(self.thoughts)))

    def feed(self, response: Any) -> str:
        """Take a response of a stream, and return what it adds to the answer."""
        self.started = True
        raw = response.raw
        choices = get(raw, "choices")
        self.usage = get(raw, "usage") or self.usage
        if choices is None:
            delta, text = response.delta, _text_of(response)
            piece = text[len(self.text) :] if delta is None else delta
            self.finish = _finish_of(raw) or self.finish
            self.tokens += _own_tokens(response, piece)
            self.thoughts = "".join(_thoughts_of(response)) or self.thoughts
        elif choices:
            part = _of_choice(choices[0], get(choices[0], "delta"), None)
            piece = part.text
            self.finish = part.finish or self.finish
            self.thoughts += part.thoughts
            self.tokens += part.tokens
        else:
            return ""
        self.text += piece
        fresh = self._splitter.feed(piece)
        self._pieces += bool(fresh)
        self.shown += fresh
        self._has_choices = choices is not None
        return fresh

    def end(self) -> str:
        """Note that the stream has ended, and return what was held back.

        Raises:
            ServiceError: If a server that says how its answers end broke it off.
        """
        if not self.started or (self._has_choices and self.finish is None):
            raise ServiceError(
                f"the server broke its answer off after {self.text[-60:]!r}", hint="ask again"
            )
        self.done = True
        fresh = self._splitter.end()
        self.shown += fresh
        return fresh

    def whole(self, response: Any) -> str:
        """Take a whole response in place of a stream, and return its answer."""
        reply = replies_of(response)[0]
        self.__dict__.update(reply.__dict__)
        self.started = self.done = True
        self.shown = self._splitter.feed(reply.text) + self._splitter.end()
        return self.shown


def generations_of(
    replies: Sequence[Reply], sampling: SamplingParams, *, traced: bool
) -> list[Generation]:
    """Return the answers of one response as generations, with traces where they were asked for.

    Raises:
        LogprobsError: If log-probabilities are missing, or cannot be such.
        ServiceError: If a model was still thinking when its tokens were spent.
    """
    usage = replies[0].usage if replies else None
    completed = _count(usage, "completion_tokens", "candidates_token_count") // max(len(replies), 1)
    return [_generation(reply, sampling, completed, traced=traced) for reply in replies]


def _generation(reply: Reply, sampling: SamplingParams, completed: int, *, traced: bool) -> Generation:
    splitter = ThoughtSplitter()
    splitter.feed(reply.text)
    splitter.end()
    answer = splitter.answer
    for stop in sampling.stop:
        answer = answer.split(stop)[0]
    thought = bool(reply.thoughts or splitter.has_thoughts)
    finish = _FINISH.get(str(reply.finish).rpartition(".")[2].lower(), "stop")
    trace, thinking = None, _count(reply.usage, "completion_tokens_details.reasoning_tokens")
    if traced:
        if answer.strip() and not reply.tokens:
            raise LogprobsError("the answer came without log-probabilities")
        texts = [token.text for token in reply.tokens]
        inside = answer_tokens(texts, answer, whole=finish == "stop", thought=thought)
        trace = _trace([reply.tokens[place] for place in inside])
        thinking = thinking or (inside.start if thought else 0)
    return Generation(
        answer.strip(),
        prompt_tokens=_count(reply.usage, "prompt_tokens", "prompt_token_count"),
        trace=trace,
        finish=finish,
        completion_tokens=max(completed - thinking, 0) if trace is None else len(trace),
        thinking_tokens=thinking,
        cached_tokens=_count(reply.usage, "prompt_tokens_details.cached_tokens"),
    )


def _of_choice(choice: Any, message: Any, usage: Any) -> Reply:
    """Return a choice of OpenAI's API: chat or completion, whole or a piece."""
    text = get(choice, "text") if message is None else get(message, "content")
    if isinstance(text, list):
        text = "".join(get(part, "text") or "" for part in text)
    reasoning = get(message, "reasoning_content") or get(message, "reasoning")
    if text is not None and not isinstance(text, str):
        raise ServiceError(f"the server sent {text!r} as its answer")
    return Reply(
        text or "",
        reasoning if isinstance(reasoning, str) else "",
        _choice_tokens(get(choice, "logprobs")),
        get(choice, "finish_reason"),
        usage,
    )


def _choice_tokens(listed: Any) -> list[Token]:
    content = get(listed, "content")
    if content is not None:
        return [
            Token(
                _spelling(one),
                _number(get(one, "logprob")),
                tuple(_number(get(other, "logprob"), listed=True) for other in get(one, "top_logprobs") or ()),
            )
            for one in content
        ]
    tokens, values = get(listed, "tokens") or [], get(listed, "token_logprobs") or []
    top = get(listed, "top_logprobs") or [None] * len(tokens)
    if not len(tokens) == len(values) == len(top):
        raise LogprobsError("the server's log-probabilities are not one for each token")
    return [
        Token(text, _number(value), tuple(_number(one, listed=True) for one in (others or {}).values()))
        for text, value, others in zip(tokens, values, top, strict=True)
    ]


def _spelling(entry: Any) -> str | bytes:
    listed = get(entry, "bytes")
    return bytes(listed) if listed else str(get(entry, "token") or "")


def _own_tokens(response: Any, text: str) -> list[Token]:
    """Return the tokens of Gemini's result, or of ``response.logprobs``: lists of the likeliest tokens.

    The sampled token of such a list is the first one that goes on with the text, the likeliest first.
    """
    result = get(response.raw, "logprobs_result")
    chosen = get(result, "chosen_candidates")
    if chosen:
        top = get(result, "top_candidates") or [None] * len(chosen)
        return [
            Token(
                str(get(one, "token") or ""),
                _number(get(one, "log_probability")),
                tuple(_number(get(o, "log_probability"), listed=True) for o in get(others, "candidates") or ()),
            )
            for one, others in zip(chosen, top, strict=False)
        ]
    found, rest = list[Token](), text.lstrip()
    for listed in response.logprobs or ():
        first = not found
        fitting = [
            one for one in listed if one.token and rest.startswith(one.token.lstrip() if first else one.token)
        ]
        if not fitting:
            if not rest.strip():
                break
            raise LogprobsError(f"no token in response.logprobs goes on with {rest[:40]!r}")
        one = fitting[0]
        rest = rest[len(one.token.lstrip() if first else one.token) :]
        alternatives = tuple(_number(other.logprob, listed=True) for other in listed) if len(listed) > 1 else ()
        found.append(Token(one.token, _number(one.logprob), alternatives))
    return found


def _number(value: Any, *, listed: bool = False) -> float:
    """Return a log-probability; only a token that was not sampled may be impossible (minus infinity)."""
    if isinstance(value, int | float) and not math.isnan(value) and value <= _ROUNDING:
        if listed or value > -math.inf:
            return min(float(value), 0.0)
    raise LogprobsError(f"a token's log-probability is {value!r}, which is no natural logarithm of one")


def _trace(tokens: Sequence[Token]) -> TokenTrace:
    texts = tuple(
        token.text if isinstance(token.text, str) else token.text.decode("utf-8", "replace")
        for token in tokens
    )
    entropy = None
    if all(token.likeliest for token in tokens):
        bounds = [_bounds(token) for token in tokens]
        entropy = EntropyTrace(tuple(one.lower for one in bounds), tuple(one.upper for one in bounds), False)
    return TokenTrace(texts, tuple(token.logprob for token in tokens), entropy)


def _bounds(token: Token) -> EntropyBounds:
    """Return the interval of entropy; a sampled token below the listed ones is no bound for the rest."""
    listed = sorted(token.likeliest, reverse=True)
    sampled = token.logprob if token.logprob < listed[-1] - _ROUNDING else None
    try:
        return entropy_bounds(listed, max(VOCABULARY, len(listed) + 1), sampled_logprob=sampled)
    except ValueError as error:
        raise LogprobsError(f"the alternatives to {token.text!r} are no log-probabilities: {error}") from None


def _text_of(response: Any) -> str:
    if hasattr(response, "message"):
        blocks = response.message.blocks
        return "".join(block.text or "" for block in blocks if block.block_type == "text")
    return response.text or ""


def _thoughts_of(response: Any) -> Iterable[str]:
    blocks = response.message.blocks if hasattr(response, "message") else ()
    return (block.content or "" for block in blocks if block.block_type == "thinking")


def _finish_of(raw: Any) -> str | None:
    names = ("finish_reason", "stop_reason", "done_reason")
    return next((str(value) for name in names if (value := get(raw, name))), None)


def _count(usage: Any, *names: str) -> int:
    """Return the first count of tokens that is there, by its path."""
    found = (get(usage, *name.split(".")) for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), 0)
