"""UncertaintyRewriteRetriever in LangChain's own pipelines."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.retrievers import EnsembleRetriever, MergerRetriever, MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps, loads
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langchain_surerag import UncertaintyRewriteRetriever
from langchain_surerag.documents import Decision
from surerag import FakeReader
from surerag.errors import CapabilityError, ConfigurationError, MissingServiceError
from surerag.readers.fake import reply
from tests.langchain.conftest import KEY, chat, search
from tests.servers.fake_openai import FakeOpenAI

QUESTION = "Where was the painter born?"
REWRITTEN = "Where was Ada born?"


def corpus(query: str) -> list[Document]:
    text = "Ada was born in Velm." if "Ada" in query else "The painter left early."
    return [Document(text, id=text[:3], metadata={"n": [1]}), Document("Tin.", id="t")]


def uncertain_reader() -> FakeReader:
    def answer(prompt: str) -> Any:
        if "Rewrite" in prompt:
            return REWRITTEN
        return reply("Velm", logprobs=-0.01) if "born in Velm" in prompt else reply("Orun", logprobs=-1.5)

    return FakeReader(answer)


def retriever_over(reader: Any, **options: Any) -> UncertaintyRewriteRetriever:
    return UncertaintyRewriteRetriever(reader, RunnableLambda(corpus), **options)


async def test_an_uncertain_query_is_rewritten() -> None:
    retriever = retriever_over(uncertain_reader())
    for documents in (retriever.invoke(QUESTION), await retriever.ainvoke(QUESTION)):
        assert [document.id for document in documents] == ["Ada", "t"]
        note = documents[0].metadata["uncertainty_rewrite"]
        assert (note["query"], note["rewritten"], note["acted"], note["finish"]) == (
            REWRITTEN,
            True,
            True,
            "stop",
        )
        assert note["original_uncertainty"] > note["threshold"] > note["uncertainty"]
        assert documents[0].metadata["n"] == [1]


async def test_a_certain_query_is_not() -> None:
    retriever = retriever_over(FakeReader(lambda _: "Orun", logprob=-0.01), decision_key=None)
    for documents in (retriever.invoke(QUESTION), await retriever.ainvoke(QUESTION)):
        assert [document.id for document in documents] == ["The", "t"]
        assert documents[0].metadata == {"n": [1]}


def test_options_for_one_call() -> None:
    retriever = retriever_over(uncertain_reader())
    assert len(retriever.invoke(QUESTION, k=1)) == 1
    assert len(retriever.invoke(QUESTION, top_n=1)) == 1
    note = retriever.invoke(QUESTION, threshold=float("inf"))[0].metadata["uncertainty_rewrite"]
    assert not note["acted"]
    with pytest.raises(ConfigurationError, match="not_there"):
        retriever.invoke(QUESTION, not_there=1)
    field = retriever.configurable_fields(top_n=ConfigurableField(id="n"))
    assert len(field.invoke(QUESTION, {"configurable": {"n": 1}})) == 1


async def test_in_pipelines() -> None:
    retriever = retriever_over(uncertain_reader())
    llm = FakeListChatModel(responses=["In Velm."])
    prompt = ChatPromptTemplate.from_template("{context} {question}")
    chain = {"context": retriever, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()
    assert chain.invoke(QUESTION) == await chain.ainvoke(QUESTION) == "In Velm."
    answer = RunnableLambda(lambda state: state["context"][0].page_content)
    assert create_retrieval_chain(retriever, answer).invoke({"input": QUESTION})["answer"].startswith("Ada")
    for around in (
        EnsembleRetriever(retrievers=[retriever, RunnableLambda(corpus)]),
        MergerRetriever(retrievers=[retriever, retriever]),
    ):
        assert around.invoke(QUESTION)
        assert await around.ainvoke(QUESTION)
    tool = create_retriever_tool(retriever, "find", "Finds.", response_format="content_and_artifact")
    assert "Velm" in tool.invoke({"query": QUESTION})
    assert [len(one) for one in retriever.batch([QUESTION] * 3)] == [2] * 3


def test_multi_query_recognises_duplicates() -> None:
    queries = MultiQueryRetriever.from_llm(
        retriever_over(uncertain_reader()), FakeListChatModel(responses=[f"{QUESTION}\n{REWRITTEN}"])
    )
    assert sorted(document.id or "" for document in queries.invoke(QUESTION)) == ["Ada", "t"]


def test_decisions_do_not_count_when_documents_are_compared() -> None:
    one, two = Decision(score=1.0), Decision(score=2.0)
    assert one == two
    assert one != {"label": 2.0}
    assert one != 7
    documents = retriever_over(uncertain_reader()).invoke(QUESTION)
    stored: Any = JsonPlusSerializer().loads_typed(JsonPlusSerializer().dumps_typed(documents))
    certain = retriever_over(uncertain_reader(), threshold=-math.inf).invoke(QUESTION)
    assert certain[0].metadata["uncertainty_rewrite"]["threshold"] is None
    assert certain == stored and stored == certain


async def test_over_a_server(server: FakeOpenAI) -> None:
    server.logprob = -1.5
    retriever = retriever_over(chat(server), threshold=0.5)
    assert retriever.invoke(QUESTION)[0].metadata["uncertainty_rewrite"]["acted"]
    server.fault = "empty answer"
    note = (await retriever.ainvoke(QUESTION))[0].metadata["uncertainty_rewrite"]
    assert note["finish"] == "empty"


def test_construction_says_what_is_wrong() -> None:
    for settings, error in (
        ({"llm": None}, MissingServiceError),
        ({"retriever": None}, MissingServiceError),
        ({"metric": "guess"}, ConfigurationError),
        ({"n_candidates": 0}, ConfigurationError),
        ({"llm": FakeListChatModel(responses=["a"])}, CapabilityError),
    ):
        with pytest.raises(error):
            UncertaintyRewriteRetriever(**{"llm": FakeReader(["a"]), "retriever": search, **settings})
    assert len(set(UncertaintyRewriteRetriever.model_fields) - {"name", "tags", "metadata", "detached"}) <= 15


def test_dumps_and_loads(server: FakeOpenAI) -> None:
    text = dumps(UncertaintyRewriteRetriever(chat(server), search, threshold=0.7, tags=["mine"]))
    assert KEY not in text
    loaded: Any = loads(
        text,
        allowed_objects=[UncertaintyRewriteRetriever, type(chat(server))],
        valid_namespaces=["langchain_surerag", "langchain_openai"],
        secrets_map={"OPENAI_API_KEY": KEY},
    )
    with pytest.raises(MissingServiceError, match="attach"):
        loaded.invoke("?")
    assert loaded.attach(retriever=search).invoke("?")
    assert (loaded.threshold, loaded.tags) == (0.7, ["mine"])
