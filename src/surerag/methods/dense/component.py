"""The public classes of DENSE-RAG: measuring a context, refining it, and semantic chunking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from pydantic import Field

from surerag import drivers
from surerag.component import Component, Function, Service
from surerag.effects import Program
from surerag.entailment import JudgeEntailer
from surerag.errors import ConfigurationError, check_kind
from surerag.messages import ANSWER_TOKENS, Passage, Template
from surerag.methods.dense.algorithm import DenseSession, Rephrasings, dense
from surerag.methods.dense.chunking import chunk_passages, quantile_similarity, semantic_chunks
from surerag.methods.dense.options import DenseOptions, DenseRefinerOptions, SemanticChunkerOptions
from surerag.methods.dense.refinement import refine_context
from surerag.methods.dense.result import DenseRefinerResult, DenseResult, SemanticChunk
from surerag.readers.protocol import Reader, as_reader
from surerag.services import Encoder, Entailer, Retriever, Services
from surerag.text import estimated_tokens


def _judge(reader: Reader, entailer: Entailer | Reader | None, prompt: Template) -> Entailer:
    judge = reader if entailer is None else entailer
    if not isinstance(judge, Reader):
        if prompt.text != DenseOptions.PROMPTS["entailment"].text:
            raise ConfigurationError(
                f"{type(judge).__name__} takes no prompt, but prompts has 'entailment'",
                hint="remove the prompt 'entailment', or pass a reader as entailer",
            )
        return judge
    return JudgeEntailer(judge, prompt=prompt)


class DenseEvaluator(DenseOptions, Component[DenseResult]):
    """DENSE: measures how well a reader understands its context, without a reference answer.

    Each chunk of the context is rephrased in turn. A reader that understands the context gives the same
    answer each time. The score is the semantic entropy of these answers: the higher the score, the
    less the reader understands. With ``label_chunks``, the reader also answers without each chunk whose
    rephrasing changes the answer, so that the chunk can be labelled as necessary or unnecessary.

    Example:
        >>> from surerag import FakeReader, Passage
        >>> from surerag.entailment import ExactEntailer
        >>> def reply(prompt):
        ...     if prompt.startswith("Rewrite"):
        ...         return "Velm is where Ada was born."
        ...     return "Velm" if "Ada was born in Velm" in prompt else "Orun"
        >>> evaluator = DenseEvaluator(FakeReader(reply), ExactEntailer(), label_chunks=True)
        >>> result = evaluator.run("Where was Ada born?", [Passage("Ada was born in Velm.", id="a")])
        >>> result.answers, round(result.score, 4), result.labels
        (('Velm', 'Orun'), 0.6931, ('necessary',))
    """

    TITLE, JUDGES = "DENSE-RAG", True

    reader: Service[Reader | None] = None
    """The model that rephrases chunks and answers the question."""

    entailer: Service[Entailer | Reader | None] = None
    """Judges whether two answers mean the same: an NLI model, or a reader that is asked for its judgement.
    None means ``reader``."""

    rephrasings: Service[Rephrasings] = Field(default_factory=Rephrasings)
    """Cache of rephrased chunks. Pass the same cache to several components to rephrase each chunk once."""

    def __init__(
        self, reader: Reader | None = None, entailer: Entailer | Reader | None = None, **options: Any
    ) -> None:
        services = {"reader": reader, "entailer": entailer, "rephrasings": Rephrasings()}
        super().__init__(**{**services, **options})

    def _connect(self) -> Services:
        services = Services(reader=self.reader)
        (reader,) = services.require("DenseEvaluator", "reader")
        return replace(services, entailer=_judge(reader, self.entailer, self.prompts["entailment"]))

    def program(self, question: str, passages: Sequence[Passage]) -> Program[DenseResult]:
        """Return the generator that measures the context of one question; ``surerag.drivers`` runs it.

        Raises:
            InputError: If the question is empty, or no passage of the context has a text.
            ServiceError: If a model fails, or more than 10 % of the entailer's replies cannot be used.
        """
        return dense(_session(self, question), passages, self.label_chunks)


class SemanticChunker(SemanticChunkerOptions, Component[list[SemanticChunk]]):
    """Cuts texts into chunks between dissimilar sentences (DENSE-RAG, Algorithm 2).

    Example:
        >>> from surerag.encoders import HashingEncoder
        >>> chunker = SemanticChunker(HashingEncoder(), similarity_threshold=0.3)
        >>> text = "Ada was born in Velm. Ada left Velm in spring. Tin melts easily."
        >>> [(chunk.text, chunk.start) for chunk in chunker.run(text)]
        [('Ada was born in Velm. Ada left Velm in spring.', 0), ('Tin melts easily.', 47)]
    """

    encoder: Service[Encoder | None] = None
    """Computes the vectors of sentences."""

    count_tokens: Function[Callable[[str], int] | None] = None
    """Function that counts the tokens of a text; None means an estimate from the number of characters."""

    def __init__(self, encoder: Encoder | None = None, **options: Any) -> None:
        super().__init__(**{"encoder": encoder, **options})

    def _connect(self) -> Services:
        services = Services(encoder=self.encoder)
        services.require("SemanticChunker", "encoder")
        return services

    @property
    def _count(self) -> Callable[[str], int]:
        return self.count_tokens or estimated_tokens

    def program(self, text: str) -> Program[list[SemanticChunk]]:
        """Return the generator that cuts one text into chunks; ``surerag.drivers`` runs it.

        Raises:
            InputError: If a single character has more tokens than ``chunk_size``, or ``text`` is not a str.
            ServiceError: If the encoder fails.
        """
        [chunks] = yield from semantic_chunks([text], self, self._count)
        return chunks

    def joint_program(self, texts: Sequence[str]) -> Program[list[list[SemanticChunk]]]:
        """Return the generator that cuts several texts; all sentences are embedded in one call."""
        return semantic_chunks(texts, self, self._count)

    def passages(self, documents: Sequence[Passage]) -> list[Passage]:
        """Cut documents into passages with ids of the form ``"<document id>@<start>:<end>"``.

        A passage has the metadata of its document, and the additional keys ``document`` (the document's id),
        ``start`` and ``end`` (positions in characters).
        """
        return drivers.run(chunk_passages(documents, self), self.services, on_event=self.on_event)

    async def apassages(self, documents: Sequence[Passage]) -> list[Passage]:
        """Cut documents without blocking the event loop; see :meth:`passages`."""
        return await drivers.arun(chunk_passages(documents, self), self.services, on_event=self.on_event)

    def with_quantile(self, texts: Sequence[str], quantile: float = 0.75) -> Self:
        """Return a copy whose ``similarity_threshold`` fits the encoder.

        The threshold is a quantile of the similarities of neighbouring sentences. With the quantile 0.75,
        about a quarter of the sentences are joined to the preceding sentence.

        Args:
            texts: A few dozen typical texts.
            quantile: The quantile, in [0, 1].

        Raises:
            ConfigurationError: If ``quantile`` is not in [0, 1].
            InputError: If no text has two sentences.
        """
        threshold = drivers.run(quantile_similarity(texts, self, quantile, self._count), self.services)
        return self.with_options(similarity_threshold=threshold)


class DenseRefiner(DenseRefinerOptions, Component[DenseRefinerResult]):
    """Improves a context that the reader does not understand (DENSE-RAG, Algorithm 3).

    Chunks that are unnecessary for the answer are removed, and passages that resemble necessary chunks are
    added.

    Example:
        >>> from surerag import FakeReader, Passage
        >>> from surerag.entailment import ExactEntailer
        >>> reader = FakeReader(lambda prompt: "It rained." if prompt.startswith("Rewrite") else "Velm")
        >>> refiner = DenseRefiner(reader, ExactEntailer(), top_n=2)
        >>> texts = {"a": "Ada was born in Velm.", "b": "Bo.", "c": "Cy."}
        >>> passages = [Passage(text, id=name) for name, text in texts.items()]
        >>> result = refiner.run("Where was Ada born?", passages)
        >>> result.answer, result.score, result.stopped, [passage.id for passage in result.passages]
        ('Velm', 0.0, 'certain', ['a', 'b'])
    """

    reader: Service[Reader | None] = None
    """The model that rephrases chunks, answers the question, and judges whether the context suffices."""

    entailer: Service[Entailer | Reader | None] = None
    """Judges whether two answers mean the same: an NLI model, or a reader that is asked for its judgement.
    None means ``reader``."""

    encoder: Service[Encoder | None] = None
    """Computes the vectors of passages; None means the encoder of ``chunker``. No encoder is needed
    if all passages have embeddings."""

    retriever: Service[Retriever | None] = None
    """Finds more passages if all passages of a question were used. The retriever is called at most once for
    each question, and returns at most four times ``top_n`` passages."""

    chunker: Service[SemanticChunker | None] = None
    """Cuts the documents that are passed to :meth:`program` into new chunks if the reader does not understand
    the first context."""

    rephrasings: Service[Rephrasings] = Field(default_factory=Rephrasings)
    """Cache of rephrased chunks. Pass the same cache to several components to rephrase each chunk once."""

    def __init__(
        self,
        reader: Reader | None = None,
        entailer: Entailer | Reader | None = None,
        encoder: Encoder | None = None,
        **options: Any,
    ) -> None:
        services = {"reader": reader, "entailer": entailer, "encoder": encoder, "rephrasings": Rephrasings()}
        super().__init__(**{**services, **options})

    def _connect(self) -> Services:
        hint = "pass splitter.core, the SemanticChunker inside a text splitter or node parser"
        check_kind(SemanticChunker | None, "a SemanticChunker of surerag", hint=hint, chunker=self.chunker)
        chunkers = None if self.chunker is None else self.chunker.encoder
        encoder = self.encoder or chunkers
        if encoder is not None and chunkers is not None and encoder.name != chunkers.name:
            raise ConfigurationError(
                f"the chunker's encoder is {chunkers.name}, but the refiner's encoder is {encoder.name}",
                hint="pass the same encoder to the chunker and the refiner, or only to the chunker",
            )
        services = Services(reader=self.reader, encoder=encoder, retriever=self.retriever)
        (reader,) = services.require("DenseRefiner", "reader")
        return replace(services, entailer=_judge(reader, self.entailer, self.prompts["entailment"]))

    def program(
        self, question: str, passages: Sequence[Passage], documents: Sequence[Passage] = ()
    ) -> Program[DenseRefinerResult]:
        """Return the generator that refines the context of one question; ``surerag.drivers`` runs it.

        Args:
            question: The question.
            passages: Retrieved passages, best first. The first ``top_n`` passages are the first context; the
                other passages may be added later.
            documents: The whole documents of the passages. The ``chunker`` cuts them into new chunks if the
                reader does not understand the first context.

        Raises:
            InputError: If the question is empty.
            MissingServiceError: If vectors are needed and there is no encoder.
        """
        return refine_context(
            _session(self, question),
            passages,
            self,
            documents=documents,
            chunker=self.chunker,
            retrieves=self.retriever is not None,
        )


def _session(component: DenseEvaluator | DenseRefiner, question: str) -> DenseSession:
    reader = as_reader(component.reader).name
    return DenseSession(
        question, component, component.answer_tokens or ANSWER_TOKENS, reader, component.rephrasings
    )
