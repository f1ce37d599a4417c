"""A pipeline's own LLMs, embedding models and retrievers as services of surerag."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.generic_utils import messages_to_prompt as generic_messages_to_prompt
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.llms.llm import default_completion_to_prompt
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings
from numpy.typing import NDArray

from llama_index_surerag._dialect_requests import CallOptions, DialectRequests
from llama_index_surerag._families import Family, family_of
from llama_index_surerag._manners import LOGPROBS_HINT, Manners
from llama_index_surerag._openai_requests import OpenAIRequests
from llama_index_surerag._responses_requests import ResponsesRequests
from llama_index_surerag._text_llm import LLMSettings, TextLLMReader, without_hint
from llama_index_surerag._traced_llm import Source, TracedLLMReader, Vocabulary
from llama_index_surerag.nodes import copy_of, passages_of
from llama_index_surerag.prompts import messages_for, text_for
from surerag.adapting import shared, takes_template
from surerag.errors import CapabilityError, ConfigurationError, ServiceError
from surerag.readers import BaseReader, Reader
from surerag.readers.thinking import THINKING_TOKENS
from surerag.readers.threads import in_thread
from surerag.services import Encoder, Retriever
from surerag.types import Message, Passage

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
    family = family_of(type(llm))
    dialect = family.dialect
    told = f"{type(llm).__name__}({_model_of(llm)!r})"
    manners = Manners(told, dialect.names, dialect.logprobs_hint or LOGPROBS_HINT)
    settings = LLMSettings(name or _identity(llm), max_concurrency, manners, call_options)
    if family.kind == "huggingface" and logprobs is not False:
        return _reader_from_huggingface_llm(
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
    source = _source_of(llm, family, settings, top_logprobs)
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


def reader_of(model: LLM | Reader) -> Reader:
    """Return an LLM as a reader, the same one for as long as it is used, and a reader as it is."""
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


def _source_of(llm: LLM, family: Family, settings: LLMSettings, top_logprobs: int | None) -> Source | None:
    """Return what asks an LLM whose log-probabilities can be had; None for one that is asked for text."""
    if family.kind == "openai":
        most = 20 if llm.metadata.is_chat_model else 5
        wanted = top_logprobs or getattr(llm, "top_logprobs", 0) or most
        return OpenAIRequests(llm, settings.manners, wanted)
    if family.kind == "responses":
        return ResponsesRequests(llm, settings.manners, top_logprobs or 20)
    if "logprobs" not in family.dialect.takes:
        return None
    return DialectRequests(llm, family.dialect, settings.manners, top_logprobs or 0, settings.call_options)


def _model_of(llm: LLM) -> str:
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


def _reader_from_huggingface_llm(llm: Any, *, chat_template: bool, **thinking: Any) -> BaseReader:
    """Return a reader over the LLM's model; torch is imported here, when there is such a model.

    Prompts are wrapped as the user has the LLM wrap them, else by the tokenizer's chat template, and begin as
    its tokenizer begins a text. Control tokens of those wrappings are control tokens; inside a document, they
    stay text. What ``generate_kwargs`` say gives way to what a method asks for.
    """
    from surerag import TransformersReader

    def render(messages: Sequence[Message]) -> str:
        prompt = tuple(messages)
        if not llm.metadata.is_chat_model:
            return text_for(llm, prompt)
        return str(llm.messages_to_prompt(messages_for(llm, prompt)))

    templated = (
        chat_template
        and not _renders(llm)
        and takes_template(llm._tokenizer, type(llm).__name__, "reader_from_llm")
    )
    own: Callable[[Sequence[Message]], str] | None = render
    if templated:
        own = _after_system(llm._tokenizer, llm.system_prompt) if llm.system_prompt else None
    return TransformersReader(
        llm._model,
        llm._tokenizer,
        window=min(llm.context_window, _window(llm._model) or llm.context_window),
        end_tokens=llm.stopping_ids or (),
        render=own,
        max_tokens=llm.max_new_tokens,
        **thinking,
    )


def _renders(llm: Any) -> bool:
    """Whether the user told a HuggingFaceLLM how to write its prompts."""
    turns = getattr(llm.messages_to_prompt, "__func__", llm.messages_to_prompt)
    return bool(
        llm.is_chat_model
        or turns not in (type(llm)._tokenizer_messages_to_prompt, generic_messages_to_prompt)
        or llm.completion_to_prompt not in (None, default_completion_to_prompt)
        or (llm.query_wrapper_prompt and llm.query_wrapper_prompt.get_template() != "{query_str}")
    )


def _after_system(tokenizer: Any, system_prompt: str) -> Callable[[Sequence[Message]], str]:
    """Return what writes a conversation by a chat template, after the LLM's own system prompt."""

    def written(messages: Sequence[Message]) -> str:
        turns = [{"role": role, "content": content} for role, content in messages]
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    def render(messages: Sequence[Message], role: Literal["system", "user"]) -> str:
        [first, *others] = messages
        if first.role != role:
            return written([Message(role, system_prompt), *messages])
        return written([Message(role, f"{system_prompt}\n\n{first.content}"), *others])

    try:
        render([Message("user", "?")], "system")
    except Exception:
        # A template that knows no system role raises whatever it likes; its text then opens the first turn.
        return lambda messages: render(_without_system(messages), "user")
    return lambda messages: render(messages, "system")


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation whose first turn is a user's, and opens with what its system turn said."""
    [first, *others] = messages
    if first.role != "system" or not others:
        return [Message("user", first.content), *others]
    return [Message("user", f"{first.content}\n\n{others[0].content}"), *others[1:]]


def _window(model: Any) -> int | None:
    size = getattr(model.config, "max_position_embeddings", None)
    return size if isinstance(size, int) else None


Kind = Literal["query", "document"]


class EmbeddingEncoder:
    """Encodes with a LlamaIndex embedding model; rows are L2-normalised here.

    Args:
        embed_model: Any LlamaIndex embedding model.

    Raises:
        ConfigurationError: If it is none.
    """

    def __init__(self, embed_model: BaseEmbedding) -> None:
        if not isinstance(embed_model, BaseEmbedding):
            raise ConfigurationError(
                f"expected a LlamaIndex embedding model, got {type(embed_model).__name__}",
                hint="pass embed_model=…, or set Settings.embed_model",
            )
        self._model = embed_model

    def __repr__(self) -> str:
        return f"EmbeddingEncoder({self.name!r})"

    @property
    def name(self) -> str:
        """Identity of the model."""
        known = self._model.model_name
        return known if known != "unknown" else self._model.class_name()

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions].

        Raises:
            ServiceError: If the model returns a vector of length zero.
        """
        if kind == "query":
            return _normalised([self._model.get_query_embedding(text) for text in texts])
        return _normalised(self._model.get_text_embedding_batch(list(texts)))

    async def aencode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Like ``encode``, with the model's own async methods; in a thread for a model that has none."""
        if kind == "query":
            return _normalised([await self._model.aget_query_embedding(text) for text in texts])
        if not _embeds_natively(self._model):
            return await in_thread(self.encode, texts, kind)
        return _normalised(await self._model.aget_text_embedding_batch(list(texts)))


class SettingsEncoder:
    """Encodes with ``Settings.embed_model``, asked for only when a vector is needed."""

    name = "Settings.embed_model"

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]."""
        return EmbeddingEncoder(Settings.embed_model).encode(texts, kind)

    async def aencode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Like ``encode``, without blocking the event loop."""
        return await EmbeddingEncoder(Settings.embed_model).aencode(texts, kind)


def encoder_of(model: BaseEmbedding | Encoder | None) -> Encoder:
    """Return an embedding model as an encoder, an encoder as it is, ``Settings.embed_model`` for None."""
    if model is None:
        return SettingsEncoder()
    return model if isinstance(model, Encoder) else EmbeddingEncoder(model)


def _normalised(vectors: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    rows = np.asarray(vectors, dtype=np.float32).reshape(len(vectors), -1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ServiceError("the embedding model returned a vector of length 0", hint="leave empty texts out")
    normalised: NDArray[np.float32] = rows / lengths
    return normalised


def _embeds_natively(model: BaseEmbedding) -> bool:
    """Whether a model awaits; the inherited methods embed text after text and block the event loop."""
    # By name: LlamaIndex wraps inherited methods anew in every subclass.
    inherited = (
        getattr(type(model), name).__qualname__ == f"{BaseEmbedding.__name__}.{name}"
        for name in ("_aget_text_embedding", "_aget_text_embeddings")
    )
    return not all(inherited)


class NodeRetriever:
    """Retrieves nodes with a LlamaIndex retriever, passes them through postprocessors, gives passages.

    Nodes are copied before anything else happens, so that neither a postprocessor nor a caller changes
    what the index holds.

    Args:
        retriever: Any LlamaIndex retriever.
        postprocessors: Applied in order, as in LlamaIndex's query engines.
        bundle: The query as the pipeline asked it, with embeddings or strings to embed of its own; where
            its text is asked for, it is what the retriever gets.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        postprocessors: Sequence[BaseNodePostprocessor] = (),
        bundle: QueryBundle | None = None,
    ) -> None:
        self._retriever = retriever
        self._postprocessors = tuple(postprocessors)
        self._bundle = bundle

    def __repr__(self) -> str:
        return f"NodeRetriever({type(self._retriever).__name__}, {len(self._postprocessors)} postprocessors)"

    def bound_to(self, bundle: QueryBundle) -> NodeRetriever:
        """Return a retriever that asks for this very query."""
        return NodeRetriever(self._retriever, self._postprocessors, bundle)

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return passages, best first, ``k`` at most; each has its node as ``origin``."""
        return passages_of(self.nodes(self._query(query)))[:k]

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        return passages_of(await self.anodes(self._query(query)))[:k]

    def nodes(self, bundle: QueryBundle) -> list[NodeWithScore]:
        """Return postprocessed copies of the nodes that the retriever finds."""
        nodes = [copy_of(node) for node in self._retriever.retrieve(replace(bundle))]
        for postprocessor in self._postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=replace(bundle))
        return nodes

    async def anodes(self, bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``nodes``; a retriever without an async of its own works in a thread."""
        if _has_native_async(self._retriever):
            found = await self._retriever.aretrieve(replace(bundle))
        else:
            found = await in_thread(self._retriever.retrieve, replace(bundle))
        nodes = [copy_of(node) for node in found]
        for postprocessor in self._postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, query_bundle=replace(bundle))
        return nodes

    def _query(self, query: str) -> QueryBundle:
        if self._bundle is not None and self._bundle.query_str == query:
            return self._bundle
        return QueryBundle(query)


def bundle_of(query: QueryType) -> QueryBundle:
    """Return a query as a bundle."""
    return QueryBundle(query) if isinstance(query, str) else query


def bound_to(service: Retriever | None, bundle: QueryBundle) -> Retriever | None:
    """Return a retriever that asks for this very query, where it is one of the pipeline's."""
    return service.bound_to(bundle) if isinstance(service, NodeRetriever) else service


def retriever_of(source: BaseRetriever | BaseIndex[Any], k: int | None = None) -> BaseRetriever:
    """Return a retriever as it is, or that of an index.

    Args:
        source: A retriever, or an index to make one of.
        k: Nodes that the retriever of an index shall find; its own default if None.

    Raises:
        ConfigurationError: If it is neither.
    """
    if isinstance(source, BaseRetriever):
        return source
    if isinstance(source, BaseIndex):
        return source.as_retriever() if k is None else source.as_retriever(similarity_top_k=k)
    raise ConfigurationError(
        f"expected a LlamaIndex retriever or index, got {type(source).__name__}",
        hint="pass index, or index.as_retriever(similarity_top_k=…)",
    )


def _has_native_async(retriever: BaseRetriever) -> bool:
    """Whether a retriever awaits real I/O; the inherited ``_aretrieve`` blocks the event loop."""
    return type(retriever)._aretrieve.__qualname__ != BaseRetriever._aretrieve.__qualname__
