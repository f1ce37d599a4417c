"""Services that are asked each thing once, and whose answers can be looked up afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surerag.drivers.answering import is_local
from surerag.entailment.labels import ENTAILMENT
from surerag.readers.protocol import BaseReader, Capabilities, Reader
from surerag.services import Encoder, Entailer, as_reader
from surerag.types import Generation, Pair, Prompt, Sampling


class RememberingReader(BaseReader):
    """Another reader, whose greedy answers are remembered: variants of one method begin alike.

    That is sound where a greedy answer does not depend on what is asked beside it, which the study checks.

    Args:
        reader: Who is asked what is not known.

    Attributes:
        asked: Prompts that it was asked.
        prompt_tokens: Tokens of these, shared beginnings counted each time.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = as_reader(reader)
        self._known: dict[tuple[Prompt, Sampling], list[Generation]] = {}
        self.asked = 0
        self.prompt_tokens = 0

    @property
    def name(self) -> str:
        """Identity of the model."""
        return self._reader.name

    @property
    def capabilities(self) -> Capabilities:
        """What the reader can do."""
        return self._reader.capabilities

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return generations, asking only for those that are not known; chance is never remembered."""
        if sampling.temperature > 0:
            return self._reader.generate(prompts, sampling)
        unknown = [prompt for prompt in dict.fromkeys(prompts) if (prompt, sampling) not in self._known]
        if unknown:
            rows = self._reader.generate(unknown, sampling)
            self._known.update(((prompt, sampling), row) for prompt, row in zip(unknown, rows, strict=True))
            self.asked += len(unknown)
            self.prompt_tokens += sum(row[0].prompt_tokens for row in rows)
        return [self._known[prompt, sampling] for prompt in prompts]


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


class NotingEntailer:
    """Another entailer that notes what it said.

    Args:
        entailer: Who judges.

    Attributes:
        verdicts: Whether the first answer of a pair was found to entail the second.
    """

    def __init__(self, entailer: Entailer) -> None:
        self._entailer = entailer
        self.verdicts: dict[Pair, bool] = {}

    @property
    def name(self) -> str:
        """Identity of the model."""
        return self._entailer.name

    @property
    def local(self) -> bool:
        """Whether pairs of many callers should be merged."""
        return is_local(self._entailer)

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return probabilities [pairs, 3]."""
        rows = self._entailer.entail(pairs)
        self.verdicts.update(
            (pair, int(row.argmax()) == ENTAILMENT) for pair, row in zip(pairs, rows, strict=True)
        )
        return rows
