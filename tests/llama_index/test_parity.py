"""The same answers, decisions and entropies from core and engine; merged batches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llama_index_surerag import LazyRetrievalQueryEngine
from surerag import TransformersReader
from surerag.drivers import merge_settings
from tests.drivers.local_reader import LocalReader
from tests.llama_index import corpus
from tests.llama_index.core_parts import SETTINGS, core
from tests.llama_index.corpus import KNOWN, UNKNOWN
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

QUESTIONS = [KNOWN, UNKNOWN, "What are the gates of Tarn made of?", "Who paints rivers?"]


@pytest.fixture(scope="module")
def reader() -> TransformersReader:
    return TransformersReader(tiny_model("llama"), tiny_tokenizer(chat=True))


def engine(reader: object, **settings: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(corpus.index(), reader, **SETTINGS, **settings)


def test_both_branches_are_taken(reader: TransformersReader) -> None:
    entropies = sorted(result.decision.signal for result in core(reader).run_many(QUESTIONS))
    assert entropies[0] < entropies[-1]


@pytest.mark.parametrize("mode", ["lazy", "standard", "strong"])
async def test_core_and_engine_agree_sync_async_alone_batched_and_streamed(
    reader: TransformersReader, mode: str
) -> None:
    entropies = sorted(result.decision.signal for result in core(reader).run_many(QUESTIONS))
    tau = (entropies[1] + entropies[2]) / 2
    expected = core(reader, mode=mode, threshold=tau).run_many(QUESTIONS)
    lazy, streaming = (
        engine(reader, mode=mode, threshold=tau),
        engine(reader, mode=mode, threshold=tau, streaming=True),
    )
    streamed = [response.get_response() for response in map(streaming.query, QUESTIONS)]
    ways = {
        "alone": [lazy.query(question) for question in QUESTIONS],
        "async": [await lazy.aquery(question) for question in QUESTIONS],
        "at once": await asyncio.gather(*map(lazy.aquery, QUESTIONS)),
        "batched": lazy.query_many(QUESTIONS),
        "streamed": streamed,
    }
    for way, responses in ways.items():
        for result, response in zip(expected, responses, strict=True):
            assert response.response == result.answer, way
            assert response.metadata["retrieve"] == result.decision.retrieve, way
            assert response.metadata["passage_ids"] == [passage.id for passage in result.passages], way
            if mode == "lazy":
                for name in ("signal", "lower", "upper"):
                    assert response.metadata[name] == pytest.approx(
                        getattr(result.decision, name), abs=1e-5
                    ), way
            for name in ("prompt_tokens", "completion_tokens", "retrievals"):
                assert response.metadata[name] == getattr(result, name), (way, name)
    if mode == "lazy":
        assert {result.decision.retrieve for result in expected} == {True, False}


async def test_sixteen_concurrent_queries_are_answered_in_merged_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However slow the machine: whoever asks the model waits until all sixteen do.
    monkeypatch.setattr(merge_settings, "window", 60.0)
    local = LocalReader(corpus.answer, corpus.entropy)
    lazy = LazyRetrievalQueryEngine.from_args(corpus.index(), local, n_summaries=1)
    questions = [KNOWN if place % 2 else UNKNOWN for place in range(16)]
    responses = await asyncio.gather(*map(lazy.aquery, questions))
    assert [response.metadata["retrieve"] for response in responses] == [not place % 2 for place in range(16)]
    assert local.batches[0] == ("begin", 16)
    # Eight answers go on, and eight are made anew from what was retrieved: the same question, asked once.
    assert sorted(local.batches[1:]) == [("finish", 8), ("generate", 1)]
    assert not local.open
