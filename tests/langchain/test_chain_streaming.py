"""Streams, events, runs and concurrency of LazyRetrievalChain."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.utils import AddableDict
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_surerag import LazyRetrievalChain
from surerag import FakeReader
from tests.drivers.local_reader import LocalReader
from tests.langchain.conftest import HashEmbeddings, chat
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script

SUMMARY = "Ada was born in Velm."
ANSWER = "one two three four five six"


@pytest.fixture
def retriever(documents: list[Document]) -> Any:
    return InMemoryVectorStore.from_documents(documents, HashEmbeddings()).as_retriever(
        search_kwargs={"k": 2}
    )


def scripted(retriever: Any, entropy: float, **settings: Any) -> LazyRetrievalChain:
    return LazyRetrievalChain(FakeReader(lambda _: ANSWER, entropy=entropy), retriever, SUMMARY, **settings)


@pytest.mark.parametrize("entropy", [0.1, 2.0])
async def test_chunks_add_up_to_the_answer(retriever: Any, entropy: float) -> None:
    chain = scripted(retriever, entropy)
    whole = chain.invoke("Where?")
    for chunks in (list(chain.stream("Where?")), [chunk async for chunk in chain.astream("Where?")]):
        assert list(chunks[0]) == ["context", "decision"]
        assert sum(bool(chunk.get("answer")) for chunk in chunks) > 1
        added = chunks[0]
        for chunk in chunks[1:]:
            added = added + chunk
        assert dict(added) == whole
    pieces = [piece async for piece in chain.pick("answer").astream("Where?")]
    assert len(pieces) > 1
    assert "".join(pieces) == whole["answer"]


def test_an_empty_answer_streams_as_one(retriever: Any) -> None:
    chain = LazyRetrievalChain(FakeReader(lambda _: "", entropy=0.1), retriever, SUMMARY)
    added: Any = None
    for chunk in chain.stream("Where?"):
        added = chunk if added is None else added + chunk
    assert added["answer"] == ""


async def test_a_question_may_come_in_chunks(retriever: Any) -> None:
    chain = scripted(retriever, 0.1)

    def words(_: str) -> Any:
        yield from ("Where ", "was ", "Ada ", "born?")

    async def mappings() -> AsyncIterator[Any]:
        yield AddableDict(question="Where ")
        yield AddableDict(question="was Ada born?")

    assert len(list((RunnableLambda(words) | chain).stream(""))) > 2
    assert "Where was Ada born?" in chain.llm.prompts[-1]
    chain.llm.history.clear()
    assert [chunk async for chunk in chain.atransform(mappings())]
    assert "Where was Ada born?" in chain.llm.prompts[-1]


def test_the_decision_comes_before_the_answer_is_generated(retriever: Any) -> None:
    with FakeOpenAI(Script(lambda _: ANSWER, logprob=-0.001), hold_after=3) as server:
        chain = LazyRetrievalChain(chat(server), retriever, SUMMARY, threshold=9.0, gate_tokens=2)
        stream = chain.stream("Where?")
        assert next(stream)["decision"]["retrieve"] is False
        assert server.streams[0].sent <= 3
        server.release()
        assert "".join(chunk["answer"] for chunk in stream) == ANSWER
        assert len(server.requests) == 1


async def test_leaving_a_stream_hangs_up(retriever: Any) -> None:
    with FakeOpenAI(Script(lambda _: ANSWER), hold_after=3) as server:
        chain = LazyRetrievalChain(chat(server), retriever, SUMMARY, threshold=9.0, gate_tokens=2)
        stream = chain.stream("Where?")
        next(stream)
        stream.close()
        assert server.streams[0].wait().closed_early
        astream = chain.astream("Where?")
        await anext(astream)
        await astream.aclose()
        record = await asyncio.to_thread(server.streams[1].wait)
        assert record.closed_early


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_an_open_gate_costs_n_tokens_and_a_shut_one_one_request(
    retriever: Any, asynchronously: bool
) -> None:
    async def ask(chain: LazyRetrievalChain) -> dict[str, Any]:
        return await chain.ainvoke("Where?") if asynchronously else chain.invoke("Where?")

    with FakeOpenAI(Script(lambda _: ANSWER), hold_after=3) as server:
        chain = LazyRetrievalChain(chat(server), retriever, SUMMARY, threshold=0.0, gate_tokens=3)
        output = await ask(chain)
        assert output["decision"]["retrieve"]
        assert output["decision"]["lower"] <= output["decision"]["signal"] <= output["decision"]["upper"]
        record = await asyncio.to_thread(server.streams[0].wait)
        assert (record.sent, record.closed_early) == (3, True)
        assert len(server.requests) == 2
        server.release()
        assert (await ask(chain.attach(llm=chat(server)).model_copy(update={"threshold": 99.0})))[
            "answer"
        ] == ANSWER
        assert len(server.requests) == 3


# Runs and events.


class Runs(BaseCallbackHandler):
    """Remembers which run hangs under which."""

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {}
        self.parents: dict[UUID, UUID | None] = {}
        self.events: list[tuple[str, UUID, Any]] = []

    def _start(
        self,
        serialized: Any,
        *_: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        name: str | None = None,
        **__: Any,
    ) -> None:
        self.names[run_id] = name or serialized["id"][-1]
        self.parents[run_id] = parent_run_id

    on_chain_start = on_chat_model_start = on_llm_start = on_retriever_start = on_tool_start = _start

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **_: Any) -> None:
        self.events.append((name, run_id, data))

    def under(self, parent: UUID | None) -> list[str]:
        return sorted(self.names[run] for run, above in self.parents.items() if above == parent)


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream", "batch", "abatch"])
async def test_every_call_hangs_under_the_chains_run(server: FakeOpenAI, retriever: Any, way: str) -> None:
    runs = Runs()
    chain = LazyRetrievalChain(chat(server), retriever, SUMMARY, threshold=0.0)
    config = {"callbacks": [runs]}
    match way:
        case "invoke":
            chain.invoke("Where?", config)
        case "ainvoke":
            await chain.ainvoke("Where?", config)
        case "stream":
            list(chain.stream("Where?", config))
        case "astream":
            [chunk async for chunk in chain.astream("Where?", config)]
        case "batch":
            chain.batch(["Where?"], config)
        case "abatch":
            await chain.abatch(["Where?"], config)
    [root] = [run for run, above in runs.parents.items() if above is None]
    assert runs.under(None) == ["LazyRetrievalChain"]
    assert runs.under(root) == ["VectorStoreRetriever", "surerag:answer", "surerag:gate"]
    assert [(name, run) for name, run, _ in runs.events] == [
        ("lazy_rag.gate", root),
        ("lazy_rag.answering", root),
    ]
    assert runs.events[0][2]["retrieve"] is True


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("asynchronously", [False, True])
async def test_each_question_of_a_batch_has_its_own_run(
    server: FakeOpenAI, retriever: Any, local: bool, asynchronously: bool
) -> None:
    model: Any = LocalReader(lambda _: ANSWER) if local else chat(server)
    chain = LazyRetrievalChain(model, retriever, SUMMARY, threshold=0.0)
    runs = Runs()
    config: Any = {"callbacks": [runs]}
    if asynchronously:
        await chain.abatch(["a", "b", "c"], config)
    else:
        await asyncio.to_thread(chain.batch, ["a", "b", "c"], config)
    roots = [run for run, above in runs.parents.items() if above is None]
    assert len(roots) == 3
    for root in roots:
        assert runs.under(root) == ["VectorStoreRetriever", "surerag:answer", "surerag:gate"]
        assert [name for name, run, _ in runs.events if run == root] == [
            "lazy_rag.gate",
            "lazy_rag.answering",
        ]
    questions = {data["question"] for _, _, data in runs.events if "question" in data}
    assert questions == {"a", "b", "c"}


async def test_decisions_are_seen_in_astream_events(retriever: Any) -> None:
    seen = [event async for event in scripted(retriever, 2.0).astream_events("Where?", version="v2")]
    names = [event["name"] if event["event"] == "on_custom_event" else event["event"] for event in seen]
    assert names.index("lazy_rag.gate") < names.index("on_retriever_start") < names.index("on_chain_stream")
    [gate] = [event for event in seen if event["name"] == "lazy_rag.gate"]
    assert gate["data"]["signal"] == pytest.approx(2.0)


async def test_async_handlers_run_in_the_callers_loop(retriever: Any) -> None:
    loops = []

    class Handler(AsyncCallbackHandler):
        async def on_custom_event(self, name: str, data: Any, **_: Any) -> None:
            loops.append(asyncio.get_running_loop())

    await scripted(retriever, 0.1).ainvoke("Where?", {"callbacks": [Handler()]})
    assert loops == [asyncio.get_running_loop()] * 2


# Concurrency.


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_a_local_models_batch_is_merged(retriever: Any, asynchronously: bool) -> None:
    reader = LocalReader(lambda _: ANSWER)
    chain = LazyRetrievalChain(reader, retriever, SUMMARY)
    questions = [f"question {number}" for number in range(16)]
    outputs = (
        await chain.abatch(questions) if asynchronously else await asyncio.to_thread(chain.batch, questions)
    )
    assert [output["answer"] for output in outputs] == [ANSWER] * 16
    begun = [size for verb, size in reader.batches if verb == "begin"]
    assert sum(begun) == 16
    # On a busy machine, the first question may be asked before the others stand in the queue.
    assert len(begun) <= 2
    assert threading.get_ident() not in reader.threads or not asynchronously


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_a_batch_obeys_max_concurrency(
    server: FakeOpenAI, retriever: Any, asynchronously: bool
) -> None:
    chain = LazyRetrievalChain(chat(server), retriever, SUMMARY, mode="none")
    questions = [f"question {number}" for number in range(6)]
    config: Any = {"max_concurrency": 2}
    server.pause()
    call = (
        chain.abatch(questions, config)
        if asynchronously
        else asyncio.to_thread(chain.batch, questions, config)
    )
    task = asyncio.create_task(call)
    await asyncio.to_thread(server.wait_for, 2)
    server.release()
    await task
    assert server.peak == 2


async def test_async_questions_are_answered_concurrently(
    server: FakeOpenAI, retriever: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chat(server)
    for name in ("_generate", "_stream", "generate", "invoke", "stream"):
        monkeypatch.setattr(type(model), name, lambda *_, **__: pytest.fail("a sync method was called"))
    monkeypatch.setattr(
        type(retriever), "_get_relevant_documents", lambda *_, **__: pytest.fail("sync retrieval")
    )
    chain = LazyRetrievalChain(model, retriever, SUMMARY, threshold=0.0)
    server.pause()
    task = asyncio.gather(*(chain.ainvoke(f"question {number}") for number in range(8)))
    await asyncio.to_thread(server.wait_for, 8)
    server.release()
    assert len(await task) == 8


async def test_the_loop_is_free_while_a_local_model_works(retriever: Any) -> None:
    reader = LocalReader(lambda _: ANSWER)
    reader.gate.clear()
    chain = LazyRetrievalChain(reader, retriever, SUMMARY)
    task = asyncio.create_task(chain.ainvoke("Where?"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not task.done()
    reader.gate.set()
    assert (await task)["answer"] == ANSWER


async def test_one_chain_in_many_loops(retriever: Any) -> None:
    chain = LazyRetrievalChain(LocalReader(lambda _: ANSWER), retriever, SUMMARY, threshold=0.0)

    def elsewhere() -> str:
        return asyncio.run(chain.ainvoke("Where?"))["answer"]

    assert (await chain.ainvoke("Where?"))["answer"] == ANSWER
    assert await asyncio.gather(*(asyncio.to_thread(elsewhere) for _ in range(3))) == [ANSWER] * 3
