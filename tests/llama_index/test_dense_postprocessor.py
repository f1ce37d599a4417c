"""The refiner in LlamaIndex's own pipelines, and what a demanding user tries."""

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
from llama_index.core.prompts.default_prompts import DEFAULT_TEXT_QA_PROMPT
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import ImageNode, IndexNode, MetadataMode, NodeWithScore, QueryBundle, TextNode

from llama_index_surerag import DenseRefinerPostprocessor
from surerag import DenseCache, DenseRefinerOptions, FakeReader
from surerag import DenseRefiner as ContextRefiner
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, PromptError, ServiceError
from surerag.messages import SamplingParams
from tests.llama_index.dense_cases import (
    Found,
    LetterEmbedding,
    Saying,
    dumped,
    letter_nodes,
    texts,
    tool,
    warnings,
)
from tests.llama_index.watching import EVENTS
from tests.methods.dense_rag.script import MENDED, QUESTION, Letters, distinct, kind, passages, script


async def test_it_hands_on_what_the_core_finds_and_tells_what_it_measured() -> None:
    core = ContextRefiner(script(MENDED), ExactEntailer(), encoder=Letters(), top_n=3, max_chunks=3)
    expected = core.run(QUESTION, passages("abcdef"))
    found = tool().postprocess_nodes(letter_nodes(), query_str=QUESTION)
    assert texts(found) == "ace" == "".join(passage.text for passage in expected.passages)
    assert dumped(await tool().apostprocess_nodes(letter_nodes(), query_str=QUESTION)) == dumped(found)
    given = {node.node_id: node for node in letter_nodes()}
    for node, label in zip(found, expected.best.measured.labels, strict=True):
        told = node.metadata.pop("dense")
        assert told.pop("score") == pytest.approx(expected.score, abs=1e-5)
        assert told == {"certain": True, "label": label, "rounds": 2, "stopped": "satisfied"}
        for mode in MetadataMode.LLM, MetadataMode.EMBED:
            assert node.get_content(metadata_mode=mode) == node.text
        before = given[node.node_id]
        assert (node.score, node.metadata) == (before.score, before.metadata)
        assert node.node.relationships == before.node.relationships
        assert (node.node.start_char_idx, node.node.end_char_idx) == (
            before.node.start_char_idx,
            before.node.end_char_idx,
        )


def test_a_score_that_is_not_zero_is_that_of_the_core() -> None:
    reader = script(distinct, sufficient=lambda _: "no")
    core = ContextRefiner(reader, ExactEntailer(), encoder=Letters(), top_n=3, max_chunks=3, rounds=2)
    expected = core.run(QUESTION, passages("abcdef"))
    refiner = tool(reader, rounds=2)
    result = refiner.refine(letter_nodes(), QUESTION)
    assert result.score == pytest.approx(expected.score, abs=1e-5)
    assert expected.score > 1
    assert [one.to_dict() for one in result.rounds] == [one.to_dict() for one in expected.rounds]
    found = refiner.postprocess_nodes(letter_nodes(), query_str=QUESTION)
    assert [node.metadata["dense"]["label"] for node in found] == ["necessary"] * 3


def test_never_more_than_top_n_unless_asked_for() -> None:
    reader = script(distinct, sufficient=lambda _: "no")
    for settings, most in (({}, 2), ({"max_chunks": 4}, 4)):
        result = tool(reader, top_n=2, **settings).refine(letter_nodes(), QUESTION)
        assert max(len(one.measured.passages) for one in result.rounds) == most
    assert texts(tool(top_n=20).postprocess_nodes(letter_nodes("ab"), query_str=QUESTION)) == "ab"


def test_what_goes_in_is_not_changed_and_what_comes_out_is_a_copy() -> None:
    given = letter_nodes()
    before = dumped(given)
    for reader in (script(MENDED), script({}), script(lambda _: ServiceError("away"))):
        for found in tool(reader).postprocess_nodes(given, query_str=QUESTION):
            found.node.metadata["file"] = "changed"
            found.node.relationships.clear()
            found.node.excluded_llm_metadata_keys.clear()
    assert dumped(given) == before


@pytest.mark.parametrize("query", [None, QueryBundle("  ")])
async def test_without_a_query_the_first_nodes_come_back_with_a_warning(spans: Any, query: Any) -> None:
    refiner = tool(FakeReader([]))
    first = dumped(letter_nodes("abc"))
    assert dumped(refiner.postprocess_nodes(letter_nodes(), query_bundle=query)) == first
    assert dumped(await refiner.apostprocess_nodes(letter_nodes(), query_bundle=query)) == first
    assert [event.name for event in warnings()] == ["dense_refiner.no_query"] * 2
    with pytest.raises(ValueError, match="both"):
        refiner.postprocess_nodes(letter_nodes(), query_bundle=QueryBundle("q"), query_str="q")


def test_no_node_and_nodes_of_other_kinds() -> None:
    assert tool(FakeReader([])).postprocess_nodes([], query_str=QUESTION) == []
    image = NodeWithScore(node=ImageNode(id_="i", image_url="http://x/y.png", metadata={"file": "y"}))
    others = [
        image,
        NodeWithScore(node=IndexNode(id_="x", index_id="sub", text="a")),
        NodeWithScore(node=TextNode(id_="e", text=" ")),
        NodeWithScore(node=TextNode(id_="late", text="")),
        *letter_nodes("c"),
    ]
    found = tool().postprocess_nodes(others, query_str=QUESTION)
    assert [node.node_id for node in found] == ["x", "id-c", "i", "e"]
    assert isinstance(found[0].node, IndexNode)
    assert dumped(found[2:3]) == dumped([image])
    blank = tool(FakeReader([])).postprocess_nodes([image], query_str=QUESTION)
    assert dumped(blank) == dumped([image])


@pytest.mark.parametrize("fails", ["rephrase", "answer"])
async def test_a_failing_llm_leaves_the_first_nodes_with_a_warning_and_an_event(
    spans: Any, fails: str
) -> None:
    def reply(prompt: str) -> str:
        if kind(prompt) == fails:
            raise ServiceError("time-out")
        return "A"

    first = dumped(letter_nodes("abc"))
    refiner = tool(FakeReader(reply))
    assert dumped(await refiner.apostprocess_nodes(letter_nodes(), query_str=QUESTION)) == first
    assert dumped(refiner.postprocess_nodes(letter_nodes(), query_str=QUESTION)) == first
    assert [event.name for event in warnings()] == ["context_refiner.failed"] * 2
    assert "time-out" in warnings()[0].data["reason"]
    assert "_apostprocess_nodes" in (warnings()[0].span_id or "")
    with pytest.raises(ServiceError, match="time-out"):
        tool(FakeReader(reply), on_failure="raise").postprocess_nodes(letter_nodes(), query_str=QUESTION)


def test_a_judge_that_talks_nonsense_is_counted_and_entails_nothing() -> None:
    reader, judge = script(distinct), FakeReader(lambda _: "Bananas, perhaps?")
    refiner = tool(reader, entailer=judge, rounds=1)
    assert refiner.unparsed == 0
    found = refiner.postprocess_nodes(letter_nodes(), query_str=QUESTION)
    assert texts(found) == "abc"
    assert found[0].metadata["dense"]["certain"] is False
    assert refiner.unparsed == len(judge.prompts) == 4 * 3


def test_a_judge_that_fails_leaves_the_first_nodes(spans: Any) -> None:
    class Broken(ExactEntailer):
        def entail(self, pairs: Any) -> Any:
            raise ServiceError("the judge is away")

    found = tool(script(distinct), entailer=Broken()).postprocess_nodes(letter_nodes(), query_str=QUESTION)
    assert dumped(found) == dumped(letter_nodes("abc"))
    assert [event.name for event in warnings()] == ["context_refiner.failed"]


def test_vectors_come_from_the_nodes_where_all_have_them() -> None:
    carried = letter_nodes()
    for node in carried:
        node.node.embedding = LetterEmbedding().get_text_embedding(node.text)
    model = LetterEmbedding(asked=[])
    assert texts(tool(embed_model=model).postprocess_nodes(carried, query_str=QUESTION)) == "ace"
    assert model.asked == []
    tool(embed_model=model).postprocess_nodes(letter_nodes(), query_str=QUESTION)
    assert set(model.asked) == {"c", "d", "e", "f"}


async def test_a_retriever_is_asked_for_more_when_no_candidate_is_left() -> None:
    held = letter_nodes("def")
    before = dumped(held)
    bundle = QueryBundle(QUESTION, custom_embedding_strs=["as rewritten"])
    for native in (False, True):
        retriever = Found(held)
        refiner = tool(retriever=retriever)
        if native:
            found = await refiner.apostprocess_nodes(letter_nodes("abc"), query_bundle=bundle)
        else:
            found = refiner.postprocess_nodes(letter_nodes("abc"), query_bundle=bundle)
        assert texts(found) == "ace"
        assert [asked.embedding_strs for asked in retriever.asked] == [["as rewritten"]]
    assert dumped(held) == before
    index = VectorStoreIndex([node.node for node in held], embed_model=LetterEmbedding())
    assert texts(tool(retriever=index).postprocess_nodes(letter_nodes("abc"), query_str=QUESTION)) == "ace"
    with pytest.raises(ConfigurationError, match="retriever or index"):
        tool(retriever=object())


@pytest.fixture
def settings() -> Iterator[None]:
    before = Settings._llm, Settings._embed_model
    yield
    Settings._llm, Settings._embed_model = before


def test_models_default_to_those_of_the_settings(settings: None) -> None:
    reader = script(MENDED)

    def say(prompt: str) -> str:
        if prompt.startswith("Two possible answers"):
            return "contradiction"
        [[reply]] = reader.generate([prompt], SamplingParams())
        return reply.text

    Settings.llm = Saying(say=say)
    Settings.embed_model = LetterEmbedding(asked=[])
    refiner = DenseRefinerPostprocessor(top_n=3)
    assert texts(refiner.postprocess_nodes(letter_nodes(), query_str=QUESTION)) == "ace"
    assert refiner.core.services.entailer.name == "judge:saying"
    assert Settings.embed_model.asked
    with pytest.raises(ConfigurationError, match="expected a reader"):
        DenseRefinerPostprocessor(object())


def test_prompts_are_shown_changed_and_checked() -> None:
    reader = script({})
    refiner = tool(reader, prompts={"rephrase": "Rewrite\nText: {passage}"})
    assert set(refiner.get_prompts()) == {"rephrase", "answer", "closed_book", "sufficient"}
    refiner.update_prompts({"answer": DEFAULT_TEXT_QA_PROMPT})
    refiner.postprocess_nodes(letter_nodes("ab"), query_str="Who {is} Ada?")
    assert reader.prompts[0] == "Rewrite\nText: a"
    wanted = DEFAULT_TEXT_QA_PROMPT.format(context_str="[1] a\n[2] b", query_str="Who {is} Ada?")
    assert wanted in reader.prompts
    turns = [ChatMessage(role="system", content="S"), ChatMessage(content="{query_str}|{context_str}")]
    refiner.update_prompts({"answer": ChatPromptTemplate(turns)})
    refiner.postprocess_nodes(letter_nodes("ab"), query_str=QUESTION)
    assert any(f"{QUESTION}|[1] a" in str(prompt) for prompt in reader.prompts)
    turns = [ChatMessage(role="system", content="S"), ChatMessage(content="Say anew: {passage}")]
    refiner.update_prompts({"rephrase": ChatPromptTemplate(turns)})
    refiner.postprocess_nodes(letter_nodes("ab"), query_str=QUESTION)
    assert any("Say anew: b" in str(prompt) for prompt in reader.prompts)
    before = refiner.to_dict()
    for changes in (
        {"answer": PromptTemplate("{question}")},
        {"shrink": PromptTemplate("x")},
        {"entailment": PromptTemplate("{question}{premise}{hypothesis}")},
    ):
        with pytest.raises(PromptError):
            refiner.update_prompts(changes)
    assert refiner.to_dict() == before


def test_the_prompt_of_a_judge_in_words_can_be_changed() -> None:
    judge = FakeReader(lambda _: "entailment")
    refiner = tool(script(distinct), entailer=judge)
    refiner.update_prompts({"entailment": PromptTemplate("{query_str}: {premise} > {hypothesis}")})
    found = refiner.postprocess_nodes(letter_nodes(), query_str=QUESTION)
    assert found[0].metadata["dense"]["score"] == 0
    assert all(prompt.startswith(f"{QUESTION}: answer ") for prompt in judge.prompts)
    with pytest.raises(PromptError, match="slots"):
        refiner.update_prompts({"entailment": PromptTemplate("{premise}")})


def test_settings_survive_serialisation_and_no_model_is_in_it() -> None:
    refiner = tool(rounds=2, prompts={"sufficient": "{context_str}{query_str} yes or no!"})
    plain = json.loads(json.dumps(refiner.to_dict()))
    living = {"llm", "embed_model", "entailer", "retriever", "documents", "chunker", "dense_cache"}
    assert not living & plain.keys()
    reader = script(MENDED)
    again = DenseRefinerPostprocessor.from_dict(
        plain, llm=reader, entailer=ExactEntailer(), embed_model=LetterEmbedding()
    )
    assert again.to_dict() == refiner.to_dict()
    again.postprocess_nodes(letter_nodes(), query_str=QUESTION)
    assert any(str(prompt).endswith("yes or no!") for prompt in reader.prompts)


def test_options_are_those_of_the_core_and_take_effect_or_raise() -> None:
    refiner = tool()
    fields = DenseRefinerPostprocessor.model_fields
    for name, option in DenseRefinerOptions.OPTIONS.items():
        assert (fields[name].default, fields[name].description) == (option.default, option.doc)
    with pytest.raises(ConfigurationError, match="rounds"):
        tool(rounds=0)
    with pytest.raises(ConfigurationError, match="variant"):
        tool(variant="other")
    with pytest.raises(ConfigurationError, match=r"no option 'top'.*top_n"):
        tool(top=3)
    # Calls that do not cover one measurement leave the nodes as they were.
    assert texts(tool(max_calls=2).postprocess_nodes(letter_nodes(), query_str=QUESTION)) == "abc"
    refiner.top_n = 2
    assert texts(refiner.postprocess_nodes(letter_nodes(), query_str=QUESTION)) == "ab"
    with pytest.raises(ConfigurationError, match="max_chunks"):
        refiner.max_chunks = 1
    assert refiner.max_chunks is None
    for changed in (refiner.model_copy(update={"top_n": 1}), refiner.with_options(top_n=1)):
        assert (changed.core.top_n, refiner.core.top_n) == (1, 2)
        assert changed.core.cache is refiner.core.cache
    with pytest.raises(ConfigurationError, match="rouns"):
        refiner.model_copy(update={"rouns": 1})


def test_copies_and_pickles_refine_as_it_does() -> None:
    plain = DenseRefinerPostprocessor(
        FakeReader(["A"]), HashingEncoder(), ExactEntailer(), rounds=2, dense_cache=DenseCache()
    )
    copied = copy.deepcopy(plain)
    assert copied.core.reader is plain.core.reader
    for again in (copied, pickle.loads(pickle.dumps(plain))):
        assert (again.rounds, again.core.to_dict()) == (2, plain.core.to_dict())


def test_a_cache_serves_several_components() -> None:
    cache = DenseCache()
    first, second = script(MENDED), script(MENDED)
    for reader in (first, second):
        tool(reader, dense_cache=cache).postprocess_nodes(letter_nodes(), query_str=QUESTION)
    assert sum(kind(prompt) == "rephrase" for prompt in first.prompts) == 4
    assert not any(kind(prompt) == "rephrase" for prompt in second.prompts)


async def test_query_engines_are_equal_sync_and_async_and_nest_spans_and_callbacks(spans: Any) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    answers = []
    for manager in (CallbackManager([]), CallbackManager([debug])):
        engine = RetrieverQueryEngine.from_args(
            Found(letter_nodes()), MockLLM(), node_postprocessors=[tool()], callback_manager=manager
        )
        for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
            answers.append((str(response), dumped(response.source_nodes)))
    assert all(answer == answers[0] for answer in answers)
    assert "a\n\nc\n\ne" in answers[0][0]
    assert "dense" not in answers[0][0]
    assert len(debug.get_event_pairs(CBEventType.RERANKING)) == 2
    parents = {span.id_.split("-")[0]: span.parent_id for span in spans.completed_spans}
    assert "ery" in parents["DenseRefinerPostprocessor._apostprocess_nodes"]
    refined = [event for event in EVENTS if getattr(event, "name", "") == "context_refiner.refined"]
    assert len(refined) == 4
    assert all("postprocess_nodes" in event.span_id for event in refined)


class Slow(FakeReader):
    """Answers only when as many calls are open as it expects."""

    def __init__(self, together: int) -> None:
        super().__init__(lambda prompt: prompt.split("Text: ")[1] + "'" if "Text: " in prompt else "A")
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
    refiner = tool(Slow(3))
    found = await asyncio.gather(
        *(refiner.apostprocess_nodes(letter_nodes(), query_str=f"{QUESTION} {at}") for at in range(3))
    )
    assert [texts(nodes) for nodes in found] == ["abc"] * 3


def test_one_instance_serves_two_loops_a_thread_and_a_running_loop() -> None:
    refiner = tool()
    expected = dumped(refiner.postprocess_nodes(letter_nodes(), query_str=QUESTION))
    results: list[list[str]] = []

    def work() -> None:
        results.append(dumped(refiner.postprocess_nodes(letter_nodes(), query_str=QUESTION)))

    async def within() -> None:
        results.append(dumped(await refiner.apostprocess_nodes(letter_nodes(), query_str=QUESTION)))
        work()

    asyncio.run(within())
    asyncio.run(within())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [expected] * 5
