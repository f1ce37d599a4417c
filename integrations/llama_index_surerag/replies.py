"""What LlamaIndex's responses hold: answers, their tokens with log-probabilities, how they ended; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from surerag.errors import LogprobsError, ServiceError, TransientServiceError
from surerag.messages import FinishReason, Generation, SamplingParams, TokenTrace
from surerag.readers.logprobs import answer_tokens, entries_of, token_of, trace_of, without_surrogates
from surerag.readers.thinking import ThoughtSplitter, split_thoughts

_FINISH: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
}


@dataclass
class Reply:
    """One answer of a response, or of a stream so far.

    Attributes:
        text: All text, thoughts between marks among it.
        thoughts: What came apart as thoughts.
        entries: Tokens with log-probabilities, as entries of OpenAI's chat API; empty where there are none.
        finish: Why it ended, as the server has it; None where it does not say.
        usage: The server's count of tokens, of all answers of the response together.
    """

    text: str = ""
    thoughts: str = ""
    entries: list[Mapping[str, Any]] = field(default_factory=list)
    finish: str | None = None
    usage: Any = None

    @property
    def has_thoughts(self) -> bool:
        """Whether the model thought before it answered."""
        return bool(self.thoughts or split_thoughts(self.text)[0])

    @property
    def tokens(self) -> list[str | bytes]:
        """What the tokens spell."""
        return [token_of(entry) for entry in self.entries]


def replies_of(response: Any) -> list[Reply]:
    """Return the answers of a whole response: every choice of its raw one, else the response itself.

    Raises:
        ServiceError: If there is none.
    """
    choices, usage = _get(response.raw, "choices"), _get(response.raw, "usage")
    if choices:
        return [_of_choice(choice, _get(choice, "message"), usage) for choice in choices]
    text = _text_of(response)
    if choices is not None and not text:
        raise ServiceError("the server sent a reply without an answer", hint="look at the server's own log")
    usage = usage or _get(response.raw, "usage_metadata")
    return [
        Reply(text, _thoughts_of(response), _own_entries(response, text), _finish_of(response.raw), usage)
    ]


class StreamedReply(Reply):
    """An answer that comes piece by piece.

    Attributes:
        done: Whether it ended.
        started: Whether a piece has come.
        answer: The answer so far, without thoughts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.done = self.started = False
        self.answer = ""
        self._splitter = ThoughtSplitter()
        self._pieces: list[str] = []
        self._has_choices = False

    @property
    def n_tokens(self) -> int:
        """Tokens of the answer so far; pieces, where there are no log-probabilities."""
        if not self.answer.strip() or not self.entries:
            return len(self._pieces)
        return len(answer_tokens(self.tokens, self.answer, whole=False, thought=bool(self.thoughts)))

    def feed(self, response: Any) -> str:
        """Take a response of a stream, and return what it adds to the answer."""
        self.started = True
        choices = _get(response.raw, "choices")
        self.usage = _get(response.raw, "usage") or self.usage
        if choices:
            part = _of_choice(choices[0], _get(choices[0], "delta"), None)
            self._has_choices = True
            self.thoughts += part.thoughts
        elif choices is None:
            text = _text_of(response)
            piece = text[len(self.text) :] if response.delta is None else response.delta
            part = Reply(piece, "", _own_entries(response, piece), _finish_of(response.raw))
            self.thoughts = _thoughts_of(response) or self.thoughts
        else:
            return ""
        self.finish = part.finish or self.finish
        self.entries += part.entries
        text = without_surrogates(part.text)
        self.text += text
        return self._add(self._splitter.feed(text))

    def end(self) -> str:
        """Note that the stream has ended, and return what was held back.

        Raises:
            TransientServiceError: If a server that says how its answers end broke it off, or every piece came
                twice.
        """
        if not self.started or (self._has_choices and self.finish is None):
            raise TransientServiceError(
                f"the server broke its answer off after {self.text[-60:]!r}", hint="ask again"
            )
        if _came_twice(self.entries, least=2) or _came_twice(self._pieces, least=4):
            raise TransientServiceError("the server sent every piece of its answer twice", hint="ask again")
        self.done = True
        return self._add(self._splitter.end())

    def whole(self, response: Any) -> str:
        """Take a whole response in place of a stream, and return its answer."""
        self.__dict__.update(replies_of(response)[0].__dict__)
        self.started = self.done = True
        return self._add(self._splitter.feed(self.text) + self._splitter.end())

    def _add(self, piece: str) -> str:
        self.answer += piece
        self._pieces += [piece] if piece else []
        return piece


def _came_twice(parts: Sequence[Any], least: int) -> bool:
    """Whether each part of a stream is there twice in a row; a text of one word alone may repeat it."""
    return len(parts) >= least and parts[::2] == parts[1::2] and any(part != parts[0] for part in parts)


def generation_of(reply: Reply, sampling: SamplingParams, top_logprobs: int | None, share: int) -> Generation:
    """Return an answer as a generation.

    Args:
        reply: The answer.
        sampling: How it was sampled.
        top_logprobs: Likeliest tokens that were requested; None for no trace.
        share: Answers that the server's count of tokens is of.

    Raises:
        LogprobsError: If log-probabilities are missing, or cannot be such.
    """
    answer = without_surrogates(split_thoughts(reply.text)[1])
    for stop in sampling.stop:
        answer = answer.split(stop)[0]
    finish = _FINISH.get(str(reply.finish).rpartition(".")[2].lower(), "stop")
    if finish == "stop" and reply.finish is not None and not answer.strip():
        finish = "empty"
    thinking = _count(reply.usage, "completion_tokens_details.reasoning_tokens")
    completed = _count(reply.usage, "completion_tokens", "candidates_token_count") // share
    trace: TokenTrace | None = None
    if top_logprobs is not None:
        if answer.strip() and not reply.entries:
            raise LogprobsError("the answer came without log-probabilities")
        thought = reply.has_thoughts
        inside = answer_tokens(
            reply.tokens, answer, whole=reply.finish is not None and finish == "stop", thought=thought
        )
        entries = reply.entries[inside.start : inside.stop]
        listed = all(entry.get("top_logprobs") for entry in entries)
        trace = trace_of(entries, top_logprobs=top_logprobs if listed else 0)
        thinking = thinking or (inside.start if thought else 0)
        if reply.finish is None and len(trace) >= sampling.max_tokens:
            finish = "length"
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
    """Return a choice of OpenAI's API: of chat or of completions, whole or a piece."""
    text = _get(choice, "text") if message is None else _get(message, "content")
    if isinstance(text, list):
        text = "".join(_get(part, "text") or "" for part in text)
    if text is not None and not isinstance(text, str):
        raise ServiceError(f"the server sent {text!r} as its answer")
    reasoning = _get(message, "reasoning_content") or _get(message, "reasoning")
    listed = _get(choice, "logprobs")
    return Reply(
        text or "",
        reasoning if isinstance(reasoning, str) else "",
        entries_of(listed.model_dump(warnings=False) if hasattr(listed, "model_dump") else listed),
        _get(choice, "finish_reason"),
        usage,
    )


def _own_entries(response: Any, text: str) -> list[Mapping[str, Any]]:
    """Return the tokens of Gemini's result, or of ``response.logprobs``: lists of the likeliest tokens.

    The sampled token of such a list is the first one that goes on with the text.
    """
    result = _get(response.raw, "logprobs_result")
    if chosen := _get(result, "chosen_candidates"):
        top = _get(result, "top_candidates") or [None] * len(chosen)
        return [
            {**_gemini(one), "top_logprobs": [_gemini(other) for other in _get(others, "candidates") or ()]}
            for one, others in zip(chosen, top, strict=False)
        ]
    entries, rest = list[Mapping[str, Any]](), text
    for listed in response.logprobs or ():
        if not entries:
            rest = rest.lstrip()
        spelled = [(one.token if entries else one.token.lstrip(), one) for one in listed]
        fitting = next(((token, one) for token, one in spelled if token and rest.startswith(token)), None)
        if fitting is None and rest.strip():
            raise LogprobsError(f"no token in response.logprobs goes on with {rest[:40]!r}")
        if fitting is None:
            break
        token, one = fitting
        rest = rest[len(token) :]
        others = [{"token": other.token, "logprob": other.logprob} for other in listed]
        top_logprobs = others if len(others) > 1 else []
        entries.append({"token": one.token, "logprob": one.logprob, "top_logprobs": top_logprobs})
    return entries


def _gemini(candidate: Any) -> dict[str, Any]:
    return {"token": _get(candidate, "token"), "logprob": _get(candidate, "log_probability")}


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _text_of(response: Any) -> str:
    if not hasattr(response, "message"):
        return response.text or ""
    return "".join(block.text or "" for block in response.message.blocks if block.block_type == "text")


def _thoughts_of(response: Any) -> str:
    blocks = response.message.blocks if hasattr(response, "message") else ()
    return "".join(block.content or "" for block in blocks if block.block_type == "thinking")


def _finish_of(raw: Any) -> str | None:
    names = ("finish_reason", "stop_reason", "done_reason")
    return next((str(value) for name in names if (value := _get(raw, name))), None)


def _count(usage: Any, *paths: str) -> int:
    """Return the first count of tokens that is there, by its path."""
    for path in paths:
        value = usage
        for name in path.split("."):
            value = _get(value, name)
        if isinstance(value, int) and value > 0:
            return value
    return 0
