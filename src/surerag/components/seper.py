"""SePer as a public class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from surerag import drivers
from surerag.drivers.progress import Progress
from surerag.drivers.session import Listener
from surerag.effects import Program
from surerag.measures.seper import Golds, Weights
from surerag.methods.seper import delta_seper, passage_utilities
from surerag.methods.seper_types import (
    Adaptive,
    Direction,
    Kernel,
    Likelihood,
    Match,
    SePerPrompts,
    SePerResult,
    SePerSettings,
    UtilityResult,
)
from surerag.readers.protocol import Reader
from surerag.services import Entailer, Services
from surerag.types import Passage, Sampling


class Case(NamedTuple):
    """A question with its gold answers, and what was retrieved for it."""

    question: str
    golds: Sequence[str]
    passages: Sequence[Passage]


@dataclass(frozen=True)
class SePer:
    """What retrieval was worth to a reader: its belief in the gold answers with context, minus without.

    Attributes:
        reader: The model whose belief is measured. Without log-probabilities, answers are weighted by
            how often they were sampled; the result says so, and a warning is logged.
        entailer: Judges whether answers mean the same.
        n_samples: Samples for each context, N; the paper's Figure 3 finds 10 within 1 % of 20.
        kernel: ``"soft"`` or ``"hard"`` (Eq. 8 and 9).
        weights: ``"distinct"``, ``"official"`` (the authors' code) or ``"frequency"``.
        likelihood: Of an answer: by the ``"mean"`` of its tokens' log-probabilities, or their ``"sum"``.
        direction: Soft kernel: the larger entailment of ``"both"`` directions, or ``"forward"`` only.
        question_in_entailment: Whether the entailer sees the question, too.
        match: Hard kernel: ``"loose"`` or ``"strict"`` match with a gold answer.
        threshold: Entailment holds from this probability on; None where it is the likeliest label.
        golds: Over several gold answers: ``"max"``, ``"mean"`` (Eq. 10) or ``"any"``.
        temperature: Of the samples.
        max_tokens: Length of an answer, at most.
        seed: Of the samples.
        prompts: The two prompts.
        adaptive: Draws samples in steps, and stops before ``n_samples`` once the interval of ΔSePer is narrow
            enough; see :class:`surerag.methods.seper_types.Adaptive`. Its widths call for more than ten
            samples: give ``n_samples=40``, say.

    Raises:
        ConfigurationError: If a setting is out of range, or a service is of the wrong kind.

    Example:
        >>> from surerag import Passage, ScriptedReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = ScriptedReader(lambda prompt: "Velm" if "Documents" in prompt else "Orun")
        >>> seper = SePer(reader, ExactEntailer())
        >>> result = seper.run("Where?", ["Velm"], [Passage("Ada was born in Velm.")])
        >>> result.before.seper, result.after.seper, result.delta
        (0.0, 1.0, 1.0)
    """

    reader: Reader = field(repr=False)
    entailer: Entailer = field(repr=False)
    n_samples: int = 10
    kernel: Kernel = "soft"
    weights: Weights = "distinct"
    likelihood: Likelihood = "mean"
    direction: Direction = "both"
    question_in_entailment: bool = True
    match: Match = "loose"
    threshold: float | None = None
    golds: Golds = "max"
    temperature: float = 1.0
    max_tokens: int = 64
    seed: int = 0
    prompts: SePerPrompts = field(default_factory=SePerPrompts, repr=False)
    adaptive: Adaptive | None = None
    _settings: SePerSettings = field(init=False, repr=False, compare=False)
    _services: Services = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settings = SePerSettings(
            kernel=self.kernel,
            weights=self.weights,
            likelihood=self.likelihood,
            direction=self.direction,
            question_in_entailment=self.question_in_entailment,
            match=self.match,
            threshold=self.threshold,
            golds=self.golds,
            sampling=Sampling(
                n=self.n_samples, temperature=self.temperature, max_tokens=self.max_tokens, seed=self.seed
            ),
            prompts=self.prompts,
            adaptive=self.adaptive,
        )
        services = Services(reader=self.reader, entailer=self.entailer)  # type: ignore[arg-type]  # completed by Services
        services.require("SePer", "reader", "entailer")
        object.__setattr__(self, "_settings", settings)
        object.__setattr__(self, "_services", services)

    @property
    def services(self) -> Services:
        """Who answers: what a driver of your own needs beside :meth:`program`."""
        return self._services

    def program(
        self, question: str, golds: Sequence[str], passages: Sequence[Passage]
    ) -> Program[SePerResult]:
        """Return the method at work on one case, for a driver of your own."""
        return delta_seper(question, golds, passages, self._settings)

    def run(
        self,
        question: str,
        golds: Sequence[str],
        passages: Sequence[Passage],
        *,
        on_event: Listener | None = None,
    ) -> SePerResult:
        """Measure what passages were worth for one question.

        Args:
            question: Not empty.
            golds: Gold answers, at least one.
            passages: What was retrieved, at least one.
            on_event: Called with warnings as they happen.

        Raises:
            InputError: If one of them is missing or empty.
            ServiceError: If the reader or the entailer fails.
        """
        program = self.program(question, golds, passages)
        return drivers.run(program, self._services, on_event=on_event)

    async def arun(
        self,
        question: str,
        golds: Sequence[str],
        passages: Sequence[Passage],
        *,
        on_event: Listener | None = None,
    ) -> SePerResult:
        """Like :meth:`run`, without blocking the event loop."""
        program = self.program(question, golds, passages)
        return await drivers.arun(program, self._services, on_event=on_event)

    def run_many(
        self,
        cases: Iterable[Case],
        *,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[SePerResult]:
        """Measure many cases; local models read and judge them in merged batches.

        Raises:
            Exception: The first failure, after all other cases were measured.
        """
        programs = [self.program(*case) for case in cases]
        return drivers.run_many(
            programs, self._services, at_once=at_once, on_event=on_event, progress=progress
        )

    async def arun_many(
        self,
        cases: Iterable[Case],
        *,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[SePerResult]:
        """Like :meth:`run_many`, without blocking the event loop."""
        programs = [self.program(*case) for case in cases]
        return await drivers.arun_many(
            programs, self._services, at_once=at_once, on_event=on_event, progress=progress
        )

    def utilities(
        self,
        question: str,
        golds: Sequence[str],
        passages: Sequence[Passage],
        *,
        on_event: Listener | None = None,
    ) -> UtilityResult:
        """Measure each passage, added alone and left out of all the others."""
        program = passage_utilities(question, golds, passages, self._settings)
        return drivers.run(program, self._services, on_event=on_event)

    async def autilities(
        self,
        question: str,
        golds: Sequence[str],
        passages: Sequence[Passage],
        *,
        on_event: Listener | None = None,
    ) -> UtilityResult:
        """Like :meth:`utilities`, without blocking the event loop."""
        program = passage_utilities(question, golds, passages, self._settings)
        return await drivers.arun(program, self._services, on_event=on_event)

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings or services."""
        return replace(self, **changes)
