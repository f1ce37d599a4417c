"""DynQR's inference as a public class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from surerag.component import Component, asynchronous, sync
from surerag.decisions.features import SCORES
from surerag.decisions.judging import IsCorrect, check_sample, judged_rows
from surerag.decisions.policy import Identity, Policy, fingerprint
from surerag.decisions.rows import DecisionRow
from surerag.effects import Program
from surerag.errors import CapabilityError, ConfigurationError, MissingServiceError
from surerag.measures import exact_match
from surerag.messages import Message
from surerag.methods.dynqr.algorithm import rewrite_when_uncertain
from surerag.methods.dynqr.metrics import FEATURES, SAMPLED, Metric, features_of, metric_name
from surerag.methods.dynqr.options import DynQROptions
from surerag.methods.dynqr.result import DynQRResult
from surerag.methods.meanings import meaning_name, warn_if_never_disagreed
from surerag.readers.protocol import Reader
from surerag.refusal import check_refusal
from surerag.services import Entailer, Retriever, Services


@dataclass(frozen=True)
class UncertaintyRewriter(Component[str | tuple[str, Sequence[Message]], DynQRResult], DynQROptions):
    """Answer; rewrite the query only when the reader is uncertain; keep the less uncertain answer (DynQR).

    Where many questions are asked together, one that belongs to a conversation is a pair of question and
    history.

    Attributes:
        reader: The model that answers; it has to report what the metric needs.
        retriever: Finds passages.
        rewriter: The model that rewrites: one that was trained to, or any other, which is then prompted to.
            The reader itself if left out.
        entailer: Says which sampled answers mean the same, for the metric ``"disagreement"`` with
            ``same_meaning="entailment"``.

    Raises:
        ConfigurationError: If an option is out of range, the metric has no default threshold, or an entailer
            is there that nobody asks.
        MissingServiceError: If reader or retriever is not there, or an entailer that is needed.
        CapabilityError: If the reader cannot give what the metric needs.

    Example:
        >>> from surerag import Passage, FakeReader, UncertaintyRewriter
        >>> from surerag.readers.fake import reply
        >>> class Corpus:
        ...     def retrieve(self, query, k):
        ...         return [Passage("Ada was born in Velm." if "Ada" in query else "The painter left early.")]
        >>> reader = FakeReader([reply("Orun", logprobs=-1.5), "Where was Ada born?",
        ...                          reply("Velm", logprobs=-0.1)])
        >>> result = UncertaintyRewriter(reader, Corpus()).run("Where was the painter born?")
        >>> result.answer, result.query, round(result.original.uncertainty, 2), round(result.uncertainty, 2)
        ('Velm', 'Where was Ada born?', 4.48, 1.11)
    """

    reader: Reader = field(repr=False)
    retriever: Retriever = field(repr=False)
    rewriter: Reader | None = field(default=None, repr=False)
    entailer: Entailer | None = field(default=None, repr=False)

    def _connected(self) -> Services:
        check_refusal(self.refusal)
        services = Services(
            reader=self.reader,  # type: ignore[arg-type]  # completed by Services
            retriever=self.retriever,
            rewriter=self.rewriter,  # type: ignore[arg-type]  # likewise
            entailer=self.entailer,
        )
        services.require("UncertaintyRewriter", "reader", "retriever")
        require_metric(self.metric, self.reader)
        if self.benefit is not None:
            for feature in self.benefit.features:
                if feature in FEATURES:
                    require_metric(feature, self.reader)
                elif feature not in ("words", *SCORES):
                    raise ConfigurationError(
                        f"the benefit model reads {feature!r}, which the first answer does not tell",
                        hint=f"fit it to words, {', '.join((*FEATURES, *SCORES))}",
                    )
        self._require_meanings()
        self.boundary()  # raises where there is none
        if self.max_calls is not None and self.max_calls < self.calls_of_an_answer:
            raise ConfigurationError(
                f"max_calls={self.max_calls} does not cover the first answer and its uncertainty, which may "
                f"cost {self.calls_of_an_answer}",
                hint=f"raise max_calls to {self.calls_of_an_answer} at least, or lower n_samples",
            )
        if isinstance(self.threshold, Policy):
            self.threshold.check(self.identity)
        return services

    def _require_meanings(self) -> None:
        """Refuse an entailer that is missing, or that nobody asks, and samples that cannot disagree."""
        named = 'metric="disagreement", same_meaning="entailment"'
        disagreement = self.metric == "disagreement"
        asked = disagreement and self.same_meaning == "entailment"
        if asked and self.entailer is None:
            raise MissingServiceError(
                f"{named} needs an entailer", hint="pass entailer=NLIEntailer(), or JudgeEntailer(reader)"
            )
        if not asked and self.entailer is not None:
            raise ConfigurationError(
                f"the metric {metric_name(self.metric)} asks no entailer",
                hint=f"pass {named}; or leave the entailer out",
            )
        if disagreement and self.n_samples < 2:
            raise ConfigurationError(
                f"one sample cannot disagree; n_samples must be at least 2, got {self.n_samples}"
            )

    def worst_case_calls(self, passages: int = 0) -> int:
        """Calls of reader, rewriter and entailer that one question can cost: a + n (1 + a).

        n is ``candidates``, a what an answer and its uncertainty cost: 1, with a metric that samples N
        answers 1 + N, and where an entailer says which of them mean the same 1 + N².

        Args:
            passages: Of no matter here.

        Example:
            >>> from surerag import FakeReader
            >>> class Corpus:
            ...     def retrieve(self, query, k):
            ...         return []
            >>> rewriter = UncertaintyRewriter(FakeReader(), Corpus())
            >>> rewriter.worst_case_calls(), rewriter.with_options(metric="disagreement").worst_case_calls()
            (3, 23)
        """
        each = self.calls_of_an_answer
        most = each + self.candidates * (1 + each)
        return most if self.max_calls is None else min(most, self.max_calls)

    @property
    def signal(self) -> str:
        """What is compared with the threshold; a policy belongs to it."""
        top_n = self.rules.top_n
        shown = "all" if top_n is None else top_n
        if self.benefit is not None:
            read = ", ".join(self.benefit.features)
            return f"benefit by {read}, model {fingerprint(self.benefit.to_dict())}, from {shown} passages"
        drawn = f" of {self.n_samples} samples" if self.metric in SAMPLED else ""
        if self.metric == "disagreement":
            drawn += f", {meaning_name(self.same_meaning)}"
        return f"{metric_name(self.metric)}{drawn}, answer from {shown} passages"

    def program(self, question: str, history: Sequence[Message] = ()) -> Program[DynQRResult]:
        """Return the method at work on one question, for a driver of your own.

        Args:
            question: Not empty.
            history: The conversation before it, oldest turn first. Reader and rewriter see it, and the
                rewrite is to stand alone.

        Raises:
            InputError: If the question is empty.
            ServiceError: If the first retrieval or the first answer fails.
        """
        return rewrite_when_uncertain(question, self, history)

    run, arun = sync(program), asynchronous(program)

    @property
    def identity(self) -> Identity:
        """What a policy belongs to: the reader, the signal, and what else changes the answers."""
        apart = ("threshold", "benefit", "metric", "n_samples", "same_meaning", "on_failure")
        settings = {name: value for name, value in self.chosen().items() if name not in apart}
        rewriter = "" if self.rewriter is None else self.rewriter.name
        return Identity(self.reader.name, self.signal, fingerprint({**settings, "rewriter": rewriter}))

    def rows(
        self,
        questions: Sequence[str],
        golds: Sequence[Sequence[str]] | None = None,
        *,
        is_correct: IsCorrect = exact_match,
    ) -> list[DecisionRow]:
        """Answer a sample with and without rewriting; the threshold that is set does not matter.

        Without gold answers each question is answered once. With them each is rewritten as well, with
        post-verification as set here.

        Args:
            questions: The sample.
            golds: Gold answers of each question; without them the rows are good for a budget only.
            is_correct: Whether an answer matches one of the gold answers, or a score in [0, 1].

        Returns:
            Rows for :func:`surerag.calibrate`, a question each. Beside the signal that is compared they hold
            what the first answer's trace and the retriever's scores tell: features for
            :func:`surerag.fit_benefit`.

        Warns:
            CalibrationWarning: If sampled answers never disagree.

        Raises:
            InputError: If there are no questions, or gold answers of another number.
        """
        check_sample(questions, golds)
        always = math.inf if golds is None else -math.inf
        results = self.with_options(threshold=always).run_many(questions)
        features = [features_of(result.original.generation, result.original.passages) for result in results]
        # What the gate compared: the first step's signal, or the metric where the answer said nothing.
        signals = [
            result.original.uncertainty
            if result.steps[0].uncertainty is None
            else result.steps[0].uncertainty
            for result in results
        ]
        if self.metric == "disagreement" and self.benefit is None:
            warn_if_never_disagreed(signals)
        return judged_rows(
            questions,
            [{**told, self.signal: value} for told, value in zip(features, signals, strict=True)],
            golds,
            [result.original.answer for result in results],
            [result.answer for result in results],
            is_correct,
        )


def require_metric(metric: Metric, reader: Reader) -> None:
    """Refuse a reader that cannot give what a metric needs.

    Raises:
        CapabilityError: Naming both.
    """
    if callable(metric) or metric == "disagreement":
        return
    can = reader.capabilities
    lacking = {
        "token_entropy": None if can.entropy is not None else "entropies",
        "energy": None if can.energy else "energies",
    }.get(metric, None if can.logprobs else "log-probabilities")
    if lacking is not None:
        raise CapabilityError(
            f"the metric {metric} needs {lacking}, and {reader.name} returns none",
            hint='pass metric="disagreement", which needs text only, or a function of your own; or use a '
            "local model (TransformersReader), or a server that returns log-probabilities",
        )
