"""Middleware in agents that create_agent makes: invoked, streamed, checkpointed, sync and async."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelFallbackMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import create_retriever_tool, tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from openai import InternalServerError
from pydantic import BaseModel, Field

from langchain_surerag import LazyRetrievalChain, LazyRetrievalMiddleware
from surerag import EntropyGate, FakeReader, MarginGate
from surerag.errors import CapabilityError, ConfigurationError, MissingServiceError, PromptError
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
    settings: list[dict[str, Any]] = Field(default_factory=list)

    def __init__(self, *replies: AIMessage) -> None:
        super().__init__(replies=iter(replies))

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **settings: Any) -> ChatResult:
        self.prompts.append(messages)
        self.settings.append(settings)
        return ChatResult(generations=[ChatGeneration(message=next(self.replies))])

    def bind_tools(self, tools: Any, **settings: Any) -> Runnable[Any, Any]:
        return self.bind(**settings)


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
        assert server.requests[1]["logprobs"] is True  # for the certainty of the answer
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
    texts = [message.text for one in updates for message in one.get("model", {}).get("messages", [])]
    assert texts == [answer]


SUMMARY = "The Orun is a river."


@both
@pytest.mark.parametrize(
    "options",
    [
        {"gate": "abstention"},
        {"gate": "abstention", "summaries": SUMMARY},
        {"gate": EntropyGate(aggregate="max"), "summaries": SUMMARY},
    ],
)
async def test_an_abstention_opens_the_gate_and_is_not_shown(
    server: FakeOpenAI, options: Any, asynchronously: bool
) -> None:
    server.answers = lambda prompt: ANSWER if "Velm" in prompt else "I do not know."
    agent = create_agent(chat(server), middleware=[lazy(**options)])
    if asynchronously:
        messages = [message async for message, _ in agent.astream(INPUT, stream_mode="messages")]
    else:
        messages = [message for message, _ in agent.stream(INPUT, stream_mode="messages")]
    assert "".join(message.text for message in messages) == ANSWER
    assert searches == [QUESTION]
    first, second = (request["messages"][-1]["content"] for request in server.requests)
    assert first.startswith("Where nothing supports an answer, reply only: I do not know.\n")
    assert ("summaries" in options) == (f"Context: {SUMMARY}" in first)
    assert "I do not know" not in second and (SUMMARY in second) == ("summaries" in options)
    state = await run(agent, asynchronously)
    assert state["retrieval"]["reason"] == "the first answer abstains"


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
    assert state["messages"][-1].text in ("Velm", "Velm.")
    with pytest.raises(CapabilityError, match=r"ScriptedChat returns no log-probabilities.*semantic_entropy"):
        await run(create_agent(ScriptedChat(AIMessage("Velm")), middleware=[lazy()]), asynchronously)


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
    assert (state["context"], state["retrieval"]) == ([], None)


@both
async def test_the_result_of_a_tool_is_read_with_what_was_retrieved_before(asynchronously: bool) -> None:
    @tool
    def today() -> str:
        """Return the date."""
        return "Monday"

    call = AIMessage("", tool_calls=[{"name": "today", "args": {}, "id": "1"}])
    model = ScriptedChat(AIMessage("I do not know."), call, AIMessage("In Velm, on Monday."))
    agent = create_agent(model, [today], middleware=[lazy(gate="abstention")])
    state = await run(agent, asynchronously)
    _, searched, last = model.prompts
    assert ANSWER in searched[0].text
    assert [message.type for message in last] == ["human", "ai", "tool"]
    assert last[0].text == searched[0].text
    assert [message.text for message in state["messages"]] == [QUESTION, "", "Monday", "In Velm, on Monday."]


@both
async def test_the_good_answer_of_a_fallback_model_passes(server: FakeOpenAI, asynchronously: bool) -> None:
    server.fault = "500"
    fallback = FakeListChatModel(responses=[ANSWER])
    agent = create_agent(chat(server), middleware=[lazy(threshold=SHUT), ModelFallbackMiddleware(fallback)])
    state = await run(agent, asynchronously)
    assert state["messages"][-1].text == ANSWER
    note = state["messages"][-1].response_metadata["surerag"]
    assert "log-probabilities" in note["retrieval"]["reason"]


async def test_images_stay_and_prompts_are_shown(server: FakeOpenAI) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    prompt = ChatPromptTemplate([("system", "Use {context}."), ("human", "{question}")])
    agent = create_agent(
        chat(server),
        middleware=[lazy(threshold=OPEN, prompts={"from_context": prompt})],
        system_prompt="Be kind.",
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
    assert state["retrieval"]["reason"] == "the first answer was cut off at max_tokens"


@pytest.mark.parametrize("text", ["", "  "])
@both
async def test_an_empty_draft_opens_the_gate(text: str, asynchronously: bool) -> None:
    options: dict[str, Any] = {"gate": "semantic_entropy", "n_samples": 3, "threshold": SHUT}
    model = ScriptedChat(*[AIMessage(text)] * 3, AIMessage(ANSWER))
    state = await run(create_agent(model, middleware=[lazy(**options)]), asynchronously)
    assert state["messages"][-1].text == ANSWER
    assert state["retrieval"]["reason"] == "empty first answer" and state["retrieval"]["retrieve"]


async def test_state_survives_a_checkpointer(server: FakeOpenAI) -> None:
    agent = create_agent(chat(server), middleware=[lazy(threshold=OPEN)], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    agent.invoke(INPUT, config)
    assert agent.get_state(config).values["context"][0].id == "ada"
    state = agent.invoke({"messages": [HumanMessage("And now?")]}, config)
    assert len(state["messages"]) == 4


CALL = AIMessage("", tool_calls=[{"name": "find", "args": {"query": "Ada"}, "id": "1"}])
SAMPLED: dict[str, Any] = {"gate": "semantic_entropy", "n_samples": 3}


@tool
def find(query: str) -> str:
    """Find."""
    return ANSWER


class Born(BaseModel):
    """Where somebody was born."""

    town: str


def structured(town: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "Born", "args": {"town": town}, "id": town}])


@both
async def test_the_sample_that_the_gate_keeps_is_the_answer(asynchronously: bool) -> None:
    texts = ("<think>A lake?</think>Tarn", "<think>Hm.</think>Velm", "<think>Ada.</think>Velm.")
    model = ScriptedChat(*map(AIMessage, texts))
    state = await run(create_agent(model, middleware=[lazy(**SAMPLED, threshold=0.9)]), asynchronously)
    assert state["retrieval"]["retrieve"] is False
    assert state["messages"][-1].text in texts[1:]


@both
@pytest.mark.parametrize("seed", [None, 42])
async def test_samples_are_independent_of_caches_and_seeds(seed: int | None, asynchronously: bool) -> None:
    towns = iter(["Velm", "Tarn", "Orun", ANSWER] * 2)
    set_llm_cache(InMemoryCache())
    with FakeOpenAI(lambda _: next(towns)) as sampling:
        agent = create_agent(chat(sampling, seed=seed), middleware=[lazy(**SAMPLED)])
        for _ in range(2):
            state = await run(agent, asynchronously)
            assert state["retrieval"]["score"] == pytest.approx(1.0986, abs=0.001)
            assert state["messages"][-1].text == ANSWER
        seeds = [one["seed"] for one in sampling.requests if one.get("temperature") == 1]
        assert len(seeds) == len({*seeds}) == 3


@both
async def test_a_structured_answer_is_an_answer(asynchronously: bool) -> None:
    for towns, searched in ((("Velm", "Tarn", "Orun", "Velm"), True), (("Velm", "Velm", "Velm"), False)):
        searches.clear()
        model = ScriptedChat(*map(structured, towns))
        agent = create_agent(model, middleware=[lazy(**SAMPLED)], response_format=Born)
        state = await run(agent, asynchronously)
        assert state["structured_response"] == Born(town="Velm")
        assert searches == [QUESTION] * searched
        assert state["retrieval"]["retrieve"] is searched
        assert next(model.replies, None) is None
        note = next(one for one in state["messages"] if isinstance(one, AIMessage)).response_metadata
        assert note["surerag"]["retrieval"] == state["retrieval"]


@both
async def test_a_structured_answer_that_cannot_be_measured_opens_the_gate(asynchronously: bool) -> None:
    replies = iter([structured("Tarn"), structured("Velm")])

    class Structured(ChatOpenAI):
        def _generate(self, *_: Any, **__: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=next(replies))])

        async def _agenerate(self, *_: Any, **__: Any) -> ChatResult:
            return self._generate()

    model = Structured(model="toy", api_key="none")
    agent = create_agent(model, middleware=[lazy()], response_format=ToolStrategy(Born))
    state = await run(agent, asynchronously)
    assert state["structured_response"] == Born(town="Velm")
    assert state["retrieval"]["retrieve"] and "log-probabilities" in state["retrieval"]["reason"]


@both
async def test_a_structured_answer_abstains_in_a_field(asynchronously: bool) -> None:
    model = ScriptedChat(structured("I do not know."), structured("Velm"))
    agent = create_agent(model, middleware=[lazy(gate="abstention")], response_format=ToolStrategy(Born))
    state = await run(agent, asynchronously)
    assert state["structured_response"] == Born(town="Velm")
    assert state["retrieval"]["reason"] == "the first answer abstains"


@both
@pytest.mark.parametrize("gate", ["abstention", "entropy"])
async def test_a_structured_answer_as_text_abstains_in_a_field(gate: str, asynchronously: bool) -> None:
    with FakeOpenAI(lambda prompt: f'{{"town":"{"Velm" if ANSWER in prompt else "Unknown."}"}}') as server:
        middleware = lazy(gate=gate, threshold=SHUT if gate == "entropy" else None, abstention="Unknown.")
        agent = create_agent(chat(server), middleware=[middleware], response_format=ProviderStrategy(Born))
        state = await run(agent, asynchronously)
    assert state["structured_response"] == Born(town="Velm")
    assert state["retrieval"]["reason"] == "the first answer abstains"


@both
async def test_a_tool_call_is_never_a_sample(asynchronously: bool) -> None:
    other = AIMessage("", tool_calls=[{"name": "find", "args": {"query": "drawn"}, "id": "2"}])
    model = ScriptedChat(CALL, AIMessage("Velm"))
    state = await run(create_agent(model, [find], middleware=[lazy(**SAMPLED)]), asynchronously)
    assert [one.tool_calls[0]["args"] for one in state["messages"] if getattr(one, "tool_calls", None)] == [
        {"query": "Ada"}
    ]
    assert [one.get("temperature") for one in model.settings] == [None, None]
    # One that answers at its own temperature, and whose samples call tools, is unsure whether it knows.
    model = ScriptedChat(AIMessage("Tarn"), other, other, AIMessage("Tarn"), AIMessage("Velm"))
    state = await run(create_agent(model, [find], middleware=[lazy(**SAMPLED)]), asynchronously)
    assert state["messages"][-1].text == "Velm" and state["retrieval"]["retrieve"]
    assert [one.get("temperature") for one in model.settings] == [None, 1.0, 1.0, 1.0, None]


@both
async def test_each_run_begins_without_the_documents_of_an_earlier_one(asynchronously: bool) -> None:
    replies = [AIMessage(text) for text in ("", "", "", "Velm")]
    model = ScriptedChat(AIMessage("?"), *replies, CALL, AIMessage("Orun"))
    agent = create_agent(model, [find], middleware=[lazy(**SAMPLED)], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    first = await run(agent, asynchronously, config=config)
    assert first["context"] and first["retrieval"]["retrieve"]
    second = await run(agent, asynchronously, {"messages": [HumanMessage("And the river?")]}, config)
    assert second["messages"][-1].text == "Orun"
    assert (second["context"], second["retrieval"]) == ([], None)


@both
async def test_what_interrupts_an_agent_is_no_failure(server: FakeOpenAI, asynchronously: bool) -> None:
    class Approving(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            interrupt("May the model be called?")
            return handler(request)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            interrupt("May the model be called?")
            return await handler(request)

    agent = create_agent(
        chat(server), middleware=[lazy(threshold=SHUT), Approving()], checkpointer=InMemorySaver()
    )
    config = {"configurable": {"thread_id": "1"}}
    assert "__interrupt__" in await run(agent, asynchronously, config=config)
    assert not searches
    state = await run(agent, asynchronously, Command(resume=True), config)
    assert [message.text for message in state["messages"]] == [QUESTION, DRAFT]


@both
async def test_samples_obey_max_concurrency(asynchronously: bool) -> None:
    busy, most, lock = 0, 0, threading.Lock()

    class Slow(ScriptedChat):
        def _generate(self, *_: Any, **__: Any) -> ChatResult:
            nonlocal busy, most
            with lock:
                busy += 1
                most = max(most, busy)
            time.sleep(0.02)
            with lock:
                busy -= 1
            return ChatResult(generations=[ChatGeneration(message=AIMessage("Velm"))])

    agent = create_agent(Slow(), middleware=[lazy(gate="semantic_entropy", n_samples=8)])
    await run(agent, asynchronously, config={"max_concurrency": 2})
    assert most == 2
    await run(agent, asynchronously)
    assert most > 2


@both
async def test_a_follow_up_is_searched_as_it_stands_alone(server: FakeOpenAI, asynchronously: bool) -> None:
    server.answers = lambda prompt: QUESTION if "Rewrite" in prompt else answers(prompt)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    earlier = [HumanMessage([{"type": "text", "text": "Who is Ada?"}, image]), AIMessage("A painter.")]
    value = {"messages": [*earlier, HumanMessage("Where was she born?")]}
    for threshold, searched in ((SHUT, []), (OPEN, [QUESTION])):
        agent = create_agent(chat(server), middleware=[lazy(threshold=threshold)])
        state = await run(agent, asynchronously, value)
        assert searches == searched
        assert state["messages"][-2].text == "Where was she born?"
    assert "Where was she born?" in server.requests[-1]["messages"][-1]["content"]
    server.answers = lambda prompt: "" if "Rewrite" in prompt else answers(prompt)
    await run(agent, asynchronously, value)
    assert searches == [QUESTION, "Where was she born?"]


@both
async def test_how_a_follow_up_is_searched_can_be_chosen(
    server: FakeOpenAI, asynchronously: bool, caplog: pytest.LogCaptureFixture
) -> None:
    value = {"messages": [HumanMessage("Who is Ada?"), AIMessage("A painter."), HumanMessage("And she?")]}
    other = FakeReader(lambda prompt: QUESTION if "Alone:" in prompt else "no")
    for options, searched in (
        ({}, "And she?"),  # a rewrite that is cut off asks something else
        ({"rewrite_follow_ups": False}, "And she?"),
        ({"rewriter": other, "prompts": {"rewrite_in_conversation": "Alone: {query}"}}, QUESTION),
    ):
        server.answers = lambda prompt: "town " * 400 if "Rewrite" in prompt else answers(prompt)
        agent = create_agent(chat(server), middleware=[lazy(threshold=OPEN, **options)])
        await run(agent, asynchronously, value)
        assert searches.pop() == searched
    assert caplog.text.count("conversation.not_condensed") == 1
    with pytest.raises(PromptError, match="query"):
        lazy(prompts={"rewrite_in_conversation": "Alone: {question}"})


async def test_async_never_uses_the_sync_way(server: FakeOpenAI, monkeypatch: Any) -> None:
    model = chat(server)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the sync method was called")

    for name in ("_generate", "_stream"):
        monkeypatch.setattr(type(model), name, refuse)
    for options in ({"threshold": OPEN}, SAMPLED):
        agent = create_agent(model, [find], middleware=[lazy(**options)])
        value = {"messages": [HumanMessage("Hello."), AIMessage("Hi."), *INPUT["messages"]]}
        assert (await agent.ainvoke(value))["messages"][-1].text


@both
async def test_errors_of_the_client_pass_to_other_middleware(
    server: FakeOpenAI, asynchronously: bool
) -> None:
    server.fault = "500"
    agent = create_agent(chat(server), middleware=[lazy()])
    with pytest.raises(InternalServerError):
        await run(agent, asynchronously)


async def test_decisions_of_an_agent_are_custom_events(server: FakeOpenAI) -> None:
    agent = create_agent(chat(server), middleware=[lazy(threshold=OPEN)])
    names = [event["name"] async for event in agent.astream_events(INPUT, version="v2")]
    assert {"lazy_rag.gate", "lazy_rag.answering"} <= {*names}


async def test_limits_and_temperature_of_an_agent_are_its_own(server: FakeOpenAI) -> None:
    create_agent(chat(server), middleware=[lazy(threshold=OPEN)]).invoke(INPUT)
    # Where nothing is shown that could support an answer, none is asked to abstain.
    assert server.requests[0]["messages"][-1]["content"] == QUESTION
    for request in server.requests:
        assert not {"max_tokens", "max_completion_tokens", "temperature", "n"} & set(request)
    create_agent(chat(server), middleware=[lazy(threshold=SHUT, max_tokens=7)]).invoke(INPUT)
    assert {"max_tokens", "max_completion_tokens"} & set(server.requests[-1])


# Construction.


def test_construction_says_what_is_wrong() -> None:
    with pytest.raises(MissingServiceError, match="as_retriever"):
        LazyRetrievalMiddleware(None)  # type: ignore[arg-type]
    for wrong, match in (
        ({"k": 3}, "top_n"),
        ({"summaries": []}, "summaries"),
        ({"threshold": "high"}, "threshold"),
        ({"n_tokens": 3, "gate": "semantic_entropy"}, "n_tokens"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            lazy(**wrong)
