"""Iterative context refinement as a public class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from surerag import drivers
from surerag.components.adaptive_chunker import AdaptiveChunker
from surerag.components.dense import known_settings, prompt_texts, settings_of
from surerag.drivers.progress import Progress
from surerag.drivers.session import Listener
from surerag.effects import Program
from surerag.errors import ConfigurationError
from surerag.methods.context_refinement import refine_context
from surerag.methods.dense_cache import DenseCache
from surerag.methods.dense_types import DensePrompts, Half
from surerag.methods.refinement_types import (
    VARIANTS,
    Keep,
    OnFailure,
    Refill,
    RefinementResult,
    RefinementSettings,
    StopRule,
    Variant,
    worst_case_calls,
)
from surerag.readers.protocol import Reader
from surerag.services import Encoder, Entailer, Retriever, Services
from surerag.types import Passage


class Candidates(NamedTuple):
    """A question, what was retrieved for it, and the documents behind that, where they are at hand."""

    question: str
    passages: Sequence[Passage]
    documents: Sequence[Passage] = ()


@dataclass(frozen=True)
class ContextRefiner:
    """Measure whether the reader understands its context, and mend it until it does (DENSE-RAG, section 5).

    Chunks whose rephrasing changes the answer, and which the answer does not need, leave; what is most like
    the ones that it does need comes. The best context found is returned with its answer.

    Attributes:
        reader: The model that rephrases, answers and judges its context.
        entailer: Says whether answers mean the same.
        encoder: Vectors for likeness; None takes the chunker's. Not needed where passages carry vectors of
            their own, nor with ``remove_only``.
        retriever: Where to ask for ``more`` passages when no candidate is left.
        chunker: Cuts the documents behind uncertain chunks anew, where documents are given.
        k: Chunks of the first context.
        max_chunks: Chunks of a context, at most; None is 2 k. With ``max_chunks=k`` a context never grows.
        rounds: Contexts to measure, at most.
        max_calls: Calls of reader and entailer, at most; None for :meth:`worst_case_calls`.
        variant: Settings that are None are taken from here: ``"default"`` is Algorithm 3, ``"paper"`` is the
            text of section 5.2.
        stop: On a certain context that is judged sufficient (``"both"``), or on ``"either"``.
        keep: Whether a context that was judged ``"sufficient"`` gives way only to another one, or the
            ``"lowest"`` score wins.
        half: What a chunk is when entailment holds in one direction only between the answers with and
            without it.
        refill: Chunks to whose likeness new ones are taken: ``"necessary"``, or ``"certain"`` (Table 4).
        remove_only: Whether nothing is taken in (Table 4).
        self_evaluation: Whether the reader is asked if a context suffices (Table 4).
        only_uncertain: Whether a question that is certain at first keeps its answer, as in the paper.
        more: Passages to ask the retriever for, once a question.
        threshold: A context is certain up to this score, in nats.
        entailment: One answer entails another from this probability on; None where it is the likeliest label.
        max_tokens: Length of an answer, at most.
        rephrase_tokens: Length of a rephrasing, at most; one that is cut short is not used.
        on_failure: If a model fails: the best context so far, or the ``"original"`` one where there is none,
            with a warning; or ``"raise"``.
        prompts: The prompts.
        cache: What is known already; give one to several components, and a chunk is rephrased once for all.

    Raises:
        ConfigurationError: If a setting is out of range, or a service is of the wrong kind.
        MissingServiceError: If the reader or the entailer is missing.

    Example:
        >>> from surerag import Passage, ScriptedReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = ScriptedReader(lambda prompt: "It rained." if prompt.startswith("Rewrite") else "Velm")
        >>> refiner = ContextRefiner(reader, ExactEntailer(), k=2)
        >>> found = [Passage("Ada was born in Velm.", id="a"), Passage("Bo.", id="b"), Passage("Cy.", id="c")]
        >>> result = refiner.run("Where was Ada born?", found)
        >>> result.answer, result.score, result.stopped, [passage.id for passage in result.passages]
        ('Velm', 0.0, 'certain', ['a', 'b'])
    """

    reader: Reader = field(repr=False)
    entailer: Entailer = field(repr=False)
    encoder: Encoder | None = field(default=None, repr=False)
    retriever: Retriever | None = field(default=None, repr=False)
    chunker: AdaptiveChunker | None = field(default=None, repr=False)
    k: int = 5
    max_chunks: int | None = None
    rounds: int = 4
    max_calls: int | None = None
    variant: Variant = "default"
    stop: StopRule | None = None
    keep: Keep | None = None
    half: Half | None = None
    refill: Refill = "necessary"
    remove_only: bool = False
    self_evaluation: bool = True
    only_uncertain: bool = True
    more: int = 20
    threshold: float = 0.2
    entailment: float | None = None
    max_tokens: int = 64
    rephrase_tokens: int = 640
    on_failure: OnFailure = "original"
    prompts: DensePrompts = field(default_factory=DensePrompts, repr=False)
    cache: DenseCache = field(default_factory=DenseCache, repr=False, compare=False)
    _settings: RefinementSettings = field(init=False, repr=False, compare=False)
    _services: Services = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ConfigurationError(
                f"unknown variant {self.variant!r}", hint=f"choose {', '.join(VARIANTS)}"
            )
        encoder = self.encoder
        if self.chunker is not None:
            if encoder is not None and encoder.name != self.chunker.encoder.name:
                raise ConfigurationError(
                    f"the chunker's encoder is {self.chunker.encoder.name}, the refiner's {encoder.name}",
                    hint="give both the same encoder, or the chunker's alone",
                )
            encoder = self.chunker.encoder
        services = Services(
            reader=self.reader,  # type: ignore[arg-type]  # completed by Services
            entailer=self.entailer,
            encoder=encoder,
            retriever=self.retriever,
        )
        services.require("ContextRefiner", "reader", "entailer")
        chosen = dict(VARIANTS[self.variant])
        chosen.update({name: value for name in chosen if (value := getattr(self, name)) is not None})
        settings = RefinementSettings(
            dense=settings_of(self, True, chosen.pop("half")),
            k=self.k,
            max_chunks=2 * self.k if self.max_chunks is None else self.max_chunks,
            rounds=self.rounds,
            max_calls=self.max_calls,
            refill=self.refill,
            remove_only=self.remove_only,
            self_evaluation=self.self_evaluation,
            only_uncertain=self.only_uncertain,
            more=self.more if self.retriever is not None else 0,
            chunking=None if self.chunker is None else self.chunker.settings,
            on_failure=self.on_failure,
            **chosen,
        )
        object.__setattr__(self, "_services", services)
        object.__setattr__(self, "_settings", settings)

    @property
    def services(self) -> Services:
        """Who answers: what a driver of your own needs beside :meth:`program`."""
        return self._services

    @property
    def worst_case_calls(self) -> int:
        """Calls of reader and entailer that one question can cost: r (m² + 6 m + 2) − 3 m.

        r is ``rounds``, m the larger of ``k`` and ``max_chunks``; ``max_calls`` bounds it further.
        """
        most = worst_case_calls(self._settings.max_chunks, self.rounds)
        return most if self.max_calls is None else min(most, self.max_calls)

    def program(
        self, question: str, passages: Sequence[Passage], documents: Sequence[Passage] = ()
    ) -> Program[RefinementResult]:
        """Return the method at work on one question, for a driver of your own."""
        return refine_context(question, passages, self._settings, documents)

    def run(
        self,
        question: str,
        passages: Sequence[Passage],
        documents: Sequence[Passage] = (),
        *,
        on_event: Listener | None = None,
    ) -> RefinementResult:
        """Refine what was retrieved for one question.

        Args:
            question: Not empty.
            passages: Best first: the first ``k`` are the context, the others candidates.
            documents: The documents behind them, whole; cut anew if there is a ``chunker`` and the question
                is uncertain.
            on_event: Called with every round, the result and warnings, as they happen.

        Raises:
            InputError: If the question is empty.
            ConfigurationError: If ``max_calls`` does not cover the first measurement.
            MissingServiceError: If vectors are needed and there is no encoder.
        """
        program = self.program(question, passages, documents)
        return drivers.run(program, self._services, on_event=on_event)

    async def arun(
        self,
        question: str,
        passages: Sequence[Passage],
        documents: Sequence[Passage] = (),
        *,
        on_event: Listener | None = None,
    ) -> RefinementResult:
        """Like :meth:`run`, without blocking the event loop."""
        program = self.program(question, passages, documents)
        return await drivers.arun(program, self._services, on_event=on_event)

    def run_many(
        self,
        retrieved: Iterable[Candidates | tuple[str, Sequence[Passage]]],
        *,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[RefinementResult]:
        """Refine what was retrieved for many questions; a local model reads merged batches.

        Args:
            retrieved: A question, its passages, and the documents behind them where they are at hand.
            at_once: Questions to have at work at a time.
            on_event: See :meth:`run`.
            progress: True for a bar on a terminal, or a function of what is done and the total.

        Raises:
            Exception: The first failure, after all other questions were refined.
        """
        programs = [self.program(*case) for case in retrieved]
        return drivers.run_many(
            programs, self._services, at_once=at_once, on_event=on_event, progress=progress
        )

    async def arun_many(
        self,
        retrieved: Iterable[Candidates | tuple[str, Sequence[Passage]]],
        *,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[RefinementResult]:
        """Like :meth:`run_many`, without blocking the event loop."""
        programs = [self.program(*case) for case in retrieved]
        return await drivers.arun_many(
            programs, self._services, at_once=at_once, on_event=on_event, progress=progress
        )

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings or services; it shares the cache."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return settings and the models' identities as plain values; no model, client or key is in it.

        A chunker is left out: give it again to :meth:`from_dict`.
        """
        return {
            **{name: getattr(self, name) for name in PLAIN_SETTINGS},
            "prompts": prompt_texts(self.prompts),
            "reader": self.reader.name,
            "entailer": self.entailer.name,
            "encoder": None if self.encoder is None else self.encoder.name,
        }

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        reader: Reader,
        entailer: Entailer,
        **services: Any,
    ) -> Self:
        """Rebuild from :meth:`to_dict`, with living services (and a chunker, and a cache) injected.

        Raises:
            ConfigurationError: If there are settings that this class does not know.
        """
        values = known_settings(settings, PLAIN_SETTINGS, ("reader", "entailer", "encoder"))
        return cls(reader, entailer, **services, **values)


PLAIN_SETTINGS = (
    "k", "max_chunks", "rounds", "max_calls", "variant", "stop", "keep", "half", "refill", "remove_only",
    "self_evaluation", "only_uncertain", "more", "threshold", "entailment", "max_tokens", "rephrase_tokens",
    "on_failure",
)  # fmt: skip
"""Names of the settings that are plain values; the adapters for frameworks have fields of these names."""
