"""Asking models in a study: everything once, its cost counted, and the log kept readable."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surerag.readers.protocol import Reader, ReaderAround
from surerag.services import Encoder, as_reader
from surerag.types import Generation, Prompt, Sampling


class CountedReader(ReaderAround):
    """Another reader, and account of what it was asked.

    Args:
        reader: Who is asked.

    Attributes:
        asked: Prompts.
        prompt_tokens: Tokens of these, shared beginnings counted each time.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__(as_reader(reader))
        self._lock = threading.Lock()
        self.asked = 0
        self.prompt_tokens = 0

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""
        rows = self._reader.generate(prompts, sampling)
        with self._lock:
            self.asked += len(rows)
            self.prompt_tokens += sum(row[0].prompt_tokens for row in rows)
        return rows


class RememberingEncoder:
    """Another encoder, whose vectors are remembered: questions share passages and sentences.

    Args:
        encoder: Who is asked what is not known.
    """

    local = True

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._known: dict[tuple[str, str], NDArray[np.float32]] = {}

    @property
    def name(self) -> str:
        """Identity of the model."""
        return self._encoder.name

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        """Return vectors, asking only for those that are not known."""
        unknown = [text for text in dict.fromkeys(texts) if (kind, text) not in self._known]
        if unknown:
            rows = self._encoder.encode(unknown, kind)
            self._known.update(((kind, text), row) for text, row in zip(unknown, rows, strict=True))
        return np.stack([self._known[kind, text] for text in texts])
