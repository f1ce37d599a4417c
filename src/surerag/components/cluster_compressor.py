"""EDC²-RAG as a public class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

from numpy.typing import ArrayLike

from surerag import drivers
from surerag.drivers.progress import Progress
from surerag.drivers.session import Listener
from surerag.effects import Program
from surerag.errors import ConfigurationError
from surerag.methods.cluster_compression import compress_clusters
from surerag.methods.compression_options import PLAIN_SETTINGS, CompressorOptions
from surerag.methods.compression_types import (
    VARIANTS,
    CompressionMode,
    CompressionPrompts,
    CompressionResult,
    CompressionSettings,
    FewShot,
    words_and_marks,
)
from surerag.methods.evidence import (
    Consensus,
    EvidencePrompts,
    Judgement,
    answer_by_consensus,
    judge_statement,
)
from surerag.prompts import PromptTemplate
from surerag.readers.protocol import Reader
from surerag.retrieval.sentences import split_sentences
from surerag.services import Encoder, Entailer, Services
from surerag.types import Passage, Sampling


class Retrieved(NamedTuple):
    """A question and what was found for it."""

    query: str
    passages: Sequence[Passage]


def text_of(passage: Passage) -> str:
    """Return a passage's text: what a pipeline shows of it, unless it says otherwise."""
    return passage.text


@dataclass(frozen=True)
class ClusterCompressor(CompressorOptions):
    """Put similar passages together, and compress each cluster for the question (EDC²-RAG).

    What it does to clusters is set by the fields of
    :class:`~surerag.methods.compression_options.CompressorOptions`: ``mode``, ``tau``, ``budget`` …

    Attributes:
        reader: The model that compresses.
        encoder: Vectors for clustering; not needed where passages carry theirs and the caller has the
            query's, nor for ``clustering="single"`` or ``"random"``.
        entailer: For ``guard="entailment"``.
        count_tokens: Counts the tokens of a text; None takes the reader's own count, where it has one, else
            words and punctuation marks.
        show: The text of a passage as the pipeline will show it, for counting.
        prompts: The prompts of the three modes.
        evidence_prompts: The prompts of :meth:`answer` and :meth:`judge`.

    Raises:
        ConfigurationError: If a setting is out of range.
        MissingServiceError: If there is no reader, or no entailer for the guard that asks one.

    Example:
        >>> from surerag import ClusterCompressor, Passage, ScriptedReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = ScriptedReader(["Ada was born in Velm."])
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
    prompts: CompressionPrompts = field(default_factory=CompressionPrompts, repr=False)
    evidence_prompts: EvidencePrompts = field(default_factory=EvidencePrompts, repr=False)
    _services: Services = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ConfigurationError(
                f"unknown variant {self.variant!r}", hint=f"choose {', '.join(VARIANTS)}"
            )
        services = Services(reader=self.reader, encoder=self.encoder, entailer=self.entailer)  # type: ignore[arg-type]  # completed by Services
        services.require("ClusterCompressor", "reader")
        if self.guard == "entailment":
            services.require('ClusterCompressor with guard="entailment"', "entailer")
        object.__setattr__(self, "_services", services)
        self.settings_for(self.mode)

    @property
    def services(self) -> Services:
        """Who answers: what a driver of your own needs beside :meth:`program`."""
        return self._services

    def settings_for(self, mode: CompressionMode) -> CompressionSettings:
        """Return what steers the method in a mode, the variant's settings filled in."""
        chosen: dict[str, Any] = dict(VARIANTS[self.variant])
        if self.variant == "paper" and mode == "fact_check":
            chosen["tau"] = "auto"
        chosen.setdefault("guard", "overlap" if mode == "extract" else "off")
        chosen.update({name: value for name in _OPTIONAL if (value := getattr(self, name)) is not None})
        chosen["cap"] = chosen["cap"] or None
        temperature = self.temperature
        if temperature is None:
            temperature = 0.7 if mode == "answer_with_evidence" else 0.0
        own: Callable[[str], int] = getattr(self.reader, "count_tokens", words_and_marks)
        count = own if self.count_tokens is None else self.count_tokens
        show = self.show
        return CompressionSettings(
            sampling=Sampling(max_tokens=self.max_tokens, temperature=temperature, seed=self.seed),
            measure=lambda passage: count(show(passage)),
            split=_sentences,
            mode=mode,
            clustering=self.clustering,
            guard_action=self.guard_action,
            support=self.support,
            on_failure=self.on_failure,
            budget=self.budget,
            bridging=self.bridging,
            examples=self.examples,
            prompts=self.prompts,
            seed=self.seed,
            **chosen,
        )

    def program(
        self, query: str, passages: Sequence[Passage], *, query_vector: ArrayLike | None = None
    ) -> Program[CompressionResult]:
        """Return the method at work on one question, for a driver of your own."""
        return compress_clusters(query, passages, self.settings_for(self.mode), query_vector)

    def run(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        query_vector: ArrayLike | None = None,
        on_event: Listener | None = None,
    ) -> CompressionResult:
        """Compress what was retrieved for one question.

        Args:
            query: Not empty.
            passages: Best first. Where all carry embeddings, these are used.
            query_vector: The query's vector, by the model that made the passages'.
            on_event: Called with warnings (a fallback, a failed cluster) and the result, as they happen.

        Raises:
            InputError: If the query is empty.
            MissingServiceError: If vectors are needed and there is no encoder.
        """
        program = self.program(query, passages, query_vector=query_vector)
        return drivers.run(program, self._services, on_event=on_event)

    async def arun(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        query_vector: ArrayLike | None = None,
        on_event: Listener | None = None,
    ) -> CompressionResult:
        """Like :meth:`run`, without blocking the event loop."""
        program = self.program(query, passages, query_vector=query_vector)
        return await drivers.arun(program, self._services, on_event=on_event)

    def run_many(
        self,
        retrieved: Iterable[tuple[str, Sequence[Passage]]],
        *,
        at_once: int = 64,
        on_event: Listener | None = None,
        progress: Progress = False,
    ) -> list[CompressionResult]:
        """Compress what was retrieved for many questions; a local model reads merged batches.

        Args:
            retrieved: Pairs of a question and its passages.
            at_once: Questions to have at work at a time.
            on_event: See :meth:`run`.
            progress: True for a bar on a terminal, or a function of what is done and the total.

        Raises:
            Exception: The first failure, after all other questions were compressed.
        """
        programs = [self.program(query, passages) for query, passages in retrieved]
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
    ) -> list[CompressionResult]:
        """Like :meth:`run_many`, without blocking the event loop."""
        programs = [self.program(query, passages) for query, passages in retrieved]
        return await drivers.arun_many(
            programs, self._services, at_once=at_once, on_event=on_event, progress=progress
        )

    def answer_program(self, question: str, passages: Sequence[Passage]) -> Program[Consensus]:
        """Return the answering of appendix C.2 at work, for a driver of your own."""
        settings = self.settings_for("answer_with_evidence")
        return answer_by_consensus(question, passages, settings, self.evidence_prompts)

    def answer(
        self, question: str, passages: Sequence[Passage], *, on_event: Listener | None = None
    ) -> Consensus:
        """Answer from each cluster with evidence, then by consensus of these answers (appendix C.2)."""
        return drivers.run(self.answer_program(question, passages), self._services, on_event=on_event)

    async def aanswer(
        self, question: str, passages: Sequence[Passage], *, on_event: Listener | None = None
    ) -> Consensus:
        """Like :meth:`answer`, without blocking the event loop."""
        program = self.answer_program(question, passages)
        return await drivers.arun(program, self._services, on_event=on_event)

    def judge_program(self, statement: str, passages: Sequence[Passage]) -> Program[Judgement]:
        """Return the judging of section 6.2 at work, for a driver of your own."""
        settings = self.settings_for("fact_check")
        return judge_statement(statement, passages, settings, self.evidence_prompts)

    def judge(
        self, statement: str, passages: Sequence[Passage], *, on_event: Listener | None = None
    ) -> Judgement:
        """Judge a statement by compressed evidence: does it contain factual errors (section 6.2)?"""
        return drivers.run(self.judge_program(statement, passages), self._services, on_event=on_event)

    async def ajudge(
        self, statement: str, passages: Sequence[Passage], *, on_event: Listener | None = None
    ) -> Judgement:
        """Like :meth:`judge`, without blocking the event loop."""
        program = self.judge_program(statement, passages)
        return await drivers.arun(program, self._services, on_event=on_event)

    def with_settings(self, **changes: Any) -> Self:
        """Return a copy with other settings or services."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return settings and the models' identities as plain values; no model, client or key is in it.

        Functions (``count_tokens``, ``show``) are left out: give them again to :meth:`from_dict`.
        """
        return {
            **{name: getattr(self, name) for name in PLAIN_SETTINGS},
            "examples": [[shot.query, list(shot.passages), shot.reply] for shot in self.examples],
            "prompts": _texts(self.prompts),
            "evidence_prompts": _texts(self.evidence_prompts),
            "reader": self.reader.name,
            "encoder": self.encoder.name if self.encoder is not None else None,
        }

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        reader: Reader,
        encoder: Encoder | None = None,
        entailer: Entailer | None = None,
        **functions: Any,
    ) -> Self:
        """Rebuild from :meth:`to_dict`, with living services injected.

        Raises:
            ConfigurationError: If there are settings that this class does not know.
        """
        values = {name: value for name, value in settings.items() if name not in ("reader", "encoder")}
        unknown = values.keys() - {*PLAIN_SETTINGS, "examples", "prompts", "evidence_prompts"}
        if unknown:
            raise ConfigurationError(f"unknown settings {sorted(unknown)}", hint="load what to_dict() gave")
        values["examples"] = tuple(FewShot(q, tuple(texts), reply) for q, texts, reply in values["examples"])
        values["prompts"] = CompressionPrompts(**_templates(values["prompts"]))
        values["evidence_prompts"] = EvidencePrompts(**_templates(values["evidence_prompts"]))
        return cls(reader, encoder, entailer, **values, **functions)


_OPTIONAL = (
    "tau", "cap", "count_root", "root", "order", "nothing", "all_empty", "pass_below",
    "refuse_longer", "guard",
)  # fmt: skip
"""Settings that the variant fills in where they are None."""


def _sentences(text: str) -> list[str]:
    return [sentence.text for sentence in split_sentences(text)]


def _texts(prompts: CompressionPrompts | EvidencePrompts) -> dict[str, str]:
    return {item.name: getattr(prompts, item.name).text for item in fields(prompts)}


def _templates(texts: Mapping[str, str]) -> dict[str, PromptTemplate]:
    return {name: PromptTemplate(name, text) for name, text in texts.items()}
