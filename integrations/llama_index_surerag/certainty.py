"""How sure the LLM was of an answer, for any engine or agent of LlamaIndex; and engines that show only sure ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from llama_index.core import Response
from llama_index.core.agent.workflow import AgentOutput
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine.types import (
    AgentChatResponse,
    BaseChatEngine,
    StreamingAgentChatResponse,
)
from llama_index.core.llms import LLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import QueryBundle
from llama_index.core.settings import Settings

from llama_index_surerag.llm import WAYS_OUT, family_of, reader_of
from llama_index_surerag.observing import KEY, NOT_ASKED, observe
from llama_index_surerag.pickles import Shareable
from llama_index_surerag.reader_llm import ReaderLLM
from llama_index_surerag.services import manager_of
from surerag import AbstentionPolicy
from surerag.certainty import Certainty
from surerag.errors import CapabilityError, ConfigurationError, InputError, check_kind
from surerag.readers import Reader
from surerag.text import ABSTENTION, check_abstention


def with_certainty(llm: LLM | Reader | None = None, *, top_logprobs: int = 5) -> LLM:
    """Return the LLM, with log-probabilities switched on; every answer then says how sure the LLM was of it.

    ``llm = with_certainty(OpenAI("gpt-4o-mini"))`` is all that a pipeline needs. It costs no call and no token
    of the answer. The certainty (:meth:`surerag.Certainty.to_dict`) is in ``response.metadata["certainty"]``
    of any query engine or chat engine, and in ``output["certainty"]`` of an agent; of a stream, once it has
    been read. It is also reported as an event, ``MethodEvent(name="answer.certainty")``, and as tags and
    OpenTelemetry attributes ``surerag.certainty.…`` of the spans that return the answer. The LLM is neither
    wrapped nor changed: a copy of the same class is returned, and LlamaIndex's instrumentation is observed,
    for all of this process.

    Args:
        llm: An LLM of OpenAI's API (``OpenAI``, ``AzureOpenAI``, ``OpenAILike`` for vLLM, Ollama, llama.cpp
            and other servers); an LLM of your own that returns log-probabilities in ``raw`` or ``logprobs``; or
            a reader of surerag, such as a ``TransformersReader``. ``Settings.llm`` if left out.
        top_logprobs: Likeliest tokens to request with each token of the answer; entropies need them.

    Raises:
        CapabilityError: If the LLM's class returns no log-probabilities; the hint says what to do.
        ConfigurationError: If it is no LLM or reader, or ``top_logprobs`` is not in 0 to 20.
    """
    check_kind(int, "a whole number", top_logprobs=top_logprobs)
    if not 0 <= top_logprobs <= 20:
        raise ConfigurationError(f"top_logprobs must be in 0 to 20, got {top_logprobs}")
    llm = Settings.llm if llm is None else llm
    llm = ReaderLLM(reader=llm) if isinstance(llm, Reader) else llm
    check_kind(LLM, "an LLM of LlamaIndex, or a reader of surerag", llm=llm)
    name = type(llm).__name__
    family = family_of(llm)
    if isinstance(llm, StructuredLLM):
        raise ConfigurationError(...)
    if {"logprobs", "top_logprobs"} <= set(type(llm).model_fields):
        llm = llm.model_copy(update={"logprobs": True, "top_logprobs": top_logprobs})
    elif not family.logprobs:
        raise CapabilityError(f"{name} returns no log-probabilities", hint=family.hint or ...)
    observe(llm)
    return llm
