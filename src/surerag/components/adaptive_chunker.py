"""Adaptive semantic chunking as a public class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from surerag import drivers
from surerag.drivers.progress import Progress
from surerag.effects import Program
from surerag.errors import ConfigurationError
from surerag.methods.adaptive_chunking import (
    ChunkSettings,
    SemanticChunk,
    Span,
    adaptive_chunks,
    chunk_passages,
    quantile_tau,
)
from surerag.methods.compression_types import words_and_marks
from surerag.retrieval.sentences import split_sentences
from surerag.services import Encoder, Services
from surerag.types import Passage


@dataclass(frozen=True)
class AdaptiveChunker:
    """Cut texts where neighbouring sentences are unlike, and never above a maximum (DENSE-RAG, Algorithm 2).

    Attributes:
        encoder: Vectors of sentences.
        tau: Cosine from which the next sentence joins the chunk. The paper's 0.6 belongs to UAE-Large-V1;
            :meth:`with_quantile` finds the one that fits your encoder.
        t_max: Tokens a chunk, at most: as ``count_tokens`` counts the chunk's text.
        language: ISO 639 code, for the abbreviations and marks that sentences end with.
        count_tokens: Counts the tokens of a text, such as ``TransformersReader.count_tokens``; None counts
            words and punctuation marks.

    Raises:
        ConfigurationError: If a setting is out of range.
        MissingServiceError: If there is no encoder.

    Example:
        >>> from surerag.encoders import HashingEncoder
        >>> chunker = AdaptiveChunker(HashingEncoder(), tau=0.3)
        >>> text = "Ada was born in Velm. Ada left Velm in spring. Tin melts easily."
        >>> [(chunk.text, chunk.start) for chunk in chunker.run(text)]
        [('Ada was born in Velm. Ada left Velm in spring.', 0), ('Tin melts easily.', 47)]
    """

    encoder: Encoder = field(repr=False)
    tau: float = 0.6
    t_max: int = 512
    language: str = "en"
    count_tokens: Callable[[str], int] | None = field(default=None, repr=False)
    _settings: ChunkSettings = field(init=False, repr=False, compare=False)
    _services: Services = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        services = Services(encoder=self.encoder)
        services.require("AdaptiveChunker", "encoder")
        object.__setattr__(self, "_services", services)
        count = words_and_marks if self.count_tokens is None else self.count_tokens
        object.__setattr__(self, "_settings", ChunkSettings(self._split, count, self.tau, self.t_max))

    @property
    def services(self) -> Services:
        """Who answers: what a driver of your own needs beside :meth:`program`."""
        return self._services

    @property
    def settings(self) -> ChunkSettings:
        """What steers the method, for methods that chunk by the way."""
        return self._settings

    def program(self, texts: Sequence[str]) -> Program[list[list[SemanticChunk]]]:
        """Return the method at work on texts, for a driver of your own."""
        return adaptive_chunks(texts, self._settings)

    def run(self, text: str) -> list[SemanticChunk]:
        """Cut one text into chunks: verbatim, in order, with offsets in characters.

        Raises:
            InputError: If a single character has more tokens than ``t_max``.
            ServiceError: If the encoder fails.
        """
        return drivers.run(self.program([text]), self._services)[0]

    async def arun(self, text: str) -> list[SemanticChunk]:
        """Like :meth:`run`, without blocking the event loop."""
        return (await drivers.arun(self.program([text]), self._services))[0]

    def run_many(
        self, texts: Iterable[str], *, at_once: int = 64, progress: Progress = False
    ) -> list[list[SemanticChunk]]:
        """Cut many texts; the encoder is asked for the sentences of ``at_once`` of them together."""
        programs = (self.program([text]) for text in texts)
        found = drivers.run_many(programs, self._services, at_once=at_once, progress=progress)
        return [chunks for [chunks] in found]

    async def arun_many(
        self, texts: Iterable[str], *, at_once: int = 64, progress: Progress = False
    ) -> list[list[SemanticChunk]]:
        """Like :meth:`run_many`, without blocking the event loop."""
        programs = [self.program([text]) for text in texts]
        found = await drivers.arun_many(programs, self._services, at_once=at_once, progress=progress)
        return [chunks for [chunks] in found]

    def passages(self, documents: Sequence[Passage]) -> list[Passage]:
        """Cut documents into passages that know where they come from (``document``, ``start``, ``end``)."""
        return drivers.run(chunk_passages(documents, self._settings), self._services)

    async def apassages(self, documents: Sequence[Passage]) -> list[Passage]:
        """Like :meth:`passages`, without blocking the event loop."""
        return await drivers.arun(chunk_passages(documents, self._settings), self._services)

    def with_quantile(self, texts: Sequence[str], quantile: float = 0.5) -> Self:
        """Return a copy whose τ this share of the texts' neighbouring sentences lies below.

        Raises:
            ConfigurationError: If ``quantile`` is not in [0, 1].
            InputError: If no text has two sentences.
        """
        return replace(self, tau=drivers.run(quantile_tau(texts, self._settings, quantile), self._services))

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings or services."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return settings and the encoder's name as plain values; ``count_tokens`` is left out."""
        return {**{name: getattr(self, name) for name in PLAIN_SETTINGS}, "encoder": self.encoder.name}

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        encoder: Encoder,
        count_tokens: Callable[[str], int] | None = None,
    ) -> Self:
        """Rebuild from :meth:`to_dict`, with living services injected.

        Raises:
            ConfigurationError: If there are settings that this class does not know.
        """
        values = {name: value for name, value in settings.items() if name != "encoder"}
        unknown = values.keys() - set(PLAIN_SETTINGS)
        if unknown:
            raise ConfigurationError(f"unknown settings {sorted(unknown)}", hint="load what to_dict() gave")
        return cls(encoder, count_tokens=count_tokens, **values)

    def _split(self, text: str) -> list[Span]:
        return [Span(start, end) for _, start, end in split_sentences(text, self.language)]


PLAIN_SETTINGS = ("tau", "t_max", "language")
"""Names of the settings that are plain values; the adapters for frameworks have fields of these names."""
