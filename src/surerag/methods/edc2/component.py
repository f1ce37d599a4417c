"""EDC²-RAG as a public class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from numpy.typing import ArrayLike

from surerag.component import Component, asynchronous, sync
from surerag.decisions.policy import Identity, Policy, fingerprint
from surerag.effects import Program
from surerag.errors import ConfigurationError
from surerag.methods.edc2.algorithm import compress_clusters
from surerag.methods.edc2.evidence import answer_by_consensus, judge_statement
from surerag.methods.edc2.options import EDC2Options
from surerag.methods.edc2.result import CompressionResult, Consensus, Judgement
from surerag.readers.protocol import Reader
from surerag.retrieval.sentences import split_sentences
from surerag.services import Encoder, Entailer, Services
from surerag.tokens import words_and_marks
from surerag.types import Passage

Retrieved = tuple[str, Sequence[Passage]] | tuple[str, Sequence[Passage], ArrayLike | None]
"""A question and what was found for it, best first; with the question's vector, where it is known."""


def text_of(passage: Passage) -> str:
    """Return a passage's text: what a pipeline shows of it, unless it says otherwise."""
    return passage.text


@dataclass(frozen=True)
class ClusterCompressor(Component[Retrieved, CompressionResult], EDC2Options):
    """Put similar passages together, and compress each cluster for the question (EDC²-RAG).

    Attributes:
        reader: The model that compresses.
        encoder: Vectors for clustering; not needed where passages carry theirs and the caller has the
            query's, nor for ``clustering="single"`` or ``"random"``.
        entailer: For ``guard="entailment"``.
        count_tokens: Counts the tokens of a text; None takes the reader's own count, where it has one, else
            words and punctuation marks.
        show: The text of a passage as the pipeline will show it, for counting.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds.
        MissingServiceError: If there is no reader, or no entailer for the guard that asks one.

    Example:
        >>> from surerag import ClusterCompressor, Passage, ScriptedReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = ScriptedReader(["Ada was born in Velm."])
        >>> compressor = ClusterCompressor(reader, HashingEncoder(), pass_below=0)
        >>> found = [Passage("Ada, a painter, was born in Velm.", id="a"), Passage("Bo came later.", id="b")]
        >>> result = compressor.run("Where was Ada born?", found)
        >>> result.passages[0].text, result.tokens_before, result.tokens_after
        ('Ada was born in Velm.', 14, 6)
    """

    reader: Reader = field(repr=False)
    encoder: Encoder | None = field(default=None, repr=False)
    entailer: Entailer | None = field(default=None, repr=False)
    count_tokens: Callable[[str], int] | None = field(default=None, repr=False)
    show: Callable[[Passage], str] = field(default=text_of, repr=False)

    def _connected(self) -> Services:
        services = Services(reader=self.reader, encoder=self.encoder, entailer=self.entailer)  # type: ignore[arg-type]  # completed by Services
        services.require("ClusterCompressor", "reader")
        if self.guard == "entailment":
            services.require('ClusterCompressor with guard="entailment"', "entailer")
        if isinstance(self.threshold, Policy):
            self.threshold.check(self.identity)
        if self.benefit is not None:
            unknown = sorted(set(self.benefit.features) - {"passages", "tokens", "score", "spread"})
            if unknown:
                raise ConfigurationError(
                    f"the benefit model reads {', '.join(unknown)}, which passages do not tell",
                    hint="fit it to what ClusterCompressor.features() returns",
                )
        return services

    @property
    def signal(self) -> str:
        """What the decision to compress goes by; a policy belongs to it."""
        if self.benefit is None:
            return "tokens"
        return f"benefit by {', '.join(self.benefit.features)}, model {fingerprint(self.benefit.to_dict())}"

    @property
    def identity(self) -> Identity:
        """What a policy belongs to: the reader, the signal, and what else changes the compressions."""
        settings = {name: one for name, one in self.chosen().items() if name not in ("threshold", "benefit")}
        return Identity(self.reader.name, self.signal, fingerprint(settings))

    def program(
        self, query: str, passages: Sequence[Passage], query_vector: ArrayLike | None = None
    ) -> Program[CompressionResult]:
        """Return the method at work on one question, for a driver of your own.

        Args:
            query: Not empty.
            passages: Best first. Where all carry embeddings, these are used.
            query_vector: The query's vector, by the model that made the passages'.

        Raises:
            InputError: If the query is empty.
            MissingServiceError: If vectors are needed and there is no encoder.
        """
        return compress_clusters(query, passages, self, query_vector)

    run, arun = sync(program), asynchronous(program)

    def answer_program(self, question: str, passages: Sequence[Passage]) -> Program[Consensus]:
        """Return the answering of appendix C.2 at work, for a driver of your own.

        Each cluster answers with evidence, in whatever ``mode`` this is set to; then comes a consensus of
        these answers.

        Args:
            question: Not empty.
            passages: Best first.

        Raises:
            InputError: If the question is empty.
        """
        return answer_by_consensus(question, passages, self)

    answer, aanswer = sync(answer_program), asynchronous(answer_program)

    def judge_program(self, statement: str, passages: Sequence[Passage]) -> Program[Judgement]:
        """Return the judging of section 6.2 at work, for a driver of your own.

        The statement is judged by evidence that was compressed for it, in whatever ``mode`` this is set to:
        does it contain factual errors?

        Args:
            statement: Not empty.
            passages: Best first.

        Raises:
            InputError: If the statement is empty.
        """
        return judge_statement(statement, passages, self)

    judge, ajudge = sync(judge_program), asynchronous(judge_program)

    def measure(self, passage: Passage) -> int:
        """Return the tokens of a passage, as the pipeline will show it."""
        own: Callable[[str], int] = getattr(self.reader, "count_tokens", words_and_marks)
        count = own if self.count_tokens is None else self.count_tokens
        return count(self.show(passage))

    def sentences(self, text: str) -> list[str]:
        """Return the sentences of a text."""
        return [sentence.text for sentence in split_sentences(text)]
