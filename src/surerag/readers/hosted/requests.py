"""Requests to OpenAI-compatible servers: their bodies; no I/O.

A request holds what its purpose needs and nothing else: each further field is one that some model refuses.
The temperature is always said, because 0 is no service's own; ``top_p`` where answers are drawn, also where
it is 1, because llama.cpp, Ollama and vLLM cut the tail of the distribution unless they are told not to.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from surerag.errors import InputError
from surerag.messages import Prompt, SamplingParams, as_messages
from surerag.readers.hosted.logprobs import Wanted
from surerag.readers.hosted.parse import Api

_SEED_STEP = 0x9E3779B1
_SEED_RANGE = 2**31

_LEAST_OUTPUT = 16
"""The Responses API takes no smaller limit; an answer is cut here."""

LIMIT: Mapping[Api, str] = MappingProxyType(
    {"chat": "max_tokens", "completions": "max_tokens", "responses": "max_output_tokens"}
)
"""What the limit on new tokens is called."""


class Ask(NamedTuple):
    """One request.

    Attributes:
        api: Where it goes.
        body: What it says.
        patient: Whether it is sent again when it fails in a way that may pass.
        sampling: What it is to get; tells which fields may be left out where a service refuses them.
        kept: These fields, where it is not the sampling that tells.
    """

    api: Api
    body: dict[str, Any]
    patient: bool = True
    sampling: SamplingParams | None = None
    kept: frozenset[str] | None = None


def wanted_for(sampling: SamplingParams, wanted: Wanted) -> Wanted:
    """Return what to ask of each token: what the answer's trace must hold, of what the reader would ask.

    Example:
        >>> wanted_for(SamplingParams(trace="logprobs"), Wanted(True, 20, 100))
        Wanted(logprobs=True, top=0, vocabulary_size=100)
    """
    logprobs = wanted.logprobs and sampling.trace != "none"
    return wanted._replace(logprobs=logprobs, top=wanted.top if sampling.trace == "entropy" else 0)


def body_of(
    api: Api, model: str, prompt: Prompt, sampling: SamplingParams, wanted: Wanted, budget: int = 0
) -> dict[str, Any]:
    """Return the body that asks for ``sampling.n`` answers to one prompt.

    Args:
        api: Where to ask.
        model: Which model.
        prompt: What to ask.
        sampling: How to sample.
        wanted: What to ask of each token.
        budget: Tokens for thinking, of a model that is known to think. Stop texts are then not sent: they are
            meant for the answer, and may stand in the thoughts.

    Raises:
        InputError: If a conversation is to go to the completions API.
    """
    limit = sampling.max_tokens + budget
    body: dict[str, Any] = {
        "model": model,
        **prompt_body(api, prompt),
        LIMIT[api]: max(limit, _LEAST_OUTPUT) if api == "responses" else limit,
        "temperature": sampling.temperature,
    }
    if sampling.temperature > 0:
        body["top_p"] = sampling.top_p
        if sampling.top_k is not None:
            # Not OpenAI's own, but understood by most servers of open models.
            body["top_k"] = sampling.top_k
    if api != "responses":
        if sampling.temperature > 0:
            body["seed"] = sampling.seed % _SEED_RANGE
        if sampling.n > 1:
            body["n"] = sampling.n
        if sampling.stop and not budget:
            body["stop"] = list(sampling.stop)
    return body | logprobs_body(api, wanted)


def prompt_body(api: Api, prompt: Prompt) -> dict[str, Any]:
    """Return the part of a body that holds the prompt.

    Raises:
        InputError: If a conversation is to go to the completions API.
    """
    messages = as_messages(prompt)
    if api != "completions":
        turns = [{"role": message.role, "content": message.content} for message in messages]
        # The chat API keeps nothing unless it is told to; the Responses API keeps everything.
        return {"messages": turns} if api == "chat" else {"input": turns, "store": False}
    if len(messages) > 1:
        raise InputError(
            f"a conversation of {len(messages)} turns cannot go to the completions API",
            hint='use api="chat", or put it into one text with the model\'s own template',
        )
    return {"prompt": messages[0].content}


def logprobs_body(api: Api, wanted: Wanted) -> dict[str, Any]:
    """Return the part of a body that asks for log-probabilities."""
    if not wanted.logprobs:
        return {}
    if api == "completions":
        # The sampled token's own comes with any number, but some servers take 0 for none at all.
        return {"logprobs": max(wanted.top, 1)}
    if api == "responses":
        listed = {"top_logprobs": wanted.top} if wanted.top else {}
        return {"include": ["message.output_text.logprobs"], **listed}
    return {"logprobs": True, "top_logprobs": wanted.top} if wanted.top else {"logprobs": True}


def answer_at_once(api: Api) -> dict[str, Any]:
    """Return the fields that switch a model's thinking off; those that a service refuses are left out.

    ``reasoning_effort`` is OpenAI's (gpt-5.1 and later), and understood by Ollama and Groq
    (https://github.com/ollama/ollama/pull/14821, https://console.groq.com/docs/reasoning).
    ``chat_template_kwargs`` are vLLM's, SGLang's and
    llama.cpp's; templates call the option ``enable_thinking`` (Qwen3, GLM) or ``thinking`` (DeepSeek-V3.1,
    Granite) (https://docs.vllm.ai/en/stable/features/reasoning_outputs/). Ollama ignores ``think`` here.
    """
    if api == "responses":
        return {"reasoning": {"effort": "none"}}
    if api == "completions":
        return {}
    return {
        "reasoning_effort": "none",
        "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
    }


def seed_of(seed: int, sample: int) -> int:
    """Return the seed of one sample, where a server has to be asked for it alone.

    Example:
        >>> seed_of(7, 0), seed_of(7, 1) != seed_of(8, 0)
        (7, True)
    """
    return (seed + sample * _SEED_STEP) % _SEED_RANGE
