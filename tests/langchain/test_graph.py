"""Runs, streams and graphs: who sees what, under which parent, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, TypedDict

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.callbacks import (
    AsyncCallbackHandler,
    BaseCallbackHandler,
    UsageMetadataCallbackHandler,
)
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.runnables.utils import AddableDict
from langchain_core.tracers.base import BaseTracer
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from langchain_surerag import (
    ClusterCompressor,
    DenseRefiner,
    LazyRetrievalChain,
    SelectiveAnswer,
    UncertaintyRewriteRetriever,
)
from surerag import EntropyGate, FakeReader
from surerag.calibration import AbstentionPolicy, scope_of
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError
from surerag.readers.fake import reply
from tests.langchain.conftest import SUMMARY, SURE, UNSURE, chat, search
from tests.servers.fake_openai import FakeOpenAI

DRAFT = "I am only a draft that nobody may see at all."
FINAL = "I am the final answer, after retrieval, of some words."
SAMPLED = {"gate": "semantic_entropy", "n_samples": 2}
KEPT = "I am a draft that was kept, and so the answer of it."


class State(TypedDict):
    question: str
    answer: str


class Tree(BaseTracer):
    """Collects runs, each as its path of names."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []
        self.outputs: dict[str, Any] = {}

    def _persist_run(self, run: Any) -> None:
        self._walk(run, "")

    def _walk(self, run: Any, before: str) -> None:
        path = f"{before}/{run.name}"
        self.paths.append(path)
        self.outputs[run.name] = run.outputs
        for child in run.child_runs:
            self._walk(child, path)


def answers(prompt: str) -> str:
    return FINAL if "Additional details" in prompt else DRAFT


def chain_over(server: FakeOpenAI, **options: Any) -> LazyRetrievalChain:
    return LazyRetrievalChain(chat(server), search, SUMMARY, threshold=0.5, **options)


def graph_of(runnable: Any) -> Any:
    async def aanswer(state: State) -> dict[str, Any]:
        return {"answer": (await runnable.ainvoke({"question": state["question"]}))["answer"]}

    def answer(state: State) -> dict[str, Any]:
        return {"answer": runnable.invoke({"question": state["question"]})["answer"]}

    graph = StateGraph(State)
    graph.add_node("ask", RunnableLambda(answer, afunc=aanswer))
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    return graph.compile()


async def tokens_of(events: AsyncIterator[Any]) -> str:
    return "".join(
        [event["data"]["chunk"].content async for event in events if event["event"] == "on_chat_model_stream"]
    )


@pytest.mark.parametrize(("logprob", "expected"), [(SURE, KEPT), (UNSURE, FINAL)])
async def test_langgraph_and_events_stream_the_answer_alone(logprob: float, expected: str) -> None:
    with FakeOpenAI(
        lambda prompt: expected if logprob == SURE else answers(prompt), logprob=logprob
    ) as server:
        chain = chain_over(server)
        graph = graph_of(chain)
        inputs = {"question": "Where?"}
        texts = [message.content for message, _ in graph.stream(inputs, stream_mode="messages")]
        assert "".join(texts) == expected
        assert len(texts) > 3
        texts = [message.content async for message, _ in graph.astream(inputs, stream_mode="messages")]
        assert "".join(texts) == expected
        assert await tokens_of(chain.astream_events("Where?", version="v2")) == expected


class Tokens(BaseCallbackHandler):
    """Shows tokens, as StreamingStdOutCallbackHandler does."""

    shown = ""

    def on_llm_new_token(self, token: str, **_: Any) -> None:
        self.shown += token


class AsyncTokens(AsyncCallbackHandler):
    shown = ""

    async def on_llm_new_token(self, token: str, **_: Any) -> None:
        self.shown += token


@pytest.mark.parametrize(("logprob", "expected"), [(SURE, KEPT), (UNSURE, FINAL)])
async def test_a_handler_shows_the_answer_alone_and_counts_drafts(logprob: float, expected: str) -> None:
    with FakeOpenAI(
        lambda prompt: expected if logprob == SURE else answers(prompt), logprob=logprob
    ) as server:
        chain, shows, counts = chain_over(server), Tokens(), UsageMetadataCallbackHandler()
        list(chain.stream("Where?", {"callbacks": [shows, counts]}))
        assert shows.shown == expected
        assert counts.usage_metadata["toy"]["output_tokens"] >= len(expected.split())
        for handler in (Tokens(), AsyncTokens()):
            assert [chunk async for chunk in chain.astream("Where?", {"callbacks": [handler]})]
            assert handler.shown == expected


REFINER = DenseRefiner(FakeReader(lambda prompt: prompt[-20:]), HashingEncoder(), top_n=2)
INTERRUPTED: dict[str, Any] = {
    "summaries": lambda asks: LazyRetrievalChain(FakeReader(lambda _: DRAFT, entropy=0.1), search, asks),
    "rewrite": lambda asks: UncertaintyRewriteRetriever(
        FakeReader(lambda prompt: reply(DRAFT, logprobs=-0.1 if "approved" in prompt else -3.0)),
        RunnableLambda(lambda query: (search if query == "Where?" else asks).invoke(query)),
    ),
    "candidates": lambda asks: ContextualCompressionRetriever(
        base_compressor=REFINER.model_copy(update={"retriever": asks}), base_retriever=search
    ),
}


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize("part", INTERRUPTED)
async def test_what_interrupts_a_graph_is_no_failure(part: str, asynchronously: bool) -> None:
    asks = RunnableLambda(lambda query: [Document(f"This was {interrupt(query)}.")])
    method = INTERRUPTED[part](asks)

    async def aask(state: State) -> dict[str, Any]:
        return {"answer": str(await method.ainvoke(state["question"]))}

    def ask(state: State) -> dict[str, Any]:
        return {"answer": str(method.invoke(state["question"]))}

    graph = StateGraph(State)
    graph.add_node("ask", RunnableLambda(ask, afunc=aask))
    graph.add_edge(START, "ask")
    compiled = graph.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    inputs: Any = ({"question": "Where?"}, Command(resume="approved"))
    states = [
        await compiled.ainvoke(value, config) if asynchronously else compiled.invoke(value, config)
        for value in inputs
    ]
    assert "__interrupt__" in states[0]
    assert "This was approved." in states[1]["answer"]


ABSTAINS = "I do not know."
READS_ALL: Any = {"gate": EntropyGate(aggregate="max")}


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize(
    ("options", "logprob", "first", "expected"),
    [
        ({}, SURE, ABSTAINS, FINAL),
        ({"n_tokens": 2}, SURE, ABSTAINS, FINAL),
        ({"n_tokens": 2}, SURE, "I do not doubt it.", "I do not doubt it."),
        (READS_ALL, UNSURE, DRAFT, FINAL),
        (READS_ALL, SURE, DRAFT, DRAFT),
        (SAMPLED, SURE, DRAFT, DRAFT),
        ({"gate": "abstention"}, SURE, DRAFT, DRAFT),
    ],
)
async def test_what_is_read_before_the_decision_is_not_shown(
    options: Any, logprob: float, first: str, expected: str, asynchronously: bool
) -> None:
    with FakeOpenAI(
        lambda prompt: FINAL if "Additional details" in prompt else first, logprob=logprob
    ) as server:
        chain = chain_over(server, **options)
        inputs = {"question": "Where?"}
        for app in (graph_of(chain), graph_of(RunnableLambda(list_of(chain, asynchronously)))):
            if asynchronously:
                shown = [message async for message, _ in app.astream(inputs, stream_mode="messages")]
            else:
                shown = [message for message, _ in app.stream(inputs, stream_mode="messages")]
            assert "".join(message.text for message in shown) == expected


def list_of(chain: Any, asynchronously: bool) -> Any:
    """Return a function that adds up what a chain streams."""

    def add(value: Any) -> Any:
        return sum(chain.stream(value), start=AddableDict())

    async def aadd(value: Any) -> Any:
        return sum([chunk async for chunk in chain.astream(value)], start=AddableDict())

    return aadd if asynchronously else add


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_every_run_has_the_right_parent(asynchronously: bool) -> None:
    with FakeOpenAI(answers, logprob=UNSURE) as server:
        tree = Tree()
        chain = chain_over(server)
        retriever = RunnableLambda(search.invoke, name="my search")
        chain = chain.with_options(retriever=retriever)
        config: Any = {"callbacks": [tree]}
        if asynchronously:
            await chain.ainvoke("Where?", config)
        else:
            chain.invoke("Where?", config)
        top = "/LazyRetrievalChain"
        assert {path for path in tree.paths if path.count("/") < 3} == {
            top,
            f"{top}/ChatOpenAI",
            f"{top}/my search",
        }
        assert tree.outputs["LazyRetrievalChain"]["answer"] == FINAL
        assert len([path for path in tree.paths if path.endswith("ChatOpenAI")]) == 2


async def test_decisions_are_custom_events() -> None:
    with FakeOpenAI(answers, logprob=UNSURE) as server:
        names = [
            event["name"]
            async for event in chain_over(server).astream_events("Where?", version="v2")
            if event["event"] == "on_custom_event"
        ]
        assert names == ["lazy_rag.gate", "lazy_rag.answering"]


class Custom(BaseCallbackHandler):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_custom_event(self, name: str, data: Any, **_: Any) -> None:
        self.events.append((name, data))


async def test_compressors_and_retrievers_tell_under_the_run_of_whoever_calls() -> None:
    with FakeOpenAI(lambda _: "Ada was born in Velm.", logprob=UNSURE) as server:
        compressor = ClusterCompressor(chat(server), HashingEncoder(), variant="copy", min_tokens=0)
        inner = RunnableLambda(
            lambda _: compressor.compress_documents([Document("Ada was born in Velm.")], "Where?"),
            name="inner",
        )
        tree = Tree()
        inner.invoke("?", {"callbacks": [tree]})
        assert tree.paths == ["/inner", "/inner/ChatOpenAI"]
        retriever = UncertaintyRewriteRetriever(chat(server), search)
        handler, tree = Custom(), Tree()
        retriever.invoke("?", {"callbacks": [handler, tree]})
        await retriever.ainvoke("?", {"callbacks": [handler, tree]})
        assert any(name.startswith("dynqr") for name, _ in handler.events)
        assert all(path.startswith("/UncertaintyRewriteRetriever") for path in tree.paths)
        assert any(path.endswith("ChatOpenAI") for path in tree.paths)


# Abstaining.


def policy(threshold: float) -> AbstentionPolicy:
    return AbstentionPolicy(threshold, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))


@pytest.mark.parametrize("logprob", [SURE, UNSURE])
async def test_what_is_withheld_is_neither_streamed_nor_in_the_output(logprob: float) -> None:
    with FakeOpenAI(answers, logprob=logprob) as server:
        selective = SelectiveAnswer(chain_over(server), policy(-1.0))
        graph = graph_of(selective)
        inputs = {"question": "Where?"}
        for mode in ("messages", "updates", "values"):
            assert not leaks([*graph.stream(inputs, stream_mode=mode)])
            assert not leaks([piece async for piece in graph.astream(inputs, stream_mode=mode)])
        assert not leaks([event async for event in selective.astream_events("Where?", version="v2")])
        tree = Tree()
        output = selective.invoke("Where?", {"callbacks": [tree]})
        assert output["answer"] == "I do not know."
        assert output["abstained"]
        assert tree.paths[0] == "/SelectiveAnswer"
        assert not leaks(tree.outputs["SelectiveAnswer"])
        assert "/SelectiveAnswer/LazyRetrievalChain" in tree.paths


def leaks(texts: Any) -> bool:
    return DRAFT[5:20] in str(texts) or FINAL[5:20] in str(texts)


async def test_what_is_certain_enough_is_answered() -> None:
    with FakeOpenAI(answers, logprob=SURE) as server:
        selective = SelectiveAnswer(chain_over(server), policy(0.5))
        for output in (selective.invoke("Where?"), await selective.ainvoke("Where?")):
            assert output["answer"] == DRAFT
            assert not output["abstained"]
            assert output["probability"] == pytest.approx(0.9, abs=0.02)
        with pytest.raises(InputError, match="expected an answer as text"):
            SelectiveAnswer(RunnableLambda(lambda _: {"text": "a"}), policy(0.5)).invoke("?")


@pytest.mark.parametrize("fault", ["cut", "withheld"])
def test_an_answer_that_is_not_whole_is_withheld(fault: str) -> None:
    with FakeOpenAI(answers, logprob=SURE) as server:
        server.fault = fault
        assert SelectiveAnswer(chain_over(server), policy(0.9)).invoke("Where?")["abstained"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda chain: chain,
        lambda chain: chain.with_config(tags=["mine"]).with_retry(),
        lambda chain: RunnablePassthrough() | chain,
        lambda chain: RunnableLambda(lambda _: {}).with_fallbacks([chain]),
    ],
)
def test_a_policy_of_another_gate_is_refused(wrap: Any) -> None:
    with FakeOpenAI(answers, logprob=SURE) as server:
        chain = chain_over(server)
        other = replace(policy(0.5), scope=scope_of(chain.with_options(gate="margin").core))
        with pytest.raises(ConfigurationError, match="was calibrated for the gate"):
            SelectiveAnswer(wrap(chain), other)


@pytest.mark.parametrize("change", [{"policy": 0.5}, {"chain": 7}, {"abstention": "…"}])
def test_what_is_no_chain_policy_or_abstention_is_refused(change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "chain": LazyRetrievalChain(FakeReader(), search, SUMMARY),
        "policy": policy(0.5),
    }
    with pytest.raises(ConfigurationError, match=r"chain must be a chain|policy must be|abstention is empty"):
        SelectiveAnswer(**arguments | change)


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: model.with_retry()])
@pytest.mark.parametrize(("options", "logprob"), [({}, SURE), ({}, UNSURE), (SAMPLED, SURE)])
async def test_a_graph_whose_node_returns_messages_shows_the_answer_once(
    options: Any, logprob: float, wrap: Any, asynchronously: bool
) -> None:
    with FakeOpenAI(answers, logprob=logprob) as server:
        chain = LazyRetrievalChain(wrap(chat(server)), search, SUMMARY, threshold=0.5, **options)

        def ask(state: MessagesState) -> Any:
            return {"messages": [chain.invoke(state["messages"])["message"]]}

        async def aask(state: MessagesState) -> Any:
            return {"messages": [(await chain.ainvoke(state["messages"]))["message"]]}

        graph = StateGraph(MessagesState)
        graph.add_node("ask", RunnableLambda(ask, afunc=aask))
        graph.add_edge(START, "ask")
        app, value = graph.compile(), {"messages": [("human", "Where?")]}
        if asynchronously:
            pieces = [piece async for piece, _ in app.astream(value, stream_mode="messages")]
        else:
            pieces = [piece for piece, _ in app.stream(value, stream_mode="messages")]
        assert "".join(piece.text for piece in pieces) == (FINAL if logprob == UNSURE else DRAFT)
        message = (await app.ainvoke(value))["messages"][-1]
        assert message.response_metadata["surerag"]["retrieval"]["retrieve"] is (logprob == UNSURE)
        if not options:
            first, *others = chain.stream("Where?")
            whole = sum(others, start=first)
            assert whole["message"].text == whole["answer"] and whole["message"].id
