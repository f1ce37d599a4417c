"""How sure the LLM was of an answer, in any engine or agent; and answers that are withheld."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from llama_index.core import PromptTemplate, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.llms import LLM, ChatMessage, MockLLM
from llama_index.core.query_engine import (
    CitationQueryEngine,
    CustomQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
)
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step
from pydantic import BaseModel, PrivateAttr, SecretStr

from langchain_surerag import with_certainty as langchain_certainty
from llama_index_surerag import (
    AbstainingChatEngine,
    AbstainingQueryEngine,
    LazyRetrievalQueryEngine,
    MethodEvent,
    MethodStreamEvent,
    ReaderLLM,
    UncertaintyRewriteQueryEngine,
    certainty_in,
    observing,
    reader_from_llm,
    streamed_to,
    with_certainty,
)
from surerag import (
    AbstentionPolicy,
    AreYouSure,
    CalibrationRow,
    FakeReader,
    SampleAgreement,
    TransformersReader,
    calibrate_abstention,
    certainty_of,
    evaluate,
)
from surerag.calibration import CalibrationWarning
from surerag.demo import reader as demo
from surerag.errors import CapabilityError, ConfigurationError, InputError
from surerag.messages import SamplingParams
from tests.llama_index.corpus import KNOWN, UNKNOWN, HashEmbedding, index, knowing, like
from tests.llama_index.llms import Own, Splitting
from tests.readers.tiny_models import tiny_model, tiny_tokenizer
from tests.servers.fake_openai import FakeOpenAI, split

ENTROPY = -sum(p * math.log(p) for p in (math.exp(-0.1), 1 - math.exp(-0.1)))
"""Entropy of each token that the fake server writes."""
SELECTS = '[{"choice": 1, "reason": "the only one"}]'


class Structure(BaseModel):
    """Any."""

    answer: str


def says(prompt: str) -> str:
    """As many words as the last number in the question, so that answers tell whose they are."""
    if "Some choices are given below" in prompt:
        return SELECTS
    if "standalone question" in prompt:
        return "Say 3 words?"
    count = int(next((word for word in reversed(split(prompt)) if word.strip().isdigit()), "5"))
    answer = " ".join(["Velm"] * count)
    return f"Thought: I know.\nAnswer: {answer}" if "Thought:" in prompt else answer


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(says) as fake:
        yield fake


def sure(server: FakeOpenAI, **settings: Any) -> LLM:
    return with_certainty(like(server, reuse_client=False, **settings))


def router(llm: LLM) -> RouterQueryEngine:
    tool = QueryEngineTool.from_defaults(index().as_query_engine(llm=llm), name="atlas")
    return RouterQueryEngine(LLMSingleSelector.from_defaults(llm), [tool], llm=llm)


def sub_questions(llm: LLM) -> SubQuestionQueryEngine:
    tool = QueryEngineTool.from_defaults(index().as_query_engine(llm=llm), name="atlas", description="all")
    synthesizer = index().as_query_engine(llm=llm)._response_synthesizer
    return SubQuestionQueryEngine.from_defaults(
        [tool], llm=llm, question_gen=Splitting(), response_synthesizer=synthesizer, use_async=False
    )


def mode(name: str) -> Callable[[LLM], Any]:
    return lambda llm: index().as_query_engine(llm=llm, response_mode=name, similarity_top_k=3)


ENGINES: dict[str, Callable[[LLM], Any]] = {
    **{name: mode(name) for name in ("compact", "refine", "tree_summarize", "simple_summarize")},
    "citation": lambda llm: CitationQueryEngine.from_args(
        index(), llm=llm, citation_chunk_size=60, citation_chunk_overlap=2
    ),
    "router": router,
    "sub questions": sub_questions,
    "abstaining": lambda llm: AbstainingQueryEngine(index().as_query_engine(llm=llm), None),
}
CHATS: dict[str, Callable[[LLM], Any]] = {
    "simple": lambda llm: SimpleChatEngine.from_defaults(llm=llm),
    **{
        name: lambda llm, name=name: index().as_chat_engine(llm=llm, chat_mode=name)
        for name in ("context", "condense_plus_context", "condense_question")
    },
    "abstaining": lambda llm: AbstainingChatEngine(SimpleChatEngine.from_defaults(llm=llm), None),
}
QUESTION = "Say 4 words"


def check(values: dict[str, Any], answer: str) -> None:
    """Check a certainty against what the server said of an answer's tokens."""
    assert values["tokens"] == len(split(answer)) > 0
    assert values["reason"] == ""
    assert values["measure"] == "greatest_3_mean_entropy"
    assert values["interval"] == pytest.approx([ENTROPY, ENTROPY])
    assert values["uncertainties"]["negative_log_likelihood"] == pytest.approx(0.1 * values["tokens"])
    assert values["scope"]["reader"] == "toy"


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
async def test_beside_the_answer_of_a_query_engine(server: FakeOpenAI, name: str, chat: bool) -> None:
    engine = ENGINES[name](sure(server, chat=chat))
    for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
        check(response.metadata["certainty"], str(response))
        assert certainty_in(response).to_dict() == response.metadata["certainty"]


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
async def test_behind_the_stream_of_a_query_engine(server: FakeOpenAI, chat: bool) -> None:
    def engine(llm: LLM) -> Any:
        return index().as_query_engine(llm=llm, streaming=True)

    plain = "".join(engine(like(server, chat=chat)).query(QUESTION).response_gen)
    observed = engine(sure(server, chat=chat))
    response = observed.query(QUESTION)
    pieces = []
    for piece in response.response_gen:
        assert "certainty" not in response.metadata
        pieces.append(piece)
    assert "".join(pieces) == plain
    check(response.metadata["certainty"], plain)
    response = await observed.aquery(QUESTION)
    pieces = [piece async for piece in response.async_response_gen()]
    assert len(pieces) > 2
    check(response.metadata["certainty"], "".join(pieces))
    with pytest.raises(InputError, match="has no certainty"):
        certainty_in(observed.query(QUESTION))


@pytest.mark.parametrize("name", CHATS)
async def test_beside_the_answer_of_a_chat_engine(server: FakeOpenAI, name: str) -> None:
    engine = CHATS[name](sure(server))
    for response in (engine.chat(QUESTION), await engine.achat("Say 6 words")):
        check(response.metadata["certainty"], response.response)
    response = engine.stream_chat("Say 7 words")
    check_after = "".join(response.response_gen)
    check(response.metadata["certainty"], check_after)
    response = await engine.astream_chat("Say 8 words")
    check_after = "".join([piece async for piece in response.async_response_gen()])
    check(response.metadata["certainty"], check_after)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("agent", [FunctionAgent, ReActAgent])
async def test_beside_the_answer_of_an_agent(server: FakeOpenAI, agent: Any, streaming: bool) -> None:
    def look(question: str) -> str:
        """Look."""
        return question

    llm = sure(server, is_function_calling_model=True)
    output = await agent(tools=[look], llm=llm, streaming=streaming).run(user_msg=QUESTION)
    assert str(output) == "Velm Velm Velm Velm"
    check(output["certainty"], str(output))
    assert certainty_in(output).uncertainty == pytest.approx(ENTROPY)


def test_costs_no_call_and_no_token(server: FakeOpenAI) -> None:
    def requests(llm: LLM) -> list[Any]:
        server.requests.clear()
        for name in ("refine", "router", "sub questions"):
            ENGINES[name](llm).query(QUESTION)
        return [{**request, "headers": None} for request in server.requests]

    plain, observed = requests(like(server)), requests(sure(server))
    assert len(plain) > 5
    assert observed == [{**request, "logprobs": True, "top_logprobs": 5} for request in plain]


async def test_queries_that_run_at_the_same_time_are_not_mixed_up(server: FakeOpenAI) -> None:
    server.options["seconds"] = 0.01
    engine = index().as_query_engine(llm=sure(server))
    streaming = index().as_query_engine(llm=sure(server), streaming=True)

    async def ask(count: int) -> None:
        response = await engine.aquery(f"Say {count} words")
        check(response.metadata["certainty"], str(response))
        assert response.metadata["certainty"]["tokens"] == count
        response = await streaming.aquery(f"Say {count} words")
        assert len([piece async for piece in response.async_response_gen()]) >= count
        assert response.metadata["certainty"]["tokens"] == count

    def ask_in_a_thread(count: int) -> None:
        assert engine.query(f"Say {count} words").metadata["certainty"]["tokens"] == count
        # A loop of its own.
        asyncio.run(ask(count))

    await asyncio.gather(*map(ask, range(1, 9)))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask_in_a_thread, range(1, 9)))


def test_a_stream_that_is_not_read_leaves_nothing_behind(server: FakeOpenAI) -> None:
    engine = index().as_query_engine(llm=sure(server), streaming=True)
    engine.query(QUESTION)
    begun = engine.query(QUESTION)
    next(iter(begun.response_gen))
    sure(server).stream_chat([ChatMessage(content=QUESTION)])
    del begun
    gc.collect()
    assert not observing._OPEN
    assert not observing._CALLS
    assert not observing._STREAMS


def test_says_why_there_is_none(server: FakeOpenAI) -> None:
    server.options["no_logprobs"] = True
    values = index().as_query_engine(llm=sure(server)).query(QUESTION).metadata["certainty"]
    assert (values["uncertainty"], values["reason"]) == (None, "the answer came without log-probabilities")
    values = mode("accumulate")(sure(server)).query(QUESTION).metadata["certainty"]
    assert "no single call" in values["reason"]
    empty = VectorStoreIndex([], embed_model=HashEmbedding()).as_query_engine(llm=sure(server))
    assert empty.query(QUESTION).metadata["certainty"]["reason"] == "the answer has no words"
    server.answers = [""]
    response = index().as_query_engine(llm=sure(server)).query(QUESTION)
    assert str(response) == "Empty Response"
    assert response.metadata["certainty"]["reason"] == "the answer has no words"


def test_beside_a_structured_answer(server: FakeOpenAI) -> None:
    server.answers = ['{"answer": "Velm"}']
    for settings in ({"llm": sure(server).as_structured_llm(Structure)}, {"output_cls": Structure}):
        engine = index().as_query_engine(**{"llm": sure(server), **settings})
        response = engine.query(QUESTION)
        assert response.answer == "Velm"
        check(response.metadata["certainty"], '{"answer": "Velm"}')
        shown = AbstainingQueryEngine(engine, policy(9.0)).query(QUESTION)
        assert shown.answer == "Velm"
        withheld = AbstainingQueryEngine(engine, policy(0.0)).query(QUESTION)
        assert str(withheld) == "I do not know."


def test_responses_of_other_llms_stay_as_they_are(server: FakeOpenAI) -> None:
    sure(server)
    assert "certainty" not in index().as_query_engine(llm=like(server)).query(QUESTION).metadata
    assert "certainty" not in index().as_query_engine(llm=MockLLM()).query(QUESTION).metadata


def test_of_an_llm_of_ones_own() -> None:
    for llm in (Own(sure=0.9), Own(sure=0.9, temperature=0.5)):
        response = index().as_query_engine(llm=with_certainty(llm)).query(KNOWN)
        assert response.metadata["certainty"]["uncertainties"]["least_likely_token"] == pytest.approx(
            -math.log(0.9)
        )


def test_a_policy_tells_how_probably_an_answer_is_right(server: FakeOpenAI) -> None:
    engine = index().as_query_engine(llm=with_certainty(like(server), policy(reader="toy")))
    certainty = certainty_in(engine.query(QUESTION))
    assert certainty.probability == pytest.approx(0.9 - 0.8 * ENTROPY)
    settings = certainty.scope["settings"]
    others: dict[str, dict[str, str]] = {name: {name: "other"} for name in ("reader", "settings", "prompt")}
    for scope in others.values():
        engine = index().as_query_engine(llm=with_certainty(like(server), policy(**scope)))
        with pytest.warns(UserWarning, match="cannot estimate the probability that .*'other'"):
            certainty = certainty_in(engine.query(QUESTION))
        assert (certainty.probability, certainty.uncertainty) == (None, pytest.approx(ENTROPY))
        assert "calibrated for another reader" in certainty.reason
    llm = with_certainty(like(server), policy(settings=settings), measure="perplexity")
    certainty = certainty_in(index().as_query_engine(llm=llm).query(QUESTION))
    assert (certainty.measure, certainty.uncertainty) == ("perplexity", pytest.approx(math.exp(0.1)))
    assert certainty.probability == pytest.approx(0.1)


async def test_is_that_of_langchain(server: FakeOpenAI) -> None:
    chat = ChatOpenAI(model="toy", base_url=server.base_url, api_key=SecretStr("k"))
    theirs = langchain_certainty(chat).invoke(QUESTION).response_metadata["certainty"]
    ours = SimpleChatEngine.from_defaults(llm=sure(server)).chat(QUESTION).metadata["certainty"]
    assert {**ours, "scope": None} == {**theirs, "scope": None}
    server.options["thoughts"] = "Velm? Tarn?"
    theirs = langchain_certainty(chat).invoke(QUESTION).response_metadata["certainty"]
    ours = SimpleChatEngine.from_defaults(llm=sure(server)).chat(QUESTION).metadata["certainty"]
    assert {**ours, "scope": None} == {**theirs, "scope": None}
    assert ours["tokens"] == 4


class HuggingFaceLLM(MockLLM):
    """Looks like LlamaIndex's."""


class Ollama(MockLLM):
    """Looks like LlamaIndex's."""


HuggingFaceLLM.__module__ = "llama_index.llms.huggingface"
Ollama.__module__ = "llama_index.llms.ollama"


@pytest.mark.parametrize(
    ("llm", "remedy"),
    [
        (HuggingFaceLLM(), "TransformersReader"),
        (Ollama(), "OpenAILike"),
        (MockLLM(), "AreYouSure"),
    ],
)
def test_an_llm_without_log_probabilities_is_refused(llm: LLM, remedy: str) -> None:
    with pytest.raises(CapabilityError, match="returns no log-probabilities") as caught:
        with_certainty(llm)
    assert remedy in str(caught.value)


class GoogleGenAI(MockLLM):
    """Looks like LlamaIndex's."""

    _generation_config: dict[str, Any] = PrivateAttr(default_factory=dict)


GoogleGenAI.__module__ = "llama_index.llms.google_genai"


def test_gemini_is_built_with_log_probabilities() -> None:
    llm = GoogleGenAI()
    with pytest.raises(ConfigurationError, match="response_logprobs=True"):
        with_certainty(llm)
    llm._generation_config["response_logprobs"] = True
    assert with_certainty(llm) is llm


@pytest.mark.parametrize(
    "arguments",
    [
        {"llm": 7},
        {"top_logprobs": 21},
        {"top_logprobs": "5"},
        {"policy": 0.5},
        {"measure": "entropy"},
        {"llm": MockLLM().as_structured_llm(Structure)},
    ],
)
def test_wrong_arguments_are_refused(server: FakeOpenAI, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"(llm|top_logprobs|policy|measure) must be|StructuredLLM"):
        with_certainty(**{"llm": like(server), **arguments})


def test_the_llm_itself_stays_as_it_is(server: FakeOpenAI) -> None:
    llm = like(server)
    copied = with_certainty(llm, top_logprobs=7)
    assert type(copied) is type(llm)
    assert (copied.logprobs, copied.top_logprobs, llm.logprobs) == (True, 7, None)


def test_is_reported(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[MethodEvent] = []
    attributes: dict[str, Any] = {}

    class Handler(BaseEventHandler):
        def handle(self, event: Any, **_: Any) -> None:
            events.extend([event] if isinstance(event, MethodEvent) else [])

    spans, handler = SimpleSpanHandler(), Handler()
    current = SimpleNamespace(set_attributes=attributes.update)
    telemetry = SimpleNamespace(get_current_span=lambda: current)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", telemetry)
    monkeypatch.setattr(get_dispatcher(), "event_handlers", [*get_dispatcher().event_handlers, handler])
    monkeypatch.setattr(get_dispatcher(), "span_handlers", [spans])
    for streaming in (False, True):
        events.clear()
        attributes.clear()
        response = index().as_query_engine(llm=sure(server), streaming=streaming).query(QUESTION)
        assert str(response) == "Velm Velm Velm Velm"
        [event] = events
        assert event.name == "surerag.certainty"
        assert event.data["uncertainty"] == pytest.approx(ENTROPY)
        assert attributes["surerag.certainty.uncertainty"] == pytest.approx(ENTROPY)
        span = next(one for one in spans.completed_spans if ".query-" in one.id_)
        assert span.tags["surerag.certainty.uncertainty"] == pytest.approx(ENTROPY)
        assert span.tags["surerag.certainty.measure"] == "greatest_3_mean_entropy"
        spans.completed_spans.clear()


async def test_is_in_the_stream_of_a_workflow(server: FakeOpenAI) -> None:
    engine = index().as_query_engine(llm=sure(server))

    class Asking(Workflow):
        @step
        async def ask(self, ctx: Context, event: StartEvent) -> StopEvent:
            with streamed_to(ctx):
                return StopEvent(result=await engine.aquery(QUESTION))

    handler = Asking().run()
    told = [event async for event in handler.stream_events() if isinstance(event, MethodStreamEvent)]
    assert [event.name for event in told] == ["surerag.certainty"]
    check((await handler).metadata["certainty"], "Velm Velm Velm Velm")
    assert told[0].data["uncertainty"] == pytest.approx(ENTROPY)


# Models in this process.


def local() -> ReaderLLM:
    llm = with_certainty(TransformersReader(tiny_model("llama"), tiny_tokenizer()))
    assert isinstance(llm, ReaderLLM)
    llm.max_tokens = 12
    return llm


async def test_a_local_model_tells_exact_entropies() -> None:
    llm = local()
    [[expected]] = llm.reader.generate([KNOWN], SamplingParams(max_tokens=12))

    def check_exact(response: Any, answer: str) -> None:
        assert answer == expected.text
        lower, upper = response.metadata["certainty"]["interval"]
        assert lower == upper == pytest.approx(certainty_of(expected.trace).uncertainty)
        assert response.metadata["certainty"]["is_cut"] == expected.is_cut

    chats = [SimpleChatEngine.from_defaults(llm=llm) for _ in range(4)]
    for response in (chats[0].chat(KNOWN), await chats[1].achat(KNOWN)):
        check_exact(response, response.response)
    response = chats[2].stream_chat(KNOWN)
    check_exact(response, "".join(response.response_gen).strip())
    response = await chats[3].astream_chat(KNOWN)
    check_exact(response, "".join([piece async for piece in response.async_response_gen()]).strip())


async def test_completes_texts() -> None:
    llm = local()
    whole, awaited = llm.complete(KNOWN), await llm.acomplete(KNOWN)
    *_, last = llm.stream_complete(KNOWN)
    *_, alast = [piece async for piece in await llm.astream_complete(KNOWN)]
    assert whole.text == awaited.text == last.text.strip() == alast.text.strip() != ""
    assert whole.raw.trace.entropy.exact
    assert llm.complete(KNOWN, max_tokens=2).raw.completion_tokens <= 2


@pytest.mark.skipif(not demo.base_folder().is_dir(), reason="the demo's model was not fetched")
def test_a_real_small_model_is_surer_of_what_it_is_shown() -> None:
    llm = with_certainty(demo.load_reader())
    shown = index().as_query_engine(llm=llm, similarity_top_k=1)
    values = shown.query(KNOWN).metadata["certainty"]
    assert values["reason"] == ""
    assert values["interval"][0] == values["interval"][1]
    guessed = SimpleChatEngine.from_defaults(llm=llm).chat(KNOWN).metadata["certainty"]
    assert values["uncertainty"] < guessed["uncertainty"]


# Methods.


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_final_answer_of_a_method_has_its_own(streaming: bool) -> None:
    lazy = LazyRetrievalQueryEngine.from_args(index(), knowing(), threshold=1.0, streaming=streaming)
    rewriting = UncertaintyRewriteQueryEngine.from_args(index(), knowing())
    for engine in (lazy, rewriting):
        for response in (engine.query(UNKNOWN), await engine.aquery(UNKNOWN)):
            answer = await response.get_response() if hasattr(response, "_lock") else response
            assert str(answer).startswith("In the lake of Mir")
            certainty = certainty_in(response)
            assert certainty.uncertainty == pytest.approx(0.1)
            assert certainty.scope["reader"] == knowing().name
    # The gate read the first pass, which knew nothing.
    response = lazy.query(UNKNOWN)
    str(response)
    assert response.metadata["score"] == pytest.approx(2.0)
    # Inside another engine it is the same.
    tool = QueryEngineTool.from_defaults(lazy, name="atlas")
    outer = RouterQueryEngine(
        LLMSingleSelector.from_defaults(Own(reply_to=lambda _: SELECTS)), [tool], llm=Own()
    )
    response = outer.query(UNKNOWN)
    assert str(response).startswith("In the lake of Mir")
    assert certainty_in(response).uncertainty == pytest.approx(0.1)


# Withholding.


def policy(threshold: float = 1.0, **scope: str) -> AbstentionPolicy:
    return AbstentionPolicy(threshold, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1), scope=scope)


def doubting(prompt: str) -> str:
    """A fake's answer: unsure only of what it is not shown."""
    return "Nowhere at all" if UNKNOWN in prompt else "In Velm of old"


def measured(prompt: str) -> Any:
    from surerag.readers.fake import reply

    return reply(doubting(prompt), entropy=2.0 if UNKNOWN in prompt else 0.1)


@pytest.fixture
def doubter() -> LLM:
    return with_certainty(FakeReader(measured))


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_query_engine_withholds_what_is_not_sure(doubter: LLM, streaming: bool) -> None:
    inner = index().as_query_engine(llm=doubter, streaming=streaming)
    engine = AbstainingQueryEngine(inner, policy(), abstention="No idea.")
    for response in (engine.query(KNOWN), await engine.aquery(KNOWN)):
        assert str(response) == "In Velm of old"
        assert response.metadata["abstained"] is False
        assert response.metadata["probability"] == pytest.approx(0.82)
        assert response.metadata["certainty"]["probability"] == pytest.approx(0.82)
        assert hasattr(response, "response_gen") is streaming
    for response in (engine.query(UNKNOWN), await engine.aquery(UNKNOWN)):
        assert str(response) == "No idea."
        assert response.metadata["abstained"] is True
        assert "Nowhere" not in repr(vars(response))
        assert response.source_nodes
    pieces = list(engine.query(UNKNOWN).response_gen) if streaming else ["No idea."]
    assert pieces == ["No idea."]


async def test_what_a_policy_does_not_record_is_told_once() -> None:
    partial = policy(reader=FakeReader(measured).name)
    inner = index().as_query_engine(llm=with_certainty(FakeReader(measured), partial))
    engine = AbstainingQueryEngine(inner, partial)
    with pytest.warns(CalibrationWarning, match="the policy does not record the") as warned:
        await engine.aquery(KNOWN)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        engine.query(KNOWN)
    told = [(one.filename, str(one.message).split()[6]) for one in warned]
    assert told == [(__file__, "settings"), (__file__, "prompt")]


async def test_an_empty_question_is_refused(doubter: LLM) -> None:
    inner = index().as_query_engine(llm=doubter)
    chat = AbstainingChatEngine(index().as_chat_engine("simple", llm=doubter), policy())
    for question in ("", " "):
        with pytest.raises(InputError, match="the question is empty"):
            AbstainingQueryEngine(inner, policy()).query(question)
        with pytest.raises(InputError, match="the question is empty"):
            await AbstainingQueryEngine(inner, None).aquery(question)
        with pytest.raises(InputError, match="the question is empty"):
            chat.chat(question)


@pytest.mark.parametrize("chat_mode", ["simple", "context", "condense_plus_context", "condense_question"])
async def test_a_chat_engine_withholds_what_is_not_sure(doubter: LLM, chat_mode: str) -> None:
    engine = AbstainingChatEngine(CHATS[chat_mode](doubter), policy(), abstention="No idea.")
    assert engine.chat(KNOWN).response == "In Velm of old"
    engine.reset()
    assert (await engine.achat(KNOWN)).response == "In Velm of old"
    for number, ask in enumerate((engine.chat, engine.achat, engine.stream_chat, engine.astream_chat)):
        engine.reset()
        response: Any = ask(UNKNOWN)
        response = await response if asyncio.iscoroutine(response) else response
        if number == 2:
            assert list(response.response_gen) == ["No idea."]
        elif number == 3:
            assert [piece async for piece in response.async_response_gen()] == ["No idea."]
        assert str(response) == "No idea."
        assert response.metadata["abstained"] is True
        assert response.metadata["certainty"]["uncertainty"] == pytest.approx(2.0)
        assert "Nowhere" not in repr(vars(response))
        assert [message.content for message in engine.chat_history] == [UNKNOWN, "No idea."]


def test_a_query_engine_is_made_of_a_chat_engine(doubter: LLM) -> None:
    engine = AbstainingQueryEngine(SimpleChatEngine.from_defaults(llm=doubter), policy())
    assert str(engine.query(KNOWN)) == "In Velm of old"
    assert str(engine.query(UNKNOWN)) == "I do not know."


def test_an_answer_without_words_is_withheld(doubter: LLM) -> None:
    empty = VectorStoreIndex([], embed_model=HashEmbedding()).as_query_engine(llm=doubter)
    response = AbstainingQueryEngine(empty, policy(99.0)).query(KNOWN)
    assert (str(response), response.metadata["abstained"]) == ("I do not know.", True)


def test_a_policy_that_withholds_every_answer_says_so(doubter: LLM) -> None:
    with pytest.warns(CalibrationWarning, match="no answer will be shown"):
        AbstainingQueryEngine(SimpleChatEngine.from_defaults(llm=doubter), policy(-math.inf))


def test_an_answer_that_was_cut_is_withheld(server: FakeOpenAI) -> None:
    inner = index().as_query_engine(llm=sure(server, max_tokens=2))
    response = AbstainingQueryEngine(inner, policy(99.0)).query(QUESTION)
    assert response.metadata["certainty"]["is_cut"] is True
    assert response.metadata["abstained"] is True


def test_a_policy_of_any_engine_is_calibrated_from_its_answers(doubter: LLM) -> None:
    inner = index().as_query_engine(llm=doubter)
    collecting = AbstainingQueryEngine(inner, None)
    rows = []
    for number in range(80):
        response = collecting.query(UNKNOWN if number % 2 else KNOWN)
        rows.append(CalibrationRow.of(response.metadata["certainty"], str(response) == "In Velm of old"))
    found = calibrate_abstention(rows, max_risk=0.2)
    assert found.coverage == pytest.approx(0.5)
    assert found.scope["reader"] == doubter.metadata.model_name
    engine = AbstainingQueryEngine(inner, found)
    assert [str(engine.query(one)) for one in (KNOWN, UNKNOWN)] == ["In Velm of old", "I do not know."]
    inner.update_prompts(
        {"response_synthesizer:text_qa_template": PromptTemplate("Guess: {context_str} {query_str}")}
    )
    with pytest.raises(ConfigurationError, match="prompts of the engine changed"):
        engine.query(KNOWN)
    with pytest.raises(ConfigurationError, match="calibrated for the prompt"):
        AbstainingQueryEngine(inner, found)


def test_a_policy_is_calibrated_from_a_run_of_ones_own_engine(doubter: LLM) -> None:
    inner = index().as_query_engine(llm=doubter)
    questions = [(KNOWN, "Velm")] * 20 + [(UNKNOWN, "Mir")] * 20
    run = evaluate(
        {"mine": inner}, [(f"{number}. {text}", right) for number, (text, right) in enumerate(questions)]
    )
    found = calibrate_abstention(run.certainty_rows("mine", "contains"), max_risk=0.3)
    engine = AbstainingQueryEngine(inner, found)
    assert [str(engine.query(one)) for one in (KNOWN, UNKNOWN)] == ["In Velm of old", "I do not know."]


def test_a_failure_to_observe_is_logged(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = index().as_query_engine(llm=sure(server))
    monkeypatch.setattr(observing, "reply_parts", lambda *_, **__: 1 / 0)
    assert str(engine.query(QUESTION)) == "Velm Velm Velm Velm"
    assert "certainty.failed" in caplog.text


async def test_changed_prompts_of_a_method_are_noticed() -> None:
    engine = LazyRetrievalQueryEngine.from_args(index(), knowing(), threshold=9.0)
    rows = [
        CalibrationRow.of(engine.query(KNOWN).metadata["certainty"], number % 9 > 0) for number in range(40)
    ]
    found = calibrate_abstention(rows, max_risk=0.5)
    abstaining = AbstainingQueryEngine(engine, found)
    assert abstaining.query(KNOWN).metadata["abstained"] is False
    abstaining.update_prompts({"engine:from_context": PromptTemplate("Guess: {context} {question}")})
    with pytest.raises(ConfigurationError, match="prompts of the engine changed"):
        abstaining.query(KNOWN)
    with pytest.raises(ConfigurationError, match="prompts of the engine changed"):
        await abstaining.aquery(KNOWN)
    with pytest.raises(ConfigurationError, match="calibrated for the settings"):
        AbstainingQueryEngine(engine, found)


@pytest.mark.parametrize("changed", [{"temperature": 0.9}, {"max_tokens": 9}, {"system_prompt": "Be brief."}])
async def test_other_settings_of_the_llm_are_noticed(server: FakeOpenAI, changed: dict[str, Any]) -> None:
    engine, chat = index().as_query_engine(llm=sure(server)), SimpleChatEngine.from_defaults(llm=sure(server))
    other = sure(server, **changed)
    asked = engine.query(QUESTION), chat.chat(QUESTION)
    of_engine, of_chat = (policy(9.0, **certainty_in(one).scope) for one in asked)
    told = await AbstainingQueryEngine(engine, of_engine).aquery(QUESTION)
    assert told.metadata["probability"] is not None
    with pytest.raises(ConfigurationError, match=r"settings.*temperature"):
        AbstainingQueryEngine(index().as_query_engine(llm=other), of_engine).query(QUESTION)
    with pytest.raises(ConfigurationError, match=r"settings.*temperature"):
        AbstainingChatEngine(SimpleChatEngine.from_defaults(llm=other), of_chat).chat(QUESTION)
    told = index().as_query_engine(llm=with_certainty(other, of_engine))
    with pytest.warns(UserWarning, match="cannot estimate the probability"):
        assert told.query(QUESTION).metadata["certainty"]["probability"] is None


def test_an_answer_that_ends_as_another_one_does_is_not_taken_for_it() -> None:
    found = [observing._shown_of("312", "12"), observing._shown_of("Answer: 12", "12")]
    assert found == [None, "12"]


def test_another_model_is_noticed(server: FakeOpenAI) -> None:
    llm = sure(server)
    chat = AbstainingChatEngine(SimpleChatEngine.from_defaults(llm=llm), policy(reader="other"))
    with pytest.raises(ConfigurationError, match="calibrated for the reader 'other'"):
        chat.chat(QUESTION)
    chat = AbstainingChatEngine(SimpleChatEngine.from_defaults(llm=llm), policy())
    assert chat.chat(QUESTION).metadata["abstained"] is False
    llm.model = "another"
    with pytest.raises(ConfigurationError, match="from the model 'toy', and this answer from 'another'"):
        chat.chat(QUESTION)


def test_an_llm_that_was_not_asked_for_log_probabilities_is_refused(server: FakeOpenAI) -> None:
    engine = AbstainingQueryEngine(index().as_query_engine(llm=like(server)), policy())
    with pytest.raises(ConfigurationError, match=r"not asked for log-probabilities.*with_certainty\(llm\)"):
        engine.query(QUESTION)


def test_where_the_server_gives_none_the_answer_is_withheld_with_a_warning(
    server: FakeOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    server.options["no_logprobs"] = True
    response = AbstainingQueryEngine(index().as_query_engine(llm=sure(server)), policy()).query(QUESTION)
    assert response.metadata["abstained"] is True
    assert "the answer came without log-probabilities" in caplog.text


async def test_asks_again_where_there_are_no_log_probabilities(server: FakeOpenAI) -> None:
    server.answers = lambda prompt: (
        ("Yes" if "4 words" in prompt else "No") if "Is your answer right" in prompt else says(prompt)
    )
    llm = like(server, reuse_client=False)
    engine = AbstainingQueryEngine(
        index().as_query_engine(llm=llm), policy(0.5), second_opinion=AreYouSure(llm)
    )
    for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
        assert response.metadata["abstained"] is False
        assert response.metadata["certainty"]["measure"] == "self_doubt"
        assert response.metadata["certainty"]["scope"]["reader"] == "toy"
    asked = server.requests[1]["messages"]
    assert "Context information is below" in asked[-3]["content"]
    assert [message["role"] for message in asked[-2:]] == ["assistant", "user"]
    assert asked[-2]["content"] == "Velm Velm Velm Velm"
    assert len(server.requests) == 4
    assert engine.query("Say 6 words").metadata["abstained"] is True
    chat = AbstainingChatEngine(
        SimpleChatEngine.from_defaults(llm=llm), policy(0.5), second_opinion=SampleAgreement(llm, n_samples=3)
    )
    assert chat.chat(QUESTION).metadata["certainty"]["uncertainties"]["disagreement"] == 0.0


@pytest.mark.parametrize("streaming", [False, True])
async def test_asks_again_behind_the_prompt_of_a_method(streaming: bool) -> None:
    with FakeOpenAI(lambda prompt: "Yes" if "Is your answer right" in prompt else doubting(prompt)) as server:
        llm = like(server, reuse_client=False)
        inner = LazyRetrievalQueryEngine.from_args(
            index(), reader_from_llm(llm, logprobs=False), gate="abstention", streaming=streaming
        )
        engine = AbstainingQueryEngine(inner, policy(0.5), second_opinion=AreYouSure(llm))
        for response in (engine.query(KNOWN), await engine.aquery(KNOWN)):
            assert response.metadata["abstained"] is False
            assert response.metadata["certainty"]["measure"] == "self_doubt"
        assert "Ada was born in Velm" in server.requests[-1]["messages"][-3]["content"]


@pytest.mark.parametrize(
    "change", [{"policy": 0.5}, {"engine": 7}, {"abstention": "…"}, {"second_opinion": "Sure?"}]
)
@pytest.mark.parametrize("kind", [AbstainingQueryEngine, AbstainingChatEngine])
def test_what_is_no_engine_policy_or_abstention_is_refused(
    doubter: LLM, kind: Any, change: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {"engine": SimpleChatEngine.from_defaults(llm=doubter), "policy": policy()}
    with pytest.raises(
        ConfigurationError, match=r"(engine|policy|second_opinion) must be|abstention is empty"
    ):
        kind(**arguments | change)


class Asking(CustomQueryEngine):
    """An engine that asks two LLMs the question, at once or in turn, and shows the first reply."""

    llms: list[Any]
    at_once: bool

    def custom_query(self, query_str: str) -> str:
        raise NotImplementedError

    async def acustom_query(self, query_str: str) -> str:
        asked = [llm.acomplete(query_str) for llm in self.llms]
        replies = await asyncio.gather(*asked) if self.at_once else [await one for one in asked]
        return str(replies[0].text)


@pytest.mark.parametrize(
    ("entropies", "at_once", "expected"),
    [((0.25, 2.0), True, 2.0), ((2.0, 0.25), True, 2.0), ((2.0, 0.25), False, 0.25)],
)
async def test_of_parallel_calls_with_the_same_text_the_least_certain_counts(
    entropies: tuple[float, float], at_once: bool, expected: float
) -> None:
    class Slow(FakeReader):
        async def agenerate(self, *arguments: Any, **keywords: Any) -> Any:
            await asyncio.sleep(0.05)
            return await super().agenerate(*arguments, **keywords)

    llms = [with_certainty(ReaderLLM(reader=Slow(["Velm"], entropy=entropy))) for entropy in entropies]
    response = await Asking(llms=llms, at_once=at_once).aquery("Where?")
    assert response.metadata["certainty"]["uncertainty"] == expected
