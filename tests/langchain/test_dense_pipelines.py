"""The refiner in LangChain's own pipelines: retrievers, compressor pipelines, chains, traces and caches."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_community.document_transformers import EmbeddingsRedundantFilter
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import FakeListChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers import BaseTracer
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_surerag import AdaptiveSemanticSplitter, DenseRefiner
from surerag import FakeReader
from surerag.entailment import ExactEntailer
from surerag.errors import InputError
from tests.langchain.conftest import HashEmbeddings, chat
from tests.langchain.dense_cases import Store, documents, texts, tool
from tests.methods.dense_rag.script import QUESTION, kind, script
from tests.servers.fake_openai import FakeOpenAI


class Refining(ContextualCompressionRetriever):
    """LangChain's retriever around a refiner, with the parameter that the official tests set."""

    def __init__(self, k: int = 4, **fields: Any) -> None:
        super().__init__(base_retriever=Store(), base_compressor=tool(script({}), top_n=k), **fields)


class TestContextualCompression(RetrieversIntegrationTests):
    """The official suite, on ContextualCompressionRetriever around the refiner."""

    retriever_constructor: ClassVar[type[BaseRetriever]] = Refining  # type: ignore[assignment]
    retriever_query_example: ClassVar[str] = QUESTION  # type: ignore[assignment]


async def test_pipeline_retriever_and_chain_are_equal() -> None:
    refiner = tool()
    expected = list(refiner.compress_documents(documents(), QUESTION))
    retriever = ContextualCompressionRetriever(base_compressor=refiner, base_retriever=Store())
    assert retriever.invoke(QUESTION) == await retriever.ainvoke(QUESTION) == expected
    assert retriever.batch([QUESTION] * 3) == await retriever.abatch([QUESTION] * 3) == [expected] * 3
    chain = {"documents": Store(), "query": lambda question: question} | refiner.as_runnable()
    assert chain.invoke(QUESTION) == await chain.ainvoke(QUESTION) == expected
    joined = chain | RunnableLambda(texts)
    assert joined.invoke(QUESTION) == "ace"
    with pytest.raises(InputError, match="query"):
        refiner.as_runnable().invoke({"documents": []})


async def test_after_a_splitter_and_a_filter_in_a_pipeline() -> None:
    def reply(prompt: str) -> str:
        if kind(prompt) != "answer":
            return "yes" if kind(prompt) == "evaluate" else "In other words."
        return "Velm" if "born in Velm" in prompt else "?"

    whole = [
        Document("Ada was born in Velm. Tin melts easily. Ada was born in Velm.", id="doc", metadata={"n": 1})
    ]
    splitter = AdaptiveSemanticSplitter(HashEmbeddings(), similarity_threshold=0.9, add_start_index=True)
    redundant = EmbeddingsRedundantFilter(embeddings=HashEmbeddings(), similarity_threshold=0.999)
    refiner = DenseRefiner(FakeReader(reply), HashEmbeddings(), entailer=ExactEntailer(), top_n=2)
    pipeline = DocumentCompressorPipeline(transformers=[splitter, redundant, refiner])
    question = "Where was Ada born?"
    for found in (
        pipeline.compress_documents(whole, question),
        await pipeline.acompress_documents(whole, question),
    ):
        assert [(d.page_content, d.metadata["start_index"], d.metadata["n"]) for d in found] == [
            ("Tin melts easily.", 22, 1),
            ("Ada was born in Velm.", 40, 1),
        ]
        assert all(d.metadata["dense"]["answer"] == "Velm" for d in found)


def test_retrievers_around_it_still_find_out_duplicates() -> None:
    base = ContextualCompressionRetriever(base_compressor=tool(), base_retriever=Store())
    model = FakeListChatModel(responses=["Whence?\nIn which place?"])
    found = MultiQueryRetriever.from_llm(retriever=base, llm=model).invoke(QUESTION)
    assert len({document.id for document in found}) == len(found)


TREES: list[Any] = []


class Runs(BaseTracer):
    """Keeps the tree of runs."""

    def _persist_run(self, run: Any) -> None:
        TREES.append(run)


async def test_calls_hang_under_the_retriever_s_run_and_events_are_seen() -> None:
    model = FakeListChatModel(responses=["Velm"])
    more = RunnableLambda(lambda question: documents("f"), name="more")
    parents = RunnableLambda(lambda chunks: documents("abc"), name="parents")
    refiner = DenseRefiner(
        model, HashEmbeddings(), entailer=ExactEntailer(), top_n=2, retriever=more, parents=parents
    )
    retriever = ContextualCompressionRetriever(base_compressor=refiner, base_retriever=Store(k=2))
    for ask in (retriever.invoke, retriever.ainvoke):
        TREES.clear()
        found: Any = ask(QUESTION, {"callbacks": [Runs()]})
        if asyncio.iscoroutine(found):
            await found
        [tree] = TREES
        kinds = [child.run_type for child in tree.child_runs]
        # Two rephrasings (once for both calls: they are remembered), three answers; it understood what it was
        # shown, so that the documents behind that were not fetched.
        assert kinds == ["retriever", *["llm"] * (5 if ask == retriever.invoke else 3)]
    events = [
        (event["name"], event["data"])
        async for event in retriever.astream_events(QUESTION, version="v2")
        if event["event"] == "on_custom_event"
    ]
    assert [name for name, _ in events] == ["context_refiner.round", "context_refiner.refined"]
    assert events[-1][1]["stopped"] == "certain"
    json.dumps(events)


async def test_without_any_run_around_it_nothing_is_dispatched_and_nothing_fails() -> None:
    assert tool().compress_documents(documents(), QUESTION)
    assert await tool().acompress_documents(documents(), QUESTION)


async def test_requests_are_concurrent_and_the_loop_is_free(server: FakeOpenAI) -> None:
    server.pause()
    refiner = DenseRefiner(chat(server), HashEmbeddings(), entailer=ExactEntailer(), top_n=3, max_tokens=3)
    task = asyncio.ensure_future(refiner.arefine(documents(), QUESTION))
    await asyncio.to_thread(server.wait_for, 3)
    server.release()
    assert (await task).calls.total <= refiner.worst_case_calls(20) == refiner.core.worst_case_calls()
    assert server.peak >= 3


async def test_the_global_cache_changes_nothing_but_the_cost(server: FakeOpenAI) -> None:
    def refined() -> DenseRefiner:
        return DenseRefiner(
            chat(server), HashEmbeddings(), top_n=2, max_tokens=3, rounds=2, rephrase_tokens=9
        )

    plain = refined().refine(documents(), QUESTION)
    asked = len(server.requests)
    set_llm_cache(InMemoryCache())
    for again in (refined().refine(documents(), QUESTION), await refined().arefine(documents(), QUESTION)):
        assert again.to_dict() == plain.to_dict()
    assert len(server.requests) <= 2 * asked, "greedy answers come from the cache"
    assert plain.calls.total > 0
