"""Middleware in agents that create_agent makes: invoked, streamed, checkpointed, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import create_retriever_tool
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from pydantic import Field

from langchain_surerag import LazyRetrievalChain, LazyRetrievalMiddleware, UncertaintyMiddleware, entropy_of
from surerag import MarginGate
from surerag.errors import CapabilityError, ConfigurationError, InputError, LogprobsError, MissingServiceError
from tests.langchain.conftest import HashEmbeddings, chat
from tests.servers.fake_openai import FakeOpenAI

OPEN, SHUT = 0.0, 9.0
DRAFT = "DRAFT I am guessing wildly here."
ANSWER = "Ada was born in Velm."
QUESTION = "Where was Ada born?"
INPUT = {"messages": [HumanMessage(QUESTION, id="q")]}
searches: list[str] = []


def search(query: str) -> list[Document]:
    searches.append(query)
    return [Document(ANSWER, id="ada"), Document("Bo was not.", id="bo")]


class ScriptedChat(BaseChatModel):
    """Gives its replies in order, tool calls included, and remembers what it was prompts."""

    replies: Iterator[AIMessage]
    prompts: list[list[BaseMessage]] = Field(default_factory=list)

    def __init__(self, *replies: AIMessage) -> None:
        super().__init__(replies=iter(replies))

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.prompts.append(messages)
        return ChatResult(generations=[ChatGeneration(message=next(self.replies))])

    def bind_tools(self, *_: Any, **__: Any) -> Runnable[Any, Any]:
        return self


def answers(prompt: str) -> str:
    return ANSWER if "Velm" in prompt else DRAFT


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    searches.clear()
    with FakeOpenAI(answers) as running:
        yield running


def lazy(**options: Any) -> LazyRetrievalMiddleware:
    return LazyRetrievalMiddleware(RunnableLambda(search), **options)


async def run(agent: Any, asynchronously: bool, value: Any = INPUT, config: Any = None) -> Any:
    if asynchronously:
        return await agent.ainvoke(value, config)
    return await asyncio.to_thread(agent.invoke, value, config)


both = pytest.mark.parametrize("asynchronously", [False, True])


@both
@pytest.mark.parametrize("threshold", [OPEN, SHUT])
async def test_an_agent_retrieves_only_when_unsure(
    server: FakeOpenAI, threshold: float, asynchronously: bool
) -> None:
    agent = create_agent(chat(server), middleware=[lazy(threshold=threshold, top_n=1)])
    state = await run(agent, asynchronously)
    opens = threshold == OPEN
    assert [message.text for message in state["messages"]] == [QUESTION, ANSWER if opens else DRAFT]
    assert searches == [QUESTION] * opens
    assert [document.id for document in state["context"]] == ["ada"] * opens
    assert state["retrieval"]["retrieve"] is opens
    assert state["messages"][-1].response_metadata["surerag"] == {"retrieval": state["retrieval"]}
    assert len(server.requests) == 1 + opens
    assert server.requests[0]["logprobs"] is True
    if opens:
        assert "logprobs" not in server.requests[1]
        assert "[1] Ada was born in Velm." in server.requests[1]["messages"][-1]["content"]


@both
@pytest.mark.parametrize(("threshold", "answer"), [(OPEN, ANSWER), (SHUT, DRAFT)])
async def test_streams_show_the_answer_alone(
    server: FakeOpenAI, threshold: float, answer: str, asynchronously: bool
) -> None:
    agent = create_agent(chat(server), middleware=[lazy(threshold=threshold)])
    if asynchronously:
        messages = [item async for item in agent.astream(INPUT, stream_mode="messages")]
    else:
        messages = await asyncio.to_thread(lambda: list(agent.stream(INPUT, stream_mode="messages")))
    assert "".join(message.text for message, _ in messages) == answer
    events = [event async for event in agent.astream_events(INPUT, version="v2")]
    if threshold == OPEN:
        assert "DRAFT" not in str(events)
    updates = [update async for update in agent.astream(INPUT, stream_mode="updates")]
    texts = [message.text for update in updates for message in update["model"].get("messages", [])]
    assert texts == [answer]


@pytest.mark.parametrize("options", [{"gate": "margin"}, {"gate": MarginGate(n_tokens=2)}, {"n_tokens": 3}])
async def test_gates_of_all_kinds(server: FakeOpenAI, options: Any) -> None:
    state = create_agent(chat(server), middleware=[lazy(threshold=0.9, **options)]).invoke(INPUT)
    chain = LazyRetrievalChain(chat(server), RunnableLambda(search), "Ada.", threshold=0.9, **options)
    decision = chain.invoke(QUESTION)["decision"]
    same = {"score": pytest.approx(decision["score"])}
    assert state["retrieval"] == {**decision, **same, "reason": state["retrieval"]["reason"]}
    assert state["retrieval"]["retrieve"] is False


@both
async def test_a_model_of_text_alone_is_sampled_or_refused(asynchronously: bool) -> None:
    searches.clear()
    replies = [AIMessage(text) for text in ("Velm", "Tarn", "Orun", "Ada was born in Velm.")]
    gate = lazy(gate="semantic_entropy", n_samples=3)
    model = ScriptedChat(*replies)
    state = await run(create_agent(model, middleware=[gate]), asynchronously)
    assert state["messages"][-1].text == ANSWER
    same = ScriptedChat(*[AIMessage(text) for text in ("Velm", "Velm.", "Tarn")])
    state = await run(
        create_agent(same, middleware=[lazy(gate="semantic_entropy", n_samples=3, threshold=0.9)]),
        asynchronously,
    )
    assert state["messages"][-1].text == "Velm"
    with pytest.raises(CapabilityError, match=r"ScriptedChat gives text only.*semantic_entropy"):
        await run(create_agent(ScriptedChat(AIMessage("Velm")), middleware=[lazy()]), asynchronously)
    with pytest.raises(CapabilityError, match="ScriptedChat gives text only"):
        await run(
            create_agent(ScriptedChat(AIMessage("Velm")), middleware=[UncertaintyMiddleware()]),
            asynchronously,
        )


async def test_tool_calls_are_left_alone() -> None:
    searches.clear()
    store = InMemoryVectorStore.from_documents([Document(ANSWER)], HashEmbeddings())
    find = create_retriever_tool(store.as_retriever(), "find", "Finds.")
    call = AIMessage("", tool_calls=[{"name": "find", "args": {"query": "Ada"}, "id": "1"}])
    model = ScriptedChat(call, call, call, AIMessage("Velm"))
    gate = lazy(gate="semantic_entropy", n_samples=3)
    state = create_agent(model, [find], middleware=[gate]).invoke(INPUT)
    assert state["messages"][-1].text == "Velm"
    assert searches == []
    assert "retrieval" not in state


@pytest.mark.parametrize("middleware", [lazy(threshold=SHUT), UncertaintyMiddleware()])
@both
async def test_the_good_answer_of_a_fallback_model_passes(
    server: FakeOpenAI, middleware: Any, asynchronously: bool
) -> None:
    server.fault = "500"
    fallback = FakeListChatModel(responses=[ANSWER])
    agent = create_agent(chat(server), middleware=[middleware, ModelFallbackMiddleware(fallback)])
    state = await run(agent, asynchronously)
    assert state["messages"][-1].text == ANSWER
    note = state["messages"][-1].response_metadata["surerag"]
    if "retrieval" in note:
        assert "could not be measured" in note["retrieval"]["reason"]
    else:
        assert note["uncertainty"]["uncertain"] is None
        assert "no log-probabilities" in note["uncertainty"]["reason"]


async def test_images_stay_and_prompts_are_shown(server: FakeOpenAI) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    prompt = ChatPromptTemplate([("system", "Use {context}."), ("human", "{question}")])
    agent = create_agent(
        chat(server), middleware=[lazy(threshold=OPEN, prompt=prompt)], system_prompt="Be kind."
    )
    message = HumanMessage([{"type": "text", "text": QUESTION}, image])
    state = agent.invoke({"messages": [message]})
    system, last = server.requests[-1]["messages"]
    assert system["content"].startswith("Be kind.\n\nUse ")
    assert [block["type"] for block in last["content"]] == ["text", "image_url"]
    assert state["messages"][0].content == message.content


async def test_a_cut_draft_opens_the_gate(server: FakeOpenAI) -> None:
    server.fault = "cut"
    state = create_agent(chat(server), middleware=[lazy(threshold=SHUT)]).invoke(INPUT)
    assert state["retrieval"]["reason"] == "the first answer was cut off"


@pytest.mark.parametrize("text", ["", "  "])
@both
async def test_an_empty_draft_opens_the_gate(text: str, asynchronously: bool) -> None:
    options: dict[str, Any] = {"gate": "semantic_entropy", "n_samples": 3, "threshold": SHUT}
    model = ScriptedChat(*[AIMessage(text)] * 3, AIMessage(ANSWER))
    state = await run(create_agent(model, middleware=[lazy(**options)]), asynchronously)
    assert state["messages"][-1].text == ANSWER
    assert state["retrieval"]["reason"] == "empty first answer" and state["retrieval"]["retrieve"]


@both
async def test_an_empty_answer_is_uncertain(asynchronously: bool) -> None:
    larger = FakeListChatModel(responses=[ANSWER])
    with FakeOpenAI(lambda prompt: "") as empty:
        agent = create_agent(chat(empty), middleware=[UncertaintyMiddleware(larger_model=larger)])
        state = await run(agent, asynchronously)
        assert state["messages"][-1].text == ANSWER
        alone = await run(create_agent(chat(empty), middleware=[UncertaintyMiddleware()]), asynchronously)
    note = alone["messages"][-1].response_metadata["surerag"]["uncertainty"]
    assert note["uncertain"] is True and note["reason"] == "empty answer"


async def test_state_survives_a_checkpointer(server: FakeOpenAI) -> None:
    agent = create_agent(chat(server), middleware=[lazy(threshold=OPEN)], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    agent.invoke(INPUT, config)
    assert agent.get_state(config).values["context"][0].id == "ada"
    state = agent.invoke({"messages": [HumanMessage("And now?")]}, config)
    assert len(state["messages"]) == 4


# Uncertainty.


@both
async def test_every_answer_is_measured(server: FakeOpenAI, asynchronously: bool) -> None:
    state = await run(create_agent(chat(server), middleware=[UncertaintyMiddleware()]), asynchronously)
    note = state["messages"][-1].response_metadata["surerag"]["uncertainty"]
    assert note["entropy"] == pytest.approx(0.315, abs=0.01)
    assert (note["uncertain"], note["n_tokens"], note["threshold"]) == (False, 6, 1.0)
    assert entropy_of(state["messages"][-1]).mean == pytest.approx(note["entropy"])


@both
async def test_a_larger_model_answers_where_the_first_is_uncertain(
    server: FakeOpenAI, asynchronously: bool
) -> None:
    larger = FakeListChatModel(responses=[ANSWER])
    agent = create_agent(
        chat(server), middleware=[UncertaintyMiddleware(threshold=OPEN, larger_model=larger)]
    )
    state = await run(agent, asynchronously)
    assert state["messages"][-1].text == ANSWER
    pieces = [message async for message, _ in agent.astream(INPUT, stream_mode="messages")]
    assert "".join(message.text for message in pieces) == ANSWER
    certain = create_agent(
        chat(server), middleware=[UncertaintyMiddleware(threshold=SHUT, larger_model=larger)]
    )
    assert (await run(certain, asynchronously))["messages"][-1].text == DRAFT


@both
async def test_an_uncertain_answer_can_be_replaced(server: FakeOpenAI, asynchronously: bool) -> None:
    calls: list[Any] = []

    def replace(question: str, message: AIMessage) -> str:
        calls.append((question, message.text))
        return "I do not know."

    async def areplace(question: str, message: AIMessage) -> AIMessage:
        return AIMessage(replace(question, message))

    agent = create_agent(
        chat(server),
        middleware=[
            UncertaintyMiddleware(threshold=OPEN, on_uncertain=areplace if asynchronously else replace)
        ],
    )
    state = await run(agent, asynchronously)
    assert [message.text for message in state["messages"]] == [QUESTION, "I do not know."]
    assert calls == [(QUESTION, DRAFT)]
    assert state["messages"][-1].response_metadata["surerag"]["uncertainty"]["replaced"]
    if not asynchronously:
        broken = UncertaintyMiddleware(threshold=OPEN, on_uncertain=areplace)
        with pytest.raises(ConfigurationError, match="coroutine"):
            await run(create_agent(chat(server), middleware=[broken]), asynchronously)


def test_a_person_may_be_asked(server: FakeOpenAI) -> None:
    def ask(question: str, message: AIMessage) -> Any:
        return interrupt({"question": question, "answer": message.text})

    agent = create_agent(
        chat(server),
        middleware=[UncertaintyMiddleware(threshold=OPEN, on_uncertain=ask)],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "1"}}
    waiting = agent.invoke(INPUT, config)
    assert waiting["__interrupt__"][0].value == {"question": QUESTION, "answer": DRAFT}
    assert agent.invoke(Command(resume="Velm."), config)["messages"][-1].text == "Velm."


# Construction, and messages.


def test_construction_says_what_is_wrong() -> None:
    for threshold in (None, -1, "high", True):
        with pytest.raises(ConfigurationError, match="threshold must be a number of nats"):
            UncertaintyMiddleware(threshold=threshold)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="n_tokens"):
        UncertaintyMiddleware(n_tokens=0)
    with pytest.raises(MissingServiceError, match="as_retriever"):
        LazyRetrievalMiddleware(None)  # type: ignore[arg-type]
    for wrong, match in (
        ({"k": 3}, "top_n"),
        ({"n_summaries": 3}, "n_summaries"),
        ({"threshold": "high"}, "threshold"),
        ({"n_tokens": 3, "gate": "semantic_entropy"}, "n_tokens"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            lazy(**wrong)


def test_the_entropy_of_a_message() -> None:
    near = [{"token": "Velm", "logprob": -0.1}, {"token": "Tarn", "logprob": -3.0}]
    entries = [{"token": token, "logprob": -0.1, "top_logprobs": near} for token in ("Velm", " it", " is")]
    message = AIMessage("Velm it is", response_metadata={"logprobs": {"content": entries}})
    whole, first = entropy_of(message), entropy_of(message, n_tokens=1)
    assert (whole.n_tokens, first.n_tokens) == (3, 1)
    assert whole.lower <= whole.mean <= whole.upper
    thinking = AIMessage("<think>Hm</think>Velm it is", response_metadata=message.response_metadata)
    assert entropy_of(thinking).n_tokens == 3
    for value, error in (
        (AIMessage("Velm"), LogprobsError),
        (HumanMessage("Velm"), InputError),
        (AIMessage("", response_metadata=message.response_metadata), InputError),
    ):
        with pytest.raises(error):
            entropy_of(value)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        entropy_of(message, n_tokens=0)
