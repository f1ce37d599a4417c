"""Parts as steps of workflows and tools of agents, with what they decide in the event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.schema import NodeWithScore
from llama_index.core.tools import QueryEngineTool, RetrieverTool, ToolMetadata
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from llama_index_surerag import (
    AnswerStreamEvent,
    ClusterCompressorPostprocessor,
    DenseEvaluator,
    DenseRefinerPostprocessor,
    LazyRetrievalQueryEngine,
    MethodStreamEvent,
    UncertaintyRewriteQueryEngine,
    answer_in,
    engine_tool,
    streamed_to,
)
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.readers.fake import FakeReader
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, UNKNOWN, Knowing
from tests.llama_index.models import Calling

KNOWN_ANSWER, FOUND_ANSWER = "She was born in Velm", "In the lake of Mir"


def lazy(**settings: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(
        corpus.index(), Knowing(corpus.answer), **{"top_n": 1, "n_summaries": 1, **settings}
    )


class Found(Event):
    """What was retrieved."""

    question: str
    nodes: list[NodeWithScore]


class Refined(Found):
    """What the reader understands of it."""


class Steps(Workflow):
    """Retrieve, refine, answer, judge: each part in a step of its own."""

    def __init__(self, reader: Any, **settings: Any) -> None:
        super().__init__(timeout=30, **settings)
        self.retriever = corpus.index().as_retriever(similarity_top_k=3)
        self.refiner = DenseRefinerPostprocessor(reader, HashingEncoder(), ExactEntailer(), top_n=2)
        self.engine = lazy(streaming=True)
        self.judge = DenseEvaluator(reader, ExactEntailer())

    @step
    async def retrieve(self, ctx: Context, event: StartEvent) -> Found:
        nodes = await self.retriever.aretrieve(event.question)
        return Found(question=event.question, nodes=nodes)

    @step(num_workers=2)
    async def refine(self, ctx: Context, event: Found) -> Refined:
        with streamed_to(ctx):
            nodes = await self.refiner.apostprocess_nodes(event.nodes, query_str=event.question)
        return Refined(question=event.question, nodes=nodes)

    @step
    async def answer(self, ctx: Context, event: Refined) -> StopEvent:
        response = await answer_in(ctx, self.engine, event.question)
        with streamed_to(ctx):
            # A sync call in a thread is heard as well.
            judged = await asyncio.to_thread(
                self.judge.evaluate, event.question, contexts=[node.text for node in event.nodes]
            )
        return StopEvent(result=(response, judged))


async def test_parts_are_steps_and_the_stream_tells_what_they_do() -> None:
    handler = Steps(Knowing(corpus.answer)).run(question=UNKNOWN)
    events = [event async for event in handler.stream_events()]
    response, judged = await handler
    names = [event.name for event in events if isinstance(event, MethodStreamEvent)]
    order = ["context_refiner.refined", "lazy_rag.gate", "lazy_rag.answering", "dense.measured"]
    assert [names.index(name) for name in order] == sorted(names.index(name) for name in order)
    [gate] = [e for e in events if isinstance(e, MethodStreamEvent) and e.name == "lazy_rag.gate"]
    assert gate.data["retrieve"] is True
    assert gate.data["signal"] == response.metadata["signal"]
    pieces = [event.delta for event in events if isinstance(event, AnswerStreamEvent)]
    assert len(pieces) > 5
    assert "".join(pieces) == str(response)
    assert str(response).startswith(FOUND_ANSWER)
    assert response.metadata["completion_tokens"]
    assert response.source_nodes
    assert judged.invalid_result is False


async def test_nobody_listens_outside_and_each_run_hears_its_own() -> None:
    engine = lazy()

    class Asking(Workflow):
        @step
        async def ask(self, ctx: Context, event: StartEvent) -> StopEvent:
            return StopEvent(result=await answer_in(ctx, engine, event.question))

    async def one(question: str) -> list[str]:
        handler = Asking().run(question=question)
        heard = [e async for e in handler.stream_events() if isinstance(e, MethodStreamEvent)]
        await handler
        await engine.aquery(KNOWN)
        return [e.data["question"] for e in heard if e.name == "lazy_rag.gate"]

    questions = [KNOWN, UNKNOWN] * 4
    assert await asyncio.gather(*(one(question) for question in questions)) == [[q] for q in questions]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("question", "answer"), [(KNOWN, KNOWN_ANSWER), (UNKNOWN, FOUND_ANSWER)])
async def test_an_engine_as_a_tool_of_a_function_agent_streams_its_decision(
    question: str, answer: str, streaming: bool
) -> None:
    tool = engine_tool(lazy(streaming=streaming), name="atlas", description="Knows people and rivers.")
    handler = FunctionAgent(tools=[tool], llm=Calling()).run(user_msg=question)
    events = [event async for event in handler.stream_events()]
    output = await handler
    assert str(output).startswith(f"Tool: {answer}")
    [gate] = [e for e in events if isinstance(e, MethodStreamEvent) and e.name == "lazy_rag.gate"]
    assert gate.data["retrieve"] == (question == UNKNOWN)
    pieces = [event.delta for event in events if isinstance(event, AnswerStreamEvent)]
    assert "".join(pieces).startswith(answer if streaming else "")
    assert bool(pieces) == streaming
    [call] = output.tool_calls
    assert call.tool_output.raw_output.metadata["retrieve"] == (question == UNKNOWN)
    assert call.tool_output.raw_output.source_nodes


class HandingOver(Calling):
    """Hands over to the librarian first, and then asks its tool."""

    def _reply(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        if messages[-1].role == "tool":
            return super()._reply(messages)
        question = next(message.content for message in messages if message.role == "user")
        call = {"id": "0", "name": "handoff", "input": question}
        return ChatResponse(message=ChatMessage(role="assistant", additional_kwargs={"tool_calls": [call]}))

    def get_tool_calls_from_response(self, response: ChatResponse, **kwargs: Any) -> Any:
        found = super().get_tool_calls_from_response(response)
        for call in found:
            if call.tool_name == "handoff":
                call.tool_kwargs = {"to_agent": "librarian", "reason": "it knows"}
        return found


class Librarian(Calling):
    """Asks its tool what the user asked, whoever spoke last."""

    def _reply(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        if messages[-1].role == "tool" and messages[-1].additional_kwargs.get("tool_call_id") == "1":
            return super()._reply(messages)
        question = next(message.content for message in messages if message.role == "user")
        call = {"id": "1", "name": "atlas", "input": question}
        return ChatResponse(message=ChatMessage(role="assistant", additional_kwargs={"tool_calls": [call]}))


@pytest.mark.parametrize("kind", ["streamed", "plain", "rewriting", "retriever"])
async def test_parts_are_tools_in_an_agent_workflow(kind: str) -> None:
    reader = Knowing(corpus.answer)
    metadata = ToolMetadata(name="atlas", description="Knows people and rivers.")
    rewriting = UncertaintyRewriteQueryEngine.from_args(corpus.index(), reader, top_n=1)
    compressor = ClusterCompressorPostprocessor(reader, HashingEncoder(), pass_below=0)
    tools = {
        "streamed": lambda: engine_tool(lazy(), name="atlas", description="Knows people and rivers."),
        "plain": lambda: QueryEngineTool(lazy(), metadata),
        "rewriting": lambda: engine_tool(rewriting, name="atlas", description="Knows rivers."),
        "retriever": lambda: RetrieverTool(
            corpus.index().as_retriever(similarity_top_k=2), metadata, node_postprocessors=[compressor]
        ),
    }
    greeter = FunctionAgent(
        name="greeter", description="Greets.", llm=HandingOver(), can_handoff_to=["librarian"]
    )
    librarian = FunctionAgent(name="librarian", description="Knows.", llm=Librarian(), tools=[tools[kind]()])
    handler = AgentWorkflow(agents=[greeter, librarian], root_agent="greeter").run(user_msg=UNKNOWN)
    events = [event async for event in handler.stream_events()]
    output = await handler
    [result] = [e for e in events if isinstance(e, ToolCallResult) and e.tool_name == "atlas"]
    assert not result.tool_output.is_error
    assert "Mir" in str(output)
    heard = {event.name for event in events if isinstance(event, MethodStreamEvent)}
    expected = {"streamed": {"lazy_rag.gate"}, "rewriting": {"uncertainty_rewriting.gate"}}
    assert heard >= expected.get(kind, set())


async def test_sync_calls_work_inside_a_running_loop() -> None:
    """As in a notebook, and in tools that are plain functions."""
    reader = FakeReader(default="Velm", entropy=0.1)
    nodes = corpus.index().as_retriever(similarity_top_k=2).retrieve(KNOWN)
    compressor = ClusterCompressorPostprocessor(reader, HashingEncoder(), pass_below=0)
    assert str(lazy().query(KNOWN)).startswith(KNOWN_ANSWER)
    assert UncertaintyRewriteQueryEngine.from_args(corpus.index(), reader).query(KNOWN).source_nodes
    assert compressor.postprocess_nodes(nodes, query_str=KNOWN)
    assert DenseEvaluator(reader, ExactEntailer()).evaluate(KNOWN, contexts=["a"]).query == KNOWN
