"""Which dialect a model is asked in: by its class, by what the user registered, by what the user says."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from langchain_core.language_models import BaseChatModel, BaseLanguageModel

from langchain_surerag.dialects.base import Dialect, DialectOptions, LanguageModel
from langchain_surerag.dialects.google import GeminiDialect, VertexDialect
from langchain_surerag.dialects.llama_cpp import ChatLlamaCppDialect, LlamaCppDialect
from langchain_surerag.dialects.ollama import OllamaDialect, OllamaLLMDialect
from langchain_surerag.dialects.openai import (
    CompletionsDialect,
    OpenAIChatDialect,
    ResponsesDialect,
    TogetherDialect,
)
from langchain_surerag.dialects.text import AnthropicDialect, GroqDialect, TextDialect
from surerag.errors import ConfigurationError


class OpenRouterDialect(Dialect):
    """ChatOpenRouter: which parameters are taken is a matter of the route."""

    fix = (
        "a route may ignore that they are asked for: ChatOpenRouter(…, openrouter_provider="
        '{"require_parameters": True}) takes only routes that do not'
    )


class FireworksDialect(Dialect):
    """ChatFireworks: OpenAI's keywords, and fewer alternatives."""

    most_top_logprobs = 5


_KNOWN: Mapping[str, type[Dialect]] = {
    "BaseChatOpenAI": OpenAIChatDialect,
    "BaseOpenAI": CompletionsDialect,
    "ChatAnthropic": AnthropicDialect,
    "ChatFireworks": FireworksDialect,
    "ChatGoogleGenerativeAI": GeminiDialect,
    "ChatGroq": GroqDialect,
    "ChatLlamaCpp": ChatLlamaCppDialect,
    "ChatOllama": OllamaDialect,
    "ChatOpenRouter": OpenRouterDialect,
    "ChatTogether": TogetherDialect,
    "ChatVertexAI": VertexDialect,
    "LlamaCpp": LlamaCppDialect,
    "OllamaLLM": OllamaLLMDialect,
}
"""Dialects by the names of classes, or of classes that they inherit from: none has to be installed to ask."""

_registered: dict[type[LanguageModel], type[Dialect]] = {}
_lock = threading.Lock()


def register_dialect(model: type[LanguageModel], dialect: type[Dialect]) -> None:
    """Teach how a class of models is asked for log-probabilities, and how its answers are read.

    It holds for the class and those that inherit from it, in readers that are made from now on, and goes
    before the dialects that are known already. Registering a class again replaces its dialect.

    Args:
        model: A class of chat models or LLMs.
        dialect: A class that derives from :class:`~langchain_surerag.Dialect`.

    Raises:
        ConfigurationError: If one of them is something else.

    Example:
        >>> from langchain_core.language_models import FakeListChatModel
        >>> class Mine(FakeListChatModel):
        ...     pass
        >>> class MyDialect(Dialect):
        ...     def keywords(self, settings):
        ...         return {"budget": settings["max_tokens"], "scores": "logprobs" in settings}
        ...
        ...     def logprobs_of(self, answer):
        ...         scores = answer.message.response_metadata.get("scores", ())
        ...         return {"content": [{"token": token, "logprob": value} for token, value in scores]}
        >>> register_dialect(Mine, MyDialect)
        >>> type(dialect_of(Mine(responses=["Velm"]), DialectOptions())).__name__
        'MyDialect'
    """
    if not (isinstance(model, type) and issubclass(model, BaseLanguageModel)):
        raise ConfigurationError(
            f"expected a class of chat models or LLMs, got {model!r}",
            hint="pass the class, not a model of it",
        )
    if not (isinstance(dialect, type) and issubclass(dialect, Dialect)):
        raise ConfigurationError(
            f"expected a class that derives from Dialect, got {dialect!r}",
            hint="from langchain_surerag import Dialect",
        )
    with _lock:
        _registered[model] = dialect


def dialect_of(model: LanguageModel, options: DialectOptions) -> Dialect:
    """Choose how to talk to a model."""
    return _kind_of(model, options)(model, options)


def _kind_of(model: LanguageModel, options: DialectOptions) -> type[Dialect]:
    with _lock:
        registered = dict(_registered)
    for base in type(model).__mro__:
        if base in registered:
            return registered[base]
        known = _KNOWN.get(base.__name__)
        if known is OpenAIChatDialect and getattr(model, "use_responses_api", None):
            return ResponsesDialect
        if known is not None and not (options.logprobs and not known.logprobs):
            return known
    if not options.logprobs:
        return TextDialect
    return Dialect if isinstance(model, BaseChatModel) else CompletionsDialect
