"""DeltaSePerEvaluator and DenseEvaluator in LangSmith's evaluate."""

from __future__ import annotations

import json
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.globals import set_llm_cache
from langchain_core.language_models.chat_models import SimpleChatModel
from langchain_core.load import dumpd
from langchain_core.runnables import RunnableLambda
from langsmith import aevaluate, evaluate
from langsmith.schemas import Example

from langchain_surerag import DeltaSePerEvaluator, DenseEvaluator
from surerag import FakeReader, SePer
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, MissingServiceError, RefusedError, ServiceError
from tests.langchain.conftest import chat
from tests.servers.fake_openai import FakeOpenAI

QUESTION = "Where was Ada born?"
FACTS = {"Ada": "Velm", "Bo": "Tarn"}
DOCUMENTS = {name: Document(f"{name} was born in {city}.", id=name) for name, city in FACTS.items()}


def knowing(prompt: str) -> str:
    """Answer from the documents; fail where they are poisoned."""
    if "poison" in prompt:
        raise ServiceError("the server is down", hint="start it")
    if prompt.startswith("Rewrite"):
        return "Elsewhere said. " + prompt.rsplit("Text: ", 1)[-1]
    return next((city for name, city in FACTS.items() if f"{name} was born in {city}" in prompt), "Nowhere")


def seper(reader: Any = None, **settings: Any) -> DeltaSePerEvaluator:
    reader = FakeReader(knowing) if reader is None else reader
    return DeltaSePerEvaluator(reader, ExactEntailer(), **{"n_samples": 3, **settings})


def dense(reader: Any = None, **settings: Any) -> DenseEvaluator:
    return DenseEvaluator(FakeReader(knowing) if reader is None else reader, ExactEntailer(), **settings)


def scores(feedback: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: item["score"] for item in feedback["results"]}


def examples() -> list[Example]:
    return [
        Example(id=uuid4(), inputs={"question": f"Where was {name} born?"}, outputs={"answer": city})
        for name, city in FACTS.items()
    ]


def target(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"documents": [next(one for name, one in DOCUMENTS.items() if name in inputs["question"])]}


@pytest.mark.parametrize("make", [seper, dense])
@pytest.mark.filterwarnings("ignore")
async def test_in_langsmith(make: Any) -> None:
    evaluator = make()
    data: Any = examples()

    async def atarget(inputs: dict[str, Any]) -> dict[str, Any]:
        return target(inputs)

    sync = [
        row["evaluation_results"]["results"]
        for row in evaluate(target, data=data, evaluators=[evaluator], upload_results=False)
    ]
    rows = await aevaluate(atarget, data=data, evaluators=[evaluator], upload_results=False)
    asynchronous = [row["evaluation_results"]["results"] async for row in rows]
    expected = {"delta_seper": 1.0, "delta_seper_before": 0.0, "delta_seper_after": 1.0}
    if make is dense:
        expected = {"dense_entropy": 0.0, "dense_certain": 1}
    for results in (*sync, *asynchronous):
        assert {item.key: item.score for item in results} == expected


@pytest.mark.parametrize(
    ("outputs", "settings"),
    [
        ({"documents": [DOCUMENTS["Ada"]]}, {}),
        ({"context": DOCUMENTS["Ada"].page_content}, {}),
        ({"context": DOCUMENTS["Ada"]}, {}),
        ({"contexts": [DOCUMENTS["Ada"].page_content]}, {}),
        ({"output": [DOCUMENTS["Ada"]]}, {}),
        ({"source_documents": [dumpd(DOCUMENTS["Ada"])]}, {}),
        ({"documents": [{"text": DOCUMENTS["Ada"].page_content}]}, {}),
        ({"hits": [DOCUMENTS["Ada"]]}, {"contexts_key": "hits"}),
    ],
)
async def test_documents_are_where_pipelines_put_them(outputs: Any, settings: Any) -> None:
    more: Any = {
        "inputs": {"question": QUESTION},
        "outputs": outputs,
        "reference_outputs": {"answer": "Velm"},
    }
    for evaluator in (seper(**settings), dense(**settings)):
        assert next(iter(scores(evaluator(**more)).values())) in (1.0, 0.0)
        assert evaluator(**more) == await evaluator.acall(**more)


@pytest.mark.parametrize(
    ("case", "match"),
    [
        ({"inputs": {}}, "question"),
        ({"outputs": {}}, "list of documents"),
        ({"outputs": {"output": "a text"}}, "list of documents"),
        ({"outputs": {"documents": [""]}}, "no document with text"),
        ({"outputs": {"documents": [7]}}, "no text"),
        ({"outputs": {"documents": ["poison"]}}, "the server is down"),
        ({"reference_outputs": {}}, "reference answer"),
    ],
)
async def test_a_single_failure_is_marked_and_raises_nothing(case: Any, match: str, caplog: Any) -> None:
    whole: Any = {
        "inputs": {"question": QUESTION},
        "outputs": {"documents": [DOCUMENTS["Ada"]]},
        "reference_outputs": {"answer": "Velm"},
        **case,
    }
    for feedback in (seper()(**whole), await seper().acall(**whole)):
        [item] = feedback["results"]
        assert (item["key"], item["score"], item["extra"]) == ("delta_seper", None, {"error": True})
        assert match in item["comment"]
    assert "seper.invalid" in caplog.text


def test_what_is_misconfigured_raises() -> None:
    refused = FakeReader([RefusedError("wrong key")] * 9)
    with pytest.raises(RefusedError):
        seper(refused)(
            inputs={"question": QUESTION},
            outputs={"documents": ["Ada"]},
            reference_outputs={"answer": "Velm"},
        )
    for make in (seper, dense):
        for settings in ({"k": 1}, {"max_tokens": 0}, {"prompts": {"nothing": "x"}}):
            with pytest.raises((ConfigurationError, ValueError)):
                make(**settings)
        assert len(type(make()).model_fields) <= 16
    with pytest.raises(MissingServiceError, match="entailer"):
        DeltaSePerEvaluator(FakeReader([]))
    with pytest.raises(MissingServiceError, match="llm"):
        DeltaSePerEvaluator(None, ExactEntailer())


def test_no_document_that_could_be_rephrased_is_no_measurement() -> None:
    reader = FakeReader(lambda prompt: "" if prompt.startswith("Rewrite") else "Velm")
    [item] = dense(reader)(inputs={"question": QUESTION}, outputs={"documents": ["Ada."]})["results"]
    assert item["score"] is None
    assert "rephrasings are empty" in item["comment"]


def test_the_parts_are_those_of_the_core() -> None:
    feedback = seper()(
        inputs={"question": QUESTION},
        outputs={"documents": ["Ada was born in Velm."]},
        reference_outputs={"answers": ["Velm", "In Velm"]},
    )
    value = feedback["results"][0]["value"]
    assert [one["text"] for one in value["after"]["answers"]] == ["Velm"] * 3
    assert json.loads(json.dumps(value))["delta"] == 1.0
    assert isinstance(seper().core, SePer)
    assert seper().core.n_samples == 3
    assert seper().__name__ == "delta_seper"


# Samples of LangChain's models.


class Drawing(SimpleChatModel):
    """Says something else each time it is really asked."""

    numbers: Any = None

    @property
    def _llm_type(self) -> str:
        return "drawing"

    def _call(self, *_: Any, **__: Any) -> str:
        return f"Answer {next(self.numbers)}"


async def test_a_global_cache_leaves_samples_apart() -> None:
    set_llm_cache(InMemoryCache())
    evaluator = seper(Drawing(numbers=count()))
    value = evaluator(
        inputs={"question": QUESTION}, outputs={"documents": ["Ada."]}, reference_outputs={"answer": "Velm"}
    )["results"][0]["value"]
    assert len({one["text"] for part in ("before", "after") for one in value[part]["answers"]}) == 6
    assert value["weights"] == "frequency"


async def test_the_calls_of_a_server_are_those_documented() -> None:
    with FakeOpenAI(["Velm"]) as server:
        evaluator = DeltaSePerEvaluator(chat(server), ExactEntailer(), n_samples=4)
        case: Any = {
            "inputs": {"question": QUESTION},
            "outputs": {"documents": [DOCUMENTS["Ada"]]},
            "reference_outputs": {"answer": "Velm"},
        }
        for feedback in (evaluator(**case), await evaluator.acall(**case)):
            assert scores(feedback)["delta_seper"] == pytest.approx(0.0)
        assert [body["n"] for body in server.requests] == [4] * 4
        judged = DeltaSePerEvaluator(chat(server), chat(server), n_samples=2)
        server.answers = lambda prompt: "entailment" if "entail" in prompt else "Velm it is"
        assert judged(**case)["results"][0]["score"] == pytest.approx(0.0)


def test_prompts_may_be_runnables_inputs() -> None:
    around = RunnableLambda(
        lambda question: dense()(
            inputs={"question": question}, outputs={"documents": ["Ada was born in Velm."]}
        )
    )
    assert scores(around.invoke(QUESTION))["dense_certain"] == 1
