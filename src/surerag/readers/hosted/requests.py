"""Bodies of requests to OpenAI-compatible servers; no I/O.

A body holds what its purpose needs and nothing else: each further field is one that some model rejects. The
temperature is always sent, because 0 is no service's own; ``top_p`` where answers are drawn, also where it is
1, because llama.cpp, Ollama and vLLM cut the tail of the distribution unless they are told not to.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from surerag.errors import InputError
from surerag.messages import Message, Prompt, SamplingParams, as_messages
from surerag.readers.logprobs import without_surrogates

Api = Literal["chat", "completions"]
Scoring = Literal["echo", "prompt_logprobs"]
"""How a server reads given text back: completions with ``echo``, or the field that vLLM adds."""

_SEED_STEP = 0x9E3779B1
_SEED_RANGE = 2**31

THINKING_OFF: dict[str, Any] = {
    "reasoning_effort": "none",
    "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
}
"""Switches thinking off: for OpenAI, Ollama and Groq; for templates of vLLM, SGLang and llama.cpp."""


class TokenDetails(NamedTuple):
    """What is requested of each token.

    Attributes:
        logprobs: Whether log-probabilities are requested at all.
        top: How many of the likeliest tokens are listed; 0 for the sampled one alone.
    """

    logprobs: bool
    top: int


def details_for(sampling: SamplingParams, details: TokenDetails) -> TokenDetails:
    """Return what to request of each token: no more than the answer's trace must hold.

    Example:
        >>> details_for(SamplingParams(trace="logprobs"), TokenDetails(True, 20))
        TokenDetails(logprobs=True, top=0)
    """
    logprobs = details.logprobs and sampling.trace != "none"
    return TokenDetails(logprobs, details.top if logprobs and sampling.trace == "entropy" else 0)


def body_of(
    api: Api, model: str, prompt: Prompt, sampling: SamplingParams, details: TokenDetails, budget: int = 0
) -> dict[str, Any]:
    """Return the body that asks for ``sampling.n`` answers to one prompt.

    ``budget`` are tokens for thinking, of a model that thinks. Stop texts are then not sent: they belong to
    the answer, and may stand in the thoughts.
    """
    body: dict[str, Any] = {
        "model": model,
        **prompt_body(api, prompt),
        "max_tokens": sampling.max_tokens + budget,
        "temperature": sampling.temperature,
    }
    if sampling.temperature > 0:
        body |= {"top_p": sampling.top_p, "seed": sampling.seed % _SEED_RANGE}
        if sampling.top_k is not None:
            # Not OpenAI's own, but understood by most servers of open models.
            body["top_k"] = sampling.top_k
    if sampling.n > 1:
        body["n"] = sampling.n
    if sampling.stop and not budget:
        body["stop"] = list(sampling.stop)
    return body | logprobs_body(api, details)


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


def logprobs_body(api: Api, details: TokenDetails) -> dict[str, Any]:
    """Return the part of a body that asks for log-probabilities."""
    if not details.logprobs:
        return {}
    if api == "completions":
        # Some servers take 0 for none at all.
        return {"logprobs": max(details.top, 1)}
    return {"logprobs": True, "top_logprobs": details.top} if details.top else {"logprobs": True}


def scoring_body(
    how: Scoring, api: Api, model: str, prompt: Prompt, continuation: str, details: TokenDetails
) -> dict[str, Any]:
    """Return the body that has a continuation of a prompt read back."""
    limits = {"model": model, "max_tokens": 1, "temperature": 0.0}
    if api == "completions":
        text = prompt_body(api, prompt)["prompt"] + without_surrogates(continuation)
        read = (
            {"echo": True, **logprobs_body(api, details)}
            if how == "echo"
            else {"prompt_logprobs": details.top}
        )
        return {"prompt": text, **limits, **read}
    answered = (*as_messages(prompt), Message("assistant", continuation))
    template = {"add_generation_prompt": False, "continue_final_message": True}
    return {**prompt_body(api, answered), **limits, **template, "prompt_logprobs": details.top}


def seed_of(seed: int, sample: int) -> int:
    """Return the seed of one sample, where a server has to be asked for it alone.

    Example:
        >>> seed_of(7, 0), seed_of(7, 1) != seed_of(8, 0)
        (7, True)
    """
    return (seed + sample * _SEED_STEP) % _SEED_RANGE
