"""One model, in the core and in LlamaIndex: the same entropies, answers, labels and contexts."""

from __future__ import annotations

import pytest
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_surerag import DenseEvaluator, DenseRefinerPostprocessor
from surerag import DenseEvaluator as Dense
from surerag import DenseRefiner as ContextRefiner
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer, JudgeEntailer
from tests.llama_index.conftest import like
from tests.servers.fake_openai import FakeOpenAI, Quirks
from world import World, embedded_reader


async def test_with_the_embedded_reader_who_judges_itself() -> None:
    reader, world = embedded_reader(), World(seed=5, size=60)
    question = next(q for q in world.questions(20) if len(q.gold_passages) == 1)
    passages = world.context(question, 3, noise=0.5)
    contexts = [passage.text for passage in passages]
    core = Dense(reader, JudgeEntailer(reader)).run(question.text, passages)
    evaluator = DenseEvaluator(reader)
    for measured in (
        evaluator.evaluate(question.text, contexts=contexts),
        await evaluator.aevaluate(question.text, contexts=contexts),
    ):
        assert measured.dense == pytest.approx(core.score, abs=1e-5)
        assert measured.answers == core.answers
    settings = {"top_n": 2, "rounds": 2}
    refiner = DenseRefinerPostprocessor(reader, HashingEncoder(), **settings)
    expected = ContextRefiner(reader, JudgeEntailer(reader), HashingEncoder(), **settings).run(
        question.text, passages
    )
    nodes = [NodeWithScore(node=TextNode(id_=one.id, text=one.text), score=one.score) for one in passages]
    for found in (
        refiner.postprocess_nodes(nodes, query_str=question.text),
        await refiner.apostprocess_nodes(nodes, query_str=question.text),
    ):
        assert [node.node_id for node in found] == [passage.id for passage in expected.passages]
        assert [node.metadata["dense"]["label"] for node in found] == list(expected.best.measured.labels)
        for node in found:
            assert node.metadata["dense"]["score"] == pytest.approx(expected.score, abs=1e-5)


def test_a_server_without_log_probabilities_is_enough_and_is_not_asked_for_any() -> None:
    with FakeOpenAI(quirks=Quirks(no_logprobs=True)) as server:
        measured = DenseEvaluator(like(server), ExactEntailer()).evaluate("Where?", contexts=["Velm."])
        assert not any("logprobs" in request.body for request in server.requests)
    assert not measured.invalid_result, measured.invalid_reason
    assert len(measured.answers) == 2
