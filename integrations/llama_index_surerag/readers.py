"""A user's own LlamaIndex LLM as a reader."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from llama_index.core.llms import LLM
from llama_index.core.settings import Settings

from llama_index_surerag._openai_llm import LogprobSettings, OpenAILLMReader
from llama_index_surerag._text_llm import CallOptions, LLMSettings, TextLLMReader
from surerag.errors import CapabilityError, ConfigurationError
from surerag.readers import BaseReader

WIDEST_VOCABULARY = 300_000
"""Vocabulary assumed where none is given: larger than those of common models, so that the upper bound of an
entropy holds; with the true size it would be a little tighter."""

_HOMES = {
    "openai": ("llama_index.llms.openai.base", "OpenAI"),
    "huggingface": ("llama_index.llms.huggingface.base", "HuggingFaceLLM"),
}


def reader_from_llm(
    llm: LLM | None = None,
    *,
    tokenizer: Any = None,
    vocabulary_size: int | None = None,
    top_logprobs: int | None = None,
    logprobs: bool | None = None,
    at_once: int = 8,
    call_options: CallOptions | None = None,
    name: str | None = None,
) -> BaseReader:
    """Make a reader of a LlamaIndex LLM.

    =====================================  ===========  =================================================
    LLM                                    entropies    how
    =====================================  ===========  =================================================
    ``HuggingFaceLLM``                     exact        its model and tokenizer, by a TransformersReader
    ``OpenAI``, ``OpenAILike``, Azure, …   an interval  raw log-probabilities of chat or completions
    any other                              none         text only, and ``capabilities`` say so
    =====================================  ===========  =================================================

    What a method asks for (temperature, tokens, stop texts, seed) wins over what an OpenAI-compatible or
    local LLM was built with; an LLM of another kind answers as it was built, unless ``call_options`` says
    how to tell it. Prompts are wrapped as in LlamaIndex's own pipelines: ``system_prompt``,
    ``completion_to_prompt``, ``messages_to_prompt`` and ``query_wrapper_prompt`` apply.

    One reader may be used from several threads and event loops.

    Args:
        llm: The LLM; ``Settings.llm`` if left out.
        tokenizer: The model's tokenizer (``encode`` and a length, ``vocab_size`` or ``n_vocab``). It gives
            the vocabulary size, and prompt lengths where a server does not report them.
        vocabulary_size: Number of tokens the model can emit, for the upper bound of an entropy.
        top_logprobs: Alternatives to ask for at each step; by default the LLM's own setting, else 20 in
            chat and 5 in completions, which OpenAI's servers allow at most.
        logprobs: False to never ask for log-probabilities (some models refuse them); True to insist on
            them; None goes by the LLM's class.
        at_once: Requests to have in flight at a time.
        call_options: For LLMs of other kinds: what to pass with each call, given the sampling.
        name: Identity of the model, where the LLM does not tell it.

    Returns:
        The reader.

    Raises:
        ConfigurationError: If this is no LLM, or a setting cannot work.
        CapabilityError: If log-probabilities are insisted on and this LLM has none to give.
        MissingExtraError: If a ``HuggingFaceLLM`` is given and torch or transformers are not installed.
    """
    llm = Settings.llm if llm is None else llm
    if not isinstance(llm, LLM):
        raise ConfigurationError(
            f"expected a LlamaIndex LLM, got {type(llm).__name__}", hint="readers go to an engine as they are"
        )
    if at_once < 1:
        raise ConfigurationError(f"at_once must be at least 1, got {at_once}")
    settings = LLMSettings(name or _identity(llm), at_once, call_options)
    family = _family(llm)
    if logprobs is False or (logprobs is None and family is None):
        return TextLLMReader(llm, settings)
    if family == "huggingface":
        from llama_index_surerag._huggingface_llm import reader_from_huggingface_llm

        return reader_from_huggingface_llm(llm)
    if family == "openai":
        size = vocabulary_size or _vocabulary_size(tokenizer) or WIDEST_VOCABULARY
        most = 20 if llm.metadata.is_chat_model else 5
        wanted: int = top_logprobs or getattr(llm, "top_logprobs", 0) or most
        count = None if tokenizer is None else lambda text: len(tokenizer.encode(text))
        return OpenAILLMReader(llm, settings, LogprobSettings(wanted, size, count))
    raise CapabilityError(
        f"{type(llm).__name__} returns no log-probabilities",
        hint="use HuggingFaceLLM, OpenAI or OpenAILike, or leave logprobs out where text is enough",
    )


def _family(llm: object) -> Literal["openai", "huggingface"] | None:
    """Which of the classes we know an LLM derives from; looked up by name, so that neither is imported."""
    homes = {(kind.__module__, kind.__name__) for kind in type(llm).__mro__}
    if _HOMES["openai"] in homes:
        return "openai"
    return "huggingface" if _HOMES["huggingface"] in homes else None


def _identity(llm: LLM) -> str:
    """Return model and host, as OpenAIReader does: a calibration for one then holds for the other."""
    known = llm.metadata.model_name
    model = known if known and known != "unknown" else llm.class_name()
    where = urlsplit(str(getattr(llm, "api_base", None) or ""))
    port = f":{where.port}" if where.port else ""
    return f"{model}@{where.hostname}{port}" if where.hostname else model


def _vocabulary_size(tokenizer: Any) -> int | None:
    if tokenizer is None:
        return None
    for attribute in ("n_vocab", "vocab_size"):
        size = getattr(tokenizer, attribute, None)
        if isinstance(size, int):
            # Added tokens count too, where there are any.
            return max(size, len(tokenizer) if hasattr(tokenizer, "__len__") else 0)
    raise ConfigurationError(
        f"the tokenizer {type(tokenizer).__name__} does not tell its size",
        hint="pass vocabulary_size=… besides, or instead",
    )
