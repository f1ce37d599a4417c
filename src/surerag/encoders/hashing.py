"""An encoder that needs no model: the public fake, for your tests as for ours."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surerag.errors import ConfigurationError
from surerag.tokens import UNSPACED

_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


class HashingEncoder:
    """Places each distinct word of a text on one of ``dimensions`` axes, by a hash.

    Texts that share words are similar, and nothing else is: good enough to find passages in a test or an
    example, without a download. Where no spaces are put between words, each letter is one. The same text has
    the same vector in every process.

    Args:
        dimensions: Length of a vector. More makes it rarer that two words share an axis.

    Raises:
        ConfigurationError: If ``dimensions`` is less than 1.

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

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]; queries and documents are treated alike."""
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            words = _WORD.findall(unicodedata.normalize("NFC", text.lower()))
            for word in sorted(set(words)) or [text]:
                code = zlib.crc32(word.encode())
                # The sign makes two words that meet on one axis as likely to cancel as to add up.
                row[code // 2 % self.dimensions] += 1.0 if code % 2 else -1.0
            if not row.any():
                row[0] = 1.0
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors
