"""Uncertainty-guided rewriting as a query engine, and the engine that abstains."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from llama_index.core import PromptTemplate, QueryBundle, VectorStoreIndex
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine, RouterQueryEngine, TransformQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever, TransformRetriever
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_surerag import (
    AbstainingQueryEngine,
    ClusterCompressorPostprocessor,
    LazyRetrievalQueryEngine,
    UncertaintyRewriteQueryEngine,
    UncertaintyRewriteRetriever,
    UncertaintyRewriteTransform,
)
from surerag import FakeReader
from surerag.calibration import AbstentionPolicy, CalibrationWarning, scope_of
from surerag.encoders import HashingEncoder
from surerag.errors import CapabilityError, ConfigurationError, InputError, TransientServiceError
from surerag.readers.fake import reply
from tests.llama_index import corpus
from tests.llama_index.corpus import KEY, KNOWN, UNKNOWN, HashEmbedding, knowing, like
from tests.llama_index.llms import Own
from tests.servers.fake_openai import FakeOpenAI

VAGUE = "It is long and cold, and where is its rest?"


def reader() -> FakeReader:
    """Rewrites the vague question, is unsure of it, and sure where it is shown the end of the river."""

    def reply_to(prompt: str) -> Any:
        if "Rewrite the query" in prompt:
            return reply(UNKNOWN)
        if "lake of Mir" in prompt:
            return reply("In the lake of Mir", logprobs=-0.05)
        return reply("In Tarn", logprobs=-1.0)

    return FakeReader(reply_to)


def engine(llm: Any = None, index: Any = None, **settings: Any) -> UncertaintyRewriteQueryEngine:
    source = corpus.index() if index is None else index
    return UncertaintyRewriteQueryEngine.from_args(
        source, reader() if llm is None else llm, **{"top_n": 1, **settings}
    )


async def test_rewrites_and_returns_the_less_uncertain_answer() -> None:
    rewriting = engine()
    for response in (rewriting.query(VAGUE), await rewriting.aquery(VAGUE)):
        assert str(response) == "In the lake of Mir"
        metadata = response.metadata
        assert metadata["query"] == UNKNOWN
        assert metadata["acted"] is metadata["rewritten"] is True
        assert metadata["original_answer"] == "In Tarn"
        assert metadata["uncertainty"] < 1.2 < metadata["original_uncertainty"]
        assert metadata["finish"] == "stop"
        assert [node.node_id for node in response.source_nodes] == ["orun-1"]


def test_a_certain_answer_stands() -> None:
    metadata = engine().query(UNKNOWN).metadata
    assert (metadata["acted"], metadata["calls"]) == (False, 1)


@pytest.mark.parametrize("answer", ["original", "rewrite"])
async def test_answers_the_question_or_its_rewrite(answer: str) -> None:
    model = reader()
    rewriting = engine(model, answer=answer)
    assert str(rewriting.query(VAGUE)) == str(await rewriting.aquery(VAGUE)) == "In the lake of Mir"
    [prompt] = {text for call in model.history for text in call.prompts if "lake of Mir" in text}
    assert (UNKNOWN in prompt, VAGUE in prompt) == (answer == "rewrite", answer == "original")


def test_a_rewriter_of_its_own_is_asked() -> None:
    rewriter = FakeReader([UNKNOWN])
    assert str(engine(rewriter=rewriter).query(VAGUE)) == "In the lake of Mir"
    assert len(rewriter.history) == 1


def test_works_over_a_server_and_keeps_the_key_to_itself() -> None:
    with FakeOpenAI(corpus.answer) as server:
        rewriting = engine(like(server))
        response = rewriting.query(UNKNOWN)
        assert str(response).startswith("In the lake of Mir")
        assert KEY not in str(rewriting.to_dict())
    assert server.requests[0]["logprobs"] is True


def test_refuses_an_llm_without_what_the_metric_needs() -> None:
    llm = type("Ollama", (Own,), {"__module__": "llama_index.llms.ollama"})()
    with pytest.raises(CapabilityError, match="Ollama returns no log-probabilities"):
        engine(llm)
    assert engine(llm, metric="semantic_entropy")


def test_an_empty_index_answers_as_llama_index_does() -> None:
    assert (
        str(engine(index=VectorStoreIndex([], embed_model=HashEmbedding())).query(KNOWN)) == "Empty Response"
    )


# In the user's own pipelines


def transform(llm: Any = None, index: Any = None, **settings: Any) -> UncertaintyRewriteTransform:
    source = (corpus.index() if index is None else index).as_retriever(similarity_top_k=1)
    return UncertaintyRewriteTransform(source, reader() if llm is None else llm, **settings)


def prompts_of(llm: Own) -> list[str]:
    return [call["prompt"] for call in llm._calls]


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_transform_searches_for_the_rewrite_and_answers_the_question(use_async: bool) -> None:
    index, llm = corpus.index(), Own()
    plain = index.as_query_engine(llm=llm, similarity_top_k=1)
    whole = TransformQueryEngine(plain, transform(index=index))
    response = await whole.aquery(VAGUE) if use_async else whole.query(VAGUE)
    assert [node.node_id for node in response.source_nodes] == ["orun-1"]
    assert VAGUE in prompts_of(llm)[0]
    assert UNKNOWN not in prompts_of(llm)[0]


async def test_a_transform_that_replaces_the_query_searches_by_words_too() -> None:
    words = BM25Retriever.from_defaults(nodes=corpus.nodes(), similarity_top_k=1)
    assert words.retrieve(VAGUE)[0].node_id != "orun-1"
    replacing = TransformRetriever(words, transform(replace=True))
    for nodes in (replacing.retrieve(VAGUE), await replacing.aretrieve(VAGUE)):
        assert [node.node_id for node in nodes] == ["orun-1"]


class Mask(BaseNodePostprocessor):
    """Takes every node out that is about Ada."""

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        return [node for node in nodes if node.node.ref_doc_id != "ada"]


@pytest.mark.parametrize("part", [UncertaintyRewriteTransform, UncertaintyRewriteRetriever])
def test_masks_hold_before_a_query_is_judged(part: Any) -> None:
    llm = Own(sure=0.9)
    masked = part(corpus.index(), llm, node_postprocessors=[Mask()], top_n=3)
    masked.run(KNOWN) if part is UncertaintyRewriteTransform else masked.retrieve(KNOWN)
    assert llm._calls
    assert not any("Velm" in prompt for prompt in prompts_of(llm))


@pytest.mark.parametrize("replace", [False, True])
def test_a_rewritten_query_is_embedded_anew(replace: bool) -> None:
    [vector] = HashEmbedding()._vectors([VAGUE])
    bundle = QueryBundle(VAGUE, embedding=list(vector))
    rewritten = transform(replace=replace).run(bundle)
    assert rewritten.embedding is None
    assert rewritten.embedding_strs == [UNKNOWN]
    assert rewritten.query_str == (UNKNOWN if replace else VAGUE)
    assert bundle == QueryBundle(VAGUE, embedding=vector)
    assert transform(replace=replace).run(QueryBundle(UNKNOWN)) == QueryBundle(UNKNOWN)


class Failing(FakeReader):
    """Is overloaded."""

    def generate(self, *arguments: Any, **more: Any) -> Any:
        raise TransientServiceError("overloaded")


async def test_where_the_model_fails_the_query_stays(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing([])
    assert transform(failing).run(VAGUE).query_str == VAGUE
    retriever = UncertaintyRewriteRetriever(corpus.index(), failing, top_n=1)
    expected = corpus.index().as_retriever(similarity_top_k=1).retrieve(VAGUE)
    for nodes in (retriever.retrieve(VAGUE), await retriever.aretrieve(VAGUE)):
        assert [node.node_id for node in nodes] == [node.node_id for node in expected]
    assert caplog.text.count("dynqr.failed") == 3


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_retriever_in_an_engine_of_ones_own(use_async: bool) -> None:
    llm = Own()
    rewriting = UncertaintyRewriteRetriever(corpus.index(), reader(), top_n=1)
    shorten = ClusterCompressorPostprocessor(FakeReader(lambda prompt: "yes"), HashingEncoder())
    whole = RetrieverQueryEngine.from_args(rewriting, llm=llm, node_postprocessors=[shorten])
    response = await whole.aquery(VAGUE) if use_async else whole.query(VAGUE)
    [node] = response.source_nodes
    assert node.node_id == "orun-1"
    assert node.decision["query"] == UNKNOWN
    assert node.decision["rewritten"] is True
    assert "rewritten" not in prompts_of(llm)[0]
    assert VAGUE in prompts_of(llm)[0]
    assert json.dumps(node.decision)


@pytest.mark.parametrize("mode", ["simple", "reciprocal_rerank", "relative_score"])
async def test_a_retriever_is_fused_with_others(mode: str) -> None:
    plain = corpus.index().as_retriever(similarity_top_k=2)
    fused = [
        QueryFusionRetriever([one, plain], llm=Own(), mode=mode, num_queries=1, similarity_top_k=2)
        for one in (plain, UncertaintyRewriteRetriever(corpus.index(), knowing(), top_n=2))
    ]
    expected, *others = [[(node.node_id, node.score) for node in await one.aretrieve(KNOWN)] for one in fused]
    assert len(expected) == 2
    assert others == [expected]


async def test_a_retriever_does_not_block_the_loop() -> None:
    with FakeOpenAI(["Velm"], seconds=0.2) as server:
        rewriting = UncertaintyRewriteRetriever(corpus.index(), like(server), threshold=math.inf, top_n=1)
        await asyncio.gather(*(rewriting.aretrieve(KNOWN) for _ in range(4)))
        assert server.peak == 4


def test_prompts_of_transform_and_retriever_are_templates() -> None:
    retriever = UncertaintyRewriteRetriever(corpus.index(), reader())
    for part in (transform(), retriever):
        part.update_prompts({"rewrite": PromptTemplate("Rewrite the query: {query_str}")})
        assert part.get_prompts()["rewrite"].get_template() == "Rewrite the query: {query_str}"
    assert "query_transform:rewrite" in TransformRetriever(retriever, transform()).get_prompts()


def policy(threshold: float) -> AbstentionPolicy:
    return AbstentionPolicy(threshold, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))


@pytest.mark.parametrize("streaming", [False, True])
async def test_abstains_above_the_threshold(streaming: bool) -> None:
    inner = LazyRetrievalQueryEngine.from_args(corpus.index(), knowing(), threshold=9, streaming=streaming)
    abstaining = AbstainingQueryEngine(inner, policy(0.5), abstention="No idea.")
    for response in (abstaining.query(KNOWN), await abstaining.aquery(KNOWN)):
        assert str(response).startswith("She was born in Velm")
        assert response.metadata["abstained"] is False
    for response in (abstaining.query(UNKNOWN), await abstaining.aquery(UNKNOWN)):
        assert str(response) == "No idea."
        assert response.metadata["abstained"] is True
        assert "far land" not in str(response.metadata)
        assert response.source_nodes


@pytest.mark.parametrize("streaming", [False, True])
async def test_abstains_where_there_is_nothing_to_answer_from(streaming: bool) -> None:
    empty = VectorStoreIndex([], embed_model=HashEmbedding())
    for inner in (
        LazyRetrievalQueryEngine.from_args(empty, knowing(), streaming=streaming),
        UncertaintyRewriteQueryEngine.from_args(empty, reader()),
    ):
        abstaining = AbstainingQueryEngine(inner, policy(9), abstention="No idea.")
        for response in (abstaining.query(KNOWN), await abstaining.aquery(KNOWN)):
            assert str(response) == "No idea."
            assert response.metadata["abstained"] is True


@pytest.mark.parametrize(
    "wrap",
    [
        lambda engine: engine,
        lambda engine: TransformQueryEngine(engine, HyDEQueryTransform(Own())),
        lambda engine: RouterQueryEngine(
            LLMSingleSelector.from_defaults(Own()), [QueryEngineTool.from_defaults(engine)], llm=Own()
        ),
    ],
)
def test_a_policy_of_another_reader_is_refused(wrap: Any) -> None:
    inner = LazyRetrievalQueryEngine.from_args(corpus.index(), knowing())
    other = replace(
        policy(0.5), scope={**scope_of(inner.core), "reader": "other", "measure": "greatest_3_mean_entropy"}
    )
    with pytest.raises(ConfigurationError, match="calibrated for the reader 'other'"):
        AbstainingQueryEngine(wrap(inner), other)
    of_the_gate = replace(policy(0.5), scope=scope_of(inner.core))
    with pytest.warns(CalibrationWarning, match="does not say by which measure"):
        AbstainingQueryEngine(wrap(inner), of_the_gate)
    assert scope_of(inner.core)["retriever"] == "VectorIndexRetriever"


def test_an_answer_that_was_cut_is_withheld() -> None:
    with FakeOpenAI(corpus.answer) as server:
        server.fault = "cut"
        inner = UncertaintyRewriteQueryEngine.from_args(corpus.index(), like(server))
        response = AbstainingQueryEngine(inner, policy(99.0)).query(KNOWN)
    assert response.metadata["abstained"] is True


@pytest.mark.parametrize("query", ["", " "])
async def test_a_query_without_words_is_an_error(query: str) -> None:
    retriever = UncertaintyRewriteRetriever(corpus.index(), knowing())
    with pytest.raises(InputError, match="the question is empty"):
        retriever.retrieve(query)
    with pytest.raises(InputError, match="the question is empty"):
        await retriever.aretrieve(query)
    with pytest.raises(InputError, match="the question is empty"):
        UncertaintyRewriteTransform(corpus.index(), knowing()).run(query)
