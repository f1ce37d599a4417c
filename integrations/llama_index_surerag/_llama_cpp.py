"""LlamaIndex's ``LlamaCPP``: a model in this process, whose settings are its ``generate_kwargs``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index_surerag.dialects import LLMAnswer, LLMDialect, LLMToken, value_of
from surerag.readers.hosted.parse import token_count


class LlamaCPPDialect(LLMDialect):
    """A ``llama_cpp.Llama``; log-probabilities need its logits of all tokens."""

    takes = frozenset({"temperature", "top_p", "top_k", "seed", "stop", "max_tokens"}) | {
        "logprobs",
        "top_logprobs",
    }
    top_logprobs = 20
    # Else it samples among the 40 likeliest tokens, and none below a twentieth of the likeliest.
    uncut: Mapping[str, Any] = {"top_k": 0, "min_p": 0.0}
    alone = True
    logprobs_hint = (
        'build it as LlamaCPP(…, model_kwargs={"logits_all": True}): without, llama.cpp keeps the logits of '
        "the last token alone"
    )

    def built(self, llm: Any) -> Mapping[str, Any]:
        """Return the LLM's ``generate_kwargs``, its class's temperature aside."""
        default = type(llm).model_fields["temperature"].default
        return {
            name: value
            for name, value in llm.generate_kwargs.items()
            if name in self.takes
            and "logprobs" not in name
            and value is not None
            and not (name == "temperature" and value == default)
        }

    def view(self, llm: Any, parameters: Mapping[str, Any]) -> Any:
        """Return a copy that generates with the parameters."""
        kept = {name: value for name, value in llm.generate_kwargs.items() if name not in self.takes}
        ours = {name: value for name, value in parameters.items() if "logprobs" not in name}
        if parameters.get("logprobs"):
            # 0 alternatives would be no log-probabilities at all.
            ours["logprobs"] = parameters.get("top_logprobs", 1)
        return llm.model_copy(update={"generate_kwargs": {**kept, **ours}})

    def read(self, response: Any) -> LLMAnswer:
        """Read text and tokens of an answer, in the form of OpenAI's completions."""
        raw = response.raw
        listed = value_of(raw, "choices", "logprobs")
        tokens = None
        if listed:
            tops = listed.get("top_logprobs") or [None] * len(listed["tokens"])
            tokens = tuple(
                LLMToken(text, logprob, tuple((top or {}).items()))
                for text, logprob, top in zip(listed["tokens"], listed["token_logprobs"], tops, strict=True)
            )
        return LLMAnswer(
            response.text,
            tokens,
            finish="length" if value_of(raw, "choices", "finish_reason") == "length" else "stop",
            prompt_tokens=token_count(value_of(raw, "usage", "prompt_tokens")),
            completion_tokens=token_count(value_of(raw, "usage", "completion_tokens")),
        )
