"""Query engines of LlamaIndex and runnables of LangChain are systems as they are."""

from __future__ import annotations

from typing import Any

import pytest

from surerag import FakeReader
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


def test_decisions_and_costs_of_both_lazy_parts_are_recorded() -> None:
    pytest.importorskip("llama_index.core")
    pytest.importorskip("langchain_core")
    from langchain_core.runnables import RunnableLambda

    from langchain_surerag import LazyRetrievalChain
    from llama_index_surerag import LazyRetrievalQueryEngine, UncertaintyRewriteQueryEngine
    from tests.llama_index.corpus import UNKNOWN, index, knowing

    search = RunnableLambda(lambda question: [])
    chain = LazyRetrievalChain(knowing(), search, "Ada was born in Velm.")
    systems = {
        "chain": chain,
        "engine": LazyRetrievalQueryEngine.from_args(index(), knowing()),
        "rewrite": UncertaintyRewriteQueryEngine.from_args(index(), knowing()),
    }
    run = evaluate(systems, [("Where was Ada born?", "Velm"), (UNKNOWN, "Mir")])
    rows = {(row.system, row.question.text): row.answer for row in run.rows}
    assert rows["engine", UNKNOWN].acted
    for answer in rows.values():
        assert answer is not None
        assert answer.uncertainty is not None
        assert answer.acted is not None
        assert answer.finish == "stop"
        assert answer.usage is not None
        assert answer.usage.requests > 0


async def test_both_beside_a_coroutine_in_a_running_loop() -> None:
    async def coroutine(question: str) -> str:
        return "Velm"

    run = await aevaluate({"chain": runnable(), "coroutine": coroutine}, QUESTIONS)
    assert sum(run.values("chain", "exact_match").values()) == 2
    assert sum(run.values("coroutine", "exact_match").values()) == 1


@pytest.mark.parametrize(
    "kind", ["model", "certain", "parsed", "opinion", "selected", "lazy", "lazy certain"]
)
@pytest.mark.parametrize("asynchronously", [False, True])
async def test_every_component_of_langchain_that_answers_reports_all_its_calls_once(
    kind: str, asynchronously: bool
) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.runnables import RunnableLambda

    from langchain_surerag import CertaintyChain, ChatReader, LazyRetrievalChain, SelectiveAnswer
    from surerag import AbstentionPolicy, AreYouSure

    reader = FakeReader(["I cannot say", "Velm"], entropy=2.0)
    model = ChatReader(reader)
    policy = AbstentionPolicy(3.0, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
    lazy = LazyRetrievalChain(model, RunnableLambda(lambda question: []), "Ada lives in Orun.")
    system: Any = {
        "model": model,
        "certain": CertaintyChain(model),
        "parsed": CertaintyChain(model | StrOutputParser()),
        "opinion": CertaintyChain(model, second_opinion=AreYouSure(model)),
        "selected": SelectiveAnswer(model | StrOutputParser(), policy),
        "lazy": lazy,
        "lazy certain": CertaintyChain(lazy, second_opinion=AreYouSure(model)),
    }[kind]
    ask = (lambda question: system.ainvoke(question)) if asynchronously else system
    run = await aevaluate({"one": ask}, QUESTIONS[:1])
    spent = reader.usage
    assert run.rows[0].error == "" and spent.requests > 0
    assert [*run.values("one", "calls").values()] == [spent.requests]
    assert [*run.values("one", "tokens").values()] == [spent.prompt_tokens + spent.completion_tokens]
