"""A trace of both frameworks' pipelines on the closed world, replayed: identical decisions, nothing asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from langchain_surerag import LazyRetrievalChain
from langchain_surerag import UncertaintyRewriter as LangChainRewriter
from llama_index_surerag import LazyRetrievalQueryEngine, UncertaintyRewriteQueryEngine
from surerag import LazyRAG
from surerag.cli.frameworks import Indices, index_passages
from surerag.decisions.calibrating import calibrate
from surerag.encoders import HashingEncoder
from surerag.readers.protocol import BaseReader, ReaderAround
from surerag.records import NotRecordedError, Trace, record
from surerag.retrieval import SummaryIndex
from surerag.services import Retriever
from surerag.types import Passage
from surerag.world import World, embedded_reader

SETTINGS: dict[str, Any] = {"top_n": 3, "n_summaries": 2, "max_tokens": 16}
N = 10


class Silent(ReaderAround):
    """Fails the test if it is asked."""

    def generate(self, prompts, sampling) -> Any:
        raise AssertionError("the model was asked")

    begin = generate


@pytest.fixture(scope="module")
def reader() -> BaseReader:
    return embedded_reader()


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=5, size=60)


@pytest.fixture(scope="module")
def indices(world: World) -> Indices:
    encoder = HashingEncoder()
    vectors = encoder.encode([passage.text for passage in world.passages], "document")
    return index_passages(world.passages, vectors, encoder)


@pytest.fixture(scope="module")
def summaries(world: World) -> Retriever:
    leads = [Passage(document.lead, id=document.id) for document in world.documents]
    return SummaryIndex.from_passages(leads, HashingEncoder())


def engine(indices: Indices, reader: BaseReader, summaries: Retriever, **more: Any) -> Any:
    return LazyRetrievalQueryEngine.from_args(
        indices.llama_index, reader, summaries=summaries, **SETTINGS, **more
    )


def chain(indices: Indices, reader: BaseReader, summaries: Retriever, **more: Any) -> Any:
    retriever = indices.langchain.as_retriever(search_kwargs={"k": 3})
    return LazyRetrievalChain(reader, retriever, summaries, **SETTINGS, **more)


def rewriting(indices: Indices, reader: BaseReader, framework: str) -> Any:
    settings: dict[str, Any] = {"top_n": 3, "max_tokens": 16}
    if framework == "llama_index":
        return UncertaintyRewriteQueryEngine.from_args(indices.llama_index, reader, **settings)
    retriever = indices.langchain.as_retriever(search_kwargs={"k": 3})
    return LangChainRewriter(llm=reader, retriever=retriever, **settings)


def middle(values: list[float]) -> float:
    """Return a threshold between two values, so that rounding decides nothing."""
    ordered = sorted(values)
    return (ordered[len(ordered) // 2 - 1] + ordered[len(ordered) // 2]) / 2


def told_by(response: Any) -> dict[str, Any]:
    """Return what a pipeline of either framework answered, decided and showed."""
    if isinstance(response, dict):
        shown = [document.page_content for document in response["context"]]
        return {**response["decision"], "answer": response["answer"], "shown": shown}
    names = ("retrieve", "signal", "lower", "upper", "exact", "threshold", "reason", "tokens", "calls")
    told = {name: response.metadata[name] for name in names}
    shown = [node.text for node in response.source_nodes]
    return {**told, "answer": str(response), "shown": shown}


def decided(pipeline: Any, text: str) -> dict[str, Any]:
    return told_by(pipeline.query(text) if hasattr(pipeline, "query") else pipeline.invoke(text))


async def adecided(pipeline: Any, text: str) -> dict[str, Any]:
    asked = pipeline.aquery(text) if hasattr(pipeline, "aquery") else pipeline.ainvoke(text)
    return told_by(await asked)


def same(again: dict[str, Any], live: dict[str, Any]) -> None:
    """Check that two runs decided the same; signals went through a file with fewer digits."""
    for name in ("signal", "lower", "upper"):
        assert again[name] == pytest.approx(live[name], abs=1e-4)
    assert {**again, **{name: live[name] for name in ("signal", "lower", "upper")}} == {
        name: live[name] for name in again
    }


@pytest.mark.parametrize("framework", ["llama_index", "langchain"])
async def test_a_recorded_pipeline_decides_the_same_when_it_is_replayed(
    framework: str,
    reader: BaseReader,
    world: World,
    indices: Indices,
    summaries: Retriever,
    tmp_path: Path,
) -> None:
    made = engine if framework == "llama_index" else chain
    asked = [(question.text, question.answers) for question in world.questions(N)]
    texts = [text for text, _ in asked]

    trace = record(
        [made(indices, reader, summaries), rewriting(indices, reader, framework)],
        asked,
        tmp_path / "trace",
        part_size=4,
    )
    threshold = middle([row.under("summaries").signals["mean_entropy_8"] for row in trace])
    live = [decided(made(indices, reader, summaries, threshold=threshold), text) for text in texts]
    assert {one["retrieve"] for one in live} == {True, False}

    # In the framework's own pipeline, on its own retriever, with the recorded reader.
    replayed = made(indices, Trace(tmp_path / "trace").reader(), summaries, threshold=threshold)
    for text, one in zip(texts, live, strict=True):
        same(decided(replayed, text), one)

    # Asynchronously, all questions at a time; in batches, and as a stream.
    for again, one in zip(
        await asyncio.gather(*(adecided(replayed, text) for text in texts)), live, strict=True
    ):
        same(again, one)
    if framework == "langchain":
        for outputs in (replayed.batch(texts), await replayed.abatch(texts)):
            for output, one in zip(outputs, live, strict=True):
                same(told_by(output), one)
    streamed = made(
        indices,
        trace.reader(),
        summaries,
        threshold=threshold,
        **({"streaming": True} if framework == "llama_index" else {}),
    )
    for text, one in zip(texts, live, strict=True):
        if framework == "langchain":
            flowing = list(streamed.stream(text))
            words = "".join(chunk["answer"] for chunk in flowing if "answer" in chunk)
            told = next(chunk["decision"] for chunk in flowing if "decision" in chunk)
        else:
            response = streamed.query(text)
            words, told = "".join(response.response_gen), response.metadata
        assert (words, told["retrieve"]) == (one["answer"], one["retrieve"])

    # And without the framework, its index or any model: all from the trace.
    alone = LazyRAG(
        trace.reader(), trace.retriever(), trace.retriever("summaries"), threshold=threshold, **SETTINGS
    )
    results = alone.run_many(texts)
    assert [result.decision.retrieve for result in results] == [one["retrieve"] for one in live]
    assert [result.answer for result in results] == [one["answer"] for one in live]

    # DynQR's decisions, too.
    ours = rewriting(indices, reader, framework)
    theirs = rewriting(indices, trace.reader(), framework)
    for text in texts:
        mine, others = ours.core.run(text).steps, (await theirs.core.arun(text)).steps
        assert [(one.name, one.outcome, one.reason) for one in others] == [
            (one.name, one.outcome, one.reason) for one in mine
        ]
        assert [one.uncertainty or 0.0 for one in others] == pytest.approx(
            [one.uncertainty or 0.0 for one in mine], rel=1e-4
        )
    with pytest.raises(NotRecordedError, match="holds no answer to the prompt that ends in"):
        decided(replayed, "Who was never asked about?")


def test_calibrating_from_a_trace_is_calibrating_on_the_model(
    reader: BaseReader, world: World, indices: Indices, summaries: Retriever, tmp_path: Path
) -> None:
    asked = [(question.text, question.answers) for question in world.questions(N)]
    texts, golds = [text for text, _ in asked], [answers for _, answers in asked]
    pipeline = engine(indices, reader, summaries)
    trace = record(pipeline, asked, tmp_path, judge="exact_match")
    live = calibrate(pipeline.core, pipeline.core.rows(texts, golds), target="best")
    alone = LazyRAG(trace.reader(), trace.retriever(), trace.retriever("summaries"), **SETTINGS)
    replayed = calibrate(alone, alone.rows(texts, golds), target="best")
    assert replayed.threshold == pytest.approx(live.threshold, abs=1e-4)
    assert (replayed.n, replayed.rate, replayed.loss, replayed.identity) == (
        live.n,
        live.rate,
        live.loss,
        live.identity,
    )
    rows = list(trace.decision_rows("summaries", "strong"))
    assert [row.signals["mean_entropy_8"] for row in rows] == pytest.approx(
        [result.decision.signal for result in alone.with_options(threshold=9).run_many(texts)]
    )
    # The component finds the signal that it decides by under its own name.
    assert [row.signals[alone.signal] for row in rows] == [row.signals["mean_entropy_8"] for row in rows]
    # Sampled answers were recorded as well, as the gate on disagreement samples them.
    sampling = LazyRAG(
        trace.reader(), trace.retriever(), trace.retriever("summaries"), gate="disagreement", **SETTINGS
    )
    told = [result.decision.signal for result in sampling.run_many(texts)]
    assert told == pytest.approx([row.signals["disagreement"] for row in rows])


def test_a_complete_trace_asks_no_model(
    reader: BaseReader, world: World, indices: Indices, summaries: Retriever, tmp_path: Path
) -> None:
    asked = [(question.text, question.answers) for question in world.questions(4)]
    before = list(record(engine(indices, reader, summaries), asked, tmp_path))
    again = record(engine(indices, Silent(reader), summaries), asked, tmp_path)
    assert list(again) == before
