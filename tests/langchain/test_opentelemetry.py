"""Traces as an OpenTelemetry backend gets them, by OpenInference's own instrumentation of LangChain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from langchain_surerag import ClusterCompressor, LazyRetrievalChain
from surerag.encoders import HashingEncoder
from world import embedded_reader

pytest.importorskip("openinference.instrumentation.langchain", reason="make test-models has it")
pytest.importorskip("opentelemetry.sdk.trace", reason="make test-models has it")

DOCUMENTS = [Document("Ada was born in Ruldmouth."), Document("Ada plays the harp.")]
QUESTION = "Which instrument does Ada play?"


@pytest.fixture
def exported() -> Iterator[Any]:
    from openinference.instrumentation.langchain import LangChainInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider, instrumentor = InMemorySpanExporter(), TracerProvider(), LangChainInstrumentor()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider)
    yield exporter
    instrumentor.uninstrument()


def chain(threshold: float) -> LazyRetrievalChain:
    return LazyRetrievalChain(
        embedded_reader(),
        RunnableLambda(lambda question: DOCUMENTS),
        "Ada was born in Ruldmouth.",
        threshold=threshold,
        max_tokens=16,
    )


def spans(exported: Any) -> dict[str, Any]:
    return {span.name: span for span in exported.get_finished_spans()}


def kind(span: Any) -> str:
    return str(span.attributes["openinference.span.kind"])


def test_both_passes_are_llm_spans_under_the_chain_and_none_has_failed(exported: Any) -> None:
    output = chain(0.0).invoke(QUESTION)
    found = spans(exported)
    root, gate, answer = found["LazyRetrievalChain"], found["surerag:gate"], found["surerag:answer"]
    assert kind(root) == "CHAIN" and kind(gate) == kind(answer) == "LLM"
    assert {span.parent.span_id for span in (gate, answer)} <= {
        span.context.span_id for span in found.values()
    }
    assert all(span.status.is_ok or span.status.is_unset for span in found.values())
    assert answer.attributes["llm.token_count.completion"] > 0
    assert output["answer"] in str(dict(answer.attributes))
    assert QUESTION in str(dict(answer.attributes))


async def test_a_shut_gate_is_one_llm_span(exported: Any) -> None:
    await chain(50.0).ainvoke(QUESTION)
    calls = [span for span in exported.get_finished_spans() if kind(span) == "LLM"]
    assert calls
    assert all(span.status.is_ok or span.status.is_unset for span in exported.get_finished_spans())


def test_compressions_are_spans_as_well(exported: Any) -> None:
    compressor = ClusterCompressor(embedded_reader(), HashingEncoder(), first_cluster_size=4)
    similar = [Document(f"Ada plays the harp, and in {town} she plays it well.") for town in ("Velm", "Orun")]
    compressor.as_runnable().invoke({"documents": [*DOCUMENTS, *similar], "query": QUESTION})
    assert "LLM" in {kind(span) for span in exported.get_finished_spans()}
