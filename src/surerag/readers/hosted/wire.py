"""Write requests in OpenAI's format, and turn servers' replies into parts of answers; no I/O.

A request contains only necessary fields, because every other field is rejected by some model. The
temperature is always sent, because no service has 0 as its default. ``top_p`` is sent if answers are sampled,
because llama.cpp, Ollama and vLLM cut off the tail of the distribution by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from surerag.errors import InputError
from surerag.messages import Prompt, Usage, as_messages
from surerag.readers.client_reader import Request, seed_of
from surerag.readers.hosted.client import malformed
from surerag.readers.logprobs import entries_of, without_surrogates
from surerag.readers.reading import ReplyPart, usage_of

Json = Mapping[str, Any]
Api = Literal["chat", "completions"]

THINKING_OFF: dict[str, Any] = {
    "reasoning_effort": "none",
    "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
}
"""Fields that switch thinking off; the first is for OpenAI, Ollama and Groq, the second for other servers."""


def body_of(api: Api, model: str, request: Request) -> dict[str, Any]:
    """Return the body of a request.

    Stop texts are not sent to a model that thinks, because a stop text in the thoughts would end the output.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        **prompt_body(api, request.prompt),
        "temperature": sampling.temperature,
    }
    if sampling.max_tokens is not None:
        body["max_tokens"] = sampling.max_tokens + request.budget
    if sampling.temperature > 0:
        body |= {"top_p": 1.0, "seed": seed_of(sampling.seed, 0)}
    if sampling.n > 1:
        body["n"] = sampling.n
    if sampling.stop and not request.budget:
        body["stop"] = list(sampling.stop)
    if request.streamed:
        body["stream_options"] = {"include_usage": True}
    if request.top is not None:
        # If no alternatives are requested, llama.cpp sends no log-probabilities at all.
        top = max(request.top, 1)
        body |= {"logprobs": top} if api == "completions" else {"logprobs": True, "top_logprobs": top}
    return body


def prompt_body(api: Api, prompt: Prompt) -> dict[str, Any]:
    """Return the fields of a body that hold the prompt.

    Raises:
        InputError: If ``api`` is the completions API, and the prompt is a conversation.
    """
    turns = [{"role": role, "content": without_surrogates(content)} for role, content in as_messages(prompt)]
    if api == "chat":
        return {"messages": turns}
    if len(turns) > 1:
        raise InputError(
            "the completions API takes a text, not a conversation", hint='use api="chat" for conversations'
        )
    return {"prompt": turns[0]["content"]}


def reply_parts(answer: Json, *, logprobs: bool) -> list[ReplyPart]:
    """Return each choice of a server's whole answer as one part; a malformed choice raises ServiceError."""
    usage = usage_of(answer.get("usage"))
    return [_choice_part(choice, usage, logprobs=logprobs) for choice in choices_of(answer)]


def next_reply_part(piece: Json, *, logprobs: bool) -> ReplyPart:
    """Return a piece of a stream as a part of the reply; the part may have only token counts, and no text."""
    usage = usage_of(piece["usage"]) if isinstance(piece.get("usage"), Mapping) else None
    if not piece.get("choices"):
        return ReplyPart(usage=usage)
    return _choice_part(choices_of(piece)[0], usage, logprobs=logprobs)


def _choice_part(choice: Json, usage: Usage | None, *, logprobs: bool) -> ReplyPart:
    message = choice.get("message", choice.get("delta"))
    holder, key = (message, "content") if isinstance(message, Mapping) else (choice, "text")
    text, thoughts = holder.get(key), holder.get("reasoning_content") or holder.get("reasoning")
    if not isinstance(text, str | None) or (text is None and holder is choice and key not in choice):
        raise malformed(choice)
    reason = choice.get("finish_reason")
    return ReplyPart(
        text or "",
        thoughts if isinstance(thoughts, str) else "",
        entries_of(choice.get("logprobs")) if logprobs else (),
        None if reason is None else str(reason),
        usage,
    )


def choices_of(answer: Json) -> list[Json]:
    """Return an answer's choices in the order of their index; a malformed answer raises ServiceError."""
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
