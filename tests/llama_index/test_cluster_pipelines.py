"""The cluster compressor inside LlamaIndex's sub-question and router engines, agents and chat engines."""

from __future__ import annotations

import re
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import CitationQueryEngine, RouterQueryEngine, SubQuestionQueryEngine
from llama_index.core.schema import TextNode
from llama_index.core.selectors import LLMMultiSelector, LLMSingleSelector
from llama_index.core.tools import QueryEngineTool

from llama_index_surerag import ClusterCompressorPostprocessor
from surerag import FakeReader
from surerag.prompts import NOTHING_TO_EXTRACT
from tests.llama_index.corpus import KNOWN, UNKNOWN, HashEmbedding
from tests.llama_index.models import Calling, Scripted, Splitting

ADA = "Ada the painter was born in Velm, they say, long ago."
ADA_TOO = "It was in Velm that Ada the painter was born."
MIR = "The Orun does end in the lake of Mir, far to the north."
MIR_TOO = "In the lake of Mir does the Orun end, and nowhere else."
BO = "Bo the sculptor was born in Tarn and stayed there all his life."
GATES = "The gates of Tarn are made of copper and of old wood."
TEXTS = (ADA, ADA_TOO, MIR, MIR_TOO, BO, GATES)


def quoting(prompt: str) -> str:
    """Quote the first document about whom or what the question names; nothing otherwise."""
    question = re.search(r"Question: (.*)", prompt)
    assert question is not None
    name = "Ada" if "Ada" in question[1] else "Orun"
    texts = [line.split("] ", 1)[1] for line in prompt.splitlines() if line.startswith("[")]
    return next((text for text in texts if name in text), NOTHING_TO_EXTRACT)


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader(quoting)


@pytest.fixture
def compressor(reader: FakeReader) -> ClusterCompressorPostprocessor:
    return ClusterCompressorPostprocessor(reader, HashEmbedding(), first_cluster_size=2, pass_below=0)


@pytest.fixture
def index() -> VectorStoreIndex:
    nodes = [TextNode(id_=f"n{place}", text=text) for place, text in enumerate(TEXTS)]
    return VectorStoreIndex(nodes, embed_model=HashEmbedding())


@pytest.fixture
def engine(index: VectorStoreIndex, compressor: ClusterCompressorPostprocessor) -> BaseQueryEngine:
    """An engine whose LLM says what it was asked: its answer shows the context."""
    return index.as_query_engine(MockLLM(), similarity_top_k=6, node_postprocessors=[compressor])


@pytest.fixture
def tool(engine: BaseQueryEngine) -> QueryEngineTool:
    return QueryEngineTool.from_defaults(engine, name="atlas", description="Knows people and rivers.")


def told(text: str) -> set[str]:
    """Which of the corpus's texts stand in another one."""
    return {each for each in TEXTS if each in text}


def sources(response: Any) -> list[tuple[str, list[str]]]:
    """The nodes behind a response that were compressed, and what from."""
    return [
        (node.node_id, [source["id"] for source in node.metadata["compressed_from"]])
        for node in response.source_nodes
        if "compressed_from" in node.metadata
    ]


@pytest.mark.parametrize("use_async", [False, True])
async def test_sub_questions_are_each_answered_from_clusters_compressed_for_them(
    tool: QueryEngineTool, reader: FakeReader, use_async: bool
) -> None:
    outer = SubQuestionQueryEngine.from_defaults(
        [tool], MockLLM(), Splitting(), use_async=False, verbose=False
    )
    response = await outer.aquery("Both?") if use_async else outer.query("Both?")
    # It swallows what its engines raise: only answers show that they worked.
    shown = told(str(response))
    assert len(shown & {ADA, ADA_TOO}) == len(shown & {MIR, MIR_TOO}) == 1
    assert not shown & {BO, GATES}
    assert sorted(sorted(names) for _, names in sources(response)) == [["n0", "n1"], ["n2", "n3"]]
    asked = [match[1] for prompt in reader.prompts if (match := re.search(r"Question: (.*)", prompt))]
    assert sorted(set(asked)) == sorted((KNOWN, UNKNOWN))


def test_sub_questions_at_once_from_a_thread_without_a_loop(tool: QueryEngineTool) -> None:
    together, alone = (
        SubQuestionQueryEngine.from_defaults([tool], MockLLM(), Splitting(), use_async=way, verbose=False)
        for way in (True, False)
    )
    assert str(together.query("Both?")) == str(alone.query("Both?"))


async def test_a_router_gives_what_the_engine_that_it_chose_compressed(
    tool: QueryEngineTool, engine: BaseQueryEngine
) -> None:
    other = QueryEngineTool.from_defaults(
        VectorStoreIndex([], embed_model=HashEmbedding()).as_query_engine(MockLLM()), name="other"
    )
    choice = '[{"choice": 1, "reason": "it asks for a place"}]'
    selector = LLMSingleSelector.from_defaults(Scripted(texts=[choice, choice]))
    router = RouterQueryEngine(selector, [tool, other], llm=MockLLM())
    alone = engine.query(UNKNOWN)
    for response in (router.query(UNKNOWN), await router.aquery(UNKNOWN)):
        assert str(response) == str(alone)
        assert sources(response) == sources(alone)
        assert len(told(str(response))) == 1
        assert told(str(response)) < {MIR, MIR_TOO}


async def test_a_router_that_chooses_several_engines_sums_them_up(
    index: VectorStoreIndex, tool: QueryEngineTool
) -> None:
    plain = QueryEngineTool.from_defaults(
        index.as_query_engine(MockLLM(), similarity_top_k=6), name="plain", description="Compresses nothing."
    )
    both = '[{"choice": 1, "reason": "short"}, {"choice": 2, "reason": "long"}]'
    selector = LLMMultiSelector.from_defaults(Scripted(texts=[both, both]))
    router = RouterQueryEngine(selector, [tool, plain], llm=MockLLM())
    for response in (router.query(KNOWN), await router.aquery(KNOWN)):
        assert [names for _, names in sources(response)] in ([["n0", "n1"]], [["n1", "n0"]])
        assert len(response.source_nodes) == 1 + len(TEXTS)


async def test_function_agent(tool: QueryEngineTool) -> None:
    output = await FunctionAgent(tools=[tool], llm=Calling()).run(user_msg=KNOWN)
    [call] = output.tool_calls
    response = call.tool_output.raw_output
    assert isinstance(response, Response)
    assert str(output) == f"Tool: {response}"
    assert len(told(str(output))) == 1
    assert told(str(output)) < {ADA, ADA_TOO}
    assert [sorted(names) for _, names in sources(response)] == [["n0", "n1"]]


async def test_react_agent(tool: QueryEngineTool) -> None:
    thought = f'Thought: I need a tool.\nAction: atlas\nAction Input: {{"input": "{UNKNOWN}"}}'
    llm = Scripted(texts=[thought, "Thought: I can answer without using any more tools.\nAnswer: Mir"])
    output = await ReActAgent(tools=[tool], llm=llm).run(user_msg=UNKNOWN)
    assert str(output) == "Mir"
    observed = llm._prompts[-1].split("Observation:")[-1]
    assert len(told(observed)) == 1
    assert told(observed) < {MIR, MIR_TOO}


async def test_a_tool_is_called_sync_and_async_alike(tool: QueryEngineTool) -> None:
    outputs = [tool.call(KNOWN), await tool.acall(KNOWN)]
    assert outputs[0].content == outputs[1].content
    assert sources(outputs[0].raw_output) == sources(outputs[1].raw_output) != []


async def test_context_chat_and_citations(
    index: VectorStoreIndex, compressor: ClusterCompressorPostprocessor
) -> None:
    retriever = index.as_retriever(similarity_top_k=6)
    chat = ContextChatEngine.from_defaults(retriever, llm=MockLLM(), node_postprocessors=[compressor])
    for answer in (chat.chat(KNOWN), await chat.achat(KNOWN)):
        assert [sorted(names) for _, names in sources(answer)] == [["n0", "n1"]]
    cited = CitationQueryEngine.from_args(
        index, MockLLM(), similarity_top_k=6, node_postprocessors=[compressor]
    )
    for response in (cited.query(KNOWN), await cited.aquery(KNOWN)):
        assert "Source 1:" in str(response)
        assert len(told(str(response))) == 1


@pytest.mark.parametrize("bridging", [0, 1])
async def test_an_engine_bridges_to_what_matters_only_through_another_fact(bridging: int) -> None:
    """The second cluster bears on the question only beside what the first one yields."""
    texts = ("Ada the painter was born in Velm.", "Velm is governed by old Quill of the north.")

    def extract(prompt: str) -> str:
        lines = [line.split("] ", 1)[1] for line in prompt.splitlines() if line.startswith("[")]
        found = [line for line in lines if "Ada" in line]
        found += [line for line in lines if found and "Quill" in line]
        return " ".join(found) or NOTHING_TO_EXTRACT

    compressor = ClusterCompressorPostprocessor(
        FakeReader(extract),
        HashEmbedding(),
        first_cluster_size=1,
        max_cluster_size=1,
        pass_below=0,
        bridging=bridging,
    )
    nodes = [TextNode(id_=name, text=text) for name, text in zip("ab", texts, strict=True)]
    engine = VectorStoreIndex(nodes, embed_model=HashEmbedding()).as_query_engine(
        MockLLM(), similarity_top_k=2, node_postprocessors=[compressor]
    )
    question = "Who governs the birthplace of Ada?"
    for response in (engine.query(question), await engine.aquery(question)):
        assert [node.text for node in response.source_nodes] == list(texts[: 1 + bridging])
