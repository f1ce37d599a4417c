"""What streams and traces show of a method's passes: the answer, never the draft that was thrown away."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any, TypedDict

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tracers.context import collect_runs, register_configure_hook
from langgraph.graph import END, START, StateGraph

from langchain_surerag import LazyRetrievalChain, UncertaintyRewriteRetriever
from tests.langchain.conftest import chat, completions
from tests.langchain.handlers import Seen
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script

OPEN, SHUT = 0.0, 9.0
DRAFT = "DRAFT I am guessing wildly here."
ANSWER = "Ada was born in Velm."
found = RunnableLambda(lambda _: [Document("Ada was born in Velm.")])


def say(prompt: Any) -> str:
    return ANSWER if "Velm" in str(prompt) else DRAFT


class State(TypedDict, total=False):
    question: str
    answer: str


def chain_on(model: Any, threshold: float) -> LazyRetrievalChain:
    return LazyRetrievalChain(model, found, "Ada is a painter.", threshold=threshold, gate_tokens=3)


def graph_of(chain: Any, *, flowing: bool = False) -> Any:
    """One node that asks the chain; sync and async, whole or in pieces."""

    def node(state: State, config: RunnableConfig) -> State:
        if flowing:
            return {
                "answer": "".join(
                    piece.get("answer", "") for piece in chain.stream(state["question"], config)
                )
            }
        return {"answer": chain.invoke(state["question"], config)["answer"]}

    async def anode(state: State, config: RunnableConfig) -> State:
        if flowing:
            pieces = [piece.get("answer", "") async for piece in chain.astream(state["question"], config)]
            return {"answer": "".join(pieces)}
        return {"answer": (await chain.ainvoke(state["question"], config))["answer"]}

    both = RunnableLambda(node, anode)
    return StateGraph(State).add_node("lazy", both).add_edge(START, "lazy").add_edge("lazy", END).compile()


async def messages_of(graph: Any, *, asynchronously: bool) -> list[Any]:
    asked = {"question": "Where was Ada born?"}
    if asynchronously:
        return [item async for item in graph.astream(asked, stream_mode="messages")]
    return await asyncio.to_thread(lambda: list(graph.stream(asked, stream_mode="messages")))


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize("flowing", [False, True])
@pytest.mark.parametrize(("threshold", "shown"), [(OPEN, ANSWER), (SHUT, DRAFT)])
async def test_a_graphs_messages_are_the_answer_alone(
    threshold: float, shown: str, flowing: bool, asynchronously: bool
) -> None:
    with FakeOpenAI(Script(say)) as server:
        graph = graph_of(chain_on(chat(server), threshold), flowing=flowing)
        messages = await messages_of(graph, asynchronously=asynchronously)
    assert "".join(message.content for message, _ in messages) == shown
    assert sum(bool(message.content) for message, _ in messages) > 1
    assert len({message.id for message, _ in messages}) == 1
    assert {tag for _, metadata in messages for tag in metadata["tags"]} == {"surerag:answer"}


@pytest.mark.parametrize("flowing", [False, True])
@pytest.mark.parametrize(("threshold", "shown"), [(OPEN, ANSWER), (SHUT, DRAFT)])
async def test_events_show_the_answer_alone(threshold: float, shown: str, flowing: bool) -> None:
    with FakeOpenAI(Script(say)) as server:
        graph = graph_of(chain_on(chat(server), threshold), flowing=flowing)
        events = [event async for event in graph.astream_events({"question": "Where?"}, version="v2")]
    streamed = [event for event in events if event["event"] == "on_chat_model_stream"]
    assert "".join(event["data"]["chunk"].content for event in streamed) == shown
    assert {event["name"] for event in streamed} == {"surerag:answer"}
    ended = {event["name"]: event for event in events if event["event"] == "on_chat_model_end"}
    assert ended["surerag:answer"]["data"]["output"].content == shown
    assert "nostream" not in ended["surerag:answer"]["tags"]
    if threshold == OPEN:
        assert {"nostream", "surerag:gate"} <= set(ended["surerag:gate"]["tags"])
    else:
        assert ended.keys() == {"surerag:answer"}


async def test_a_kept_draft_flows_while_it_is_generated() -> None:
    with FakeOpenAI(Script(lambda _: DRAFT, logprob=-0.001), hold_after=4) as server:
        graph = graph_of(chain_on(chat(server), SHUT))
        messages = graph.astream({"question": "Where?"}, stream_mode="messages")
        shown = ""
        async for message, _ in messages:
            shown += message.content
            if shown.startswith("DRAFT I"):
                assert not server.streams[0].closed_early
                server.release()
        assert shown == DRAFT


class AsyncSeen(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.loops: set[Any] = set()

    async def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self.tokens.append(token)
        self.loops.add(asyncio.get_running_loop())


@pytest.mark.parametrize("make", [chat, completions])
@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_a_gate_that_opens_ends_its_run_well(make: Any, way: str) -> None:
    with FakeOpenAI(Script(say)) as server:
        chain = chain_on(make(server), OPEN)
        seen = Seen()
        config: Any = {"callbacks": [seen]}
        await _asked(chain, way, config)
        assert seen.calls == [
            ("start", "surerag:gate", "nostream", "surerag:gate"),
            ("end",),
            ("start", "surerag:answer", "surerag:answer"),
            ("end",),
        ]
        assert "DRAFT" not in "".join(seen.tokens)


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_a_gate_that_stays_shut_has_one_run(way: str) -> None:
    with FakeOpenAI(Script(say)) as server:
        seen, waiting = Seen(), AsyncSeen()
        model = chat(server, callbacks=[waiting])
        await _asked(chain_on(model, SHUT), way, {"callbacks": [seen]})
    assert seen.calls == [("start", "surerag:gate", "nostream", "surerag:gate"), ("end",)]
    assert "".join(seen.tokens) == "".join(waiting.tokens) == DRAFT
    if way.startswith("a"):
        assert waiting.loops == {asyncio.get_running_loop()}


HOOK: ContextVar[Any] = ContextVar("hook", default=None)
register_configure_hook(HOOK, inheritable=True)


async def test_tracers_get_all_of_it_once() -> None:
    with FakeOpenAI(Script(say)) as server:
        chain = chain_on(chat(server), OPEN)
        for ask in (chain.invoke, lambda question: asyncio.run(chain.ainvoke(question))):
            hooked = Seen()
            HOOK.set(hooked)
            with collect_runs() as collected:
                await asyncio.to_thread(ask, "Where was Ada born?")
            HOOK.set(None)
            [root] = collected.traced_runs
            runs = [run for run in root.child_runs if run.run_type in ("llm", "chat_model")]
            assert [run.name for run in runs] == ["surerag:gate", "surerag:answer"]
            assert [run.error for run in runs] == [None, None]
            assert all(run.end_time is not None for run in runs)
            assert "DRAFT" in str(runs[0].outputs)
            # What a context brings along is there once, too, as get_openai_callback is.
            assert hooked.calls.count(("end",)) == 2


async def test_wrappers_runs_end_well_too() -> None:
    with FakeOpenAI(Script(say)) as server:
        model = chat(server).with_fallbacks([chat(server)])
        errors: list[Any] = []

        class Errors(BaseCallbackHandler):
            def on_chain_error(self, error: BaseException, **_: Any) -> None:
                errors.append(error)

        config: Any = {"callbacks": [Errors()]}
        chain_on(model, OPEN).invoke("Where?", config)
        await chain_on(model, OPEN).ainvoke("Where?", config)
    assert errors == []


async def test_what_a_rewriter_asks_on_the_way_is_not_shown() -> None:
    with FakeOpenAI(Script(say)) as server:
        retriever = UncertaintyRewriteRetriever(chat(server), found)

        async def node(state: State, config: RunnableConfig) -> State:
            documents = await retriever.ainvoke(state["question"], config)
            return {"answer": documents[0].page_content}

        graph = StateGraph(State).add_node("lazy", node).add_edge(START, "lazy").compile()
        assert await messages_of(graph, asynchronously=True) == []
        # Nor where it stands in another part: its own answer is not that part's.
        chain = LazyRetrievalChain(chat(server), retriever, "Ada is a painter.", threshold=OPEN)
        messages = await messages_of(graph_of(chain), asynchronously=True)
    assert "".join(message.content for message, _ in messages) == ANSWER


async def _asked(chain: Any, way: str, config: Any) -> None:
    match way:
        case "invoke":
            await asyncio.to_thread(chain.invoke, "Where?", config)
        case "ainvoke":
            await chain.ainvoke("Where?", config)
        case "stream":
            await asyncio.to_thread(lambda: list(chain.stream("Where?", config)))
        case "astream":
            [chunk async for chunk in chain.astream("Where?", config)]
