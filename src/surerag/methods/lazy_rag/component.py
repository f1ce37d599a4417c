"""L-RAG as a public class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from surerag.component import Component, astreaming, asynchronous, streaming, sync
from surerag.decisions.judging import IsCorrect, check_sample, judged_rows
from surerag.decisions.policy import Identity, Policy, fingerprint
from surerag.decisions.rows import DecisionRow
from surerag.effects import Program
from surerag.errors import CapabilityError, ConfigurationError, InputError, MissingServiceError
from surerag.measures import exact_match
from surerag.messages import Passage
from surerag.methods.lazy_rag.algorithm import lazy_rag
from surerag.methods.lazy_rag.combined_gates import GateLike, as_gate
from surerag.methods.lazy_rag.gate import Gate, features_at_hand
from surerag.methods.lazy_rag.options import SETTINGS_OF, LazyRAGOptions
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.methods.lazy_rag.sample_gates import DisagreementGate
from surerag.methods.meanings import warn_if_never_disagreed
from surerag.readers.protocol import Reader
from surerag.refusal import check_refusal
from surerag.services import Entailer, Retriever, Services


class FixedSummary:
    """The summary tier of a single document: always the same text."""

    def __init__(self, text: str) -> None:
        if not text.strip():
            raise InputError(
                "the summary is empty", hint="give the document's first sentences, or its abstract"
            )
        self._passages = [Passage(text, id="summary")]

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:  # the protocol's signature
        """Return the one summary."""
        return self._passages


@dataclass(frozen=True)
class LazyRAG(Component[str | tuple[str, Sequence[Passage]], LazyRAGResult], LazyRAGOptions):
    """Answer from a summary; retrieve only when a gate says that the reader is unsure (L-RAG).

    Attributes:
        reader: The model that answers; the paper's gate needs one that reports entropies, the gate
            ``"disagreement"`` one that answers in text.
        retriever: Tier 2: finds passages. Modes ``"lazy"``, ``"standard"`` and ``"strong"`` need it.
        summaries: Tier 1: an index of document summaries, or the summary of the one document as text.
        entailer: Says which sampled answers mean the same, for a gate with ``same_meaning="entailment"``.

    Raises:
        ConfigurationError: If an option is out of bounds, or the gate has no use for it.
        MissingServiceError: If the mode or the gate needs a service that is not there.
        CapabilityError: If the gate needs entropies or log-probabilities that the reader cannot give.

    Example:
        >>> from surerag import LazyRAG, FakeReader
        >>> rag = LazyRAG(FakeReader(["Velm"], entropy=0.1), summaries="Ada was born in Velm.",
        ...               retriever=FixedSummary("never asked"))
        >>> result = rag.run("Where was Ada born?")
        >>> result.answer, result.decision.retrieve
        ('Velm', False)
    """

    reader: Reader = field(repr=False)
    retriever: Retriever | None = field(default=None, repr=False)
    summaries: Retriever | str | None = field(default=None, repr=False)
    entailer: Entailer | None = field(default=None, repr=False)

    def _connected(self) -> Services:
        check_refusal(self.refusal)
        summaries = FixedSummary(self.summaries) if isinstance(self.summaries, str) else self.summaries
        services = Services(
            reader=self.reader,  # type: ignore[arg-type]  # completed by Services
            retriever=self.retriever,
            summaries=summaries,
            entailer=self.entailer,
        )
        services.require("LazyRAG", "reader")
        if self.mode in ("lazy", "standard", "strong"):
            services.require(f'LazyRAG in mode "{self.mode}"', "retriever")
        if self.mode in ("lazy", "strong"):
            services.require(f'LazyRAG in mode "{self.mode}"', "summaries")
        gate = self.gate_in_force
        self.boundary()  # raises where there is none
        if self.mode == "lazy":
            require_look(gate, self.reader, self.entailer)
            self._require_calls(gate)
        if isinstance(self.threshold, Policy):
            self.threshold.check(self.identity)
        return services

    def _require_calls(self, gate: Gate) -> None:
        """Refuse a bound that leaves no call for the answer after the gate's own."""
        least = self.max_hops * gate.look.answers + 1
        if self.max_calls is not None and self.max_calls < least:
            raise ConfigurationError(
                f"max_calls={self.max_calls} does not cover the gate {gate.name}, which asks for "
                f"{least - 1}, and an answer after it",
                hint=f"raise max_calls to {least} at least, or let the gate sample less",
            )

    def worst_case_calls(self, passages: int = 0) -> int:
        """Calls of reader and entailer that one question can cost: what the gate looks at, and one more.

        A gate that sees the beginning of an answer asks for one, ``"disagreement"`` for ``n_samples``, and
        with ``same_meaning="entailment"`` for n (n − 1) judgements besides; all that before each hop. The
        other modes cost one call.

        Args:
            passages: Of no matter here.

        Example:
            >>> from surerag import FakeReader
            >>> rag = LazyRAG(FakeReader(), FixedSummary("…"), "Ada was born in Velm.")
            >>> rag.worst_case_calls(), rag.with_options(gate="disagreement").worst_case_calls()
            (2, 6)
        """
        look = self.gate_in_force.look
        most = 1 + (self.max_hops * (look.answers + look.judgements) if self.mode == "lazy" else 0)
        return most if self.max_calls is None else min(most, self.max_calls)

    @property
    def signal(self) -> str:
        """What the gate compares with the threshold; a policy belongs to it."""
        return f"{self.gate_in_force.signal} ({self.rules.n_summaries} summaries)"

    def program(self, question: str, oracle: Sequence[Passage] | None = None) -> Program[LazyRAGResult]:
        """Return the method at work on one question, for a driver of your own.

        Args:
            question: Not empty.
            oracle: Gold passages, in mode ``"oracle"``.

        Raises:
            InputError: If the question is empty, or gold passages are missing or out of place.
            ServiceError: If the reader fails, or returns none of the log-probabilities that it promised.
        """
        return lazy_rag(question, self, oracle)

    run, arun = sync(program), asynchronous(program)
    stream, astream = streaming(program), astreaming(program)

    @property
    def identity(self) -> Identity:
        """What a policy belongs to: the reader, the signal, and what else changes the answers."""
        changing = ("prompts", "max_tokens", "stop", "top_n")
        return Identity(
            self.reader.name, self.signal, fingerprint({name: self.chosen()[name] for name in changing})
        )

    def rows(
        self,
        questions: Sequence[str],
        golds: Sequence[Sequence[str]] | None = None,
        *,
        is_correct: IsCorrect = exact_match,
        gates: Sequence[GateLike] = (),
    ) -> list[DecisionRow]:
        """Answer a sample with and without retrieving; the threshold that is set does not matter.

        The first pass is completed for each question, and with gold answers the second one, too: two answers
        a question, or as many more as the gate samples.

        Args:
            questions: The sample.
            golds: Gold answers of each question; without them the rows are good for a budget only.
            is_correct: Whether an answer matches one of the gold answers, or a score in [0, 1].
            gates: Further gates whose signals are measured, each with its own settings and a first pass of
                its own: features for :func:`surerag.fit_benefit`, by the names of the gates' signals.

        Returns:
            Rows for :func:`surerag.calibrate`, a question each. Beside the gates' signals they hold what is
            at hand at no further call (:func:`~surerag.methods.lazy_rag.gate.features_at_hand`): how similar
            the summaries are to the question, and how long the answer is.

        Warns:
            CalibrationWarning: If sampled answers never disagree.

        Raises:
            InputError: If there are no questions, or gold answers of another number.
        """
        check_sample(questions, golds)
        first = self.with_options(mode="lazy", threshold=math.inf).run_many(questions)
        signals = _signals(first)
        if isinstance(self.gate_in_force, DisagreementGate):
            warn_if_never_disagreed(signals)
        measured = {self.signal: signals}
        for gate in map(as_gate, gates):
            apart = {name: self.OPTIONS[name].default for name in SETTINGS_OF}
            looked = self.with_options(**apart, mode="lazy", gate=gate, threshold=math.inf)
            measured[gate.signal] = _signals(looked.run_many(questions))
        second = [] if golds is None else self.with_options(mode="strong").run_many(questions)
        return judged_rows(
            questions,
            [
                {**self._at_hand(one), **dict(zip(measured, values, strict=True))}
                for one, values in zip(first, zip(*measured.values(), strict=True), strict=True)
            ],
            golds,
            [result.answer for result in first],
            [result.answer for result in second],
            is_correct,
        )

    def _at_hand(self, first: LazyRAGResult) -> dict[str, float]:
        """Return what is at hand after a first pass; a gate that samples sees no greedy answer."""
        greedy = self.gate_in_force.look.n_tokens != 0
        return features_at_hand(first.generation.trace if greedy else None, first.summaries)


def _signals(results: Sequence[LazyRAGResult]) -> list[float]:
    """Return what a gate measured; infinite for an empty first answer, which opens it at any threshold."""
    found = [result.decision.signal for result in results]
    return [math.inf if value is None else value for value in found]


def require_look(gate: Gate, reader: Reader, entailer: Entailer | None) -> None:
    """Refuse services that cannot give what a gate has to see.

    Raises:
        CapabilityError: If the reader reports less than the gate needs.
        MissingServiceError: If it needs an entailer, and there is none.
        ConfigurationError: If there is one, and the gate has no use for it.
    """
    look, can = gate.look, reader.capabilities
    lacking = {
        "none": None,
        "logprobs": None if can.logprobs else "log-probabilities",
        "entropy": None if can.entropy is not None else "entropies",
    }[look.needs]
    if lacking is not None:
        told = "returns no log-probabilities" if not can.logprobs else "lists no alternatives to its tokens"
        other = ', or gate="margin"' if can.logprobs else ""
        raise CapabilityError(
            f"the gate {gate.name} needs {lacking}, and {reader.name} {told}",
            hint=f'pass gate="disagreement", which needs text only{other}; or use a local model '
            "(TransformersReader), or a server that returns top log-probabilities",
        )
    if look.same_meaning == "entailment" and entailer is None:
        raise MissingServiceError(
            f'the gate {gate.name} with same_meaning="entailment" needs an entailer',
            hint="pass entailer=NLIEntailer(), or JudgeEntailer(reader)",
        )
    if look.same_meaning != "entailment" and entailer is not None:
        raise ConfigurationError(
            f"the gate {gate.name} asks no entailer",
            hint='pass gate="disagreement", same_meaning="entailment"; or leave the entailer out',
        )
