"""SemanticTextSplitter in LangChain's own pipelines."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_surerag import SemanticTextSplitter
from surerag import SemanticChunker
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, MissingServiceError
from tests.langchain.conftest import HashEmbeddings

TEXT = "Ada was born in Velm. Ada left Velm in spring. Tin melts easily. Köln liegt am Rhein."


def splitter(**options: Any) -> SemanticTextSplitter:
    return SemanticTextSplitter(HashingEncoder(), **{"similarity_threshold": 0.3, **options})


async def test_chunks_are_those_of_the_core() -> None:
    chunks = SemanticChunker(HashingEncoder(), similarity_threshold=0.3).run(TEXT)
    assert splitter().split_text(TEXT) == [one.text for one in chunks]
    documents = splitter(add_start_index=True).create_documents([TEXT], [{"tags": ["a"]}])
    assert [one.metadata["start_index"] for one in documents] == [one.start for one in chunks]


async def test_documents_keep_copies_of_their_metadata() -> None:
    lock = threading.Lock()  # cannot be copied
    documents = [Document(TEXT, metadata={"tags": ["a"]}), Document("", metadata={}), Document("One.")]
    documents[2].metadata["lock"] = lock
    whole = splitter().split_documents(documents)
    assert list(await splitter().atransform_documents(documents)) == whole
    whole[0].metadata["tags"].append("b")
    assert documents[0].metadata == {"tags": ["a"]}
    assert whole[-1].metadata == {"lock": lock}
    assert splitter().create_documents([]) == []


async def test_many_texts_are_embedded_in_batches() -> None:
    class Counting(HashEmbeddings):
        calls = 0

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            type(self).calls += 1
            return super().embed_documents(texts)

    parts = SemanticTextSplitter(Counting()).create_documents([TEXT] * 100)
    assert len(parts) >= 100
    assert Counting.calls == 2


def test_in_an_index() -> None:
    store = InMemoryVectorStore(HashEmbeddings())
    records = InMemoryRecordManager("x")
    records.create_schema()
    result = index(splitter().split_documents([Document(TEXT)]), records, store, key_encoder="sha256")
    assert result["num_added"] >= 2


def test_lengths_are_those_of_a_function() -> None:
    short = SemanticTextSplitter(HashingEncoder(), length_function=len, chunk_size=20)
    assert all(len(chunk) <= 20 for chunk in short.split_text(TEXT))
    assert len(splitter().with_options(chunk_size=4).split_text(TEXT)) > len(splitter().split_text(TEXT))
    assert splitter().with_quantile([TEXT, Document(TEXT)], 0.0).core.similarity_threshold <= 0.3
    fitted = splitter().with_quantile([TEXT]).core
    assert fitted.similarity_threshold == fitted.with_quantile([TEXT]).similarity_threshold  # one default


def test_construction_says_what_is_wrong() -> None:
    for settings, error in (
        ({"chunk_size": 0}, ConfigurationError),
        ({"chunk_overlap": 3}, ConfigurationError),
        ({"similarity_threshold": 2}, ConfigurationError),
    ):
        with pytest.raises(error):
            splitter(**settings)
    with pytest.raises(MissingServiceError):
        SemanticTextSplitter()
    assert "chunk_size=512" in repr(splitter())
