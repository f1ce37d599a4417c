"""From plain settings to who makes a command's units: here, and on every worker, by the same code."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from surerag.cli.entailers import EntailmentChoice
from surerag.cli.readers import ReaderChoice
from surerag.documents import Document
from surerag.encoders import packaged_minilm
from surerag.entailment import JudgeEntailer, NLIEntailer
from surerag.errors import InputError
from surerag.evaluation.comparison.making import RowMaker
from surerag.evaluation.systems.comparing import Measuring, work_of
from surerag.evaluation.systems.pipelines import Parts, build
from surerag.evaluation.systems.units import UnitMaker
from surerag.journal import Answers
from surerag.methods.seper.component import SePer
from surerag.methods.seper.options import SePerOptions
from surerag.options import plain
from surerag.places import Anywhere, place_of
from surerag.prices import load_prices
from surerag.readers.protocol import BaseReader
from surerag.recording import RecordedEntailer, RecordedReader, Tab
from surerag.records.conditions import Manner
from surerag.records.pipeline import Pipeline
from surerag.records.recorder import Recorder
from surerag.retrieval import PassageIndex, SummaryIndex, chunk_documents
from surerag.services import Encoder, Entailer, Retriever, Services
from surerag.types import Passage


class SePerModels:
    """The reader and who judges, as they are, and as they are asked with their answers kept.

    Args:
        reader: Who is measured.
        judge: Who judges; None for the reader itself.
        options: Of SePer.
        concurrency: Requests under way at a server.
    """

    def __init__(
        self, reader: BaseReader, judge: Entailer | None, options: SePerOptions, concurrency: int
    ) -> None:
        self._reader, self._judge = reader, judge
        self._options, self._concurrency = options, concurrency
        self.plain = self._seper(reader, judge or JudgeEntailer(reader))

    def kept(self, answers: Answers, tab: Tab) -> SePer:
        """Return a SePer that keeps and counts what it is answered."""
        recorded = RecordedReader(self._reader, answers, max_concurrency=self._concurrency, tab=tab)
        entailer: Entailer = JudgeEntailer(recorded) if self._judge is None else self._judge
        if isinstance(self._judge, NLIEntailer):
            entailer = RecordedEntailer(self._judge, answers)
        return self._seper(recorded, entailer)

    def _seper(self, reader: BaseReader, entailer: Entailer) -> SePer:
        return SePer(reader, entailer, **self._options.chosen())


def row_settings(
    choice: ReaderChoice, entailment: str | None, options: SePerOptions, concurrency: int, *, worked: bool
) -> dict[str, Any]:
    """Return what :func:`row_maker` needs to know."""
    return {
        "choice": plain(asdict(choice)),
        "entailment": entailment,
        "options": {name: plain(value) for name, value in options.chosen().items()},
        "concurrency": concurrency,
        "worked": worked,
    }


def row_maker(told: Mapping[str, Any]) -> RowMaker:
    """Return who measures the rows of ``surerag evaluate``."""
    choice = ReaderChoice(**told["choice"])
    judge = EntailmentChoice.chosen(told["entailment"], choice).loaded()
    options, concurrency = SePerOptions(**told["options"]), told["concurrency"]
    models = SePerModels(choice.build(), judge, options, concurrency)
    return RowMaker(models.kept, window=concurrency, worked=told["worked"])


def recording_settings(
    choice: ReaderChoice,
    documents: Anywhere,
    corpus: str,
    methods: Sequence[str],
    **shape: Any,
) -> dict[str, Any]:
    """Return what :func:`recorder` needs to know.

    Args:
        choice: Who answers.
        documents: Where the documents are, here and on every worker.
        corpus: Digest of their passages.
        methods: That are recorded.
        **shape: ``retrieval``, ``top_n``, ``max_tokens``, ``judge``, ``n_samples``, ``concurrency``.
    """
    return {
        "choice": plain(asdict(choice)),
        "documents": str(documents.resolve() if isinstance(documents, Path) else documents),
        "corpus": corpus,
        "methods": list(methods),
        **shape,
    }


def recorder(told: Mapping[str, Any]) -> Recorder:
    """Return who records the parts of ``surerag record`` and ``surerag calibrate``."""
    from surerag.cli.trace_runs import Corpus, documents_in

    choice = ReaderChoice(**told["choice"])
    documents = documents_in(place_of(told["documents"]))
    corpus = Corpus(documents, packaged_minilm(), told["retrieval"])
    _check_corpus(corpus.passages, told)
    parts = corpus.parts(choice.build(), told["methods"], top_n=told["top_n"], max_tokens=told["max_tokens"])
    manner = Manner(told["judge"], told["n_samples"], told["concurrency"], None)
    return Recorder(Pipeline.of(parts), manner, told["concurrency"])


def comparing_settings(
    choice: ReaderChoice, documents: Anywhere, corpus: str, **shape: Any
) -> dict[str, Any]:
    """Return what :func:`unit_maker` needs to know; ``shape`` are options of ``surerag compare``."""
    return {
        "choice": plain(asdict(choice)),
        "documents": str(documents.resolve() if isinstance(documents, Path) else documents),
        "corpus": corpus,
        **shape,
    }


def unit_maker(told: Mapping[str, Any]) -> UnitMaker:
    """Return who makes the units of ``surerag compare``."""
    from surerag.cli.trace_runs import documents_in

    choice = ReaderChoice(**told["choice"])
    reader = choice.build()
    parts, passages = system_parts(reader, packaged_minilm(), documents_in(place_of(told["documents"])), told)
    _check_corpus(passages, told)
    systems = {name: build(name, parts) for name in told["systems"]}
    services = Services(reader=reader, entailer=named_entailer(told["entailment"], choice, reader))
    measuring = Measuring(
        services.entailer is not None,
        told["rule"],
        told["seper"],
        told["understanding"],
        told["consistency"],
    )
    return UnitMaker(
        work_of(
            systems,
            services,
            measuring,
            prices=None if told["prices"] is None else load_prices(Path(told["prices"])),
            window=told["concurrency"],
            max_concurrency=told["concurrency"],
        )
    )


def system_parts(
    reader: BaseReader, encoder: Encoder, documents: Sequence[Document], told: Mapping[str, Any]
) -> tuple[Parts, Sequence[Passage]]:
    """Return what the systems of ``surerag compare`` share, and the passages that they search.

    Args:
        reader: Who answers.
        encoder: Finds passages and summaries.
        documents: To search.
        told: ``retrieval``, ``top_n``, ``max_tokens``, ``threshold``.
    """
    passages = chunk_documents(documents)
    retriever: Retriever
    if told["retrieval"] == "bm25":
        from surerag.records.field.bm25 import BM25Index

        retriever = BM25Index(passages)
    else:
        retriever = PassageIndex.from_passages(passages, encoder)
    parts = Parts(
        reader,
        retriever,
        SummaryIndex.from_documents(documents, encoder),
        encoder,
        top_n=told["top_n"],
        n_summaries=min(2, len(documents)),
        max_tokens=told["max_tokens"],
        threshold=told["threshold"],
    )
    return parts, passages


def named_entailer(named: str | None, choice: ReaderChoice, reader: BaseReader) -> Entailer | None:
    """Return who judges; None where nobody was named."""
    if named is None:
        return None
    return EntailmentChoice.chosen(named, choice).loaded() or JudgeEntailer(reader)


def corpus_digest(passages: Sequence[Passage]) -> str:
    """Return a digest of what is searched."""
    digest = hashlib.sha256()
    for one in passages:
        digest.update(repr((one.id, one.text)).encode("ascii", "backslashreplace"))
    return digest.hexdigest()[:32]


def _check_corpus(passages: Sequence[Passage], told: Mapping[str, Any]) -> None:
    if corpus_digest(passages) != told["corpus"]:
        raise InputError(
            f"{told['documents']} holds other documents on this worker than where the command runs",
            hint="put them where all nodes find the same, or copy them to the same place on each",
        )


def secrets_of(choice: ReaderChoice) -> tuple[str, ...]:
    """Return the names of the variables that hold keys here, and that workers have to have as well."""
    named = choice.base_url is not None and choice.api_key_env in os.environ
    return (choice.api_key_env,) if named else ()
