"""A pipeline's own LLM as a reader of surerag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from llama_index.core.llms import LLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.settings import Settings
from surerag.adapting import shared

from llama_index_surerag._dialect_requests import CallOptions, DialectRequests
from llama_index_surerag._families import Family, family_of
from llama_index_surerag._huggingface import reader_from_huggingface_llm
from llama_index_surerag._manners import LOGPROBS_HINT, Manners
from llama_index_surerag._openai_requests import OpenAIRequests
from llama_index_surerag._responses_requests import ResponsesRequests
from llama_index_surerag._sources import Source, Vocabulary
from llama_index_surerag._text_llm import LLMSettings, TextLLMReader, without_hint
from llama_index_surerag._traced_llm import TracedLLMReader
from surerag.errors import CapabilityError, ConfigurationError
from surerag.readers import BaseReader, Reader
from surerag.readers.hosted.limits import DEADLINE, MAX_BYTES, Limits
from surerag.readers.thinking import THINKING_TOKENS

WIDEST_VOCABULARY = 300_000
"""Vocabulary assumed where none is given: larger than those of common models, so that the upper bound of an
entropy holds; with the true size it would be a little tighter."""


def reader_from_llm(
    llm: LLM | None = None,
    *,
    tokenizer: Any = None,
    vocabulary_size: int | None = None,
    top_logprobs: int | None = None,
    logprobs: bool | None = None,
    max_concurrency: int = 8,
    call_options: CallOptions | None = None,
    name: str | None = None,
    chat_template: bool = True,
    thinking: bool | None = None,
    thinking_tokens: int = THINKING_TOKENS,
    template_options: Mapping[str, Any] | None = None,
    deadline: float = DEADLINE,
    max_bytes: int = MAX_BYTES,
) -> BaseReader:
    """Make a reader of a LlamaIndex LLM.

    =====================================  ===========  =================================================
    LLM                                    entropies    how
    =====================================  ===========  =================================================
    ``HuggingFaceLLM``                     exact        its model and tokenizer, by a TransformersReader
    ``OpenAI``, ``OpenAILike``, Azure, …   an interval  raw log-probabilities of chat or completions
    ``OpenAIResponses``                    an interval  ``include=["message.output_text.logprobs"]``
    ``Ollama``                             an interval  ``logprobs`` of its chat API (server and client of
                                                        November 2025 or later)
    ``GoogleGenAI``                        an interval  ``response_logprobs``, where the model has them
    ``LlamaCPP``                           an interval  with ``model_kwargs={"logits_all": True}``
    one that you registered                its own      see :func:`llama_index_surerag.register_llm`
    any other                              none         text only, and ``capabilities`` say so
    =====================================  ===========  =================================================

    An LLM is asked for what a method uses, and for nothing else. What it was built with (temperature, limit,
    stop texts, callbacks) holds; where a method's result depends on another value, that is sent, and an
    ``LLMSettingWarning`` names both. What a service refuses is left out from then on, unless the method
    depends on it. An LLM of another kind answers as it was built, unless ``call_options`` says how to tell
    it. Thoughts of reasoning models are neither in an answer nor in its trace.

    Prompts are wrapped as in LlamaIndex's own pipelines: ``system_prompt``, ``completion_to_prompt``,
    ``messages_to_prompt`` and ``query_wrapper_prompt`` apply. A ``HuggingFaceLLM`` that is no chat model, and
    for which none of the last three is set, is asked through its tokenizer's chat template, if there is one:
    LlamaIndex sends it raw text, which no chat model was trained on.

    One reader may be used from several threads and event loops.

    Args:
        llm: The LLM; ``Settings.llm`` if left out.
        tokenizer: The model's tokenizer (``encode`` and a length, ``vocab_size`` or ``n_vocab``). It gives
            the vocabulary size, and prompt lengths where a server does not report them.
        vocabulary_size: Number of tokens the model can emit, for the upper bound of an entropy.
        top_logprobs: Alternatives to ask for at each step; by default the LLM's own setting, else 20 in
            chat and 5 in completions, which OpenAI's servers allow at most.
        logprobs: False to never ask for log-probabilities; True to insist on them; None goes by the LLM's
            class.
        max_concurrency: Requests to have in flight at a time.
        call_options: For LLMs of other kinds: what to pass with each call, given the sampling.
        name: Identity of the model, where the LLM does not tell it.
        chat_template: False to send a ``HuggingFaceLLM`` that is no chat model raw text, as LlamaIndex does.
        thinking: Whether a ``HuggingFaceLLM`` shall think before it answers; see ``TransformersReader``, as
            for the two that follow.
        thinking_tokens: Tokens that it may think, at most.
        template_options: Variables of its tokenizer's chat template.
        deadline: Seconds that one answer of an OpenAI-style LLM may take in all, however steadily it drips:
            the LLM's own ``timeout`` is for each read of its connection. Your own pauses do not count.
        max_bytes: Size of one of its answers, after decompression.

    Returns:
        The reader.

    Raises:
        ConfigurationError: If this is no LLM, or one that answers in JSON of its own, or a setting cannot
            work.
        CapabilityError: If log-probabilities are insisted on and this LLM has none to give.
        MissingExtraError: If a ``HuggingFaceLLM`` is given and torch or transformers are not installed.

    Warns:
        ChatTemplateWarning: Once for a tokenizer, where its chat template is used and LlamaIndex would not.
        LLMSettingWarning: Once for a setting, where the LLM's and a method's differ and the method's holds.
        LeftOutWarning: Once, where a service refuses a parameter whose absence may be felt.
    """
    llm = Settings.llm if llm is None else llm
    if not isinstance(llm, LLM):
        raise ConfigurationError(
            f"expected a LlamaIndex LLM, got {type(llm).__name__}", hint="readers go to an engine as they are"
        )
    if isinstance(llm, StructuredLLM):
        raise ConfigurationError(
            f"a StructuredLLM answers with JSON of {llm.output_cls.__name__}, whatever it is asked",
            hint=f"pass the {type(llm.llm).__name__} that as_structured_llm was called on: llm.llm",
        )
    if max_concurrency < 1:
        raise ConfigurationError(f"max_concurrency must be at least 1, got {max_concurrency}")
    limits = Limits(deadline, max_bytes)
    family = family_of(type(llm))
    dialect = family.dialect
    told = f"{type(llm).__name__}({_model_of(llm)!r})"
    manners = Manners(told, dialect.names, dialect.logprobs_hint or LOGPROBS_HINT)
    settings = LLMSettings(name or _identity(llm), max_concurrency, manners, call_options)
    if family.kind == "huggingface" and logprobs is not False:
        return reader_from_huggingface_llm(
            llm,
            chat_template=chat_template,
            thinking=thinking,
            thinking_tokens=thinking_tokens,
            template_options=template_options,
        )
    if thinking is not None or template_options:
        raise ConfigurationError(
            f"thinking and template_options are for a model in this process; {told} is a service's",
            hint='set it in the LLM: OpenAI(…, reasoning_effort="none"), Ollama(…, thinking=False), '
            'OpenAILike(…, additional_kwargs={"extra_body": {"chat_template_kwargs": {"enable_thinking": '
            "False}}})",
        )
    source = _source_of(llm, family, settings, top_logprobs, limits)
    if source is not None:
        size = vocabulary_size or _vocabulary_size(tokenizer) or WIDEST_VOCABULARY
        count = None if tokenizer is None else lambda text: len(tokenizer.encode(text))
        return TracedLLMReader(llm, settings, source, Vocabulary(size, count), logprobs=logprobs is not False)
    if logprobs:
        raise CapabilityError(
            f"of {type(llm).__name__}, surerag knows no log-probabilities",
            hint="use HuggingFaceLLM, OpenAI, OpenAILike(api_base=…) or Ollama; say with register_llm how "
            "this class gives them; or leave logprobs out where text is enough",
        )
    return TextLLMReader(llm, settings, dialect)


def reader_of(model: LLM | Reader | None) -> Reader:
    """Return an LLM as a reader, the same one for as long as it is used, and a reader as it is.

    For None, that is ``Settings.llm``.
    """
    model = Settings.llm if model is None else model
    return shared(reader_from_llm, model) if isinstance(model, LLM) else model


@contextmanager
def advising(model: object) -> Iterator[None]:
    """Name LlamaIndex's classes where an LLM cannot give what a method needs.

    Args:
        model: What the pipeline's user gave: an LLM, or a reader.
    """
    try:
        yield
    except CapabilityError as error:
        if not isinstance(model, LLM):
            raise
        raise CapabilityError(
            without_hint(error),
            hint=f"{LOGPROBS_HINT}; register_llm takes what surerag does not know of {type(model).__name__}",
        ) from error


def _source_of(
    llm: LLM, family: Family, settings: LLMSettings, top_logprobs: int | None, limits: Limits
) -> Source | None:
    """Return what asks an LLM whose log-probabilities can be had; None for one that is asked for text."""
    if family.kind == "openai":
        most = 20 if llm.metadata.is_chat_model else 5
        wanted = top_logprobs or getattr(llm, "top_logprobs", 0) or most
        return OpenAIRequests(llm, settings.manners, wanted, limits)
    if family.kind == "responses":
        return ResponsesRequests(llm, settings.manners, top_logprobs or 20, limits)
    if "logprobs" not in family.dialect.takes:
        return None
    return DialectRequests(llm, family.dialect, settings.manners, top_logprobs or 0, settings.call_options)


def _model_of(llm: LLM) -> str:
    """Return the name of an LLM's model; of ``metadata`` last, which may ask a server (Ollama's does)."""
    for attribute in ("model", "model_name"):
        if isinstance(name := getattr(llm, attribute, None), str) and name:
            return name
    known = llm.metadata.model_name
    return known if known and known != "unknown" else llm.class_name()


def _identity(llm: LLM) -> str:
    """Return model and address, as OpenAIReader does: a calibration for one then holds for the other."""
    model = _model_of(llm)
    where = urlsplit(str(getattr(llm, "api_base", None) or ""))
    port = f":{where.port}" if where.port else ""
    address = f"{where.hostname}{port}{where.path.rstrip('/')}"
    return f"{model}@{address}" if where.hostname else model


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
