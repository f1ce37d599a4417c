"""Summaries on the disk as tier 1 of the core and both frameworks: the same answers and decisions."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from surerag.cli.frameworks import Indices, index_passages

from langchain_surerag import LazyRetrievalChain
from llama_index_surerag import LazyRetrievalQueryEngine
from surerag import LazyRAG
from surerag.documents import Document
from surerag.encoders import HashingEncoder
from surerag.retrieval import DiskSummaryIndex, PassageIndex
from world import World, embedded_reader

SETTINGS: dict[str, Any] = {"top_n": 3, "n_summaries": 2, "max_tokens": 12}
WORLD = World(seed=5, size=60)
QUESTIONS = [question.text for question in WORLD.questions(6)]


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> DiskSummaryIndex:
    documents = (Document(document.id, document.lead) for document in WORLD.documents)
    return DiskSummaryIndex.from_documents(
        tmp_path_factory.mktemp("summaries"), documents, HashingEncoder(), n_cells=8, n_probe=4
    )


@pytest.fixture(scope="module")
def indices() -> Indices:
    vectors = HashingEncoder().encode([passage.text for passage in WORLD.passages], "document")
    return index_passages(WORLD.passages, vectors, HashingEncoder())


def of_chain(output: dict[str, Any]) -> Any:
    found = [document.id for document in output["summaries"]]
    return output["answer"], output["decision"]["retrieve"], output["decision"]["signal"], found


def of_engine(response: Any) -> Any:
    told = response.metadata
    return str(response), told["retrieve"], told["signal"], told["summary_ids"]


async def test_core_chain_and_engine_agree_sync_and_async(
    summaries: DiskSummaryIndex, indices: Indices
) -> None:
    reader = embedded_reader()
    passages = PassageIndex.from_passages(WORLD.passages, HashingEncoder())
    trial = LazyRAG(reader, passages, summaries, **SETTINGS).run_many(QUESTIONS)
    # A threshold between two signals: both branches are taken, and rounding decides nothing.
    signals = sorted(result.decision.signal or 0.0 for result in trial)
    settings = {**SETTINGS, "threshold": (signals[2] + signals[3]) / 2}
    core = LazyRAG(reader, passages, summaries, **settings)
    expected = [
        (
            result.answer,
            result.decision.retrieve,
            pytest.approx(result.decision.signal, abs=1e-5),
            [summary.id for summary in result.summaries],
        )
        for result in core.run_many(QUESTIONS)
    ]
    assert {row[1] for row in expected} == {True, False}
    chain = LazyRetrievalChain(
        reader,
        indices.langchain.as_retriever(search_kwargs={"k": 3}),
        summaries,
        return_details=True,
        **settings,
    )
    engine = LazyRetrievalQueryEngine.from_args(indices.llama_index, reader, summaries=summaries, **settings)
    ways = {
        "invoke": [of_chain(chain.invoke(question)) for question in QUESTIONS],
        "batch": [of_chain(output) for output in await asyncio.to_thread(chain.batch, QUESTIONS)],
        "abatch": [of_chain(output) for output in await chain.abatch(QUESTIONS)],
        "query": [of_engine(engine.query(question)) for question in QUESTIONS],
        "aquery": [of_engine(await engine.aquery(question)) for question in QUESTIONS],
        "query_many": [of_engine(response) for response in engine.query_many(QUESTIONS)],
    }
    for way, found in ways.items():
        assert found == expected, way


def test_a_folder_may_be_moved(summaries: DiskSummaryIndex, tmp_path: Path) -> None:
    shutil.copytree(summaries.folder, tmp_path / "moved")
    moved = DiskSummaryIndex(tmp_path / "moved", HashingEncoder())
    assert moved.retrieve_many(QUESTIONS) == summaries.retrieve_many(QUESTIONS)
