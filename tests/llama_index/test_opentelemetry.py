"""Traces as an OpenTelemetry backend gets them, by OpenInference's own instrumentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine

from llama_index_surerag import (
    ClusterCompressorPostprocessor,
    DenseEvaluator,
    LazyRetrievalQueryEngine,
    UncertaintyRewriteQueryEngine,
)
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from tests.llama_index import corpus
from tests.llama_index.conftest import KEY, like
from tests.llama_index.corpus import KNOWN, UNKNOWN, Knowing
from tests.servers.fake_openai import FakeOpenAI
from world import embedded_reader

pytest.importorskip("openinference.instrumentation.llama_index", reason="make test-models has it")
pytest.importorskip("opentelemetry.sdk.trace", reason="make test-models has it")


@pytest.fixture
def exported() -> Iterator[Any]:
    from openinference.instrumentation.llama_index import LlamaIndexInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider, instrumentor = InMemorySpanExporter(), TracerProvider(), LlamaIndexInstrumentor()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider)
    yield exporter
    instrumentor.uninstrument()


def lazy(reader: Any, **settings: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(
        corpus.index(), reader, **{"top_n": 1, "n_summaries": 1, **settings}
    )


def named(exported: Any, name: str) -> list[Any]:
    return [span for span in exported.get_finished_spans() if span.name == name]


def kinds(spans: Sequence[Any]) -> list[str]:
    return [span.attributes["openinference.span.kind"] for span in spans]


def test_a_local_models_calls_are_llm_spans_with_name_messages_and_tokens(exported: Any) -> None:
    reader = embedded_reader()
    engine = lazy(reader, threshold=0.0)
    exported.clear()
    before = reader.usage
    response = engine.query(UNKNOWN)
    calls = named(exported, "TransformersReader.generate")
    assert kinds(calls) == ["LLM", "LLM"]
    for call in calls:
        assert call.attributes["llm.model_name"] == reader.name
        assert UNKNOWN in call.attributes["llm.input_messages.0.message.content"]
        assert call.attributes["llm.input_messages.0.message.role"] == "user"
    assert calls[-1].attributes["llm.output_messages.0.message.content"] == str(response)
    for name, used in (
        ("prompt", reader.usage.prompt_tokens - before.prompt_tokens),
        ("completion", reader.usage.completion_tokens - before.completion_tokens),
    ):
        assert sum(call.attributes[f"llm.token_count.{name}"] for call in calls) == used


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("question", [KNOWN, UNKNOWN])
async def test_the_gates_decision_is_a_span_with_opentelemetrys_names(
    exported: Any, question: str, streaming: bool
) -> None:
    engine = lazy(Knowing(corpus.answer), streaming=streaming)
    for use_async in (False, True):
        exported.clear()
        response: Any = await engine.aquery(question) if use_async else engine.query(question)
        if streaming and use_async:
            await response.get_response()
        elif streaming:
            response.get_response()
        [gate] = named(exported, "LazyRAG.gate")
        found = {name: value for name, value in gate.attributes.items() if not name.startswith("input")}
        opened = question == UNKNOWN
        assert (
            found.items()
            >= {
                "gen_ai.evaluation.name": "surerag.lazy_rag.gate",
                "gen_ai.evaluation.score.value": response.metadata["signal"],
                "gen_ai.evaluation.score.label": "retrieve" if opened else "answer",
                "gen_ai.evaluation.explanation": response.metadata["reason"],
                "surerag.lazy_rag.gate.threshold": 1.0,
                "surerag.lazy_rag.gate.unit": "nats",
                "surerag.lazy_rag.gate.retrieve": opened,
                "output.value": "retrieve" if opened else "answer",
            }.items()
        )
        [event] = gate.events
        assert event.name == "gen_ai.evaluation.result"
        [query] = [span for span in exported.get_finished_spans() if span.parent is None]
        ids = {span.context.span_id: span for span in exported.get_finished_spans()}
        assert ids[gate.parent.span_id].parent.span_id == query.context.span_id
        assert {"LLM", "RETRIEVER", "EMBEDDING", "CHAIN"} <= {*kinds(exported.get_finished_spans())}
        assert len(named(exported, "VectorIndexRetriever._retrieve")) + len(
            named(exported, "VectorIndexRetriever._aretrieve")
        ) == int(opened)
        [tier] = named(exported, "SummaryTier.retrieve")
        assert tier.attributes["retrieval.documents.0.document.id"] == response.metadata["summary_ids"][0]
        [made] = named(exported, "surerag.synthesize")
        assert made.attributes["output.value"]


def test_a_rewriters_decision_is_a_span_too(exported: Any) -> None:
    engine = UncertaintyRewriteQueryEngine.from_args(corpus.index(), Knowing(corpus.answer), top_n=1)
    exported.clear()
    response = engine.query(UNKNOWN)
    [gate] = named(exported, "DynQR.gate")
    assert gate.attributes["gen_ai.evaluation.name"] == "surerag.dynqr.gate"
    assert gate.attributes["gen_ai.evaluation.score.label"] == response.metadata["steps"][0]["outcome"]
    assert gate.attributes["surerag.dynqr.gate.metric"] == "perplexity"


def test_a_postprocessor_is_a_reranker_with_its_documents(exported: Any) -> None:
    reader = Knowing(corpus.answer)
    compressor = ClusterCompressorPostprocessor(reader, HashingEncoder(), pass_below=0)
    engine = RetrieverQueryEngine.from_args(
        corpus.index().as_retriever(similarity_top_k=2), node_postprocessors=[compressor], llm=MockLLM()
    )
    exported.clear()
    engine.query(KNOWN)
    [span] = named(exported, "ClusterCompressorPostprocessor._postprocess_nodes")
    assert kinds([span]) == ["RERANKER"]
    assert span.attributes["reranker.model_name"] == reader.name
    assert span.attributes["reranker.query"] == KNOWN
    assert span.attributes["reranker.input_documents.1.document.id"]
    assert span.attributes["reranker.output_documents.0.document.id"]
    [vectors] = named(exported, "HashingEncoder.encode")[:1]
    assert kinds([vectors]) == ["EMBEDDING"]
    assert vectors.attributes["embedding.model_name"] == HashingEncoder().name


def test_an_evaluation_is_on_its_span(exported: Any) -> None:
    result = DenseEvaluator(Knowing(corpus.answer), ExactEntailer()).evaluate(KNOWN, contexts=["a b"])
    [span] = named(exported, "DenseEvaluator.evaluate")
    assert span.attributes["gen_ai.evaluation.name"] == "surerag.dense"
    assert span.attributes["gen_ai.evaluation.score.value"] == result.score
    assert span.attributes["gen_ai.evaluation.score.label"] == ("pass" if result.passing else "fail")


def test_no_key_is_in_a_trace(exported: Any) -> None:
    with FakeOpenAI() as server:
        lazy(like(server), threshold=0.0).query(UNKNOWN)
    written = [span.to_json() for span in exported.get_finished_spans()]
    assert any("toy" in span for span in written)
    assert not [span for span in written if KEY in span]
