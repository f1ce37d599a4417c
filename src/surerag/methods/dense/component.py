"""DENSE, the refinement of contexts and adaptive chunking as public classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Self, TypeVar

from surerag import drivers
from surerag.component import Component, asynchronous, sync
from surerag.effects import Program
from surerag.entailment.judge import JudgeEntailer, judge_of
from surerag.errors import ConfigurationError, PromptError
from surerag.messages import Passage
from surerag.methods.dense.algorithm import dense, prepare
from surerag.methods.dense.chunking import adaptive_chunks, chunk_passages, quantile_similarity
from surerag.methods.dense.memory import DenseCache, Memory
from surerag.methods.dense.options import (
    DenseOptions,
    DenseRefinerOptions,
    MeasureOptions,
    SemanticChunkerOptions,
)
from surerag.methods.dense.refinement import Documents, refine_context, worst_case_calls
from surerag.methods.dense.result import DenseRefinerResult, DenseResult, SemanticChunk, Span
from surerag.readers.protocol import Reader
from surerag.retrieval.sentences import split_sentences
from surerag.services import Encoder, Entailer, Retriever, Services

C = TypeVar("C")
R = TypeVar("R")

_JUDGE = "entailment"
"""The prompt that only a judge in words is asked with."""


@dataclass(frozen=True)
class Measuring(Component[C, R], MeasureOptions, Generic[C, R]):
    """What measuring a context and refining it have in common: reader, judge and memory."""

    reader: Reader = field(repr=False)
    entailer: Entailer | Reader | None = field(default=None, repr=False)
    cache: DenseCache = field(default_factory=DenseCache, repr=False, compare=False, kw_only=True)

    def _judge(self) -> Entailer | None:
        """Return who says whether answers mean the same.

        Raises:
            PromptError: If there is a prompt for a judge in words, and the judge is another one.
        """
        judge = self.reader if self.entailer is None else self.entailer
        if isinstance(judge, Reader):
            return judge_of(judge, self.prompts[_JUDGE])
        if self.prompts[_JUDGE] != self.PROMPTS[_JUDGE]:
            raise PromptError(
                f"{type(judge).__name__} is not asked with the prompt {_JUDGE!r}",
                hint="leave the prompt out, or let a model judge in words",
            )
        return judge

    @property
    def judges_in_words(self) -> bool:
        """Whether a model is asked in words if answers mean the same, with the prompt ``entailment``."""
        return self.entailer is None or isinstance(self.entailer, Reader)

    @property
    def unparsed(self) -> int:
        """Replies of a judge in words, so far, that named no single label; each counts as no entailment."""
        judge = self.services.entailer
        return judge.unparsed if isinstance(judge, JudgeEntailer) else 0

    @property
    def original_first(self) -> bool:
        """Whether to ask about the original context before its edits: a server then knows its prefix."""
        return not self.reader.capabilities.local

    @property
    def memory(self) -> Memory:
        """What has been asked before."""
        judge = self.services.entailer
        return Memory(self.cache, self.reader.name, "" if judge is None else judge.name)

    def prepare(self, passages: Sequence[Passage]) -> int:
        """Rephrase a corpus ahead of all questions; return how many chunks the cache now knows."""
        return drivers.run(prepare(passages, self), self.services, on_event=self.on_event)

    async def aprepare(self, passages: Sequence[Passage]) -> int:
        """Like :meth:`prepare`, without blocking the event loop."""
        return await drivers.arun(prepare(passages, self), self.services, on_event=self.on_event)

    def _identities(self) -> dict[str, str | None]:
        judge = self.services.entailer
        return {**super()._identities(), "entailer": None if judge is None else judge.name}


@dataclass(frozen=True)
class DenseEvaluator(Measuring[tuple[str, Sequence[Passage]], DenseResult], DenseOptions):
    """How far a reader understood its context, without a gold answer (DENSE-RAG, section 4).

    Each chunk is rephrased alone; a reader that understands the context answers the same whichever chunk is
    said in other words. For k chunks that costs k rephrasings (none for chunks that the cache knows), k + 1
    answers, and at most k (k + 1) judgements of entailment; with ``mask`` up to 3 k calls more.

    Attributes:
        reader: The model that rephrases and answers.
        entailer: Says whether answers mean the same: a classifier (``NLIEntailer``), which is fast, or a
            reader that is asked in words. None asks the reader itself, as in the paper.
        cache: What is known already; give one to several components, and a chunk is rephrased once for all.

    Raises:
        ConfigurationError: If an option is out of bounds, or a service is of the wrong kind.
        MissingServiceError: If there is no reader.
        PromptError: If a prompt is unknown, its slots do not fit, or nobody is asked with it.

    Example:
        >>> from surerag import Passage, FakeReader
        >>> from surerag.entailment import ExactEntailer
        >>> def reply(prompt):
        ...     if prompt.startswith("Rewrite"):
        ...         return "Velm is where Ada was born."
        ...     return "Velm" if "Ada was born in Velm" in prompt else "Orun"
        >>> dense = DenseEvaluator(FakeReader(reply), ExactEntailer(), mask=True)
        >>> result = dense.run("Where was Ada born?", [Passage("Ada was born in Velm.", id="a")])
        >>> result.answers, round(result.score, 4), result.labels
        (('Velm', 'Orun'), 0.6931, ('necessary',))
    """

    def _connected(self) -> Services:
        services = Services(reader=self.reader, entailer=self._judge())  # type: ignore[arg-type]  # completed by Services
        services.require("DenseEvaluator", "reader")
        return services

    def worst_case_calls(self, passages: int) -> int:
        """Calls of reader and entailer that one question can cost: k² + 3 k + 1, with ``mask`` k² + 6 k + 1.

        Args:
            passages: Chunks of the context, k.

        Example:
            >>> from surerag import FakeReader
            >>> dense = DenseEvaluator(FakeReader())
            >>> dense.worst_case_calls(5), dense.with_options(mask=True).worst_case_calls(5)
            (41, 56)
        """
        most = passages**2 + (6 if self.mask else 3) * passages + 1
        return most if self.max_calls is None else min(most, self.max_calls)

    def program(self, question: str, passages: Sequence[Passage]) -> Program[DenseResult]:
        """Return the method at work on one question, for a driver of your own.

        Args:
            question: Not empty.
            passages: The context; one or more.

        Raises:
            InputError: If the question is empty, or there is no context.
            ServiceError: If a model fails.
        """
        return dense(question, passages, self)

    run, arun = sync(program), asynchronous(program)


@dataclass(frozen=True)
class SemanticChunker(Component[str, list[SemanticChunk]], SemanticChunkerOptions):
    """Cut texts where neighbouring sentences are unlike, and never above a maximum (DENSE-RAG, Algorithm 2).

    Attributes:
        encoder: Vectors of sentences.
        count_tokens: Counts the tokens of a text, such as the ``count_tokens`` of a reader; None estimates
            by the text's scripts.

    Raises:
        ConfigurationError: If an option is out of bounds.
        MissingServiceError: If there is no encoder.

    Example:
        >>> from surerag.encoders import HashingEncoder
        >>> chunker = SemanticChunker(HashingEncoder(), similarity_threshold=0.3)
        >>> text = "Ada was born in Velm. Ada left Velm in spring. Tin melts easily."
        >>> [(chunk.text, chunk.start) for chunk in chunker.run(text)]
        [('Ada was born in Velm. Ada left Velm in spring.', 0), ('Tin melts easily.', 47)]
    """

    encoder: Encoder = field(repr=False)
    count_tokens: Callable[[str], int] | None = field(default=None, repr=False)

    def _connected(self) -> Services:
        services = Services(encoder=self.encoder)
        services.require("SemanticChunker", "encoder")
        return services

    def sentences(self, text: str) -> list[Span]:
        """Return the sentences of a text, by the rules of its language."""
        return [Span(start, end) for _, start, end in split_sentences(text, self.language)]

    def tokens(self, text: str) -> int:
        """Return the length of a text."""
        return super().tokens(text) if self.count_tokens is None else self.count_tokens(text)

    def program(self, text: str) -> Program[list[SemanticChunk]]:
        """Return the method at work on one text, for a driver of your own.

        The chunks are verbatim and in order, with offsets in characters.

        Args:
            text: Any text; one without words has no chunks.

        Raises:
            InputError: If a single character has more tokens than ``chunk_size``.
            ServiceError: If the encoder fails.
        """
        [chunks] = yield from adaptive_chunks([text], self)
        return chunks

    run, arun = sync(program), asynchronous(program)

    def worst_case_calls(self, passages: int = 0) -> int:
        """Calls of reader and entailer that it costs: none, whatever it cuts."""
        return 0

    def joint_program(self, texts: Sequence[str]) -> Program[list[list[SemanticChunk]]]:
        """Return the method at work on several texts, whose sentences the encoder is asked for together."""
        return adaptive_chunks(texts, self)

    def passages(self, documents: Sequence[Passage]) -> list[Passage]:
        """Cut documents into passages that know where they come from (``document``, ``start``, ``end``)."""
        return drivers.run(chunk_passages(documents, self), self.services, on_event=self.on_event)

    async def apassages(self, documents: Sequence[Passage]) -> list[Passage]:
        """Like :meth:`passages`, without blocking the event loop."""
        return await drivers.arun(chunk_passages(documents, self), self.services, on_event=self.on_event)

    def with_quantile(self, texts: Sequence[str], quantile: float = 0.5) -> Self:
        """Return a copy with the similarity that this share of the texts' neighbouring sentences lies below.

        Raises:
            ConfigurationError: If ``quantile`` is not in [0, 1].
            InputError: If no text has two sentences.
        """
        found = drivers.run(quantile_similarity(texts, self, quantile), self.services)
        return self.with_options(similarity_threshold=found)


class Candidates(NamedTuple):
    """A question, what was retrieved for it, and the documents behind that, where they are at hand."""

    question: str
    passages: Sequence[Passage]
    documents: Documents = ()


@dataclass(frozen=True)
class DenseRefiner(
    Measuring[Candidates | tuple[str, Sequence[Passage]], DenseRefinerResult], DenseRefinerOptions
):
    """Measure whether the reader understands its context, and mend it until it does (DENSE-RAG, section 5).

    Chunks whose rephrasing changes the answer, and which the answer does not need, leave; what is most like
    the ones that it does need comes. The best context found is returned with its answer.

    Attributes:
        reader: The model that rephrases, answers and judges its context.
        entailer: Says whether answers mean the same: a classifier (``NLIEntailer``), which is fast, or a
            reader that is asked in words. None asks the reader itself, as in the paper.
        encoder: Vectors for likeness; None takes the chunker's. Not needed where passages carry vectors of
            their own, nor with ``remove_only``.
        retriever: Where to ask for ``more`` passages when no candidate is left.
        chunker: Cuts the documents behind uncertain chunks anew, where documents are given.
        cache: What is known already; give one to several components, and a chunk is rephrased once for all.

    Raises:
        ConfigurationError: If an option is out of bounds, or a service is of the wrong kind.
        MissingServiceError: If there is no reader.
        PromptError: If a prompt is unknown, its slots do not fit, or nobody is asked with it.

    Example:
        >>> from surerag import Passage, FakeReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = FakeReader(lambda prompt: "It rained." if prompt.startswith("Rewrite") else "Velm")
        >>> refiner = DenseRefiner(reader, ExactEntailer(), top_n=2)
        >>> found = [Passage("Ada was born in Velm.", id="a"), Passage("Bo.", id="b"), Passage("Cy.", id="c")]
        >>> result = refiner.run("Where was Ada born?", found)
        >>> result.answer, result.score, result.stopped, [passage.id for passage in result.passages]
        ('Velm', 0.0, 'certain', ['a', 'b'])
    """

    encoder: Encoder | None = field(default=None, repr=False)
    retriever: Retriever | None = field(default=None, repr=False)
    chunker: SemanticChunker | None = field(default=None, repr=False)

    def _connected(self) -> Services:
        services = Services(
            reader=self.reader,  # type: ignore[arg-type]  # completed by Services
            entailer=self._judge(),
            encoder=self._encoder(),
            retriever=self.retriever,
        )
        services.require("DenseRefiner", "reader")
        return services

    def _encoder(self) -> Encoder | None:
        if self.chunker is None:
            return self.encoder
        if self.encoder is not None and self.encoder.name != self.chunker.encoder.name:
            raise ConfigurationError(
                f"the chunker's encoder is {self.chunker.encoder.name}, the refiner's {self.encoder.name}",
                hint="give both the same encoder, or the chunker's alone",
            )
        return self.chunker.encoder

    def worst_case_calls(self, passages: int | None = None) -> int:
        """Calls of reader and entailer that one question can cost: r (m² + 6 m + 2) − 3 m.

        r is ``rounds``, m the larger of ``top_n`` and ``max_chunks``, or the number of passages where that is
        less and no others can come; ``max_calls`` bounds it further.

        Args:
            passages: How many are given; None for any number.

        Example:
            >>> from surerag import FakeReader
            >>> refiner = DenseRefiner(FakeReader())
            >>> refiner.worst_case_calls(), refiner.worst_case_calls(3), refiner.worst_case_calls(30)
            (213, 107, 213)
        """
        others = bool(self.reserve) or self.chunker is not None
        chunks = self.largest if passages is None or others else min(self.largest, passages)
        most = worst_case_calls(chunks, self.rounds)
        return most if self.max_calls is None else min(most, self.max_calls)

    @property
    def reserve(self) -> int:
        """Passages to ask the retriever for; 0 where there is none."""
        return 0 if self.retriever is None else self.more

    @property
    def chunking(self) -> SemanticChunkerOptions | None:
        """How to cut the documents behind uncertain chunks anew; None leaves chunks as they are."""
        return self.chunker

    def program(
        self, question: str, passages: Sequence[Passage], documents: Documents = ()
    ) -> Program[DenseRefinerResult]:
        """Return the method at work on one question, for a driver of your own.

        Args:
            question: Not empty.
            passages: Best first: the first ``top_n`` are the context, the others candidates.
            documents: The documents behind them, whole; cut anew if there is a ``chunker`` and the question
                is uncertain. ``"ask"`` where the service ``documents`` is to be asked for them, only then.

        Raises:
            InputError: If the question is empty.
            MissingServiceError: If vectors are needed and there is no encoder.
        """
        return refine_context(question, passages, self, documents)

    run, arun = sync(program), asynchronous(program)
