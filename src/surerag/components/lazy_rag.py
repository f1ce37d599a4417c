"""L-RAG as a public class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from surerag import drivers
from surerag.calibration import Calibration
from surerag.drivers.progress import Progress
from surerag.drivers.session import Listener
from surerag.drivers.streaming import AnswerStream, AsyncAnswerStream
from surerag.effects import Program
from surerag.errors import ConfigurationError, InputError
from surerag.methods.gating import Aggregate, EntropyGate, Estimate
from surerag.methods.lazy_rag import LazyRAGPrompts, LazyRAGResult, LazyRAGSettings, Mode, lazy_rag
from surerag.prompts import PromptTemplate
from surerag.readers.protocol import Reader
from surerag.services import Retriever, Services
from surerag.types import Passage, Sampling, Template


class FixedSummary:
    """The summary tier of a single document: always the same text."""

    def __init__(self, text: str) -> None:
        if not text.strip():
            raise InputError(
                "the summary is empty", hint="give the document's first sentences, or its abstract"
            )
        self._passages = [Passage(text, id="summary")]

    def retrieve(self, query: str, k: int) -> Sequence[Passage]:  # the protocol's signature
        """Return the one summary."""
        return self._passages


@dataclass(frozen=True)
class LazyRAG:
    """Answer from a summary; retrieve only when the reader's entropy says that it must (L-RAG).

    Attributes:
        reader: The model that answers; mode ``"lazy"`` needs one that reports entropies.
        retriever: Tier 2: finds passages. Modes ``"lazy"``, ``"standard"`` and ``"strong"`` need it.
        summaries: Tier 1: an index of document summaries, or the summary of the one document as text.
        mode: ``"lazy"``, or one of the paper's baselines: ``"none"``, ``"standard"``, ``"strong"``,
            ``"oracle"``.
        tau: Retrieve iff the mean entropy exceeds this, in nats. A calibration (see
            :func:`surerag.calibration.calibrate_lazy_rag`) may be given in place of a number; it warns
            when it was made for another reader or gate.
        gate_tokens: Tokens of the first pass that the gate looks at. The paper does not state it.
        aggregate: ``"mean"`` (Eq. 3), ``"max"`` (any step; it waits for the whole answer) or ``"first"``.
        estimate: Which point of an entropy interval to decide on, for readers that know only top-k
            log-probabilities.
        k: Passages to retrieve.
        m: Document summaries to join for the first pass.
        max_tokens: Length of an answer, at most.
        stop: Texts that end an answer.
        prompts: The three prompts.

    Raises:
        ConfigurationError: If a setting is out of range.
        MissingServiceError: If the mode needs a service that is not there.
        CapabilityError: If the gate needs entropies that the reader cannot give.

    Example:
        >>> from surerag import LazyRAG, ScriptedReader
        >>> rag = LazyRAG(ScriptedReader(["Velm"], entropy=0.1), summaries="Ada was born in Velm.",
        ...               retriever=FixedSummary("never asked"))
        >>> result = rag.run("Where was Ada born?")
        >>> result.answer, result.decision.retrieve
        ('Velm', False)
    """

    reader: Reader = field(repr=False)
    retriever: Retriever | None = field(default=None, repr=False)
    summaries: Retriever | str | None = field(default=None, repr=False)
    mode: Mode = "lazy"
    tau: float | Calibration = 1.0
    gate_tokens: int = 8
    aggregate: Aggregate = "mean"
    estimate: Estimate = "middle"
    k: int = 3
    m: int = 3
    max_tokens: int = 64
    stop: tuple[str, ...] = ()
    prompts: LazyRAGPrompts = field(default_factory=LazyRAGPrompts, repr=False)
    _settings: LazyRAGSettings = field(init=False, repr=False, compare=False)
    _services: Services = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in ("none", "standard", "strong", "lazy", "oracle"):
            raise ConfigurationError(
                f"unknown mode {self.mode!r}", hint="choose lazy, none, standard, strong or oracle"
            )
        for name in ("k", "m"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        tau = self.tau
        if isinstance(tau, Calibration):
            tau.check(self.reader.name, self.signal)
            tau = tau.tau
            object.__setattr__(self, "tau", tau)
        gate = EntropyGate(tau, self.gate_tokens, self.aggregate, self.estimate)
        sampling = Sampling(max_tokens=self.max_tokens, stop=self.stop)
        summaries = FixedSummary(self.summaries) if isinstance(self.summaries, str) else self.summaries
        services = Services(reader=self.reader, retriever=self.retriever, summaries=summaries)  # type: ignore[arg-type]  # completed by Services
        services.require("LazyRAG", "reader")
        if self.mode in ("lazy", "standard", "strong"):
            services.require(f'LazyRAG in mode "{self.mode}"', "retriever")
        if self.mode in ("lazy", "strong"):
            services.require(f'LazyRAG in mode "{self.mode}"', "summaries")
        if self.mode == "lazy":
            services.require_entropy("LazyRAG")
        object.__setattr__(self, "_services", services)
        object.__setattr__(
            self, "_settings", LazyRAGSettings(self.mode, gate, self.k, self.m, sampling, self.prompts)
        )

    @property
    def signal(self) -> str:
        """What the gate compares with τ; a calibration belongs to it."""
        tokens = {
            "mean": f"mean entropy of {self.gate_tokens} tokens",
            "max": "largest entropy",
            "first": "first entropy",
        }
        return f"{tokens[self.aggregate]} ({self.estimate} estimate, {self.m} summaries)"

    @property
    def services(self) -> Services:
        """Who answers: what a driver of your own needs beside :meth:`program`."""
        return self._services

    def program(self, question: str, *, oracle: Sequence[Passage] | None = None) -> Program[LazyRAGResult]:
        """Return the method at work on one question, for a driver of your own."""
        return lazy_rag(question, self._settings, oracle)

    def run(
        self, question: str, *, oracle: Sequence[Passage] | None = None, on_event: Listener | None = None
    ) -> LazyRAGResult:
        """Answer one question.

        Args:
            question: Not empty.
            oracle: Gold passages, in mode ``"oracle"``.
            on_event: Called with the gate's decision and with warnings, as they happen.

        Raises:
            InputError: If the question is empty.
            ServiceError: If the reader fails, or returns no log-probabilities after all.
        """
        return drivers.run(self.program(question, oracle=oracle), self._services, on_event=on_event)

    async def arun(
        self, question: str, *, oracle: Sequence[Passage] | None = None, on_event: Listener | None = None
    ) -> LazyRAGResult:
        """Like :meth:`run`, without blocking the event loop."""
        return await drivers.arun(self.program(question, oracle=oracle), self._services, on_event=on_event)

    def run_many(
        self,
        questions: Iterable[str],
        *,
        oracle: Iterable[Sequence[Passage]] | None = None,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[LazyRAGResult]:
        """Answer many questions; a local model reads them in merged batches.

        Raises:
            Exception: The first failure, after all other questions were answered.
        """
        return drivers.run_many(
            self._programs(questions, oracle),
            self._services,
            at_once=at_once,
            on_event=on_event,
            progress=progress,
        )

    async def arun_many(
        self,
        questions: Iterable[str],
        *,
        oracle: Iterable[Sequence[Passage]] | None = None,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[LazyRAGResult]:
        """Like :meth:`run_many`, without blocking the event loop."""
        return await drivers.arun_many(
            self._programs(questions, oracle),
            self._services,
            at_once=at_once,
            on_event=on_event,
            progress=progress,
        )

    def stream(
        self, question: str, *, oracle: Sequence[Passage] | None = None, on_event: Listener | None = None
    ) -> AnswerStream[LazyRAGResult]:
        """Answer one question piece by piece.

        The gate has decided when this returns; its event is in the stream's ``events``. With
        ``aggregate="max"`` the whole first pass is held back until then.
        """
        return drivers.stream(self.program(question, oracle=oracle), self._services, on_event=on_event)

    async def astream(
        self, question: str, *, oracle: Sequence[Passage] | None = None, on_event: Listener | None = None
    ) -> AsyncAnswerStream[LazyRAGResult]:
        """Like :meth:`stream`, without blocking the event loop."""
        return await drivers.astream(self.program(question, oracle=oracle), self._services, on_event=on_event)

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings or services."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return settings and the reader's identity as plain values; no model, client or key is in it."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        prompts = {name: prompt.text for name, prompt in _prompts_of(self.prompts).items()}
        return {**plain, "stop": list(self.stop), "prompts": prompts, "reader": self.reader.name}

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        reader: Reader,
        retriever: Retriever | None = None,
        summaries: Retriever | str | None = None,
    ) -> Self:
        """Rebuild from :meth:`to_dict`, with living services injected.

        Raises:
            ConfigurationError: If there are settings that this class does not know.
        """
        values = {name: value for name, value in settings.items() if name != "reader"}
        unknown = values.keys() - {*_PLAIN, "stop", "prompts"}
        if unknown:
            raise ConfigurationError(f"unknown settings {sorted(unknown)}", hint="load what to_dict() gave")
        prompts = LazyRAGPrompts(
            **{name: PromptTemplate(name, text) for name, text in values.pop("prompts").items()}
        )
        values["stop"] = tuple(values["stop"])
        return cls(reader, retriever, summaries, prompts=prompts, **values)

    def _programs(
        self, questions: Iterable[str], oracle: Iterable[Sequence[Passage]] | None
    ) -> list[Program[LazyRAGResult]]:
        if oracle is None:
            return [self.program(question) for question in questions]
        return [self.program(question, oracle=gold) for question, gold in zip(questions, oracle, strict=True)]


_PLAIN = ("mode", "tau", "gate_tokens", "aggregate", "estimate", "k", "m", "max_tokens")


def _prompts_of(prompts: LazyRAGPrompts) -> dict[str, Template]:
    return {item.name: getattr(prompts, item.name) for item in fields(prompts)}
