"""Lazy retrieval as a query engine: decisions, streams, tier 1, filters, windows."""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import pytest
from llama_index.core import (
    Document,
    DocumentSummaryIndex,
    QueryBundle,
    Settings,
    SimpleKeywordTableIndex,
    StorageContext,
    SummaryIndex,
    VectorStoreIndex,
    load_index_from_storage,
)
from llama_index.core.base.llms.types import LLMMetadata
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import HierarchicalNodeParser, get_leaf_nodes
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.vector_stores.faiss import FaissVectorStore

from llama_index_surerag import (
    ClusterCompressorPostprocessor,
    LazyRetrievalQueryEngine,
    UncertaintyRewriteQueryEngine,
    summary_index,
    summary_nodes,
)
from llama_index_surerag.engines import aread_to_end, read_to_end
from llama_index_surerag.summaries import summary_id
from surerag import FakeReader, LazyRAG, Passage
from surerag.documents import load_documents
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, PromptError, RefusedError
from surerag.messages import Chunk, Generation
from surerag.readers.fake import reply
from surerag.readers.protocol import BegunGeneration
from surerag.retrieval import PassageIndex
from tests.llama_index import corpus
from tests.llama_index.corpus import KEY, KNOWN, UNKNOWN, HashEmbedding, knowing, like
from tests.llama_index.llms import Own, Unstreamed
from tests.servers.fake_openai import FakeOpenAI

KNOWN_ANSWER = "She was born in Velm, as everyone in the old city knows"
FOUND_ANSWER = "In the lake of Mir, says the atlas of rivers, and nowhere else"


def engine(retriever: Any = None, llm: Any = None, **settings: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(
        corpus.index() if retriever is None else retriever, knowing() if llm is None else llm, **settings
    )


def sources(response: Any) -> list[str]:
    return [node.node_id for node in response.source_nodes]


def test_other_documents_are_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    (tmp_path / "ada.md").write_text("Ada was born in Velm.")
    loaded = load_documents(tmp_path)
    for documents, kind in ((loaded.documents, "Document"), (loaded, "LoadedDocuments"), ("docs", "str")):
        with pytest.raises(ConfigurationError, match=rf"made of \S*{kind}\. .*Document\(text=item"):
            summary_nodes(documents)


@pytest.mark.parametrize(
    ("question", "answer", "retrieve", "expected_ids"),
    [
        (KNOWN, KNOWN_ANSWER, False, [summary_id("ada")]),
        (UNKNOWN, FOUND_ANSWER, True, ["orun-1", "orun-0", summary_id("orun")]),
    ],
)
async def test_answers_from_summaries_or_retrieves(
    question: str, answer: str, retrieve: bool, expected_ids: list[str]
) -> None:
    lazy = engine(top_n=2, n_summaries=1)
    for response in (lazy.query(question), await lazy.aquery(question)):
        assert str(response) == answer
        metadata = response.metadata
        assert metadata["retrieve"] is retrieve
        assert metadata["finish"] == "stop"
        assert metadata["threshold"] == 0.5
        assert metadata["calls"] == 1 + retrieve
        assert sources(response) == expected_ids
        assert metadata["passage_ids"] + metadata["summary_ids"] == expected_ids


@pytest.mark.parametrize("question", [KNOWN, UNKNOWN])
async def test_streams_on_both_branches(question: str) -> None:
    whole, streaming = engine(top_n=2), engine(top_n=2, streaming=True)
    expected = whole.query(question)
    response = streaming.query(question)
    assert response.metadata["retrieve"] is expected.metadata["retrieve"]
    assert sources(response) == sources(expected)
    pieces = list(response.response_gen)
    assert len(pieces) > 5
    assert "".join(pieces) == str(expected)
    assert response.metadata["finish"] == "stop"
    response = await streaming.aquery(question)
    assert response.metadata["score"] == expected.metadata["score"]
    assert "".join([piece async for piece in response.async_response_gen()]) == str(expected)
    assert response.metadata["completion_tokens"] == expected.metadata["completion_tokens"]


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("question", [KNOWN, UNKNOWN])
async def test_a_stream_that_is_closed_early_closes_the_servers(question: str, close: bool) -> None:
    with FakeOpenAI(lambda prompt: "word " * 200, pace=0.01) as server:
        lazy = engine(llm=like(server), streaming=True, threshold=9.0 if question == KNOWN else 0.0)
        response = await lazy.aquery(question)
        if close:
            pieces = response.async_response_gen()
            await anext(pieces)
            await pieces.aclose()
        else:
            async for _ in response.async_response_gen():
                break
        await asyncio.sleep(0.2)
        assert server.streams[-1]["closed"]


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_server_is_asked_once_where_the_gate_stays_shut(streaming: bool) -> None:
    with FakeOpenAI(corpus.answer) as server:
        lazy = engine(llm=like(server), streaming=streaming, threshold=0.5)
        assert str(lazy.query(KNOWN)) == KNOWN_ANSWER
        response = await lazy.aquery(KNOWN)
        assert str(response if not streaming else await response.get_response()) == KNOWN_ANSWER
        assert len(server.requests) == 2
        server.logprob = -1.5
        assert str(lazy.query(UNKNOWN)) == FOUND_ANSWER
        first, second = server.requests[2:]
    assert second["logprobs"] and first["logprobs"]  # the certainty of every answer


def test_works_with_an_llm_without_streaming() -> None:
    assert str(engine(llm=Unstreamed(sure=0.99)).query(KNOWN)) == KNOWN_ANSWER
    assert (
        "".join(engine(llm=Unstreamed(sure=0.99), streaming=True).query(KNOWN).response_gen) == KNOWN_ANSWER
    )


def test_takes_the_llm_and_embedding_model_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", Own(sure=0.99))
    monkeypatch.setattr(Settings, "_embed_model", HashEmbedding())
    lazy = LazyRetrievalQueryEngine.from_args(VectorStoreIndex(corpus.nodes()))
    assert str(lazy.query(KNOWN)) == KNOWN_ANSWER


@pytest.mark.parametrize(
    ("fault", "finish"), [("cut", "length"), ("withheld", "content_filter"), ("empty answer", "empty")]
)
async def test_marks_and_warns_of_answers_that_are_not_whole(
    fault: str, finish: str, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeOpenAI(corpus.answer) as server:
        server.fault = fault
        lazy = engine(llm=like(server), n_tokens=99)
        for response in (lazy.query(KNOWN), await lazy.aquery(KNOWN)):
            assert response.metadata["finish"] == finish
            # What is known to be no whole answer is never taken for a sure one.
            assert response.metadata["retrieve"] is True
    assert "answer.incomplete" in caplog.text


class Emptied(BegunGeneration):
    """A begun answer that turns out to be empty."""

    def __init__(self, begun: BegunGeneration) -> None:
        super().__init__(begun.partial)
        self._begun = begun

    def rest(self) -> Generation:
        return replace(self._begun.rest(), text="")

    def chunks(self) -> Iterator[Chunk]:
        yield Chunk("", self.rest())


class Emptying(FakeReader):
    """Whatever it goes on with turns out to be empty."""

    def begin(self, prompts: Any, n_tokens: int, sampling: Any) -> list[BegunGeneration]:
        return [Emptied(begun) for begun in super().begin(prompts, n_tokens, sampling)]


async def test_a_stream_says_in_the_end_what_was_shown_in_place_of_an_empty_answer() -> None:
    reader = Emptying(lambda prompt: corpus.answer(prompt), entropy=0.1)
    whole = engine(llm=reader, threshold=1.0).query(UNKNOWN)
    assert whole.metadata["retrieve"] is True
    streaming = engine(llm=reader, threshold=1.0, streaming=True)
    for response in (streaming.query(UNKNOWN), await streaming.aquery(UNKNOWN)):
        assert str(await aread_to_end(response)) == FOUND_ANSWER
        assert response.source_nodes == whole.source_nodes
        for name in ("retrieve", "reason", "passage_ids"):
            assert response.metadata[name] == whole.metadata[name]


def test_degrades_where_the_first_pass_fails() -> None:
    with FakeOpenAI(corpus.answer) as server:
        lazy = engine(llm=like(server))
        server.fail("500")
        response = lazy.query(KNOWN)
    assert str(response) == KNOWN_ANSWER
    assert response.metadata["retrieve"] is True
    assert "first pass failed" in response.metadata["reason"]


# Tier 1


def tenant_filters(operator: FilterOperator, value: Any, key: str = "tenant") -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


@pytest.mark.parametrize(
    "filters",
    [
        tenant_filters(FilterOperator.EQ, "a"),
        tenant_filters(FilterOperator.NE, "b"),
        tenant_filters(FilterOperator.IN, ["a"]),
        tenant_filters(FilterOperator.NIN, ["b"]),
        tenant_filters(FilterOperator.LT, 4, "size"),
        tenant_filters(FilterOperator.TEXT_MATCH, "a"),
        MetadataFilters(
            filters=[
                MetadataFilter(key="tenant", value="a"),
                MetadataFilter(key="size", value=100, operator=FilterOperator.GT),
            ],
            condition=FilterCondition.OR,
        ),
    ],
    ids=["eq", "ne", "in", "nin", "lt", "text", "or"],
)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("explicit", [False, True])
async def test_a_tenants_summaries_do_not_leak(
    filters: MetadataFilters, streaming: bool, explicit: bool
) -> None:
    index = corpus.index(ada="a", orun="b", tarn="b")
    reader = knowing()
    summaries = summary_index(index, embed_model=HashEmbedding())
    lazy = engine(
        index.as_retriever(filters=filters),
        reader,
        summaries=summaries.as_retriever(filters=filters) if explicit else summaries,
        streaming=streaming,
    )
    for question in (KNOWN, UNKNOWN):
        responses = [lazy.query(question), await lazy.aquery(question)]
        if streaming:
            responses[1] = await responses[1].get_response()
        for response in responses:
            str(response)
            assert {node.node.ref_doc_id for node in response.source_nodes} == {"ada"}
    assert not any("river. It is long" in text or "old city. It" in text for text in prompts_of(reader))


def prompts_of(reader: FakeReader) -> list[str]:
    return [prompt for call in reader.history for prompt in call.prompts]


def test_a_retriever_without_summaries_is_refused() -> None:
    for filters in (None, tenant_filters(FilterOperator.EQ, "a")):
        with pytest.raises(ConfigurationError, match="summary_index"):
            engine(corpus.index().as_retriever(filters=filters))


def test_a_core_with_a_retriever_of_another_kind_is_refused_with_the_name_of_the_retriever() -> None:
    index = PassageIndex.from_passages([Passage("Ada was born in Velm.")], HashingEncoder())
    core = LazyRAG(FakeReader(["Velm"]), index, index)
    with pytest.raises(ConfigurationError, match=r"is a NodeRetriever, got a LazyRAG with a PassageIndex\."):
        LazyRetrievalQueryEngine(core)
    with pytest.raises(ConfigurationError, match=r"is a NodeRetriever, got a VectorStoreIndex\."):
        LazyRetrievalQueryEngine(corpus.index())


def test_what_is_no_summaries_and_no_postprocessor_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"summaries must be an index.*summary_index"):
        LazyRetrievalQueryEngine.from_args(corpus.index(), knowing(), summaries=corpus.nodes())
    with pytest.raises(ConfigurationError, match="node_postprocessors holds an int"):
        LazyRetrievalQueryEngine.from_args(corpus.index(), knowing(), node_postprocessors=[5])


def test_summaries_with_other_filters_are_refused() -> None:
    index = corpus.index(ada="a")
    summaries = summary_index(index, embed_model=HashEmbedding())
    retriever = index.as_retriever(filters=tenant_filters(FilterOperator.EQ, "a"))
    other = tenant_filters(FilterOperator.EQ, "b")
    for theirs in (summaries.as_retriever(), summaries.as_retriever(filters=other)):
        with pytest.raises(ConfigurationError, match="has other filters or doc_ids"):
            engine(retriever, summaries=theirs)
    for theirs in (summaries.as_retriever(), summaries.as_retriever(doc_ids=["ada", "orun"])):
        with pytest.raises(ConfigurationError, match="has other filters or doc_ids"):
            engine(index.as_retriever(doc_ids=["ada"]), summaries=theirs)


@pytest.mark.parametrize("as_retriever", [True, False])
async def test_only_summaries_of_the_retrievers_documents_are_shown(as_retriever: bool) -> None:
    index = corpus.index()
    summaries: Any = summary_index(index, embed_model=HashEmbedding())
    if as_retriever:
        summaries = summaries.as_retriever(doc_ids=["tarn"], similarity_top_k=3)
    lazy = engine(index.as_retriever(doc_ids=["tarn"]), summaries=summaries)
    for response in (lazy.query(KNOWN), await lazy.aquery(KNOWN)):
        assert set(response.metadata["summary_ids"]) <= {summary_id("tarn")}


@pytest.mark.parametrize("as_retriever", [True, False])
def test_a_plain_retriever_of_the_index_is_not_restricted(as_retriever: bool) -> None:
    # as_retriever() names the ids of all nodes.
    index = corpus.index()
    summaries = summary_index(index, embed_model=HashEmbedding())
    assert engine(index.as_retriever(), summaries=summaries.as_retriever() if as_retriever else summaries)


def test_summaries_are_persisted_and_not_embedded_anew(tmp_path: Path) -> None:
    index = corpus.index()
    first = HashEmbedding(embedded=[])
    summary_index(index, embed_model=first, persist_dir=tmp_path / "summaries")
    index.storage_context.persist(str(tmp_path / "index"))
    assert len(first.embedded) == 3
    again = HashEmbedding(embedded=[])
    stored = StorageContext.from_defaults(persist_dir=str(tmp_path / "index"))
    loaded = load_index_from_storage(stored, embed_model=again)
    summaries = summary_index(loaded, embed_model=again, persist_dir=tmp_path / "summaries")
    assert str(engine(loaded, summaries=summaries).query(KNOWN)) == KNOWN_ANSWER
    assert again.embedded == []
    loaded.delete_ref_doc("tarn", delete_from_docstore=True)
    loaded.insert(Document(id_="mir", text="The Mir is a lake. It is deep."))
    again.embedded.clear()
    summaries = summary_index(loaded, embed_model=again, persist_dir=tmp_path / "summaries")
    assert again.embedded == ["The Mir is a lake. It is deep."]
    assert set(summaries.docstore.docs) == {summary_id("ada"), summary_id("orun"), summary_id("mir")}


def test_works_over_faiss() -> None:
    store = FaissVectorStore(faiss_index=faiss.IndexFlatIP(256))
    storage = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(corpus.nodes(), storage_context=storage, embed_model=HashEmbedding())
    assert str(engine(index).query(UNKNOWN)) == FOUND_ANSWER


MOVED = "Ada was born in Mir. She paints rivers."


def moved(index: Any) -> None:
    index.update_ref_doc(Document(id_="ada", text=MOVED))


def moved_by_node(index: Any) -> None:
    """The node keeps its id."""
    [node] = [one for one in corpus.nodes() if one.node_id == "ada-0"]
    node.text = MOVED
    index.insert_nodes([node])


def inserted(index: Any) -> None:
    index.insert(Document(id_="mir", text=MOVED))


def refreshed(index: Any) -> None:
    index.docstore.set_document_hash("ada", "as it was")
    index.refresh_ref_docs([Document(id_="ada", text=MOVED)])


def deleted(index: Any) -> None:
    index.delete_ref_doc("ada", delete_from_docstore=True)


def taken_out(index: Any) -> None:
    """The documents stay in the docstore, as is LlamaIndex's default."""
    index.delete_ref_doc("ada")


def one_node_deleted(index: Any) -> None:
    index.delete_nodes(["ada-0"], delete_from_docstore=True)


@pytest.mark.parametrize(
    ("change", "shown", "embedded"),
    [
        (moved, MOVED, [MOVED]),
        (moved_by_node, MOVED, [MOVED]),
        (inserted, MOVED, [MOVED]),
        (refreshed, MOVED, [MOVED]),
        (deleted, None, []),
        (taken_out, None, []),
        (one_node_deleted, corpus.DETAILS["ada"], [corpus.DETAILS["ada"]]),
    ],
)
@pytest.mark.parametrize("use_async", [False, True])
async def test_tier_1_follows_the_index(
    change: Any, shown: str | None, embedded: list[str], use_async: bool
) -> None:
    index, model = corpus.index(), HashEmbedding(embedded=[])
    lazy = engine(index, embed_model=model, threshold=9)
    assert corpus.LEADS["ada"] in [node.text for node in lazy.query(KNOWN).source_nodes]
    assert len(model.embedded) == 3
    change(index)
    response = await lazy.aquery(KNOWN) if use_async else lazy.query(KNOWN)
    texts = [node.text for node in response.source_nodes]
    assert shown is None or shown in texts
    assert (corpus.LEADS["ada"] in texts) is (change is inserted)
    assert model.embedded[3:] == embedded
    lazy.query(KNOWN)
    assert model.embedded[3:] == embedded


def test_tier_1_has_the_documents_of_its_index_alone() -> None:
    storage = StorageContext.from_defaults()
    for names in (("ada", "tarn"), ("orun",)):
        nodes = [node for node in corpus.nodes() if node.ref_doc_id in names]
        storage.docstore.add_documents(nodes)
        last = VectorStoreIndex(nodes, storage_context=storage, embed_model=HashEmbedding())
    assert engine(last, threshold=9).query(KNOWN).metadata["summary_ids"] == [summary_id("orun")]
    assert [node.ref_doc_id for node in summary_nodes(last)] == ["orun"]


@pytest.mark.parametrize("sizes", [[120, 30], [120, 60, 30]])
def test_a_summary_of_chunks_of_chunks_is_the_documents_beginning(sizes: list[int]) -> None:
    text = " ".join(f"Velm has a tower number {n}." for n in range(80))
    parser = HierarchicalNodeParser.from_defaults(sizes, chunk_overlap=0)
    leaves = get_leaf_nodes(parser.get_nodes_from_documents([Document(id_="velm", text=text)]))
    [summary] = summary_nodes(leaves, summarize=80)
    assert summary.text.split() == text.split()


@pytest.mark.parametrize("make", [SummaryIndex, SimpleKeywordTableIndex, DocumentSummaryIndex])
def test_tier_1_of_other_indices_follows_them(make: Any) -> None:
    index = make(corpus.nodes(), llm=MockLLM(), embed_model=HashEmbedding())
    lazy = engine(index, embed_model=HashEmbedding(), threshold=9)
    assert summary_id("ada") in sources(lazy.query(KNOWN))
    index.delete_ref_doc("ada", delete_from_docstore=True)
    assert summary_id("ada") not in sources(lazy.query(KNOWN))


def test_many_threads_query_an_index_that_changes() -> None:
    index = corpus.index()
    lazy = engine(index, threshold=9)
    for n in range(4):
        index.insert(Document(id_=f"new {n}", text=f"Velm {n} is new. It is small."))
        with ThreadPoolExecutor(8) as pool:
            shown = list(pool.map(lambda n: sources(lazy.query(f"Is Velm {n} new?")), [n] * 8))
        assert all(summary_id(f"new {n}") in one for one in shown)


def test_documents_are_added_to_summaries_that_are_kept(tmp_path: Path) -> None:
    documents, model = corpus.documents(), HashEmbedding(embedded=[])
    for some in (documents, documents[:2], []):
        summaries = summary_index(some, embed_model=model, persist_dir=tmp_path)
        assert len(summaries.docstore.docs) == len(model.embedded) == 3
    with pytest.raises(InputError, match="no document with text"):
        summary_index([], persist_dir=tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_summary_nodes_have_the_metadata_of_their_chunks() -> None:
    parts = corpus.nodes(ada="a")
    # What parsers note of each chunk is no reason for a summary of each.
    parts[0].metadata["window"] = "Ada was born in Velm."
    [node] = [one for one in summary_nodes(parts) if one.ref_doc_id == "ada"]
    assert node.metadata == {"tenant": "a", "size": 3}
    assert node.text == corpus.LEADS["ada"]
    assert set(node.excluded_llm_metadata_keys) == {"tenant", "size"}
    parts[1].metadata["secret"] = "yes"
    apart = [one for one in summary_nodes(parts) if one.ref_doc_id == "ada"]
    assert {one.text: one.metadata.get("secret") for one in apart} == {
        corpus.LEADS["ada"]: None,
        corpus.DETAILS["ada"]: "yes",
    }


@pytest.mark.parametrize(
    ("summarize", "expected"),
    [
        (1, "Ada was born in Velm."),
        ("tenant", "a"),
        (lambda document: document.node_id.upper(), "ADA"),
        (FakeReader(lambda prompt: "In short."), "In short."),
        (Own(reply_to=lambda prompt: "In short."), "In short."),
    ],
)
def test_summarizes_in_several_ways(summarize: Any, expected: str) -> None:
    [node] = [one for one in summary_nodes(corpus.nodes(ada="a"), summarize) if one.ref_doc_id == "ada"]
    assert node.text == expected


def test_a_markdown_heading_or_table_is_no_summary() -> None:
    text = "# Ada\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nAda was born in Velm. She paints."
    [node] = summary_nodes([Document(id_="ada", text=text)])
    assert node.text == "Ada was born in Velm. She paints."


def test_a_missing_metadata_key_is_named() -> None:
    with pytest.raises(InputError, match="abstract"):
        summary_nodes(corpus.nodes(), "abstract")
    for summarize in (True, 2.5):
        with pytest.raises(ConfigurationError, match=f"summarize must be .* got {summarize}"):
            summary_nodes(corpus.nodes(), summarize)  # type: ignore[arg-type]  # that is what is tested


def test_an_index_whose_store_holds_the_texts_needs_summaries() -> None:
    index = corpus.index()
    index.docstore.delete_document("ada-0")
    for name in list(index.docstore.docs):
        index.docstore.delete_document(name)
    index.vector_store.stores_text = True
    with pytest.raises(ConfigurationError, match=r"summary_index\(documents\)"):
        engine(index)


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_empty_index_answers_as_llama_index_does(streaming: bool) -> None:
    index = VectorStoreIndex([], embed_model=HashEmbedding())
    plain = index.as_query_engine(llm=Own()).query(KNOWN)
    lazy = engine(index, streaming=streaming)
    response = await lazy.aquery(KNOWN)
    if streaming:
        response = await response.get_response()
    assert str(lazy.query(KNOWN)) == str(response) == str(plain) == "Empty Response"
    index.insert(Document(id_="ada", text=corpus.LEADS["ada"]))
    assert str(lazy.query(KNOWN)) == KNOWN_ANSWER


# The pipeline around it


class Narrow(Own):
    """Has a window of 420 tokens."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="narrow", num_output=64, context_window=420)


async def test_passages_are_fitted_into_the_window(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    long = VectorStoreIndex.from_documents(
        [Document(id_=str(n), text=f"Nothing is known of {n}. " + "word " * 30) for n in range(8)],
        embed_model=HashEmbedding(),
    )
    llm = Narrow(sure=0.4)
    lazy = engine(long, llm, threshold=0.5, top_n=8, n_summaries=1)
    expected_ids = [
        len(one.metadata["passage_ids"]) for one in (lazy.query(UNKNOWN), await lazy.aquery(UNKNOWN))
    ]
    assert expected_ids[0] == expected_ids[1] < 8
    assert "Passages dropped; retrieved: " in caplog.text
    assert max(len(call["prompt"].split()) for call in llm._calls) < 300


class NarrowReader(FakeReader):
    """A reader of surerag that knows its window."""

    window = 420

    def count_tokens(self, text: str) -> int:
        return len(Settings.tokenizer(text))


@pytest.mark.parametrize("own", [True, False], ids=["reader", "llm"])
@pytest.mark.parametrize("kind", [LazyRetrievalQueryEngine, UncertaintyRewriteQueryEngine])
async def test_a_node_larger_than_the_window_is_cut(
    kind: Any, own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    words = " ".join(f"word{n}" for n in range(2000))
    node = TextNode(id_="long", text=f"The Orun ends in Mir {words}", metadata={"page": 7})
    index = VectorStoreIndex([node], embed_model=HashEmbedding())
    llm = NarrowReader(corpus.answer, logprob=-2.0) if own else Narrow(sure=0.4)
    settings = {"threshold": -math.inf, "summaries": "Nothing."} if kind is LazyRetrievalQueryEngine else {}
    whole = kind.from_args(index.as_retriever(), llm, max_tokens=64, **settings)
    for response in (whole.query(UNKNOWN), await whole.aquery(UNKNOWN)):
        [shown] = [one for one in response.source_nodes if one.node_id == "long"]
        assert shown.metadata["page"] == 7
        assert shown.text.startswith("The Orun ends in Mir word0")
        assert 20 < len(Settings.tokenizer(shown.node.get_content(MetadataMode.LLM))) < 100
    prompts = prompts_of(llm) if own else [call["prompt"] for call in llm._calls]
    assert max(len(Settings.tokenizer(prompt)) for prompt in prompts) < 420 - 64
    assert caplog.text.count("window.passage_cut") >= 2
    assert index.docstore.docs["long"].text == node.text


def test_postprocessors_and_query_bundles_are_honoured() -> None:
    cut_off = [SimilarityPostprocessor(similarity_cutoff=0.99)]
    lazy = engine(node_postprocessors=cut_off, summary_postprocessors=[])
    assert lazy.query(UNKNOWN).metadata["passage_ids"] == []
    assert str(engine(node_postprocessors=cut_off).query(UNKNOWN)) == "Empty Response"
    bundle = QueryBundle(UNKNOWN, custom_embedding_strs=["The Orun does end in the lake of Mir."])
    assert engine(top_n=1).query(bundle).metadata["passage_ids"] == ["orun-1"]


class AccessList(BaseNodePostprocessor):
    """Drops the nodes of other tenants, and masks a name."""

    tenant: str = "all"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        admitted = [node for node in nodes if node.node.metadata["tenant"] == self.tenant]
        for node in admitted:
            node.node.set_content(node.node.get_content(MetadataMode.NONE).replace("Orun", "[river]"))
        return admitted


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("made", ["by the engine", "as an index", "with a retriever of passages"])
async def test_the_llm_sees_nothing_that_a_postprocessor_takes_out(made: str, streaming: bool) -> None:
    index, llm = corpus.index(ada="secret"), Own()
    source = index.as_retriever() if "retriever" in made else index
    summaries = None if "engine" in made else summary_index(index, embed_model=HashEmbedding())
    lazy = engine(
        source,
        llm,
        summaries=summaries,
        streaming=streaming,
        gate="abstention",
        node_postprocessors=[AccessList()],
        summary_postprocessors=[AccessList()],
    )
    for question in (KNOWN, UNKNOWN):
        read_to_end(lazy.query(question))
        await aread_to_end(await lazy.aquery(question))
    shown = "\n".join(call["prompt"].replace(KNOWN, "").replace(UNKNOWN, "") for call in llm._calls)
    assert "Velm" not in shown and "Orun" not in shown
    assert "[river] is a river" in shown


@pytest.mark.parametrize("llm", [Own(), MockLLM()], ids=type)
def test_an_engine_over_any_llm_can_be_pickled(llm: Any) -> None:
    lazy = pickle.loads(
        pickle.dumps(engine(llm=llm, gate="abstention", summary_postprocessors=[AccessList()]))
    )
    assert lazy.query(KNOWN).metadata["gate"] == "abstention"


def test_summaries_may_have_postprocessors_of_their_own() -> None:
    compressor = ClusterCompressorPostprocessor(FakeReader(), HashEmbedding(), top_n=1)
    cut_off = SimilarityPostprocessor(similarity_cutoff=0.99)
    for settings, n_summaries in (
        ({"node_postprocessors": [cut_off]}, 0),
        ({"node_postprocessors": [cut_off], "summary_postprocessors": []}, 3),
        ({"summary_postprocessors": [cut_off]}, 0),
        ({"node_postprocessors": [compressor]}, 3),  # methods work on what was retrieved alone
    ):
        metadata = engine(llm=Own(), gate="abstention", **settings).query(KNOWN).metadata
        assert len(metadata.get("summary_ids", ())) == n_summaries
    with pytest.raises(ConfigurationError, match="summary_postprocessors holds an int"):
        engine(summary_postprocessors=[5])


def test_nodes_in_the_index_are_not_changed() -> None:
    index = corpus.index()
    before = {name: node.model_dump() for name, node in index.docstore.docs.items()}
    for node in engine(index).query(UNKNOWN).source_nodes:
        node.node.metadata["changed"] = True
    assert {name: node.model_dump() for name, node in index.docstore.docs.items()} == before


def test_retrieves_whatever_the_gate_decides() -> None:
    nodes = engine(top_n=1).retrieve(QueryBundle(UNKNOWN))
    assert [node.node_id for node in nodes] == ["orun-1"]


def test_prompts_are_templates() -> None:
    lazy = engine(abstention=False, prompts={"from_context": "Say what {context_str} says of {query_str}"})
    assert lazy.get_prompts()["from_context"].get_template() == "Say what {context_str} says of {query_str}"
    lazy.update_prompts(
        {"from_context": lazy.get_prompts()["closed_book"].__class__("{query_str} {context_str}")}
    )
    lazy.query(KNOWN)
    assert prompts_of(lazy.core.reader)[0].startswith(KNOWN)
    with pytest.raises(PromptError, match="must have the slots"):
        lazy.update_prompts({"closed_book": "{nothing}"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"similarity_top_k": 3}, "did you mean top_n"),
        ({"top_n": 0}, "top_n"),
        ({"gate": "consensus"}, "gate"),
        ({"prompts": {"other": "x"}}, "other"),
    ],
)
def test_refuses_misspelled_options(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){message}"):
        engine(**settings)


def test_to_dict_has_no_key() -> None:
    with FakeOpenAI() as server:
        written = engine(llm=like(server), top_n=3).to_dict()
    assert written["top_n"] == 3
    assert written["reader"] == "toy"
    assert KEY not in str(written)


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_pickle_has_no_key(asked_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI(corpus.answer) as server:
        lazy = engine(llm=like(server))
        if asked_before:
            lazy.query(KNOWN)
        written = pickle.dumps(lazy)
        assert KEY.encode() not in written
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with pytest.raises(RefusedError, match="api_key"):
            pickle.loads(written).query(KNOWN)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        assert str(pickle.loads(written).query(KNOWN)) == str(lazy.query(KNOWN)) == KNOWN_ANSWER


def test_many_threads_and_loops_share_an_engine() -> None:
    with FakeOpenAI(corpus.answer) as server:
        lazy = engine(llm=like(server, max_retries=2))
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: str(lazy.query(KNOWN)), range(32)))
        answers += [str(asyncio.run(lazy.aquery(KNOWN))) for _ in range(3)]
    assert set(answers) == {KNOWN_ANSWER}


async def test_an_abstention_opens_the_gate_of_an_llm_that_returns_text_alone() -> None:
    def say(prompt: str) -> str:
        return FOUND_ANSWER if "lake of Mir" in prompt else "I do not know."

    for streaming in (False, True):
        lazy = engine(llm=Own(reply_to=say), gate="abstention", streaming=streaming, n_summaries=1)
        for response in (lazy.query(UNKNOWN), await lazy.aquery(UNKNOWN)):
            assert response.metadata["retrieve"] is True
            assert response.metadata["gate"] == "abstention"
            text = await aread_to_end(response)
            assert str(text) == FOUND_ANSWER


def test_semantic_entropy_needs_text_only() -> None:
    texts = iter(["Velm.", "Orun.", "Mir.", "Tarn.", "Ada.", FOUND_ANSWER])
    reader = FakeReader(lambda prompt: reply(next(texts), logprobs=None), entropy=None, logprob=None)
    response = engine(llm=reader, gate="semantic_entropy").query(UNKNOWN)
    assert response.metadata["retrieve"] is True
    assert str(response) == FOUND_ANSWER


async def test_both_tiers_follow_the_index() -> None:
    index = VectorStoreIndex.from_documents(
        [Document(text="Ada was born in Velm. She paints.", doc_id="ada")], embed_model=corpus.HashEmbedding()
    )
    lazy = LazyRetrievalQueryEngine.from_args(
        index, FakeReader(default="Velm"), embed_model=corpus.HashEmbedding(), threshold=-math.inf
    )
    index.update_ref_doc(Document(text="Ada was born in Orun. She sings.", doc_id="ada"))
    for response in (lazy.query("Where was Ada born?"), await lazy.aquery("Where was Ada born?")):
        texts = [node.text for node in response.source_nodes]
        assert texts == ["Ada was born in Orun. She sings."] * 2
