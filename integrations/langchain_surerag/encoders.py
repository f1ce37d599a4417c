"""A pipeline's own embedding model, as an encoder of surerag."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from surerag.errors import ConfigurationError, ServiceError


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
        """Like ``encode``, with the model's own async methods."""
        if kind == "query":
            found = await asyncio.gather(*(self._embeddings.aembed_query(text) for text in texts))
            return _normalised(found, texts)
        return _normalised(await self._embeddings.aembed_documents(list(texts)), texts)


def _name(embeddings: Embeddings) -> str:
    named = (getattr(embeddings, attribute, None) for attribute in ("model_name", "model"))
    model = next((name for name in named if isinstance(name, str) and name), "")
    return f"{type(embeddings).__name__}({model})"


def _normalised(vectors: Sequence[Sequence[float]], texts: Sequence[str]) -> NDArray[np.float32]:
    if len(vectors) != len(texts):
        raise ServiceError(f"the embedding model returned {len(vectors)} vectors for {len(texts)} texts")
    rows = np.asarray(vectors, dtype=np.float32).reshape(len(texts), -1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ServiceError("the embedding model returned a vector of length 0", hint="leave empty texts out")
    normalised: NDArray[np.float32] = rows / lengths
    return normalised
