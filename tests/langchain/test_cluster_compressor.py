"""The compressor in LangChain's own pipelines, and what a demanding user tries."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_community.document_transformers import EmbeddingsRedundantFilter
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.tracers import BaseTracer
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_surerag import ClusterCompressor
from surerag import EDC2Options, FakeReader, FewShot, Stretch
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, MissingServiceError, PromptError
from surerag.prompts import NOTHING_TO_EXTRACT
from tests.langchain.conftest import HashEmbeddings, chat
from tests.servers.fake_openai import FakeOpenAI

QUESTION = "Where was Ada born?"
TEXTS = {
    "a": "Ada the painter was born in Velm, they say, long ago.",
    "b": "Bo the sculptor was born in Tarn and stayed there all his life.",
    "c": "It was in Velm that Ada the painter was born.",
    "d": "The Orun is a river in the north, cold and wide and slow.",
}


def documents() -> list[Document]:
    return [
        Document(id=name, page_content=text, metadata={"source": name, "tags": ["x"]})
        for name, text in TEXTS.items()
    ]


def quoting(prompt: str) -> str:
    found = [line for line in prompt.splitlines() if "Ada" in line and "Velm" in line]
    return found[0].split("] ")[-1] if found else NOTHING_TO_EXTRACT


def tool(replies: Any = quoting, **settings: Any) -> ClusterCompressor:
    reader = FakeReader(replies)
    return ClusterCompressor(
        reader, HashingEncoder(), **{"pass_below": 0, "first_cluster_size": 2, **settings}
    )


class Store(BaseRetriever):
    """Finds the first k documents."""

    k: int = 4

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return documents()[: k or self.k]


def test_a_compression_keeps_its_best_source_and_lists_them_all() -> None:
    [kept] = tool().compress_documents(documents(), QUESTION)
    assert (kept.id, kept.page_content, kept.metadata["source"]) == ("a", TEXTS["c"], "a")
    assert [(source["id"], source["metadata"]["source"]) for source in kept.metadata["compressed_from"]] == [
        ("a", "a"),
        ("c", "c"),
    ]


def test_citations_survive_a_compression() -> None:
    [kept] = tool().compress_documents(documents(), QUESTION)
    [stretch] = map(Stretch.from_dict, kept.metadata["provenance"])
    assert (stretch.match, kept.metadata["compressed_from"][stretch.source]["id"]) == ("exact", "c")
    assert TEXTS["c"][stretch.source_start : stretch.source_end] == kept.page_content
    assert json.loads(json.dumps(kept.metadata)) == kept.metadata


def test_a_model_counts_as_its_user_told_it_to() -> None:
    model = FakeListChatModel(
        responses=[NOTHING_TO_EXTRACT], custom_get_token_ids=lambda text: [ord(c) for c in text]
    )
    compressor = ClusterCompressor(model, HashingEncoder(), pass_below=10_000)
    given = documents()
    result = compressor.compress(given, QUESTION)
    assert result.tokens_before == sum(len(document.page_content) for document in given)
    own = compressor.model_copy(update={"count_tokens": lambda text: 1})
    assert own.compress(given, QUESTION).tokens_before == len(given)


def test_calls_are_bounded_before_and_by_option() -> None:
    compressor = tool()
    assert compressor.worst_case_calls(4) == compressor.core.worst_case_calls(4) == 4
    bounded = compressor.with_options(max_calls=1)
    assert bounded.worst_case_calls(4) == 1
    result = bounded.compress(documents(), QUESTION)
    assert (result.calls, result.unasked, result.out_of_calls) == (1, 1, True)


def test_documents_that_go_in_are_not_changed() -> None:
    given = documents()
    before = [document.model_dump_json() for document in given]
    for settings in ({}, {"pass_below": 10_000}):
        for found in tool(**settings).compress_documents(given, QUESTION):
            found.metadata["source"] = "changed"
    assert [document.model_dump_json() for document in given] == before


@pytest.mark.parametrize("n", [0, 1, 2, 500])
async def test_any_number_of_documents_with_and_without_ids_sync_and_async(n: int) -> None:
    given = [Document(list(TEXTS.values())[at % 4], id=None if at % 2 else str(at)) for at in range(n)]
    found = tool().compress_documents(given, QUESTION)
    assert list(await tool().acompress_documents(given, QUESTION)) == list(found)
    ids = {document.id for document in given}
    assert {document.id for document in found} <= ids
    traced = [s["id"] or None for document in found for s in document.metadata.get("compressed_from", [])]
    assert set(traced) <= ids


def test_empty_and_duplicate_documents() -> None:
    given = [Document(""), Document(TEXTS["a"], id="1"), Document(TEXTS["a"], id="2"), Document("  ")]
    found = tool().compress_documents(given, QUESTION)
    assert [document.page_content for document in found] == ["", TEXTS["a"], "  "]
    assert [source["id"] for source in found[1].metadata["compressed_from"]] == ["1", "2"]


class Compressing(ContextualCompressionRetriever):
    """LangChain's retriever around a compressor, with the parameter that the official tests set."""

    def __init__(self, k: int = 4, **fields: Any) -> None:
        super().__init__(
            base_retriever=Store(k=k),
            base_compressor=tool(lambda _: "Velm.", first_cluster_size=1, max_cluster_size=1, guard="off"),
            **fields,
        )


class TestContextualCompression(RetrieversIntegrationTests):
    """The official suite, on ContextualCompressionRetriever around the compressor."""

    retriever_constructor: ClassVar[type[BaseRetriever]] = Compressing  # type: ignore[assignment]
    retriever_query_example: ClassVar[str] = QUESTION  # type: ignore[assignment]


async def test_pipeline_runnable_and_batch_are_equal() -> None:
    compressor = tool()
    expected = list(compressor.compress_documents(documents(), QUESTION))
    retriever = ContextualCompressionRetriever(base_compressor=compressor, base_retriever=Store())
    assert retriever.invoke(QUESTION) == await retriever.ainvoke(QUESTION) == expected
    redundant = EmbeddingsRedundantFilter(embeddings=HashEmbeddings(), similarity_threshold=0.999)
    pipeline = DocumentCompressorPipeline(transformers=[redundant, compressor])
    piped = [pipeline.compress_documents(documents(), QUESTION)]
    piped.append(await pipeline.acompress_documents(documents(), QUESTION))
    assert all([d.page_content for d in found] == [d.page_content for d in expected] for found in piped)
    runnable = compressor.as_runnable()
    asked = {"documents": documents(), "query": QUESTION}
    assert runnable.invoke(asked) == await runnable.ainvoke(asked) == expected
    assert runnable.batch([asked] * 3) == await runnable.abatch([asked] * 3) == [expected] * 3
    chain = {"documents": Store(), "query": lambda question: question} | runnable
    assert chain.invoke(QUESTION) == expected
    with pytest.raises(InputError, match="query"):
        runnable.invoke({"documents": []})


class Runs(BaseTracer):
    """Keeps the tree of runs."""

    def _persist_run(self, run: Any) -> None:
        TREES.append(run)


TREES: list[Any] = []


async def test_calls_hang_under_the_retriever_s_run_and_events_are_seen() -> None:
    model = FakeListChatModel(responses=["Ada was born in Velm."])
    compressor = ClusterCompressor(model, HashEmbeddings(), pass_below=0, first_cluster_size=2)
    retriever = ContextualCompressionRetriever(base_compressor=compressor, base_retriever=Store())
    for ask in (retriever.invoke, retriever.ainvoke):
        TREES.clear()
        found: Any = ask(QUESTION, {"callbacks": [Runs()]})
        if asyncio.iscoroutine(found):
            await found
        [tree] = TREES
        assert [child.run_type for child in tree.child_runs] == ["retriever", "llm", "llm"]
    names = [
        event["name"]
        async for event in retriever.astream_events(QUESTION, version="v2")
        if event["event"] == "on_custom_event"
    ]
    assert "cluster_compression.compressed" in names


async def test_without_any_run_around_it_nothing_is_dispatched_and_nothing_fails() -> None:
    assert tool().compress_documents(documents(), QUESTION)
    assert await tool().acompress_documents(documents(), QUESTION)


async def test_clusters_are_asked_about_concurrently(server: FakeOpenAI) -> None:
    server.pause()
    compressor = ClusterCompressor(
        chat(server), HashEmbeddings(), first_cluster_size=1, max_cluster_size=1, pass_below=0
    )
    task = asyncio.ensure_future(compressor.acompress(documents(), QUESTION))
    await asyncio.to_thread(server.wait_for, 4)
    server.release()
    result = await task
    assert (result.calls, server.peak) == (4, 4)


def test_failures_leave_documents_as_they_are() -> None:
    def broken(prompt: str) -> str:
        raise TimeoutError("too slow")

    assert list(tool(broken).compress_documents(documents(), QUESTION)) == documents()


def test_prompts_and_settings() -> None:
    reader = FakeReader(quoting)
    compressor = ClusterCompressor(
        reader,
        HashingEncoder(),
        pass_below=0,
        examples=[FewShot("Who?", ("Bo.",), "Bo")],
        prompts={"extract": PromptTemplate.from_template("Q {question} {passages}{examples}")},
    )
    given = [Document("{question} {examples} braces"), *documents()]
    compressor.compress_documents(given, QUESTION)
    assert reader.prompts[0].startswith(f"Q {QUESTION} [1] ")
    assert any("{question} {examples} braces" in prompt for prompt in reader.prompts)
    with pytest.raises(PromptError):
        tool(prompts={"extract": "{question}"})
    with pytest.raises(PromptError, match="no prompt"):
        tool(prompts={"shrink": "{question}"})
    with pytest.raises(ConfigurationError):
        tool(first_cluster_size=0)
    with pytest.raises(ConfigurationError, match="shrink"):
        tool(shrink=True)
    dumped = json.loads(compressor.model_dump_json())
    assert "llm" not in dumped
    again = ClusterCompressor(reader, HashingEncoder(), **dumped)
    assert again.model_dump() == compressor.model_dump()
    assert (again.core.examples, again.core.prompts) == (compressor.core.examples, compressor.core.prompts)


def documents_of(found: Sequence[Document]) -> list[str]:
    return [document.page_content for document in found]


def test_the_whole_result_is_there_for_those_who_ask() -> None:
    result = tool().compress(documents(), QUESTION)
    assert result.calls == 2
    assert result.dropped[0].sources == ("b", "d")


def test_options_are_those_of_the_core_and_explained_in_the_help() -> None:
    for option in EDC2Options.OPTIONS.values():
        field = ClusterCompressor.model_fields[option.name]
        assert (field.default, field.description) == (option.default, option.doc)
        assert f"\n    {option.name}: " in (ClusterCompressor.__doc__ or "")


def test_an_option_that_does_not_exist_is_refused_and_near_ones_are_named() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean budget"):
        tool(budgett=3)
    with pytest.raises(ConfigurationError, match="Did you mean budget"):
        tool().model_copy(update={"budgett": 3})
    with pytest.raises(ValueError, match="budgett"):
        tool().budgett = 3


def test_what_is_set_is_in_force_and_what_cannot_be_leaves_all_as_it_was() -> None:
    compressor = tool(clustering="single")
    assert compressor.compress(documents(), QUESTION).calls == 4
    compressor.clustering = "dynamic"  # type: ignore[misc]  # frozen in the core, not here
    assert compressor.compress(documents(), QUESTION).calls == 2
    with pytest.raises(ConfigurationError, match="budget must be at least 1"):
        compressor.budget = 0  # type: ignore[misc]  # as above
    with pytest.raises(MissingServiceError, match="entailer"):
        compressor.guard = "entailment"  # type: ignore[misc]  # as above
    assert (compressor.budget, compressor.guard, compressor.core.guard) == (None, None, None)
    shorter = compressor.model_copy(update={"budget": 5})
    assert (shorter.core.budget, compressor.core.budget) == (5, None)
    assert shorter.core.reader is compressor.core.reader


def test_copies_and_pickles_work_as_the_first_one_does() -> None:
    compressor = ClusterCompressor(
        FakeListChatModel(responses=["Ada was born in Velm."]),
        HashEmbeddings(),
        count_tokens=len,
        pass_below=0,
    )
    expected = compressor.compress_documents(documents(), QUESTION)
    for again in (copy.deepcopy(compressor), pickle.loads(pickle.dumps(compressor))):
        assert again.compress_documents(documents(), QUESTION) == expected
        assert again.model_dump() == compressor.model_dump()
    assert copy.deepcopy(compressor).core.reader is compressor.core.reader
