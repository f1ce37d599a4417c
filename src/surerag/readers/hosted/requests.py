"""Bodies of requests to OpenAI-compatible servers; no I/O.

A body holds what its purpose needs and nothing else: each further field is one that some model rejects. The
temperature is always sent, because 0 is no service's own; ``top_p`` where answers are drawn, also where it is
1, because llama.cpp, Ollama and vLLM cut the tail of the distribution unless they are told not to.
"""

from __future__ import annotations

from typing import Any, Literal

from surerag.errors import InputError
from surerag.messages import Prompt, as_messages
from surerag.readers.asking import Request, seed_of
from surerag.readers.logprobs import without_surrogates

Api = Literal["chat", "completions"]

THINKING_OFF: dict[str, Any] = {
    "reasoning_effort": "none",
    "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
}
"""Switches thinking off: for OpenAI, Ollama and Groq; for templates of vLLM, SGLang and llama.cpp."""


def body_of(api: Api, model: str, request: Request) -> dict[str, Any]:
    """Return the body of a request.

    Stop texts are not sent to a model that thinks: they belong to the answer, and may stand in the thoughts.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        **prompt_body(api, request.prompt),
        "max_tokens": sampling.max_tokens + request.budget,
        "temperature": sampling.temperature,
    }
    if sampling.temperature > 0:
        body |= {"top_p": sampling.top_p, "seed": seed_of(sampling.seed, 0)}
        if sampling.top_k is not None:
            # Not OpenAI's own, but understood by most servers of open models.
            body["top_k"] = sampling.top_k
    if sampling.n > 1:
        body["n"] = sampling.n
    if sampling.stop and not request.budget:
        body["stop"] = list(sampling.stop)
    if request.streamed:
        body["stream_options"] = {"include_usage": True}
    return body | logprobs_body(api, request.top)


def prompt_body(api: Api, prompt: Prompt) -> dict[str, Any]:
    """Return the part of a body that holds the prompt; completions take no conversation (InputError)."""
    turns = [{"role": role, "content": without_surrogates(content)} for role, content in as_messages(prompt)]
    if api == "chat":
        return {"messages": turns}
    if len(turns) > 1:
        raise InputError(
            "the completions API takes a text, not a conversation", hint='use api="chat" for conversations'
        )
    return {"prompt": turns[0]["content"]}


def logprobs_body(api: Api, top: int | None) -> dict[str, Any]:
    """Return the part of a body that asks for log-probabilities."""
    if top is None:
        return {}
    # Without alternatives, llama.cpp sends no log-probabilities at all.
    top = max(top, 1)
    return {"logprobs": top} if api == "completions" else {"logprobs": True, "top_logprobs": top}
