"""Compressing and refining nodes, as any postprocessor of a pipeline."""

from __future__ import annotations

import copy
import pickle
import re
from threading import Lock
from typing import Any

import pytest
from llama_index.core import Document, Settings, VectorStoreIndex, get_response_synthesizer
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate, RichPromptTemplate
from llama_index.core.prompts.base import SelectorPromptTemplate
from llama_index.core.query_engine import CitationQueryEngine, RetrieverQueryEngine
from llama_index.core.schema import (
    ImageNode,
    IndexNode,
    MediaResource,
    MetadataMode,
    Node,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_surerag import ClusterCompressorPostprocessor, DenseRefinerPostprocessor
from surerag import ClusterCompressor, FakeReader, Passage
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, PromptError
from surerag.prompts import SELECT_ANSWER, selected_answer
from tests.llama_index import corpus
from tests.llama_index.corpus import KEY, KNOWN, UNKNOWN, HashEmbedding, like, scored
from tests.llama_index.llms import Own
from tests.servers.fake_openai import FakeOpenAI

SHORT = "Ada was born in Velm."


def compressor(llm: Any = None, **options: Any) -> ClusterCompressorPostprocessor:
    reader = FakeReader(lambda prompt: SHORT) if llm is None else llm
    return ClusterCompressorPostprocessor(
        reader, HashingEncoder(), **{"variant": "copy", "min_tokens": 0, **options}
    )


def refiner(llm: Any = None, **options: Any) -> DenseRefinerPostprocessor:
    reader = FakeReader(_understood) if llm is None else llm
    return DenseRefinerPostprocessor(reader, ExactEntailer(), **{"embed_model": HashingEncoder(), **options})


def _understood(prompt: str) -> str:
    return "It rained." if prompt.startswith("Rewrite") else "Velm"


MENDED = {"ab'c": "B", "abc'": "C", "ab": "D", "ac": "A"}
ROWS = {"a": [1, 0], "d": [1, 0.1], "c": [0, 1], "e": [0.1, 1], "b": [1, 1], "f": [0.6, 1]}


def confused(prompt: str) -> str:
    """Understands neither b, which is noise, nor c, which it needs; e is most like c."""
    if prompt.startswith("Rewrite"):
        return prompt.split("Text: ", 1)[1] + "'"
    if "yes or no" in prompt:
        return "yes"
    return MENDED.get("".join(re.findall(r"^\[\d+\] (.*)$", prompt, re.MULTILINE)), "A")


def letters(names: str = "abcdef", *, vectors: bool = True) -> list[NodeWithScore]:
    return [
        NodeWithScore(
            node=TextNode(
                id_=name,
                text=name,
                embedding=[float(value) for value in ROWS[name]] if vectors else None,
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="book")},
            ),
            score=1.0,
        )
        for name in names
    ]


PARTS = [compressor, refiner]


@pytest.fixture(params=PARTS, ids=["compressor", "refiner"])
def part(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_compresses_and_lists_the_sources() -> None:
    nodes = scored("Ada, a painter, was born in Velm.", "Bo came later.")
    for node in nodes:
        node.node.metadata = {"year": 1900, "title": node.node.node_id}
        node.node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="book")
    before = copy.deepcopy([node.model_dump() for node in nodes])
    compressing = compressor()
    results = compressing.postprocess_nodes(nodes, query_str=KNOWN)
    assert results == await compressing.apostprocess_nodes(nodes, query_str=KNOWN)
    assert [node.model_dump() for node in nodes] == before
    [node] = results
    assert (node.node_id, node.text, node.score) == ("n0", "Ada, a painter, was born in Velm.", 1.0)
    assert node.node.ref_doc_id == "book"
    assert [one["id"] for one in node.metadata["compressed_from"]] == ["n0", "n1"]
    assert node.metadata["compressed_sentences"] == [{"text": node.text, "source": "n0", "place": 0}]
    expected_ids = node.node.get_content(metadata_mode=MetadataMode.LLM)
    assert "year: 1900" in expected_ids
    assert "title" not in expected_ids
    assert "compressed" not in expected_ids


async def test_the_query_engine_answers_the_same_sync_and_async(part: Any) -> None:
    postprocessor = part()
    index = corpus.index()
    synthesizer = get_response_synthesizer(llm=Own())
    engines = [
        index.as_query_engine(llm=Own(), node_postprocessors=[postprocessor]),
        RetrieverQueryEngine.from_args(
            index.as_retriever(),
            llm=Own(),
            response_synthesizer=synthesizer,
            node_postprocessors=[postprocessor],
        ),
    ]
    responses = [engine.query(KNOWN) for engine in engines] + [
        await engine.aquery(KNOWN) for engine in engines
    ]
    assert len({str(response) for response in responses}) == 1
    assert len({tuple(node.node_id for node in response.source_nodes) for response in responses}) == 1


def by_task(prompt: str) -> str:
    """Reply as each task and the last step ask for."""
    if "Compare the candidate answers" in prompt:
        return "Reasoning: one says so.\nSelected answer: Velm"
    return f'In Velm: "{SHORT}"' if prompt.startswith("Answer") else SHORT


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"variant": "paper"}, {"task": "answer"}, {"top_n": 1}),
        *({"task": "verify", "person": "Ada"}, {"task": "verify", "top_n": 1}),
    ],
)
async def test_every_task_gives_in_an_engine_what_the_core_gives(options: dict[str, Any]) -> None:
    reader = FakeReader(by_task)
    postprocessor = compressor(reader, **options)
    index = corpus.index()
    engine = index.as_query_engine(llm=Own(), node_postprocessors=[postprocessor])
    texts = [node.text for node in engine.query(KNOWN).source_nodes]
    assert texts == [node.text for node in (await engine.aquery(KNOWN)).source_nodes]
    nodes = index.as_retriever().retrieve(KNOWN)
    passages = [Passage(node.text, id=node.node_id) for node in nodes]
    core = ClusterCompressor(reader, HashingEncoder(), **{"variant": "copy", "min_tokens": 0, **options})
    assert texts == [passage.text for passage in core.run(KNOWN, passages).passages]
    begins = {"answer": "Answer", "verify": "Documents:", "extract": "Documents:"}
    begin = "Extract" if postprocessor.variant == "paper" else begins[postprocessor.task]
    assert all(one.startswith((begin, "Passage: ")) for one in reader.prompts)
    assert any(one.startswith("Passage: ") for one in reader.prompts) is (postprocessor.top_n is not None)
    assert any("uestion" in one for one in reader.prompts) is (postprocessor.task != "verify")


async def test_clusters_answer_and_the_engine_selects() -> None:
    llm = Own(reply_to=by_task)
    select = PromptTemplate(
        SELECT_ANSWER.text, template_var_mappings={"context_str": "answers", "query_str": "question"}
    )
    answering = ClusterCompressorPostprocessor(llm, HashingEncoder(), task="answer")
    engine = corpus.index().as_query_engine(llm=llm, node_postprocessors=[answering], text_qa_template=select)
    for response in (engine.query(KNOWN), await engine.aquery(KNOWN)):
        assert selected_answer(str(response)) == "Velm"
    assert f'Candidate answers:\nIn Velm: "{SHORT}"\nQuestion: {KNOWN}' in llm._calls[-1]["prompt"]


async def test_works_with_lexical_retrieval(part: Any) -> None:
    retriever = BM25Retriever.from_defaults(nodes=corpus.nodes(), similarity_top_k=2)
    synthesizer = get_response_synthesizer(llm=Own())
    engine = RetrieverQueryEngine(retriever, synthesizer, node_postprocessors=[part()])
    assert engine.query(KNOWN).source_nodes


@pytest.mark.parametrize("query", [None, QueryBundle("  ")])
async def test_without_a_query_nodes_stay(part: Any, query: QueryBundle | None) -> None:
    nodes = scored("Ada.", "Bo.")
    postprocessor = part()
    for results in (
        postprocessor.postprocess_nodes(nodes, query_bundle=query),
        await postprocessor.apostprocess_nodes(nodes, query_bundle=query),
    ):
        assert [node.node_id for node in results] == ["n0", "n1"]
        assert results[0].node is not nodes[0].node


def test_no_node_is_no_node(part: Any) -> None:
    assert part().postprocess_nodes([], query_str=KNOWN) == []


def test_nodes_of_every_kind_pass(part: Any) -> None:
    nodes = [
        NodeWithScore(node=IndexNode(id_="i", text="Ada was born in Velm.", index_id="other"), score=None),
        NodeWithScore(node=ImageNode(id_="p", image="aGk="), score=0.5),
        NodeWithScore(node=TextNode(id_="e", text=""), score=0.1),
    ]
    results = {node.node_id: node for node in part().postprocess_nodes(nodes, query_str=KNOWN)}
    assert isinstance(results["i"].node, IndexNode)
    assert results["i"].score is None
    assert isinstance(results["p"].node, ImageNode)


@pytest.mark.parametrize("options", [{"variant": "copy"}, {"variant": "paper"}, {"task": "answer"}])
@pytest.mark.parametrize("alone", [True, False])
def test_a_picture_with_a_caption_survives_a_compression(options: dict[str, Any], alone: bool) -> None:
    pictures = [
        NodeWithScore(node=ImageNode(id_="p", text="Ada was born in Velm.", image="aGk="), score=0.5),
        NodeWithScore(
            node=Node(
                id_="q",
                text_resource=MediaResource(text="Ada was born in Velm."),
                image_resource=MediaResource(data=b"aGk="),
            )
        ),
    ]
    texts = [] if alone else scored("Ada, a painter, was born in Velm.", "Bo came later.")
    postprocessor = compressor(FakeReader(default=SHORT), **options)
    results = postprocessor.postprocess_nodes([*pictures, *texts], query_str=KNOWN)
    assert [node for node in results if node.node_id in ("p", "q")] == pictures
    assert alone or len(results) > 2


@pytest.mark.parametrize("fault", ["500", "HTML", "no choices", "empty answer", "cut", "withheld"])
async def test_failures_degrade_to_the_originals(
    part: Any, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeOpenAI(lambda prompt: SHORT) as server:
        server.fault = fault
        postprocessor = part(like(server))
        nodes = scored("Ada, a painter, was born in Velm.", "Bo came later.")
        for results in (
            postprocessor.postprocess_nodes(nodes, query_str=KNOWN),
            await postprocessor.apostprocess_nodes(nodes, query_str=KNOWN),
        ):
            assert [node.text for node in results] == [node.text for node in nodes]
    assert caplog.records


def test_what_is_misconfigured_raises(part: Any) -> None:
    with FakeOpenAI() as server:
        server.fault = "401"
        with pytest.raises(Exception, match="Incorrect API key"):
            part(like(server)).postprocess_nodes(scored("Ada.", "Bo."), query_str=KNOWN)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_token": 3}, "did you mean max_tokens"),
        ({"topn": 3}, "takes"),
        ({"llm": 7}, "expected a LlamaIndex LLM, got int"),
        ({"on_failure": "ignore"}, "on_failure"),
    ],
)
def test_refuses_what_is_no_option(part: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?i){message}"):
        part(**options)


@pytest.mark.parametrize("documents", [{"a": Document(text="Ada.")}, ["Ada."], corpus.index()])
def test_documents_are_a_list_or_a_store(documents: Any) -> None:
    with pytest.raises(ConfigurationError, match="documents must be a list of documents or a document store"):
        DenseRefinerPostprocessor(FakeReader(), embed_model=HashEmbedding(), documents=documents)


def test_options_are_few_and_checked_when_assigned(part: Any) -> None:
    postprocessor = part()
    assert len(type(postprocessor).model_fields) <= 20  # callback_manager is the framework's own
    with pytest.raises(ConfigurationError, match="max_tokens"):
        postprocessor.max_tokens = 0
    postprocessor.max_tokens = 40
    assert postprocessor.core.max_tokens == 40
    assert postprocessor.with_options(max_tokens=50).core.max_tokens == 50
    assert postprocessor.core.max_tokens == 40


def test_settings_are_written_without_a_key(part: Any) -> None:
    with FakeOpenAI() as server:
        llm = like(server)
        postprocessor = part(llm, max_tokens=40)
        written = postprocessor.to_dict()
        assert KEY not in str(written)
        assert KEY not in repr(postprocessor)
        again = type(postprocessor).from_dict(written, llm=llm, embed_model=HashEmbedding())
    assert again.max_tokens == 40
    assert again.prompts == postprocessor.prompts


def test_models_come_from_the_settings(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", Own(reply_to=lambda prompt: SHORT))
    monkeypatch.setattr(Settings, "_embed_model", HashEmbedding())
    kind = type(part())
    assert kind().postprocess_nodes(scored("Ada, a painter, was born in Velm.", "Bo."), query_str=KNOWN)


def test_pickles_with_its_models() -> None:
    results = pickle.loads(pickle.dumps(ClusterCompressorPostprocessor(Own(), HashEmbedding(), top_n=4)))
    assert results.top_n == 4


def test_what_cannot_be_pickled_is_named_and_not_left_out() -> None:
    unpicklable = compressor(tokenizer=lambda text: text.split())
    before = dict(unpicklable.__dict__)
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle local object"):
        pickle.dumps(unpicklable)
    assert unpicklable.__dict__ == before


def test_a_pickle_takes_nothing_from_an_llm() -> None:
    llm = Own(reply_to=lambda prompt: SHORT)
    pickle.dumps(ClusterCompressorPostprocessor(llm, HashEmbedding()))
    assert llm.reply_to("") == SHORT


def test_a_pickle_leaves_callbacks_in_their_process() -> None:
    handler = LlamaDebugHandler(print_trace_on_end=False)
    handler.lock = Lock()
    part = ClusterCompressorPostprocessor(Own(), HashEmbedding(), callback_manager=CallbackManager([handler]))
    assert pickle.loads(pickle.dumps(part)).callback_manager.handlers == []


@pytest.mark.parametrize(
    "template",
    [
        "Only of {question}: {passages}",
        PromptTemplate("Only of {query_str}: {context_str}"),
        ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{query_str}: {context_str}")]),
        SelectorPromptTemplate(PromptTemplate("Only of {query_str}: {context_str}")),
        RichPromptTemplate("Only of {{ query_str }}: {{ context_str }}"),
        PromptTemplate(
            "Only of {question}: {passages}", function_mappings={"passages": lambda passages, **_: passages}
        ),
    ],
)
def test_prompts_are_templates_of_llama_index(template: Any) -> None:
    reader = FakeReader(lambda prompt: SHORT)
    compressing = compressor(reader)
    compressing.update_prompts({"extract": template})
    compressing.postprocess_nodes(scored("Ada, born in Velm.", "Bo."), query_str=KNOWN)
    assert KNOWN in str(reader.history[0].prompts)
    assert not str(reader.history[0].prompts).startswith("Documents:")
    assert "extract" in compressing.get_prompts()
    with pytest.raises(PromptError, match="extract"):
        compressing.update_prompts({"extract": PromptTemplate("{query_str}")})
    with pytest.raises(PromptError, match="other"):
        compressor(prompts={"other": "x"})


def test_a_token_limit_counts_what_the_llm_is_shown() -> None:
    nodes = scored(*(f"Fact {place} of Ada in Velm." for place in range(6)))
    for node in nodes:
        node.node.metadata = {"title": "one two three four"}
    compressing = compressor(FakeReader(lambda prompt: "NONE"), token_limit=24, tokenizer=str.split)
    results = compressing.postprocess_nodes(nodes, query_str=KNOWN)
    counts = [len(node.node.get_content(metadata_mode=MetadataMode.LLM).split()) for node in results]
    assert 0 < sum(counts) <= 24


def test_citations_lead_to_the_sources_of_a_compression() -> None:
    engine = CitationQueryEngine.from_args(
        corpus.index(), llm=Own(reply_to=lambda prompt: "In Velm [1]."), node_postprocessors=[compressor()]
    )
    response = engine.query(KNOWN)
    assert str(response) == "In Velm [1]."
    [source] = response.source_nodes
    assert "Source 1:" in source.text
    assert {one["id"] for one in source.metadata["compressed_from"]} >= {"ada-0"}


def test_the_refiner_says_what_it_measured() -> None:
    [node] = refiner(top_n=1).postprocess_nodes(scored("Ada was born in Velm.", "Bo."), query_str=KNOWN)
    assert node.metadata["dense"] == {"score": 0.0, "certain": True, "stopped": "certain", "label": "certain"}
    assert "dense" not in node.node.get_content(metadata_mode=MetadataMode.LLM)


async def test_the_refiner_drops_what_confuses_and_adds_what_helps() -> None:
    refining = refiner(FakeReader(confused), top_n=3)
    results = refining.postprocess_nodes(letters(), query_str=KNOWN)
    again = await refining.apostprocess_nodes(letters(), query_str=KNOWN)
    assert [node.node_id for node in results] == [node.node_id for node in again] == ["a", "c", "e"]
    assert results[0].metadata["dense"]["certain"] is True
    first, second = refining.compress(letters(), KNOWN).rounds
    assert (first.measured.certain, second.measured.certain) == (False, True)


def test_the_refiner_fetches_more_from_the_index() -> None:
    index = VectorStoreIndex([node.node for node in letters(vectors=False)], embed_model=HashEmbedding())
    refining = refiner(FakeReader(confused), top_n=3, retriever=index.as_retriever(similarity_top_k=6))
    results = refining.postprocess_nodes(letters("abc", vectors=False), query_str=KNOWN)
    assert len(results) == 3
    assert not {node.node_id for node in results} <= {"a", "b", "c"}


@pytest.mark.parametrize("stored", [False, True])
def test_the_refiner_cuts_documents_anew(stored: bool) -> None:
    document = Document(
        id_="book", text="Ada was born in Velm. Tin melts easily. Bo left.", metadata={"year": 1}
    )
    documents: Any = [document]
    if stored:
        documents = SimpleDocumentStore()
        documents.add_documents([document])
    refining = refiner(FakeReader(confused), top_n=3, documents=documents)
    chunks = [
        node
        for node in refining.postprocess_nodes(letters("abc"), query_str=KNOWN)
        if node.node_id.startswith("book@")
    ]
    assert chunks
    for chunk in chunks:
        assert document.text[chunk.node.start_char_idx : chunk.node.end_char_idx] == chunk.text
        assert chunk.node.ref_doc_id == "book"
        assert chunk.metadata["year"] == 1


def test_a_missing_document_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    refiner(documents=[], top_n=1).postprocess_nodes(scored("Ada."), query_str=UNKNOWN)
    assert "documents_missing" in caplog.text
