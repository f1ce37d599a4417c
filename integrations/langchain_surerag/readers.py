"""A user's own LangChain model as a reader."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import Runnable

from langchain_surerag._dialects import DialectOptions, Scoring
from langchain_surerag._huggingface import pipeline_reader
from langchain_surerag._model_reader import ModelReader
from surerag.readers import BaseReader

__all__ = ["ModelReader", "Scoring", "reader_from_model"]


def reader_from_model(
    model: Runnable[Any, Any],
    *,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    vocabulary_size: int = 300_000,
    max_concurrency: int = 8,
    scoring: Scoring | None = None,
) -> BaseReader:
    """Make a reader of a chat model or an LLM, with whatever is wrapped around it.

    ========================================  =============================================================
    model                                     what the reader gives
    ========================================  =============================================================
    ChatOpenAI and its relatives              log-probabilities, entropy as an interval, first tokens by an
                                              open stream
    OpenAI (completions) and its relatives    the same, and scores of given text: see ``scoring``
    HuggingFacePipeline, ChatHuggingFace      a TransformersReader on its model: exact entropies, batches
    any other                                 text only
    ========================================  =============================================================

    ``bind``, ``with_config``, ``with_retry``, ``with_fallbacks`` and ``configurable_fields`` around a model
    keep working; of several models, the reader promises what all of them can do. Calls run under the run
    of the chain that asks. Samples at a temperature above 0 bypass LangChain's LLM cache, which would
    answer all of them with one. The model's own errors, retries and time-outs stay LangChain's.

    Args:
        model: The model; without prompt or output parser.
        logprobs: True for a class that is not known here, but takes OpenAI's keywords and returns its
            metadata; False to use only a model's text.
        top_logprobs: Alternatives to ask for at each token; 0 for none, and no entropies. By default what
            the model was built or bound with, else 20 for chat and 5 for completions.
        vocabulary_size: Tokens that the model can emit; bounds the entropy from above where only the
            likeliest tokens are known.
        max_concurrency: Requests of one call that may be under way at the same time; a smaller
            ``max_concurrency`` in the caller's config wins.
        scoring: Whether a completions LLM may score given text by having its server echo it. Servers
            differ: some echo log-probabilities one place off, which no answer shows. ``"probe"`` asks
            twice, at once and in this thread, and compares: the reader scores if what the model said is
            read as likely as it was said. ``"echo"`` takes the server at its word. None does not score.

    Raises:
        ConfigurationError: If there is no language model in it, or a setting cannot work.
        CapabilityError: If the model is set to an API that loses log-probabilities, or ``"echo"`` is
            insisted on for a model without echo.

    Example:
        >>> from langchain_core.language_models import FakeListChatModel
        >>> from surerag.types import Sampling
        >>> reader = reader_from_model(FakeListChatModel(responses=["Velm"]))
        >>> reader.generate(["Where was Ada born?"], Sampling())[0][0].text, reader.capabilities.logprobs
        ('Velm', False)
    """
    local = pipeline_reader(model) if logprobs is not False else None
    if local is not None:
        return local
    return ModelReader(
        model,
        DialectOptions(logprobs, top_logprobs, vocabulary_size, scoring),
        max_concurrency=max_concurrency,
    )
