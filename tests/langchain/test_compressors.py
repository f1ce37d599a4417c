"""ClusterCompressor and DenseRefiner in LangChain's own pipelines."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, ParentDocumentRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline, EmbeddingsFilter
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_surerag import ClusterCompressor, DenseRefiner, SemanticTextSplitter
from surerag import ClusterCompressor as CoreCompressor
from surerag import DenseRefiner as CoreRefiner
from surerag import FakeReader, Passage
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, InputError, MissingServiceError, RefusedError, ServiceError
from surerag.prompts import SELECT_ANSWER, format_passages, selected_answer
from tests.langchain.conftest import HashEmbeddings, chat
from tests.servers.fake_openai import FakeOpenAI

QUERY = "Where was Ada born?"
LONG = "Ada was born in Velm. Bo came much later, and stayed in Tarn for a good many years."
EXTRACT = "Ada was born in Velm."


def compressor(reader: Any = None, **options: Any) -> ClusterCompressor:
    reader = FakeReader(lambda _: EXTRACT) if reader is None else reader
    return ClusterCompressor(reader, HashEmbeddings(), **{"variant": "copy", "min_tokens": 0, **options})


def refine_reply(prompt: str) -> str:
    if prompt.startswith("Rewrite"):
        return "Said in other words: " + prompt.rsplit("Text: ", 1)[-1]
    if "enough" in prompt:
        return "yes"
    return "Velm"


def refiner(reader: Any = None, **options: Any) -> DenseRefiner:
    reader = FakeReader(refine_reply) if reader is None else reader
    return DenseRefiner(reader, HashEmbeddings(), **{"entailer": ExactEntailer(), "top_n": 2, **options})


@pytest.fixture
def retriever(documents: list[Document]) -> Any:
    return InMemoryVectorStore.from_documents(documents, HashEmbeddings()).as_retriever()


# Both.


@pytest.mark.parametrize("make", [compressor, refiner])
async def test_in_pipelines(make: Any, retriever: Any) -> None:
    part = make()
    around = ContextualCompressionRetriever(base_compressor=part, base_retriever=retriever)
    assert around.invoke(QUERY)
    assert await around.ainvoke(QUERY) == around.invoke(QUERY)
    pipeline = DocumentCompressorPipeline(
        transformers=[EmbeddingsFilter(embeddings=HashEmbeddings(), k=3), part]
    )
    whole = ContextualCompressionRetriever(base_compressor=pipeline, base_retriever=retriever)
    assert whole.invoke(QUERY)
    assert await whole.ainvoke(QUERY)


@pytest.mark.parametrize("make", [compressor, refiner])
@pytest.mark.parametrize("texts", [[], [""], ["Velm"], ["Velm", "Velm"], ["Ort: Köln — 東京", "😀"]])
async def test_odd_documents(make: Any, texts: list[str]) -> None:
    documents = [Document(text, id=str(place), metadata={"at": [place]}) for place, text in enumerate(texts)]
    before = copy.deepcopy(documents)
    part = make()
    one, two = part.compress_documents(documents, QUERY), await part.acompress_documents(documents, QUERY)
    assert [document.page_content for document in one] == [document.page_content for document in two]
    for document in one:
        document.metadata["at"] = "changed"
    assert documents == before


@pytest.mark.parametrize("make", [compressor, refiner])
async def test_async_never_uses_the_sync_way(make: Any, server: FakeOpenAI, monkeypatch: Any) -> None:
    server.answers = lambda prompt: EXTRACT
    model = chat(server)
    main = threading.get_ident()

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the sync method was called")

    for name in ("_generate", "_stream"):
        monkeypatch.setattr(type(model), name, refuse)
    assert await make(model).acompress_documents([Document(LONG), Document("Tin.")], QUERY)
    assert threading.get_ident() == main


@pytest.mark.parametrize(
    ("make", "core"), [(compressor, CoreCompressor), (refiner, CoreRefiner)], ids=["compressor", "refiner"]
)
def test_the_core_gives_the_same(make: Any, core: Any, documents: list[Document]) -> None:
    part = make()
    passages = [Passage(one.page_content, id=one.id or "", metadata=one.metadata) for one in documents]
    result = part.core.run(QUERY, passages)
    assert isinstance(part.core, core)
    assert [one.page_content for one in make().compress_documents(documents, QUERY)] == [
        passage.text for passage in result.passages
    ]


@pytest.mark.parametrize("make", [compressor, refiner])
async def test_as_a_runnable(make: Any, documents: list[Document]) -> None:
    runnable = make().as_runnable()
    value = {"documents": documents, "query": QUERY}
    assert runnable.invoke(value) == await runnable.ainvoke(value)
    with pytest.raises(InputError, match="query"):
        runnable.invoke({"documents": documents})


@pytest.mark.parametrize("make", [ClusterCompressor, DenseRefiner])
def test_construction_says_what_is_wrong(make: Any) -> None:
    for settings, match in (
        ({}, "llm"),
        ({"llm": "gpt"}, "chat model"),
        ({"llm": FakeReader([]), "k": 3}, "no option 'k'"),
        ({"llm": FakeReader([]), "max_tokens": 0}, "max_tokens"),
        ({"llm": FakeReader([]), "on_failure": "ignore"}, "on_failure"),
        ({"llm": FakeReader([]), "prompts": {"nothing": "x"}}, "nothing"),
    ):
        with pytest.raises((ConfigurationError, MissingServiceError, ValueError), match=match):
            make(**settings)
    assert len(make.model_fields) <= 19
    part = make(FakeReader([]), HashEmbeddings())
    with pytest.raises(ConfigurationError, match="max_tokens"):
        part.max_tokens = -1
    assert "FakeReader" not in repr(part)


# Clusters.


async def test_documents_are_compressed_with_their_sources() -> None:
    documents = [
        Document(id="a", page_content=LONG, metadata={"page": 1}),
        Document(id="b", page_content="Ada, a painter, was born in Velm on the Orun.", metadata={"page": 2}),
    ]
    part = compressor()
    for compressed in (
        part.compress_documents(documents, QUERY),
        await part.acompress_documents(documents, QUERY),
    ):
        [document] = compressed
        assert document.page_content == EXTRACT
        assert (document.id, document.metadata["page"]) == ("a", 1)
        assert [source["id"] for source in document.metadata["compressed_from"]] == ["a", "b"]
        assert [source["metadata"]["page"] for source in document.metadata["compressed_from"]] == [1, 2]
    assert part.compress(documents, QUERY).tokens_after < 10


async def test_a_failing_model_leaves_documents_as_they_are_and_a_wrong_key_raises() -> None:
    failing = compressor(FakeReader([ServiceError("down")] * 9))
    [document] = failing.compress_documents([Document(LONG)], QUERY)
    assert document.page_content == LONG
    [document] = await compressor(FakeReader([ServiceError("down")] * 9)).acompress_documents(
        [Document(LONG)], QUERY
    )
    assert document.page_content == LONG
    with pytest.raises(ServiceError):
        compressor(FakeReader([ServiceError("down")] * 9), on_failure="raise").compress_documents(
            [Document(LONG)], QUERY
        )
    with pytest.raises(RefusedError):
        compressor(FakeReader([RefusedError("no key")] * 9)).compress_documents([Document(LONG)], QUERY)


def test_prompts_and_token_counts() -> None:
    prompt = PromptTemplate.from_template("Take from {passages} for {question}.")
    reader = FakeReader(lambda _: EXTRACT)
    part = compressor(reader, prompts={"extract": prompt}, count_tokens=len)
    result = part.compress([Document(LONG)], QUERY)
    assert reader.prompts[0].startswith("Take from")
    assert result.tokens_before == len(LONG)


def test_a_langchain_model_compresses_with_text_alone() -> None:
    model = FakeListChatModel(responses=[EXTRACT])
    part = ClusterCompressor(model, HashingEncoder(), variant="copy", min_tokens=0)
    assert part.compress_documents([Document(LONG)], QUERY)[0].page_content == EXTRACT


def by_task(prompt: str) -> str:
    """Reply as each task and the last step ask for."""
    if prompt.startswith("Compare the candidate answers"):
        return "Reasoning: one says so.\nSelected answer: Velm"
    return 'In Velm: "Ada was born in Velm."' if prompt.startswith("Answer") else EXTRACT


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"variant": "paper"}, {"task": "answer"}, {"top_n": 1}),
        *({"task": "verify", "person": "Ada"}, {"task": "verify", "top_n": 1}),
    ],
)
async def test_every_task_gives_in_a_retriever_what_the_core_gives(
    options: dict[str, Any], retriever: Any
) -> None:
    reader = FakeReader(by_task)
    part = compressor(reader, **options)
    around = ContextualCompressionRetriever(base_compressor=part, base_retriever=retriever)
    texts = [document.page_content for document in around.invoke(QUERY)]
    assert texts == [document.page_content for document in await around.ainvoke(QUERY)]
    passages = [Passage(one.page_content, id=one.id or "") for one in retriever.invoke(QUERY)]
    assert texts == [passage.text for passage in part.core.run(QUERY, passages).passages]
    begins = {"answer": "Answer", "verify": "Documents:", "extract": "Documents:"}
    begin = "Extract" if part.variant == "paper" else begins[part.task]
    assert all(one.startswith((begin, "Passage: ")) for one in reader.prompts)
    assert any(one.startswith("Passage: ") for one in reader.prompts) is (part.top_n is not None)
    assert any("uestion" in one for one in reader.prompts) is (part.task != "verify")


async def test_clusters_answer_and_the_last_step_of_a_chain_selects(
    retriever: Any, server: FakeOpenAI
) -> None:
    server.answers = by_task
    model = chat(server)
    around = ContextualCompressionRetriever(
        base_compressor=ClusterCompressor(model, HashEmbeddings(), task="answer"), base_retriever=retriever
    )
    answers = around | (lambda found: format_passages(one.page_content for one in found))
    chain = (
        {"answers": answers, "question": RunnablePassthrough()}
        | ChatPromptTemplate.from_template(SELECT_ANSWER.text)
        | model
        | StrOutputParser()
        | selected_answer
    )
    assert chain.invoke(QUERY) == await chain.ainvoke(QUERY) == "Velm"
    last = server.requests[-1]["messages"][-1]["content"]
    assert 'Candidate answers:\n[1] In Velm: "Ada was born in Velm."\n' in last


@pytest.mark.parametrize("make", [compressor, refiner])
@pytest.mark.parametrize("fails", [False, True])
def test_a_document_without_a_text_stays(make: Any, fails: bool, documents: list[Document]) -> None:
    picture = Document("", id="picture", metadata={"path": "velm.png"})
    part = make(FakeReader([ServiceError("down")] * 50)) if fails else make()
    returned = part.compress_documents([documents[0], picture], QUERY)
    assert [(one.id, one.metadata.get("path")) for one in returned][1:] == [("picture", "velm.png")]


# Refining.


async def test_a_certain_context_is_noted_in_the_metadata(documents: list[Document]) -> None:
    part = refiner()
    for refined in (
        part.compress_documents(documents, QUERY),
        await part.acompress_documents(documents, QUERY),
    ):
        assert [document.id for document in refined] == ["velm", "ada"]
        note = refined[0].metadata["dense"]
        assert note == refined[1].metadata["dense"]
        assert {
            name: note[name] for name in ("score", "certain", "rounds", "stopped", "answer", "label")
        } == {
            "score": 0.0,
            "certain": True,
            "rounds": 1,
            "stopped": "certain",
            "answer": "Velm",
            "label": "certain",
        }
        assert refined[0].metadata["tags"] == ["a", "b"]
    assert "dense" not in documents[0].metadata
    assert "dense" not in refiner(refinement_key=None).compress_documents(documents, QUERY)[0].metadata


def confused(prompt: str) -> str:
    """Answer otherwise as long as the chunk about Tarn is said in other words."""
    if prompt.startswith("Rewrite"):
        return "Other words. " + prompt.rsplit("Text: ", 1)[-1]
    if "enough" in prompt:
        return "yes"
    return "Tarn" if "Other words. Tarn" in prompt else "Velm"


async def test_a_document_that_confuses_leaves(documents: list[Document]) -> None:
    candidates = [documents[1], documents[2], documents[0]]
    for refined in (
        refiner(FakeReader(confused)).compress_documents(candidates, QUERY),
        await refiner(FakeReader(confused)).acompress_documents(candidates, QUERY),
    ):
        assert "tarn" not in [document.id for document in refined]
        assert refined[0].metadata["dense"]["rounds"] == 2
    failing = refiner(FakeReader([ServiceError("down")] * 50))
    assert [one.id for one in failing.compress_documents(candidates, QUERY)] == ["ada", "tarn"]


async def test_parents_are_cut_anew(documents: list[Document]) -> None:
    docstore: Any = InMemoryStore()
    parent = Document("Ada was born in Velm. Tarn is new. The Orun ends in the sea.", metadata={"book": 1})
    docstore.mset([("p", parent)])
    chunks = [
        Document("Ada was born.", metadata={"doc_id": "p"}),
        Document("Tarn is near.", metadata={"doc_id": "p"}),
    ]
    splitter = SemanticTextSplitter(HashEmbeddings(), chunk_size=6)
    calls: list[Any] = []

    def function(chunks: list[Document]) -> list[Document]:
        calls.append(chunks)
        return [parent]

    for parents in (docstore, function, RunnableLambda(function)):
        part = refiner(FakeReader(confused), parents=parents, splitter=splitter)
        for refined in (
            part.compress_documents(chunks, QUERY),
            await part.acompress_documents(chunks, QUERY),
        ):
            assert any(document.page_content in parent.page_content for document in refined)
            assert any(document.metadata.get("book") == 1 for document in refined)
    assert len(calls) == 4
    with pytest.raises(
        ConfigurationError, match="expected a retriever, store or function as parents, got an int"
    ):
        refiner(parents=7)
    with pytest.raises(ConfigurationError, match="parents must return a list of documents"):
        refiner(parents=lambda chunks: 7).compress_documents(chunks, QUERY)


@pytest.mark.parametrize("id_key", ["doc_id", "book"])
async def test_the_parents_of_a_multi_vector_retriever(id_key: str, caplog: pytest.LogCaptureFixture) -> None:
    chunks, docstore = InMemoryVectorStore(HashEmbeddings()), InMemoryStore()
    writer = ParentDocumentRetriever(
        vectorstore=chunks,
        docstore=docstore,
        child_splitter=SemanticTextSplitter(HashEmbeddings(), chunk_size=8),
        id_key=id_key,
    )
    writer.add_documents([Document(LONG, metadata={"shelf": 3})])

    def around(**options: Any) -> Any:
        part = refiner(FakeReader(confused), **{"parents": docstore, **options})
        return ContextualCompressionRetriever(base_compressor=part, base_retriever=chunks.as_retriever())

    with_key = around(parents=writer)
    assert with_key.invoke(QUERY) == await with_key.ainvoke(QUERY) != []
    assert "no_parents" not in caplog.text
    with pytest.raises(ConfigurationError, match="filled by the retriever in parents"):
        refiner(FakeReader(confused), parents=writer).compress_documents([Document(LONG)], QUERY)
    if id_key != "doc_id":
        with pytest.raises(
            ConfigurationError, match=r"under the metadata key 'doc_id'.*'book', 'shelf'.*parents="
        ):
            around().invoke(QUERY)
        with pytest.raises(ConfigurationError, match="under the metadata key 'doc_id'"):
            await around().ainvoke(QUERY)
    else:
        assert around().invoke(QUERY) == with_key.invoke(QUERY)
    writer.docstore = InMemoryStore()
    assert with_key.invoke(QUERY)
    assert "dense.no_parents" in caplog.text


def test_a_compressor_without_an_embedding_model_is_refused() -> None:
    with pytest.raises(MissingServiceError, match="embedding model"):
        ClusterCompressor(FakeReader(["x"]))
