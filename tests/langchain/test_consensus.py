"""Answers by consensus in LangChain's chains, and EDC²-RAG's checks in LangSmith's evaluation."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from langchain_classic.chains import create_retrieval_chain
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumpd, load
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough
from langsmith import evaluate, tracing_context
from langsmith.evaluation.evaluator import DynamicComparisonRunEvaluator
from langsmith.schemas import Example, Run

from langchain_surerag import AnswerChoiceEvaluator, ConsensusAnswer, FactCheckEvaluator
from surerag import FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, MissingServiceError

QUESTION = "Where was Ada born?"
TEXTS = ("Ada the painter was born in Velm.", "It was in Velm that Ada was born.", "Bo was born in Tarn.")
SELECTED = "Reasoning: two agree.\nSelected_Answer: **Velm**"


def documents() -> list[Document]:
    return [Document(text, id=f"d{at}", metadata={"page": at}) for at, text in enumerate(TEXTS)]


def reply(prompt: str) -> str:
    if prompt.startswith("Several answers"):
        return SELECTED
    return "Velm, as the text says." if "Velm" in prompt else "Tarn, as the text says."


def tool(**settings: Any) -> ConsensusAnswer:
    return ConsensusAnswer(FakeReader(reply), HashingEncoder(), first_cluster_size=2, **settings)


def given() -> dict[str, Any]:
    return {"input": QUESTION, "context": documents()}


async def test_it_stands_where_a_documents_chain_does() -> None:
    chain = create_retrieval_chain(RunnableLambda(lambda question: documents()), tool())
    found = chain.invoke({"input": QUESTION})
    assert found["answer"] == "Velm"
    assert [document.id for document in found["context"]] == ["d0", "d1", "d2"]
    assert (await chain.ainvoke({"input": QUESTION}))["answer"] == "Velm"
    pieces = [chunk["answer"] for chunk in chain.stream({"input": QUESTION}) if "answer" in chunk]
    assert "".join(pieces) == "Velm"


async def test_every_way_to_ask_agrees_and_details_add_up() -> None:
    detailed = tool(return_details=True)
    whole = detailed.invoke(given())
    assert (whole["answer"], whole["reasoning"]) == ("Velm", "two agree.")
    assert len(whole["candidates"]) == len(whole["clusters"]) == 2
    assert whole["usage"]["calls"] == whole["spent"]["calls"] == 3
    assert whole["spent"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert await detailed.ainvoke(given()) == whole
    chunks = list(detailed.stream(given()))
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert dict(total) == whole
    assert "".join([piece async for piece in tool().astream(given())]) == "Velm"
    assert tool().batch([given(), given()]) == await tool().abatch([given(), given()]) == ["Velm", "Velm"]


def test_a_chat_model_of_langchains_is_enough() -> None:
    model = FakeListChatModel(responses=["Velm, it says.", SELECTED])
    chain = RunnablePassthrough.assign(answer=ConsensusAnswer(model, HashingEncoder()))
    assert chain.invoke({"question": QUESTION, "documents": documents()[:1]})["answer"] == "Velm"


def test_options_are_configurable_and_inputs_checked() -> None:
    chain = tool().configurable_fields(consensus=ConfigurableField(id="rule"))
    found = chain.invoke(given(), config={"configurable": {"rule": "majority"}})
    assert found == "Velm, as the text says."
    with pytest.raises(InputError, match="no documents"):
        tool().invoke({"input": QUESTION})
    with pytest.raises(InputError):
        tool().invoke(QUESTION)
    with pytest.raises(ConfigurationError, match="first_cluster"):
        tool(first_cluster=1)


def test_it_is_written_down_without_its_models_and_gets_them_back() -> None:
    written = json.loads(json.dumps(dumpd(tool(bridging=1))))
    loaded = load(
        written,
        valid_namespaces=["langchain_surerag"],
        allowed_objects=[ConsensusAnswer],
    )
    assert loaded.bridging == 1
    with pytest.raises(MissingServiceError, match="attach"):
        loaded.invoke(given())
    attached = loaded.attach(llm=FakeReader(reply), embeddings=HashingEncoder())
    assert attached.invoke(given()) == "Velm"


def judge(prompt: str) -> str:
    if prompt.startswith("Check"):
        wrong = "Statement: Ada was born in Tarn." in prompt
        return f"Reasoning: [1] says Velm.\nAnswer: {'Nonfactual' if wrong else 'Factual'}"
    if prompt.startswith("Judge two"):
        return "Choice: Answer 1" if "Answer 1: Velm" in prompt else "Choice: Answer 2"
    return "Ada was born in Velm."


def test_answers_are_checked_in_langsmiths_evaluate() -> None:
    checker = FactCheckEvaluator(FakeReader(judge), HashingEncoder(), pass_below=0)
    answers = {"a": "Ada was born in Velm.", "b": "Ada was born in Tarn."}
    examples = [
        Example(id=uuid4(), dataset_id=uuid4(), inputs={"question": QUESTION, "which": which})
        for which in answers
    ]
    rows = evaluate(
        lambda inputs: {"answer": answers[inputs["which"]], "documents": list(TEXTS)},
        data=examples,
        evaluators=[checker],
        upload_results=False,
    )
    scores = {row["example"].inputs["which"]: row["evaluation_results"]["results"][0].score for row in rows}
    assert scores == {"a": 1, "b": 0}


def test_what_cannot_be_checked_is_marked_and_asks_nobody_else() -> None:
    checker = FactCheckEvaluator(FakeReader(["Hard to say."]), HashingEncoder())
    outputs = {"answer": "Ada was born in Velm.", "documents": list(TEXTS[:1])}
    [found] = checker(inputs={"question": QUESTION}, outputs=outputs)["results"]
    assert found["score"] is None and "Hard to say" in found["comment"] and found["extra"]["error"]
    [found] = asyncio.run(checker.acall(inputs={}, outputs={"documents": list(TEXTS)}))["results"]
    assert "answer" in found["comment"]


def test_whom_an_answer_is_about_is_read_from_the_inputs() -> None:
    reader = FakeReader(["Answer: Factual"])
    checker = FactCheckEvaluator(reader, HashingEncoder(), subject_key="person")
    outputs = {"answer": "She was born in Velm.", "documents": list(TEXTS[:1])}
    checker(inputs={"person": "Ada"}, outputs=outputs)
    assert "about Ada" in reader.prompts[-1]


def runs() -> list[Run]:
    texts = ({"answer": "Tarn", "documents": documents()}, {"answer": "Velm", "documents": documents()[:1]})
    return [
        Run(
            id=uuid4(),
            name="chain",
            run_type="chain",
            inputs={"question": QUESTION},
            outputs=outputs,
            start_time="2026-01-01T00:00:00",
            trace_id=uuid4(),
        )
        for outputs in texts
    ]


@pytest.mark.parametrize("both", [False, True])
def test_two_experiments_are_compared_as_langsmith_compares_them(both: bool) -> None:
    chooser = AnswerChoiceEvaluator(FakeReader(judge), HashingEncoder(), both_orders=both)
    compared = runs()
    example = Example(id=uuid4(), inputs={"question": QUESTION})
    with tracing_context(enabled=False):
        result = DynamicComparisonRunEvaluator(chooser).compare_runs(compared, example)
    assert result.scores == {compared[0].id: 0.0, compared[1].id: 1.0}


async def test_sync_and_async_choices_agree_and_a_draw_is_a_half() -> None:
    chooser = AnswerChoiceEvaluator(FakeReader(judge), HashingEncoder())
    outputs = [{"answer": "Tarn", "documents": list(TEXTS)}, {"answer": "Velm"}]
    found = chooser(inputs={"question": QUESTION}, outputs=outputs)
    assert found == await chooser.acall(inputs={"question": QUESTION}, outputs=outputs)
    assert found["scores"] == [0.0, 1.0]
    drawn = AnswerChoiceEvaluator(
        FakeReader(["Choice: Answer 1", "Choice: Answer 1"]), HashingEncoder(), both_orders=True
    )
    one = [{"answer": "Tarn", "documents": list(TEXTS[:1])}, {"answer": "Velm"}]
    assert drawn(inputs={"question": QUESTION}, outputs=one)["scores"] == [0.5, 0.5]
    with pytest.raises(InputError, match="two runs"):
        chooser(inputs={"question": QUESTION}, outputs=outputs[:1])
