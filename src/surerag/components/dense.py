"""DENSE as a public class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from surerag import drivers
from surerag.drivers.progress import Progress
from surerag.drivers.session import Listener
from surerag.effects import Program
from surerag.errors import ConfigurationError
from surerag.methods.dense import dense, prepare
from surerag.methods.dense_cache import DenseCache
from surerag.methods.dense_types import DensePrompts, DenseResult, DenseSettings, Half
from surerag.prompts import PromptTemplate
from surerag.readers.protocol import Reader
from surerag.services import Entailer, Services
from surerag.types import Passage, Sampling


@dataclass(frozen=True)
class Dense:
    """How far a reader understood its context, without a gold answer (DENSE-RAG, section 4).

    Each chunk is rephrased alone; a reader that understands the context answers the same whichever chunk is
    said in other words. For k chunks that costs k rephrasings (none for chunks that the cache knows), k + 1
    answers, and at most k (k + 1) judgements of entailment; with labels up to 3 k calls more.

    Attributes:
        reader: The model that rephrases and answers.
        entailer: Says whether answers mean the same: ``JudgeEntailer(reader)`` as in the paper, or a
            classifier (``NLIEntailer``), which is faster.
        threshold: A question is certain up to this score, in nats.
        mask: Whether to tell necessary from unnecessary chunks by the answer without each uncertain one. The
            score does not need it.
        half: What a chunk is when entailment holds in one direction only between the answers with and
            without it.
        entailment: One answer entails another from this probability on; None where it is the likeliest label.
        max_tokens: Length of an answer, at most.
        rephrase_tokens: Length of a rephrasing, at most; one that is cut short is not used, so leave room.
        prompts: The prompts.
        cache: What is known already; give one to several components, and a chunk is rephrased once for all.

    Raises:
        ConfigurationError: If a setting is out of range, or a service is of the wrong kind.
        MissingServiceError: If reader or entailer is missing.

    Example:
        >>> from surerag import Passage, ScriptedReader
        >>> from surerag.entailment import ExactEntailer
        >>> def reply(prompt):
        ...     if prompt.startswith("Rewrite"):
        ...         return "Velm is where Ada was born."
        ...     return "Velm" if "Ada was born in Velm" in prompt else "Orun"
        >>> dense = Dense(ScriptedReader(reply), ExactEntailer())
        >>> result = dense.run("Where was Ada born?", [Passage("Ada was born in Velm.", id="a")])
        >>> result.answers, round(result.score, 4), result.labels
        (('Velm', 'Orun'), 0.6931, ('necessary',))
    """

    reader: Reader = field(repr=False)
    entailer: Entailer = field(repr=False)
    threshold: float = 0.2
    mask: bool = True
    half: Half = "necessary"
    entailment: float | None = None
    max_tokens: int = 64
    rephrase_tokens: int = 640
    prompts: DensePrompts = field(default_factory=DensePrompts, repr=False)
    cache: DenseCache = field(default_factory=DenseCache, repr=False, compare=False)
    _settings: DenseSettings = field(init=False, repr=False, compare=False)
    _services: Services = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        services = Services(reader=self.reader, entailer=self.entailer)  # type: ignore[arg-type]  # completed by Services
        services.require("Dense", "reader", "entailer")
        object.__setattr__(self, "_services", services)
        object.__setattr__(self, "_settings", settings_of(self, self.mask, self.half))

    @property
    def services(self) -> Services:
        """Who answers: what a driver of your own needs beside :meth:`program`."""
        return self._services

    def program(self, question: str, passages: Sequence[Passage]) -> Program[DenseResult]:
        """Return the method at work on one question, for a driver of your own."""
        return dense(question, passages, self._settings)

    def run(
        self, question: str, passages: Sequence[Passage], *, on_event: Listener | None = None
    ) -> DenseResult:
        """Measure one context.

        Args:
            question: Not empty.
            passages: The context; one or more.
            on_event: Called with the result and with warnings, as they happen.

        Raises:
            InputError: If the question is empty, or there is no context.
            ServiceError: If a model fails.
        """
        return drivers.run(self.program(question, passages), self._services, on_event=on_event)

    async def arun(
        self, question: str, passages: Sequence[Passage], *, on_event: Listener | None = None
    ) -> DenseResult:
        """Like :meth:`run`, without blocking the event loop."""
        return await drivers.arun(self.program(question, passages), self._services, on_event=on_event)

    def run_many(
        self,
        retrieved: Iterable[tuple[str, Sequence[Passage]]],
        *,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[DenseResult]:
        """Measure many contexts; a local model reads them in merged batches.

        Args:
            retrieved: Pairs of a question and its passages.
            at_once: Questions to have at work at a time.
            on_event: See :meth:`run`.
            progress: True for a bar on a terminal, or a function of what is done and the total.

        Raises:
            Exception: The first failure, after all other contexts were measured.
        """
        programs = [self.program(*case) for case in retrieved]
        return drivers.run_many(
            programs, self._services, at_once=at_once, on_event=on_event, progress=progress
        )

    async def arun_many(
        self,
        retrieved: Iterable[tuple[str, Sequence[Passage]]],
        *,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[DenseResult]:
        """Like :meth:`run_many`, without blocking the event loop."""
        programs = [self.program(*case) for case in retrieved]
        return await drivers.arun_many(
            programs, self._services, at_once=at_once, on_event=on_event, progress=progress
        )

    def prepare(self, passages: Sequence[Passage], *, on_event: Listener | None = None) -> int:
        """Rephrase a corpus ahead of all questions; return how many chunks the cache now knows."""
        return drivers.run(prepare(passages, self._settings), self._services, on_event=on_event)

    async def aprepare(self, passages: Sequence[Passage], *, on_event: Listener | None = None) -> int:
        """Like :meth:`prepare`, without blocking the event loop."""
        return await drivers.arun(prepare(passages, self._settings), self._services, on_event=on_event)

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings or services; it shares the cache."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return settings and the models' identities as plain values; no model, client or key is in it."""
        return {
            **{name: getattr(self, name) for name in PLAIN_SETTINGS},
            "prompts": prompt_texts(self.prompts),
            "reader": self.reader.name,
            "entailer": self.entailer.name,
        }

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        reader: Reader,
        entailer: Entailer,
        cache: DenseCache | None = None,
    ) -> Self:
        """Rebuild from :meth:`to_dict`, with living services injected.

        Raises:
            ConfigurationError: If there are settings that this class does not know.
        """
        values = known_settings(settings, PLAIN_SETTINGS, ("reader", "entailer"))
        return cls(reader, entailer, cache=cache or DenseCache(), **values)


PLAIN_SETTINGS = ("threshold", "mask", "half", "entailment", "max_tokens", "rephrase_tokens")
"""Names of the settings that are plain values; the adapters for frameworks have fields of these names."""


def settings_of(component: Any, mask: bool, half: Half) -> DenseSettings:
    """Return what steers the measure inside a component that has the fields of :class:`Dense`."""
    reader = component.reader
    return DenseSettings(
        threshold=component.threshold,
        half=half,
        mask=mask,
        entailment=component.entailment,
        original_first=not reader.capabilities.local,
        answering=Sampling(max_tokens=component.max_tokens),
        rephrasing=Sampling(max_tokens=component.rephrase_tokens),
        prompts=component.prompts,
        cache=component.cache,
        reader=reader.name,
        entailer=component.entailer.name,
    )


def prompt_texts(prompts: DensePrompts) -> dict[str, str]:
    """Return the prompts as plain values."""
    return {item.name: getattr(prompts, item.name).text for item in fields(prompts)}


def known_settings(
    settings: Mapping[str, Any], plain: Sequence[str], models: Sequence[str]
) -> dict[str, Any]:
    """Return constructor arguments from what ``to_dict`` gave, the models' names left out.

    Raises:
        ConfigurationError: If a setting is not known.
    """
    values = {name: value for name, value in settings.items() if name not in models}
    unknown = values.keys() - {*plain, "prompts"}
    if unknown:
        raise ConfigurationError(f"unknown settings {sorted(unknown)}", hint="load what to_dict() gave")
    if "prompts" in values:
        texts: Mapping[str, str] = values["prompts"]
        values["prompts"] = DensePrompts(**{name: PromptTemplate(name, text) for name, text in texts.items()})
    return values
