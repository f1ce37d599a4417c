"""Models in this process, as callbacks, tracers, events and graphs see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, get_usage_metadata_callback
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tracers.context import collect_runs
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from langgraph.graph import START, StateGraph
from transformers import pipeline as make_pipeline

from langchain_surerag import (
    ClusterCompressor,
    LazyRetrievalChain,
    RAGState,
    UncertaintyRewriteRetriever,
    lazy_retrieval_node,
)
from surerag import FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import ServiceError
from tests.langchain.handlers import Seen
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

OPEN, SHUT = 0.0, 99.0
found = RunnableLambda(lambda _: [Document("Ada was born in Velm.")])


@pytest.fixture(scope="module")
def model() -> Any:
    pipeline = make_pipeline(
        "text-generation", model=tiny_model("llama"), tokenizer=tiny_tokenizer(chat=True), device="cpu"
    )
    return ChatHuggingFace(llm=HuggingFacePipeline(pipeline=pipeline), tokenizer=pipeline.tokenizer)


def chain_on(model: Any, threshold: float, **settings: Any) -> LazyRetrievalChain:
    settings = {"max_tokens": 6, "gate_tokens": 3, **settings}
    return LazyRetrievalChain(model, found, "Ada is a painter.", threshold=threshold, **settings)


async def asked(chain: Any, way: str, config: Any) -> str:
    match way:
        case "invoke":
            return (await asyncio.to_thread(chain.invoke, "Where?", config))["answer"]
        case "ainvoke":
            return (await chain.ainvoke("Where?", config))["answer"]
        case "stream":
            chunks = await asyncio.to_thread(lambda: list(chain.stream("Where?", config)))
            return "".join(chunk.get("answer", "") for chunk in chunks)
        case "batch":
            return (await asyncio.to_thread(chain.batch, ["Where?"], config))[0]["answer"]
    return "".join([chunk.get("answer", "") async for chunk in chain.astream("Where?", config)])


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream", "batch"])
@pytest.mark.parametrize("threshold", [OPEN, SHUT])
async def test_a_pipelines_runs_begin_and_end(model: Any, threshold: float, way: str) -> None:
    seen = Seen()
    with collect_runs() as collected, get_usage_metadata_callback() as counted:
        answer = await asked(chain_on(model, threshold), way, {"callbacks": [seen]})
    names = ["surerag:gate"] + ["surerag:answer"] * (threshold == OPEN)
    assert [call[1] for call in seen.calls if call[0] == "start"] == names
    assert seen.calls.count(("end",)) == len(names)
    [root] = collected.traced_runs
    runs = [run for run in root.child_runs if run.run_type in ("llm", "chat_model")]
    assert [run.name for run in runs] == names
    assert all(run.end_time is not None and run.error is None for run in runs)
    message = runs[-1].outputs["generations"][0][0]["message"]["kwargs"]
    assert message["content"] == answer
    assert message["usage_metadata"]["input_tokens"] > 0
    [total] = counted.usage_metadata.values()
    assert total["output_tokens"] >= 1
    if "stream" in way:
        assert "".join(seen.tokens) == answer


@pytest.mark.parametrize("flowing", [False, True])
@pytest.mark.parametrize("threshold", [OPEN, SHUT])
async def test_a_local_answer_streams_through_a_graph(threshold: float, flowing: bool) -> None:
    drafted, informed = "A mere DRAFT of it.", "So it is Velm."
    reader = FakeReader(lambda prompt: informed if "details" in prompt else drafted, entropy=1.0)
    chain = chain_on(reader, threshold)
    shown = informed if threshold == OPEN else drafted

    async def node(state: RAGState, config: RunnableConfig) -> Any:
        pieces = [piece.get("answer", "") async for piece in chain.astream(state["question"], config)]
        return {"answer": "".join(pieces)}

    graph = StateGraph(RAGState).add_node("lazy", node if flowing else lazy_retrieval_node(chain))
    app = graph.add_edge(START, "lazy").compile()
    messages = [item async for item in app.astream({"question": "Where?"}, stream_mode="messages")]
    assert "".join(message.text for message, _ in messages) == shown
    assert sum(bool(message.text) for message, _ in messages) > 1
    assert len({message.id for message, _ in messages}) == 1
    if not flowing:
        messages = await asyncio.to_thread(
            lambda: list(app.stream({"question": "Where?"}, stream_mode="messages"))
        )
        assert "".join(message.text for message, _ in messages) == shown
    events = [event async for event in app.astream_events({"question": "Where?"}, version="v2")]
    streamed = [event for event in events if event["event"] == "on_chat_model_stream"]
    assert "".join(event["data"]["chunk"].text for event in streamed) == shown
    assert {event["name"] for event in streamed} == {"surerag:answer"}


async def test_handlers_that_await_are_awaited_in_the_callers_loop() -> None:
    seen: list[Any] = []

    class Handler(AsyncCallbackHandler):
        async def on_chat_model_start(self, *_: Any, name: Any = None, **__: Any) -> None:
            await asyncio.sleep(0)
            seen.append((name, asyncio.get_running_loop()))

        async def on_llm_end(self, *_: Any, **__: Any) -> None:
            seen.append(("end", asyncio.get_running_loop()))

    chain = chain_on(FakeReader(lambda _: "Velm", entropy=1.0), OPEN)
    await chain.ainvoke("Where?", {"callbacks": [Handler()]})
    loop = asyncio.get_running_loop()
    assert seen == [(name, loop) for name in ("surerag:gate", "end", "surerag:answer", "end")]


async def test_a_request_that_fails_is_a_run_that_failed() -> None:
    chain = chain_on(FakeReader([]), OPEN, mode="none")
    for way in ("invoke", "ainvoke"):
        seen = Seen()
        with pytest.raises(ServiceError):
            await asked(chain, way, {"callbacks": [seen]})
        assert [call[0] for call in seen.calls] == ["start", "error"]


async def test_a_stream_that_is_left_closes_its_run() -> None:
    seen = Seen()
    stream = chain_on(FakeReader(lambda _: "one two three four"), SHUT).stream("?", {"callbacks": [seen]})
    next(stream)
    stream.close()
    assert [call[0] for call in seen.calls] == ["start", "error"]


async def test_other_parts_requests_are_runs_under_theirs() -> None:
    reader = FakeReader(lambda _: "Ada was born in Velm.")
    retriever = UncertaintyRewriteRetriever(reader, found)
    with collect_runs() as collected:
        retriever.invoke("Where?")
        await retriever.ainvoke("Where?")
    for root in collected.traced_runs:
        kinds = [run.run_type for run in root.child_runs]
        assert set(kinds) & {"llm", "chat_model"}
    part = ClusterCompressor(FakeReader(lambda _: "Ada was born in Velm."), HashingEncoder(), pass_below=0)
    seen = Seen()
    documents = [Document("Ada was born in Velm. Bo came much later, and stayed in Tarn for years.")]
    part.compress_documents(documents, "Where?", [seen])
    await part.acompress_documents(documents, "Where?", [seen])
    assert [call[0] for call in seen.calls].count("start") == seen.calls.count(("end",)) >= 2
    assert {call for call in seen.calls if call[0] == "start"} == {
        ("start", "FakeReader", "nostream", "surerag:step")
    }
