"""Middleware in agents that create_agent makes: invoked, streamed, checkpointed, sync and async."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import create_retriever_tool, tool
from langchain_core.tracers.context import collect_runs
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from langchain_surerag import (
    ClusterCompressor,
    ContextCompressionMiddleware,
    LazyRetrievalMiddleware,
    UncertaintyMiddleware,
    ask_a_person,
    entropy_of,
)
from surerag import FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import CapabilityError, ConfigurationError, InputError, LogprobsError
from tests.langchain.conftest import HashEmbeddings, chat
from tests.langchain.scripted_chat import ScriptedChat, calls
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script

OPEN, SHUT = 0.0, 9.0
DRAFT = "DRAFT I am guessing wildly here."
ANSWER = "Ada was born in Velm."
ASKED = {"messages": [HumanMessage("Where was Ada born?", id="asked")]}
searched: list[str] = []


def search(query: str) -> list[Document]:
    searched.append(query)
    return [Document("Ada was born in Velm.", id="ada"), Document("Bo was not.", id="bo")]


def say(prompt: Any) -> str:
    return ANSWER if "Velm" in str(prompt) else DRAFT


@pytest.fixture(autouse=True)
def nothing_searched() -> None:
    searched.clear()


async def asked(agent: Any, *, asynchronously: bool, config: Any = None, given: Any = ASKED) -> Any:
    if asynchronously:
        return await agent.ainvoke(given, config)
    return await asyncio.to_thread(agent.invoke, given, config)


# Retrieval only when unsure.


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize("threshold", [OPEN, SHUT])
async def test_an_agent_retrieves_only_when_unsure(threshold: float, asynchronously: bool) -> None:
    with FakeOpenAI(Script(say)) as server:
        lazy = LazyRetrievalMiddleware(RunnableLambda(search), threshold=threshold, top_n=1)
        agent = create_agent(chat(server), middleware=[lazy])
        state = await asked(agent, asynchronously=asynchronously)
        opens = threshold == OPEN
        assert [message.text for message in state["messages"]] == [
            "Where was Ada born?",
            ANSWER if opens else DRAFT,
        ]
        assert searched == ["Where was Ada born?"] * opens
        assert [document.id for document in state["context"]] == ["ada"] * opens
        assert state["retrieval"]["retrieve"] is opens
        assert state["retrieval"]["gate"] == "entropy"
        assert state["messages"][-1].response_metadata["surerag"] == {"retrieval": state["retrieval"]}
        assert len(server.requests) == 1 + opens
        assert server.requests[0].body["logprobs"] is True
        if opens:
            assert "logprobs" not in server.requests[1].body
            assert "[1] Ada was born in Velm." in server.requests[1].body["messages"][-1]["content"]


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize(("threshold", "shown"), [(OPEN, ANSWER), (SHUT, DRAFT)])
async def test_an_agents_streams_show_the_answer_alone(
    threshold: float, shown: str, asynchronously: bool
) -> None:
    with FakeOpenAI(Script(say)) as server:
        agent = create_agent(
            chat(server), middleware=[LazyRetrievalMiddleware(RunnableLambda(search), threshold=threshold)]
        )
        if asynchronously:
            messages = [item async for item in agent.astream(ASKED, stream_mode="messages")]
        else:
            messages = await asyncio.to_thread(lambda: list(agent.stream(ASKED, stream_mode="messages")))
        assert "".join(message.text for message, _ in messages) == shown
        assert sum(bool(message.text) for message, _ in messages) > 1
        events = [event async for event in agent.astream_events(ASKED, version="v2")]
        streamed = [event for event in events if event["event"] == "on_chat_model_stream"]
        assert "".join(event["data"]["chunk"].text for event in streamed) == shown
        updates = [update async for update in agent.astream(ASKED, stream_mode="updates")]
        said = [message.text for update in updates for message in update["model"].get("messages", [])]
        assert said == [shown]
        with collect_runs() as collected:
            await agent.ainvoke(ASKED)
        assert collected.traced_runs
        assert not any(run.error for run in collected.traced_runs)


async def test_state_survives_a_checkpointer() -> None:
    with FakeOpenAI(Script(say)) as server:
        lazy = LazyRetrievalMiddleware(RunnableLambda(search), threshold=OPEN)
        agent = create_agent(chat(server), middleware=[lazy], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "1"}}
        await agent.ainvoke(ASKED, config)
        kept = (await agent.aget_state(config)).values
        assert kept["context"] == search("")
        assert kept["retrieval"]["retrieve"] is True
        # The conversation holds the question as it was asked, and goes on.
        await agent.ainvoke({"messages": [HumanMessage("And Bo?")]}, config)
        told = [turn["content"] for turn in server.requests[-1].body["messages"]]
        assert told[:2] == ["Where was Ada born?", ANSWER]
        assert "Question: And Bo?" in told[2]


async def test_a_model_that_uses_tools_is_left_alone() -> None:
    @tool
    def look_up(query: str) -> str:
        """Look something up."""
        return "Velm."

    model = ScriptedChat(calls("look_up", query="Ada"), AIMessage("In Velm."))
    agent = create_agent(
        model, [look_up], middleware=[LazyRetrievalMiddleware(search_, gate=len_gate, threshold=3)]
    )
    state = await agent.ainvoke(ASKED)
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert searched == []
    assert "retrieval" not in state


search_ = RunnableLambda(search)


def len_gate(answer: Any) -> float:
    return float(len(answer.text))


async def test_a_gate_may_be_a_function_of_the_text() -> None:
    lazy = LazyRetrievalMiddleware(search_, gate=len_gate, threshold=3)
    model = ScriptedChat(AIMessage("Perhaps Tarn."), AIMessage("Velm"), AIMessage("Yes"))
    agent = create_agent(model, middleware=[lazy])
    assert (await agent.ainvoke(ASKED))["messages"][-1].text == "Velm"
    assert (await agent.ainvoke(ASKED))["messages"][-1].text == "Yes"
    assert len(searched) == 1


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_a_model_without_log_probabilities_disagrees_with_itself(asynchronously: bool) -> None:
    lazy = LazyRetrievalMiddleware(search_, gate="disagreement", n_samples=3)
    torn = [AIMessage("Velm"), AIMessage("Tarn"), AIMessage("Orun"), AIMessage("In Velm.")]
    state = await asked(create_agent(ScriptedChat(*torn), middleware=[lazy]), asynchronously=asynchronously)
    assert (state["messages"][-1].text, state["retrieval"]["calls"]) == ("In Velm.", 3)
    sure = [AIMessage("Tarn"), AIMessage("Velm"), AIMessage("Velm")]
    state = await asked(create_agent(ScriptedChat(*sure), middleware=[lazy]), asynchronously=asynchronously)
    assert (state["messages"][-1].text, state["retrieval"]["retrieve"]) == ("Velm", False)


def test_the_prompt_can_be_replaced() -> None:
    prompt = ChatPromptTemplate(
        [("system", "Trust the notes."), ("human", "Notes: {context}\nAsked: {question}")]
    )
    with FakeOpenAI(Script(say)) as server:
        lazy = LazyRetrievalMiddleware(search_, threshold=OPEN, prompt=prompt)
        create_agent(chat(server), system_prompt="Be brief.", middleware=[lazy]).invoke(ASKED)
        system, human = server.requests[-1].body["messages"]
    assert system["content"] == "Be brief.\n\nTrust the notes."
    assert human["content"].startswith("Notes: [1] Ada was born in Velm.")


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected a retriever"):
        LazyRetrievalMiddleware(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at least 0"):
        LazyRetrievalMiddleware(search_, threshold=-1)
    with pytest.raises(CapabilityError, match="ScriptedChat gives no log-probabilities"):
        create_agent(ScriptedChat(), middleware=[LazyRetrievalMiddleware(search_)]).invoke(ASKED)


# Compressed tools.


def compressor(reply: str = "Velm.") -> ClusterCompressor:
    return ClusterCompressor(FakeReader(lambda _: reply), HashingEncoder(), pass_below=0)


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_what_a_retriever_tool_finds_is_compressed(
    documents: list[Document], asynchronously: bool
) -> None:
    retriever = InMemoryVectorStore.from_documents(documents, HashEmbeddings()).as_retriever()
    found = create_retriever_tool(retriever, "find", "Finds.", response_format="content_and_artifact")
    model = ScriptedChat(calls("find", query="Velm"), AIMessage("In Velm."))
    part = ContextCompressionMiddleware(compressor())
    agent = create_agent(model, [found], middleware=[part])
    state = await asked(agent, asynchronously=asynchronously)
    [message] = [one for one in state["messages"] if isinstance(one, ToolMessage)]
    assert set(message.text.split()) == {"Velm."}
    assert {document.page_content for document in message.artifact} == {"Velm."}
    sources = {source["id"] for one in message.artifact for source in one.metadata["compressed_from"]}
    assert sources <= {"ada", "orun", "tarn", "velm"}
    assert "velm" in sources
    assert message.text == model.shown[-1][-1].text
    assert all("Where was Ada born?" in prompt for prompt in part.compressor.llm.prompts)


async def test_text_is_compressed_and_other_tools_are_not() -> None:
    @tool
    def read(page: str) -> str:
        """Read a page."""
        return f"{page}: {ANSWER} Bo came much later, and stayed in Tarn for years."

    part = ContextCompressionMiddleware(compressor(ANSWER), tools=["read"], query=lambda request: "Who?")
    model = ScriptedChat(calls("read", page="A"), AIMessage("Done."))
    state = await create_agent(model, [read], middleware=[part]).ainvoke(ASKED)
    assert state["messages"][2].text == ANSWER
    assert "Who?" in part.compressor.llm.prompts[0]
    other = ContextCompressionMiddleware(compressor(), tools=["find"])
    model = ScriptedChat(calls("read", page="A"), AIMessage("Done."))
    state = await create_agent(model, [read], middleware=[other]).ainvoke(ASKED)
    assert state["messages"][2].text.endswith("in Tarn for years.")
    with pytest.raises(ConfigurationError, match="expected a document compressor"):
        ContextCompressionMiddleware(search_)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="tools is one text"):
        ContextCompressionMiddleware(compressor(), tools="find")


# How sure an answer is.


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_every_answer_tells_its_entropy(asynchronously: bool) -> None:
    with FakeOpenAI(Script(say)) as server:
        agent = create_agent(chat(server), middleware=[UncertaintyMiddleware(threshold=9.0)])
        state = await asked(agent, asynchronously=asynchronously)
    message = state["messages"][-1]
    note = message.response_metadata["surerag"]["uncertainty"]
    assert note["uncertain"] is False
    assert note["entropy"] == pytest.approx(float(entropy_of(message)))
    assert note["lower"] <= note["entropy"] <= note["upper"]


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize("threshold", [OPEN, SHUT])
async def test_an_unsure_answer_is_asked_of_a_larger_model(threshold: float, asynchronously: bool) -> None:
    with FakeOpenAI(Script(lambda _: DRAFT)) as small, FakeOpenAI(Script(lambda _: ANSWER)) as large:
        part = UncertaintyMiddleware(threshold=threshold, larger_model=chat(large))
        agent = create_agent(chat(small), middleware=[part])
        shown = ANSWER if threshold == OPEN else DRAFT
        assert (await asked(agent, asynchronously=asynchronously))["messages"][-1].text == shown
        messages = [item async for item in agent.astream(ASKED, stream_mode="messages")]
        assert "".join(message.text for message, _ in messages) == shown
        assert len(large.requests) == 2 * (threshold == OPEN)
    silent = UncertaintyMiddleware(threshold=OPEN, larger_model=ScriptedChat(AIMessage("Velm.")))
    with FakeOpenAI(Script(lambda _: DRAFT)) as small:
        state = await asked(create_agent(chat(small), middleware=[silent]), asynchronously=asynchronously)
    assert state["messages"][-1].text == "Velm."
    assert "surerag" not in state["messages"][-1].response_metadata


@pytest.mark.parametrize("asynchronously", [False, True])
@pytest.mark.parametrize(("resumed", "shown"), [("In Velm.", "In Velm."), (True, DRAFT)])
async def test_a_person_is_asked(resumed: Any, shown: str, asynchronously: bool) -> None:
    with FakeOpenAI(Script(say)) as server:
        part = UncertaintyMiddleware(threshold=OPEN, on_uncertain=ask_a_person)
        agent = create_agent(chat(server), middleware=[part], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "1"}}
        state = await asked(agent, asynchronously=asynchronously, config=config)
        [waiting] = state["__interrupt__"]
        assert waiting.value["question"] == "Where was Ada born?"
        assert waiting.value["answer"] == DRAFT
        state = await asked(
            agent, asynchronously=asynchronously, config=config, given=Command(resume=resumed)
        )
        # The model is not asked again for what a person decides.
        assert len(server.requests) == 1
    assert [message.text for message in state["messages"]] == ["Where was Ada born?", shown]


async def test_a_callback_may_be_a_coroutine() -> None:
    async def reply(found: Any) -> AIMessage:
        await asyncio.sleep(0)
        return AIMessage(f"Not sure: {found.message.text}")

    with FakeOpenAI(Script(say)) as server:
        agent = create_agent(
            chat(server), middleware=[UncertaintyMiddleware(threshold=OPEN, on_uncertain=reply)]
        )
        assert (await agent.ainvoke(ASKED))["messages"][-1].text == f"Not sure: {DRAFT}"
        with pytest.raises(ConfigurationError, match="on_uncertain is a coroutine function"):
            await asyncio.to_thread(agent.invoke, ASKED)


async def test_all_middleware_together(documents: list[Document]) -> None:
    with FakeOpenAI(Script(say)) as server:
        agent = create_agent(
            chat(server),
            middleware=[
                UncertaintyMiddleware(threshold=9.0),
                LazyRetrievalMiddleware(search_, threshold=OPEN),
                ContextCompressionMiddleware(compressor()),
            ],
        )
        state = await agent.ainvoke(ASKED)
    note = state["messages"][-1].response_metadata["surerag"]
    assert note["retrieval"] == state["retrieval"]
    assert note["retrieval"]["retrieve"] is True
    # Both tell an interval and a threshold, each its own.
    uncertainty = note["uncertainty"]
    assert uncertainty["lower"] <= uncertainty["entropy"] <= uncertainty["upper"]
    assert (uncertainty["threshold"], note["retrieval"]["threshold"]) == (9.0, OPEN)
    assert state["context"]


def test_images_of_a_question_are_shown_with_the_passages() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked_with = [{"type": "text", "text": "Where was Ada born?"}, image]
    with FakeOpenAI(Script(say)) as server:
        agent = create_agent(chat(server), middleware=[LazyRetrievalMiddleware(search_, threshold=OPEN)])
        agent.invoke({"messages": [{"role": "user", "content": asked_with}]})
    shown = server.requests[1].body["messages"][-1]["content"]
    assert "[1] Ada was born in Velm." in shown[0]["text"]
    assert shown[1:] == [image]


# entropy_of.


def test_entropy_of_a_message(server: FakeOpenAI) -> None:
    told = chat(server, logprobs=True, top_logprobs=5, max_tokens=6)
    message = told.invoke("Where?")
    found = entropy_of(message)
    assert found.n_tokens > 1
    assert 0 < found.lower <= found.mean <= found.upper
    assert found.mean <= found.largest
    assert entropy_of(message, n_tokens=1).mean == found.first
    whole: Any = None
    for chunk in told.stream("Where?"):
        whole = chunk if whole is None else whole + chunk
    assert entropy_of(whole) == found


def test_what_has_no_entropy_says_so(server: FakeOpenAI) -> None:
    with pytest.raises(LogprobsError, match="without log-probabilities"):
        entropy_of(chat(server).invoke("Where?"))
    with pytest.raises(LogprobsError, match="without alternatives"):
        entropy_of(chat(server, logprobs=True, max_tokens=3).invoke("Where?"))
    with pytest.raises(InputError, match="got HumanMessage"):
        entropy_of(HumanMessage("Where?"))  # type: ignore[arg-type]
