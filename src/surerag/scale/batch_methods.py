"""The five methods as batch callables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Final

from surerag.component import Component
from surerag.decisions.policy import Policy
from surerag.drivers import run_many
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.extras import extra
from surerag.methods.dense_rag.component import Dense
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.edc2.component import ClusterCompressor
from surerag.methods.edc2.result import SOURCES_KEY
from surerag.methods.lazy_rag.component import FixedSummary, LazyRAG
from surerag.methods.seper.component import SePer
from surerag.options import described, from_plain
from surerag.prices import Costs
from surerag.readers.protocol import Capabilities
from surerag.readers.scripted import ScriptedReader
from surerag.scale.batch import Batch, Cells, Column
from surerag.scale.batch_fields import Given
from surerag.services import Services
from surerag.types import Passage

with extra("parquet"):
    import pyarrow as pa

_TEXT, _TEXTS, _NUMBER, _WHOLE, _TRUTH = (
    pa.string(),
    pa.list_(pa.string()),
    pa.float64(),
    pa.int64(),
    pa.bool_(),
)

COSTS: Final[Mapping[str, Column]] = {
    "prompt_tokens": Column(_WHOLE, "tokens that models read for it"),
    "completion_tokens": Column(_WHOLE, "tokens that they wrote"),
    "cached_tokens": Column(_WHOLE, "of those read, what a server had in its cache, where it tells"),
    "calls": Column(_WHOLE, "answers asked of models, and pairs asked of an entailer"),
    "money": Column(_NUMBER, "what that costs; null where a price is not known"),
    "currency": Column(_TEXT, "of the money"),
}
"""What each row cost, as if it had run alone. Seconds are not among it: no two runs take the same."""

_THREADS: Final = 64
"""Rows of a table that wait for a server at a time, at most."""

_ABLE: Final = Capabilities(
    logprobs=True, entropy="exact", energy=True, score=True, begin="native", stream=True
)


def _stand_ins() -> dict[str, Any]:
    """Return services that can do everything and are never asked, to check options where no model is."""
    reader = ScriptedReader(str, capabilities=_ABLE)
    found = FixedSummary("never asked")
    return {
        "reader": reader,
        "rewriter": reader,
        "encoder": HashingEncoder(1),
        "entailer": ExactEntailer(),
        "retriever": found,
        "summaries": found,
    }


class MethodBatch(Batch):
    """A batch callable that runs a method's public class over its rows.

    Attributes:
        METHOD: The class. Its options are settings.
    """

    METHOD: ClassVar[type[Component[Any, Any]]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Take over the method's options."""
        cls.OPTIONS = cls.METHOD.OPTIONS
        cls.COLUMNS = {**cls.COLUMNS, **COSTS}
        super().__init_subclass__(**arguments)
        cls.__doc__ = f"{cls.__doc__}\n\n{described(cls.OPTIONS.values())}"

    @property
    def options(self) -> dict[str, Any]:
        """The method's options that were given, in plain values."""
        return {name: value for name, value in self._settings.items() if name in self.OPTIONS}

    @property
    def services(self) -> tuple[str, ...]:
        """Names of the services that the method itself is given."""
        known = {item.name for item in fields(self.METHOD) if item.init}
        return tuple(name for name in self.PARTS if name in known and name in self._parts)

    def component(self) -> Any:
        """Return the method's public class with its services; models that are not there are loaded.

        One for each table: what a component remembers of one would tell in the costs of the next.
        """
        return self.METHOD.from_dict(self.options, **{name: self._parts[name] for name in self.services})

    @abstractmethod
    def case(self, row: Given) -> tuple[Any, ...]:
        """Return what the method is asked about a row.

        Raises:
            InputError: If a field is not what it has to be.
        """

    @abstractmethod
    def cells(self, result: Any) -> Cells:
        """Return what of a result stands in which column."""

    def _check(self) -> None:
        for item in fields(self.METHOD):
            if item.name in self.PARTS and item.default is MISSING:
                self._parts.require(item.name, type(self).__name__)
        found, options = _stand_ins(), self.options
        if "threshold" in options:
            threshold = from_plain(self.OPTIONS["threshold"].kind, options["threshold"])
            # Whether a policy was made for this reader is known where the reader is.
            options["threshold"] = threshold.threshold if isinstance(threshold, Policy) else threshold
        self.METHOD.from_dict(options, **{name: found[name] for name in self.services})

    def _results(self, rows: Sequence[Given]) -> list[Cells | Exception]:
        component = self.component()
        cases = [_outcome(self.case, row) for row in rows]
        programs = [component.program(*case) for case in cases if not isinstance(case, Exception)]
        services: Services = component.services
        local = services.reader is None or services.reader.capabilities.local
        window = max(len(programs) if local else min(len(programs), _THREADS), 1)
        results = iter(run_many(programs, services, window=window, return_exceptions=True))
        found = [case if isinstance(case, Exception) else next(results) for case in cases]
        return [
            one if isinstance(one, Exception) else {**self.cells(one), **_costs(one.spent)} for one in found
        ]


class SePerBatch(MethodBatch):
    """ΔSePer of each row's contexts: :class:`surerag.SePer`.

    Settings: ``reader``; ``entailer``, left out ``"judge"`` for the embedded reader, else ``"nli"``, as on
    the command line.
    """

    METHOD = SePer
    PREFIX = "seper"
    FIELDS = ("question", "answers", "contexts")
    PARTS = ("reader", "entailer")
    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "delta": Column(_NUMBER, "ΔSePer, in [-1, 1]: what the contexts are worth to the reader"),
        "lower": Column(_NUMBER, "lower end of its 95 % interval over the samples"),
        "upper": Column(_NUMBER, "upper end"),
        "before": Column(_NUMBER, "SePer without contexts, in [0, 1]"),
        "after": Column(_NUMBER, "SePer with them"),
        "before_answers": Column(_TEXTS, "samples without contexts"),
        "after_answers": Column(_TEXTS, "samples with them"),
        "weights": Column(_TEXT, "the weighting that was used"),
        "truncated": Column(_WHOLE, "samples that were cut at max_tokens"),
    }

    def __init__(self, **settings: Any) -> None:
        if settings.get("entailer") is None:
            embedded = str(settings.get("reader")).startswith("embedded")
            settings["entailer"] = "judge" if embedded else "nli"
        super().__init__(**settings)

    def case(self, row: Given) -> tuple[Any, ...]:
        """Return question, gold answers and passages."""
        return row.question, row.golds, row.passages

    def cells(self, result: Any) -> Cells:
        """Return the columns' values."""
        return {
            "delta": result.delta,
            "lower": result.interval.lower,
            "upper": result.interval.upper,
            "before": result.before.seper,
            "after": result.after.seper,
            "before_answers": [one.text for one in result.before.answers],
            "after_answers": [one.text for one in result.after.answers],
            "weights": result.weights,
            "truncated": result.truncated,
        }


class LazyRAGBatch(MethodBatch):
    """An answer to each question, from summaries alone where the gate finds the reader sure: L-RAG.

    It runs :class:`surerag.LazyRAG`. Settings: ``reader``, ``retriever``, ``summaries`` (a retriever, or
    ``{"text": "…"}`` for a corpus of one document), ``encoder`` of a retriever's queries, ``entailer`` of
    a gate that asks one. In mode ``"oracle"`` the gold passages are the rows' ``contexts``.
    """

    METHOD = LazyRAG
    PREFIX = "lazy_rag"
    FIELDS = ("question",)
    PARTS = ("reader", "retriever", "summaries", "encoder", "entailer")
    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "answer": Column(_TEXT, "the answer"),
        "retrieved": Column(_TRUTH, "whether the gate called for passages first"),
        "signal": Column(
            _NUMBER, "what the gate measured; null where the reader said nothing, or there is no gate"
        ),
        "threshold": Column(_NUMBER, "what that was compared with"),
        "gate": Column(_TEXT, "name of the gate"),
        "reason": Column(_TEXT, "why, in words"),
        "abstained": Column(_TRUTH, "whether the answer is the refusal"),
        "retrievals": Column(_WHOLE, "how often the retriever was asked"),
        "contexts": Column(_TEXTS, "passages that the reader was shown; none where the gate stayed shut"),
        "context_ids": Column(_TEXTS, "their ids"),
        "summary_ids": Column(_TEXTS, "ids of the summaries that it was shown"),
    }

    @property
    def fields(self) -> tuple[str, ...]:
        """The question; in mode ``"oracle"`` the contexts, too."""
        return (*self.FIELDS, "contexts") if self.options.get("mode") == "oracle" else self.FIELDS

    def case(self, row: Given) -> tuple[Any, ...]:
        """Return the question, and gold passages where the mode asks for some."""
        return (row.question, row.passages) if "contexts" in self.fields else (row.question,)

    def cells(self, result: Any) -> Cells:
        """Return the columns' values."""
        decision = result.decision
        return {
            "answer": result.answer,
            "retrieved": decision.retrieve,
            "signal": decision.signal,
            "threshold": decision.threshold,
            "gate": decision.gate,
            "reason": decision.reason,
            "abstained": result.abstained,
            "retrievals": result.retrievals,
            **_contexts(result.passages),
            "summary_ids": [one.id for one in result.summaries],
        }


class CompressBatch(MethodBatch):
    """Each row's contexts, compressed for its question: :class:`surerag.ClusterCompressor`.

    Settings: ``reader``, ``encoder`` (not for ``clustering="single"`` and ``"random"``), ``entailer`` for
    ``guard="entailment"``.
    """

    METHOD = ClusterCompressor
    PREFIX = "compress"
    FIELDS = ("question", "contexts")
    PARTS = ("reader", "encoder", "entailer")
    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "contexts": Column(_TEXTS, "what to show the reader, in the order of the best member's rank"),
        "context_ids": Column(_TEXTS, "id of each one's best source; without ids of their own, ranks from 1"),
        "source_ids": Column(pa.list_(_TEXTS), "ids of all its sources"),
        "clusters": Column(_WHOLE, "clusters of passages"),
        "tokens_before": Column(_WHOLE, "tokens that went in"),
        "tokens_after": Column(_WHOLE, "tokens that came out"),
        "fell_back": Column(_TRUTH, "whether every cluster that was asked about yielded nothing"),
        "troubles": Column(_TEXTS, "why a cluster's passages stand there as they came: failed, truncated …"),
        "out_of_calls": Column(_TRUTH, "whether max_calls left something undone"),
    }

    def case(self, row: Given) -> tuple[Any, ...]:
        """Return question and passages."""
        return row.question, row.passages

    def cells(self, result: Any) -> Cells:
        """Return the columns' values."""
        return {
            **_contexts(result.passages),
            "source_ids": [
                [source["id"] for source in one.metadata.get(SOURCES_KEY, [{"id": one.id}])]
                for one in result.passages
            ],
            "clusters": len(result.clusters),
            "tokens_before": result.tokens_before,
            "tokens_after": result.tokens_after,
            "fell_back": result.fell_back,
            "troubles": [one.trouble for one in result.clusters if one.trouble is not None],
            "out_of_calls": result.out_of_calls,
        }


class DenseBatch(MethodBatch):
    """How far the reader understands each row's contexts: :class:`surerag.Dense`.

    Settings: ``reader``; ``entailer``, left out or ``"judge"`` the reader itself, asked in words.
    """

    METHOD = Dense
    PREFIX = "dense"
    FIELDS = ("question", "contexts")
    PARTS = ("reader", "entailer")
    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "score": Column(_NUMBER, "degree-based semantic entropy, in nats; 0 where it understands them"),
        "certain": Column(_TRUTH, "whether that is within the threshold"),
        "answer": Column(_TEXT, "the answer from the contexts as they are"),
        "answers": Column(_TEXTS, "that one, and one with each context rephrased"),
        "labels": Column(_TEXTS, "what that says of each context"),
        "context_ids": Column(_TEXTS, "their ids; where they have none, ranks from 1"),
        "truncated": Column(_WHOLE, "answers that were cut at max_tokens"),
        "out_of_calls": Column(_TRUTH, "whether max_calls left contexts untested"),
    }

    def __init__(self, **settings: Any) -> None:
        if settings.get("entailer") == "judge":  # the prompt of a judge is then the option's
            settings["entailer"] = None
        super().__init__(**settings)

    def case(self, row: Given) -> tuple[Any, ...]:
        """Return question and passages."""
        return row.question, row.passages

    def cells(self, result: Any) -> Cells:
        """Return the columns' values."""
        return {
            "score": result.score,
            "certain": result.certain,
            "answer": result.answer,
            "answers": list(result.answers),
            "labels": list(result.labels),
            "context_ids": [one.id for one in result.passages],
            "truncated": result.truncated,
            "out_of_calls": result.out_of_calls,
        }


class RewriteBatch(MethodBatch):
    """An answer to each question, from a rewritten query where the first is uncertain: DynQR.

    It runs :class:`surerag.UncertaintyRewriter`. Settings: ``reader``, ``retriever``, ``encoder`` of its
    queries, ``rewriter`` (left out, the reader), ``entailer`` of a metric that asks one.
    """

    METHOD = UncertaintyRewriter
    PREFIX = "rewrite"
    FIELDS = ("question",)
    PARTS = ("reader", "retriever", "rewriter", "encoder", "entailer")
    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "answer": Column(_TEXT, "the answer that was kept"),
        "query": Column(_TEXT, "the query behind it"),
        "acted": Column(_TRUTH, "whether the gate called for a rewrite"),
        "kept": Column(_TEXT, "whose answer it is: original or rewritten"),
        "uncertainty": Column(_NUMBER, "of that answer; infinite where it says nothing"),
        "original_answer": Column(_TEXT, "the answer to the question as asked"),
        "original_uncertainty": Column(_NUMBER, "of that"),
        "abstained": Column(_TRUTH, "whether the answer is the refusal"),
        "retrievals": Column(_WHOLE, "how often the retriever was asked"),
        "contexts": Column(_TEXTS, "passages behind the answer"),
        "context_ids": Column(_TEXTS, "their ids"),
        "out_of_calls": Column(_TRUTH, "whether max_calls left rewrites untried"),
    }

    def case(self, row: Given) -> tuple[Any, ...]:
        """Return the question."""
        return (row.question,)

    def cells(self, result: Any) -> Cells:
        """Return the columns' values."""
        return {
            "answer": result.answer,
            "query": result.query,
            "acted": result.acted,
            "kept": result.kept,
            "uncertainty": result.uncertainty,
            "original_answer": result.original.answer,
            "original_uncertainty": result.original.uncertainty,
            "abstained": result.abstained,
            "retrievals": result.costs.retrievals,
            **_contexts(result.passages),
            "out_of_calls": result.out_of_calls,
        }


def _outcome(function: Any, row: Given) -> Any:
    try:
        return function(row)
    except Exception as error:
        return error


def _contexts(passages: Sequence[Passage]) -> Cells:
    return {"contexts": [one.text for one in passages], "context_ids": [one.id for one in passages]}


def _costs(spent: Costs | None) -> Cells:
    told = (spent or Costs()).to_dict()
    return {name: None if told[name] == "" else told[name] for name in COSTS}
