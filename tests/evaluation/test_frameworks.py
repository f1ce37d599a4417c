"""Query engines of LlamaIndex and runnables of LangChain are systems as they are."""

from __future__ import annotations

from typing import Any

import pytest

from surerag.evaluation import aevaluate, evaluate

QUESTIONS = [("Where was Ada born?", "Velm"), ("Where did Bo live?", "Orun")]


def test_a_query_engine_of_llama_index() -> None:
    core = pytest.importorskip("llama_index.core")
    from llama_index.core.llms import MockLLM

    documents = [core.Document(text="Ada was born in Velm. Bo lived in Orun.")]
    index = core.SummaryIndex.from_documents(documents)
    run = evaluate({"engine": index.as_query_engine(llm=MockLLM())}, QUESTIONS)
    assert [row.error for row in run.rows] == ["", ""]
    assert run.rows[0].answer is not None
    assert run.rows[0].answer.contexts == ("Ada was born in Velm. Bo lived in Orun.",)
    assert sum(run.values("engine", "contains").values()) == 2  # the mock repeats the prompt


def runnable() -> Any:
    pytest.importorskip("langchain_core")
    from langchain_core.language_models import FakeListChatModel
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnablePassthrough

    prompt = ChatPromptTemplate.from_template("Answer: {question}")
    return {"question": RunnablePassthrough()} | prompt | FakeListChatModel(responses=["Velm", "Orun"])


def test_a_runnable_of_langchain() -> None:
    run = evaluate({"chain": runnable()}, QUESTIONS)
    assert sum(run.values("chain", "exact_match").values()) == 2


async def test_both_beside_a_coroutine_in_a_running_loop() -> None:
    async def coroutine(question: str) -> str:
        return "Velm"

    run = await aevaluate({"chain": runnable(), "coroutine": coroutine}, QUESTIONS)
    assert sum(run.values("chain", "exact_match").values()) == 2
    assert sum(run.values("coroutine", "exact_match").values()) == 1
