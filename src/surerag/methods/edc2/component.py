"""The public class of EDC²-RAG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import ArrayLike

from surerag.component import Component, Function, Service
from surerag.effects import Program
from surerag.messages import Passage
from surerag.methods.edc2.algorithm import compress_clusters
from surerag.methods.edc2.options import EDC2Options
from surerag.methods.edc2.result import EDC2Result
from surerag.readers.protocol import Reader, as_reader
from surerag.services import Encoder, Entailer, Services


class ClusterCompressor(EDC2Options, Component[EDC2Result]):
    """EDC²-RAG: shortens the context to the passages that help to answer, or compresses clusters of passages.

    By default, the reader judges whether each passage helps, and the most helpful third of the passages, but
    at least three passages, is kept unchanged. This selection is not in the paper. With ``variant="paper"``,
    the reader writes a compression of each cluster of passages. With ``variant="copy"``, the reader copies
    the helpful sentences, and EDC² returns the sentences of the passages that are most similar to the copies.
    The algorithm of section 4.3 is ``variant="paper", guard="off", min_tokens=0``.

    Example:
        >>> from surerag import ClusterCompressor, FakeReader, Passage
        >>> from surerag.encoders import HashingEncoder
        >>> passages = [Passage("Ada, a painter, was born in Velm."), Passage("Bo came later.")]
        >>> reader = FakeReader(lambda prompt: "yes" if "born in Velm" in prompt else "no")
        >>> result = ClusterCompressor(reader, HashingEncoder(), top_n=1).run("Where was Ada born?", passages)
        >>> [passage.text for passage in result.passages]
        ['Ada, a painter, was born in Velm.']

        >>> reader = FakeReader(["Ada was born in Velm."])
        >>> compressor = ClusterCompressor(reader, HashingEncoder(), variant="copy", min_tokens=0)
        >>> result = compressor.run("Where was Ada born?", passages)
        >>> result.passages[0].text, result.tokens_before, result.tokens_after
        ('Ada, a painter, was born in Velm.', 14, 10)
    """

    TITLE = "EDC²-RAG"

    reader: Service[Reader | None] = None
    """The model that judges which passages help to answer, or compresses clusters of passages."""

    encoder: Service[Encoder | None] = None
    """Computes the vectors of the query and the passages; not needed if all vectors are passed to
    ``program``."""

    entailer: Service[Entailer | None] = None
    """Judges whether a passage supports a sentence; needed for ``guard="entailment"``."""

    count_tokens: Function[Callable[[str], int] | None] = None
    """Function that counts the tokens of a text; None means the reader's own count."""

    show: Function[Callable[[Passage], str] | None] = None
    """Function that formats a passage as in the pipeline's prompt, for counting tokens; None means the
    passage's text."""

    def __init__(
        self,
        reader: Reader | None = None,
        encoder: Encoder | None = None,
        entailer: Entailer | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**{"reader": reader, "encoder": encoder, "entailer": entailer, **options})

    def _connect(self) -> Services:
        services = Services(reader=self.reader, encoder=self.encoder, entailer=self.entailer)
        services.require("ClusterCompressor", "reader")
        if self.guard == "entailment":
            services.require('ClusterCompressor with guard="entailment"', "entailer")
        return services

    def measure(self, passage: Passage) -> int:
        """Return the number of tokens that a passage needs in the pipeline's prompt."""
        count = self.count_tokens or as_reader(self.reader).count_tokens
        return count(passage.text if self.show is None else self.show(passage))

    def program(
        self, query: str, passages: Sequence[Passage], query_vector: ArrayLike | None = None
    ) -> Program[EDC2Result]:
        """Return the generator that shortens the context of one question; ``surerag.drivers`` runs it.

        Args:
            query: The question, or the statement for ``task="verify"``.
            passages: The retrieved passages, best first. Their embeddings are used if all passages have one.
            query_vector: The query's vector, from the model that embedded the passages; None: the encoder
                computes the vector if it is needed.

        Raises:
            InputError: If the query is empty.
            ConfigurationError: If not a single character fits ``token_limit``.
            MissingServiceError: If vectors are needed and there is no encoder.
        """
        return compress_clusters(query, passages, self, _once(self.measure), query_vector)


def _once(measure: Callable[[Passage], int]) -> Callable[[Passage], int]:
    # The cache holds the passage, so that no other object gets the same id.
    cache: dict[int, tuple[Passage, int]] = {}

    def measured(passage: Passage) -> int:
        if id(passage) not in cache:
            cache[id(passage)] = passage, measure(passage)
        return cache[id(passage)][1]

    return measured
