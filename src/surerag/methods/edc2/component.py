"""EDC²-RAG as a public class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from numpy.typing import ArrayLike

from surerag.component import Component, astreaming, asynchronous, streaming, sync
from surerag.decisions.judging import IsCorrect, check_sample, judged_rows
from surerag.decisions.policy import Identity, Policy, fingerprint
from surerag.decisions.rows import DecisionRow
from surerag.drivers import run_many
from surerag.effects import Program
from surerag.errors import ConfigurationError, InputError
from surerag.measures import exact_match
from surerag.messages import Passage
from surerag.methods.edc2.algorithm import compress_clusters
from surerag.methods.edc2.answering import answer_from
from surerag.methods.edc2.clusters import most_clusters
from surerag.methods.edc2.evidence import answer_by_consensus, choose_answer, judge_statement
from surerag.methods.edc2.options import EDC2Options
from surerag.methods.edc2.result import Choice, Consensus, EDC2Result, Judgement
from surerag.readers.protocol import Reader
from surerag.retrieval.sentences import split_sentences
from surerag.services import Encoder, Entailer, Services

Retrieved = tuple[str, Sequence[Passage]] | tuple[str, Sequence[Passage], ArrayLike | None]
"""A question and what was found for it, best first; with the question's vector, where it is known."""


def text_of(passage: Passage) -> str:
    """Return a passage's text: what a pipeline shows of it, unless it says otherwise."""
    return passage.text


@dataclass(frozen=True)
class ClusterCompressor(Component[Retrieved, EDC2Result], EDC2Options):
    """Put similar passages together, and compress each cluster for the question (EDC²-RAG).

    Attributes:
        reader: The model that compresses.
        encoder: Vectors for clustering; not needed where passages carry theirs and the caller has the
            query's, nor for ``clustering="single"`` or ``"random"``.
        entailer: For ``guard="entailment"``.
        count_tokens: Counts the tokens of a text; None takes the reader's own count, which is an estimate
            by the text's scripts where it has no tokenizer.
        show: The text of a passage as the pipeline will show it, for counting.
        own: The text of a passage without what a pipeline puts around it, which ``provenance`` counts in.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds.
        MissingServiceError: If there is no reader, or no entailer for the guard that asks one.

    Example:
        >>> from surerag import ClusterCompressor, Passage, FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = FakeReader(["Ada was born in Velm."])
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
    own: Callable[[Passage], str] = field(default=text_of, repr=False)

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

    def rows(
        self,
        questions: Sequence[str],
        retrieved: Sequence[Sequence[Passage]],
        golds: Sequence[Sequence[str]] | None = None,
        *,
        is_correct: IsCorrect = exact_match,
        max_tokens: int = 64,
    ) -> list[DecisionRow]:
        """Answer a sample with and without compressing; the threshold that is set does not matter.

        Without gold answers nothing is asked. With them each question costs its compression and two answers,
        by this reader and with the prompt of standard retrieval. With a pipeline of your own, answer yourself
        and make rows of :meth:`features`.

        Args:
            questions: The sample.
            retrieved: What was found for each, best first.
            golds: Gold answers of each question; without them the rows are good for a budget only.
            is_correct: Whether an answer matches one of the gold answers, or a score in [0, 1].
            max_tokens: Length of an answer, at most.

        Returns:
            Rows for :func:`surerag.calibrate`, a question each, with all :meth:`features`. Their cost is what
            compressing takes, in tokens.

        Raises:
            InputError: If there are no questions, or passages or gold answers of another number.
        """
        check_sample(questions, golds)
        if len(retrieved) != len(questions):
            raise InputError(
                f"expected passages for each of {len(questions)} questions, got {len(retrieved)}",
                hint="pass what was found for each question, in the order of the questions",
            )
        features = [self.features(passages) for passages in retrieved]
        if self.benefit is not None:
            features = [{**told, self.signal: self.benefit.benefit(told)} for told in features]
        if golds is None:
            return judged_rows(questions, features)
        always = self.with_options(threshold=None, benefit=None)
        compressed = always.run_many(list(zip(questions, retrieved, strict=True)))
        shown = [*retrieved, *(result.passages for result in compressed)]
        answers = run_many(
            [
                answer_from(question, passages, max_tokens)
                for question, passages in zip([*questions, *questions], shown, strict=True)
            ],
            self.services,
        )
        n = len(questions)
        rows = judged_rows(questions, features, golds, answers[:n], answers[n:], is_correct)
        costs = [float(result.prompt_tokens + result.completion_tokens) for result in compressed]
        return [replace(row, cost=cost) for row, cost in zip(rows, costs, strict=True)]

    def program(
        self, query: str, passages: Sequence[Passage], query_vector: ArrayLike | None = None
    ) -> Program[EDC2Result]:
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

    def answer_program(
        self, question: str, passages: Sequence[Passage], query_vector: ArrayLike | None = None
    ) -> Program[Consensus]:
        """Return the answering of appendix C.2 at work, for a driver of your own.

        Each cluster answers with evidence, in whatever ``mode`` this is set to; then comes a consensus of
        these answers. A stream is that of the last reply, whose reasons come first:
        :class:`surerag.SelectedPieces` lets the answer alone through.

        Args:
            question: Not empty.
            passages: Best first. Where all carry embeddings, these are used.
            query_vector: The question's vector, by the model that made the passages'.

        Raises:
            InputError: If the question is empty.
        """
        return answer_by_consensus(question, passages, self, query_vector)

    answer, aanswer = sync(answer_program), asynchronous(answer_program)
    stream_answer, astream_answer = streaming(answer_program), astreaming(answer_program)

    def judge_program(
        self, statement: str, passages: Sequence[Passage], subject: str | None = None
    ) -> Program[Judgement]:
        """Return the judging of section 6.2 at work, for a driver of your own.

        The statement is judged by evidence that was compressed for it, in whatever ``mode`` this is set to:
        does it contain factual errors?

        Args:
            statement: Not empty.
            passages: Best first.
            subject: Whom or what it is about; None is the option ``subject``.

        Raises:
            InputError: If the statement is empty.
        """
        return judge_statement(
            statement, passages, self if subject is None else self.with_options(subject=subject)
        )

    judge, ajudge = sync(judge_program), asynchronous(judge_program)

    def choose_program(
        self,
        question: str,
        answers: tuple[str, str],
        passages: Sequence[Passage],
        *,
        both_orders: bool = False,
    ) -> Program[Choice]:
        """Return the choice between two answers at work (HaluEval in section 6.2), for a driver of your own.

        Args:
            question: Not empty; the evidence is compressed for it.
            answers: Two answers.
            passages: Best first.
            both_orders: Whether to ask with the answers in either order, which costs a call more; where the
                replies disagree, none is chosen.

        Raises:
            InputError: If the question is empty.
        """
        return choose_answer(question, answers, passages, self, both_orders=both_orders)

    choose, achoose = sync(choose_program), asynchronous(choose_program)

    def worst_case_calls(self, passages: int) -> int:
        """Calls of the reader, and with ``guard="entailment"`` of the entailer, that one question can cost.

        A round asks about each of c clusters once, and about each alone where asking about all together
        failed: c + c calls, or c where c is 1 or ``on_failure`` is ``"raise"``. Each of ``bridging`` rounds
        more asks again about those that yielded nothing. The guard asks about each sentence, of which a
        compression has ``max_tokens`` at most, and each source: ``max_tokens`` × passages pairs a round.
        :meth:`answer` costs two calls more (one with ``consensus="majority"``), :meth:`judge` one,
        :meth:`choose` one or two; ``max_calls`` bounds all of it.

        Args:
            passages: How many are given.

        Example:
            >>> from surerag import FakeReader
            >>> compressor = ClusterCompressor(FakeReader(), on_failure="raise")
            >>> compressor.worst_case_calls(20), compressor.with_options(max_calls=2).worst_case_calls(20)
            (3, 2)
        """
        clusters = most_clusters(passages, self)
        rounds = [max(clusters - max(number - 1, 0), 0) for number in range(1 + self.bridging)]
        asked = sum(n if n == 1 or self.on_failure == "raise" else 2 * n for n in rounds)
        pairs = self.max_tokens * passages * len(rounds) if self.rules.guard == "entailment" else 0
        return asked + pairs if self.max_calls is None else min(asked + pairs, self.max_calls)

    def measure(self, passage: Passage) -> int:
        """Return the tokens of a passage, as the pipeline will show it."""
        count = self.reader_counts if self.count_tokens is None else self.count_tokens
        return count(self.show(passage))

    def own_text(self, passage: Passage) -> str:
        """Return a passage's own text: what offsets count in."""
        return self.own(passage)

    def reader_counts(self, text: str) -> int:
        """Return how many tokens a text has for the reader."""
        return 0 if self.services.reader is None else self.services.reader.count_tokens(text)

    def sentences(self, text: str) -> list[str]:
        """Return the sentences of a text."""
        return [sentence.text for sentence in split_sentences(text)]
