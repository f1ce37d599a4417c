"""How classes of LLMs are asked, and how their answers are read; a class of your own can be registered."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import ChatResponse, CompletionResponse, ThinkingBlock
from llama_index.core.llms import LLM

from surerag.errors import ConfigurationError
from surerag.messages import FinishReason
from surerag.readers.hosted.parse import token_count


@dataclass(frozen=True, slots=True)
class LLMToken:
    """A token of an answer.

    Attributes:
        text: What it spells.
        logprob: Natural log of the model's probability of it.
        likeliest: Those of the likeliest tokens at its place, by their text; empty where none are listed.
    """

    text: str
    logprob: float
    likeliest: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class LLMAnswer:
    """What an LLM answered, or one piece of it in a stream.

    Attributes:
        text: The answer. Thoughts that stand in it between ``<think>`` and ``</think>`` are told apart.
        tokens: Its tokens, where they were asked for; those of thoughts may be among them.
        thoughts: What the model thought before, where its service tells that apart.
        finish: Why it ended; None if the LLM does not say, or goes on.
        prompt_tokens: Length of the prompt; 0 if the LLM does not say.
        completion_tokens: Tokens that were generated, thoughts included; 0 if the LLM does not say.
        thinking_tokens: How many of them are thoughts; 0 if the LLM does not say.
        cached_tokens: How many tokens of the prompt its service had in its cache; 0 if it does not say.
    """

    text: str
    tokens: tuple[LLMToken, ...] | None = None
    thoughts: str = ""
    finish: FinishReason | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    thinking_tokens: int = 0
    cached_tokens: int = 0


class LLMDialect:
    """How one class of LLMs is asked, and how its answers are read.

    As it stands it fits every LLM: nothing is sent, and the answer's text is read. For an LLM of your own,
    derive from it, override what your LLM can do better, and hand it to :func:`register_llm`:

        class MyDialect(LLMDialect):
            takes = frozenset({"temperature", "max_tokens", "logprobs", "top_logprobs"})
            top_logprobs = 5

            def options(self, llm, parameters):
                return dict(parameters)

            def read(self, response):
                steps = response.raw["steps"]
                tokens = tuple(LLMToken(s["piece"], s["logp"], tuple(s["top"].items())) for s in steps)
                return LLMAnswer(response.message.content, tokens)

    Parameters go by the names of OpenAI's API: ``temperature``, ``top_p``, ``top_k``, ``seed``, ``stop`` (a
    list), ``max_tokens``, ``logprobs`` (True), ``top_logprobs`` (how many).

    Attributes:
        takes: Parameters that reach the model. Without ``logprobs``, the LLM serves what needs text only.
        names: What the model's service calls them, where that differs: in its refusals, and in what
            ``view`` and ``options`` get.
        top_logprobs: Likeliest tokens that can be listed at each step; 0 for none, hence no entropies.
        uncut: What to send besides where answers are sampled, so that the service cuts no tail of its own.
        streams: Whether each piece of a stream carries its own tokens, so that a gate costs what it looks at.
        alone: Whether the LLM answers one request at a time, as a model in this process does.
        logprobs_hint: What to do where log-probabilities are missing; advice of a general kind if empty.
    """

    takes: frozenset[str] = frozenset()
    names: Mapping[str, str] = {}
    top_logprobs: int = 0
    uncut: Mapping[str, Any] = {}
    streams: bool = False
    alone: bool = False
    logprobs_hint: str = ""

    def built(self, llm: Any) -> Mapping[str, Any]:
        """Return what the user built into an LLM, by the names of OpenAI's API.

        This default reads ``temperature`` and ``max_tokens``, where they are fields of the LLM that differ
        from its class's defaults.
        """
        fields = type(llm).model_fields
        names = [name for name in ("temperature", "max_tokens") if name in fields]
        return {
            name: getattr(llm, name)
            for name in names
            if getattr(llm, name) is not None and getattr(llm, name) != fields[name].default
        }

    def view(self, llm: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the LLM to ask: a changed copy, where parameters are not passed with a call.

        What is not among the parameters must not be sent: nobody set it, or the service refuses it.
        """
        return llm

    async def aview(self, llm: Any, parameters: Mapping[str, Any]) -> Any:
        """Like ``view``, for the LLM's async methods."""
        return self.view(llm, parameters)

    def options(self, llm: Any, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keyword arguments of ``chat`` (``complete``, where the LLM is no chat model)."""
        return {}

    def read(self, response: ChatResponse | CompletionResponse) -> LLMAnswer:
        """Read an answer."""
        return text_of(response)

    def piece(self, response: ChatResponse | CompletionResponse) -> LLMAnswer:
        """Read one piece of a stream: what it adds."""
        return LLMAnswer(response.delta or "")


def register_llm(llm_class: type[LLM], dialect: LLMDialect) -> None:
    """Say how LLMs of a class, and of those derived from it, are asked and read.

    The nearest class counts: what you register goes before what surerag knows of a class it derives from.

    Args:
        llm_class: A LlamaIndex LLM class.
        dialect: How.

    Raises:
        ConfigurationError: If these are not a class of LLMs and a dialect.
    """
    if not (isinstance(llm_class, type) and issubclass(llm_class, LLM)):
        raise ConfigurationError(f"expected a class of LlamaIndex LLMs, got {llm_class!r}")
    if not isinstance(dialect, LLMDialect):
        raise ConfigurationError(
            f"expected a dialect, got {type(dialect).__name__}", hint="pass an instance: MyDialect()"
        )
    with _registered.lock:
        _registered.dialects[llm_class] = dialect


def registered_dialect(llm_class: type) -> LLMDialect | None:
    """Return what was registered for exactly this class."""
    return _registered.dialects.get(llm_class)


@dataclass
class _Registry:
    dialects: dict[type, LLMDialect] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_registered = _Registry()


def text_of(response: ChatResponse | CompletionResponse) -> LLMAnswer:
    """Read the text of a response, its thoughts, and what is known of its length and end."""
    counts = response.additional_kwargs
    thoughts, thinking = "", 0
    if isinstance(response, CompletionResponse):
        text = response.text
    else:
        message = response.message
        text = message.content or ""
        blocks = [block for block in message.blocks if isinstance(block, ThinkingBlock)]
        told = message.additional_kwargs
        thoughts = "".join(block.content or "" for block in blocks) or str(
            told.get("thinking") or told.get("reasoning_content") or counts.get("thinking") or ""
        )
        thinking = sum(token_count(block.num_tokens) for block in blocks)
    raw = response.raw
    return LLMAnswer(
        text,
        thoughts=thoughts,
        finish=_finish_of(raw),
        prompt_tokens=token_count(counts.get("prompt_tokens")) or _prompt_tokens(raw),
        completion_tokens=token_count(counts.get("completion_tokens")),
        thinking_tokens=thinking or _thinking_tokens(raw),
        cached_tokens=_cached_tokens(raw),
    )


def value_of(holder: Any, *names: str) -> Any:
    """Return what stands at a path in mappings, lists (their first item) and objects; None if nothing."""
    for name in names:
        if isinstance(holder, list | tuple):
            holder = holder[0] if holder else None
        holder = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
    return holder


_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
"""What services say where an answer ended for want of tokens."""


def _finish_of(raw: Any) -> FinishReason | None:
    """Return why an answer ended, from the places in which services say so."""
    paths = (
        ("choices", "finish_reason"),
        ("finish_reason",),
        ("stop_reason",),
        ("stopReason",),
        ("done_reason",),
        ("incomplete_details", "reason"),
    )
    found = next((value for path in paths if (value := value_of(raw, *path)) is not None), None)
    if found is None:
        return None
    return "length" if str(getattr(found, "value", found)).lower() in _LENGTH else "stop"


def _thinking_tokens(raw: Any) -> int:
    paths = (
        ("usage", "completion_tokens_details", "reasoning_tokens"),
        ("usage", "output_tokens_details", "reasoning_tokens"),
        ("usage", "output_tokens_details", "thinking_tokens"),
        ("usage_metadata", "thoughts_token_count"),
    )
    return max((token_count(value_of(raw, *path)) for path in paths), default=0)


def _cached_tokens(raw: Any) -> int:
    """Return the tokens of a prompt that a service had in its cache, from the places in which it says so."""
    paths = (
        ("usage", "prompt_tokens_details", "cached_tokens"),
        ("usage", "input_tokens_details", "cached_tokens"),
        ("usage", "prompt_cache_hit_tokens"),
        ("usage", "cache_read_input_tokens"),
        ("usage_metadata", "cached_content_token_count"),
    )
    return max((token_count(value_of(raw, *path)) for path in paths), default=0)


def _prompt_tokens(raw: Any) -> int:
    """Return the length of a prompt as Anthropic counts it: what is in its cache, or put there, is beside."""
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(token_count(value_of(raw, "usage", part)) for part in parts)
