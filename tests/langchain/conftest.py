"""Models, stores and servers for the LangChain integration's tests."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.globals import set_llm_cache
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI, OpenAI

from tests.servers.fake_openai import FakeOpenAI

KEY = "sk-very-secret"
SUMMARY = "Ada was born in Velm."
SURE, UNSURE = -0.001, -0.7
"""Log-probabilities with which L-RAG does not search, or searches (entropy gate, threshold 0.5)."""


class HashEmbeddings(Embeddings):
    """Vectors that depend on a text's words alone; texts that share words are near."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.texts += texts
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        words = text.lower().replace("?", "").replace(".", "").split()
        vectors = [self._vector(word) for word in words] or [self._vector("")]
        return [sum(column) for column in zip(*vectors, strict=True)]

    @staticmethod
    def _vector(word: str) -> list[float]:
        rng = random.Random(hashlib.sha256(word.encode()).digest())
        return [rng.gauss(0, 1) for _ in range(64)]


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(["Velm lies on the long river Orun, far from the sea."], logprob=SURE) as running:
        yield running


@pytest.fixture(autouse=True)
def no_llm_cache() -> Iterator[None]:
    yield
    set_llm_cache(None)


@pytest.fixture
def documents() -> list[Document]:
    facts = {
        "velm": "Velm lies on the river Orun. Its market is old.",
        "ada": "Ada was born in Velm. She built bridges.",
        "tarn": "Tarn is a city near the lake. It is new.",
        "orun": "The Orun is a river. It ends in the sea.",
    }
    return [
        Document(id=name, page_content=text, metadata={"source": name, "tags": ["a", "b"]})
        for name, text in facts.items()
    ]


search = RunnableLambda(lambda query: [Document("Ada painted.", id="1"), Document("Bo sang.", id="2")])


def chat(server: FakeOpenAI, **settings: Any) -> ChatOpenAI:
    """Return a ChatOpenAI that talks to the fake server."""
    return ChatOpenAI(
        **{"model": "toy", "base_url": server.base_url, "api_key": KEY, "max_retries": 0, **settings}
    )


def completions(server: FakeOpenAI, **settings: Any) -> OpenAI:
    """Return an OpenAI completions LLM that talks to the fake server."""
    return OpenAI(
        **{"model": "toy", "base_url": server.base_url, "api_key": KEY, "max_retries": 0, **settings}
    )
