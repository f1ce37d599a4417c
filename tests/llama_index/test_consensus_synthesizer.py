"""Answers by consensus in LlamaIndex's query engines, and EDC²-RAG's checks in its evaluation runner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.evaluation import BatchEvalRunner
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_surerag import AnswerChoiceEvaluator, ConsensusSynthesizer, FactCheckEvaluator
from surerag import ClusterCompressor, EDC2Options, FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, PromptError
from tests.llama_index.corpus import HashEmbedding
from tests.llama_index.watching import EVENTS

QUESTION = "Where was Ada born?"
TEXTS = ("Ada the painter was born in Velm.", "It was in Velm that Ada was born.", "Bo was born in Tarn.")
SELECTED = "Reasoning: two agree.\nSelected_Answer: **Velm**"


def reply(prompt: str) -> str:
    if prompt.startswith("Several answers"):
        return SELECTED
    return "Velm, as the text says." if "Velm" in prompt else "Tarn, as the text says."


class Replying(CustomLLM):
    """A LlamaIndex LLM without log-probabilities."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=reply(prompt))

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        yield CompletionResponse(text=reply(prompt), delta=reply(prompt))


def tool(**settings: Any) -> ConsensusSynthesizer:
    return ConsensusSynthesizer.from_args(
        FakeReader(reply), HashEmbedding(), first_cluster_size=2, **settings
    )


def index() -> VectorStoreIndex:
    nodes = [TextNode(id_=f"n{at}", text=text) for at, text in enumerate(TEXTS)]
    return VectorStoreIndex(nodes, embed_model=HashEmbedding())


def engine(**settings: Any) -> RetrieverQueryEngine:
    return RetrieverQueryEngine(index().as_retriever(similarity_top_k=3), tool(**settings))


def test_a_query_engine_answers_by_consensus_and_tells_how() -> None:
    response = engine().query(QUESTION)
    assert isinstance(response, Response)
    assert (str(response), response.metadata["reasoning"]) == ("Velm", "two agree.")
    assert len(response.metadata["candidates"]) == len(response.metadata["clusters"]) == 2
    assert response.metadata["calls"] == 3
    assert {node.node_id for node in response.source_nodes} == {"n0", "n1", "n2"}
    # The nodes themselves come back: nothing was compressed away from under a citation.
    assert {node.text for node in response.source_nodes} == set(TEXTS)


async def test_sync_async_streamed_and_the_core_agree() -> None:
    answer = str(engine().query(QUESTION))
    assert str(await engine().aquery(QUESTION)) == answer
    streamed = engine(streaming=True).query(QUESTION)
    assert isinstance(streamed, StreamingResponse)
    assert len(streamed.metadata["clusters"]) == 2
    assert "".join(streamed.response_gen) == answer
    assert streamed.metadata["reasoning"] == "two agree."
    flowing = await engine(streaming=True).aquery(QUESTION)
    assert isinstance(flowing, AsyncStreamingResponse)
    assert "".join([piece async for piece in flowing.async_response_gen()]) == answer
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    core = tool().core
    assert isinstance(core, ClusterCompressor)
    assert str(tool().synthesize(QUESTION, nodes)) == answer
    assert tool().get_response(QUESTION, TEXTS) == answer
    assert await tool().aget_response(QUESTION, TEXTS) == answer


def test_a_pipelines_own_llm_and_engine_shortcut_work() -> None:
    llm = Replying()
    made = index().as_query_engine(
        llm, response_synthesizer=ConsensusSynthesizer.from_args(llm, HashEmbedding()), similarity_top_k=3
    )
    assert str(made.query(QUESTION)) == "Velm"


@pytest.mark.parametrize("streaming", [False, True])
async def test_nothing_retrieved_is_answered_as_llama_index_does(streaming: bool) -> None:
    assert str(tool(streaming=streaming).synthesize(QUESTION, [])) == "Empty Response"
    response = await tool(streaming=streaming).asynthesize(QUESTION, [])
    if isinstance(response, AsyncStreamingResponse):
        response = await response.get_response()
    assert str(response) == "Empty Response"


def test_prompts_are_shown_and_replaced_and_settings_checked() -> None:
    synthesizer = tool()
    assert "consensus" in synthesizer.get_prompts()
    engine_prompts = engine().get_prompts()
    assert "response_synthesizer:consensus" in engine_prompts
    with pytest.raises(PromptError):
        tool(prompts={"consensus": "Choose: {answers}"})
    with pytest.raises(ConfigurationError, match="first_cluster_size"):
        ConsensusSynthesizer.from_args(FakeReader(), HashEmbedding(), first_cluster=2)
    assert synthesizer.to_dict()["first_cluster_size"] == 2
    assert set(EDC2Options.OPTIONS) <= set(synthesizer.to_dict())


def test_synthesis_is_reported(spans: SimpleSpanHandler) -> None:
    engine().query(QUESTION)
    names = [type(event).__name__ for event in EVENTS]
    assert names.count("SynthesizeStartEvent") == names.count("SynthesizeEndEvent") == 1
    assert not spans.open_spans


def judge(prompt: str) -> str:
    if prompt.startswith("Check"):
        wrong = "Statement: Ada was born in Tarn." in prompt
        return f"Reasoning: [1] says Velm.\nAnswer: {'Nonfactual' if wrong else 'Factual'}"
    if prompt.startswith("Judge two"):
        return "Choice: Answer 1" if "Answer 1: Velm" in prompt else "Choice: Answer 2"
    return "Ada was born in Velm."


async def test_a_batch_of_statements_is_checked_by_llama_indexs_runner() -> None:
    checker = FactCheckEvaluator(FakeReader(judge), HashingEncoder(), pass_below=0)
    chooser = AnswerChoiceEvaluator(FakeReader(judge), HashingEncoder(), both_orders=True)
    runner = BatchEvalRunner({"facts": checker, "choice": chooser}, workers=4)
    found = await runner.aevaluate_response_strs(
        queries=[QUESTION] * 3,
        response_strs=["Ada was born in Velm.", "Ada was born in Tarn.", ""],
        contexts_list=[list(TEXTS)] * 3,
        choice={"second_response": ["Tarn", "Velm", "Velm"]},
    )
    facts = found["facts"]
    assert [(one.label, one.passing, one.score) for one in facts[:2]] == [
        ("factual", True, 1.0),
        ("nonfactual", False, 0.0),
    ]
    assert facts[1].feedback == "[1] says Velm."
    assert set(facts[1].sources) <= {0, 1, 2}
    assert facts[2].invalid_result and "response" in (facts[2].invalid_reason or "")
    assert [one.chosen for one in found["choice"][1:2]] == [1]


def test_a_response_is_checked_against_its_own_sources() -> None:
    checker = FactCheckEvaluator(FakeReader(judge), HashingEncoder(), pass_below=0)
    response = engine().query(QUESTION)
    assert checker.evaluate_response(QUESTION, response).label == "factual"


def test_an_unclear_verdict_is_no_verdict() -> None:
    checker = FactCheckEvaluator(FakeReader(["Hard to say."]), HashingEncoder())
    found = checker.evaluate(response="Ada was born in Velm.", contexts=list(TEXTS[:1]))
    assert found.invalid_result and found.score is None and "Hard to say" in (found.invalid_reason or "")


@pytest.mark.parametrize("way", ["sync", "async"])
def test_whom_a_statement_is_about_comes_with_the_item(way: str) -> None:
    reader = FakeReader(["Answer: Factual"])
    checker = FactCheckEvaluator(reader, HashingEncoder())
    item: dict[str, Any] = {
        "response": "She was born in Velm.",
        "contexts": list(TEXTS[:1]),
        "subject": "Ada",
    }
    found = checker.evaluate(**item) if way == "sync" else asyncio.run(checker.aevaluate(**item))
    assert found.passing and "about Ada" in reader.prompts[-1]


def test_either_order_has_to_choose_the_same_answer() -> None:
    first = FakeReader(["Choice: Answer 1", "Choice: Answer 1"])
    chooser = AnswerChoiceEvaluator(first, HashingEncoder(), both_orders=True)
    found = chooser.evaluate(QUESTION, "Velm", list(TEXTS[:1]), second_response="Tarn")
    assert (found.chosen, found.score, found.passing) == (None, 0.5, False)
