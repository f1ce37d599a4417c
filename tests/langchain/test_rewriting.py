"""UncertaintyRewriteRetriever and UncertaintyRewriter in LangChain's own pipelines."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langchain_classic.chains import HypotheticalDocumentEmbedder, create_retrieval_chain
from langchain_classic.retrievers import EnsembleRetriever, MergerRetriever, MultiQueryRetriever
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps, loads
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableBranch, RunnableLambda, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import create_retriever_tool
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langchain_surerag import (
    DenseRefiner,
    LazyRetrievalChain,
    SelectiveAnswer,
    UncertaintyRewriter,
    UncertaintyRewriteRetriever,
    create_lazy_retrieval_tool,
)
from langchain_surerag.documents import Decision
from surerag import FakeReader
from surerag.calibration import AbstentionPolicy
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    InputError,
    MissingServiceError,
    ServiceError,
)
from surerag.readers.fake import reply
from tests.langchain.conftest import KEY, HashEmbeddings, chat, search
from tests.langchain.test_graph import Tree
from tests.servers.fake_openai import FakeOpenAI

QUESTION = "Where was the painter born?"
REWRITTEN = "Where was Ada born?"
PASSAGE = PromptTemplate.from_template("Write a passage that answers: {question}")


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


class Tenants(BaseRetriever):
    """A retriever that the config can limit."""

    tenant: str = "B"

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(self.tenant)]


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_the_config_reaches_the_inner_retriever(asynchronously: bool) -> None:
    inner = Tenants().configurable_fields(tenant=ConfigurableField(id="tenant"))
    config: Any = {"configurable": {"tenant": "A"}, "tags": ["mine"]}
    reader = FakeReader(lambda _: "Orun", logprob=-0.01)
    retriever = UncertaintyRewriteRetriever(reader, inner)
    step = UncertaintyRewriter(reader, inner)
    chain = LazyRetrievalChain(FakeReader(["Velm"] * 9, entropy=2.0), inner, "Ada.")
    asking = create_lazy_retrieval_tool(chain, "ask", "Answers.")
    assert [spec.id for spec in retriever.config_specs] == ["tenant"]
    if asynchronously:
        found = await retriever.ainvoke(QUESTION, config)
        await step.ainvoke(QUESTION, config)
        answer = await asking.ainvoke(tool_call(), config)
    else:
        found = retriever.invoke(QUESTION, config)
        step.invoke(QUESTION, config)
        answer = asking.invoke(tool_call(), config)
    assert [document.page_content for document in found] == ["A"]
    assert [document.page_content for document in answer.artifact["context"]] == ["Ada.", "A"]
    assert all("[1] A\n" in prompt for prompt in reader.prompts) and len(reader.prompts) == 2


def tool_call() -> Any:
    return {"name": "ask", "args": {"question": QUESTION}, "id": "1", "type": "tool_call"}


# As a step.


def step_over(reader: Any, **options: Any) -> UncertaintyRewriter:
    return UncertaintyRewriter(reader, RunnableLambda(corpus), **options)


HISTORY = [("human", "Who is Ada?"), ("ai", "A painter.")]
INPUTS: Any = [
    QUESTION,
    HumanMessage(QUESTION),
    {"question": QUESTION},
    {"input": QUESTION, "chat_history": HISTORY},
    [*HISTORY, ("human", QUESTION)],
    {"messages": [*HISTORY, ("human", QUESTION)]},
]


@pytest.mark.parametrize("value", INPUTS)
async def test_a_question_becomes_a_better_one(value: Any) -> None:
    step = step_over(uncertain_reader())
    assert step.invoke(value) == await step.ainvoke(value) == REWRITTEN
    assert step.batch([value] * 3) == await step.abatch([value] * 3) == [REWRITTEN] * 3
    certain = step_over(FakeReader(lambda _: "Orun", logprob=-0.01))
    assert certain.invoke(value) == await certain.ainvoke(value) == QUESTION
    assert step.invoke(value, threshold=math.inf) == QUESTION


async def test_the_rewrite_may_be_what_is_answered() -> None:
    def answer(prompt: str) -> Any:
        if "Rewrite" in prompt:
            return REWRITTEN
        return reply("Velm", logprobs=-0.01) if REWRITTEN in prompt else reply("Orun", logprobs=-1.5)

    same = RunnableLambda(lambda query: [Document("Velm has a birthplace.", id="v")])
    for option, query in (("original", QUESTION), ("rewrite", REWRITTEN)):
        step = UncertaintyRewriter(FakeReader(answer), same, answer=option)
        assert step.invoke(QUESTION) == await step.ainvoke(QUESTION) == query
        retriever = UncertaintyRewriteRetriever(FakeReader(answer), same, answer=option)
        for documents in (retriever.invoke(QUESTION), await retriever.ainvoke(QUESTION)):
            assert documents[0].metadata["uncertainty_rewrite"]["query"] == query


async def test_a_conversation_reaches_reader_and_rewriter() -> None:
    reader = uncertain_reader()
    step_over(reader).invoke({"input": QUESTION, "history": HISTORY})
    assert len(reader.prompts) == 3
    assert all("A painter." in prompt for prompt in reader.prompts)


async def test_in_front_of_retrievers() -> None:
    search, step = RunnableLambda(corpus), step_over(uncertain_reader())
    value: Any = {"input": QUESTION, "chat_history": HISTORY}
    answer = RunnableLambda(lambda state: state["context"][0].page_content)
    aware = RunnableBranch(
        (lambda value: not value.get("chat_history"), RunnableLambda(lambda value: value["input"]) | search),
        step | search,
    )
    for chain in (
        create_retrieval_chain(step | search, answer),
        create_retrieval_chain(aware, answer),
        RunnablePassthrough.assign(query=step)
        | RunnablePassthrough.assign(context=RunnableLambda(lambda value: value["query"]) | search)
        | RunnablePassthrough.assign(answer=answer),
    ):
        for output in (chain.invoke(value), await chain.ainvoke(value)):
            assert output["answer"] == "Ada was born in Velm."
        assert [piece async for piece in chain.astream(value)]
    histories: dict[str, InMemoryChatMessageHistory] = {}
    remembering: Any = RunnableWithMessageHistory(
        create_retrieval_chain(step | search, answer),
        lambda session_id: histories.setdefault(session_id, InMemoryChatMessageHistory()),
        input_messages_key="input",
        history_messages_key="chat_history",
        output_messages_key="answer",
    )
    config: Any = {"configurable": {"session_id": "1"}}
    assert remembering.invoke({"input": QUESTION}, config)["answer"] == "Ada was born in Velm."
    # What was said is in the prompts now, so that the reader is certain, and the question stays.
    assert remembering.invoke({"input": QUESTION}, config)["answer"] == "The painter left early."
    assert len(histories["1"].messages) == 4


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_runs_and_decisions_of_the_step(server: FakeOpenAI, asynchronously: bool) -> None:
    server.answers = lambda prompt: REWRITTEN if "Rewrite" in prompt else "Velm"
    server.logprob = -1.5
    search, tree = RunnableLambda(corpus, name="search"), Tree()
    chain: Any = (
        UncertaintyRewriter(chat(server), search, verify=False).with_config(run_name="rewriter") | search
    ).with_config(run_name="chain", callbacks=[tree])
    await chain.ainvoke(QUESTION) if asynchronously else chain.invoke(QUESTION)
    assert sorted(tree.paths) == sorted(
        ["/chain", "/chain/search", "/chain/rewriter"]
        + ["/chain/rewriter/search"] * 2
        + ["/chain/rewriter/ChatOpenAI"] * 3
    )
    events = [event async for event in chain.astream_events(QUESTION, version="v2")]
    decided = next(event for event in events if event["name"] == "dynqr.decided")
    assert decided["data"]["query"] == REWRITTEN and decided["data"]["acted"]
    # LangGraph streams none of its words.
    assert all("nostream" in event["tags"] for event in events if event["event"] == "on_chat_model_stream")


async def test_a_step_is_awaited_and_falls_back(server: FakeOpenAI, monkeypatch: Any) -> None:
    server.answers = lambda prompt: REWRITTEN if "Rewrite" in prompt else "Velm"
    server.logprob = -1.5
    model = chat(server)
    broken = step_over(FakeReader([ServiceError("down")] * 9))
    assert await broken.with_fallbacks([RunnablePassthrough()]).ainvoke(QUESTION) == QUESTION

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the sync method was called")

    for name in ("_generate", "_stream"):
        monkeypatch.setattr(type(model), name, refuse)
    assert await step_over(model, verify=False).ainvoke(QUESTION) == REWRITTEN


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_batches_return_exceptions_of_what_fails(asynchronously: bool) -> None:
    def answer(prompt: str) -> Any:
        if "fail" in prompt:
            raise ServiceError("down")
        return reply("Velm", logprobs=-0.01)

    reader, search = FakeReader(answer, entropy=0.1), RunnableLambda(corpus)
    chain = LazyRetrievalChain(reader, search, "Ada.")
    always = AbstentionPolicy(9.0, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
    down = RunnableLambda(lambda query: corpus(query) if "fail" not in query else 1 / 0)
    parts: list[Any] = [
        step_over(reader),
        retriever_over(reader),
        chain,
        SelectiveAnswer(chain, always),
        DenseRefiner(reader, HashingEncoder(), entailer=ExactEntailer(), retriever=down).as_runnable(),
        create_lazy_retrieval_tool(chain, "ask", "Answers."),
    ]
    for part in parts:
        values: list[Any] = ["one", "fail", "two"]
        if isinstance(part, RunnableLambda):
            values = [{"documents": [Document("Velm")], "query": value} for value in values]
            values[1] = {"documents": [Document("Velm")]}
        config: Any = {"max_concurrency": 2}
        if asynchronously:
            outputs = await part.abatch(values, config, return_exceptions=True)
        else:
            outputs = part.batch(values, config, return_exceptions=True)
        assert [isinstance(output, Exception) for output in outputs] == [False, True, False]


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
    assert len(set(UncertaintyRewriteRetriever.model_fields) - {"name", "tags", "metadata", "detached"}) <= 16


@pytest.mark.parametrize("kind", [UncertaintyRewriteRetriever, UncertaintyRewriter])
def test_dumps_and_loads(server: FakeOpenAI, kind: Any) -> None:
    named = {"tags": ["mine"]} if kind is UncertaintyRewriteRetriever else {}
    text = dumps(kind(chat(server), search, threshold=0.7, **named))
    assert KEY not in text
    loaded: Any = loads(
        text,
        allowed_objects=[kind, type(chat(server))],
        valid_namespaces=["langchain_surerag", "langchain_openai"],
        secrets_map={"OPENAI_API_KEY": KEY},
    )
    with pytest.raises(MissingServiceError, match="attach"):
        loaded.invoke("?")
    assert loaded.attach(retriever=search).invoke("?")
    assert loaded.threshold == 0.7
    assert getattr(loaded, "tags", None) == named.get("tags")


@pytest.mark.parametrize("query", ["", " "])
async def test_a_query_without_words_is_an_error(query: str) -> None:
    for part in (
        UncertaintyRewriteRetriever(FakeReader(["Velm"]), search),
        UncertaintyRewriter(FakeReader(["Velm"]), search),
    ):
        with pytest.raises(InputError, match="the question is empty"):
            part.invoke(query)
        with pytest.raises(InputError, match="the question is empty"):
            await part.ainvoke(query)


def test_k_is_top_n_where_a_retriever_is_built(documents: list[Document]) -> None:
    retriever = retriever_over(uncertain_reader(), k=1)
    assert (retriever.top_n, len(retriever.invoke(QUESTION))) == (1, 1)
    assert retriever.with_options(k=2).top_n == 2


def test_a_rewrite_is_searched_through_hypothetical_documents_as_well() -> None:
    """HyDE is an embedding model in LangChain, which writes a passage for whatever is searched."""
    writer = FakeListChatModel(responses=["Somebody left early.", "Ada was born somewhere."])
    hyde = HypotheticalDocumentEmbedder.from_llm(writer, HashEmbeddings(), custom_prompt=PASSAGE)
    store = InMemoryVectorStore(HashEmbeddings())
    store.add_documents(
        [Document("The painter left early.", id="The"), Document("Ada was born in Velm.", id="Ada")]
    )
    store.embedding = hyde
    retriever = UncertaintyRewriteRetriever(uncertain_reader(), store.as_retriever(search_kwargs={"k": 1}))
    [found] = retriever.invoke(QUESTION)
    assert found.id == "Ada"
    assert found.metadata["uncertainty_rewrite"]["query"] == REWRITTEN
