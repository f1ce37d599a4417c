"""The field test at work: a trace for each way of retrieving over the paragraphs of the data, and a pack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from surerag.drivers.progress import Stages
from surerag.methods.dense_rag.component import Dense
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.dynqr.metrics import Metric
from surerag.methods.edc2.component import ClusterCompressor
from surerag.methods.lazy_rag.combined_gates import GateLike
from surerag.methods.lazy_rag.component import LazyRAG
from surerag.methods.seper.component import SePer
from surerag.readers.protocol import BaseReader, Reader
from surerag.records.field.bm25 import BM25Index
from surerag.records.field.data import FieldData
from surerag.records.field.estimate import Cost, estimated
from surerag.records.packing import AllFigures, pack
from surerag.records.recorder import record
from surerag.records.trace import Trace
from surerag.retrieval import PassageIndex, SummaryIndex
from surerag.services import Encoder, Entailer, Retriever

Retrieval = Literal["bm25", "minilm"]
RETRIEVALS: tuple[Retrieval, ...] = ("bm25", "minilm")


@dataclass(frozen=True, slots=True)
class FieldTest:
    """What a field test asks for.

    Attributes:
        top_n: Passages to show.
        n_summaries: Summaries to show in L-RAG's first pass.
        n_samples: Answers to sample beside each one that a decision may be made on.
        seper_samples: Answers to sample in each context for ΔSePer.
        max_tokens: Length of an answer, at most.
        retrievals: Ways of retrieving; a trace each.
        hash_texts: Whether to keep digests in place of texts.
        window: Questions at work at a time.
        concurrency: Requests under way at a server.
        part_size: Questions in a part.
    """

    top_n: int = 3
    n_summaries: int = 2
    n_samples: int = 5
    seper_samples: int = 10
    max_tokens: int = 32
    retrievals: tuple[Retrieval, ...] = RETRIEVALS
    hash_texts: bool = False
    window: int = 64
    concurrency: int = 16
    part_size: int = 64


class Field:
    """A field test on some data.

    Args:
        data: Questions and paragraphs.
        encoder: Finds passages, summaries and clusters.
        wanted: What is asked for.
    """

    def __init__(self, data: FieldData, encoder: Encoder, wanted: FieldTest) -> None:
        self.data, self.wanted = data, wanted
        # Indices, the estimate and every clustering look at the same paragraphs.
        self._encoder = encoder = _Remembering(encoder)
        self._summaries = SummaryIndex.from_documents(data.documents, encoder)
        made: Mapping[Retrieval, Callable[[], Retriever]] = {
            "bm25": lambda: BM25Index(data.passages),
            "minilm": lambda: PassageIndex.from_passages(data.passages, encoder),
        }
        self._retrievers = {name: made[name]() for name in wanted.retrievals}

    def parts(self, name: Retrieval, reader: Reader, entailer: Entailer | None) -> Sequence[Any]:
        """Return all methods over one way of retrieving.

        Args:
            name: Of that way.
            reader: Who answers; what it cannot give is left out.
            entailer: Who judges answers; None leaves out what needs one.
        """
        wanted, can = self.wanted, reader.capabilities
        shape: dict[str, Any] = {"top_n": wanted.top_n, "max_tokens": wanted.max_tokens}
        gate: GateLike = "entropy" if can.entropy else "margin" if can.logprobs else "disagreement"
        metric: Metric = "perplexity" if can.logprobs else "disagreement"
        retriever = self._retrievers[name]
        found: list[Any] = [
            LazyRAG(
                reader,
                retriever,
                self._summaries,
                gate=gate,
                n_summaries=min(wanted.n_summaries, len(self.data.documents)),
                **shape,
            ),
            UncertaintyRewriter(
                reader, retriever, metric=metric, n_samples=max(wanted.n_samples, 2), **shape
            ),
            ClusterCompressor(reader, self._encoder, pass_below=0),
        ]
        if entailer is not None:
            found.append(
                SePer(reader, entailer, n_samples=wanted.seper_samples, max_tokens=wanted.max_tokens)
            )
            found.append(Dense(reader, entailer, max_tokens=wanted.max_tokens))
        return found

    def estimate(self, reader: BaseReader, entailer: Entailer | None) -> Cost:
        """Return what recording will cost, at most; no reader is asked."""
        judge = _Unlike() if entailer is not None else None
        costs = [
            estimated(
                lambda dry, name=name: self.parts(name, dry, judge),  # type: ignore[misc]  # of a loop
                self.data.questions,
                reader,
                n_samples=self.wanted.n_samples,
            )
            for name in self.wanted.retrievals
        ]
        return sum(costs[1:], start=costs[0])

    def record(
        self,
        reader: BaseReader,
        entailer: Entailer | None,
        folder: Path,
        stages: Stages,
        *,
        on_change: Literal["error", "restart"] = "error",
    ) -> list[Trace]:
        """Record a trace for each way of retrieving, going on where an earlier run ended."""
        wanted = self.wanted
        return [
            record(
                self.parts(name, reader, entailer),
                self.data.questions,
                folder / name,
                n_samples=wanted.n_samples,
                hash_texts=wanted.hash_texts,
                about={
                    "data": self.data.name,
                    "data_digest": self.data.digest,
                    "retriever": name,
                    "encoder": self._encoder.name,
                },
                part_size=wanted.part_size,
                window=wanted.window,
                max_concurrency=wanted.concurrency,
                on_change=on_change,
                progress=stages(f"Asking, over {name}"),
            )
            for name in wanted.retrievals
        ]

    def packed(self, folder: Path) -> AllFigures:
        """Compute figures and tables from the traces, and write them beside with a digest of every file."""
        about = {
            "data": self.data.name,
            "questions": len(self.data.questions),
            "available": self.data.available,
            "passages": len(self.data.passages),
        }
        return pack(folder, self.wanted.retrievals, about)


class _Remembering:
    """An encoder that reads each document once: on a CPU that is most of a small field test's time."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._known: dict[str, NDArray[np.float32]] = {}

    @property
    def name(self) -> str:
        return self._encoder.name

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        if kind == "query" or not texts:
            return self._encoder.encode(texts, kind)
        new = list(dict.fromkeys(text for text in texts if text not in self._known))
        if new:
            self._known.update(zip(new, self._encoder.encode(new, kind), strict=True))
        return np.stack([self._known[text] for text in texts])


class _Unlike:
    """Finds that no two answers mean the same, for estimates: it costs nothing."""

    local = True
    name = "unlike"

    def entail(self, pairs: Sequence[Any]) -> Any:
        return np.tile([1.0, 0.0, 0.0], (len(pairs), 1))
