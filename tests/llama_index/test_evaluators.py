"""ΔSePer and DENSE as evaluators: single items, batches, responses; failures are results."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from llama_index.core.base.response.schema import Response
from llama_index.core.evaluation import BatchEvalRunner
from llama_index.core.evaluation.base import BaseEvaluator, EvaluationResult
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_surerag import DeltaSePerEvaluator, DenseEvaluator
from surerag import FakeReader
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, MissingServiceError
from tests.llama_index import corpus
from tests.llama_index.corpus import KEY, KNOWN, like
from tests.llama_index.llms import Own
from tests.servers.fake_openai import FakeOpenAI

CONTEXTS = ["Ada was born in Velm."]


def reply_to(prompt: str) -> str:
    if prompt.startswith("Rewrite"):
        return "Velm is where Ada was born."
    if "entail" in prompt:
        return "entailment"
    return "Velm" if "Velm" in prompt else "Orun"


def seper(llm: Any = None, **options: Any) -> DeltaSePerEvaluator:
    return DeltaSePerEvaluator(
        FakeReader(reply_to) if llm is None else llm, **{"entailer": ExactEntailer(), **options}
    )


def dense(llm: Any = None, **options: Any) -> DenseEvaluator:
    return DenseEvaluator(
        FakeReader(reply_to) if llm is None else llm, **{"entailer": ExactEntailer(), **options}
    )


class Length(BaseEvaluator):
    """Another evaluator of the same batch, with arguments of its own."""

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass

    async def aevaluate(
        self, query: Any = None, response: Any = None, contexts: Any = None, limit: int = 0, **kwargs: Any
    ) -> EvaluationResult:
        return EvaluationResult(query=query, score=float(len(response) - limit))


@pytest.mark.parametrize("reference", ["Velm", ["Tarn", "Velm"]])
async def test_seper_measures_what_contexts_were_worth(reference: Any) -> None:
    evaluator = seper()
    for result in (
        evaluator.evaluate(KNOWN, "Velm", CONTEXTS, reference=reference),
        await evaluator.aevaluate(KNOWN, "Velm", CONTEXTS, reference=reference),
    ):
        assert (result.result.before.seper, result.result.after.seper) == (0.0, 1.0)
        assert (result.score, result.passing) == (1.0, True)
        assert result.result.interval.lower <= 1.0 <= result.result.interval.upper
        assert len(result.result.after.answers) == 10
        assert "ΔSePer +1.000" in result.feedback
        assert (result.query, result.response, result.contexts) == (KNOWN, "Velm", CONTEXTS)
        assert result.invalid_result is False
        assert result.result.usage.requests > 0
        assert json.loads(result.model_dump_json())["result"]["after"]["seper"] == 1.0


async def test_dense_measures_whether_contexts_were_understood() -> None:
    for result in (
        dense().evaluate(KNOWN, contexts=CONTEXTS),
        await dense().aevaluate(KNOWN, contexts=CONTEXTS),
    ):
        assert (result.score, result.passing, result.result.answers) == (1.0, True, ("Velm", "Velm"))
        assert result.result.chunks[0].outcome == "rephrased"
        assert json.loads(result.model_dump_json())["result"]["answers"] == ["Velm", "Velm"]
        assert result.feedback.startswith("The LLM is certain with these contexts: DSE is 0.000")
    unsure = dense(
        FakeReader(lambda prompt: "Tin melts." if prompt.startswith("Rewrite") else reply_to(prompt))
    )
    assert unsure.evaluate(KNOWN, contexts=CONTEXTS).passing is False


def test_dense_asks_the_llm_itself_where_there_is_no_entailer() -> None:
    reader = FakeReader(lambda prompt: "Tin melts." if prompt.startswith("Rewrite") else reply_to(prompt))
    result = dense(reader, entailer=None).evaluate(KNOWN, contexts=CONTEXTS)
    assert result.score == 1.0
    assert any("entail" in prompt for call in reader.history for prompt in call.prompts)


def test_seper_takes_an_llm_as_entailer() -> None:
    assert (
        seper(entailer=Own(reply_to=reply_to)).evaluate(KNOWN, contexts=CONTEXTS, reference="Velm").score
        == 0.0
    )
    with pytest.raises(MissingServiceError, match="entailer"):
        seper(entailer=None)


def test_answers_that_are_all_cut_are_not_certain() -> None:
    with FakeOpenAI(lambda prompt: "Velm is where Ada was born") as server:
        server.fault = "cut"
        result = dense(like(server)).evaluate(KNOWN, contexts=[*CONTEXTS, "Bo."])
    assert result.passing is not True


@pytest.mark.parametrize("evaluator", [seper, dense])
@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"query": None, "contexts": CONTEXTS}, "query"),
        ({"query": KNOWN, "contexts": None}, "contexts"),
        ({"query": KNOWN, "contexts": "Ada"}, "list of texts"),
        ({"query": KNOWN, "contexts": ["", " "]}, "contexts with text"),
        ({"query": "", "contexts": CONTEXTS}, "question"),
    ],
)
async def test_an_item_that_cannot_be_measured_is_invalid(
    evaluator: Any, item: dict[str, Any], reason: str
) -> None:
    results = [
        evaluator().evaluate(**item, reference="Velm"),
        await evaluator().aevaluate(**item, reference="Velm"),
    ]
    for result in results:
        assert result.invalid_result is True
        assert reason in result.invalid_reason
        assert result.score is None
        # Engines that ask again show it to their LLM.
        assert result.feedback == result.invalid_reason


@pytest.mark.parametrize("reference", [None, [], "", ["Velm", 7], 1889])
def test_a_missing_reference_is_invalid(reference: Any) -> None:
    result = seper().evaluate(KNOWN, contexts=CONTEXTS, reference=reference)
    assert (result.invalid_result, result.score) == (True, None)
    assert "reference" in result.invalid_reason


async def test_a_batch_survives_a_failing_item() -> None:
    def broken(prompt: str) -> str:
        if "Bo" in prompt:
            raise OSError("gone")
        return reply_to(prompt)

    runner = BatchEvalRunner(
        {"seper": seper(FakeReader(broken)), "dense": dense(FakeReader(broken)), "length": Length()},
        workers=4,
    )
    results = await runner.aevaluate_response_strs(
        queries=[KNOWN, "Where was Bo born?", KNOWN],
        response_strs=["Velm", "Tarn", "Velm"],
        contexts_list=[CONTEXTS, ["Bo was born in Tarn."], CONTEXTS],
        seper={"reference": ["Velm", "Tarn", "Velm"]},
        length={"limit": [1, 1, 1]},
    )
    for name in ("seper", "dense"):
        assert [result.invalid_result for result in results[name]] == [False, True, False]
        assert [result.score for result in results[name]] == [1.0, None, 1.0]
        assert "gone" in results[name][1].invalid_reason
    assert [result.score for result in results["length"]] == [3.0, 3.0, 3.0]


async def test_a_batch_of_one_evaluator_over_an_engine() -> None:
    engine = corpus.index().as_query_engine(llm=Own())
    results = await BatchEvalRunner({"seper": seper()}).aevaluate_queries(engine, [KNOWN], reference=["Velm"])
    [result] = results["seper"]
    assert result.score == 1.0


@pytest.mark.parametrize("streaming", [False, True])
async def test_responses_are_measured_streams_too(streaming: bool) -> None:
    engine = corpus.index().as_query_engine(llm=Own(), streaming=streaming)
    first = seper().evaluate_response(KNOWN, engine.query(KNOWN), reference="Velm")
    second = await seper().aevaluate_response(KNOWN, await engine.aquery(KNOWN), reference="Velm")
    assert first.score == second.score == 1.0
    assert first.response.startswith("She was born")


def test_contexts_of_a_response_are_what_an_llm_is_shown() -> None:
    node = TextNode(text="Ada was born.", metadata={"town": "Velm"})
    result = seper().evaluate_response(KNOWN, Response("", [NodeWithScore(node=node)]), reference="Velm")
    assert "town: Velm" in result.contexts[0]
    assert result.score == 1.0


def test_never_nan_over_bad_log_probabilities() -> None:
    for fault in ("logprob is NaN", "logprobs are null", "empty answer", "cut", "500"):
        with FakeOpenAI(reply_to) as server:
            server.fault = fault
            result = seper(like(server), n_samples=2).evaluate(KNOWN, contexts=CONTEXTS, reference="Velm")
        assert result.score is None or not math.isnan(result.score)
        assert (result.score is None) is bool(result.invalid_result)


def test_an_llm_without_logprobs_has_its_answers_weighed_by_frequency() -> None:
    from llama_index_surerag import reader_from_llm

    reader = reader_from_llm(Own(reply_to=reply_to), logprobs=False)
    result = seper(reader).evaluate(KNOWN, contexts=CONTEXTS, reference="Velm")
    assert (result.result.weights, result.score) == ("frequency", pytest.approx(1.0))


async def test_works_inside_a_running_loop() -> None:
    assert seper().evaluate(KNOWN, contexts=CONTEXTS, reference="Velm").score == 1.0


@pytest.mark.parametrize("kind", [DeltaSePerEvaluator, DenseEvaluator])
def test_options_are_few_checked_and_written_without_a_key(kind: Any) -> None:
    assert len(kind.model_fields) <= 15
    with FakeOpenAI() as server:
        evaluator = kind(like(server), ExactEntailer())
        assert KEY not in str(evaluator.model_dump(mode="json"))
    with pytest.raises(ConfigurationError, match="takes"):
        kind(FakeReader(), ExactEntailer(), workers=3)


def test_prompts_are_read_and_replaced() -> None:
    evaluator = seper()
    assert set(evaluator.get_prompts()) == {"closed_book", "from_passages"}
    evaluator.update_prompts({"closed_book": "Say: {query_str}"})
    reader = evaluator.llm
    evaluator.evaluate(KNOWN, contexts=CONTEXTS, reference="Velm")
    assert any(prompt.startswith("Say:") for call in reader.history for prompt in call.prompts)
