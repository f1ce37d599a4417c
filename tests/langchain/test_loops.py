"""One story of asyncio: native async in both tiers, sync calls inside a running loop, many loops."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_surerag import LazyRetrievalChain
from surerag import FakeReader
from tests.langchain.conftest import HashEmbeddings

DOCUMENTS = [Document("Ada was born in Velm.", id="ada")]


class Awaited(HashEmbeddings):
    """Tells how, and in which thread, it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def embed_query(self, text: str) -> list[float]:
        self.asked.append(("sync", threading.get_ident()))
        return super().embed_query(text)

    async def aembed_query(self, text: str) -> list[float]:
        await asyncio.sleep(0)
        self.asked.append(("async", threading.get_ident()))
        return HashEmbeddings().embed_query(text)


@pytest.fixture
def embeddings() -> Awaited:
    return Awaited()


@pytest.fixture
def chain(embeddings: Awaited) -> Any:
    retriever = InMemoryVectorStore.from_documents(DOCUMENTS, embeddings).as_retriever()
    made = LazyRetrievalChain.from_documents(
        DOCUMENTS, FakeReader(lambda _: "Velm", entropy=2.0), retriever, embeddings
    )
    embeddings.asked.clear()
    return made


async def test_both_tiers_are_awaited(chain: Any, embeddings: Awaited) -> None:
    here = threading.get_ident()
    await chain.ainvoke("Where?")
    assert embeddings.asked == [("async", here)] * 2
    await chain.abatch(["a", "b"])
    [chunk async for chunk in chain.astream("Where?")]
    assert embeddings.asked == [("async", here)] * 8


async def test_sync_calls_inside_a_running_loop(chain: Any) -> None:
    assert chain.invoke("Where?")["answer"] == "Velm"
    assert [output["answer"] for output in chain.batch(["a", "b"])] == ["Velm"] * 2
    assert "".join(chunk.get("answer", "") for chunk in chain.stream("Where?")) == "Velm"


def test_a_chain_serves_one_loop_after_the_other(chain: Any) -> None:
    for _ in range(3):
        assert asyncio.run(chain.ainvoke("Where?"))["answer"] == "Velm"
