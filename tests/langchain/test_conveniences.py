"""What makes parts easy to use right: schemas, hints, configurable compressors, stores of summaries."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.globals import set_llm_cache
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from langchain_surerag import (
    ClusterCompressor,
    DenseRefiner,
    LazyRetrievalChain,
    UncertaintyRewriter,
    UncertaintyRewriteRetriever,
    asummaries_of,
    create_lazy_retrieval_tool,
    summaries_of,
)
from surerag import FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError
from tests.langchain.conftest import HashEmbeddings, chat
from tests.servers.fake_openai import FakeOpenAI

found = RunnableLambda(lambda _: [Document("Ada was born in Velm.")])
LONG = "Ada was born in Velm. Bo came much later, and stayed in Tarn for a good many years."


class Counting(HashEmbeddings):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.texts += texts
        return super().embed_documents(texts)


async def test_a_rewriter_as_a_tool() -> None:
    tool = UncertaintyRewriter(FakeReader(lambda _: "Velm"), found).as_tool(name="rewrite", description="?")
    assert tool.args == {
        "question": {"title": "Question", "type": "string", "description": "question to search for"}
    }
    assert tool.invoke({"question": "Where?"}) == await tool.ainvoke({"question": "Where?"}) == "Where?"


@pytest.mark.parametrize(
    "make",
    [
        lambda search: LazyRetrievalChain(FakeReader([]), search, "Ada."),
        lambda search: UncertaintyRewriter(FakeReader([]), search),
        lambda search: UncertaintyRewriteRetriever(FakeReader([]), search),
        lambda search: DenseRefiner(FakeReader([]), HashEmbeddings(), retriever=search),
    ],
)
def test_what_is_no_retriever_is_told_how_to_become_one(make: Any) -> None:
    store = InMemoryVectorStore(HashEmbeddings())
    with pytest.raises(ConfigurationError, match=r"got InMemoryVectorStore. Pass store.as_retriever()"):
        make(store)
    with pytest.raises(ConfigurationError, match=r"got function. Wrap the function: RunnableLambda"):
        make(lambda query: [])
    with pytest.raises(ConfigurationError, match="got int"):
        make(7)


async def test_a_compressors_options_can_be_configured() -> None:
    compressor = ClusterCompressor(FakeReader(lambda _: "Ada was born in Velm."), HashingEncoder())
    runnable = compressor.as_runnable().configurable_fields(
        pass_below=ConfigurableField(id="pass_below"), budget=ConfigurableField(id="budget")
    )
    asked = {"documents": [Document(LONG)], "query": "Where?"}
    [whole] = runnable.invoke(asked, {"configurable": {"pass_below": 9999}})
    assert whole.page_content == LONG
    config: Any = {"configurable": {"pass_below": 0}}
    for documents in (runnable.invoke(asked, config), await runnable.ainvoke(asked, config)):
        assert [document.page_content for document in documents] == ["Ada was born in Velm."]
    with pytest.raises(ConfigurationError, match="pass_below"):
        runnable.invoke(asked, {"configurable": {"pass_below": "many"}})
    with pytest.raises(ValueError, match="not_there"):
        compressor.as_runnable().configurable_fields(not_there=ConfigurableField(id="x"))


def test_signatures_are_typed_and_complete() -> None:
    for part in (LazyRetrievalChain, UncertaintyRewriter, ClusterCompressor, DenseRefiner):
        parameters = inspect.signature(part).parameters
        assert set(part.OPTIONS) <= set(parameters)
        assert all(parameters[name].annotation is not Any for name in part.OPTIONS if name != "prompts")


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_summaries_live_in_a_store_of_ones_own(asynchronously: bool) -> None:
    embeddings = Counting()
    store = InMemoryVectorStore(embeddings)
    documents = [Document(LONG, id="ada"), Document("Cy is new. He is here. He is old.")]

    async def made(documents: Any) -> Any:
        if asynchronously:
            return await asummaries_of(documents, store=store)
        return await asyncio.to_thread(summaries_of, documents, store=store)

    await made(documents)
    assert len(embeddings.texts) == 2
    tier = await made([*documents, Document("Di is far. She is near.", id="di")])
    assert embeddings.texts[2:] == ["Di is far. She is near."]
    assert {passage.id for passage in tier.retrieve("Di", 9)} >= {"ada", "di"}
    # What is deleted there answers no more.
    store.delete(["ada"])
    assert "ada" not in {passage.id for passage in tier.retrieve("Ada", 9)}
    assert summaries_of(store).retrieve("Di", 1)[0].id == "di"


def test_a_stream_goes_into_a_store_some_at_a_time_and_not_into_memory() -> None:
    store = InMemoryVectorStore(HashEmbeddings())
    ahead = 0

    def stream() -> Iterator[Document]:
        nonlocal ahead
        for place in range(700):
            ahead = max(ahead, place - len(store.store))
            yield Document(f"Number {place} is here. It stays.", id=str(place))

    tier = summaries_of(stream(), store=store)
    assert (len(store.store), ahead) == (700, 255)
    assert tier.retrieve("Number 699", 1)[0].text == "Number 699 is here. It stays."  # type: ignore[union-attr]  # no text
    with pytest.raises(ConfigurationError, match=r"more than 600 summaries.*DiskSummaryIndex"):
        summaries_of(stream(), embeddings=Forbidden(), max_summaries=600)
    with pytest.raises(ConfigurationError, match="LangChain documents"):
        summaries_of(iter([Document(LONG), "text"]), store=store)  # type: ignore[list-item]  # refused
    with pytest.raises(InputError, match="no document with text"):
        summaries_of(iter([Document(" ")]), store=store)


class Forbidden(Embeddings):
    """Fails the test if it is asked."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise AssertionError(texts)

    embed_query = embed_documents  # type: ignore[assignment]  # never called


async def test_a_chain_of_documents_without_blocking() -> None:
    chain = await LazyRetrievalChain.afrom_documents(
        [Document(LONG, id="ada")], FakeReader(["Velm"], entropy=0.0), found, HashEmbeddings()
    )
    assert [document.id for document in (await chain.ainvoke("Where?"))["context"]] == ["ada"]
    store = InMemoryVectorStore(HashEmbeddings())
    chain = LazyRetrievalChain.from_documents(
        [Document(LONG, id="bo")], FakeReader(["Velm"], entropy=0.0), found, store=store
    )
    assert [document.id for document in chain.invoke("Where?")["context"]] == ["bo"]
    with pytest.raises(ConfigurationError, match="vector store"):
        summaries_of([Document(LONG)])


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_a_cache_answers_where_no_draft_is_streamed(server: FakeOpenAI, asynchronously: bool) -> None:
    set_llm_cache(InMemoryCache())
    chain = LazyRetrievalChain(chat(server, disable_streaming=True), found, "Ada.", threshold=0.0)
    outputs = []
    for _ in range(2):
        if asynchronously:
            outputs.append(await chain.ainvoke("Where?"))
        else:
            outputs.append(await asyncio.to_thread(chain.invoke, "Where?"))
    assert outputs[0] == outputs[1]
    assert len(server.requests) == 2


class TestRetriever(RetrieversIntegrationTests):
    """LangChain's own suite, on a retriever that looks at a conversationless question."""

    @property
    def retriever_constructor(self) -> Any:
        def make(k: int = 3) -> UncertaintyRewriteRetriever:
            store = InMemoryVectorStore.from_documents(
                [Document(f"Velm has {number} wells.") for number in range(9)], HashEmbeddings()
            )
            return UncertaintyRewriteRetriever(FakeReader(lambda _: "Velm"), store.as_retriever(), top_n=k)

        return make

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"k": 3}

    @property
    def retriever_query_example(self) -> str:
        return "How many wells has Velm?"


class TestTool(ToolsUnitTests):
    """LangChain's own suite, on the tool that a chain becomes."""

    @property
    def tool_constructor(self) -> Any:
        chain = LazyRetrievalChain(FakeReader(lambda _: "Velm"), found, "Ada was born in Velm.")
        return create_lazy_retrieval_tool(chain, "ask", "Answers.")

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"question": "Where was Ada born?"}


class TestRewritingTool(TestTool):
    @property
    def tool_constructor(self) -> Any:
        rewriter = UncertaintyRewriter(FakeReader(lambda _: "Velm"), found)
        return rewriter.as_tool(name="rewrite", description="Rewrites.")
