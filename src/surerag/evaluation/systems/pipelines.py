"""Pipelines on the core's own parts, by names such as ``lazy+compressed``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from surerag.effects import Effect, Program, Retrieve
from surerag.entailment.judge import JudgeEntailer
from surerag.errors import ConfigurationError
from surerag.evaluation.systems.system import ProgramSystem
from surerag.methods.dense_rag.component import ContextRefiner
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.edc2.component import ClusterCompressor
from surerag.methods.lazy_rag.combined_gates import GateLike
from surerag.methods.lazy_rag.component import LazyRAG
from surerag.readers.protocol import BaseReader
from surerag.services import Encoder, Entailer, Retriever, Services
from surerag.types import Passage

R = TypeVar("R")

BASES: Mapping[str, str] = {
    "plain": "retrieves for every question",
    "none": "never retrieves",
    "lazy": "L-RAG: retrieves where its first answer is uncertain",
    "rewrite": "DynQR: rewrites the query where the answer is uncertain",
}
STEPS: Mapping[str, str] = {
    "compressed": "EDC²-RAG: compresses what was retrieved",
    "dense": "DENSE-RAG: refines what was retrieved until the reader understands it",
}
SYSTEMS = ("plain", "lazy", "compressed", "dense", "rewrite", "lazy+compressed")
"""What is compared where nobody says what: the plain pipeline, each method, and a pair that makes sense."""


WIDER = 2
"""Candidates for a place that DENSE-RAG has to choose from."""


@dataclass(frozen=True)
class Parts:
    """What pipelines are built of.

    Attributes:
        reader: Who answers.
        retriever: Finds passages.
        summaries: Finds summaries of documents.
        encoder: Vectors for clustering.
        entailer: For DENSE-RAG; None asks the reader in words.
        top_n: Passages to show.
        n_summaries: Summaries to show in L-RAG's first pass.
        max_tokens: Length of an answer, at most.
        gate: Of L-RAG; None for the best that the reader can serve.
        threshold: Of the gate; None for its own.
    """

    reader: BaseReader
    retriever: Retriever
    summaries: Retriever
    encoder: Encoder | None = None
    entailer: Entailer | None = None
    top_n: int = 3
    n_summaries: int = 2
    max_tokens: int = 64
    gate: GateLike | None = None
    threshold: float | None = None

    @property
    def services(self) -> Services:
        """All of them, for one driver; where there is no entailer, the reader judges in words."""
        return Services(
            reader=self.reader,
            retriever=self.retriever,
            summaries=self.summaries,
            encoder=self.encoder,
            entailer=self.entailer or JudgeEntailer(self.reader),
        )

    @property
    def gate_in_force(self) -> GateLike:
        """The gate that is set, or the best that the reader can serve."""
        if self.gate is not None:
            return self.gate
        can = self.reader.capabilities
        return "entropy" if can.entropy else "margin" if can.logprobs else "disagreement"


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of pipelines, having found that they can be built.

    A name is a base (``plain``, ``none``, ``lazy``, ``rewrite``), and steps after it, joined by ``+``
    (``compressed``, ``dense``). A step alone follows ``plain``.

    Raises:
        ConfigurationError: If one is unknown or comes twice.
    """
    for name in names:
        base, *steps = _parsed(name)
        wrong = [
            word for word, known in ((base, BASES), *((step, STEPS) for step in steps)) if word not in known
        ]
        if wrong:
            near = difflib.get_close_matches(wrong[0], [*BASES, *STEPS], n=2)
            raise ConfigurationError(
                f"there is no system {name!r}",
                hint=(f"near: {near[0]}; " if near and near != wrong else "")
                + f"a base ({', '.join(BASES)}), and "
                f"steps after it ({', '.join(STEPS)}), as in lazy+compressed",
            )
        if base == "none" and steps:
            raise ConfigurationError(f"{name!r}: there is nothing to work on where nothing is retrieved")
    if len(set(names)) < len(names) or not names:
        raise ConfigurationError(f"each system is named once, got {', '.join(names) or 'none'}")
    return tuple(names)


def described(name: str) -> str:
    """Return what a pipeline does, in words.

    Example:
        >>> described("lazy+compressed")
        'L-RAG: retrieves where its first answer is uncertain; EDC²-RAG: compresses what was retrieved'
    """
    base, *steps = _parsed(name)
    return "; ".join([BASES[base], *(STEPS[step] for step in steps)])


def build(name: str, parts: Parts) -> ProgramSystem:
    """Build a pipeline by its name.

    Raises:
        ConfigurationError: If the name is unknown.
        CapabilityError: If the reader cannot do what it needs.
    """
    [name] = check_names([name])
    base, *steps = _parsed(name)
    program = _base(base, parts)
    for step in reversed(steps):
        # The first step stands nearest to the retriever.
        program = partial(_stepped, program, _step(step, parts), WIDER if step == "dense" else 1)
    return ProgramSystem(
        program,
        parts.services,
        keeping=lambda wrap: build(name, replace(parts, reader=wrap(parts.reader))),
        about={word: _component(word, parts).to_dict() for word in (base, *steps)},
    )


def worst_case_calls(name: str, parts: Parts) -> int:
    """Return the calls that a question can cost at most: answers of the reader, and pairs of the entailer."""
    base, *steps = _parsed(name)
    found = 1 if base in ("plain", "none") else _component(base, parts).worst_case_calls(parts.top_n)
    retrievals = 0 if base == "none" else 1
    if base == "rewrite":
        retrievals += _component(base, parts).candidates
    # What a step leaves is at most what came in.
    return int(
        found + retrievals * sum(_component(step, parts).worst_case_calls(parts.top_n) for step in steps)
    )


def _parsed(name: str) -> list[str]:
    words = [word.strip() for word in name.split("+")]
    return words if words[0] not in STEPS else ["plain", *words]


def _base(base: str, parts: Parts) -> Callable[[str], Program[Any]]:
    made: Callable[[str], Program[Any]] = _component(base, parts).program
    return made


def _component(word: str, parts: Parts) -> Any:
    reader, shape = parts.reader, {"top_n": parts.top_n, "max_tokens": parts.max_tokens}
    if word in ("plain", "none"):
        mode: Any = "standard" if word == "plain" else "none"
        return LazyRAG(reader, parts.retriever, mode=mode, **shape)  # type: ignore[arg-type]  # of a mapping
    if word == "lazy":
        return LazyRAG(
            reader,
            parts.retriever,
            parts.summaries,
            gate=parts.gate_in_force,
            threshold=parts.threshold,
            n_summaries=parts.n_summaries,
            **shape,  # type: ignore[arg-type]  # likewise
        )
    if word == "rewrite":
        metric: Any = "perplexity" if reader.capabilities.logprobs else "disagreement"
        more = {} if reader.capabilities.logprobs else {"n_samples": 5}
        return UncertaintyRewriter(reader, parts.retriever, metric=metric, **shape, **more)  # type: ignore[arg-type]  # likewise
    if word == "compressed":
        return ClusterCompressor(reader, parts.encoder, pass_below=0)
    return ContextRefiner(reader, parts.entailer, encoder=parts.encoder, top_n=parts.top_n)


def _step(step: str, parts: Parts) -> Callable[[str, Sequence[Passage]], Program[Any]]:
    made: Callable[[str, Sequence[Passage]], Program[Any]] = _component(step, parts).program
    return made


def _stepped(
    program: Callable[[str], Program[R]],
    step: Callable[[str, Sequence[Passage]], Program[Any]],
    wider: int,
    question: str,
) -> Program[R]:
    """Run a program whose retrieved passages go through a step before it sees them."""
    running = program(question)
    move: Callable[[], Effect] = partial(next, running)
    while True:
        try:
            effect = move()
        except StopIteration as end:
            result: R = end.value
            return result
        shown = isinstance(effect, Retrieve) and effect.tier == "passages"
        try:
            if isinstance(effect, Retrieve) and shown and effect.k is not None:
                effect = replace(effect, k=wider * effect.k)
            answer = yield effect
            if isinstance(effect, Retrieve) and shown and answer:
                found = yield from step(effect.query, [replace(one) for one in answer])
                answer = list(found.passages)
        except Exception as error:
            move = partial(running.throw, error)
            continue
        except BaseException:
            running.close()
            raise
        move = partial(running.send, answer)
