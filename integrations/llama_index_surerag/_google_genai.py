"""LlamaIndex's ``GoogleGenAI``: settings go in the ``generation_config`` of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index_surerag._manners import WITHOUT_LOGPROBS
from llama_index_surerag.dialects import LLMAnswer, LLMDialect, LLMToken, text_of, value_of
from surerag.readers.hosted.parse import token_count

_FIELDS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "stop": "stop_sequences",
    "logprobs": "response_logprobs",
    "top_logprobs": "logprobs",
}
"""Parameters, and what Google calls them."""


class GoogleGenAIDialect(LLMDialect):
    """Gemini, with the log-probabilities of those models that give them.

    A limit of a method's is not sent: the LLM raises where an answer reaches one.
    """

    takes = frozenset(_FIELDS)
    top_logprobs = 20
    logprobs_hint = (
        "choose a Gemini model that gives log-probabilities (gemini-2.0-flash on Vertex AI does), or another "
        "LLM; " + WITHOUT_LOGPROBS
    )

    def built(self, llm: Any) -> Mapping[str, Any]:
        """Return the LLM's generation config, its class's temperature aside."""
        config = llm._generation_config or {}
        known = {name: config.get(field) for name, field in _FIELDS.items()}
        default = type(llm).model_fields["temperature"].default
        return {
            name: value
            for name, value in known.items()
            if value is not None
            and "logprobs" not in name
            and not (name == "temperature" and value == default)
        }

    def options(self, llm: Any, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the generation config of a call; what is left out of it would be the LLM's own."""
        return {"generation_config": {field: parameters.get(name) for name, field in _FIELDS.items()}}

    def read(self, response: Any) -> LLMAnswer:
        """Read text, thoughts and tokens of an answer."""
        plain, raw = text_of(response), response.raw
        thoughts = token_count(value_of(raw, "usage_metadata", "thoughts_token_count"))
        return LLMAnswer(
            plain.text,
            _tokens(value_of(raw, "logprobs_result")),
            thoughts=plain.thoughts,
            finish=plain.finish,
            prompt_tokens=plain.prompt_tokens,
            # Google counts an answer without its thoughts.
            completion_tokens=plain.completion_tokens + thoughts,
            thinking_tokens=thoughts,
            cached_tokens=plain.cached_tokens,
        )


def _tokens(result: Any) -> tuple[LLMToken, ...] | None:
    chosen = value_of(result, "chosen_candidates")
    if chosen is None:
        return None
    listed = value_of(result, "top_candidates") or [None] * len(chosen)
    return tuple(
        LLMToken(
            str(value_of(one, "token") or ""),
            value_of(one, "log_probability"),
            tuple(
                (str(value_of(other, "token") or ""), value_of(other, "log_probability"))
                for other in value_of(others, "candidates") or ()
            ),
        )
        for one, others in zip(chosen, listed, strict=False)
    )
