"""The engine over a real index: both branches, sync, async, streaming, all modes."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from llama_index.core import Settings, VectorStoreIndex, get_response_synthesizer
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import (
    Document,
    ImageNode,
    IndexNode,
    NodeWithScore,
    QueryBundle,
    TextNode,
)

from llama_index_surerag import LazyRetrievalQueryEngine
from surerag.decisions.calibrating import calibrate
from surerag.decisions.policy import CalibrationWarning
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    InputError,
    MissingServiceError,
    SureragError,
)
from surerag.messages import Generation
from surerag.readers import Capabilities
from surerag.readers.fake import FakeReader, reply
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, UNKNOWN, HashEmbedding, Knowing


@pytest.fixture
def reader() -> FakeReader:
    return Knowing(corpus.answer)


def engine(reader: object, **settings: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(
        corpus.index(), reader, **{"top_n": 2, "n_summaries": 1, **settings}
    )


def shut(response: Any) -> None:
    """The gate stayed shut: the answer is the first pass, the sources are summaries."""
    assert str(response).startswith("She was born in Velm")
    metadata = response.metadata
    assert (metadata["retrieve"], metadata["threshold"], metadata["mode"]) == (False, 1.0, "lazy")
    assert metadata["signal"] == metadata["lower"] == metadata["upper"] == pytest.approx(0.1)
    assert metadata["passage_ids"] == []
    assert [node.node_id for node in response.source_nodes] == metadata["summary_ids"] == ["ada:summary"]
    assert response.source_nodes[0].node.ref_doc_id == "ada"
    assert metadata["retrievals"] == 0


def opened(response: Any) -> None:
    """The gate opened: the sources are the retrieved nodes and then the summaries."""
    assert str(response).startswith("In the lake of Mir")
    metadata = response.metadata
    assert (metadata["retrieve"], metadata["reason"]) == (True, "entropy above threshold")
    assert metadata["signal"] == pytest.approx(2.0)
    assert len(metadata["passage_ids"]) == 2
    assert [node.node_id for node in response.source_nodes] == [
        *metadata["passage_ids"],
        *metadata["summary_ids"],
    ]
    assert "Mir" in response.source_nodes[0].get_content()
    assert metadata["retrievals"] == 1
    assert metadata["timings"].keys() == {"summaries", "first_pass", "retrieval", "answer"}


async def test_both_branches_sync_and_async(reader: FakeReader) -> None:
    lazy = engine(reader)
    for question, check in ((KNOWN, shut), (UNKNOWN, opened)):
        check(lazy.query(question))
        check(await lazy.aquery(question))
    assert reader.open_handles == 0


def test_the_gate_costs_its_tokens_and_no_more(reader: FakeReader) -> None:
    response = engine(reader, gate_tokens=3).query(UNKNOWN)
    assert response.metadata["completion_tokens"] == reader.tokens_emitted == 3 + 13


async def test_streaming_knows_the_decision_before_the_first_word(reader: FakeReader) -> None:
    lazy = engine(reader, streaming=True)
    for question, check in ((KNOWN, shut), (UNKNOWN, opened)):
        response = lazy.query(question)
        assert isinstance(response, StreamingResponse)
        assert response.metadata["retrieve"] == (question == UNKNOWN)
        assert "completion_tokens" not in response.metadata
        pieces = list(response.response_gen)
        assert len(pieces) > 5
        response.response_txt = "".join(pieces)
        check(response)
        later = await lazy.aquery(question)
        assert isinstance(later, AsyncStreamingResponse)
        assert later.metadata["retrieve"] == (question == UNKNOWN)
        pieces = [piece async for piece in later.async_response_gen()]
        assert len(pieces) > 5
        check(await later.get_response())
    assert reader.open_handles == 0


async def test_an_abandoned_stream_frees_its_handle(reader: FakeReader) -> None:
    lazy = engine(reader, streaming=True)
    response = lazy.query(KNOWN)
    next(response.response_gen)
    response.response_gen.close()
    later = await lazy.aquery(KNOWN)
    await anext(later.response_gen)
    await later.response_gen.aclose()
    assert reader.open_handles == 0


@pytest.mark.parametrize(
    ("mode", "passages", "summaries"), [("none", 0, 0), ("standard", 2, 0), ("strong", 2, 1)]
)
async def test_the_other_modes(reader: FakeReader, mode: str, passages: int, summaries: int) -> None:
    lazy = engine(reader, mode=mode)
    for response in (lazy.query(UNKNOWN), await lazy.aquery(UNKNOWN)):
        assert response.metadata["mode"] == mode
        assert response.metadata["signal"] is None
        assert len(response.metadata["passage_ids"]) == passages
        assert len(response.metadata["summary_ids"]) == summaries


def test_a_text_only_llm_works_in_ungated_modes_alone() -> None:
    response = engine(MockLLM(), mode="standard").query(UNKNOWN)
    assert "Mir" in str(response)
    with pytest.raises(CapabilityError, match="entropies"):
        engine(MockLLM())


async def test_synthesize_answers_from_given_nodes(reader: FakeReader) -> None:
    lazy = engine(reader)
    bundle = QueryBundle(UNKNOWN)
    nodes = lazy.retrieve(bundle)
    assert [node.node_id for node in await lazy.aretrieve(bundle)] == [node.node_id for node in nodes]
    more = [NodeWithScore(node=TextNode(id_="more", text="more"))]
    for response in (lazy.synthesize(bundle, nodes, more), await lazy.asynthesize(bundle, nodes, more)):
        assert str(response).startswith("In the lake of Mir")
        assert [node.node_id for node in response.source_nodes] == [*(n.node_id for n in nodes), "more"]
    core = get_response_synthesizer(llm=MockLLM())
    for response in (lazy.synthesize(bundle, []), await lazy.asynthesize(bundle, [])):
        assert response == core.synthesize(bundle, []) == Response("Empty Response")
    flowing = engine(reader, streaming=True)
    assert list(flowing.synthesize(bundle, []).response_gen) == ["Empty Response"]
    later = await flowing.asynthesize(bundle, [])
    assert [piece async for piece in later.response_gen] == ["Empty Response"]
    streaming = engine(reader, streaming=True)
    assert str(streaming.synthesize(bundle, nodes)).startswith("In the lake of Mir")
    later = await streaming.asynthesize(bundle, nodes)
    assert str(await later.get_response()).startswith("In the lake of Mir")


def told(answer: str, golds: Sequence[str]) -> bool:
    return any(gold in answer for gold in golds)


def test_a_calibration_stands_for_tau(reader: FakeReader) -> None:
    core = engine(reader).core
    found = calibrate(core, core.rows([KNOWN, UNKNOWN], [["Velm"], ["Mir"]], is_correct=told), target="best")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        lazy = engine(reader, threshold=found)
    assert [response.metadata["retrieve"] for response in lazy.query_many([KNOWN, UNKNOWN])] == [False, True]
    with pytest.raises(ConfigurationError, match="calibrated for the reader 'scripted'"):
        engine(Knowing(corpus.answer, name="another"), threshold=found)


def test_many_queries_come_back_in_order(reader: FakeReader) -> None:
    known, unknown, again = engine(reader).query_many([KNOWN, UNKNOWN, QueryBundle(KNOWN)])
    shut(known)
    opened(unknown)
    shut(again)
    assert isinstance(known, Response)


class Spoiling(BaseNodePostprocessor):
    """Changes whatever it is given, and keeps the first node."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        for node in nodes:
            node.score = 42.0
            node.node.metadata["spoiled"] = True
            node.node.set_content(node.node.get_content() + " Spoiled.")
        return nodes[:1]


async def test_postprocessors_apply_and_the_store_stays_as_it_was(reader: FakeReader) -> None:
    index = corpus.index()
    before = {key: node.to_dict() for key, node in index.docstore.docs.items()}
    lazy = LazyRetrievalQueryEngine.from_args(index, reader, n_summaries=1, node_postprocessors=[Spoiling()])
    for response in (lazy.query(UNKNOWN), await lazy.aquery(UNKNOWN)):
        [passage, summary] = response.source_nodes
        assert (passage.score, passage.node.metadata["spoiled"]) == (42.0, True)
        response.source_nodes[1].node.metadata["spoiled"] = True
        assert summary.node.get_content() == corpus.LEADS["orun"]
    assert "Spoiled." in reader.prompts[-1]
    assert {key: node.to_dict() for key, node in index.docstore.docs.items()} == before
    assert "spoiled" not in lazy.query(KNOWN).source_nodes[0].node.metadata


def test_ids_scores_metadata_and_relationships_survive(reader: FakeReader) -> None:
    index = corpus.index()
    response = LazyRetrievalQueryEngine.from_args(index, reader, top_n=2, n_summaries=1).query(UNKNOWN)
    theirs = index.as_retriever(similarity_top_k=2).retrieve(UNKNOWN)
    for ours, original in zip(response.source_nodes, theirs, strict=False):
        assert ours.score == original.score
        assert ours.node.to_dict() == original.node.to_dict()


class Fixed(BaseRetriever):
    """Finds what it was given; it has no async of its own."""

    def __init__(self, nodes: list[NodeWithScore]) -> None:
        self.nodes, self.queries = nodes, []
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.queries.append(query_bundle)
        query_bundle.embedding = [1.0]
        return self.nodes


async def test_retrieve_honours_its_limit(reader: FakeReader) -> None:
    retriever = corpus.index().as_retriever(similarity_top_k=5)
    lazy = LazyRetrievalQueryEngine.from_args(retriever, reader, top_n=2, summaries="A summary.")
    bundle = QueryBundle(UNKNOWN)
    shown = lazy.query(UNKNOWN).metadata["passage_ids"]
    for nodes in (lazy.retrieve(bundle), await lazy.aretrieve(bundle)):
        assert [node.node_id for node in nodes] == shown
    unlimited = LazyRetrievalQueryEngine.from_args(retriever, reader, summaries="A summary.")
    assert len(unlimited.retrieve(bundle)) == 5


async def test_odd_nodes_are_no_trouble(reader: FakeReader) -> None:
    nodes = [
        NodeWithScore(node=TextNode(id_="empty", text="")),
        NodeWithScore(node=ImageNode(id_="image", image="aGk=")),
        NodeWithScore(node=IndexNode(id_="index", text="The Orun does end in Mir.", index_id="x"), score=0.5),
    ]
    lazy = LazyRetrievalQueryEngine.from_args(Fixed(nodes), reader, summaries="A summary.")
    for response in (lazy.query(UNKNOWN), await lazy.aquery(UNKNOWN)):
        assert response.metadata["passage_ids"] == ["index"]
    nothing = LazyRetrievalQueryEngine.from_args(Fixed([]), reader, summaries="A summary.")
    assert nothing.query(UNKNOWN).metadata["passage_ids"] == []


def test_the_readers_text_is_what_llama_index_shows(reader: FakeReader) -> None:
    node = TextNode(
        text="It ends.", metadata={"seen": "Mir", "hidden": "x"}, excluded_llm_metadata_keys=["hidden"]
    )
    lazy = LazyRetrievalQueryEngine.from_args(Fixed([NodeWithScore(node=node)]), reader, mode="standard")
    lazy.query(UNKNOWN)
    assert "seen: Mir" in reader.prompts[-1]
    assert "hidden" not in reader.prompts[-1]


async def test_the_retriever_gets_the_query_as_it_was_asked(reader: FakeReader) -> None:
    retriever = Fixed([])
    lazy = LazyRetrievalQueryEngine.from_args(retriever, reader, mode="standard")
    bundle = QueryBundle(UNKNOWN, custom_embedding_strs=["a made-up answer"])
    lazy.query(bundle)
    await lazy.aquery(bundle)
    assert [query.custom_embedding_strs for query in retriever.queries] == [["a made-up answer"]] * 2
    assert bundle.embedding is None


async def test_a_blocking_retriever_does_not_block_the_event_loop(reader: FakeReader) -> None:
    gate = threading.Event()

    class Slow(Fixed):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            assert gate.wait(timeout=30)
            return super()._retrieve(query_bundle)

    lazy = LazyRetrievalQueryEngine.from_args(Slow([]), reader, mode="standard")
    answering = asyncio.create_task(lazy.aquery(UNKNOWN))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not answering.done()
    gate.set()
    assert (await answering).metadata["retrieve"] is True


@pytest.fixture
def global_settings() -> Iterator[None]:
    before = Settings._llm, Settings._embed_model
    yield
    Settings._llm, Settings._embed_model = before


@pytest.mark.usefixtures("global_settings")
def test_settings_are_used_when_arguments_are_left_out() -> None:
    Settings.llm, Settings.embed_model = MockLLM(max_tokens=3), HashEmbedding()
    lazy = LazyRetrievalQueryEngine.from_args(
        Fixed([]), summaries=corpus.documents(), mode="strong", n_summaries=1
    )
    response = lazy.query(KNOWN)
    assert str(response) == "text text text"
    assert response.metadata["summary_ids"] == ["ada:summary"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, corpus.LEADS["ada"]),
        ({"summarize": 1}, "Ada was born in Velm."),
        ({"summarize": "abstract"}, "All about ada."),
        ({"summarize": lambda document: f"{document.node_id}: {document.get_content()[:3]}"}, "ada: Ada"),
        ({"summarize": FakeReader(default="About Ada, by a model.")}, "About Ada, by a model."),
        ({"summarize": MockLLM(max_tokens=2)}, "text text"),
    ],
    ids=["lead", "one sentence", "metadata", "function", "reader", "llm"],
)
def test_summaries_from_documents(reader: FakeReader, settings: dict[str, Any], expected: str) -> None:
    lazy = engine(
        reader, summaries=corpus.documents(), embed_model=HashEmbedding(), n_summaries=3, **settings
    )
    shown = {node.node.ref_doc_id: node.get_content() for node in lazy.query(KNOWN).source_nodes}
    assert shown["ada"] == expected


def test_an_indexs_retriever_tells_where_its_documents_are(reader: FakeReader) -> None:
    retriever = corpus.index().as_retriever(similarity_top_k=2)
    shut(LazyRetrievalQueryEngine.from_args(retriever, reader, n_summaries=1).query(KNOWN))


def test_summaries_from_nodes_a_retriever_or_text(reader: FakeReader) -> None:
    nodes = list(corpus.index().docstore.docs.values())
    assert len(nodes) > 3
    by_nodes = engine(reader, summaries=nodes).query(KNOWN)
    assert by_nodes.source_nodes[0].get_content() == corpus.LEADS["ada"]
    ready = VectorStoreIndex(
        [TextNode(id_=name, text=text) for name, text in corpus.LEADS.items()], embed_model=HashEmbedding()
    )
    by_index = engine(reader, summaries=ready, n_summaries=3).query(KNOWN)
    assert by_index.source_nodes[0].node_id == "ada"
    assert len(by_index.source_nodes) == 3
    by_text = engine(reader, summaries=corpus.LEADS["ada"]).query(KNOWN)
    assert by_text.source_nodes[0].get_content() == corpus.LEADS["ada"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"mode": "lasy"}, ConfigurationError),
        ({"mode": "oracle"}, ConfigurationError),
        ({"threshold": -1.0}, ConfigurationError),
        ({"top_n": 0}, ConfigurationError),
        ({"gate_tokens": 0}, ConfigurationError),
        ({"summaries": []}, InputError),
        ({"summaries": " "}, InputError),
        ({"summaries": [Document(text=" ", id_="blank")]}, InputError),
        ({"summaries": 7}, ConfigurationError),
        ({"summaries": ["text"]}, ConfigurationError),
        ({"summarize": "no such key"}, InputError),
        ({"treshold": 1.0}, ConfigurationError),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(reader: FakeReader, arguments: dict[str, Any], error: type) -> None:
    with pytest.raises(error):
        engine(reader, **arguments)


def test_missing_services_are_named(reader: FakeReader) -> None:
    with pytest.raises(ConfigurationError, match="expected a LlamaIndex retriever"):
        LazyRetrievalQueryEngine.from_args("index", reader)
    with pytest.raises(ConfigurationError, match="summaries=documents"):
        LazyRetrievalQueryEngine.from_args(Fixed([]), reader)
    with pytest.raises(MissingServiceError, match="retriever"):
        LazyRetrievalQueryEngine.from_args(None, reader, mode="standard")
    assert str(LazyRetrievalQueryEngine.from_args(None, reader, mode="none").query(KNOWN))


async def test_an_empty_question_is_refused(reader: FakeReader) -> None:
    lazy = engine(reader)
    for attempt in (lambda: lazy.query("  "), lambda: lazy.query_many([KNOWN, ""])):
        with pytest.raises(InputError, match="question is empty"):
            attempt()
    with pytest.raises(InputError, match="question is empty"):
        await lazy.aquery("")


def test_one_engine_in_two_event_loops_in_threads_and_within_a_loop(reader: FakeReader) -> None:
    lazy = engine(reader)
    for _ in range(2):
        shut(asyncio.run(lazy.aquery(KNOWN)))

    async def inside() -> None:
        opened(lazy.query(UNKNOWN))
        for response in await asyncio.gather(*(asyncio.to_thread(lazy.query, KNOWN) for _ in range(4))):
            shut(response)

    asyncio.run(inside())


def test_settings_serialise_without_what_is_alive(reader: FakeReader) -> None:
    lazy = engine(reader, threshold=0.5, stop=["\n"], prompts={"closed_book": "Q: {question}"})
    plain = json.loads(json.dumps(lazy.to_dict()))
    assert plain["reader"] == "scripted"
    again = LazyRetrievalQueryEngine.from_dict(plain, retriever=corpus.index(), llm=reader)
    assert again.to_dict() == lazy.to_dict()
    assert (
        repr(again)
        == repr(lazy)
        == ("LazyRetrievalQueryEngine(threshold=0.5, top_n=2, n_summaries=1, stop=('\\n',))")
    )
    unlimited = LazyRetrievalQueryEngine.from_args(corpus.index(), reader).to_dict()
    assert unlimited["top_n"] is None
    with pytest.raises(ConfigurationError, match="surprise"):
        LazyRetrievalQueryEngine.from_dict({**plain, "surprise": 1}, retriever=corpus.index(), llm=reader)


def test_a_reader_that_breaks_its_promise_is_an_error(reader: FakeReader) -> None:
    claims = Capabilities(logprobs=True, entropy="exact", begin="native")
    silent = FakeReader(default="x", logprob=None, capabilities=claims)
    with pytest.raises(SureragError, match="without entropies"):
        engine(silent).query(KNOWN)


async def test_a_gate_before_each_hop() -> None:
    """The second search is for what the reader says of the first fact (section VI-F)."""
    first, second = (
        NodeWithScore(node=TextNode(text=text, id_=text[:3]))
        for text in ("Orun was founded by Ada.", "Ada was born in Velm.")
    )

    class Chained(Fixed):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            super()._retrieve(query_bundle)
            return [first, second] if "founded by Ada" in query_bundle.query_str else [first]

    def reading(prompt: str) -> Generation:
        if second.text in prompt:
            return reply("Velm", entropy=0.1)
        return reply("It was founded by Ada" if first.text in prompt else "Hm", entropy=2.0)

    retriever = Chained([])
    lazy = LazyRetrievalQueryEngine.from_args(
        retriever, FakeReader(reading), summaries="Orun makes tin.", max_hops=2
    )
    asked = "Where was the founder of Orun born?"
    for response in (lazy.query(asked), await lazy.aquery(asked)):
        assert (str(response), response.metadata["retrievals"]) == ("Velm", 2)
        assert [node.node_id for node in response.source_nodes][:2] == ["Oru", "Ada"]
    assert [query.query_str for query in retriever.queries] == [asked, f"{asked} It was founded by Ada"] * 2
