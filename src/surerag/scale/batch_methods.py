"""The five methods as batch callables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from surerag.extras import extra
from surerag.methods.dense_rag.component import Dense
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.edc2.component import ClusterCompressor
from surerag.methods.edc2.result import SOURCES_KEY
from surerag.methods.lazy_rag.component import LazyRAG
from surerag.methods.seper.component import SePer
from surerag.scale.batch import Cells, Column
from surerag.scale.batch_component import MethodBatch
from surerag.scale.batch_fields import Given
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


def _contexts(passages: Sequence[Passage]) -> Cells:
    return {"contexts": [one.text for one in passages], "context_ids": [one.id for one in passages]}
