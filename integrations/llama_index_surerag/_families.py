"""Which of the classes that surerag knows an LLM derives from; none of them is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from llama_index_surerag.dialects import LLMDialect, registered_dialect

Kind = Literal["openai", "responses", "huggingface", "dialect"]


class Family(NamedTuple):
    """How an LLM is asked.

    Attributes:
        kind: Over OpenAI's client, in this process by its model and tokenizer, or by its dialect.
        dialect: How; of no concern to the other kinds.
    """

    kind: Kind
    dialect: LLMDialect


def family_of(llm_class: type) -> Family:
    """Return how LLMs of a class are asked: as the nearest class that it derives from, and that is known."""
    for kind in llm_class.__mro__:
        registered = registered_dialect(kind)
        if registered is not None:
            return Family("dialect", registered)
        home = (kind.__module__, kind.__name__)
        if home in _KINDS:
            return Family(_KINDS[home], LLMDialect())
        if home in _DIALECTS:
            return Family("dialect", _DIALECTS[home]())
    return Family("dialect", LLMDialect())


def _anthropic() -> LLMDialect:
    from llama_index_surerag._anthropic import AnthropicDialect

    return AnthropicDialect()


def _google_genai() -> LLMDialect:
    from llama_index_surerag._google_genai import GoogleGenAIDialect

    return GoogleGenAIDialect()


def _llama_cpp() -> LLMDialect:
    from llama_index_surerag._llama_cpp import LlamaCPPDialect

    return LlamaCPPDialect()


def _ollama() -> LLMDialect:
    from llama_index_surerag._ollama import OllamaDialect

    return OllamaDialect()


_KINDS: Mapping[tuple[str, str], Kind] = {
    ("llama_index.llms.openai.base", "OpenAI"): "openai",
    ("llama_index.llms.openai.responses", "OpenAIResponses"): "responses",
    ("llama_index.llms.huggingface.base", "HuggingFaceLLM"): "huggingface",
}

_DIALECTS: Mapping[tuple[str, str], Callable[[], LLMDialect]] = {
    ("llama_index.llms.anthropic.base", "Anthropic"): _anthropic,
    ("llama_index.llms.google_genai.base", "GoogleGenAI"): _google_genai,
    ("llama_index.llms.llama_cpp.base", "LlamaCPP"): _llama_cpp,
    ("llama_index.llms.ollama.base", "Ollama"): _ollama,
}
