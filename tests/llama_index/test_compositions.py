"""The parts inside LlamaIndex's own agents, routers, chat engines and workflows; events and spans."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import PromptTemplate, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.chat_engine import CondenseQuestionChatEngine, ContextChatEngine
from llama_index.core.indices.query.query_transform.base import HyDEQueryTransform
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.query_engine import (
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step
from pydantic import BaseModel, Field

import llama_index_surerag
import surerag
from llama_index_surerag import (
    AbstainingChatEngine,
    AbstainingQueryEngine,
    ClusterCompressorPostprocessor,
    DeltaSePerEvaluator,
    DenseEvaluator,
    DenseRefinerPostprocessor,
    EmbeddingEncoder,
    LazyRetrievalQueryEngine,
    MethodEvent,
    MethodStreamEvent,
    NodeRetriever,
    SemanticNodeParser,
    UncertaintyRewriteQueryEngine,
    UncertaintyRewriteRetriever,
    UncertaintyRewriteTransform,
    reader_from_llm,
    streamed_to,
)
from llama_index_surerag.engines import aread_to_end
from llama_index_surerag.llm import LLMReader
from llama_index_surerag.summaries import summary_id
from surerag import AreYouSure, FakeReader
from surerag.calibration import AbstentionPolicy
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, PromptError
from surerag.retrieval import PassageIndex
from tests.clean_process import loaded_by
from tests.llama_index import corpus
from tests.llama_index.corpus import KEY, KNOWN, UNKNOWN, knowing, like
from tests.llama_index.llms import Calling, Own, Scripted, Splitting
from tests.servers.fake_openai import FakeOpenAI

KNOWN_ANSWER, FOUND_ANSWER = "She was born in Velm", "In the lake of Mir"


def lazy(**settings: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(
        corpus.index(), knowing(), **{"top_n": 1, "n_summaries": 1, **settings}
    )


@pytest.fixture
def tool() -> QueryEngineTool:
    return QueryEngineTool.from_defaults(lazy(), name="atlas", description="Knows people and rivers.")


@pytest.mark.parametrize(("question", "answer"), [(KNOWN, KNOWN_ANSWER), (UNKNOWN, FOUND_ANSWER)])
async def test_function_agent(tool: QueryEngineTool, question: str, answer: str) -> None:
    output = await FunctionAgent(tools=[tool], llm=Calling()).run(user_msg=question)
    assert str(output).startswith(f"Tool: {answer}")
    [call] = output.tool_calls
    assert call.tool_output.raw_output.metadata["retrieve"] == (question == UNKNOWN)


async def test_react_agent(tool: QueryEngineTool) -> None:
    thought = f'Thought: I need a tool.\nAction: atlas\nAction Input: {{"input": "{UNKNOWN}"}}'
    llm = Scripted(texts=[thought, "Thought: I can answer without using any more tools.\nAnswer: Mir"])
    output = await ReActAgent(tools=[tool], llm=llm).run(user_msg=UNKNOWN)
    assert str(output) == "Mir"
    assert f"Observation: {FOUND_ANSWER}" in llm._calls[-1]["prompt"]


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


@pytest.mark.parametrize("streaming", [False, True])
async def test_condense_question_chat(streaming: bool) -> None:
    texts = [UNKNOWN, UNKNOWN]
    chat = CondenseQuestionChatEngine.from_defaults(lazy(streaming=streaming), llm=Scripted(texts=texts))
    if streaming:
        assert "".join(chat.stream_chat(KNOWN).response_gen).startswith(KNOWN_ANSWER)
        later = await chat.astream_chat("And the other?")
        assert "".join([piece async for piece in later.async_response_gen()]).startswith(FOUND_ANSWER)
    else:
        first = chat.chat(KNOWN)
        assert str(first).startswith(KNOWN_ANSWER)
        assert [node.node_id for node in first.source_nodes] == [summary_id("ada")]
        assert str(await chat.achat("And the other?")).startswith(FOUND_ANSWER)


async def test_context_chat_compresses_what_it_retrieves() -> None:
    reader = FakeReader(lambda prompt: "Ada was born in Velm.")
    postprocessor = ClusterCompressorPostprocessor(reader, HashingEncoder(), variant="copy", min_tokens=0)
    chat = ContextChatEngine.from_defaults(
        corpus.index().as_retriever(), llm=Own(), node_postprocessors=[postprocessor]
    )
    for response in (chat.chat(KNOWN), await chat.achat(KNOWN)):
        assert str(response).startswith(KNOWN_ANSWER)
        assert "compressed_from" in response.source_nodes[0].metadata


def test_a_query_transform_before_it() -> None:
    hyde = HyDEQueryTransform(llm=Scripted(texts=["The Orun does end in the lake of Mir."] * 2))
    assert str(TransformQueryEngine(lazy(), hyde).query(UNKNOWN)).startswith(FOUND_ANSWER)


class Asking(Workflow):
    """Answers and judges, each in a step of its own."""

    @step
    async def ask(self, ctx: Context, event: StartEvent) -> StopEvent:
        judge = DenseEvaluator(knowing(), ExactEntailer())
        with streamed_to(ctx):
            response = await aread_to_end(await event.engine.aquery(event.question))
            # A sync call in a thread is heard as well.
            await asyncio.to_thread(judge.evaluate, event.question, contexts=[])
        return StopEvent(result=response)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_workflow_streams_decisions_and_answer(streaming: bool) -> None:
    handler = Asking().run(question=UNKNOWN, engine=lazy(streaming=streaming))
    events = [event async for event in handler.stream_events()]
    response = await handler
    assert isinstance(response, Response)
    assert str(response).startswith(FOUND_ANSWER)
    decided = {event.name: event for event in events if isinstance(event, MethodStreamEvent)}
    assert decided["lazy_rag.gate"].data["retrieve"] is True
    assert decided["dense.invalid"].warning is True


async def test_an_agents_tool_streams_decisions() -> None:
    async def atlas(ctx: Context, input: str) -> str:
        """Rivers."""
        with streamed_to(ctx):
            return str(await lazy().aquery(input))

    # Not their names, which annotations are in this module.
    atlas.__annotations__ = {"ctx": Context, "input": str, "return": str}
    handler = FunctionAgent(tools=[atlas], llm=Calling()).run(user_msg=UNKNOWN)
    events = [event async for event in handler.stream_events()]
    output = await handler
    assert str(output).startswith(f"Tool: {FOUND_ANSWER}")
    assert any(isinstance(event, MethodStreamEvent) and event.name == "lazy_rag.gate" for event in events)


class AskingInAThread(Workflow):
    @step
    def answer(self, ctx: Context, ev: StartEvent) -> StopEvent:
        with streamed_to(ctx):
            return StopEvent(result=str(lazy().query(UNKNOWN)))


async def test_a_step_that_is_not_async_streams_decisions() -> None:
    handler = AskingInAThread().run()
    events = [event async for event in handler.stream_events()]
    assert str(await handler).startswith(FOUND_ANSWER)
    assert any(isinstance(event, MethodStreamEvent) and event.name == "lazy_rag.gate" for event in events)


async def test_a_tool_that_is_not_async_streams_decisions() -> None:
    def atlas(ctx: Context, input: str) -> str:
        """Rivers."""
        with streamed_to(ctx):
            return str(lazy().query(input))

    atlas.__annotations__ = {"ctx": Context, "input": str, "return": str}
    handler = FunctionAgent(tools=[atlas], llm=Calling()).run(user_msg=UNKNOWN)
    events = [event async for event in handler.stream_events()]
    assert str(await handler).startswith(f"Tool: {FOUND_ANSWER}")
    assert any(isinstance(event, MethodStreamEvent) and event.name == "lazy_rag.gate" for event in events)


def test_events_are_streamed_to_a_running_workflow_alone() -> None:
    for ctx, message in ((Context(AskingInAThread()), "no workflow runs"), ("ctx", "ctx must be")):
        with pytest.raises(ConfigurationError, match=message), streamed_to(ctx):  # type: ignore[arg-type]  # tested
            pass


# Events and spans


class Recorder(BaseEventHandler):
    """Keeps every event."""

    events: list[Any] = Field(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "Recorder"

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.events.append(event)


@pytest.fixture
def spans() -> Iterator[tuple[Recorder, SimpleSpanHandler]]:
    root, recorder, spans = get_dispatcher(), Recorder(events=[]), SimpleSpanHandler()
    root.add_event_handler(recorder)
    root.add_span_handler(spans)
    yield recorder, spans
    root.event_handlers.remove(recorder)
    root.span_handlers.remove(spans)


@pytest.mark.parametrize("use_async", [False, True])
async def test_events_and_spans_nest_under_the_query(
    spans: tuple[Recorder, SimpleSpanHandler], use_async: bool
) -> None:
    recorder, handler = spans
    with FakeOpenAI(corpus.answer, logprob=-1.5) as server:
        engine = lazy_over(like(server))
        response = await engine.aquery(UNKNOWN) if use_async else engine.query(UNKNOWN)
    assert response.metadata["retrieve"] is True
    [decision] = [event for event in recorder.events if getattr(event, "name", "") == "lazy_rag.gate"]
    assert isinstance(decision, MethodEvent) and decision.data["retrieve"] is True
    names = {span.id_: span for span in handler.completed_spans}

    def path(span: Any) -> list[str]:
        parents = [] if span.parent_id not in names else path(names[span.parent_id])
        return [*parents, span.id_.split("-")[0]]

    paths = [path(span) for span in handler.completed_spans]
    query = "_aquery" if use_async else "_query"
    for part in ("chat", "retrieve"):
        [*results] = [one for one in paths if one[-1].endswith(part)]
        assert results
        assert all(any(name.endswith(query) for name in one) for one in results)
    assert handler.open_spans == {}


def lazy_over(llm: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(corpus.index(), llm, threshold=0.5)


async def test_callbacks_are_balanced() -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    manager = CallbackManager([debug])
    postprocessor = ClusterCompressorPostprocessor(
        FakeReader(lambda prompt: "NONE"), HashingEncoder(), variant="copy"
    )
    engine = lazy(callback_manager=manager, node_postprocessors=[postprocessor])
    engine.query(UNKNOWN)
    await engine.aquery(UNKNOWN)
    for kind in (CBEventType.QUERY, CBEventType.RERANKING):
        pairs = debug.get_event_pairs(kind)
        assert len(pairs) == 2
        assert all(len(pair) == 2 for pair in pairs)


async def test_traces_do_not_grow_with_queries() -> None:
    index = corpus.index()
    rewriting = UncertaintyRewriteRetriever(index, knowing())
    engine = LazyRetrievalQueryEngine.from_args(index, knowing())
    around = RetrieverQueryEngine.from_args(rewriting, llm=Own())
    for _ in range(10):
        for one in (engine, around):
            one.query(UNKNOWN)
            await one.aquery(UNKNOWN)
    managers = [item for item in gc.get_objects() if type(item) is CallbackManager]
    assert max(len(manager.trace_map) for manager in managers) < 10


def test_infinite_values_are_decided_by_as_others_are(spans: tuple[Recorder, SimpleSpanHandler]) -> None:
    recorder, _ = spans
    for threshold in (-math.inf, math.inf):
        lazy(threshold=threshold).query(KNOWN)
        rewriting = UncertaintyRewriteQueryEngine.from_args(
            corpus.index(), FakeReader(lambda prompt: "", logprob=-0.1), threshold=threshold
        )
        assert rewriting.query(KNOWN).metadata["acted"] is (threshold < 0)
    decisions = [event for event in recorder.events if getattr(event, "name", "").endswith(".gate")]
    assert [event.name for event in decisions] == ["lazy_rag.gate", "dynqr.gate"] * 2
    assert all(event.data["threshold"] is None for event in decisions)


def test_no_handler_stays_on_the_root_dispatcher() -> None:
    root = get_dispatcher()
    before = (list(root.event_handlers), list(root.span_handlers))
    lazy().query(UNKNOWN)
    UncertaintyRewriteQueryEngine.from_args(corpus.index(), knowing()).query(KNOWN)
    assert (root.event_handlers, root.span_handlers) == before


# The package


def test_every_public_name_is_there() -> None:
    for name in llama_index_surerag.__all__:
        assert getattr(llama_index_surerag, name).__name__ == name


class KeyedEmbedding(corpus.HashEmbedding):
    """Has a key, as those of servers have."""

    api_key: str = KEY
    default_headers: dict[str, str] = Field(default={"Authorization": f"Bearer {KEY}"})


def keyed_parts() -> list[Any]:
    """An instance of every public class that holds a service, with keys wherever they may stand."""
    with FakeOpenAI() as server:
        address = server.base_url.replace("http://", f"http://ada:{KEY}@")
        llm = like(server, api_base=address, default_headers={"x-api-key": KEY})
    model = KeyedEmbedding()
    index = VectorStoreIndex(corpus.nodes(), embed_model=model)
    postprocessors = [LLMRerank(llm=llm)]
    settings = {"node_postprocessors": postprocessors, "callback_manager": CallbackManager([])}
    lazy = LazyRetrievalQueryEngine.from_args(index, llm, **settings)
    policy = AbstentionPolicy(1.0, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
    return [
        lazy,
        LazyRetrievalQueryEngine.from_args(
            QueryFusionRetriever([index.as_retriever()], llm=llm), llm, summaries="Ada was born in Velm."
        ),
        UncertaintyRewriteQueryEngine.from_args(index, llm, rewriter=llm),
        UncertaintyRewriteTransform(index, llm),
        UncertaintyRewriteRetriever(index, llm, node_postprocessors=postprocessors),
        AbstainingQueryEngine(index.as_query_engine(llm=llm), policy),
        AbstainingQueryEngine(lazy, policy),
        AbstainingChatEngine(
            index.as_chat_engine(llm=llm, chat_mode="context"), policy, second_opinion=AreYouSure(llm)
        ),
        ClusterCompressorPostprocessor(llm, model),
        DenseRefinerPostprocessor(llm, llm, embed_model=model, retriever=index),
        DenseEvaluator(llm, llm),
        DeltaSePerEvaluator(llm, llm),
        SemanticNodeParser(model),
        EmbeddingEncoder(model),
        NodeRetriever(index.as_retriever(), postprocessors),
        reader_from_llm(llm),
    ]


def prompted_parts() -> list[Any]:
    """Every part with prompts, and parts around parts."""
    index = corpus.index()
    policy = AbstentionPolicy(1.0, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
    plain = index.as_query_engine(llm=Own())
    return [
        *(part for part in keyed_parts() if hasattr(part, "update_prompts")),
        ClusterCompressorPostprocessor(FakeReader(), corpus.HashEmbedding(), variant="copy"),
        ClusterCompressorPostprocessor(FakeReader(), corpus.HashEmbedding(), task="verify"),
        AbstainingQueryEngine(TransformQueryEngine(plain, UncertaintyRewriteTransform(index, Own())), policy),
    ]


def test_prompts_that_were_read_can_be_written() -> None:
    parts = prompted_parts()
    assert len(parts) > 10
    for part in parts:
        before = part.get_prompts()
        part.update_prompts(before)
        after = part.get_prompts()
        assert {name: one.get_template() for name, one in after.items()} == {
            name: one.get_template() for name, one in before.items()
        }


def test_a_prompt_deep_inside_is_replaced_and_an_unknown_part_is_named() -> None:
    part = prompted_parts()[-1]
    names = [name for name in part.get_prompts() if name.count(":") == 3]
    assert "engine:query_engine:response_synthesizer:text_qa_template" in names
    part.update_prompts({names[0]: PromptTemplate("Say {context_str} {query_str}")})
    assert part.get_prompts()[names[0]].get_template() == "Say {context_str} {query_str}"
    with pytest.raises(PromptError, match=r"no component 'other'.*'engine'"):
        part.update_prompts({"other:text_qa_template": PromptTemplate("x")})


@pytest.mark.parametrize("kind", [LazyRetrievalQueryEngine, UncertaintyRewriteQueryEngine])
def test_a_constructor_refuses_what_cannot_work_and_names_from_args(kind: Any) -> None:
    index, reader = corpus.index(), knowing()
    core = surerag.LazyRAG(
        reader,
        PassageIndex.from_passages([surerag.Passage(KNOWN)], HashingEncoder()),
        "Ada was born in Velm.",
    )
    other = UncertaintyRewriteQueryEngine if kind is LazyRetrievalQueryEngine else LazyRetrievalQueryEngine
    for wrong in (
        index,
        index.as_retriever(),
        "text",
        3,
        None,
        reader,
        core,
        other.from_args(index, reader).core,
    ):
        with pytest.raises(ConfigurationError, match=rf"{kind.__name__}.from_args\(index, llm\)"):
            kind(wrong)
    made = kind.from_args(index, reader)
    assert str(kind(made.core).query(KNOWN)) == str(made.query(KNOWN))


@pytest.mark.parametrize("kind", [LazyRetrievalQueryEngine, UncertaintyRewriteQueryEngine])
@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("output_cls", BaseModel, "structured_predict"),
        ("response_mode", "tree_summarize", "into one prompt"),
        ("response_mode", "refine", "into one prompt"),
        ("response_synthesizer", object(), "prompts="),
        ("refine_template", PromptTemplate("{query_str}"), "prompts="),
        ("simple_template", PromptTemplate("{query_str}"), "closed_book"),
        ("use_async", True, "aquery"),
        ("similarity_top_k", 3, "top_n"),
    ],
)
def test_what_llama_indexs_engines_take_is_refused_with_what_takes_its_place(
    kind: Any, option: str, value: Any, named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        kind.from_args(corpus.index(), knowing(), **{option: value})


def test_what_is_right_of_llama_indexs_conventions_is_taken() -> None:
    index, reader = corpus.index(), knowing()
    template = PromptTemplate("Read {context_str} and say {query_str}")
    for mode in ("compact", "simple_summarize"):
        assert LazyRetrievalQueryEngine.from_args(index, reader, response_mode=mode)
    rewriting = UncertaintyRewriteQueryEngine.from_args(index, reader, text_qa_template=template)
    rewriting.query(KNOWN)
    assert str(reader.history[0].prompts[0]).startswith("Read ")
    with pytest.raises(ConfigurationError, match="from_context_and_details"):
        LazyRetrievalQueryEngine.from_args(index, reader, text_qa_template=template)
    with pytest.raises(ConfigurationError, match="cannot stream"):
        UncertaintyRewriteQueryEngine.from_args(index, reader, streaming=True)


def test_no_part_shows_its_keys() -> None:
    parts = keyed_parts()
    holders = {getattr(llama_index_surerag, name) for name in llama_index_surerag.__all__}
    holders = {one for one in holders if isinstance(one, type) and not issubclass(one, BaseModel | tuple)}
    assert holders <= {type(part) for part in parts}
    for part in parts:
        written = pickle.dumps(part)
        assert KEY.encode() not in written, part
        assert type(pickle.loads(written)) is type(part)
        forms = [repr(part), str(part), json.dumps(part.to_dict()) if hasattr(part, "to_dict") else ""]
        forms += [part.model_dump_json()] if isinstance(part, BaseModel) else []
        assert not any(KEY in form for form in forms), part


def test_copies_keep_their_keys() -> None:
    with FakeOpenAI(corpus.answer) as server:
        engine = lazy_over(like(server))
        for copied in (copy.copy(engine), copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
            assert copied is not engine
            assert isinstance(copied.core.reader, LLMReader)
        assert copy.deepcopy(engine).core.reader.llm.api_key == KEY
        assert str(copy.deepcopy(engine).query(KNOWN)).startswith(KNOWN_ANSWER)


def test_importing_it_loads_no_model_library() -> None:
    code = "import llama_index_surerag as li\n[getattr(li, name) for name in li.__all__]"
    assert loaded_by(code, "torch", "transformers", "langchain_core", "openai") == []
