"""A pipeline's own embedding model, as an encoder of surerag."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.settings import Settings
from numpy.typing import NDArray

from surerag.errors import ConfigurationError, ServiceError
from surerag.services import Encoder

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
            return await asyncio.to_thread(self.encode, texts, kind)
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
