"""DynQR's inference as a public class."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from surerag import drivers
from surerag.calibration import Calibration
from surerag.components.theta import calibrate_theta
from surerag.drivers.progress import Progress
from surerag.drivers.session import Listener
from surerag.effects import Program
from surerag.errors import CapabilityError, ConfigurationError
from surerag.measures import exact_match
from surerag.methods.uncertainty_metrics import Metric, metric_name
from surerag.methods.uncertainty_rewriting import rewrite_when_uncertain
from surerag.methods.uncertainty_types import (
    Documents,
    OnFailure,
    RewritePrompts,
    RewriteResult,
    RewriteSettings,
)
from surerag.prompts import PromptTemplate
from surerag.readers.protocol import Reader
from surerag.services import Retriever, Services
from surerag.types import Message, Sampling

PAPER_THETA = 1.2
"""Where Table 3 has its best thresholds for perplexity, near enough."""


@dataclass(frozen=True)
class UncertaintyRewriter:
    """Answer; rewrite the query only when the reader is uncertain; keep the less uncertain answer (DynQR).

    Attributes:
        reader: The model that answers; it has to report what the metric needs.
        retriever: Finds passages.
        rewriter: The model that rewrites: one that was trained to, or any other, which is then prompted to.
            The reader itself if left out.
        theta: Rewrite iff the uncertainty exceeds this, θ; −inf always, inf never. Left out it is 1.2, which
            only perplexity knows. A calibration (see :meth:`calibrate`) may stand in its place; it warns when
            it was made for another reader or metric.
        metric: ``"perplexity"``, ``"ln_entropy"``, ``"token_entropy"``, ``"lowest_probability"``,
            ``"energy"``, or a function of a generation, larger for a less certain one.
        documents: What the second answer is given from: ``"substitute"`` (the rewrite's documents) or
            ``"expand"`` (both lists in turn, no text twice, until there are ``k``).
        k: Passages to answer from; None leaves it to the retriever.
        candidates: Rewrites to try.
        verify: Post-verification; without it the rewrite's answer is always kept.
        samples: N, answers to sample for ``"ln_entropy"``.
        max_tokens: Length of an answer, at most.
        stop: Texts that end an answer.
        rewrite_tokens: Length of a rewrite, at most; one that is cut off is not used.
        rewrite_words: Words of a rewrite, at most, for rewriters that heed no limit.
        temperature: Of rewriting; if left out, 0 for one candidate and 1 for several.
        seed: Of everything that is sampled.
        on_failure: When rewriting, or retrieving or answering with a rewrite fails: ``"original"`` keeps the
            first answer, with a warning; ``"raise"``.
        prompts: The prompts.

    Raises:
        ConfigurationError: If a setting is out of range.
        MissingServiceError: If reader or retriever is not there.
        CapabilityError: If the reader cannot give what the metric needs.

    Example:
        >>> from surerag import Passage, ScriptedReader, UncertaintyRewriter
        >>> from surerag.readers.scripted import reply
        >>> class Corpus:
        ...     def retrieve(self, query, k):
        ...         return [Passage("Ada was born in Velm." if "Ada" in query else "The painter left early.")]
        >>> reader = ScriptedReader([reply("Orun", logprobs=-1.5), "Where was Ada born?",
        ...                          reply("Velm", logprobs=-0.1)])
        >>> result = UncertaintyRewriter(reader, Corpus()).run("Where was the painter born?")
        >>> result.answer, result.query, round(result.original.uncertainty, 2), round(result.uncertainty, 2)
        ('Velm', 'Where was Ada born?', 4.48, 1.11)
    """

    reader: Reader = field(repr=False)
    retriever: Retriever = field(repr=False)
    rewriter: Reader | None = field(default=None, repr=False)
    theta: float | Calibration | None = None
    metric: Metric = "perplexity"
    documents: Documents = "substitute"
    k: int | None = 5
    candidates: int = 1
    verify: bool = True
    samples: int = 10
    max_tokens: int = 64
    stop: tuple[str, ...] = ()
    rewrite_tokens: int = 64
    rewrite_words: int = 64
    temperature: float | None = None
    seed: int = 0
    on_failure: OnFailure = "original"
    prompts: RewritePrompts = field(default_factory=RewritePrompts, repr=False)
    _settings: RewriteSettings = field(init=False, repr=False, compare=False)
    _services: Services = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        theta = self.theta
        if theta is None:
            if self.metric != "perplexity":
                raise ConfigurationError(
                    f"the metric {metric_name(self.metric)} has no usual threshold",
                    hint="pass theta=…; calibrate() finds one, whatever theta it starts from",
                )
            theta = PAPER_THETA
        if isinstance(theta, Calibration):
            theta.check(self.reader.name, self.signal)
            theta = theta.tau
        object.__setattr__(self, "theta", theta)
        services = Services(reader=self.reader, retriever=self.retriever, rewriter=self.rewriter)  # type: ignore[arg-type]  # completed by Services
        services.require("UncertaintyRewriter", "reader", "retriever")
        self._check_metric()
        temperature = self.temperature
        if temperature is None:
            temperature = 0.0 if self.candidates == 1 else 1.0
        settings = RewriteSettings(
            theta=theta,
            metric=self.metric,
            documents=self.documents,
            k=self.k,
            verify=self.verify,
            answering=Sampling(max_tokens=self.max_tokens, stop=self.stop, seed=self.seed),
            sampling=Sampling(self.samples, 1.0, max_tokens=self.max_tokens, stop=self.stop, seed=self.seed),
            rewriting=Sampling(self.candidates, temperature, max_tokens=self.rewrite_tokens, seed=self.seed),
            max_words=self.rewrite_words,
            on_failure=self.on_failure,
            prompts=self.prompts,
        )
        object.__setattr__(self, "_services", services)
        object.__setattr__(self, "_settings", settings)

    def _check_metric(self) -> None:
        """Refuse a reader that cannot give what the metric needs."""
        if callable(self.metric):
            return
        can = self.reader.capabilities
        lacking = {
            "token_entropy": None if can.entropy is not None else "entropies",
            "energy": None if can.energy else "energies",
        }.get(self.metric, None if can.logprobs else "log-probabilities")
        if lacking is not None:
            raise CapabilityError(
                f"the metric {self.metric} needs {lacking}, and {self.reader.name} returns none",
                hint="use a local model (TransformersReader), a server that returns log-probabilities, "
                "another metric, or a function of your own",
            )

    @property
    def signal(self) -> str:
        """What is compared with θ; a calibration belongs to it."""
        drawn = f" of {self.samples} samples" if self.metric == "ln_entropy" else ""
        shown = "all" if self.k is None else self.k
        return f"{metric_name(self.metric)}{drawn}, answer from {shown} passages"

    @property
    def services(self) -> Services:
        """Who answers: what a driver of your own needs beside :meth:`program`."""
        return self._services

    def program(self, question: str, *, history: Sequence[Message] = ()) -> Program[RewriteResult]:
        """Return the method at work on one question, for a driver of your own."""
        return rewrite_when_uncertain(question, self._settings, history)

    def run(
        self, question: str, *, history: Sequence[Message] = (), on_event: Listener | None = None
    ) -> RewriteResult:
        """Answer one question.

        Args:
            question: Not empty.
            history: The conversation before it, oldest turn first. Reader and rewriter see it, and the
                rewrite is to stand alone.
            on_event: Called with decisions and warnings, as they happen.

        Raises:
            InputError: If the question is empty.
            ServiceError: If the first retrieval or the first answer fails.
        """
        return drivers.run(self.program(question, history=history), self._services, on_event=on_event)

    async def arun(
        self, question: str, *, history: Sequence[Message] = (), on_event: Listener | None = None
    ) -> RewriteResult:
        """Like :meth:`run`, without blocking the event loop."""
        program = self.program(question, history=history)
        return await drivers.arun(program, self._services, on_event=on_event)

    def run_many(
        self,
        questions: Iterable[str],
        *,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[RewriteResult]:
        """Answer many questions; local models read them, and rewrite them, in merged batches.

        Raises:
            Exception: The first failure, after all other questions were answered.
        """
        return drivers.run_many(
            [self.program(question) for question in questions],
            self._services,
            at_once=at_once,
            on_event=on_event,
            progress=progress,
        )

    async def arun_many(
        self,
        questions: Iterable[str],
        *,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[RewriteResult]:
        """Like :meth:`run_many`, without blocking the event loop."""
        return await drivers.arun_many(
            [self.program(question) for question in questions],
            self._services,
            at_once=at_once,
            on_event=on_event,
            progress=progress,
        )

    def calibrate(
        self,
        questions: Sequence[str],
        golds: Sequence[Sequence[str]] | None = None,
        *,
        budget: float | None = None,
        max_loss: float | None = None,
        is_correct: Callable[[str, Sequence[str]], bool] = exact_match,
        seed: int = 0,
    ) -> Calibration:
        """Find θ on a sample of questions, by the code that finds L-RAG's τ.

        For a budget, each question is answered once. For a bound on the loss each is rewritten as well; the
        loss is against rewriting always, with post-verification as set here.

        Args:
            questions: The sample; the paper takes 100 questions.
            golds: Gold answers of each question; needed for ``max_loss``.
            budget: Largest share of questions that may be rewritten.
            max_loss: Largest loss of accuracy against rewriting always.
            is_correct: Whether an answer matches one of the gold answers.
            seed: Of the bootstrap.

        Returns:
            A calibration to pass as ``theta``.

        Raises:
            ConfigurationError: If ``max_loss`` comes without gold answers.
            InputError: If the sample is empty.
        """
        if max_loss is not None and golds is None:
            raise ConfigurationError("max_loss needs gold answers", hint="pass golds=…, one list a question")
        always = -math.inf if max_loss is not None else math.inf
        results = self.with_settings(theta=always).run_many(questions)
        signals = [result.original.uncertainty for result in results]
        without = with_ = None
        if max_loss is not None and golds is not None:
            pairs = list(zip(results, golds, strict=True))
            without = [is_correct(result.original.answer, gold) for result, gold in pairs]
            with_ = [is_correct(result.answer, gold) for result, gold in pairs]
        return calibrate_theta(
            signals,
            budget=budget,
            max_loss=max_loss,
            correct_without=without,
            correct_with=with_,
            model=self.reader.name,
            signal=self.signal,
            seed=seed,
        )

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings or services."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return settings and the models' identities as plain values; no model, client or key is in it.

        A metric of your own goes by its name, and has to be given again to :meth:`from_dict`.
        """
        return {
            **{name: getattr(self, name) for name in PLAIN_SETTINGS},
            "metric": metric_name(self.metric),
            "stop": list(self.stop),
            "prompts": {name: prompt.text for name, prompt in _prompts_of(self.prompts).items()},
            "reader": self.reader.name,
            "rewriter": None if self.rewriter is None else self.rewriter.name,
        }

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        reader: Reader,
        retriever: Retriever,
        rewriter: Reader | None = None,
        **functions: Any,
    ) -> Self:
        """Rebuild from :meth:`to_dict`, with living services injected.

        Raises:
            ConfigurationError: If there are settings that this class does not know, or a metric of your own
                is not given again.
        """
        values = {name: value for name, value in settings.items() if name not in ("reader", "rewriter")}
        unknown = values.keys() - {*PLAIN_SETTINGS, "metric", "stop", "prompts"}
        if unknown:
            raise ConfigurationError(f"unknown settings {sorted(unknown)}", hint="load what to_dict() gave")
        values["prompts"] = RewritePrompts(
            **{name: PromptTemplate(name, text) for name, text in values["prompts"].items()}
        )
        values["stop"] = tuple(values["stop"])
        return cls(reader, retriever, rewriter, **{**values, **functions})


PLAIN_SETTINGS = (
    "theta", "documents", "k", "candidates", "verify", "samples", "max_tokens", "rewrite_tokens",
    "rewrite_words", "temperature", "seed", "on_failure",
)  # fmt: skip
"""Names of the settings that are plain values; the adapters for frameworks have fields of these names."""


def _prompts_of(prompts: RewritePrompts) -> dict[str, PromptTemplate]:
    return {item.name: getattr(prompts, item.name) for item in fields(prompts)}
