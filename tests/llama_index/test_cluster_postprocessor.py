"""The postprocessor in LlamaIndex's own pipelines, and what a demanding user tries."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import (
    ImageNode,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)

from llama_index_surerag import ClusterCompressorPostprocessor, ProgressEvent
from surerag import SOURCES_KEY, EDC2Options, FakeReader, FewShot
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, MissingServiceError, PromptError, ServiceError
from surerag.prompts import NOTHING_TO_EXTRACT
from tests.llama_index.corpus import HashEmbedding
from tests.llama_index.watching import EVENTS

QUESTION = "Where was Ada born?"
TEXTS = {
    "a": "Ada the painter was born in Velm, they say, long ago.",
    "b": "Bo the sculptor was born in Tarn and stayed there all his life.",
    "c": "It was in Velm that Ada the painter was born.",
    "d": "The Orun is a river in the north, cold and wide and slow.",
}


def nodes(**changes: Any) -> list[NodeWithScore]:
    return [
        NodeWithScore(
            node=TextNode(
                id_=name,
                text=text,
                metadata={"file": f"{name}.txt", "site": "north", "secret": place},
                excluded_llm_metadata_keys=["secret"],
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc-{name}")},
                **changes,
            ),
            score=0.9 - place / 10,
        )
        for place, (name, text) in enumerate(TEXTS.items())
    ]


def quoting(prompt: str) -> str:
    found = [line for line in prompt.splitlines() if "Ada" in line and "Velm" in line]
    return found[0].split("] ")[-1] if found else NOTHING_TO_EXTRACT


def tool(replies: Any = quoting, **settings: Any) -> ClusterCompressorPostprocessor:
    reader = replies if isinstance(replies, FakeReader) else FakeReader(replies)
    settings = {"pass_below": 0, "first_cluster_size": 2, **settings}
    return ClusterCompressorPostprocessor(reader, HashingEncoder(), **settings)


def dumped(found: list[NodeWithScore]) -> list[str]:
    return [node.model_dump_json() for node in found]


def test_a_compression_keeps_what_its_best_source_has_and_lists_them_all() -> None:
    [kept] = tool().postprocess_nodes(nodes(), query_str=QUESTION)
    assert (kept.node_id, kept.score, kept.node.ref_doc_id) == ("a", 0.9, "doc-a")
    assert kept.text == TEXTS["c"]
    assert kept.metadata["file"] == "a.txt"
    assert [(s["id"], s["score"], s["metadata"]["file"]) for s in kept.metadata["compressed_from"]] == [
        ("a", 0.9, "a.txt"),
        ("c", 0.7, "c.txt"),
    ]
    assert kept.get_content(metadata_mode=MetadataMode.LLM) == f"site: north\n\n{TEXTS['c']}"


def test_a_compression_in_the_words_of_its_best_source_names_its_sources_too() -> None:
    given = [NodeWithScore(node=TextNode(id_=name, text=TEXTS[name])) for name in "acbd"]
    [kept] = tool(lambda p: TEXTS["a"] if "Ada" in p.split("Documents:")[1] else "").postprocess_nodes(
        given, query_str=QUESTION
    )
    assert kept.text == TEXTS["a"]
    assert [source["id"] for source in kept.metadata["compressed_from"]] == ["a", "c"]
    # Compressed once more, by another one behind it, it names what it was.
    [again] = tool(lambda _: TEXTS["a"]).postprocess_nodes([kept], query_str=QUESTION)
    assert (again.text, again.node_id) == (TEXTS["a"], "a")


def test_what_goes_in_is_not_changed_and_what_comes_out_is_a_copy() -> None:
    given = nodes()
    before = dumped(given)
    for settings in ({}, {"pass_below": 10_000}, {"clustering": "single"}):
        for found in tool(**settings).postprocess_nodes(given, query_str=QUESTION):
            found.node.metadata["file"] = "changed"
            found.node.relationships.clear()
    assert dumped(given) == before


@pytest.mark.parametrize("query", [None, QueryBundle("  ")])
async def test_without_a_query_nodes_come_back_as_they_are_with_a_warning(
    spans: Any, caplog: pytest.LogCaptureFixture, query: Any
) -> None:
    given = nodes()
    compressor = tool([])
    assert dumped(compressor.postprocess_nodes(given, query_bundle=query)) == dumped(given)
    assert dumped(await compressor.apostprocess_nodes(given, query_bundle=query)) == dumped(given)
    warnings = [event for event in EVENTS if isinstance(event, ProgressEvent) and event.warning]
    assert [event.name for event in warnings] == ["cluster_compression.no_query"] * 2
    assert caplog.text.count("cluster_compression.no_query") == 2
    with pytest.raises(ValueError, match="both"):
        compressor.postprocess_nodes(given, query_bundle=QueryBundle("q"), query_str="q")


def test_no_node_and_nodes_of_other_kinds() -> None:
    assert tool([]).postprocess_nodes([], query_str=QUESTION) == []
    others = [
        NodeWithScore(node=ImageNode(id_="i", image_url="http://x/y.png", metadata={"file": "y"})),
        NodeWithScore(node=IndexNode(id_="x", index_id="sub", text=TEXTS["a"])),
        NodeWithScore(node=TextNode(id_="e", text="")),
    ]
    found = tool().postprocess_nodes(others, query_str=QUESTION)
    assert [node.node_id for node in found] == ["i", "x", "e"]
    assert isinstance(found[0].node, ImageNode)
    assert [node.score for node in found] == [None] * 3


@pytest.mark.parametrize("kind", [ImageNode, IndexNode])
def test_a_compressed_image_or_reference_is_still_one(kind: Any) -> None:
    own = {ImageNode: {"image_url": "http://x/y.png"}, IndexNode: {"index_id": "sub"}}[kind]
    given = [
        NodeWithScore(
            node=kind(id_=letter, text=TEXTS[letter], start_char_idx=3, embedding=node.node.embedding, **own),
            score=node.score,
        )
        for letter, node in zip("abcd", nodes(), strict=False)
    ]
    before = dumped(given)
    found = tool().postprocess_nodes(given, query_str=QUESTION)
    compressed = [node for node in found if SOURCES_KEY in node.metadata]
    assert compressed
    assert {type(node.node) for node in found} == {kind}
    for node in compressed:
        assert {name: getattr(node.node, name) for name in own} == own
        assert (node.node.embedding, node.node.start_char_idx) == (None, None)
    assert dumped(given) == before


@pytest.mark.parametrize("reply", ["", NOTHING_TO_EXTRACT, "Qrx zzk.", ServiceError("time-out")])
async def test_empty_refused_garbled_and_failed_replies_leave_the_nodes_with_a_warning(
    spans: Any, reply: Any
) -> None:
    def answer(prompt: str) -> str:
        if isinstance(reply, Exception):
            raise reply
        return str(reply)

    given = nodes()
    found = await tool(answer).apostprocess_nodes(given, query_str=QUESTION)
    assert sorted(dumped(found)) == sorted(dumped(given))
    warnings = [event for event in EVENTS if isinstance(event, ProgressEvent) and event.warning]
    assert warnings
    assert all(event.span_id and "_apostprocess_nodes" in event.span_id for event in warnings)


def test_the_budget_counts_what_the_llm_will_be_shown() -> None:
    def tokenizer(text: str) -> list[str]:
        return text.split()

    given = nodes()
    shown = sum(len(tokenizer(n.get_content(metadata_mode=MetadataMode.LLM))) for n in given)
    result = tool(tokenizer=tokenizer).compress(given, QUESTION)
    assert result.tokens_before == shown
    # Nothing fits into five; the metadata of a node and its first word do.
    for budget, fitting in ((4, 0), (5, 1), (14, 1), (30, 2), (100, 4)):
        found = tool(lambda _: "", tokenizer=tokenizer, budget=budget).postprocess_nodes(
            given, query_str=QUESTION
        )
        spent = sum(len(tokenizer(n.get_content(metadata_mode=MetadataMode.LLM))) for n in found)
        assert spent <= budget
        assert len(found) == fitting


def test_an_llm_without_a_tokenizer_is_counted_as_llama_index_counts() -> None:
    before = Settings.tokenizer
    try:
        Settings.tokenizer = list
        compressor = ClusterCompressorPostprocessor(MockLLM(), HashEmbedding())
        shown = sum(len(n.get_content(metadata_mode=MetadataMode.LLM)) for n in nodes())
        assert compressor.compress(nodes(), QUESTION).tokens_before == shown
    finally:
        Settings.tokenizer = before


def test_citations_survive_a_compression_and_nobody_is_shown_them() -> None:
    [kept] = tool().postprocess_nodes(nodes(), query_str=QUESTION)
    # Offsets count in the node's own text, without the metadata that the LLM was shown before it.
    assert kept.metadata["provenance"] == [
        {
            "start": 0, "end": len(TEXTS["c"]), "match": "exact",
            "source": 1, "source_start": 0, "source_end": len(TEXTS["c"]), "id": "c",
        }
    ]  # fmt: skip
    assert "provenance" not in kept.get_content(metadata_mode=MetadataMode.LLM)
    assert "provenance" not in kept.get_content(metadata_mode=MetadataMode.EMBED)
    again = TextNode.from_json(kept.node.to_json())
    assert again.metadata["provenance"] == kept.metadata["provenance"]


def test_calls_are_bounded_before_and_by_option(spans: Any) -> None:
    compressor = tool()
    assert compressor.worst_case_calls(4) == compressor.core.worst_case_calls(4) == 4
    bounded = compressor.with_options(max_calls=1)
    assert bounded.worst_case_calls(4) == 1
    result = bounded.compress(nodes(), QUESTION)
    assert (result.calls, result.unasked, result.out_of_calls) == (1, 1, True)
    EVENTS.clear()
    bounded.postprocess_nodes(nodes(), query_str=QUESTION)
    [told] = [event for event in EVENTS if isinstance(event, ProgressEvent) and event.warning]
    assert told.name == "cluster_compression.out_of_calls"


class CountingEmbedding(HashEmbedding):
    """Counts the texts that it embeds."""

    def _vectors(self, texts: Any) -> list[list[float]]:
        ASKED.extend(texts)
        return super()._vectors(texts)


ASKED: list[str] = []


def test_embeddings_come_from_the_nodes_and_the_bundle_where_they_are_there() -> None:
    compressor = ClusterCompressorPostprocessor(FakeReader(quoting), CountingEmbedding(), pass_below=0)
    ASKED.clear()
    compressor.postprocess_nodes(
        nodes(embedding=[1.0, 0.0]), query_bundle=QueryBundle(QUESTION, embedding=[0.0, 1.0])
    )
    assert ASKED == []
    compressor.postprocess_nodes(nodes(), query_bundle=QueryBundle(QUESTION, embedding=[0.0, 1.0]))
    assert len(ASKED) == len(TEXTS) + 1


@pytest.fixture
def settings() -> Iterator[None]:
    before = Settings._llm, Settings._embed_model
    yield
    Settings._llm, Settings._embed_model = before


def test_models_default_to_those_of_the_settings(settings: None) -> None:
    Settings.llm = MockLLM(max_tokens=4)
    Settings.embed_model = CountingEmbedding()
    ASKED.clear()
    compressor = ClusterCompressorPostprocessor(pass_below=0, guard="off", refuse_longer=False)
    [kept] = compressor.postprocess_nodes(nodes()[:3], query_str=QUESTION)
    assert kept.metadata["compressed_from"]
    assert ASKED
    with pytest.raises(ConfigurationError, match="expected a reader"):
        ClusterCompressorPostprocessor(object())


def test_prompts_are_shown_changed_and_checked() -> None:
    reader = FakeReader(quoting)
    compressor = tool(reader, prompts={"extract": "{examples}Q {query_str} D {passages} E"})
    compressor.postprocess_nodes(nodes(), query_str="Who {is} Ada?")
    assert reader.prompts[0].startswith("Q Who {is} Ada? D [1] ")
    assert compressor.get_prompts().keys() == EDC2Options.PROMPTS.keys()
    assert compressor.get_prompts()["extract"].get_template() == "{examples}Q {query_str} D {passages} E"
    turns = [ChatMessage(role="system", content="S{examples}"), ChatMessage(content="{question}|{passages}")]
    compressor.update_prompts({"extract": ChatPromptTemplate(turns)})
    compressor.postprocess_nodes(nodes(), query_str=QUESTION)
    assert f"{QUESTION}|[1] " in reader.prompts[-1]
    with pytest.raises(PromptError, match="slots"):
        compressor.update_prompts({"extract": PromptTemplate("{question}")})
    assert isinstance(compressor.get_prompts()["extract"], ChatPromptTemplate)
    with pytest.raises(PromptError, match="no prompt"):
        tool(prompts={"shrink": "x"})


def test_settings_survive_serialisation_and_no_model_is_in_it() -> None:
    compressor = tool(
        budget=50,
        first_cluster_size="auto",
        examples=[FewShot("Who?", ("Bo.",), "Bo")],
        prompts={"extract": "{examples}{question}{passages}!"},
    )
    plain = json.loads(json.dumps(compressor.to_dict()))
    assert not {"llm", "embed_model", "tokenizer"} & plain.keys()
    reader = FakeReader(quoting)
    again = ClusterCompressorPostprocessor.from_dict(plain, llm=reader, embed_model=HashingEncoder())
    assert again.to_dict() == compressor.to_dict()
    assert again.examples == (FewShot("Who?", ("Bo.",), "Bo"),)
    again.postprocess_nodes(nodes(), query_str=QUESTION)
    assert reader.prompts[0].startswith("Question: Who?\nDocuments:\n[1] Bo.\nExtracted: Bo\n\n")
    assert reader.prompts[0].endswith("!")


async def test_query_engines_are_equal_sync_and_async_and_nest_spans_and_callbacks(spans: Any) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    manager = CallbackManager([debug])
    index = VectorStoreIndex([node.node for node in nodes()], embed_model=HashEmbedding())
    answers = []
    for engine in (
        index.as_query_engine(MockLLM(), similarity_top_k=4, node_postprocessors=[tool()]),
        RetrieverQueryEngine.from_args(
            index.as_retriever(similarity_top_k=4),
            MockLLM(),
            node_postprocessors=[tool()],
            callback_manager=manager,
        ),
    ):
        for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
            answers.append((str(response), dumped(response.source_nodes)))
    assert len({text for text, _ in answers}) == 1
    assert all(sources == answers[0][1] for _, sources in answers)
    assert TEXTS["c"] in answers[0][0]
    assert TEXTS["d"] not in answers[0][0]
    assert len(debug.get_event_pairs(CBEventType.RERANKING)) == 2
    parents = {span.id_.split("-")[0]: span.parent_id for span in spans.completed_spans}
    assert "ery" in parents["ClusterCompressorPostprocessor._apostprocess_nodes"]


class Slow(FakeReader):
    """Answers only when as many calls are open as it expects; tells how many were."""

    def __init__(self, together: int) -> None:
        super().__init__(quoting)
        self.together = together
        self.open = 0
        self.ready = asyncio.Event()

    async def agenerate(self, prompts: Any, sampling: Any) -> Any:
        self.open += 1
        if self.open == self.together:
            self.ready.set()
        await self.ready.wait()
        return await super().agenerate(prompts, sampling)

    def generate(self, prompts: Any, sampling: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise AssertionError("async work was done in a thread")
        return super().generate(prompts, sampling)


async def test_async_is_native_and_queries_overlap() -> None:
    compressor = tool(Slow(3))
    found = await asyncio.gather(
        *(compressor.apostprocess_nodes(nodes(), query_str=f"{QUESTION} {at}") for at in range(3))
    )
    assert all([node.node_id for node in nodes_] == ["a"] for nodes_ in found)


def test_one_instance_serves_two_loops_and_a_thread() -> None:
    compressor = tool()
    expected = dumped(compressor.postprocess_nodes(nodes(), query_str=QUESTION))
    for _ in range(2):
        found = asyncio.run(compressor.apostprocess_nodes(nodes(), query_str=QUESTION))
        assert dumped(found) == expected
    results: list[list[str]] = []

    def work() -> None:
        results.append(dumped(compressor.postprocess_nodes(nodes(), query_str=QUESTION)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [expected]


async def test_it_works_inside_a_running_loop() -> None:
    assert tool().postprocess_nodes(nodes(), query_str=QUESTION)


def test_options_are_those_of_the_core_and_explained_in_the_help() -> None:
    for option in EDC2Options.OPTIONS.values():
        field = ClusterCompressorPostprocessor.model_fields[option.name]
        assert (field.default, field.description) == (option.default, option.doc)
        assert f"\n    {option.name}: " in (ClusterCompressorPostprocessor.__doc__ or "")


def test_an_option_that_does_not_exist_is_refused_and_near_ones_are_named() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean budget"):
        tool(budgett=3)
    with pytest.raises(ConfigurationError, match="Did you mean budget"):
        tool().model_copy(update={"budgett": 3})
    with pytest.raises(ValueError, match="budgett"):
        tool().budgett = 3


def test_what_is_set_is_in_force_and_what_cannot_be_leaves_all_as_it_was() -> None:
    compressor = tool(clustering="single")
    assert compressor.compress(nodes(), QUESTION).calls == 4
    compressor.clustering = "dynamic"  # type: ignore[misc]  # frozen in the core, not here
    assert compressor.compress(nodes(), QUESTION).calls == 2
    with pytest.raises(ConfigurationError, match="budget must be at least 1"):
        compressor.budget = 0  # type: ignore[misc]  # as above
    with pytest.raises(MissingServiceError, match="entailer"):
        compressor.guard = "entailment"  # type: ignore[misc]  # as above
    assert (compressor.budget, compressor.guard, compressor.core.guard) == (None, None, None)
    shorter = compressor.model_copy(update={"budget": 5})
    assert (shorter.core.budget, compressor.core.budget) == (5, None)
    assert shorter.core.reader is compressor.core.reader
    with pytest.raises(ConfigurationError, match="budget"):
        compressor.model_copy(update={"budget": 0})


def test_copies_and_pickles_work_as_the_first_one_does() -> None:
    compressor = ClusterCompressorPostprocessor(
        MockLLM(max_tokens=4), HashEmbedding(), tokenizer=str.split, pass_below=0, guard="off",
        refuse_longer=False, prompts={"extract": PromptTemplate("{examples}{query_str}|{passages}")},
    )  # fmt: skip
    expected = dumped(compressor.postprocess_nodes(nodes(), query_str=QUESTION))
    for again in (copy.deepcopy(compressor), pickle.loads(pickle.dumps(compressor))):
        assert dumped(again.postprocess_nodes(nodes(), query_str=QUESTION)) == expected
        assert again.to_dict() == compressor.to_dict()
    assert copy.deepcopy(compressor).core.reader is compressor.core.reader
