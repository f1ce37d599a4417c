"""A pipeline of either framework goes to workers: options as they are, models and retrievers by name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode

import langchain_surerag
import llama_index_surerag
from langchain_surerag.services import RunnableRetriever
from llama_index_surerag.services import NodeRetriever
from surerag.scale import CompressBatch, LazyRAGBatch

TEXT = "Ada was born in Velm."


def langchain_reader() -> Any:
    """Return a LangChain model as a reader."""
    return langchain_surerag.reader_from_model(FakeListChatModel(responses=["Velm"]))


def langchain_retriever() -> RunnableRetriever:
    """Return a LangChain retriever."""
    store = InMemoryVectorStore.from_texts([TEXT], DeterministicFakeEmbedding(size=8))
    return RunnableRetriever(store.as_retriever())


def llama_index_reader() -> Any:
    """Return a LlamaIndex model as a reader."""
    return llama_index_surerag.reader_from_llm(MockLLM())


def llama_index_retriever() -> NodeRetriever:
    """Return a LlamaIndex retriever."""
    index = VectorStoreIndex([TextNode(text=TEXT)], embed_model=MockEmbedding(8))
    return NodeRetriever(index.as_retriever())


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_models_and_retrievers_are_made_by_functions_of_the_user_s(framework: str) -> None:
    batch = LazyRAGBatch(
        reader={"factory": f"{__name__}:{framework}_reader"},
        retriever={"factory": f"{__name__}:{framework}_retriever"},
        mode="standard",
    )
    table = batch(pa.table({"question": ["Where was Ada born?"]}))
    assert table.column("lazy_rag_error").to_pylist() == [None]
    assert table.column("lazy_rag_contexts").to_pylist() == [[TEXT]]
    assert "Velm" in table.column("lazy_rag_answer").to_pylist()[0]


@pytest.mark.parametrize(
    "adapter",
    [
        langchain_surerag.ClusterCompressor(
            llm=FakeListChatModel(responses=["Velm"]), clustering="single", budget=300
        ),
        llama_index_surerag.ClusterCompressorPostprocessor(llm=MockLLM(), clustering="single", budget=300),
    ],
    ids=["langchain", "llama_index"],
)
def test_what_was_chosen_on_an_adapter_is_in_force(adapter: Any) -> None:
    batch = CompressBatch(reader={"factory": "tests.scale.makers:reader"}, **adapter.chosen())
    made = batch.component()
    assert (made.budget, made.clustering) == (300, "single")
    assert {**made.chosen(), "prompts": {}} == adapter.chosen()
