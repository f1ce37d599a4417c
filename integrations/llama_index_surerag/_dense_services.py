"""Models of a LlamaIndex pipeline as services of DENSE; what is left out comes from ``Settings``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.settings import Settings
from numpy.typing import NDArray

from llama_index_surerag.encoders import EmbeddingEncoder
from llama_index_surerag.readers import reader_from_llm
from surerag.entailment import JudgeEntailer
from surerag.readers import Reader
from surerag.services import Encoder, Entailer

Kind = Literal["query", "document"]


def reader_of(llm: LLM | Reader) -> Reader:
    """Return an LLM as a reader, and a reader as it is."""
    return reader_from_llm(llm) if isinstance(llm, LLM) else llm


def judges_in_words(entailer: Entailer | LLM | Reader | None) -> bool:
    """Whether entailment is asked for in words, with a prompt of ours."""
    return entailer is None or isinstance(entailer, LLM | Reader)


def entailer_of(entailer: Entailer | LLM | Reader | None, reader: Reader, prompt: Any) -> Entailer:
    """Return an entailer as it is, or a judge in words: without either the reader itself, as in the paper."""
    if entailer is None:
        return JudgeEntailer(reader, prompt=prompt)
    if isinstance(entailer, LLM | Reader):
        return JudgeEntailer(reader_of(entailer), prompt=prompt)
    return entailer


def unparsed_of(entailer: Entailer) -> int:
    """Return how many of a judge's replies named no single label; a classifier has none."""
    return entailer.unparsed if isinstance(entailer, JudgeEntailer) else 0


def encoder_of(model: BaseEmbedding | Encoder | None) -> Encoder:
    """Return an embedding model as an encoder, an encoder as it is, ``Settings.embed_model`` for None."""
    if model is None:
        return SettingsEncoder()
    return model if isinstance(model, Encoder) else PipelineEncoder(model)


class PipelineEncoder(EmbeddingEncoder):
    """Encodes with a LlamaIndex embedding model; one that has no async of its own works in a thread."""

    async def aencode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Like ``encode``, without blocking the event loop."""
        if kind == "query" or _embeds_natively(self._model):
            return await super().aencode(texts, kind)
        return await asyncio.to_thread(self.encode, texts, kind)


class SettingsEncoder:
    """Encodes with ``Settings.embed_model``, asked for only when a vector is needed."""

    name = "Settings.embed_model"

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]."""
        return PipelineEncoder(Settings.embed_model).encode(texts, kind)

    async def aencode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Like ``encode``, without blocking the event loop."""
        return await PipelineEncoder(Settings.embed_model).aencode(texts, kind)


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Counts tokens with a tokenizer as LlamaIndex has them: from a text to a sequence.

    A class, not a closure, so that it can be pickled for pipelines of several processes.
    """

    tokenizer: Callable[[str], Sequence[Any]]

    def __call__(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.tokenizer(text))


def _embeds_natively(model: BaseEmbedding) -> bool:
    """Whether a model awaits; the inherited methods embed text after text and block the event loop."""
    # By name: LlamaIndex wraps inherited methods anew in every subclass.
    inherited = (
        getattr(type(model), name).__qualname__ == f"{BaseEmbedding.__name__}.{name}"
        for name in ("_aget_text_embedding", "_aget_text_embeddings")
    )
    return not all(inherited)
