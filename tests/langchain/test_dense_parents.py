"""Uncertain questions: the documents behind the chunks are found, cut anew, and tell where they come from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, ParentDocumentRetriever
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryByteStore, InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import CharacterTextSplitter

from langchain_surerag import AdaptiveSemanticSplitter, DenseRefiner
from surerag import DenseRefiner as ContextRefiner
from surerag import FakeReader, Passage
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, MissingServiceError, ServiceError
from tests.langchain.conftest import HashEmbeddings
from tests.langchain.dense_cases import Heard
from tests.methods.dense_rag.script import Shown, distinct, script

QUESTION = "Where was Ada born?"
TEXT = "Ada was born in Velm. Tin melts easily. Velm lies on the Orun."
META = {"source": "atlas", "start": 12.5, "tags": ["x"]}


def born(context: Shown) -> str:
    """Only the whole sentence is understood."""
    return "Velm" if "Ada was born in Velm." in context else distinct(context)


def chunks(**metadata: Any) -> list[Document]:
    """The document, cut where it should not have been."""
    return [
        Document(text, id=f"doc#{at}", metadata={**META, **metadata})
        for at, text in enumerate(["Ada was born in", "Velm. Tin melts"])
    ]


def stored() -> InMemoryStore:
    store = InMemoryStore()
    store.mset([("doc", Document(TEXT, metadata=dict(META)))])
    return store


def tool(parents: Any, reader: FakeReader | None = None, **settings: Any) -> DenseRefiner:
    splitter = AdaptiveSemanticSplitter(HashEmbeddings(), similarity_threshold=0.9)
    services: dict[str, Any] = {"entailer": ExactEntailer(), "splitter": splitter, "top_n": 2}
    return DenseRefiner(reader or script(born), **{**services, **settings}, parents=parents)


def check(found: Sequence[Document]) -> None:
    assert found[0].page_content == "Ada was born in Velm."
    for document in found:
        entry = document.metadata["dense"]
        start = document.metadata["start_index"]
        assert TEXT[start:].startswith(document.page_content)
        assert (entry["document"], entry["start"], entry["end"]) == (
            "doc",
            start,
            start + len(document.page_content),
        )
        [told] = document.metadata["provenance"]
        assert (told["id"], TEXT[told["source_start"] : told["source_end"]]) == ("doc", document.page_content)
        assert document.id == f"doc@{entry['start']}:{entry['end']}"
        # What the document says of itself stays, under names that the core uses, too.
        assert {name: document.metadata[name] for name in META} == META
        assert entry["label"] in ("certain", "uncertain", "necessary", "unnecessary")
    assert len({document.id for document in found}) == len(found)


async def test_parents_in_a_store_are_cut_anew() -> None:
    store, given = stored(), chunks(doc_id="doc")
    before = store.store["doc"].model_dump_json(), [chunk.model_dump_json() for chunk in given]
    for found in (
        tool(store).compress_documents(given, QUESTION),
        await tool(store).acompress_documents(given, QUESTION),
    ):
        check(found)
        assert {document.metadata["doc_id"] for document in found} == {"doc"}
        found[0].metadata["source"] = "changed"
    assert (store.store["doc"].model_dump_json(), [chunk.model_dump_json() for chunk in given]) == before


def test_it_does_what_the_core_does() -> None:
    refiner = tool(stored())
    core = ContextRefiner(script(born), ExactEntailer(), chunker=refiner.core.chunker, top_n=2).run(
        QUESTION, [Passage(one.page_content, id=one.id or "") for one in chunks()], [Passage(TEXT, id="doc")]
    )
    assert refiner.refine(chunks(doc_id="doc"), QUESTION).to_dict() == core.to_dict()
    assert core.rounds[0].rechunked


def find(found: Sequence[Document]) -> list[Document]:
    assert [chunk.id for chunk in found] == ["doc#0", "doc#1"]
    return [Document(TEXT, id="doc", metadata=META)]


async def afind(found: Sequence[Document]) -> list[Document]:
    await asyncio.sleep(0)
    return find(found)


async def test_parents_by_a_function_or_a_runnable() -> None:
    for source in (find, RunnableLambda(find, afind)):
        check(tool(source).compress_documents(chunks(), QUESTION))
    for source in (find, afind, RunnableLambda(find, afind)):
        found = await tool(source).acompress_documents(chunks(), QUESTION)
        check(found)
        assert "doc_id" not in found[0].metadata


class AwaitedStore(InMemoryStore):
    def mget(self, keys: Sequence[str]) -> list[Any]:
        raise AssertionError("the event loop was blocked")

    async def amget(self, keys: Sequence[str]) -> list[Any]:
        return [self.store.get(key) for key in keys]


async def test_a_store_is_awaited() -> None:
    store = AwaitedStore()
    store.store = stored().store
    check(await tool(store).acompress_documents(chunks(doc_id="doc"), QUESTION))


async def test_a_chunk_whose_document_is_unknown_stands_for_itself() -> None:
    given = [
        *chunks(doc_id="doc"),
        Document("Bo paints. Bo sings.", id="bo"),
        Document("Cy.", metadata={"doc_id": 7}),
    ]
    result = await tool(stored(), script(distinct), rounds=2).arefine(given, QUESTION)
    assert result.rounds[0].rechunked
    refiner = tool(stored(), top_n=9)
    found = {document.id: document for document in refiner.compress_documents(given, QUESTION)}
    assert set(found) >= {"doc@0:21", "bo@0:10", "bo@11:20", None}
    assert found["bo@11:20"].page_content == "Bo sings."
    assert found["bo@11:20"].metadata["start_index"] == 11
    assert "doc_id" not in found["bo@11:20"].metadata


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (InMemoryStore(), "no document was found behind the chunks"),
        (lambda found: [], "no document was found behind the chunks"),
        (lambda found: 1 / 0, "ZeroDivisionError"),
    ],
)
async def test_without_parents_chunks_stay_as_they_are_with_a_warning(
    source: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    step = tool(source).as_runnable()
    asked = {"documents": chunks(doc_id="doc"), "query": QUESTION}
    for found in (
        step.invoke(asked, {"callbacks": [heard]}),
        await step.ainvoke(asked, {"callbacks": [heard]}),
    ):
        assert {document.id for document in found} <= {"doc#0", "doc#1"}
        assert found
    data = [data for name, data in zip(heard.names, heard.data, strict=True) if name.endswith("no_parents")]
    assert len(data) == 2
    assert all(said in one["reason"] for one in data)
    assert said in caplog.text


def test_what_cannot_work_says_so() -> None:
    given = chunks(doc_id="doc")
    with pytest.raises(ConfigurationError, match="docstore"):
        tool(InMemoryVectorStore(HashEmbeddings()).as_retriever())
    with pytest.raises(ConfigurationError, match="parents is a dict"):
        tool({})
    unread = InMemoryByteStore()
    unread.mset([("doc", b"{}")])
    with pytest.raises(ConfigurationError, match="create_kv_docstore"):
        tool(unread).compress_documents(given, QUESTION)
    with pytest.raises(ConfigurationError, match="found a str"):
        tool(lambda found: TEXT).compress_documents(given, QUESTION)
    with pytest.raises(ZeroDivisionError):
        tool(lambda found: 1 / 0, on_failure="raise").compress_documents(given, QUESTION)
    with pytest.raises(MissingServiceError):
        tool(stored(), splitter=None, remove_only=True)
    with pytest.raises(ConfigurationError, match="same encoder"):
        tool(stored(), embeddings=OtherEmbeddings())


class OtherEmbeddings(HashEmbeddings):
    model = "other"


def test_the_encoder_failing_while_documents_are_cut_leaves_the_best_so_far() -> None:
    class Broken(HashEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise ServiceError("no vectors")

    found = tool(stored(), splitter=AdaptiveSemanticSplitter(Broken())).compress_documents(
        chunks(doc_id="doc"), QUESTION
    )
    assert [document.id for document in found] == ["doc#0", "doc#1"]
    assert {document.metadata["dense"]["stopped"] for document in found} == {"failed"}


async def test_behind_a_parent_document_retriever_s_own_stores() -> None:
    retriever = ParentDocumentRetriever(
        vectorstore=InMemoryVectorStore(HashEmbeddings()),
        docstore=InMemoryStore(),
        child_splitter=CharacterTextSplitter(separator=" ", chunk_size=16, chunk_overlap=0),
    )
    retriever.add_documents(
        [Document(TEXT, metadata=META), Document("Bo paints. Bo sings.")], ids=["doc", "bo"]
    )
    reader = script(born)
    refiner = tool(retriever.docstore, reader, id_key=retriever.id_key)
    pipeline = ContextualCompressionRetriever(
        base_compressor=refiner, base_retriever=retriever.vectorstore.as_retriever(search_kwargs={"k": 4})
    )
    for found in (pipeline.invoke(QUESTION), await pipeline.ainvoke(QUESTION)):
        assert found[0].page_content == "Ada was born in Velm."
        assert (found[0].id, found[0].metadata["doc_id"]) == ("doc@0:21", "doc")


def test_documents_behind_what_is_understood_are_not_fetched() -> None:
    asked: list[int] = []

    def fetched(chunks: Any) -> list[Document]:
        asked.append(len(chunks))
        return []

    reader = FakeReader(lambda prompt: "It rained." if prompt.startswith("Rewrite") else "Velm")
    refiner = DenseRefiner(reader, HashEmbeddings(), entailer=ExactEntailer(), parents=fetched)
    refiner.compress_documents([Document("Ada was born in Velm.")], "Where was Ada born?")
    assert asked == []
