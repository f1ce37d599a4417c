"""What LlamaIndex's responses hold: answers, their tokens with log-probabilities, how they ended; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from surerag.errors import LogprobsError, ServiceError, TransientServiceError
from surerag.messages import FinishReason, Generation, SamplingParams, TokenTrace
from surerag.readers.logprobs import answer_tokens, entries_of, token_of, trace_of_entries, without_surrogates
from surerag.readers.thinking import ThoughtSplitter

_FINISH: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
}


class Part(NamedTuple):
    """What one response says of one answer: all of it, or the next piece of a stream.

    Attributes:
        text: The text, thoughts between marks among it.
        thoughts: What came apart as thoughts.
        entries: Tokens with log-probabilities, as entries of OpenAI's chat API; empty where there are none.
        finish: Why it ended, as the server has it; None where it goes on, or the server does not say.
    """

    text: str
    thoughts: str
    entries: list[Mapping[str, Any]]
    finish: str | None


class Reply:
    """One answer of a response, or of a stream so far.

    Attributes:
        thoughts: What came apart as thoughts.
        entries: Tokens with log-probabilities, those of thoughts between marks among them.
        finish: Why it ended, as the server has it; None where it does not say.
        usage: The server's count of tokens, of all answers of the response together.
        started: Whether something has come.
        done: Whether it ended.
    """

    def __init__(self) -> None:
        self.thoughts = ""
        self.entries: list[Mapping[str, Any]] = []
        self.finish: str | None = None
        self.usage: Any = None
        self.started = self.done = False
        self._splitter = ThoughtSplitter()
        self._pieces: list[str] = []
        self._has_choices = False

    @property
    def text(self) -> str:
        """All text so far, thoughts between marks among it."""
        return self._splitter.text

    @property
    def answer(self) -> str:
        """The answer so far, without thoughts."""
        return self._splitter.answer

    @property
    def has_thoughts(self) -> bool:
        """Whether the model thought before it answered."""
        return bool(self.thoughts or self._splitter.thoughts)

    @property
    def n_tokens(self) -> int:
        """Tokens of the answer so far; pieces, where there are no log-probabilities."""
        if not self.answer.strip() or not self.entries:
            return len(self._pieces)
        return len(self.tokens_of(self.answer, whole=False))

    def tokens_of(self, answer: str, *, whole: bool) -> range:
        """Return which of the entries are the tokens of an answer; where it is not whole, some may lack."""
        return answer_tokens(map(token_of, self.entries), answer, whole=whole, thought=self.has_thoughts)

    def feed(self, response: Any) -> str:
        """Take a response of a stream, and return what it adds to the answer."""
        self.started = True
        self.usage = _usage_of(response) or self.usage
        if _get(response.raw, "choices"):
            self._has_choices = True
            return self.take(_choices_of(response, "delta")[0])
        if _get(response.raw, "choices") is not None:
            return ""
        text = _text_of(response)[len(self.text) :] if response.delta is None else response.delta
        part = _own_part(response, text)
        return self.take(part._replace(thoughts=part.thoughts.removeprefix(self.thoughts)))

    def take(self, part: Part) -> str:
        """Take all of an answer or its next piece, and return what that adds to the answer."""
        self.started = True
        self.thoughts += part.thoughts
        self.entries += part.entries
        self.finish = part.finish or self.finish
        return self._added(self._splitter.feed(without_surrogates(part.text)))

    def end(self) -> str:
        """Check a stream that has ended, and return what was held back.

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
        return self.complete()

    def complete(self) -> str:
        """Note that nothing more comes, and return what was held back."""
        self.done = True
        return self._added(self._splitter.end())

    def _added(self, piece: str) -> str:
        self._pieces += [piece] if piece else []
        return piece


def replies_of(response: Any) -> list[Reply]:
    """Return the answers of a whole response: every choice of its raw one, else the response itself.

    Raises:
        ServiceError: If there is none.
    """
    parts = _choices_of(response, "message")
    if not parts:
        text = _text_of(response)
        if _get(response.raw, "choices") is not None and not text:
            raise ServiceError(
                "the server sent a reply without an answer", hint="look at the server's own log"
            )
        parts = [_own_part(response, text)]
    replies = []
    for part in parts:
        reply = Reply()
        reply.usage = _usage_of(response)
        reply.take(part)
        reply.complete()
        replies.append(reply)
    return replies


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
    answer = reply.answer
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
        inside = reply.tokens_of(answer, whole=reply.finish is not None and finish == "stop")
        entries = reply.entries[inside.start : inside.stop]
        listed = all(entry.get("top_logprobs") for entry in entries)
        trace = trace_of_entries(entries, top_logprobs=top_logprobs if listed else 0)
        thinking = thinking or (inside.start if reply.has_thoughts else 0)
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


def _choices_of(response: Any, kind: str) -> list[Part]:
    """Return the choices of OpenAI's API: ``message`` or ``delta`` of chat, texts of completions."""
    return [_of_choice(choice, _get(choice, kind)) for choice in _get(response.raw, "choices") or ()]


def _of_choice(choice: Any, message: Any) -> Part:
    text = _get(choice, "text") if message is None else _get(message, "content")
    if isinstance(text, list):
        text = "".join(_get(part, "text") or "" for part in text)
    if text is not None and not isinstance(text, str):
        raise ServiceError(f"the server sent {text!r} as its answer")
    reasoning = _get(message, "reasoning_content") or _get(message, "reasoning")
    listed = _get(choice, "logprobs")
    entries = entries_of(listed.model_dump(warnings=False) if hasattr(listed, "model_dump") else listed)
    finish = _get(choice, "finish_reason")
    return Part(text or "", reasoning if isinstance(reasoning, str) else "", entries, finish)


def _own_part(response: Any, text: str) -> Part:
    """Return what LlamaIndex's own fields say of an answer, where the raw response has no choices."""
    blocks = response.message.blocks if hasattr(response, "message") else ()
    thoughts = "".join(block.content or "" for block in blocks if block.block_type == "thinking")
    names = ("finish_reason", "stop_reason", "done_reason")
    finish = next((str(value) for name in names if (value := _get(response.raw, name))), None)
    return Part(text, thoughts, _own_entries(response, text), finish)


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


def _usage_of(response: Any) -> Any:
    return _get(response.raw, "usage") or _get(response.raw, "usage_metadata")


def _count(usage: Any, *paths: str) -> int:
    """Return the first count of tokens that is there, by its path."""
    for path in paths:
        value = usage
        for name in path.split("."):
            value = _get(value, name)
        if isinstance(value, int) and value > 0:
            return value
    return 0
