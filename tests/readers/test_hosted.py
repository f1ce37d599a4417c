"""OpenAIReader: what it sends, what it makes of answers, and what it leaves behind."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import math
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from typing import Any

import openai
import pytest

from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    InputError,
    LogprobsError,
    RefusedError,
    SureragError,
    ThinkingBudgetError,
    TransientServiceError,
)
from surerag.messages import Message, SamplingParams
from surerag.readers.hosted import OpenAIReader
from surerag.readers.logprobs import trace_of_entries
from surerag.readers.parameters import LeftOutWarning
from surerag.readers.protocol import BegunGeneration
from surerag.readers.reading import Reading, ReplyPart, usage_of
from tests.servers.fake_openai import FakeOpenAI
from tests.waiting import eventually

GREEDY = SamplingParams(max_tokens=6)
DRAWN = SamplingParams(n=4, temperature=0.7, max_tokens=6, seed=3)
KEY = "sk-secret-0123456789"


def reader_of(server: FakeOpenAI, **settings: Any) -> OpenAIReader:
    return OpenAIReader("toy", **{"base_url": server.base_url, "api_key": KEY, "max_retries": 0, **settings})


# What is sent.


def test_a_request_holds_what_its_purpose_needs(fake_openai: FakeOpenAI) -> None:
    reader = reader_of(fake_openai, extra_body={"repeat_penalty": 1.0})
    reader.generate([(Message("system", "Brief."), Message("user", "q"))], GREEDY)
    reader.generate(["q"], SamplingParams(n=2, temperature=1.0, stop=("\n",), trace="none"))
    common = {"model": "toy", "repeat_penalty": 1.0, "path": "/v1/chat/completions"}
    greedy, drawn = ({k: v for k, v in body.items() if k != "headers"} for body in fake_openai.requests)
    assert greedy == {
        **common,
        "messages": [{"role": "system", "content": "Brief."}, {"role": "user", "content": "q"}],
        "max_tokens": 6,
        "temperature": 0.0,
        "logprobs": True,
        "top_logprobs": 20,
    }
    assert drawn == {
        **common,
        "messages": [{"role": "user", "content": "q"}],
        "max_tokens": 64,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
        "n": 2,
        "stop": ["\n"],
    }


def test_a_conversation_is_refused_by_completions(fake_openai: FakeOpenAI) -> None:
    with pytest.raises(InputError, match="conversation"):
        reader_of(fake_openai, api="completions").generate(
            [(Message("user", "a"), Message("user", "b"))], GREEDY
        )


def test_a_lone_surrogate_in_a_prompt_is_replaced(fake_openai: FakeOpenAI) -> None:
    assert reader_of(fake_openai).generate(["Where \ud83d?"], GREEDY)[0][0].text
    assert fake_openai.requests[0]["messages"][0]["content"] == "Where \ufffd?"


@pytest.mark.parametrize("ignores_n", [False, True])
def test_samples_that_were_left_out_are_requested_again(fake_openai: FakeOpenAI, ignores_n: bool) -> None:
    fake_openai.options["ignores_n"] = ignores_n
    reader = reader_of(fake_openai)
    answers = reader.generate(["q"], DRAWN)[0]
    assert len(answers) == 4
    assert len({answer.text for answer in answers}) > 1
    assert len(fake_openai.requests) == (4 if ignores_n else 1)
    assert reader.generate(["q"], DRAWN)[0] == answers
    assert len(reader.generate(["q"], SamplingParams(n=3))[0]) == 3
    assert len({request.get("seed") for request in fake_openai.requests}) == (5 if ignores_n else 2)


def test_requests_under_way_are_limited(fake_openai: FakeOpenAI) -> None:
    fake_openai.options["seconds"] = 0.02
    reader = reader_of(fake_openai, max_concurrency=3)
    reader.generate(["q"] * 12, GREEDY)
    assert fake_openai.peak == 3


# Parameters that a model rejects.


def test_a_rejected_parameter_is_left_out_once_and_for_all(fake_openai: FakeOpenAI) -> None:
    fake_openai.options["refuses"] = ("seed", "stop")
    reader = reader_of(fake_openai)
    sampling = SamplingParams(n=2, temperature=1.0, stop=("born",), max_tokens=8)
    answers = reader.generate(["Where?"], sampling)[0]
    assert [("seed" in body, "stop" in body) for body in fake_openai.requests] == [
        (True, True),
        (False, True),
        (False, False),
    ]
    assert not any("born" in answer.text for answer in answers)
    reader.generate(["Where?"], sampling)
    assert len(fake_openai.requests) == 4


def test_requests_side_by_side_learn_together(fake_openai: FakeOpenAI) -> None:
    fake_openai.options |= {"refuses": ("seed",), "seconds": 0.05}
    answers = reader_of(fake_openai).generate(["q"] * 4, SamplingParams(temperature=1.0))
    assert [len(row) for row in answers] == [1] * 4


def test_temperature_is_left_out_with_a_warning_and_needed_for_samples(fake_openai: FakeOpenAI) -> None:
    fake_openai.options["refuses"] = ("temperature",)
    reader = reader_of(fake_openai)
    with pytest.warns(LeftOutWarning, match="temperature"):
        reader.generate(["q"], GREEDY)
    with pytest.raises(RefusedError, match=r"temperature=1\.0"):
        reader.generate(["q"], DRAWN)
    with pytest.raises(RefusedError, match="temperature"):
        reader_of(fake_openai).generate(["q"], DRAWN)


def test_logprobs_are_needed(fake_openai: FakeOpenAI) -> None:
    fake_openai.options["refuses"] = ("logprobs",)
    with pytest.raises(LogprobsError, match="abstention"):
        reader_of(fake_openai).generate(["q"], GREEDY)
    assert reader_of(fake_openai).generate(["q"], SamplingParams(trace="none"))[0][0].trace is None


# What answers become.


def test_entropies_are_intervals_from_the_listed_mass(fake_openai: FakeOpenAI) -> None:
    entries = [
        {"token": "a", "logprob": math.log(0.5), "top_logprobs": [{"token": "a", "logprob": math.log(0.5)}]}
    ]
    trace = trace_of_entries(entries, top_logprobs=1, vocabulary_size=1000)
    assert trace.entropy is not None
    assert trace.entropy.lower == pytest.approx((math.log(2),))
    assert trace.entropy.upper == pytest.approx((0.5 * math.log(2) + 0.5 * math.log(999 / 0.5),))
    assert not trace.entropy.exact
    short = trace_of_entries(entries, top_logprobs=2, vocabulary_size=1000)
    assert short.entropy is not None
    assert short.entropy.lower <= trace.entropy.lower


def test_an_unlikely_sampled_token_is_no_part_of_the_likeliest() -> None:
    listed = [{"token": "b", "logprob": math.log(0.6)}]
    sampled = {"token": "a", "logprob": math.log(0.1)}
    for extra in ([], [sampled]):
        entry = {**sampled, "top_logprobs": listed + extra}
        trace = trace_of_entries([entry], top_logprobs=1, vocabulary_size=3)
        assert trace.entropy is not None
        exact = -0.6 * math.log(0.6) - 0.1 * math.log(0.1) - 0.3 * math.log(0.3)
        assert trace.entropy.lower[0] == pytest.approx(exact) == trace.entropy.upper[0]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_the_end_token_and_a_stop_text_are_no_part_of_the_trace(fake_openai: FakeOpenAI, api: Any) -> None:
    fake_openai.answers, fake_openai.options["counts_end_token"] = lambda _: "one two three", True
    reader = reader_of(fake_openai, api=api)
    for sampling, text in ((GREEDY, "one two three"), (SamplingParams(stop=("two",)), "one")):
        answer = reader.generate(["q"], sampling)[0][0]
        streamed = list(reader.stream("q", sampling))[-1].generation
        for one in (answer, streamed):
            assert one is not None and one.trace is not None
            assert (one.text, "".join(one.trace.tokens), one.finish) == (text, text, "stop")
            assert one.trace.logprobs == pytest.approx((-0.1,) * len(text.split()))


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("listed", [True, False])
def test_the_end_tokens_log_probability_stands_apart_where_the_server_lists_it(
    fake_openai: FakeOpenAI, api: Any, listed: bool
) -> None:
    fake_openai.answers, fake_openai.logprob = ["one two three"], -0.3
    fake_openai.options["counts_end_token"] = listed
    reader = reader_of(fake_openai, api=api)
    (begun,) = reader.begin(["q"], 2, GREEDY)
    ended = [reader.generate(["q"], GREEDY)[0][0], begun.rest()]
    expected = pytest.approx(-0.3) if listed else None
    assert [answer.trace and answer.trace.end_logprob for answer in ended] == [expected, expected]
    limited = reader.generate(["q"], SamplingParams(max_tokens=2))[0][0]
    stopped = reader.generate(["q"], SamplingParams(stop=("three",)))[0][0]
    others = [answer.trace and answer.trace.end_logprob for answer in (begun.partial, limited, stopped)]
    assert others == [None, None, None]


def test_a_special_token_that_is_not_spelled_is_the_end_and_no_part_of_the_answer() -> None:
    entries = [{"token": "Velm", "logprob": -0.1}, {"token": "", "logprob": -0.7}]
    reading = Reading(SamplingParams(), top=0)
    reading.feed(ReplyPart("Velm", entries=entries, finish="stop"))
    trace = reading.generation().trace
    assert trace is not None
    assert (trace.tokens, trace.end_logprob) == (("Velm",), -0.7)


def test_a_character_that_comes_in_halves_is_joined() -> None:
    reading = Reading(SamplingParams(), streamed=True)
    pieces = [ReplyPart("a\ud83d"), ReplyPart("\ude00", finish="stop")]
    assert [reading.feed(piece) for piece in pieces] == ["a", "😀"]
    assert reading.generation().text == "a😀"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 3}, (5, 3, 0, 0)),
        ({"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}, (0, 5, 4, 0)),
        ({"prompt_tokens": 2, "completion_tokens": 9, "total_tokens": 15,
          "completion_tokens_details": {"reasoning_tokens": 4}}, (2, 9, 4, 0)),
        ({"prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": 6}}, (8, 0, 0, 6)),
        ({"prompt_tokens": 8, "prompt_cache_hit_tokens": 7}, (8, 0, 0, 7)),
        ("lots", (0, 0, 0, 0)),
        ({"prompt_tokens": -3, "completion_tokens": float("nan")}, (0, 0, 0, 0)),
    ],
)  # fmt: skip
def test_tokens_are_counted_as_services_report_them(counts: Any, expected: tuple[int, ...]) -> None:
    usage = usage_of(counts)
    assert (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.thinking_tokens,
        usage.cached_tokens,
    ) == expected


def test_the_usage_of_every_verb_is_summed_up(fake_openai: FakeOpenAI) -> None:
    fake_openai.answers = lambda _: "one two three"
    reader = reader_of(fake_openai)
    reader.generate(["a b"], GREEDY)
    list(reader.stream("a b", GREEDY))
    BegunGeneration.rest_of(reader.begin(["a b"], 1, GREEDY))
    reader.begin(["a b"], 1, GREEDY)[0].close()
    usage = reader.usage
    assert (usage.requests, usage.prompt_tokens) == (4, 8)  # of the last one an estimate
    assert usage.completion_tokens == pytest.approx(12, abs=2)


# Thinking.


@pytest.mark.parametrize("place", ["marks", "field"])
def test_thoughts_are_no_part_of_an_answer(fake_openai: FakeOpenAI, place: str) -> None:
    fake_openai.answers = lambda _: "Velm it is"
    fake_openai.options |= {"thoughts": "Velm? Velm it is.", "thoughts_in": place}
    reader = reader_of(fake_openai)
    whole = reader.generate(["q"], SamplingParams(max_tokens=6))[0][0]
    (begun,) = reader.begin(["q"], 2, GREEDY)
    for answer in (whole, begun.rest(), list(reader.stream("q", GREEDY))[-1].generation):
        assert answer is not None and answer.trace is not None
        assert (answer.text, answer.trace.tokens) == ("Velm it is", ("Velm", " it", " is"))
        assert answer.thinking_tokens >= 3
    assert begun.partial.text == "Velm it"
    assert reader.capabilities.thinking == "apart"
    # Thoughts have tokens of their own from the second request on.
    assert [body["max_tokens"] for body in fake_openai.requests[-2:]] == [6 + 4096] * 2


def test_an_answer_without_room_behind_its_thoughts_is_requested_again(fake_openai: FakeOpenAI) -> None:
    def feed(text: str, budget: int) -> Reading:
        reading = Reading(GREEDY, budget=budget)
        reading.feed(ReplyPart(text, finish="length"))
        return reading

    assert feed("<think>Hm", 0).starved
    with pytest.raises(ThinkingBudgetError, match="still thinking"):
        feed("<think>Hm", 4096).generation()


def test_thinking_that_was_switched_off_and_goes_on_is_an_error(fake_openai: FakeOpenAI) -> None:
    fake_openai.options["thoughts"] = "Hm."
    reader = reader_of(fake_openai, thinking=False)
    with pytest.raises(CapabilityError, match="thinking=False"):
        reader.generate(["q"], GREEDY)
    assert fake_openai.requests[0]["reasoning_effort"] == "none"


def test_a_probe_finds_out_that_the_template_begins_the_thoughts(fake_openai: FakeOpenAI) -> None:
    fake_openai.answers = lambda _: "Hm, Velm?</think> Velm it is"
    reader = reader_of(fake_openai)
    assert reader.probe().thinks
    assert reader.generate(["q"], GREEDY)[0][0].text == "Velm it is"
    assert "".join(chunk.text for chunk in reader.stream("q", GREEDY)) == "Velm it is"


def test_marks_without_a_beginning_are_named_once(fake_openai: FakeOpenAI) -> None:
    fake_openai.answers = lambda _: "The tag </think> ends it."
    reader = reader_of(fake_openai)
    with pytest.warns(UserWarning, match='thinking="unmarked"') as warned:
        answers = reader.generate(["q", "q"], GREEDY)
    assert [answer.text for [answer] in answers] == ["The tag </think> ends it."] * 2
    assert len(warned) == 1


# Streams.


def test_what_is_begun_is_read_no_further(fake_openai: FakeOpenAI) -> None:
    fake_openai.answers, fake_openai.options["pace"] = lambda _: " ".join("abcdefghijklmnopqrstuvwxyz"), 0.02
    reader = reader_of(fake_openai)
    sampling = SamplingParams(max_tokens=64)
    first, second = reader.begin(["q", "q"], 2, sampling)
    first.close()
    assert eventually(lambda: sum(stream["closed"] for stream in fake_openai.streams) == 1)
    assert min(stream["sent"] for stream in fake_openai.streams if stream["closed"]) < 20
    assert second.rest().text.endswith("x y z")
    for state in (first, second):
        with pytest.raises(InputError, match="already"):
            state.rest()


def test_a_generation_that_is_closed_while_it_is_read_says_so(fake_openai: FakeOpenAI) -> None:
    fake_openai.answers, fake_openai.options["pace"] = lambda _: "word " * 200, 0.01
    (begun,) = reader_of(fake_openai).begin(["q"], 2, SamplingParams(max_tokens=500))
    chunks = begun.chunks()
    next(chunks)
    begun.close()
    with pytest.raises(InputError, match=r"closed while its answer was read\. Begin the generation again"):
        list(chunks)
    with pytest.raises(InputError, match="closed already"):
        begun.rest()


@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_open_generation_says_that_it_cannot_be_copied(
    fake_openai: FakeOpenAI, copy_of: Callable[[object], object]
) -> None:
    fake_openai.answers = lambda _: "a b c d e f"
    (begun,) = reader_of(fake_openai).begin(["q"], 2, GREEDY)
    with pytest.raises(TypeError, match=r"cannot be copied or pickled; call rest\(\)"):
        copy_of(begun)
    assert begun.rest().text == "a b c d e f"


@pytest.mark.parametrize("how", ["drop", "close", "aclose", "cancel"])
def test_an_abandoned_stream_is_closed(fake_openai: FakeOpenAI, how: str) -> None:
    fake_openai.answers, fake_openai.options["pace"] = lambda _: "word " * 200, 0.01
    reader = reader_of(fake_openai)
    sampling = SamplingParams(max_tokens=500, trace="none")

    async def take_two() -> None:
        chunks: Any = reader.astream("q", sampling)
        await anext(chunks)
        if how == "aclose":
            await chunks.aclose()
            return
        task = asyncio.create_task(anext(chunks))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    if how == "drop":
        reader.begin(["q"], 1, sampling)
        gc.collect()
    elif how == "close":
        chunks: Any = reader.stream("q", sampling)
        next(chunks)
        chunks.close()
    else:
        asyncio.run(take_two())
    assert eventually(lambda: fake_openai.streams[0]["closed"])


def test_a_cancelled_call_cancels_its_request(fake_openai: FakeOpenAI) -> None:
    fake_openai.options["seconds"] = 5.0
    reader = reader_of(fake_openai)

    async def leave() -> None:
        async with asyncio.timeout(0.2):
            await reader.agenerate(["q"], GREEDY)

    with pytest.raises(TimeoutError):
        asyncio.run(leave())
    fake_openai.options["seconds"] = 0.0
    assert reader.generate(["q"], GREEDY)


async def test_a_verb_that_was_replaced_is_awaited_too(fake_openai: FakeOpenAI) -> None:
    reader: Any = reader_of(fake_openai)
    reader.generate = lambda prompts, sampling: [["replaced"]]
    assert await reader.agenerate(["q"], GREEDY) == [["replaced"]]


def test_many_loops_and_threads_share_a_reader(fake_openai: FakeOpenAI) -> None:
    reader = reader_of(fake_openai)
    expected = reader.generate(["Where?"], GREEDY)
    results: list[Any] = []

    def work() -> None:
        results.append(asyncio.run(reader.agenerate(["Where?"], GREEDY)))
        results.append(reader.generate(["Where?"], GREEDY))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_asks_over_its_own_loop_and_connections(fake_openai: FakeOpenAI) -> None:
    reader = reader_of(fake_openai, max_concurrency=1)
    expected = reader.generate(["Where?"], GREEDY)
    fake_openai.options["seconds"] = 0.5
    asking = threading.Thread(target=reader.generate, args=(["Where?"], GREEDY))
    asking.start()
    assert eventually(lambda: len(fake_openai.requests) == 2)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if reader.generate(["Where?"], GREEDY) == expected else 1)
        except BaseException:
            os._exit(2)
    ended: list[int] = []

    def over() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        ended.extend([os.waitstatus_to_exitcode(status)] if pid else [])
        return bool(pid)

    assert eventually(over, patience=20)
    assert ended == [0]
    asking.join()
    assert reader.generate(["Where?"], GREEDY) == expected


# The probe.


def test_a_probe_shows_what_a_server_can_do(fake_openai: FakeOpenAI) -> None:
    fake_openai.options |= {
        "no_stream_logprobs": True,
        "max_top": 3,
        "after_temperature": True,
        "refuses": ("seed",),
    }
    reader = reader_of(fake_openai)
    result = reader.probe()
    assert (result.logprobs, result.top_logprobs, result.raw_logprobs) == (True, 3, False)
    assert (result.streams, result.stream_logprobs) == (True, False)
    assert result.rejected == ("seed",)
    # Log-probabilities after temperature are not the model's own.
    assert not reader.capabilities.logprobs
    assert "after temperature" in str(result)
    json.dumps(dict(result.limits))


# Errors, keys and clients.


@pytest.mark.parametrize("key", [f"{KEY}\n", f"  {KEY}"])
def test_a_key_from_a_file_is_stripped(fake_openai: FakeOpenAI, key: str) -> None:
    reader_of(fake_openai, api_key=key).generate(["q"], GREEDY)
    assert fake_openai.requests[0]["headers"]["Authorization"] == f"Bearer {KEY}"


def test_a_key_that_no_header_can_carry_is_refused_unseen() -> None:
    with pytest.raises(ConfigurationError) as caught:
        OpenAIReader("toy", base_url="http://localhost:1/v1", api_key="sk-one\nsk-two")
    assert "sk-" not in "".join(traceback.format_exception(caught.value, chain=True)[-2:])


def test_no_key_is_in_an_error_a_repr_or_a_pickle(fake_openai: FakeOpenAI) -> None:
    secret = "hidden-token-123"
    address = fake_openai.base_url.replace("//", "//user:password-9@")
    reader = reader_of(fake_openai, base_url=address, extra_body={"auth_token": secret, "penalty": 1})
    fake_openai.options["refusal"] = f"bad key {KEY!r} and {secret} and password-9 {{}}"
    fake_openai.options["refuses"] = ("model",)
    with pytest.raises(RefusedError) as caught:
        reader.generate(["q"], GREEDY)
    error = caught.value
    assert error.__cause__ is None and error.__context__ is None
    shown = [str(error), repr(reader), reader.name, repr(pickle.dumps(reader))]
    for text in shown:
        for word in (KEY, secret, "password-9"):
            assert word not in text
    assert "[key]" in shown[0]
    assert "penalty" in shown[3]


def test_a_reader_pickles_and_asks_again(fake_openai: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(fake_openai)
    expected = reader.generate(["Where?"], GREEDY)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-there-1")
    assert copy.deepcopy(reader) is copy.copy(reader) is reader
    again = pickle.loads(pickle.dumps(reader))
    assert again.generate(["Where?"], GREEDY) == expected
    assert fake_openai.requests[-1]["headers"]["Authorization"] == "Bearer sk-of-there-1"


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": "file:///etc"},
        {"base_url": "localhost:8000"},
        {"base_url": "http://"},
        {"base_url": "http://host:99999/v1"},
        {"api": "responses"},
        {"top_logprobs": -1},
        {"max_concurrency": 0},
        {"timeout": 0},
        {"base_url": None},
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigurationError):
        OpenAIReader("toy", **{"base_url": "http://localhost:1/v1", **settings})


@pytest.mark.parametrize(
    "base_url", ["{tls}", "http://no.such.host.invalid/v1", f"http://{'a' * 70}.example/v1"]
)
def test_an_address_that_never_answers_is_no_passing_failure(
    fake_openai: FakeOpenAI, base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    def unknown(*arguments: Any, **keywords: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    if "invalid" in base_url:
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    reader = reader_of(
        fake_openai, base_url=base_url.format(tls=fake_openai.base_url.replace("http:", "https:"))
    )
    with pytest.raises(RefusedError):
        reader.generate(["q"], GREEDY)


def test_a_server_that_is_not_there_may_come_back() -> None:
    reader = OpenAIReader("toy", base_url="http://127.0.0.1:9/v1", max_retries=0)
    with pytest.raises(TransientServiceError, match=r"127\.0\.0\.1:9"):
        reader.generate(["q"], GREEDY)


def test_passing_failures_are_retried_by_the_sdk(fake_openai: FakeOpenAI) -> None:
    fake_openai.fail("429 with a wait", times=2)
    assert reader_of(fake_openai, max_retries=2).generate(["Where?"], GREEDY)[0][0].text
    assert len(fake_openai.requests) == 3


def test_a_client_of_ones_own_is_used_and_left_open(fake_openai: FakeOpenAI) -> None:
    client = openai.AsyncOpenAI(base_url=fake_openai.base_url, api_key=KEY, default_headers={"X-Team": "a"})
    reader = OpenAIReader("toy", client=client)
    assert reader.name.startswith("toy@127.0.0.1:")
    reader.generate(["q"], GREEDY)
    reader.close()
    assert reader.generate(["q"], GREEDY)
    assert fake_openai.requests[0]["headers"]["X-Team"] == "a"
    with pytest.raises(ConfigurationError, match="pickled"):
        pickle.dumps(reader)


def test_a_synchronous_client_is_refused(fake_openai: FakeOpenAI) -> None:
    client: Any = openai.OpenAI(base_url=fake_openai.base_url, api_key=KEY)
    with pytest.raises(ConfigurationError, match="AsyncOpenAI"):
        OpenAIReader("toy", client=client)


def test_one_failure_ends_the_others(fake_openai: FakeOpenAI) -> None:
    fake_openai.options["seconds"] = 0.05
    fake_openai.fail("401")
    with pytest.raises(SureragError):
        reader_of(fake_openai, max_concurrency=1).generate(["q"] * 30, GREEDY)
    assert len(fake_openai.requests) < 5


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_white_space_at_the_cut_is_among_the_tokens(api: Any) -> None:
    with FakeOpenAI(["Velm\n\n"] * 2) as server:
        cut, whole = (
            reader_of(server, api=api).generate(["q"], SamplingParams(max_tokens=limit))[0][0]
            for limit in (2, 6)
        )
    assert cut.trace is not None and cut.trace.tokens == ("Velm", "\n\n") and cut.finish == "length"
    assert cut.text == whole.text == "Velm" and whole.finish == "stop"
