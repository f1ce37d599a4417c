"""An LLM of LlamaIndex as a reader: what goes in, what comes out, what stays the user's."""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import tiktoken
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, ThinkingBlock
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import PromptTemplate
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from llama_index_surerag import LazyRetrievalQueryEngine, reader_from_llm
from llama_index_surerag.llm import FAMILIES, reply_parts
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    ContextLengthError,
    LogprobsError,
    RefusedError,
    ServiceError,
    SureragError,
    TransientServiceError,
)
from surerag.messages import Message, SamplingParams
from surerag.readers.conformance import check_reader
from surerag.readers.protocol import BegunGeneration
from surerag.readers.reading import finish_of
from tests.llama_index.corpus import KEY, KNOWN, UNKNOWN, answer, index, like
from tests.llama_index.llms import Own, Unstreamed
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.faults import FAULTS


class SamplingSettings(BaseModel):
    """What an LLM may be made to write."""

    temperature: float


TEXT = SamplingParams(max_tokens=16, trace="none")
TRACE = SamplingParams(max_tokens=16)
PROMPT = "Where does the Orun begin?"


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
def test_passes_the_conformance_suite(fake_openai: FakeOpenAI, chat: bool) -> None:
    report = check_reader(reader_from_llm(like(fake_openai, chat=chat)))
    assert report.passed, str(report)


@pytest.mark.parametrize("llm", [Own(), Own(sure=0.9), Unstreamed()], ids=["text", "logprobs", "no stream"])
def test_an_llm_of_ones_own_passes_the_conformance_suite(llm: Own) -> None:
    report = check_reader(reader_from_llm(llm, logprobs=llm.sure is not None))
    assert report.passed, str(report)


def test_sends_openais_keywords(fake_openai: FakeOpenAI) -> None:
    reader = reader_from_llm(like(fake_openai, system_prompt="Be brief."))
    reader.generate([PROMPT], TRACE)
    reader.generate([PROMPT], SamplingParams(n=3, temperature=0.7, seed=5, stop=("x",), trace="none"))
    traced, sampled = fake_openai.requests
    assert traced["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": PROMPT},
    ]
    expected = {"temperature": 0.0, "max_tokens": 16, "logprobs": True, "top_logprobs": 20}
    assert expected.items() <= traced.items()
    assert {"n": 3, "temperature": 0.7, "seed": 5, "stop": ["x"]}.items() <= sampled.items()
    assert "logprobs" not in sampled


def test_completes_prompts_as_predict_does(fake_openai: FakeOpenAI) -> None:
    llm = like(
        fake_openai,
        chat=False,
        system_prompt="Be brief.",
        completion_to_prompt=lambda text: f"<u>{text}</u>",
        query_wrapper_prompt=PromptTemplate("[{query_str}]"),
    )
    reader_from_llm(llm).generate(["Where?"], TRACE)
    llm.predict(PromptTemplate("Where?"))
    ours, theirs = fake_openai.requests
    assert ours["prompt"] == theirs["prompt"] == "[Be brief.\n\n<u>Where?</u>]"
    assert ours["logprobs"] == 5


@pytest.mark.parametrize("ignores_n", [False, True])
@pytest.mark.parametrize("chat", [True, False])
async def test_reads_every_answer_of_a_response(chat: bool, ignores_n: bool) -> None:
    with FakeOpenAI(ignores_n=ignores_n) as server:
        reader = reader_from_llm(like(server, chat=chat))
        sampling = SamplingParams(n=6, temperature=1.0, max_tokens=4, trace="logprobs")
        [answers] = reader.generate([PROMPT], sampling)
        [again] = await reader.agenerate([PROMPT], sampling)
    assert len(answers) == len(again) == 6
    assert len({one.text for one in answers}) > 1
    assert all(one.trace is not None for one in answers)
    assert len(server.requests) == (12 if ignores_n else 2)


def test_reads_first_tokens_and_goes_on_or_hangs_up() -> None:
    with FakeOpenAI([answer(UNKNOWN)] * 3, pace=0.01) as server:
        reader = reader_from_llm(like(server))
        [begun] = reader.begin([UNKNOWN], 3, TRACE)
        assert begun.partial.text == "perhaps somewhere in"
        assert begun.partial.finish == "partial"
        assert len(begun.partial.trace) == 3
        whole = begun.rest()
        assert whole.text == answer(UNKNOWN)
        assert len(whole.trace) == 11
        [other] = reader.begin([UNKNOWN], 3, TRACE)
        other.close()
        pieces = list(reader.begin([UNKNOWN], 3, TRACE)[0].chunks())
    assert "".join(piece.text for piece in pieces) == answer(UNKNOWN)
    assert pieces[-1].generation == whole
    assert [stream["closed"] for stream in server.streams] == [False, True, False]
    assert server.streams[1]["sent"] < 8


async def test_async_streams_do_the_same() -> None:
    with FakeOpenAI([answer(UNKNOWN)] * 3, pace=0.01) as server:
        reader = reader_from_llm(like(server))
        [begun] = await reader.abegin([UNKNOWN], 3, TRACE)
        assert begun.partial.text == "perhaps somewhere in"
        pieces = [piece async for piece in begun.achunks()]
        assert "".join(piece.text for piece in pieces) == answer(UNKNOWN)
        [other] = await reader.abegin([UNKNOWN], 3, TRACE)
        await other.aclose()
        await asyncio.sleep(0.05)
        streamed = [piece.text async for piece in reader.astream(UNKNOWN, TEXT)]
    assert "".join(streamed) == answer(UNKNOWN)
    assert [stream["closed"] for stream in server.streams] == [False, True, False]


@pytest.mark.parametrize("use_async", [False, True])
async def test_a_stream_is_closed_at_once_and_not_by_the_garbage_collector(use_async: bool) -> None:
    with FakeOpenAI([answer(UNKNOWN)], pace=0.01) as server:
        reader = reader_from_llm(like(server))
        gc.disable()
        try:
            if use_async:
                await (await reader.abegin([UNKNOWN], 2, TRACE))[0].aclose()
            else:
                reader.begin([UNKNOWN], 2, TRACE)[0].close()
            await asyncio.sleep(0.1)
            [stream] = server.streams
            assert stream["closed"]
        finally:
            gc.enable()


@pytest.mark.parametrize("where", ["marks", "field"])
@pytest.mark.parametrize("streamed", [False, True])
def test_leaves_thoughts_out(where: str, streamed: bool) -> None:
    with FakeOpenAI(["In Velm."], thoughts="Rhine? Velm.", thoughts_in=where) as server:
        reader = reader_from_llm(like(server))
        if streamed:
            [begun] = reader.begin([PROMPT], 1, TRACE)
            assert begun.partial.text == "In"
            results = begun.rest()
        else:
            [[results]] = reader.generate([PROMPT], TRACE)
    assert results.text == "In Velm."
    assert results.trace.tokens == ("In", " Velm.")
    assert results.completion_tokens == 2
    assert results.thinking_tokens > 0


@pytest.mark.parametrize("use_async", [False, True])
async def test_makes_room_for_thoughts_that_spent_all_tokens(use_async: bool) -> None:
    with FakeOpenAI(["<think> one two three four five </think> Velm."]) as server:
        reader = reader_from_llm(like(server))
        short = SamplingParams(max_tokens=3, trace="none")
        rows = await reader.agenerate([PROMPT], short) if use_async else reader.generate([PROMPT], short)
    assert rows[0][0].text == "Velm."
    assert [request["max_tokens"] for request in server.requests] == [3, 4099]


def test_reads_thinking_blocks() -> None:
    blocks = [ThinkingBlock(content="Rhine?"), *ChatMessage(content="Velm").blocks]
    response = ChatResponse(message=ChatMessage(role="assistant", blocks=blocks))
    [part] = reply_parts(response, logprobs=False)
    assert (part.text, part.thoughts) == ("Velm", "Rhine?")


async def test_reads_logprobs_of_an_llm_of_ones_own() -> None:
    engine = LazyRetrievalQueryEngine.from_args(index(), Own(sure=0.99))
    assert engine.query(KNOWN).metadata["score"] == pytest.approx(0.056, abs=0.02)
    unsure = LazyRetrievalQueryEngine.from_args(index(), Own(sure=0.4), threshold=0.5)
    assert (await unsure.aquery(UNKNOWN)).metadata["retrieve"] is True


@pytest.mark.parametrize("streamed", [False, True])
def test_cuts_an_answer_at_a_stop_text_that_an_llm_ignores(streamed: bool) -> None:
    reader = reader_from_llm(Own(reply_to=lambda prompt: "In Velm\nQuestion: Where?", sure=0.9))
    sampling = SamplingParams(max_tokens=16, stop=("\n",))
    [results] = (
        BegunGeneration.rest_of(reader.begin([PROMPT], 9, sampling))
        if streamed
        else reader.generate([PROMPT], sampling)[0]
    )
    assert results.text == "In Velm"
    assert results.trace.tokens[:2] == ("In", " Velm")
    assert len(results.trace) < 4


def test_says_what_is_missing_in_an_llm_of_ones_own() -> None:
    reader = reader_from_llm(Own())
    with pytest.raises(LogprobsError, match=r"own.*OpenAIReader.*TransformersReader") as caught:
        reader.generate([PROMPT], TRACE)
    assert "semantic_entropy" in str(caught.value)


@pytest.mark.parametrize(
    ("package", "name", "hint"),
    [
        ("mock", "MockLLM", "OpenAIReader"),
        ("huggingface", "HuggingFaceLLM", "TransformersReader(model, tokenizer)"),
        ("ollama", "Ollama", "/v1"),
    ],
)
@pytest.mark.parametrize("subclassed", [False, True])
def test_refuses_a_packaged_llm_without_logprobs_at_construction(
    package: str, name: str, hint: str, subclassed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"llama_index.llms.{package}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    packaged = type(name, (MockLLM,), {"__module__": module})
    llm = type("Mine", (packaged,), {})() if subclassed else packaged()
    name = type(llm).__name__
    with pytest.raises(
        CapabilityError, match=f"the gate entropy needs entropies, but {name} returns no"
    ) as caught:
        LazyRetrievalQueryEngine.from_args(index(), llm)
    assert hint in str(caught.value)
    assert LazyRetrievalQueryEngine.from_args(index(), llm, gate="semantic_entropy")


def test_asks_gemini_in_its_spelling() -> None:
    keywords = {"temperature": 0.0, "max_tokens": 9, "logprobs": True, "top_logprobs": 20, "stop": ["x"]}
    [gemini] = [family for family in FAMILIES if family.name == "GoogleGenAI"]
    assert gemini.keywords(keywords) == {
        "generation_config": {
            "temperature": 0.0,
            "stop_sequences": ["x"],
            "response_logprobs": True,
            "logprobs": 20,
        }
    }
    candidate = {"token": "Velm", "log_probability": -0.1}
    raw = {
        "finish_reason": "FinishReason.MAX_TOKENS",
        "usage_metadata": {"prompt_token_count": 7},
        "logprobs_result": {
            "chosen_candidates": [candidate],
            "top_candidates": [{"candidates": [candidate]}],
        },
    }
    [part] = reply_parts(CompletionResponse(text="Velm", raw=raw), logprobs=True)
    assert part.entries[0]["top_logprobs"] == [{"token": "Velm", "logprob": -0.1}]
    assert finish_of(part.finish) == "length"
    assert part.usage.prompt_tokens == 7


def test_an_llm_changed_later_is_seen(fake_openai: FakeOpenAI) -> None:
    llm = like(fake_openai)
    engine = LazyRetrievalQueryEngine.from_args(index(), llm)
    counter = TokenCountingHandler(tiktoken.get_encoding("cl100k_base").encode)
    llm.model = "larger"
    llm.callback_manager = CallbackManager([counter])
    engine.query(KNOWN)
    assert engine.core.reader.name == "larger"
    assert {request["model"] for request in fake_openai.requests} == {"larger"}
    assert counter.total_llm_token_count > 0


def test_a_mocked_client_works() -> None:
    llm = like(SimpleNamespace(base_url="http://127.0.0.1:9"))
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Velm"}}
    llm._client = MagicMock()
    llm._client.chat.completions.create.return_value = ChatCompletion.model_validate(
        {"id": "1", "created": 0, "model": "toy", "object": "chat.completion", "choices": [choice]}
    )
    [[results]] = reader_from_llm(llm).generate([PROMPT], TEXT)
    assert results.text == "Velm"
    assert results.prompt_tokens == 7


@pytest.mark.parametrize("refused", ["seed", "n"])
def test_leaves_out_what_is_refused_and_not_needed(refused: str) -> None:
    with FakeOpenAI(["Velm"], refuses=(refused,)) as server:
        reader = reader_from_llm(like(server))
        sampling = SamplingParams(n=2, temperature=1.0, trace="none")
        for _ in range(2):
            assert reader.generate([PROMPT], sampling)[0][0].text == "Velm"
    assert refused in server.requests[0]
    assert not any(refused in request for request in server.requests[1:])


async def test_what_one_of_several_requests_learns_holds_for_all() -> None:
    sampling = SamplingParams(temperature=1.0, trace="none")
    with FakeOpenAI(["Velm"], refuses=("seed",), seconds=0.05) as server:
        blocking = reader_from_llm(like(server)).generate([PROMPT] * 6, sampling)
        awaited = await reader_from_llm(like(server)).agenerate([PROMPT] * 6, sampling)
        reader = reader_from_llm(like(server))
        begun = await asyncio.gather(*(reader.abegin([PROMPT], 1, sampling) for _ in range(4)))
        for [one] in begun:
            await one.aclose()
    assert [answer.text for [answer] in blocking + awaited] == ["Velm"] * 12
    assert [one.partial.text for [one] in begun] == ["Velm"] * 4


def test_a_greedy_answer_can_do_without_temperature() -> None:
    class BadRequestError(Exception):
        status_code = 400

    class Reasoning(Own):
        def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
            if "temperature" in kwargs:
                raise BadRequestError("Unsupported value: 'temperature' does not support 0 with this model.")
            return super().complete(prompt, **kwargs)

    llm = Reasoning(sure=0.9)
    with pytest.warns(UserWarning, match="own rejects temperature"):
        assert reader_from_llm(llm).generate([PROMPT], TRACE)[0][0].trace
    assert "max_tokens" in llm._calls[0]


def test_raises_where_something_refused_is_needed() -> None:
    with FakeOpenAI(["Velm"], refuses=("temperature",)) as server, pytest.raises(RefusedError, match="temp"):
        reader_from_llm(like(server)).generate([PROMPT], SamplingParams(n=2, temperature=0.7))


def test_warns_of_samples_that_cannot_differ() -> None:
    engine = LazyRetrievalQueryEngine.from_args(index(), Own(), gate="semantic_entropy")
    with pytest.warns(UserWarning, match="all 5 samples of own are the same"):
        engine.query(UNKNOWN)


@pytest.mark.parametrize(
    ("fault", "expected", "message"),
    [
        ("429", TransientServiceError, "answered 429: not now"),
        ("401", RefusedError, "Incorrect API key"),
        ("404", RefusedError, "does not exist"),
        ("too long", ContextLengthError, "maximum context"),
        ("HTML", ServiceError, "Log in"),
        ("no choices", ServiceError, "cannot be read"),
        ("not JSON", SureragError, "not json"),
        ("error with status 200", ServiceError, "cannot be read"),
        ("logprobs are null", LogprobsError, "toy"),
        ("logprob is NaN", LogprobsError, "log-probability"),
    ],
)
def test_says_what_the_server_sent(fake_openai: FakeOpenAI, fault: str, expected: type, message: str) -> None:
    fake_openai.fault = fault
    with pytest.raises(expected, match=message) as caught:
        reader_from_llm(like(fake_openai)).generate([PROMPT], TRACE)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "fault", [name for name in FAULTS if name not in ("drips", "comments for ever", "flood")]
)
def test_every_fault_is_an_answer_or_an_error_of_ours(fault: str) -> None:
    with FakeOpenAI(["Velm is far away"]) as server:
        server.fault = fault
        reader = reader_from_llm(like(server, timeout=5))
        for ask in (
            lambda: reader.generate([PROMPT], TRACE)[0][0],
            lambda: reader.begin([PROMPT], 2, TRACE)[0].rest(),
        ):
            try:
                results = ask()
            except SureragError:
                continue
            assert results.text in ("Velm is far away", "") or results.finish != "stop"


def test_a_broken_off_stream_is_no_whole_answer(fake_openai: FakeOpenAI) -> None:
    fake_openai.answers = ["Velm is far away"]
    fake_openai.fault = "no end"
    reader = reader_from_llm(like(fake_openai))
    with pytest.raises(TransientServiceError, match="cut off"):
        BegunGeneration.rest_of(reader.begin([PROMPT], 1, TRACE))


@pytest.mark.parametrize(("fault", "finish"), [("cut", "length"), ("withheld", "content_filter")])
@pytest.mark.parametrize("streamed", [False, True])
def test_marks_how_an_answer_ended(fault: str, finish: str, streamed: bool) -> None:
    with FakeOpenAI(["Velm is far away"]) as server:
        server.fault = fault
        reader = reader_from_llm(like(server))
        if streamed:
            results = reader.begin([PROMPT], 2, TRACE)[0].rest()
        else:
            results = reader.generate([PROMPT], TRACE)[0][0]
    assert results.finish == finish


def test_a_key_with_a_newline_is_not_shown(fake_openai: FakeOpenAI) -> None:
    with pytest.raises(SureragError) as caught:
        reader_from_llm(like(fake_openai, api_key=f"{KEY}\n")).generate([PROMPT], TEXT)
    assert KEY not in str(caught.value)


async def test_requests_overlap_and_the_loop_goes_on() -> None:
    with FakeOpenAI(["Velm"], seconds=0.1) as server:
        reader = reader_from_llm(like(server), max_concurrency=4)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticker = asyncio.create_task(tick())
        await reader.agenerate([f"{PROMPT} {place}" for place in range(8)], TEXT)
        ticker.cancel()
        assert server.peak == 4
        reader.generate([f"{PROMPT} {place}" for place in range(8)], TEXT)
        assert server.peak == 4
    assert ticks > 10


def test_one_reader_serves_several_loops(fake_openai: FakeOpenAI) -> None:
    # The client's connections are of the first loop; LlamaIndex's own retries make new ones.
    reader = reader_from_llm(like(fake_openai, max_retries=2))
    results = [asyncio.run(reader.agenerate([PROMPT], TEXT))[0][0].text for _ in range(3)]
    assert len(set(results)) == 1


def test_conversations_keep_their_turns(fake_openai: FakeOpenAI) -> None:
    turns = (Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Where?"))
    reader_from_llm(like(fake_openai)).generate([turns], TEXT)
    assert [message["role"] for message in fake_openai.requests[0]["messages"]] == [
        "user",
        "assistant",
        "user",
    ]


def test_refuses_what_is_no_llm() -> None:
    with pytest.raises(ConfigurationError, match="expected a LlamaIndex LLM, got int"):
        reader_from_llm(7)
    with pytest.raises(ConfigurationError, match=r"a StructuredLLM writes JSON.* Pass the inner LLM"):
        reader_from_llm(Own().as_structured_llm(SamplingSettings))
    for setting in ("top_logprobs", "max_concurrency"):
        with pytest.raises(ConfigurationError, match=f"{setting} must be a whole number of at least 1"):
            reader_from_llm(Own(), **{setting: 0})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_tokens": 512}, "max_tokens=512"),
        ({"logprobs": True, "top_logprobs": 2}, "top_logprobs=2"),
        ({"additional_kwargs": {"temperature": 0.0}}, "temperature=0.0"),
        ({"additional_kwargs": {"max_completion_tokens": 512}}, "max_completion_tokens=512"),
    ],
)
def test_settings_that_beat_a_methods_are_said_at_construction(settings: dict[str, Any], said: str) -> None:
    llm = like(SimpleNamespace(base_url="http://127.0.0.1:9"), **settings)
    with pytest.warns(UserWarning, match=said):
        reader_from_llm(llm)


async def test_limits_hold_that_the_llms_settings_beat() -> None:
    with FakeOpenAI(["In Velm, on the river Orun, far away"]) as server:
        with pytest.warns(UserWarning, match="built with settings"):
            reader = reader_from_llm(like(server, max_tokens=512, logprobs=True, top_logprobs=2))
        short = SamplingParams(max_tokens=3)
        results = [reader.generate([PROMPT], short)[0][0], (await reader.agenerate([PROMPT], short))[0][0]]
        results += BegunGeneration.rest_of(reader.begin([PROMPT], 2, short))
        results += [chunk.generation for chunk in reader.stream(PROMPT, short) if chunk.generation]
    assert {request["max_tokens"] for request in server.requests} == {512}
    assert {(one.text, one.finish, len(one.trace)) for one in results} == {("In Velm, on", "length", 3)}


@pytest.mark.parametrize("streamed", [False, True])
def test_thoughts_that_the_template_opens_are_no_answer(streamed: bool) -> None:
    with FakeOpenAI(["Rhine? No, Orun.</think>\n\nVelm is right."]) as server:
        reader = reader_from_llm(like(server), thinking="unmarked")
        if streamed:
            results = list(reader.stream(PROMPT, TRACE))[-1].generation
        else:
            [[results]] = reader.generate([PROMPT], TRACE)
    assert results.text == "Velm is right."
    assert results.trace.tokens[0].strip() == "Velm"


@pytest.mark.parametrize(
    "settings", [{"api_key": "9f8e7d6c5b4a"}, {"default_headers": {"x-api-key": "9f8e7d6c5b4a"}}]
)
def test_a_key_that_the_server_echoes_is_in_no_traceback(settings: dict[str, Any]) -> None:
    with FakeOpenAI(["Velm"]) as server:
        server.fault = "401"
        llm = like(server, **settings)
        llm._client = MagicMock()
        llm._client.chat.completions.create.side_effect = ValueError("no such key: 9f8e7d6c5b4a")
        with pytest.raises(SureragError) as caught:
            reader_from_llm(llm).generate([PROMPT], TEXT)
    assert "9f8e7d6c" not in "".join(traceback.format_exception(caught.value))


def test_choices_are_taken_by_their_index() -> None:
    llm = like(SimpleNamespace(base_url="http://127.0.0.1:9"))
    choices = [
        {"index": place, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        for place, text in ((1, "second"), (0, "first"))
    ]
    llm._client = MagicMock()
    llm._client.chat.completions.create.return_value = ChatCompletion.model_validate(
        {"id": "1", "created": 0, "model": "toy", "object": "chat.completion", "choices": choices}
    )
    sampling = SamplingParams(n=2, temperature=1.0, trace="none")
    [row] = reader_from_llm(llm).generate([PROMPT], sampling)
    assert [one.text for one in row] == ["first", "second"]


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_tokens", "length"), ("model_length", "length"), ("SAFETY", "content_filter")]
)
def test_reasons_of_other_services(reason: str, finish: str) -> None:
    class Other(Own):
        def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
            return CompletionResponse(text="Velm lies", raw={"stop_reason": reason})

    [[results]] = reader_from_llm(Other(), logprobs=False).generate([PROMPT], TEXT)
    assert results.finish == finish


def test_a_stream_stops_where_a_stop_text_begins() -> None:
    reader = reader_from_llm(Own(reply_to=lambda prompt: "In Velm\nQuestion: Where?"), logprobs=False)
    sampling = SamplingParams(max_tokens=16, stop=("\nQuestion",), trace="none")
    assert "".join(chunk.text for chunk in reader.stream(PROMPT, sampling)) == "In Velm"


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_answer_is_empty(text: str) -> None:
    reader = reader_from_llm(Own(reply_to=lambda prompt: text), logprobs=False)
    [[results]] = reader.generate([PROMPT], TEXT)
    assert (results.text, results.finish) == ("", "empty")
