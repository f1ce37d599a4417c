"""surerag's parts as nodes of a graph, with a checkpointer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from langchain_surerag import (
    ClusterCompressor,
    LazyRetrievalChain,
    RAGState,
    UncertaintyRewriter,
    compression_node,
    lazy_retrieval_node,
    retrieval_node,
    rewriting_node,
)
from surerag import FakeReader
from surerag.encoders import HashingEncoder
from tests.langchain.conftest import chat
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script

OPEN, SHUT = 0.0, 9.0
DRAFT = "DRAFT I am guessing wildly here."
ANSWER = "Ada was born in Velm."
search = RunnableLambda(lambda query: [Document(f"Ada was born in Velm, for {query}", id="ada")])


def say(prompt: Any) -> str:
    return ANSWER if "Velm" in str(prompt) else DRAFT


def lazy_graph(server: FakeOpenAI, threshold: float, **compiled: Any) -> Any:
    chain = LazyRetrievalChain(chat(server), search, "Ada is a painter.", threshold=threshold)
    graph = StateGraph(RAGState).add_node("answer", lazy_retrieval_node(chain))
    return graph.add_edge(START, "answer").add_edge("answer", END).compile(**compiled)


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize(("threshold", "shown"), [(OPEN, ANSWER), (SHUT, DRAFT)])
async def test_a_graph_answers_and_keeps_its_state(
    threshold: float, shown: str, asynchronously: bool
) -> None:
    with FakeOpenAI(Script(say)) as server:
        app = lazy_graph(server, threshold, checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "1"}}
        asked: Any = {"messages": [HumanMessage("Where was Ada born?")]}
        state = await app.ainvoke(asked, config) if asynchronously else app.invoke(asked, config)
        assert state["answer"] == state["messages"][-1].text == shown
        assert state["decision"]["retrieve"] is (threshold == OPEN)
        assert [document.id for document in state["context"]] == ["summary", "ada"][: 1 + (threshold == OPEN)]
        kept = app.get_state(config).values
        assert kept == state
        # The next question belongs to the conversation.
        again: Any = {"messages": [HumanMessage("And when?")]}
        state = await app.ainvoke(again, config) if asynchronously else app.invoke(again, config)
        assert len(state["messages"]) == 4


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize(("threshold", "shown"), [(OPEN, ANSWER), (SHUT, DRAFT)])
async def test_the_message_that_streams_is_the_one_in_the_state(
    threshold: float, shown: str, asynchronously: bool
) -> None:
    with FakeOpenAI(Script(say)) as server:
        app = lazy_graph(server, threshold)
        asked: Any = {"question": "Where was Ada born?"}
        modes: Any = ["messages", "values"]
        if asynchronously:
            seen = [item async for item in app.astream(asked, stream_mode=modes)]
        else:
            seen = await asyncio.to_thread(lambda: list(app.stream(asked, stream_mode=modes)))
    messages = [item[0] for mode, item in seen if mode == "messages"]
    assert "".join(message.text for message in messages) == shown
    assert {message.id for message in messages} == {seen[-1][1]["messages"][-1].id}


async def test_rewriting_retrieving_and_compressing() -> None:
    rewriter = UncertaintyRewriter(FakeReader(lambda _: "Velm"), search)
    compressor = ClusterCompressor(FakeReader(lambda _: "Velm."), HashingEncoder(), pass_below=0)
    graph = StateGraph(RAGState)
    graph.add_sequence(
        [
            ("rewrite", rewriting_node(rewriter)),
            ("retrieve", retrieval_node(search)),
            ("compress", compression_node(compressor)),
        ]
    )
    app = graph.add_edge(START, "rewrite").compile()
    for state in (
        app.invoke({"question": "Where?"}),
        await app.ainvoke({"messages": [HumanMessage("Where?")]}),
    ):
        assert state["query"] == "Where?"
        assert [document.page_content for document in state["context"]] == ["Velm."]
        assert "Where?" in compressor.llm.prompts[-1]
    updates = [update async for update in app.astream({"question": "Where?"}, stream_mode="updates")]
    assert [next(iter(update)) for update in updates] == ["rewrite", "retrieve", "compress"]
