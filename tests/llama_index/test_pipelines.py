"""The engine inside LlamaIndex's own agents, routers, chat engines and workflows."""

from __future__ import annotations

import pytest
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.base.response.schema import Response
from llama_index.core.chat_engine import CondenseQuestionChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import (
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step

from llama_index_surerag import LazyRetrievalQueryEngine
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, UNKNOWN, Knowing
from tests.llama_index.models import Calling, Scripted, Splitting

KNOWN_ANSWER, FOUND_ANSWER = "She was born in Velm", "In the lake of Mir"


@pytest.fixture
def lazy() -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(corpus.index(), Knowing(corpus.answer), top_n=1, n_summaries=1)


@pytest.fixture
def tool(lazy: LazyRetrievalQueryEngine) -> QueryEngineTool:
    return QueryEngineTool.from_defaults(lazy, name="atlas", description="Knows people and rivers.")


@pytest.mark.parametrize(("question", "answer"), [(KNOWN, KNOWN_ANSWER), (UNKNOWN, FOUND_ANSWER)])
async def test_function_agent(tool: QueryEngineTool, question: str, answer: str) -> None:
    agent = FunctionAgent(tools=[tool], llm=Calling())
    output = await agent.run(user_msg=question)
    assert str(output).startswith(f"Tool: {answer}")
    [call] = output.tool_calls
    assert call.tool_output.raw_output.metadata["retrieve"] == (question == UNKNOWN)


async def test_react_agent(tool: QueryEngineTool) -> None:
    thought = f'Thought: I need a tool.\nAction: atlas\nAction Input: {{"input": "{UNKNOWN}"}}'
    llm = Scripted(texts=[thought, "Thought: I can answer without using any more tools.\nAnswer: Mir"])
    output = await ReActAgent(tools=[tool], llm=llm).run(user_msg=UNKNOWN)
    assert str(output) == "Mir"
    assert f"Observation: {FOUND_ANSWER}" in llm._prompts[-1]


@pytest.mark.parametrize("use_async", [False, True])
async def test_sub_questions(tool: QueryEngineTool, use_async: bool) -> None:
    outer = SubQuestionQueryEngine.from_defaults(
        [tool], MockLLM(), Splitting(), use_async=False, verbose=False
    )
    response = await outer.aquery("Both?") if use_async else outer.query("Both?")
    # It swallows what its engines raise: only answers show that they worked.
    assert KNOWN_ANSWER in str(response)
    assert FOUND_ANSWER in str(response)


async def test_router(tool: QueryEngineTool) -> None:
    choice = '[{"choice": 1, "reason": "it asks"}]'
    llm = Scripted(texts=[choice, choice])
    router = RouterQueryEngine(LLMSingleSelector.from_defaults(llm), [tool], llm=MockLLM())
    for response in (router.query(UNKNOWN), await router.aquery(UNKNOWN)):
        assert str(response).startswith(FOUND_ANSWER)
        assert response.metadata["retrieve"] is True


async def test_condense_question_chat(lazy: LazyRetrievalQueryEngine) -> None:
    chat = CondenseQuestionChatEngine.from_defaults(lazy, llm=Scripted(texts=[UNKNOWN, UNKNOWN]))
    first = chat.chat(KNOWN)
    assert str(first).startswith(KNOWN_ANSWER)
    assert [node.node_id for node in first.source_nodes] == ["ada:summary"]
    assert str(chat.chat("And the other?")).startswith(FOUND_ANSWER)
    assert str(await chat.achat("And the other?")).startswith(FOUND_ANSWER)


async def test_condense_question_chat_streams() -> None:
    lazy = LazyRetrievalQueryEngine.from_args(
        corpus.index(), Knowing(corpus.answer), top_n=1, n_summaries=1, streaming=True
    )
    chat = CondenseQuestionChatEngine.from_defaults(lazy, llm=Scripted(texts=[UNKNOWN]))
    pieces = list(chat.stream_chat(KNOWN).response_gen)
    assert "".join(pieces).startswith(KNOWN_ANSWER)
    later = await chat.astream_chat("And the other?")
    assert "".join([piece async for piece in later.async_response_gen()]).startswith(FOUND_ANSWER)


async def test_workflow_step(lazy: LazyRetrievalQueryEngine) -> None:
    class Asking(Workflow):
        @step
        async def ask(self, context: Context, event: StartEvent) -> StopEvent:
            response = await lazy.aquery(event.question)
            return StopEvent(result=response)

    result = await Asking().run(question=UNKNOWN)
    assert isinstance(result, Response)
    assert str(result).startswith(FOUND_ANSWER)


def test_a_query_transform_before_it(lazy: LazyRetrievalQueryEngine) -> None:
    from llama_index.core.indices.query.query_transform.base import HyDEQueryTransform

    hyde = HyDEQueryTransform(llm=Scripted(texts=["The Orun does end in the lake of Mir."] * 2))
    response = TransformQueryEngine(lazy, hyde).query(UNKNOWN)
    assert str(response).startswith(FOUND_ANSWER)
