"""Rewriting when uncertain, over a real index and inside LlamaIndex's own engines."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import pickle
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from llama_index.core import Settings
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import CondenseQuestionChatEngine
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.query import QueryEndEvent, QueryStartEvent
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.query_engine import SubQuestionQueryEngine, TransformQueryEngine
from llama_index.core.question_gen.types import SubQuestion
from llama_index.core.schema import QueryBundle
from llama_index.core.tools import QueryEngineTool
from llama_index.llms.openai_like import OpenAILike

from llama_index_surerag.events import ProgressEvent, RewriteDecisionEvent
from llama_index_surerag.rewrite_engine import UncertaintyRewriteQueryEngine
from llama_index_surerag.rewrite_transform import RewrittenQuery, UncertaintyRewriteTransform
from surerag import FakeReader, UncertaintyRewriter
from surerag.decisions.calibrating import calibrate
from surerag.errors import CapabilityError, ConfigurationError, PromptError
from surerag.messages import Generation, Passage
from surerag.readers.fake import reply
from tests.drivers.local_reader import LocalReader
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, UNKNOWN, VAGUE, HashEmbedding
from tests.llama_index.models import Scripted, Splitting
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import ToyModel

FOUND, WELL_KNOWN = "In the lake of Mir", "She was born in Velm"


def knowing(prompt: str) -> Generation:
    """Sure of what it is shown; rewrites the vague question well."""
    if prompt.startswith("Rewrite the query"):
        return reply(UNKNOWN)
    if "Mir" in prompt:
        return reply("In the lake of Mir, says the atlas", logprobs=-0.05)
    if "Ada was born in Velm" in prompt:
        return reply("She was born in Velm", logprobs=-0.05)
    return reply("perhaps somewhere", logprobs=-1.5)


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader(knowing)


def engine(reader: Any, **settings: Any) -> UncertaintyRewriteQueryEngine:
    return UncertaintyRewriteQueryEngine.from_args(corpus.index(), reader, **{"top_n": 1, **settings})


def rewritten(response: Any) -> None:
    assert str(response).startswith(FOUND)
    metadata = response.metadata
    assert (metadata["kept"], metadata["query"], metadata["rewritten_query"]) == (
        "rewritten",
        UNKNOWN,
        UNKNOWN,
    )
    assert metadata["original_answer"].startswith("perhaps")
    assert metadata["uncertainty"] < metadata["original_uncertainty"]
    assert [step["outcome"] for step in metadata["steps"]] == ["rewrite", "rewritten", "rewritten"]
    assert (metadata["retrievals"], metadata["calls"]) == (2, 3)
    assert [node.node_id for node in response.source_nodes] == ["orun-1"]


def left_alone(response: Any) -> None:
    assert str(response).startswith(WELL_KNOWN)
    assert (response.metadata["kept"], response.metadata["query"]) == ("original", KNOWN)
    assert [step["outcome"] for step in response.metadata["steps"]] == ["stop"]
    assert (response.metadata["retrievals"], response.metadata["calls"]) == (1, 1)
    assert [node.node_id for node in response.source_nodes] == ["ada-0"]


async def test_both_branches_sync_async_and_batched(reader: FakeReader) -> None:
    rewriting = engine(reader)
    for question, check in ((KNOWN, left_alone), (VAGUE, rewritten)):
        check(rewriting.query(question))
        check(await rewriting.aquery(question))
        check(rewriting.query_many([question])[0])
        json.dumps(rewriting.query(question).metadata, allow_nan=False)


async def test_the_core_and_the_engine_agree(reader: FakeReader) -> None:
    from llama_index_surerag import EmbeddingEncoder
    from surerag.retrieval import PassageIndex

    passages = [Passage(node.text, id=node.node_id) for node in corpus.nodes()]
    index = PassageIndex.from_passages(passages, EmbeddingEncoder(HashEmbedding()))
    questions = [KNOWN, UNKNOWN, VAGUE, "Who paints rivers?", "What are the gates of Tarn made of?"]
    for documents in ("substitute", "expand"):
        core = UncertaintyRewriter(reader, index, documents=documents, top_n=2)
        rewriting = engine(reader, documents=documents, top_n=2)
        results = core.run_many(questions)
        expected = [{**result.to_dict(), **result.spent_dict()} for result in results]
        assert all(told["spent"]["calls"] == told["calls"] for told in expected)
        assert [rewriting.query(question).metadata for question in questions] == expected
        at_once = await asyncio.gather(*map(rewriting.aquery, questions))
        assert [response.metadata for response in at_once] == expected
        assert [response.metadata for response in rewriting.query_many(questions)] == expected


class Asks:
    """How often a retriever was asked, by the text it searched for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queries: list[str] = []
        whole = HashEmbedding._get_query_embedding

        def embed(model: HashEmbedding, query: str) -> list[float]:
            self.queries.append(query)
            return whole(model, query)

        monkeypatch.setattr(HashEmbedding, "_get_query_embedding", embed)


async def test_a_certain_question_costs_one_retrieval_and_one_answer(
    reader: FakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, rewriting = Asks(monkeypatch), engine(reader)
    rewriting.query(KNOWN)
    assert (asks.queries, len(reader.prompts)) == ([KNOWN], 1)
    await rewriting.aquery(KNOWN)
    assert (asks.queries, len(reader.prompts)) == ([KNOWN] * 2, 2)
    rewriting.query(VAGUE)
    assert (asks.queries[2:], len(reader.prompts)) == ([VAGUE, UNKNOWN], 5)


async def test_a_pipelines_own_llm_is_asked_natively() -> None:
    """Requests of several questions are under way together, and the loop goes on."""
    with FakeOpenAI(ToyModel(sharpness=9.0)) as server:
        llm = OpenAILike(model="toy", api_base=server.base_url, api_key="k", is_chat_model=True, max_tokens=8)
        rewriting = UncertaintyRewriteQueryEngine.from_args(corpus.index(), llm)
        # The client's first call loads much of its SDK.
        first = await rewriting.aquery(KNOWN)
        server.pause()
        asked = asyncio.gather(*(rewriting.aquery(f"{KNOWN} {at}") for at in range(4)))
        await asyncio.to_thread(server.wait_for, 4)
        server.release()
        responses = await asked
        assert server.peak == 4
        assert len(server.requests) == sum(response.metadata["calls"] for response in [first, *responses])
    with pytest.raises(CapabilityError):
        UncertaintyRewriteQueryEngine.from_args(corpus.index(), MockLLM())


async def test_a_local_model_leaves_the_loop_free() -> None:
    local = LocalReader(corpus.answer)
    rewriting = engine(local)
    local.gate.clear()
    task = asyncio.ensure_future(rewriting.aquery(KNOWN))
    await asyncio.sleep(0.05)
    assert not task.done()
    local.gate.set()
    left_alone(await task)
    assert threading.get_ident() not in local.threads


# The transform.


def test_the_transform_rewrites_what_is_searched_for_and_keeps_the_question(reader: FakeReader) -> None:
    transform = UncertaintyRewriteTransform(corpus.index(), reader, top_n=1)
    vector = HashEmbedding().get_query_embedding(VAGUE)
    given = QueryBundle(VAGUE, embedding=vector)
    bundle = transform.run(given)
    assert isinstance(bundle, RewrittenQuery)
    assert (bundle.query_str, bundle.embedding_strs, bundle.embedding) == (VAGUE, [UNKNOWN], None)
    assert bundle.decision["kept"] == "rewritten"
    assert given == QueryBundle(VAGUE, embedding=vector)
    same = transform(QueryBundle(KNOWN, custom_embedding_strs=["Ada"], embedding=None))
    assert (same.query_str, same.embedding_strs) == (KNOWN, ["Ada"])
    in_words = UncertaintyRewriteTransform(corpus.index(), reader, top_n=1, rewrite_text=True)
    assert in_words.run(VAGUE).query_str == UNKNOWN


async def test_transform_query_engine(reader: FakeReader) -> None:
    transform = UncertaintyRewriteTransform(corpus.index(), reader, top_n=1)
    llm = Echo()
    plain = corpus.index().as_query_engine(llm=llm, similarity_top_k=1)
    both = TransformQueryEngine(plain, transform)
    for response in (both.query(VAGUE), await both.aquery(VAGUE)):
        assert [node.node_id for node in response.source_nodes] == ["orun-1"]
        # The reader behind it sees the question, not the rewrite.
        assert VAGUE in str(response)
        assert UNKNOWN not in str(response)
    assert "query_transform:rewrite" in both.get_prompts()
    assert (await transform.arun(VAGUE)).embedding_strs == [UNKNOWN]


class Echo(Scripted):
    """Says its prompt."""

    texts: list[str] = []  # noqa: RUF012 (a pydantic field)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        from llama_index.core.base.llms.types import CompletionResponse

        return CompletionResponse(text=prompt)


# Other people's engines.


class Asking(Splitting):
    """Asks the well-known and the vague question."""

    def generate(self, tools: Any, query: QueryBundle) -> list[SubQuestion]:
        return [SubQuestion(sub_question=text, tool_name="atlas") for text in (KNOWN, VAGUE)]


@pytest.mark.parametrize("use_async", [False, True])
async def test_sub_questions_and_tools(reader: FakeReader, use_async: bool) -> None:
    tool = QueryEngineTool.from_defaults(engine(reader), name="atlas", description="Knows rivers.")
    outer = SubQuestionQueryEngine.from_defaults([tool], Echo(), Asking(), use_async=False, verbose=False)
    response = await outer.aquery("Both?") if use_async else outer.query("Both?")
    assert WELL_KNOWN in str(response)
    assert FOUND in str(response)
    output = await tool.acall(VAGUE) if use_async else tool.call(VAGUE)
    assert output.content.startswith(FOUND)
    assert output.raw_output.metadata["kept"] == "rewritten"


async def test_a_condensed_question_and_a_conversation(reader: FakeReader) -> None:
    chat = CondenseQuestionChatEngine.from_defaults(engine(reader), llm=Scripted(texts=[VAGUE]))
    assert str(chat.chat(KNOWN)).startswith(WELL_KNOWN)
    assert str(await chat.achat("And the other?")).startswith(FOUND)

    history = [
        ChatMessage(role="user", content="Do you know rivers?"),
        ChatMessage(role="assistant", content="Yes."),
    ]

    def answer(prompt: str) -> Generation:
        assert prompt.startswith("Do you know rivers?\nYes.\n")
        return reply(UNKNOWN) if "without the conversation above" in prompt else knowing(prompt)

    rewriting = engine(FakeReader(answer))
    rewritten(rewriting.query_in_conversation(VAGUE, history))
    rewritten(await rewriting.aquery_in_conversation(VAGUE, history))
    transform = UncertaintyRewriteTransform(corpus.index(), FakeReader(answer), top_n=1)
    assert transform.run(VAGUE, {"chat_history": history}).embedding_strs == [UNKNOWN]


async def test_retrieve_and_synthesize(reader: FakeReader) -> None:
    rewriting = engine(reader)
    bundle = QueryBundle(VAGUE)
    for nodes in (rewriting.retrieve(bundle), await rewriting.aretrieve(bundle)):
        assert [node.node_id for node in nodes] == ["orun-1"]
    given = rewriting.retrieve(QueryBundle(KNOWN))
    asked = len(reader.prompts)
    responses = (rewriting.synthesize(bundle, given), await rewriting.asynthesize(bundle, given))
    assert len(reader.prompts) == asked + 2
    assert all(response.metadata["kept"] == "original" for response in responses)
    assert all([node.node_id for node in response.source_nodes] == ["ada-0"] for response in responses)


# Prompts, settings, events.


def test_prompts_can_be_seen_and_replaced(reader: FakeReader) -> None:
    rewriting = engine(reader)
    assert set(rewriting.get_prompts()) == {"answer", "closed_book", "rewrite", "rewrite_in_conversation"}
    rewriting.update_prompts({"answer": PromptTemplate("SEE {passages} AND SAY {query_str}")})
    rewriting.query(KNOWN)
    assert reader.prompts[-1].startswith("SEE [1] Ada was born in Velm.")
    chatty = ChatPromptTemplate(
        [ChatMessage(role="system", content="Rewrite."), ChatMessage(role="user", content="{query}")]
    )
    other = engine(reader, prompts={"rewrite": chatty})
    other.query(VAGUE)
    assert f"Rewrite.\n{VAGUE}" in reader.prompts
    with pytest.raises(PromptError, match="slots"):
        engine(reader, prompts={"answer": "{passages}"})
    with pytest.raises(PromptError, match="no prompt"):
        engine(reader, prompts={"reword": "{query}"})
    with pytest.raises(PromptError):
        rewriting.update_prompts({"rewrite": PromptTemplate("{question}")})


def test_settings_come_back(reader: FakeReader) -> None:
    first = engine(
        reader, documents="expand", threshold=1.5, prompts={"rewrite": "Rewrite the query {query}"}
    )
    plain = json.loads(json.dumps(first.to_dict()))
    again = UncertaintyRewriteQueryEngine.from_dict(plain, retriever=corpus.index(), llm=reader)
    assert again.to_dict() == first.to_dict()
    assert "expand" in repr(again)
    transform = UncertaintyRewriteTransform(corpus.index(), reader, rewrite_text=True)
    loaded = UncertaintyRewriteTransform.from_dict(transform.to_dict(), retriever=corpus.index(), llm=reader)
    assert loaded.to_dict() == transform.to_dict()
    for make in (engine, partial(UncertaintyRewriteTransform, corpus.index())):
        with pytest.raises(ConfigurationError, match="'treshold'") as error:
            make(reader, treshold=1.0)
        assert "threshold" in str(error.value.hint)
    with pytest.raises(ConfigurationError):
        UncertaintyRewriteQueryEngine.from_args(object(), reader)  # type: ignore[arg-type]


def told(answer: str, golds: Sequence[str]) -> bool:
    return any(gold in answer for gold in golds)


def test_a_calibration_comes_back(reader: FakeReader) -> None:
    core = engine(reader).core
    found = calibrate(
        core,
        core.rows([KNOWN, VAGUE], [["Velm"], ["Mir"]], is_correct=told),
        target="best",
    )
    rewriting = engine(reader, threshold=found)
    assert [response.metadata["kept"] for response in rewriting.query_many([KNOWN, VAGUE])] == [
        "original",
        "rewritten",
    ]
    plain = json.loads(json.dumps(rewriting.to_dict()))
    again = UncertaintyRewriteQueryEngine.from_dict(plain, retriever=corpus.index(), llm=reader)
    assert again.core.threshold == found
    transform = UncertaintyRewriteTransform(corpus.index(), reader, threshold=found, top_n=1)
    loaded = UncertaintyRewriteTransform.from_dict(transform.to_dict(), retriever=corpus.index(), llm=reader)
    assert loaded.core.threshold == found


class Heavy(FakeReader):
    """A model that must never be copied by the way."""

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        raise AssertionError("the model was copied")


def test_copies_share_the_model_and_keep_prompts_of_their_own() -> None:
    reader = Heavy(knowing)
    transform = UncertaintyRewriteTransform(corpus.index(), reader, threshold=1.5)
    for one in (engine(reader, threshold=1.5), transform):
        other = copy.deepcopy(one)
        assert other.core.reader is one.core.reader
        other.update_prompts({"rewrite": PromptTemplate("Reword {query}")})
        assert one.core.prompts["rewrite"].text != other.core.prompts["rewrite"].text == "Reword {query}"
        again = pickle.loads(pickle.dumps(engine(FakeReader(["Velm"]), threshold=1.5)))
        assert (again.core.threshold, str(again.query(KNOWN))) == (1.5, "Velm")


def test_the_options_stand_in_signature_and_help() -> None:
    for make in (UncertaintyRewriteQueryEngine.from_args, UncertaintyRewriteTransform.__init__):
        shown = inspect.signature(make).parameters
        for name, option in UncertaintyRewriter.OPTIONS.items():
            assert name in shown
            assert name == "prompts" or shown[name].default == option.default
            assert option.doc in (make.__doc__ or "")


def test_no_key_is_written_down() -> None:
    llm = OpenAILike(
        model="toy", api_base="http://127.0.0.1:1/v1", api_key="sk-very-secret", is_chat_model=True
    )
    rewriting = UncertaintyRewriteQueryEngine.from_args(corpus.index(), llm)
    assert "sk-very-secret" not in json.dumps(rewriting.to_dict()) + repr(rewriting)
    assert rewriting.core.max_tokens is None


def test_settings_llm_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = OpenAILike(model="toy", api_base="http://127.0.0.1:1/v1", api_key="k", is_chat_model=True)
    monkeypatch.setattr(Settings, "_llm", llm)
    rewriting = UncertaintyRewriteQueryEngine.from_args(corpus.index())
    assert rewriting.core.reader.name.startswith("toy@")


EVENTS: list[Any] = []


class Recorder(BaseEventHandler):
    """Keeps every event."""

    @classmethod
    def class_name(cls) -> str:
        return "Recorder"

    def handle(self, event: Any, **kwargs: Any) -> None:
        EVENTS.append(event)


@pytest.fixture
def recorded() -> Iterator[None]:
    root, recorder = get_dispatcher(), Recorder()
    EVENTS.clear()
    root.add_event_handler(recorder)
    yield
    root.event_handlers.remove(recorder)


@pytest.mark.usefixtures("recorded")
async def test_events_within_the_query(reader: FakeReader) -> None:
    rewriting = engine(reader)
    for ask in (lambda: rewriting.query(VAGUE), lambda: rewriting.aquery(VAGUE)):
        EVENTS.clear()
        answer = ask()
        if hasattr(answer, "__await__"):
            await answer
        kinds = [type(event) for event in EVENTS]
        [own] = [event for event in EVENTS if isinstance(event, ProgressEvent)]
        assert own.name == "uncertainty_rewriting.decided"
        assert "query" in (own.span_id or "")
        [gate] = [event for event in EVENTS if isinstance(event, RewriteDecisionEvent)]
        assert (gate.question, gate.rewrite, gate.metric) == (VAGUE, True, "perplexity")
        assert gate.uncertainty > gate.threshold
        order = (QueryStartEvent, RewriteDecisionEvent, ProgressEvent, QueryEndEvent)
        assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)


@pytest.mark.usefixtures("recorded")
def test_a_failing_rewriter_is_an_event_and_the_answer_stands(reader: FakeReader) -> None:
    def broken(prompt: str) -> str:
        raise TimeoutError("too slow")

    response = engine(reader, rewriter=FakeReader(broken)).query(VAGUE)
    assert str(response).startswith("perhaps")
    [warning] = [event for event in EVENTS if isinstance(event, ProgressEvent) and event.warning]
    assert warning.name == "uncertainty_rewriting.failed"


def test_nodes_in_the_index_are_not_changed(reader: FakeReader) -> None:
    index = corpus.index()
    before = {name: node.model_dump() for name, node in index.docstore.docs.items()}
    rewriting = UncertaintyRewriteQueryEngine.from_args(index, reader, top_n=1)
    response = rewriting.query(VAGUE)
    response.source_nodes[0].node.metadata["page"] = 99
    assert {name: node.model_dump() for name, node in index.docstore.docs.items()} == before
