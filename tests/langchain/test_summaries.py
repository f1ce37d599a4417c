"""Summaries of documents in memory and in vector stores, and what becomes of them as documents change."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import faiss
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from cookbooks import documents_change_langchain
from langchain_surerag import LazyRetrievalChain, SummaryStore, summaries_of
from surerag import FakeReader
from surerag.errors import ConfigurationError, InputError
from surerag.retrieval import StaleSummariesWarning
from tests.langchain.conftest import HashEmbeddings

UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
DOCUMENTS = [
    Document(id="a", page_content="Ada was born in Velm. She left.", metadata={"tenant": "A"}),
    Document(id="b", page_content="The secret of tenant B is Tarn.", metadata={"tenant": "B"}),
]


def store_of() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_documents(DOCUMENTS, HashEmbeddings())


def test_summaries_in_a_store_are_embedded_once_for_each_change() -> None:
    embeddings = HashEmbeddings()
    store = InMemoryVectorStore(embeddings)
    texts = ["Ada was born in Velm. Bo came later. She stayed.", "Cy is new. He is here. He is old."]
    summaries_of([Document(texts[0], id="ada"), Document(texts[1])], store=store)
    assert embeddings.texts == ["Ada was born in Velm. Bo came later.", "Cy is new. He is here."]
    more = [Document(texts[0], id="ada"), Document(texts[1]), Document("Di is far.", id="di")]
    summaries_of(iter(more), store=store)
    assert embeddings.texts[2:] == ["Di is far."]
    changed = Document("Ada lives in Tarn.", id="ada", metadata={"tenant": "A"})
    for tenant, embedded in (("A", 1), ("A", 0), ("B", 1)):
        before = len(embeddings.texts)
        changed.metadata["tenant"] = tenant
        summaries_of([changed], store=store)
        [summary] = store.get_by_ids(["ada"])
        assert (summary.page_content, summary.metadata["tenant"]) == ("Ada lives in Tarn.", tenant)
        assert len(embeddings.texts) - before == embedded
    # Stores such as Qdrant take UUIDs alone.
    assert {key for key in store.store if UUID_TEXT.fullmatch(key)} == set(store.store) - {"ada", "di"}


class EmbedsAnything(HashEmbeddings):
    def embed_query(self, text: str) -> list[float]:
        return super().embed_query(text.replace("\ud800", ""))


def test_no_document_is_lost_for_its_text_or_metadata() -> None:
    store = InMemoryVectorStore(EmbedsAnything())
    lived = "Ada lived in Velm. She left."
    tenants = [Document(lived, metadata={"tenant": tenant, 1: object}) for tenant in ("A", "B", "B")]
    summaries_of([*tenants, Document("Bo \ud800 sang. He left.")], store=store)
    assert sorted(item["metadata"].get("tenant", "") for item in store.store.values()) == ["", "A", "B"]
    made: Any = summaries_of([Document("Bo \ud800 sang. He left.")], embeddings=HashEmbeddings())
    assert made.retrieve("Bo", 1)


@pytest.mark.parametrize(
    ("summarize", "expected"),
    [
        (1, "Ada was born in Velm."),
        ("abstract", "About Ada."),
        (lambda document: document.page_content[:3], "Ada"),
        (FakeReader(["A model's."]), "A model's."),
    ],
)
def test_ways_to_summarize(summarize: Any, expected: str) -> None:
    document = Document("Ada was born in Velm. She left.", metadata={"abstract": "About Ada."})
    made: Any = summaries_of([document], summarize=summarize, embeddings=HashEmbeddings())
    assert made.retrieve("Ada", 1)[0].text == expected


def test_summaries_of_nothing_are_refused() -> None:
    for documents, settings, error in (
        ([], {"embeddings": HashEmbeddings()}, InputError),
        ([Document(" ")], {"embeddings": HashEmbeddings()}, InputError),
        (DOCUMENTS, {}, ConfigurationError),
        (DOCUMENTS, {"embeddings": HashEmbeddings(), "summarize": True}, ConfigurationError),
        (DOCUMENTS, {"embeddings": HashEmbeddings(), "summarize": 2.5}, ConfigurationError),
        (DOCUMENTS, {"store": store_of().as_retriever()}, ConfigurationError),
        (DOCUMENTS, {"embeddings": HashEmbeddings(), "summarize": "none"}, InputError),
    ):
        with pytest.raises(error):
            summaries_of(documents, **settings)  # type: ignore[arg-type]


# Documents change.


def empty_faiss() -> FAISS:
    return FAISS(HashEmbeddings(), faiss.IndexFlatL2(64), InMemoryDocstore(), {})


def chroma() -> Any:
    module = pytest.importorskip("langchain_chroma")
    store = module.Chroma("summaries", HashEmbeddings())
    store.reset_collection()
    return store


def qdrant() -> Any:
    module = pytest.importorskip("langchain_qdrant")
    store = module.QdrantVectorStore.from_texts(["x"], HashEmbeddings(), location=":memory:", ids=[1])
    store.delete([1])
    return store


STORES: list[Callable[[], Any]] = [
    lambda: InMemoryVectorStore(HashEmbeddings()),
    empty_faiss,
    chroma,
    qdrant,
    HashEmbeddings,
]
each_store = pytest.mark.parametrize("make", STORES, ids=["in memory", "FAISS", "Chroma", "Qdrant", "ours"])


class Writer(FakeReader):
    """Writes a summary that says which text it is of, and counts."""

    def __init__(self) -> None:
        super().__init__(
            lambda prompt: "refund in 14 days" if "14 days" in str(prompt) else "refund in 30 days"
        )


def page(text: str, name: str = "refund.md", **metadata: Any) -> Document:
    return Document(f"{text} It says more. And more.", id=name, metadata={"source": name, **metadata})


def held(store: SummaryStore, question: str = "refund") -> list[str]:
    return sorted(one.page_content for one in store.similarity_search(question, 9))


@each_store
@pytest.mark.parametrize("cleanup", ["full", "incremental"])
async def test_summaries_follow_documents_by_langchains_index(make: Any, cleanup: Any) -> None:
    records, writer = InMemoryRecordManager("summaries"), Writer()
    records.create_schema()
    store = SummaryStore(make(), summarize=writer)
    settings: Any = {"cleanup": cleanup, "source_id_key": "source", "key_encoder": "sha256"}
    other = page("Lunch is at noon.", "lunch.md")
    first = index([page("Money back within 30 days."), other], records, store, **settings)
    assert (first["num_added"], len(writer.history)) == (
        2,
        1 if make is HashEmbeddings else len(writer.history),
    )
    asked = len(writer.prompts)
    assert held(store) == ["refund in 30 days"] * 2
    # Nothing new: nobody is asked. One changed: its former summary is gone.
    assert index([page("Money back within 30 days."), other], records, store, **settings)["num_skipped"] == 2
    assert len(writer.prompts) == asked
    changed = await aindex([page("Money back within 14 days."), other], records, store, **settings)
    assert (changed["num_added"], changed["num_deleted"], len(writer.prompts)) == (1, 1, asked + 1)
    assert held(store) == ["refund in 14 days", "refund in 30 days"]
    if cleanup == "full":
        assert index([other], records, store, **settings)["num_deleted"] == 1
        assert held(store) == ["refund in 30 days"]
    # New vectors of the same texts, as after a change of the embedding model, ask no model.
    index([other], records, store, force_update=True, **settings)
    assert len(writer.prompts) == asked + 1


@each_store
def test_documents_are_changed_and_deleted_by_their_own_ids(make: Any) -> None:
    inner = make()
    store = inner if isinstance(inner, VectorStore) else SummaryStore(inner)
    summaries = summaries_of(
        [page("Money back within 30 days."), page("Lunch is at noon.", "lunch.md")], store=store
    )
    [found] = summaries.get_by_ids(["refund.md"])
    assert (found.id, found.metadata["source"]) == ("refund.md", "refund.md")
    summaries = summaries_of([page("Money back within 14 days.", tenant="A")], store=store)
    [found] = summaries.get_by_ids(["refund.md"])
    assert found.page_content == "Money back within 14 days. It says more."
    assert (found.metadata["tenant"], "surerag_summary" in found.metadata) == ("A", False)
    assert summaries.delete(["refund.md", "never was"])
    assert summaries.delete(["refund.md"])
    assert [one.id for one in summaries.similarity_search("refund", 9)] == ["lunch.md"]
    with pytest.raises(InputError, match="no ids of summaries"):
        summaries.delete()
    with pytest.raises(ConfigurationError, match="SummaryStore already"):
        SummaryStore(summaries)


def test_summaries_on_disk_are_asked_for_once(tmp_path: Path) -> None:
    writer = Writer()
    documents = [page("Money back within 30 days."), page("Money back within 14 days.", "other.md")]
    store = empty_faiss()
    summaries_of(documents, store=store, summarize=writer)
    store.save_local(str(tmp_path))
    again = FAISS.load_local(str(tmp_path), HashEmbeddings(), allow_dangerous_deserialization=True)
    summaries = summaries_of(documents, store=again, summarize=writer)
    assert len(writer.prompts) == 2
    assert held(summaries) == ["refund in 14 days", "refund in 30 days"]
    # Another way of summarizing is another summary.
    assert "Money back within 30 days." in held(summaries_of(documents, store=again, summarize=1))


class OtherEmbeddings(HashEmbeddings):
    """Another model, with vectors of the same size."""

    def embed_query(self, text: str) -> list[float]:
        return super().embed_query(text[::-1])


def test_vectors_of_another_embedding_model_are_not_searched_and_made_anew() -> None:
    writer, store = Writer(), InMemoryVectorStore(HashEmbeddings())
    documents = [page("Money back within 30 days.")]
    chunks = InMemoryVectorStore.from_documents(documents, HashEmbeddings()).as_retriever()
    summaries_of(documents, store=store, summarize=writer)
    store.embedding = OtherEmbeddings()
    lazy = LazyRetrievalChain(FakeReader(lambda _: "?"), chunks, store)
    with pytest.warns(StaleSummariesWarning, match=r"HashEmbeddings\(\) embedded.*OtherEmbeddings"):
        assert lazy.invoke("refund?")["decision"]["reason"] == "no summary was found"
    summaries_of(documents, store=store, summarize=writer)
    assert len(writer.prompts) == 1
    assert lazy.invoke("refund?")["context"][0].page_content == "refund in 30 days"
    [kept] = store.store.values()
    assert kept["vector"] == OtherEmbeddings().embed_query("refund in 30 days")


# The default: in memory, beside a store in which documents are deleted and changed.


def answer(prompt: str) -> str:
    if "When is lunch" in prompt:
        return "at noon"
    return next((days for days in ("30 days", "14 days") if days in prompt), "I do not know.")


def services(split: bool, store: Any = None, kind: Any = None) -> tuple[Any, Any]:
    documents = [
        Document("Money back within 30 days.", id="a"),
        Document("Lunch is at noon. Bring a cup.", id="b"),
    ]
    chunks = kind() if kind else InMemoryVectorStore(HashEmbeddings())
    if split:
        chunks.add_texts(["Money back within", "within 30 days.", "Lunch is at noon."], ids=["1", "2", "3"])
    else:
        chunks.add_documents(documents)
    embeddings = None if store else HashEmbeddings()
    lazy = LazyRetrievalChain.from_documents(
        documents, FakeReader(answer, entropy=0.1), chunks.as_retriever(), embeddings, store=store
    )
    return chunks, lazy


QUESTION = "How long have I for money back?"


@pytest.mark.parametrize("kind", [None, empty_faiss])
@pytest.mark.parametrize("stored", [False, True])
async def test_nothing_is_answered_from_a_deleted_or_changed_document(kind: Any, stored: bool) -> None:
    chunks, lazy = services(False, InMemoryVectorStore(HashEmbeddings()) if stored else None, kind)
    assert lazy.invoke(QUESTION)["answer"] == "30 days"
    chunks.delete(["a"])
    with pytest.warns(StaleSummariesWarning, match="document a was deleted"):
        assert lazy.invoke(QUESTION)["answer"] == "I do not know."
    chunks.add_documents([Document("Money back within 14 days.", id="a")])
    with pytest.warns(StaleSummariesWarning, match="document a was changed"):
        output = await lazy.ainvoke(QUESTION)
    assert (output["answer"], output["decision"]["retrieve"]) == ("14 days", True)
    assert not lazy.invoke("When is lunch at noon with a cup?")["decision"]["retrieve"]
    lazy.summaries.add_documents([Document("Money back within 14 days.", id="a")])
    output = lazy.invoke(QUESTION)
    assert (output["answer"], output["decision"]["retrieve"]) == ("14 days", False)


@pytest.mark.parametrize("kind", [None, empty_faiss])
def test_where_chunks_do_not_tell_their_document_every_question_is_searched(kind: Any) -> None:
    chunks, lazy = services(True, kind=kind)
    assert lazy.invoke(QUESTION)["answer"] == "30 days"
    chunks.add_texts(["Tea is at five."], ids=["4"])
    assert not lazy.invoke(QUESTION)["decision"]["retrieve"]
    chunks.delete(["1", "2"])
    chunks.add_texts(["Money back within 14 days."], ids=["5"])
    configured = lazy.with_options(top_n=3)
    for one in (lazy, configured):
        with pytest.warns(StaleSummariesWarning, match="no summary is shown"):
            assert one.invoke(QUESTION)["answer"] == "14 days"
    lazy.summaries.delete(["a"])
    lazy.summaries.add_documents([Document("Money back within 14 days.", id="a")])
    for one in (lazy, configured):
        output = one.invoke(QUESTION)
        assert (output["answer"], output["decision"]["retrieve"]) == ("14 days", False)


class Counting(HashEmbeddings):
    """Counts the questions that it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[str] = []

    def embed_query(self, text: str) -> list[float]:
        self.questions.append(text)
        return super().embed_query(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [HashEmbeddings.embed_query(self, text) for text in texts]


@pytest.mark.parametrize("tier", ["memory", "store"])
@pytest.mark.parametrize("kind", [None, empty_faiss])
async def test_a_question_that_is_searched_in_both_tiers_is_embedded_once(kind: Any, tier: str) -> None:
    embeddings = Counting()
    chunks = kind() if kind else InMemoryVectorStore(embeddings)
    if kind:
        chunks.embedding_function = embeddings
    chunks.add_documents(DOCUMENTS)
    store = None if tier == "memory" else InMemoryVectorStore(embeddings)
    summaries = summaries_of(DOCUMENTS, embeddings=embeddings, store=store)
    retriever = chunks.as_retriever(search_kwargs={"k": 2, "filter": None}, tags=["mine"])
    lazy = LazyRetrievalChain(
        FakeReader(lambda _: "?", entropy=2.0), retriever, summaries, return_details=True
    )
    output = lazy.invoke("Where was Ada born?")
    assert [one.id for one in output["passages"]] == [
        one.id for one in retriever.invoke("Where was Ada born?")
    ]
    await lazy.ainvoke("Where is Tarn?")
    assert embeddings.questions == ["Where was Ada born?", "Where was Ada born?", "Where is Tarn?"]
    runs = [event async for event in lazy.astream_events("Where?") if event["event"] == "on_retriever_start"]
    assert [(run["name"], "mine" in run["tags"]) for run in runs][-1] == ("VectorStoreRetriever", True)


@pytest.mark.parametrize("name", documents_change_langchain.STORES)
def test_documents_change_over_the_stores_that_are_installed(name: str, tmp_path: Path) -> None:
    if find_spec(documents_change_langchain.STORES[name].package) is None:
        pytest.skip("not installed")
    assert documents_change_langchain.run(name, tmp_path) == [
        ("two documents", 2, 2, "30 days", False),
        ("one added", 3, 3, "30 days", False),
        ("one changed", 3, 4, "14 days", False),
        ("a restart", 3, 4, "14 days", False),
        ("one deleted", 2, 4, "I do not know.", True),
    ]
