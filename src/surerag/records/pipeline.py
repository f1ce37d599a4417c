"""A user's pipeline as it is recorded: methods of the core, wherever they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from surerag.component import Component
from surerag.decisions.calibrating import Decides
from surerag.errors import ConfigurationError
from surerag.methods.dense_rag.component import Dense
from surerag.methods.dense_rag.memory import DenseCache
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.dynqr.metrics import SAMPLED
from surerag.methods.edc2.component import ClusterCompressor
from surerag.methods.lazy_rag.component import LazyRAG
from surerag.methods.lazy_rag.gate import FIRST_TOKENS
from surerag.methods.lazy_rag.sample_gates import DisagreementGate
from surerag.methods.lazy_rag.token_gates import EntropyGate, MarginGate
from surerag.methods.seper.component import SePer
from surerag.readers.protocol import BaseReader
from surerag.recording import RecordedEntailer, RecordedRetriever
from surerag.records.keeping import KeepingReader, Kept
from surerag.records.trace import RETRIEVER, SUMMARY_INDEX
from surerag.services import Entailer, Retriever, as_reader
from surerag.tokens import estimated_tokens

REWRITING = "rewriting"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The methods that a trace is recorded with.

    Attributes:
        lazy: Answers without retrieval, from summaries, and with it.
        rewriter: Rewrites queries.
        compressor: Compresses what ``lazy`` retrieves.
        seper: Measures what retrieving was worth.
        dense: Measures how far the reader understood what was retrieved.
    """

    lazy: LazyRAG | None = None
    rewriter: UncertaintyRewriter | None = None
    compressor: ClusterCompressor | None = None
    seper: SePer | None = None
    dense: Dense | None = None

    @classmethod
    def of(cls, parts: Any) -> Self:
        """Find the methods in parts of a pipeline.

        Args:
            parts: Components of the core; query engines, postprocessors, transforms or evaluators of the
                LlamaIndex integration; chains, compressors or retrievers of the LangChain one. One or more.

        Raises:
            ConfigurationError: If one is none of these, or there are two of a kind, or none that answers.
        """
        given = list(parts) if isinstance(parts, Sequence) else [parts]
        found: dict[str, Any] = {}
        for part in given:
            core = _core_of(part)
            name = next((name for name, kind in _KINDS.items() if isinstance(core, kind)), None)
            if name is None:
                raise ConfigurationError(
                    f"{type(part).__name__} cannot be recorded",
                    hint="give a LazyRAG, UncertaintyRewriter, ClusterCompressor, SePer or Dense, or an "
                    "engine, chain or part of llama_index_surerag or langchain_surerag that holds one",
                )
            if name in found:
                raise ConfigurationError(
                    f"two parts are a {type(core).__name__}", hint="record them into two folders"
                )
            found[name] = core
        made = cls(**found)
        made._check()
        return made

    def _check(self) -> None:
        if self.lazy is None and self.rewriter is None:
            raise ConfigurationError(
                "there is no part that answers questions",
                hint="give a LazyRAG (or its engine or chain), or an UncertaintyRewriter, beside the others",
            )
        if self.lazy is not None and self.lazy.retriever is None:
            raise ConfigurationError(
                "the LazyRAG has no retriever, so that there is nothing to compare with",
                hint="build it with one",
            )
        for name in ("compressor", "seper", "dense"):
            if getattr(self, name) is not None and self.lazy is None:
                raise ConfigurationError(
                    f"a {name} works on what a LazyRAG retrieves, and there is none",
                    hint="give a LazyRAG, or its engine or chain, as well",
                )

    @property
    def readers(self) -> dict[str, BaseReader]:
        """All models that are asked, by name; the one that answers first."""
        parts = (self.lazy, self.rewriter, self.compressor, self.seper, self.dense)
        models = [as_reader(part.reader) for part in parts if part is not None]
        if self.rewriter is not None and self.rewriter.rewriter is not None:
            models.append(as_reader(self.rewriter.rewriter))
        found: dict[str, BaseReader] = {}
        for model in models:
            found.setdefault(model.name, model)
        return found

    @property
    def entailer(self) -> Entailer | None:
        """Who judges answers, if someone does."""
        if self.seper is not None:
            return self.seper.entailer
        judge = None if self.dense is None else self.dense.entailer
        return judge if isinstance(judge, Entailer) else None

    def about(self, n_samples: int) -> Mapping[str, Any]:
        """Return what a trace says of its models and settings: names and plain values.

        Args:
            n_samples: Answers that are sampled beside each one.
        """
        methods = {item.name: getattr(self, item.name) for item in fields(self)}
        readers = self.readers
        return {
            "reader": next(iter(readers)),
            "readers": {name: asdict(_kept_of(model)) for name, model in readers.items()},
            "max_tokens": {name: model.max_tokens for name, model in readers.items()},
            "entailer": None if self.entailer is None else self.entailer.name,
            "settings": {name: part.to_dict() for name, part in methods.items() if part is not None},
            "signals": self.own_signals(n_samples),
            "identities": {
                name: asdict(part.identity) for name, part in methods.items() if isinstance(part, Decides)
            },
        }

    def own_signals(self, n_samples: int) -> dict[str, str]:
        """Return what a trace calls the signals that the methods themselves decide by, by their own names.

        A gate or metric that no trace has a name for is not among them.

        Args:
            n_samples: Answers that are sampled beside each one.
        """
        found: dict[str, str] = {}
        if self.lazy is not None:
            gate = self.lazy.gate_in_force
            for name, like in (
                ("mean_entropy_8", EntropyGate(tokens=FIRST_TOKENS)),
                ("largest_entropy", EntropyGate(aggregate="max")),
                ("want_of_margin_8", MarginGate(tokens=FIRST_TOKENS)),
                ("disagreement", DisagreementGate(n_samples=max(n_samples, 2))),
            ):
                if like.signal == gate.signal:
                    found[self.lazy.signal] = name
        if self.rewriter is not None:
            metric = self.rewriter.metric
            same_samples = self.rewriter.n_samples == n_samples and self.rewriter.same_meaning == "words"
            if isinstance(metric, str) and (metric not in SAMPLED or same_samples):
                found[self.rewriter.signal] = metric
        return found

    def keeping(self, kept: Kept, *, max_concurrency: int = 16) -> Self:
        """Return the pipeline on services whose answers are kept."""
        readers: dict[int, KeepingReader] = {}

        def model(given: Any) -> KeepingReader:
            reader = as_reader(given)
            if id(reader) not in readers:
                readers[id(reader)] = KeepingReader(reader, kept, max_concurrency=max_concurrency)
            return readers[id(reader)]

        def found(given: Retriever, name: str) -> RecordedRetriever:
            return RecordedRetriever(given, kept.of("retrieve"), name=name)

        lazy, rewriter, compressor, seper = self.lazy, self.rewriter, self.compressor, self.seper
        if lazy is not None and lazy.retriever is not None:
            summaries = lazy.services.summaries
            lazy = lazy.with_options(
                reader=model(lazy.reader),
                retriever=found(lazy.retriever, RETRIEVER),
                summaries=None if summaries is None else found(summaries, SUMMARY_INDEX),
            )
        if rewriter is not None:
            same = self.lazy is None or rewriter.retriever is self.lazy.retriever
            rewriter = rewriter.with_options(
                reader=model(rewriter.reader),
                retriever=found(rewriter.retriever, RETRIEVER if same else REWRITING),
                rewriter=None if rewriter.rewriter is None else model(rewriter.rewriter),
            )
        if compressor is not None:
            # The count decides what is compressed at all: it stays that of the reader itself.
            compressor = compressor.with_options(
                reader=model(compressor.reader),
                count_tokens=compressor.count_tokens
                or getattr(compressor.reader, "count_tokens", estimated_tokens),
            )
        if seper is not None:
            seper = seper.with_options(
                reader=model(seper.reader), entailer=RecordedEntailer(seper.entailer, kept.of("entail"))
            )
        dense = self.dense
        if dense is not None:
            judge: Any = dense.entailer
            if isinstance(judge, Entailer):
                judge = RecordedEntailer(judge, kept.of("entail"))
            elif judge is not None:
                judge = model(judge)
            dense = dense.with_options(
                reader=model(dense.reader),
                entailer=judge,
                # What another part knows would not stand in this one.
                cache=DenseCache(),
            )
        return type(self)(lazy, rewriter, compressor, seper, dense)


_KINDS: Mapping[str, type[Component[Any, Any]]] = {
    "lazy": LazyRAG,
    "rewriter": UncertaintyRewriter,
    "compressor": ClusterCompressor,
    "seper": SePer,
    "dense": Dense,
}


def _core_of(part: Any) -> Any:
    return part if isinstance(part, Component) else getattr(part, "core", part)


def _kept_of(model: BaseReader) -> Any:
    return KeepingReader(model, Kept(_Nowhere())).capabilities


class _Nowhere:
    """Keeps nothing."""

    def get(self, key: str) -> Any:
        return None

    def put(self, answers: Mapping[str, Any]) -> None:
        return None

    def check(self) -> None:
        return None
