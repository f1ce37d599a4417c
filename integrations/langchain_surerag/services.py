"""A pipeline's own models, embeddings and retrievers as services of surerag."""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever, RetrieverLike
from langchain_core.runnables import Runnable, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from numpy.typing import NDArray
from surerag.adapting import shared, takes_template

from langchain_surerag._counting import Count, counted_by
from langchain_surerag._events import announced
from langchain_surerag._model_reader import ModelReader
from langchain_surerag.dialects import DialectOptions, Scoring
from langchain_surerag.documents import passages_of
from surerag.errors import CapabilityError, ConfigurationError, MissingServiceError, ServiceError
from surerag.messages import Passage
from surerag.readers import BaseReader, Reader
from surerag.readers.hosted.limits import DEADLINE, MAX_BYTES, Limits
from surerag.readers.thinking import THINKING_TOKENS
from surerag.readers.threads import in_thread
from surerag.services import FoundPassages, Retriever

__all__ = ["ModelReader", "Scoring", "reader_from_model", "reader_of"]


def reader_from_model(
    model: Runnable[Any, Any],
    *,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    vocabulary_size: int = 300_000,
    max_concurrency: int = 8,
    scoring: Scoring | None = None,
    chat_template: bool = True,
    thinking: bool | None = None,
    thinking_tokens: int = THINKING_TOKENS,
    template_options: Mapping[str, Any] | None = None,
    deadline: float = DEADLINE,
    max_bytes: int = MAX_BYTES,
) -> BaseReader:
    """Make a reader of a chat model or an LLM, with whatever is wrapped around it.

    ========================================  =============================================================
    model                                     what the reader gives
    ========================================  =============================================================
    ChatOpenAI and its relatives, over chat   log-probabilities, entropy as an interval, first tokens by an
    completions or the Responses API          open stream
    ChatOllama, OllamaLLM, ChatFireworks,     the same
    ChatGoogleGenerativeAI, ChatVertexAI,
    ChatOpenRouter, ChatTogether
    OpenAI (completions) and its relatives    the same, and scores of given text: see ``scoring``
    ChatLlamaCpp                              log-probabilities and entropy; one answer at a time
    HuggingFacePipeline, ChatHuggingFace      a TransformersReader on its model: exact entropies, batches
    any other                                 text only, unless its class was registered with
                                              :func:`~langchain_surerag.register_dialect`
    ========================================  =============================================================

    ``bind``, ``with_config``, ``with_retry``, ``with_fallbacks``, ``configurable_fields`` and
    ``init_chat_model`` around a model keep working; of several models, the reader promises what all of them
    can do. Calls run under the run of the chain that asks. Samples at a temperature above 0 bypass
    LangChain's LLM cache, which would answer all of them with one.

    A model is asked for what a method uses, and no more. What it was built or bound with holds, unless
    answers are drawn or measured and would be those of another distribution by it; then an
    ``OverruledWarning`` names both values. What its provider refuses is left out from then on where a method
    can do without it. The model's own errors, retries and time-outs stay LangChain's, but what its provider
    refuses for good is a ``RefusedError``.

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
        chat_template: Whether the model of a HuggingFacePipeline is asked through its tokenizer's chat
            template, if there is one. LangChain sends it raw text, which no chat model was trained on; False
            does so, too. ChatHuggingFace always goes through the template.
        thinking: Whether the model thinks before it answers. What it thinks is told from the answer, and left
            out of text, trace and gates. A model in this process is told by its chat template: True has it
            think, False switches that off, None switches it off where the template can. Of a service's
            model, True says that it does, so that its first request already has tokens for it; None learns
            it from its answers, if they show it. Whether it thinks is a setting of the model itself there.
        thinking_tokens: Tokens that a model which thinks gets for that, besides those of the answer.
        template_options: Variables of the chat template of a HuggingFacePipeline's tokenizer.
        deadline: Seconds that one answer of an OpenAI-style model may take in all, however steadily it
            drips: the model's own ``timeout`` is for each read of its connection. Your own pauses do not
            count.
        max_bytes: Size of one of its answers, after decompression.

    Warns:
        ChatTemplateWarning: Once for a tokenizer, where its template is used and LangChain would not.

    Raises:
        ConfigurationError: If there is no language model in it, or a setting cannot work.
        CapabilityError: If ``"echo"`` is insisted on for a model without echo.

    Example:
        >>> from langchain_core.language_models import FakeListChatModel
        >>> from surerag.messages import SamplingParams
        >>> reader = reader_from_model(FakeListChatModel(responses=["Velm"]))
        >>> reader.generate(["Where was Ada born?"], SamplingParams())[0][0].text, reader.capabilities.logprobs
        ('Velm', False)
    """
    limits = Limits(deadline, max_bytes)
    thinks = {"thinking": thinking, "thinking_tokens": thinking_tokens, "template_options": template_options}
    local = pipeline_reader(model, chat_template=chat_template, **thinks) if logprobs is not False else None
    if local is not None:
        return local
    if thinking is False or template_options:
        raise ConfigurationError(
            "thinking=False and template_options are for a model in this process; this one is a service's",
            hint='set it in the model: ChatOpenAI(…, reasoning_effort="none"), ChatOpenAI(…, extra_body='
            '{"chat_template_kwargs": {"enable_thinking": False}}), ChatOllama(…, reasoning=False)',
        )
    return ModelReader(
        model,
        DialectOptions(
            logprobs, top_logprobs, vocabulary_size, scoring, thinking_tokens, bool(thinking), limits
        ),
        max_concurrency=max_concurrency,
    )


def reader_of(model: Any, **settings: Any) -> Reader:
    """Return a model as a reader, the same one for as long as it is used, and a reader as it is.

    Args:
        model: A chat model or an LLM, or a reader of surerag.
        **settings: Of :func:`reader_from_model`.

    Raises:
        MissingServiceError: If there is none.
    """
    if model is None:
        raise MissingServiceError("there is no model", hint="pass llm=…")
    # What a runnable has is not to be asked here: some answer by evaluating the type hints of what they wrap.
    if not isinstance(model, Runnable) and isinstance(model, Reader):
        return model
    return shared(reader_from_model, model, **settings)


@contextmanager
def advised(reader: Reader) -> Iterator[None]:
    """Say in the error about a model that lacks what a method needs what to do about it in LangChain."""
    try:
        yield
    except CapabilityError as error:
        if not isinstance(reader, ModelReader) or not reader.advice:
            raise
        found = str(error).removesuffix(f". {error.hint[:1].upper()}{error.hint[1:]}.")
        raise CapabilityError(found, hint=reader.advice) from error


_readers: weakref.WeakKeyDictionary[Any, dict[tuple[bool, int, str], BaseReader]] = (
    weakref.WeakKeyDictionary()
)
_readers_lock = threading.Lock()


def pipeline_reader(model: object, *, chat_template: bool = True, **thinking: Any) -> BaseReader | None:
    """Return a reader of the model inside a Hugging Face pipeline, or None if there is none.

    LangChain's own way through a pipeline loses log-probabilities, all samples but the first, and stop
    texts. There is one reader for each pipeline and rendering, so that all who use it are answered in merged
    batches. ``thinking`` are those settings of a TransformersReader.
    """
    while isinstance(model, RunnableBindingBase):
        model = model.bound
    chat = model if _is_a(model, "ChatHuggingFace") else None
    llm = getattr(chat, "llm", None) if chat is not None else model
    pipeline = getattr(llm, "pipeline", None) if _is_a(llm, "HuggingFacePipeline") else None
    if pipeline is None or getattr(pipeline, "task", "") != "text-generation":
        return None
    tokenizer = getattr(chat, "tokenizer", None) or pipeline.tokenizer
    templated = chat is not None or (
        chat_template and takes_template(tokenizer, type(llm).__name__, "reader_from_model")
    )
    # A ChatHuggingFace may bring a tokenizer of its own, and so another template.
    with _readers_lock:
        readers = _readers.setdefault(pipeline, {})
        key = templated, id(tokenizer), repr(sorted(thinking.items()))
        if key not in readers:
            readers[key] = _reader_of(pipeline.model, tokenizer, chat_template=templated, **thinking)
        return readers[key]


def _is_a(model: object, name: str) -> bool:
    """Whether a class of this name is among a model's; its package need not be installed to ask."""
    return any(base.__name__ == name for base in type(model).__mro__)


def _reader_of(model: Any, tokenizer: Any, *, chat_template: bool, **thinking: Any) -> BaseReader:
    from surerag.readers.local import TransformersReader

    reader: BaseReader = TransformersReader(model, tokenizer, chat_template=chat_template, **thinking)
    return reader


class EmbeddingEncoder:
    """Encodes with a LangChain embedding model; rows are L2-normalised here.

    Args:
        embeddings: Any LangChain embedding model.
        name: Identity of the model; by default its class and the model it names.

    Raises:
        ConfigurationError: If it is none.
    """

    def __init__(self, embeddings: Embeddings, *, name: str = "") -> None:
        if not isinstance(embeddings, Embeddings):
            raise ConfigurationError(
                f"expected a LangChain embedding model, got {type(embeddings).__name__}",
                hint="pass embeddings=… with embed_documents and embed_query",
            )
        self._embeddings = embeddings
        self._name = name or _name(embeddings)

    def __repr__(self) -> str:
        return f"EmbeddingEncoder({self._name!r})"

    @property
    def name(self) -> str:
        """Identity of the model."""
        return self._name

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions].

        Raises:
            ServiceError: If the model does not return one vector of some length for each text.
        """
        if kind == "query":
            return _normalised([self._embeddings.embed_query(text) for text in texts], texts)
        return _normalised(self._embeddings.embed_documents(list(texts)), texts)

    async def aencode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        """Like ``encode``, with the model's own async methods; in a thread for a model that has none."""
        if not _embeds_natively(self._embeddings):
            return await in_thread(self.encode, texts, kind)
        if kind == "query":
            found = await asyncio.gather(*(self._embeddings.aembed_query(text) for text in texts))
            return _normalised(found, texts)
        return _normalised(await self._embeddings.aembed_documents(list(texts)), texts)


def _name(embeddings: Embeddings) -> str:
    named = (getattr(embeddings, attribute, None) for attribute in ("model_name", "model"))
    model = next((name for name in named if isinstance(name, str) and name), "")
    return f"{type(embeddings).__name__}({model})"


def _embeds_natively(embeddings: Embeddings) -> bool:
    """Whether a model awaits; what it inherits holds a thread of the event loop's own pool."""
    inherited = (
        type(embeddings).aembed_documents is Embeddings.aembed_documents,
        type(embeddings).aembed_query is Embeddings.aembed_query,
    )
    return not all(inherited)


def _normalised(vectors: Sequence[Sequence[float]], texts: Sequence[str]) -> NDArray[np.float32]:
    if len(vectors) != len(texts):
        raise ServiceError(f"the embedding model returned {len(vectors)} vectors for {len(texts)} texts")
    rows = np.asarray(vectors, dtype=np.float32).reshape(len(texts), -1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ServiceError("the embedding model returned a vector of length 0", hint="leave empty texts out")
    normalised: NDArray[np.float32] = rows / lengths
    return normalised


class RunnableRetriever:
    """Retrieves with a LangChain retriever, or any runnable from a question to documents.

    The number wanted is handed on to retrievers that take it (those of vector stores, and those with a
    parameter ``k`` in both their methods); what others return is cut to it. Calls run under the run of the
    chain that asks. What its own models report (a retriever that rewrites or filters asks some) is counted
    among the costs of the answer.

    Args:
        runnable: The retriever, with whatever is wrapped around it.

    Raises:
        ConfigurationError: If it is no runnable.
    """

    def __init__(self, runnable: RetrieverLike) -> None:
        if not isinstance(runnable, Runnable):
            raise ConfigurationError(
                f"expected a retriever, got {type(runnable).__name__}", hint=_retriever_hint(runnable)
            )
        self._runnable: Runnable[str, list[Any]] = runnable
        self._takes_k = takes_k(runnable)

    def __repr__(self) -> str:
        return f"RunnableRetriever({self._runnable.get_name()})"

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Return passages, best first, ``k`` at most.

        Raises:
            ServiceError: If the runnable returns something other than documents.
        """
        count = Count()
        found = self._runnable.invoke(query, counted_by(count), **self._wanted(k))
        return _passages(found, k, count)

    async def aretrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Like ``retrieve``, with the runnable's own async method."""
        await announced()
        count = Count()
        found = await self._runnable.ainvoke(query, counted_by(count), **self._wanted(k))
        return _passages(found, k, count)

    def _wanted(self, k: int | None) -> dict[str, Any]:
        return {"k": k} if self._takes_k and k is not None else {}


def retriever_of(retriever: Any) -> Any:
    """Return a runnable as a retriever of surerag, and one of surerag, or none, as it is.

    Raises:
        ConfigurationError: If it is something else; a vector store, or a function, is told what to do.
    """
    if isinstance(retriever, Runnable):
        return RunnableRetriever(retriever)
    if retriever is None or isinstance(retriever, Retriever):
        return retriever
    raise ConfigurationError(
        f"expected a retriever, got {type(retriever).__name__}", hint=_retriever_hint(retriever)
    )


def _retriever_hint(found: object) -> str:
    if isinstance(found, VectorStore):
        return "pass store.as_retriever()"
    if callable(found):
        return "wrap the function: RunnableLambda(search), from langchain_core.runnables"
    return "pass a LangChain retriever (store.as_retriever()) or a runnable from str to documents"


def takes_k(runnable: object) -> bool:
    """Whether ``invoke(question, k=…)`` reaches the search."""
    match runnable:
        case BaseRetriever():
            searches = (runnable._get_relevant_documents, runnable._aget_relevant_documents)
            named = all("k" in inspect.signature(search).parameters for search in searches)
            return named or isinstance(runnable, VectorStoreRetriever)
        case RunnableBindingBase():
            return takes_k(runnable.bound)
        case DynamicRunnable():
            return takes_k(runnable.default)
        case RunnableWithFallbacks():
            return all(takes_k(item) for item in runnable.runnables)
        case _:
            return False


def _passages(found: object, k: int | None, count: Count) -> list[Passage]:
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ServiceError(
            f"the retriever returned a {type(found).__name__} where a list of documents was expected",
            hint="give a retriever, or a runnable from a question to a list of documents",
        )
    passages = passages_of(found[:k])
    return FoundPassages(passages, count.costs, count.model) if count.costs.calls else passages
