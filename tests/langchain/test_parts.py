"""Documents, retrievers and embeddings on their way through surerag; what is written down; what is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.load import dumps, loads
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI

import langchain_surerag
from langchain_surerag import EmbeddingEncoder, LazyRetrievalChain, RunnableRetriever
from langchain_surerag.documents import documents_of, passages_of
from surerag import FakeReader
from surerag.errors import ConfigurationError, MissingExtraError, MissingServiceError, ServiceError
from surerag.services import Encoder, Retriever
from tests.blocking import Gate, cancelled_without_trace
from tests.langchain.conftest import KEY, HashEmbeddings, chat
from tests.servers.fake_openai import FakeOpenAI


class ByKAlone(BaseRetriever):
    """Takes ``k`` in its sync method; LangChain's default async one would fail on it."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any, k: int = 5) -> list[Document]:
        return [Document(f"{query} {place}", metadata={"score": 1 / (place + 1)}) for place in range(k)]


class ByK(ByKAlone):
    """Takes ``k``, sync and async."""

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any, k: int = 5) -> list[Document]:
        return self._get_relevant_documents(query, run_manager=run_manager, k=k)


def test_documents_come_back_as_they_went_in(documents: list[Document]) -> None:
    class Marked(Document):
        mark: str = "x"

    originals = [
        *documents,
        Marked(page_content="with a subclass"),
        Document(""),
        Document("{braces} é 日本"),
    ]
    passages = passages_of(originals)
    found = documents_of(passages)
    assert found == originals
    assert all(mine is not yours for mine, yours in zip(found, originals, strict=True))
    assert all(mine.metadata is not yours.metadata for mine, yours in zip(found, originals, strict=True))
    assert isinstance(found[4], Marked)
    assert [passage.id for passage in passages[:2]] == ["velm", "ada"]


@pytest.mark.parametrize(
    ("metadata", "score"),
    [
        ({"score": 0.5}, 0.5),
        ({"relevance_score": np.float32(0.25)}, 0.25),
        ({"score": "high"}, None),
        ({}, None),
    ],
)
def test_a_score_in_the_metadata_is_the_passages(metadata: dict[str, Any], score: float | None) -> None:
    assert passages_of([Document("x", metadata=metadata)])[0].score == score


async def test_k_reaches_the_retrievers_that_take_it(documents: list[Document]) -> None:
    store = InMemoryVectorStore.from_documents(documents, HashEmbeddings()).as_retriever(
        search_kwargs={"k": 1}
    )
    several = [
        (ByK(), 7),
        (ByKAlone(), 5),
        (ByK().with_retry(), 7),
        (ByK().with_config(tags=["x"]), 7),
        (store, 4),
        (store.configurable_fields(search_kwargs=ConfigurableField(id="s")), 4),
        (ByK().with_fallbacks([RunnableLambda(lambda _: [])]), 5),
        (RunnableLambda(lambda question: ByK().invoke(question)), 5),
    ]
    for runnable, count in several:
        retriever = RunnableRetriever(runnable)
        assert isinstance(retriever, Retriever)
        assert len(retriever.retrieve("Velm", 7)) == count
        assert len(await retriever.aretrieve("Velm", 7)) == count
        assert len(retriever.retrieve("Velm", 1)) == 1


def test_embeddings_are_an_encoder(documents: list[Document]) -> None:
    encoder = EmbeddingEncoder(HashEmbeddings())
    assert isinstance(encoder, Encoder)
    texts = [document.page_content for document in documents]
    vectors = encoder.encode(texts, "document")
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.argmax(vectors @ encoder.encode(["Where was Ada born?"], "query")[0]) == 1
    assert encoder.name == "HashEmbeddings()"


async def test_embeddings_are_asked_asynchronously() -> None:
    encoder = EmbeddingEncoder(DeterministicFakeEmbedding(size=8), name="fake")
    for kind in ("query", "document"):
        assert np.array_equal(await encoder.aencode(["a", "b"], kind), encoder.encode(["a", "b"], kind))


@pytest.mark.parametrize("kind", ["query", "document"])
async def test_an_encoding_that_is_cancelled_leaves_nothing_behind(kind: Any) -> None:
    gate = Gate()

    class Slow(HashEmbeddings):
        def embed_documents(self, texts: Any) -> Any:
            gate.wait()
            return super().embed_documents(texts)

        def embed_query(self, text: str) -> Any:
            gate.wait()
            return super().embed_query(text)

    await cancelled_without_trace(lambda: EmbeddingEncoder(Slow()).aencode(["a"], kind), gate)


@pytest.mark.parametrize("vectors", [[], [[0.0, 0.0]], [[1.0], [2.0]]])
def test_bad_embeddings_are_found_out(vectors: list[list[float]], monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = HashEmbeddings()
    monkeypatch.setattr(embeddings, "embed_documents", lambda _: vectors)
    with pytest.raises(ServiceError):
        EmbeddingEncoder(embeddings).encode(["one"], "document")


def test_what_is_no_retriever_or_embedding_is_refused() -> None:
    for kind in (RunnableRetriever, EmbeddingEncoder):
        with pytest.raises(ConfigurationError, match="expected a"):
            kind(object())  # type: ignore[arg-type]


# Writing down and loading.


@pytest.fixture
def beta_allowed() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is in beta")
        yield


def load_chain(text: str) -> LazyRetrievalChain:
    allowed = [LazyRetrievalChain, ChatOpenAI, PromptTemplate]
    chain = loads(
        text,
        allowed_objects=allowed,
        valid_namespaces=["langchain_surerag"],
        secrets_map={"OPENAI_API_KEY": KEY},
    )
    assert isinstance(chain, LazyRetrievalChain)
    return chain


@pytest.mark.usefixtures("beta_allowed")
def test_settings_and_model_are_written_down_without_secrets(
    server: FakeOpenAI, documents: list[Document]
) -> None:
    retriever = InMemoryVectorStore.from_documents(documents, HashEmbeddings()).as_retriever()
    prompt = PromptTemplate.from_template("{context} {question}")
    chain = LazyRetrievalChain(
        chat(server),
        retriever,
        "A summary.",
        threshold=0.25,
        top_n=2,
        stop=("\n",),
        prompts={"from_context": prompt},
        return_details=True,
    )
    text = dumps(chain)
    assert KEY not in text
    assert KEY not in repr(chain)
    loaded = load_chain(text)
    assert loaded.detached == ("retriever",)
    with pytest.raises(MissingServiceError, match="retriever"):
        loaded.invoke("Where?")
    again = loaded.attach(retriever=retriever)
    assert again.detached == ()
    for name in type(chain).model_fields:
        if name not in ("llm", "retriever", "made"):
            assert getattr(again, name) == getattr(chain, name), name
    assert again.invoke("Where?")["answer"] == chain.invoke("Where?")["answer"]
    assert dumps(again) == text


@pytest.mark.usefixtures("beta_allowed")
def test_what_is_alive_is_left_out_and_attached_again() -> None:
    reader = FakeReader(lambda _: "Velm", entropy=0.1)
    source = RunnableLambda(lambda _: [])
    loaded = load_chain(dumps(LazyRetrievalChain(reader, source, source)))
    assert loaded.detached == ("llm", "retriever", "summaries")
    partly = loaded.attach(llm=reader, retriever=source)
    assert partly.detached == ("summaries",)
    assert partly.attach(summaries="A summary.").invoke("Where?")["answer"] == "Velm"


# Loading the package.


def test_public_names() -> None:
    # Agents need a newer langchain than the other parts do.
    major, minor, patch = map(int, version("langchain").split(".")[:3])
    for name in langchain_surerag.__all__:
        if langchain_surerag._HOMES[name] == "langchain_surerag.agents" and (major, minor, patch) < (
            1,
            2,
            10,
        ):
            with pytest.raises(MissingExtraError, match=r"langchain.*--upgrade"):
                getattr(langchain_surerag, name)
        else:
            assert getattr(langchain_surerag, name) is not None
    assert set(langchain_surerag.__all__) <= set(dir(langchain_surerag))
    with pytest.raises(AttributeError):
        langchain_surerag.NoSuchName  # noqa: B018


def test_the_chain_alone_loads_langchain_core_alone() -> None:
    script = (
        "import sys, warnings; warnings.simplefilter('error')\n"
        "from langchain_surerag import LazyRetrievalChain, reader_from_model\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'transformers', 'openai', 'faiss', "
        "'sklearn', 'langchain', 'langchain_classic', 'langchain_community', 'langchain_openai'}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
