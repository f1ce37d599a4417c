"""A LangChain model as a reader: fifteen compositions, one decision."""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from langchain.chat_models import init_chat_model
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel, FakeListChatModel, FakeListLLM
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import ConfigurableField, RunnableLambda
from pydantic import Field

from langchain_surerag import LazyRetrievalChain, reader_from_model
from langchain_surerag.families import GEMINI, OLLAMA
from surerag import FakeReader, SamplingParams
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    ContextLengthError,
    InputError,
    LogprobsError,
    LogprobsRefusedError,
    MissingServiceError,
    RefusedError,
    ServiceError,
    ThinkingBudgetError,
    TransientServiceError,
)
from surerag.messages import Message
from surerag.readers import entries_of
from surerag.readers.parameters import LeftOutWarning
from surerag.readers.protocol import BegunGeneration
from tests.langchain.conftest import KEY, SUMMARY, SURE, UNSURE, chat, completions, search
from tests.servers.fake_openai import FakeOpenAI

ANSWER = "Velm lies on the long river Orun, far from the sea."
GREEDY = SamplingParams(max_tokens=32)
SAMPLES = SamplingParams(n=3, temperature=1.0, max_tokens=32, trace="logprobs", seed=7)


class OneOfMine(BaseChatModel):
    """A class of the user's with OpenAI's keywords and metadata."""

    inner: Any

    @property
    def _llm_type(self) -> str:
        return "mine"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.inner.invoke(messages, **kwargs))])

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[Any]:
        for chunk in self.inner.stream(messages, **kwargs):
            yield ChatGenerationChunk(message=chunk, generation_info=chunk.response_metadata)


class ChatOllama(BaseChatModel):
    """A class with Ollama's name, fields, keywords and metadata."""

    inner: Any
    model: str = "toy"
    num_ctx: int | None = None
    num_predict: int | None = None
    calls: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "ollama"

    def _spelled(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(kwargs)
        options = dict(kwargs.pop("options"))
        options.pop("num_ctx", None)
        return {**kwargs, **{{"num_predict": "max_tokens"}.get(name, name): v for name, v in options.items()}}

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        message = self.inner.invoke(messages, **self._spelled(kwargs))
        return ChatResult(generations=[ChatGeneration(message=_as_ollama(message))])

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[Any]:
        for chunk in self.inner.stream(messages, **self._spelled(kwargs)):
            message = _as_ollama(chunk)
            yield ChatGenerationChunk(message=message, generation_info=message.response_metadata)


def _as_ollama(message: Any) -> Any:
    metadata = dict(message.response_metadata)
    if logprobs := metadata.pop("logprobs", None):
        metadata["logprobs"] = logprobs["content"]
    if reason := metadata.pop("finish_reason", None):
        metadata["done_reason"] = reason
    return type(message)(message.content, response_metadata=metadata)


def compositions(server: FakeOpenAI) -> dict[str, Any]:
    """Return a model in whatever a user may put around it."""
    model = chat(server)
    return {
        "bare": model,
        "bind": model.bind(user="ada").bind(service_tier="auto"),
        "bound log-probabilities": model.bind(logprobs=True),
        "with_config": model.with_config(tags=["mine"], run_name="my model"),
        "with_retry": model.with_retry(stop_after_attempt=2, wait_exponential_jitter=False),
        "with_fallbacks": model.with_fallbacks([chat(server, model="other")]),
        "configurable_fields": model.configurable_fields(temperature=ConfigurableField(id="t")),
        "alternatives": model.configurable_alternatives(
            ConfigurableField(id="llm"), default_key="a", b=chat(server, model="other")
        ),
        "init_chat_model": init_chat_model(
            "openai:toy", base_url=server.base_url, api_key=KEY, configurable_fields="any"
        ),
        "nested": model.bind(user="ada").with_retry().with_fallbacks([model]),
        "class of one's own": reader_from_model(OneOfMine(inner=model), logprobs=True),
        "Ollama": ChatOllama(inner=model, num_ctx=4096),
        "completions": completions(server),
        "completions, bound": completions(server).bind(user="ada"),
    }


NAMES = list(compositions(FakeOpenAI()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sure", [True, False])
async def test_every_composition_leads_to_the_same_decision(name: str, sure: bool) -> None:
    with FakeOpenAI([ANSWER], logprob=SURE if sure else UNSURE) as server:
        chain = LazyRetrievalChain(compositions(server)[name], search, SUMMARY, threshold=1.0)
        p = math.exp(server.logprob)
        entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
        chunks = [*chain.stream("Where?")]
        for output in (chain.invoke("Where?"), await chain.ainvoke("Where?")):
            assert output["decision"]["score"] == pytest.approx(entropy, abs=1e-6)
            assert output["answer"] == ANSWER
            assert len(output["context"]) == 1
        assert "".join(chunk.get("answer", "") for chunk in chunks) == ANSWER
        if "completions" not in name:
            assert len(chunks) > 4
        assert "".join([chunk.get("answer", "") async for chunk in chain.astream("Where?")]) == ANSWER


async def test_an_unsure_gate_hangs_up_and_retrieves() -> None:
    with FakeOpenAI([ANSWER * 40], logprob=-0.7, pace=0.01) as server:
        chain = LazyRetrievalChain(chat(server), search, SUMMARY, threshold=0.1)
        for output in (chain.invoke("Where?"), await chain.ainvoke("Where?")):
            assert output["decision"]["retrieve"]
            assert len(output["context"]) == 3
        await asyncio.sleep(0.1)
        drafts = [stream for stream in server.streams if stream["closed"]]
        assert len(drafts) == 2
        assert all(stream["sent"] < 40 for stream in drafts)


def test_what_is_sent_is_what_the_method_needs(server: FakeOpenAI) -> None:
    reader = reader_from_model(chat(server))
    reader.generate(["Where?"], SamplingParams(max_tokens=9, trace="none"))
    body = server.requests[-1]
    assert (body["temperature"], body["max_completion_tokens"]) == (0.0, 9)
    assert not {"logprobs", "top_logprobs", "seed", "n", "stop", "top_p"} & body.keys()
    reader.generate(["Where?"], SamplingParams(n=2, temperature=1.0, seed=5, trace="logprobs", stop=("\n",)))
    body = server.requests[-1]
    assert (body["n"], body["temperature"], body["seed"], body["stop"]) == (2, 1.0, 5, ["\n"])
    assert body["logprobs"] is True
    assert body["top_logprobs"] == 1


def test_what_the_user_set_holds(server: FakeOpenAI) -> None:
    reader = reader_from_model(chat(server, temperature=0.3, max_tokens=7).bind(stop=["END"]))
    assert reader.max_tokens == 7
    reader.generate(["Where?"], SamplingParams(max_tokens=99, trace="none"))
    body = server.requests[-1]
    assert (body["temperature"], body["max_completion_tokens"], body["stop"]) == (0.3, 7, ["END"])
    reader.generate(["Where?"], SAMPLES)
    assert server.requests[-1]["temperature"] == 1.0
    assert "bind" not in reader.name
    assert KEY not in repr(reader) + reader.name


def test_answers_that_the_user_asks_for_besides_are_not_requested(server: FakeOpenAI) -> None:
    for model in (chat(server, n=3), chat(server).bind(n=3)):
        reader = reader_from_model(model)
        reader.generate(["Where?"], GREEDY)
        list(reader.stream("Where?", GREEDY))
        assert [request["n"] for request in server.requests[-2:]] == [1, 1]


def test_ollama_keeps_the_options_of_its_model(server: FakeOpenAI) -> None:
    model = ChatOllama(inner=chat(server), num_ctx=4096, num_predict=30)
    [[answer]] = reader_from_model(model).generate(["Where?"], GREEDY)
    assert answer.trace is not None
    assert answer.trace.entropy is not None
    assert model.calls[0] == {"logprobs": True, "top_logprobs": 20}
    keywords = OLLAMA.keywords({"max_tokens": 9, "temperature": 0.0, "n": 3}, model)
    assert keywords == {"options": {"num_ctx": 4096, "num_predict": 9, "temperature": 0.0}}


def test_gemini_is_spelled_in_its_words() -> None:
    keywords = GEMINI.keywords({"max_tokens": 9, "logprobs": True, "top_logprobs": 5}, None)
    assert keywords == {"max_output_tokens": 9, "response_logprobs": True, "logprobs": 5}
    entry = {"token": "Velm", "log_probability": -0.1}
    metadata = {
        "logprobs_result": {"chosen_candidates": [entry], "top_candidates": [{"candidates": [entry]}]}
    }
    assert entries_of(metadata[str(GEMINI.logprobs)]) == [
        {"token": "Velm", "logprob": -0.1, "top_logprobs": [{"token": "Velm", "logprob": -0.1}]}
    ]


# Samples.


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("make", [chat, completions])
async def test_samples_are_independent(make: Any, wrapped: bool, cached: bool) -> None:
    with FakeOpenAI() as server:
        if cached:
            set_llm_cache(InMemoryCache())
        model = make(server).with_retry() if wrapped else make(server)
        if wrapped and make is completions:
            if cached:
                with pytest.raises(ConfigurationError, match="cache=False"):
                    reader_from_model(model).generate(["Where?"], SAMPLES)
            return
        reader = reader_from_model(model)
        [[*one], [*two]] = reader.generate(["Where is Velm?", "Who is Ada?"], SAMPLES)
        assert len(one) == len(two) == 3
        assert len(server.requests) == (6 if wrapped else 2)
        assert len({answer.text for answer in (*one, *two)}) > 1
        assert all(answer.trace is not None for answer in (*one, *two))
        again = await reader.agenerate(["Where is Velm?", "Who is Ada?"], SAMPLES)
        assert again == [one, two]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_the_cache_does_not_answer_all_samples_of_a_text_model_with_one(wrapped: bool, own: bool) -> None:
    if not own:
        set_llm_cache(InMemoryCache())
    model: Any = FakeListChatModel(responses=["a", "b", "c"], cache=InMemoryCache() if own else None)
    reader = reader_from_model(model.with_retry() if wrapped else model)
    [answers] = reader.generate(["Where?"], SAMPLES)
    assert sorted(answer.text for answer in answers) == ["a", "b", "c"]


def test_samples_that_a_server_leaves_out_are_requested_again() -> None:
    with FakeOpenAI(ignores_n=True) as server:
        [answers] = reader_from_model(chat(server)).generate(["Where?"], SAMPLES)
        assert len(answers) == 3
        assert [body.get("n") for body in server.requests] == [3, None, None]


async def test_requests_are_concurrent_and_limited() -> None:
    with FakeOpenAI(["Velm"], seconds=0.05) as server:
        reader = reader_from_model(chat(server), max_concurrency=3)
        await reader.agenerate(["?"] * 9, GREEDY)
        assert server.peak == 3
        reader.generate(["?"] * 9, GREEDY)
        assert server.peak == 3
        chain = LazyRetrievalChain(chat(server), search, SUMMARY)
        server.peak = 0
        await chain.abatch(["?"] * 8, {"max_concurrency": 2})
        assert server.peak == 2
        chain.batch(["?"] * 8, {"max_concurrency": 2})
        assert server.peak == 2


# What is around a model.


class Tokens(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tags: list[list[str]] = []
        self.names: list[str] = []

    def on_chat_model_start(self, *_: Any, tags: Any = None, name: Any = None, **__: Any) -> None:
        self.tags.append(sorted(tags))
        self.names.append(name)


async def test_callbacks_and_config_of_the_user_are_kept(server: FakeOpenAI) -> None:
    handler = Tokens()
    model = chat(server, callbacks=[handler]).with_config(tags=["mine"], run_name="my model")
    chain = LazyRetrievalChain(model, search, SUMMARY)
    chain.invoke("Where?")
    await chain.ainvoke("Where?")
    assert handler.names == ["my model"] * 2
    assert all({"mine", "nostream", "surerag:draft"} <= set(tags) for tags in handler.tags)


async def test_retries_are_kept_also_by_the_stream_of_a_gate(server: FakeOpenAI) -> None:
    model = chat(server).with_retry(stop_after_attempt=3, wait_exponential_jitter=False)
    chain = LazyRetrievalChain(model, search, SUMMARY)
    server.fail("500", times=2)
    assert chain.invoke("Where?")["decision"]["score"] is not None
    assert len(server.requests) == 3
    server.fail("hangs up", times=2)
    assert (await chain.ainvoke("Where?"))["decision"]["score"] is not None


def test_a_fallback_answers(server: FakeOpenAI) -> None:
    broken = chat(server, base_url="http://127.0.0.1:9/v1")
    output = LazyRetrievalChain(broken.with_fallbacks([chat(server)]), search, SUMMARY).invoke("Where?")
    assert output["decision"]["score"] is not None


def test_the_config_chooses_an_alternative() -> None:
    with FakeOpenAI([ANSWER], logprob=SURE) as one, FakeOpenAI(["Tarn"], logprob=SURE) as two:
        model = chat(one).configurable_alternatives(ConfigurableField(id="llm"), default_key="a", b=chat(two))
        chain = LazyRetrievalChain(model, search, SUMMARY)
        assert chain.invoke("?", {"configurable": {"llm": "b"}})["answer"] == "Tarn"
        assert chain.invoke("?")["answer"] == ANSWER


# What is missing.


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (FakeListChatModel(responses=["a"]), "FakeListChatModel returns no log-probabilities"),
        (FakeListLLM(responses=["a"]), "FakeListLLM returns no log-probabilities"),
        (
            FakeListChatModel(responses=["a"]).with_fallbacks([FakeListLLM(responses=["a"])]),
            "RunnableWithFallbacks of FakeListChatModel, FakeListLLM returns no log-probabilities",
        ),
    ],
)
def test_a_model_without_logprobs_is_refused_at_once_with_three_ways_out(model: Any, words: str) -> None:
    with pytest.raises(CapabilityError) as raised:
        LazyRetrievalChain(model, search, SUMMARY)
    for part in (words, "semantic_entropy", "OpenAIReader", "TransformersReader"):
        assert part in str(raised.value)
    chain = LazyRetrievalChain(model, search, SUMMARY, gate="semantic_entropy")
    assert chain.invoke("Where?")["answer"] == "a"


def test_the_responses_api_is_refused_at_once(server: FakeOpenAI) -> None:
    with pytest.raises(CapabilityError, match="use_responses_api=False"):
        LazyRetrievalChain(chat(server, use_responses_api=True), search, SUMMARY)


def test_mixed_models_promise_what_all_can_do(server: FakeOpenAI) -> None:
    mixed = chat(server).with_fallbacks([FakeListChatModel(responses=["a"])])
    assert not reader_from_model(mixed).capabilities.logprobs
    assert reader_from_model(mixed).generate(["?"], SamplingParams(trace="none"))[0][0].text == ANSWER
    assert not reader_from_model(chat(server), logprobs=False).capabilities.logprobs


@pytest.mark.parametrize("fault", ["logprobs are null", "logprob is null", "logprob is positive"])
async def test_missing_logprobs_name_the_model_and_what_came(server: FakeOpenAI, fault: str) -> None:
    server.fault = fault
    reader = reader_from_model(chat(server))
    with pytest.raises(LogprobsError, match="ChatOpenAI"):
        reader.generate(["Where?"], GREEDY)
    with pytest.raises(LogprobsError, match="ChatOpenAI"):
        await reader.agenerate(["Where?"], GREEDY)
    with pytest.raises(LogprobsError, match="ChatOpenAI"):
        reader.begin(["Where?"], 2, GREEDY)


@pytest.mark.parametrize(
    "model",
    [None, "gpt", RunnableLambda(str), chat(FakeOpenAI()) | RunnableLambda(str), 7],
)
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises((ConfigurationError, MissingServiceError)):
        LazyRetrievalChain(model, search, SUMMARY)


@pytest.mark.parametrize("name", ["max_concurrency", "top_logprobs", "vocabulary_size"])
def test_settings_out_of_bounds_are_refused(server: FakeOpenAI, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        reader_from_model(chat(server), **{name: 0})


def test_readers_of_surerag_pass_as_they_are() -> None:
    reader = FakeReader(["Velm"], entropy=0.1)
    assert LazyRetrievalChain(reader, search, SUMMARY).core.reader is reader


# What a model rejects.


def test_what_can_be_done_without_is_left_out_and_remembered() -> None:
    with FakeOpenAI([ANSWER], refuses=("temperature",)) as server:
        reader = reader_from_model(chat(server))
        with pytest.warns(LeftOutWarning, match="temperature"):
            reader.generate(["?"], SamplingParams(trace="none"))
        reader.generate(["?"], SamplingParams(trace="none"))
        assert ["temperature" in body for body in server.requests] == [True, False, False]
        assert len(reader.generate(["?"], SAMPLES)[0]) == 3
        with pytest.raises(RefusedError, match="temperature"):
            reader.generate(["?"], replace(SAMPLES, temperature=0.7))
        assert reader.begin(["?"], 2, GREEDY)


@pytest.mark.filterwarnings("ignore::surerag.readers.parameters.LeftOutWarning")
async def test_what_one_of_several_requests_learns_holds_for_all() -> None:
    with FakeOpenAI([ANSWER], refuses=("temperature",), seconds=0.05) as server:
        blocking = reader_from_model(chat(server)).generate(["?"] * 6, GREEDY)
        awaited = await reader_from_model(chat(server)).agenerate(["?"] * 6, GREEDY)
        assert [answer.text for [answer] in blocking + awaited] == [ANSWER] * 12


def test_fewer_alternatives_will_do() -> None:
    refusal = "Invalid value for '{}': must be less than or equal to 5."
    with FakeOpenAI([ANSWER], refuses=("top_logprobs",), refusal=refusal) as server:
        reader = reader_from_model(chat(server))
        with pytest.raises(LogprobsRefusedError, match="top_logprobs"):
            reader.generate(["?"], GREEDY)
        assert [body["top_logprobs"] for body in server.requests] == [20, 5]
    with FakeOpenAI([ANSWER]) as server:
        reader_from_model(chat(server).bind(top_logprobs=3)).generate(["?"], GREEDY)
        assert [body["top_logprobs"] for body in server.requests] == [3]


def test_what_is_needed_raises() -> None:
    with (
        FakeOpenAI([ANSWER], refuses=("logprobs",)) as server,
        pytest.raises(LogprobsRefusedError, match="logprobs"),
    ):
        reader_from_model(chat(server)).generate(["?"], GREEDY)
    with FakeOpenAI([ANSWER], refuses=("stream_options",)) as server:
        [begun] = reader_from_model(chat(server)).begin(["?"], 2, GREEDY)
        assert begun.partial.text == "Velm lies"
    with FakeOpenAI([ANSWER], refuses=("seed",)) as server:
        reader_from_model(chat(server)).generate(["?"], SAMPLES)
        assert ["seed" in body for body in server.requests] == [True, False]


# Failures.


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("500", TransientServiceError),
        ("429", TransientServiceError),
        ("401", RefusedError),
        ("404", RefusedError),
        ("too long", ContextLengthError),
        ("hangs up", TransientServiceError),
        ("hangs up midway", TransientServiceError),
        ("no HTTP", TransientServiceError),
        ("not JSON", ServiceError),
        ("HTML", ServiceError),
        ("null", ServiceError),
        ("a list", ServiceError),
        ("no choices", ServiceError),
        ("choices are a number", ServiceError),
        ("error with status 200", ServiceError),
        ("withheld", None),
        ("empty answer", None),
        ("cut", None),
    ],
)
async def test_whatever_goes_wrong_is_ours(server: FakeOpenAI, fault: str, kind: Any) -> None:
    server.fault = fault
    reader = reader_from_model(chat(server, timeout=5))
    plain = SamplingParams(max_tokens=32, trace="none")
    kinds: list[Any] = []

    async def astream() -> list[Any]:
        return [chunk async for chunk in reader.astream("?", plain)]

    for call in (
        lambda: reader.generate(["?"], plain)[0][0],
        lambda: [*reader.stream("?", plain)][-1].generation,
        lambda: reader.begin(["?"], 2, plain)[0].rest(),
    ):
        if kind is None:
            answer = call()
            assert (answer.finish, answer.text) == {
                "withheld": ("content_filter", ANSWER),
                "cut": ("length", ANSWER),
                "empty answer": ("empty", ""),
            }[fault]
            continue
        with pytest.raises(ServiceError, match="ChatOpenAI") as raised:
            call()
        kinds.append(type(raised.value))
    if kind is not None:
        assert issubclass(kinds[0], kind)
        with pytest.raises(ServiceError, match="ChatOpenAI"):
            await astream()


def test_a_failure_says_what_the_server_sent_and_has_its_cause(server: FakeOpenAI) -> None:
    server.fault = "401"
    with pytest.raises(RefusedError, match="Incorrect API key provided") as raised:
        reader_from_model(chat(server)).generate(["?"], GREEDY)
    assert isinstance(raised.value.__cause__, openai.AuthenticationError)


def test_a_key_in_a_clients_message_is_hidden(server: FakeOpenAI) -> None:
    model = chat(server, api_key=f"{KEY}\n")
    with pytest.raises(ServiceError) as raised:
        reader_from_model(model).generate(["?"], GREEDY)
    assert KEY not in "".join(traceback.format_exception(raised.value))


class Breaking(FakeListChatModel):
    error: Any

    def _call(self, *_: Any, **__: Any) -> str:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.ReadError("reset"), TransientServiceError),
        (httpx.RemoteProtocolError("closed"), TransientServiceError),
        (openai.APIError("?", httpx.Request("POST", "http://x"), body="busy"), ServiceError),
        (IndexError("list index out of range"), ServiceError),
        (AttributeError("'NoneType' object has no attribute 'x'"), ServiceError),
    ],
)
def test_raw_errors_of_clients_become_ours(error: Exception, kind: type[Exception]) -> None:
    reader = reader_from_model(Breaking(responses=["a"], error=error))
    with pytest.raises(kind, match="Breaking") as raised:
        reader.generate(["?"], SamplingParams(trace="none"))
    assert raised.value.__cause__ is error


async def test_a_stream_that_is_cut_off_is_no_answer(server: FakeOpenAI) -> None:
    server.fault = "no end"
    reader = reader_from_model(chat(server))
    plain = SamplingParams(max_tokens=32, trace="none")
    with pytest.raises(TransientServiceError, match="cut off"):
        [*reader.stream("?", plain)]
    with pytest.raises(TransientServiceError, match="cut off"):
        [chunk async for chunk in reader.astream("?", plain)]


# Thoughts.


class Saying(BaseChatModel):
    message: Any

    def __init__(self, message: Any) -> None:
        super().__init__(message=message)

    @property
    def _llm_type(self) -> str:
        return "saying"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.message)])


@pytest.mark.parametrize("where", ["marks", "field"])
async def test_thoughts_are_neither_shown_nor_measured(where: str) -> None:
    with FakeOpenAI([ANSWER], logprob=SURE, thoughts="Is it Velm?", thoughts_in=where) as server:
        chain = LazyRetrievalChain(chat(server), search, SUMMARY)
        whole = reader_from_model(chat(server)).generate(["?"], GREEDY)[0][0]
        assert whole.text == ANSWER
        assert whole.trace is not None
        assert "".join(whole.trace.tokens).strip() == ANSWER
        for output in (chain.invoke("?"), await chain.ainvoke("?")):
            assert output["answer"] == ANSWER
            assert output["decision"]["score"] < 0.1
        assert "".join(chunk.get("answer", "") for chunk in chain.stream("?")) == ANSWER


def test_a_model_seen_to_think_gets_tokens_for_it(server: FakeOpenAI) -> None:
    answers = iter([("<think>Hm, is", "length"), ("<think>Hm.</think>Velm", "stop")])

    class Thinker(Saying):
        def _generate(self, *_: Any, **kwargs: Any) -> ChatResult:
            text, finish = next(answers)
            message = AIMessage(text, response_metadata={"finish_reason": finish})
            return ChatResult(generations=[ChatGeneration(message=message)])

    reader = reader_from_model(Thinker(None))
    assert reader.generate(["?"], SamplingParams(trace="none"))[0][0].text == "Velm"
    assert reader.capabilities.thinking == "apart"
    cut = AIMessage("<think>Hm", response_metadata={"finish_reason": "length"})
    with pytest.raises(ThinkingBudgetError, match="thinking_tokens"):
        reader_from_model(Saying(cut)).generate(["?"], SamplingParams(trace="none"))


# Small things.


def test_conversations_and_stop_texts() -> None:
    seen: list[Any] = []

    class Hearing(Saying):
        def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
            seen.extend(messages)
            return super()._generate()

    reader = reader_from_model(Hearing(AIMessage("Velm.\nQuestion: next")))
    prompt = (Message("system", "Be brief."), Message("user", "Where?"))
    [[answer]] = reader.generate([prompt], SamplingParams(trace="none", stop=("\nQuestion",)))
    assert [(message.type, message.content) for message in seen] == [
        ("system", "Be brief."),
        ("human", "Where?"),
    ]
    assert answer.text == "Velm."


def test_what_was_begun_can_be_finished_once(server: FakeOpenAI) -> None:
    reader = reader_from_model(chat(server))
    begun = reader.begin(["?", "!"], 2, GREEDY)
    assert [item.partial.text for item in begun] == ["Velm lies"] * 2
    assert [len(item.partial.trace or ()) for item in begun] == [2, 2]
    assert [answer.text for answer in BegunGeneration.rest_of(begun)] == [ANSWER] * 2
    with pytest.raises(InputError, match="already"):
        BegunGeneration.rest_of(begun)
    for item in begun:
        item.close()
    assert reader.usage.requests == 2


def test_a_lone_surrogate_is_no_failure(server: FakeOpenAI) -> None:
    [[answer]] = reader_from_model(chat(server)).generate(["Where \ud83d?"], GREEDY)
    assert answer.text == ANSWER
    assert server.requests[-1]["messages"][0]["content"] == "Where \ufffd?"


async def test_async_never_uses_the_sync_way(server: FakeOpenAI, monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the sync method was called")

    model = chat(server)
    for name in ("_generate", "_stream"):
        monkeypatch.setattr(type(model), name, refuse)
    for options in ({}, {"threshold": 0.0}, {"gate": "semantic_entropy", "n_samples": 2}):
        chain = LazyRetrievalChain(model, search, SUMMARY, **options)
        assert (await chain.ainvoke("?"))["answer"] == ANSWER
        assert [chunk async for chunk in chain.astream("?")]


def test_custom_token_counts_are_used(server: FakeOpenAI) -> None:
    model = chat(server, custom_get_token_ids=lambda text: [0] * len(text))
    assert reader_from_model(model).count_tokens("Velm") == 4


def test_a_chunk_may_hold_several_tokens() -> None:
    entries = [
        {"token": token, "logprob": -0.1, "top_logprobs": [{"token": token, "logprob": -0.1}]}
        for token in ("Ve", "lm", " it")
    ]

    class Coarse(Saying):
        def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
            metadata = {"logprobs": {"content": entries}, "finish_reason": "stop"}
            yield ChatGenerationChunk(message=AIMessageChunk("Velm it"), generation_info=metadata)

    reader = reader_from_model(Coarse(None), logprobs=True)
    [begun] = reader.begin(["?"], 2, GREEDY)
    assert begun.partial.text == "Velm"
    assert begun.rest().text == "Velm it"


async def test_whoever_leaves_closes_the_connection() -> None:
    with FakeOpenAI([ANSWER * 40], logprob=SURE, pace=0.01) as server:
        chain = LazyRetrievalChain(chat(server), search, SUMMARY)
        for chunk in chain.stream("?"):
            if chunk.get("answer"):
                break
        async for chunk in chain.astream("?"):
            if chunk.get("answer"):
                break
        for _ in range(100):
            await asyncio.sleep(0.05)
            if all(stream["closed"] for stream in server.streams):
                break
        assert [stream["closed"] for stream in server.streams] == [True] * 2


# Families.


def test_a_chat_model_of_hugging_face_is_what_its_llm_is() -> None:
    huggingface = pytest.importorskip("langchain_huggingface")
    # Built without their checks, which load a model or ask the hub.
    pipeline = huggingface.HuggingFacePipeline.model_construct(pipeline_kwargs={"top_k": 5})
    endpoint = huggingface.HuggingFaceEndpoint.model_construct(model="toy")
    local = huggingface.ChatHuggingFace.model_construct(llm=pipeline, model_id="toy")
    hosted = huggingface.ChatHuggingFace.model_construct(llm=endpoint, model_id="toy")
    with pytest.warns(UserWarning, match=r"llm\.llm\.pipeline"):
        assert reader_from_model(local).keywords({"stop": ["."]}) == {"pipeline_kwargs": {"top_k": 5}}
    reader = reader_from_model(hosted)
    assert reader.capabilities.native_async
    assert reader.keywords({"temperature": 0.7, "max_tokens": 9}) == {"temperature": 0.7, "max_tokens": 9}


def test_a_class_of_the_users_own_with_a_known_name_is_not_taken_for_the_known_one(
    server: FakeOpenAI,
) -> None:
    class ChatOpenAI(OneOfMine):
        """Another class than LangChain's, which is installed here."""

    assert reader_from_model(chat(server)).capabilities.logprobs
    assert not reader_from_model(ChatOpenAI(inner=chat(server))).capabilities.logprobs


def test_what_the_config_chooses_holds_on_the_wire(server: FakeOpenAI) -> None:
    model = chat(server).configurable_fields(
        temperature=ConfigurableField(id="heat"), max_tokens=ConfigurableField(id="length")
    )
    chain = LazyRetrievalChain(model, search, SUMMARY)
    chain.invoke("Where?", {"configurable": {"heat": 0.3, "length": 7}})
    chain.invoke("Where?")
    sent = [(body["temperature"], body.get("max_completion_tokens")) for body in server.requests]
    assert sent[-2] == (0.3, 7)
    assert sent[-1] == (0.0, None)  # the model names no length, and the adapter has none of its own
