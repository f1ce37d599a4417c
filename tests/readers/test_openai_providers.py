"""The services that people use, each behaving as documented: what is sent to them, and what comes of it."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from typing import Any

import pytest
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.providers import PERSONALITIES, THOUGHT, ProviderServer, provider
from tests.servers.toy_model import Script, ToyModel, split

from surerag.errors import (
    CapabilityError,
    LogprobsError,
    LogprobsRefusedError,
    RefusedError,
    ThinkingBudgetError,
)
from surerag.messages import Generation, SamplingParams
from surerag.readers.hosted import OpenAIReader
from surerag.readers.hosted.parse import Api, UnforeseenThoughtsError
from surerag.readers.refusals import LeftOutWarning

ANSWER = "Velm lies on the old river Orun"
TEXT = SamplingParams(max_tokens=20, trace="none")
TRACED = SamplingParams(max_tokens=20)
THINKING = [
    "gpt-5", "o-series", "vllm-qwen3", "vllm-qwen3-raw", "vllm-r1-raw", "gpt-oss-raw", "deepseek-reasoner",
    "cerebras", "ollama", "responses-gpt-5",
]  # fmt: skip
LISTING = [
    "gpt-4o", "gpt-5.1", "azure-v1", "vllm-qwen3", "vllm-qwen3-raw", "vllm-r1-raw", "gpt-oss-raw", "cerebras",
    "ollama", "responses",
]  # fmt: skip
LISTING_THOUGHT = [name for name in LISTING if name in THINKING]
SILENT = [name for name in PERSONALITIES if name not in LISTING]

pytestmark = pytest.mark.filterwarnings("ignore::surerag.readers.refusals.LeftOutWarning")


def scripted(name: str, **settings: Any) -> ProviderServer:
    return provider(name, Script(lambda _: ANSWER), **settings)


def reader_of(server: ProviderServer, **settings: Any) -> OpenAIReader:
    api: Api = "responses" if server.personality.name.startswith("responses") else "chat"
    settings = {"api": api, "vocabulary_size": 1000, "retries": 0, **settings}
    return OpenAIReader(server.personality.model, base_url=server.url, **settings)


def every_way(reader: OpenAIReader, sampling: SamplingParams) -> list[Generation]:
    """One answer, asked for in every way that there is."""

    async def ways() -> list[Generation]:
        found = (await reader.agenerate(["q"], sampling))[0]
        found += await reader.afinish(await reader.abegin(["q"], 2, sampling))
        chunks = [chunk async for chunk in reader.astream("q", sampling)]
        assert chunks[-1].generation is not None
        assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text
        await reader.aclose()
        return [*found, chunks[-1].generation]

    found = reader.generate(["q"], sampling)[0]
    found += reader.finish(reader.begin(["q"], 2, sampling))
    chunks = list(reader.stream("q", sampling))
    assert chunks[-1].generation is not None
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text
    return [*found, chunks[-1].generation, *asyncio.run(ways())]


@pytest.mark.parametrize("name", PERSONALITIES)
def test_text_comes_from_every_service_in_every_way(name: str) -> None:
    with scripted(name) as server:
        reader = reader_of(server)
        if name == "vllm-r1-raw":
            reader.generate(["q"], TEXT)  # what its template opens shows in a whole answer
        for answer in every_way(reader, TEXT):
            assert (answer.text, answer.finish, answer.trace) == (ANSWER, "stop", None)
            assert (answer.thinking_tokens > 0) == (name in THINKING)
        assert reader.capabilities.thinking == ("apart" if name in THINKING else "none")
        asked = {field for request in server.requests for field in request.body}
        assert not asked & {"logprobs", "top_logprobs", "include", "seed", "top_p", "n", "stop"}


@pytest.mark.parametrize("name", LISTING)
def test_entropies_are_those_of_the_answer_alone(name: str) -> None:
    with FakeOpenAI() as plain:
        reader = OpenAIReader("toy", base_url=plain.base_url, vocabulary_size=ToyModel.vocabulary_size)
        sampling = SamplingParams(max_tokens=12)
        expected = reader.generate(["q"], sampling)[0][0]
    with provider(name) as server:
        reader = reader_of(server, vocabulary_size=ToyModel.vocabulary_size)
        if name == "vllm-r1-raw":
            reader.generate(["q"], sampling)
        for answer in every_way(reader, sampling):
            assert answer.trace is not None
            assert answer.text == expected.text
            assert answer.trace == expected.trace
            assert answer.completion_tokens == expected.completion_tokens
        (begun,) = reader.begin(["q"], 3, sampling)
        reader.cancel([begun])
        assert begun.partial.trace is not None
        assert expected.trace is not None
        assert begun.partial.trace.tokens == expected.trace.tokens[:3]


@pytest.mark.parametrize("name", SILENT)
def test_where_there_are_no_log_probabilities_the_error_says_why(name: str) -> None:
    with scripted(name) as server, pytest.raises(LogprobsError) as caught:
        reader_of(server).generate(["q"], TRACED)
    assert isinstance(caught.value, LogprobsRefusedError)
    assert "logprobs" in str(caught.value)
    assert "thinking=False" in str(caught.value)
    assert len(server.requests) <= 6


@pytest.mark.parametrize("name", ["gpt-5", "o-series", "openrouter", "groq"])
def test_what_was_refused_once_is_not_sent_again(name: str) -> None:
    with scripted(name) as server:
        reader = reader_of(server)
        reader.generate(["q"], TEXT)
        server.requests.clear()
        reader.generate(["q", "r"], TEXT)
        assert len(server.requests) == 2
        copy = pickle.loads(pickle.dumps(reader))
        copy.generate(["q"], TEXT)
        assert len(server.requests) == 3


def test_many_requests_at_once_learn_and_none_forgets() -> None:
    with scripted("gpt-5") as server:
        reader = reader_of(server)
        assert len(reader.generate([f"q{i}" for i in range(12)], TEXT)) == 12
        server.requests.clear()
        reader.generate([f"r{i}" for i in range(12)], TEXT)
        assert len(server.requests) == 12
        assert all("temperature" not in request.body for request in server.requests)


def test_a_temperature_that_can_be_done_without_is_left_out_with_one_warning() -> None:
    with scripted("gpt-5") as server:
        reader = reader_of(server)
        with pytest.warns(LeftOutWarning, match="gpt-5 refuses temperature"):
            reader.generate(["q"], TEXT)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader.generate(["q"], TEXT)


def test_it_is_told_when_it_is_felt_and_not_before() -> None:
    with scripted("gpt-5") as server:
        reader = reader_of(server)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader.generate(["q"], SamplingParams(n=2, temperature=1.0, max_tokens=20, trace="none"))
        with pytest.warns(LeftOutWarning, match="gpt-5 refuses temperature"):
            reader.generate(["q"], TEXT)


def test_a_temperature_that_is_needed_is_an_error_also_once_it_is_known() -> None:
    drawn = SamplingParams(n=3, temperature=0.7, trace="none")
    with scripted("gpt-5") as server:
        reader = reader_of(server)
        for _ in range(2):
            with pytest.raises(RefusedError, match=r"'temperature' does not support 0.*[Tt]emperature=1.0"):
                reader.generate(["q"], drawn)
            reader.generate(["q"], TEXT)
        # At the service's own temperature there is nothing to say.
        assert len(reader.generate(["q"], SamplingParams(n=3, temperature=1.0, trace="none"))[0]) == 3


def test_a_refused_n_becomes_single_requests() -> None:
    drawn = SamplingParams(n=4, temperature=1.0, trace="none")
    with scripted("groq") as server:
        reader = reader_of(server)
        assert len(reader.generate(["q"], drawn)[0]) == 4
        assert [request.body.get("n") for request in server.requests] == [4, 1, None, None, None]
        server.requests.clear()
        reader.generate(["q"], drawn)
        assert ["n" in request.body for request in server.requests] == [False] * 4


def test_a_refused_stop_is_kept_to_here() -> None:
    sampling = SamplingParams(stop=(" old",), max_tokens=20, trace="none")
    with scripted("o-series") as server:
        for answer in every_way(reader_of(server), sampling):
            assert (answer.text, answer.finish) == ("Velm lies on the", "stop")


@pytest.mark.parametrize("name", ["vllm-qwen3", "vllm-qwen3-raw", "cerebras"])
def test_a_stop_text_in_the_thoughts_does_not_end_them(name: str) -> None:
    sampling = SamplingParams(stop=(" Orun",), max_tokens=20)
    assert " Orun" in THOUGHT
    with scripted(name) as server:
        for answer in every_way(reader_of(server), sampling):
            assert (answer.text, answer.finish) == ("Velm lies on the old river", "stop")
            assert answer.trace is not None
            assert "".join(answer.trace.tokens) == "Velm lies on the old river"


def test_more_alternatives_than_listed_are_asked_for_once() -> None:
    with provider("gpt-4o") as server:
        reader = reader_of(server, top_logprobs=30, vocabulary_size=ToyModel.vocabulary_size)
        first, second = (reader.generate(["q"], SamplingParams(max_tokens=3))[0][0] for _ in range(2))
        assert [request.body["top_logprobs"] for request in server.requests] == [30, 20, 20]
        assert first.trace == second.trace
        assert first.trace is not None


def test_log_probabilities_alone_come_without_alternatives() -> None:
    sampling = SamplingParams(n=2, temperature=1.0, max_tokens=4, trace="logprobs")
    with provider("gpt-4o") as server:
        answers = reader_of(server).generate(["q"], sampling)[0]
        body = server.requests[0].body
        assert body["logprobs"] is True
        assert "top_logprobs" not in body
        assert all(answer.trace is not None and answer.trace.entropy is None for answer in answers)
    with FakeOpenAI() as plain:
        OpenAIReader("toy", base_url=plain.base_url, api="completions").generate(["q"], sampling)
        # The sampled token's own comes with it; some servers take 0 for none at all.
        assert plain.requests[0].body["logprobs"] == 1


def test_what_is_sent_to_draw_and_what_for_one_likeliest_answer() -> None:
    with provider("gpt-4o") as server:
        reader = reader_of(server)
        reader.generate(["q"], SamplingParams(max_tokens=5, trace="none"))
        reader.generate(["q"], SamplingParams(n=2, temperature=1.0, seed=3, max_tokens=5, trace="none"))
        one, several = (dict(request.body) for request in server.requests)
    messages = {"model": "gpt-4o", "messages": [{"role": "user", "content": "q"}]}
    assert one == {**messages, "max_tokens": 5, "temperature": 0.0}
    assert several == {**messages, "max_tokens": 5, "temperature": 1.0, "top_p": 1.0, "seed": 3, "n": 2}


@pytest.mark.parametrize("name", [name for name in LISTING_THOUGHT if name != "vllm-r1-raw"])
def test_an_answer_cut_inside_its_thoughts_is_asked_for_again_once(name: str) -> None:
    sampling = SamplingParams(max_tokens=4)
    with scripted(name) as server:
        reader = reader_of(server)
        answer = reader.generate(["q"], sampling)[0][0]
        assert len(server.requests) == 2
        assert (answer.text, answer.finish) == ("Velm lies on the", "length")
        assert answer.completion_tokens == 4
        assert answer.thinking_tokens >= len(split(THOUGHT))


@pytest.mark.parametrize("name", [name for name in THINKING if name != "vllm-r1-raw"])
def test_streams_too(name: str) -> None:
    sampling = SamplingParams(max_tokens=4, trace="none")
    with scripted(name) as server:
        reader = reader_of(server)
        (begun,) = reader.begin(["q"], 2, sampling)
        assert reader.finish([begun])[0].text == "Velm lies on the"
        with_chunks = list(reader_of(server).stream("q", sampling))
        assert "".join(chunk.text for chunk in with_chunks) == "Velm lies on the"


@pytest.mark.parametrize("name", THINKING)
def test_a_budget_that_ends_inside_the_thoughts_is_an_error_with_its_numbers(name: str) -> None:
    with scripted(name, thought="so " * 300) as server:
        reader = reader_of(server, thinking_tokens=50, thinking=True)
        if name == "vllm-r1-raw":
            pytest.skip("a text without any mark is taken for an answer")
        ways: list[Any] = [
            lambda: reader.generate(["q"], TEXT),
            lambda: reader.begin(["q"], 2, TEXT),
            lambda: list(reader.stream("q", TEXT)),
        ]
        for ask in ways:
            with pytest.raises(
                ThinkingBudgetError, match=r"thinking_tokens=50 and max_tokens=20.*thinking=False"
            ):
                ask()
        assert len(server.requests) <= 10


def test_marks_with_nothing_between_them_are_not_asked_for_again() -> None:
    with FakeOpenAI(Script(lambda _: "<think> </think> one two three")) as server:
        reader = OpenAIReader("toy", base_url=server.base_url, vocabulary_size=1000)
        answer = reader.generate(["q"], SamplingParams(max_tokens=3))[0][0]
        assert (answer.text, answer.finish, answer.thinking_tokens) == ("one", "length", 2)
        assert len(server.requests) == 1
        assert reader.capabilities.thinking == "none"


def test_told_to_think_it_has_tokens_for_it_at_once() -> None:
    with scripted("vllm-qwen3") as server:
        reader = reader_of(server, thinking=True, thinking_tokens=100)
        reader.generate(["q"], SamplingParams(max_tokens=7))
        assert [request.body["max_tokens"] for request in server.requests] == [107]
        assert reader.capabilities.thinking == "apart"


@pytest.mark.parametrize("name", ["vllm-qwen3", "vllm-qwen3-raw", "ollama", "gpt-5.1"])
def test_thinking_is_switched_off_where_it_can_be(name: str) -> None:
    with scripted(name) as server:
        reader = reader_of(server, thinking=False)
        answer = reader.generate(["q"], SamplingParams(max_tokens=10))[0][0]
        assert (answer.text, answer.thinking_tokens) == (ANSWER, 0)
        assert reader.capabilities.thinking == "off"
        assert server.requests[-1].body["reasoning_effort"] == "none"


def test_a_model_that_does_not_know_of_thinking_is_told_nothing_again() -> None:
    with scripted("gpt-4o") as server:
        reader = reader_of(server, thinking=False)
        reader.generate(["q"], TEXT)
        assert reader.capabilities.thinking == "none"
        assert set(server.requests[-1].body) == {"model", "messages", "max_tokens", "temperature"}


@pytest.mark.parametrize("name", ["gpt-5", "deepseek-reasoner", "gpt-oss-raw"])
def test_a_model_that_thinks_all_the_same_is_an_error(name: str) -> None:
    with scripted(name) as server:
        reader = reader_of(server, thinking=False)
        with pytest.raises(CapabilityError, match=r"thinks before it answers, although it was told not to"):
            reader.generate(["q"], TEXT)
        with pytest.raises(CapabilityError, match="although it was told not to"):
            reader.begin(["q"], 2, TEXT)
    if name == "gpt-5":
        with pytest.raises(CapabilityError, match="does not support 'none' with this model"):
            reader._known.allow()


def test_an_effort_of_the_users_own_wins_and_its_price_is_named() -> None:
    with scripted("gpt-5.1") as server:
        assert reader_of(server).generate(["q"], TRACED)[0][0].trace is not None
        reader = reader_of(server, extra_body={"reasoning_effort": "low"}, thinking=False)
        with pytest.raises(LogprobsRefusedError, match='reasoning_effort="none"'):
            reader.generate(["q"], TRACED)
        assert server.requests[-1].body["reasoning_effort"] == "low"


def test_a_field_of_the_users_own_that_is_refused_is_not_left_out() -> None:
    with scripted("gpt-4o") as server:
        reader = reader_of(server, extra_body={"min_p": 0.1})
        with pytest.raises(RefusedError, match="Unrecognized request argument supplied: min_p"):
            reader.generate(["q"], TEXT)


def test_a_template_that_opens_the_thoughts_is_noticed_in_a_stream() -> None:
    with scripted("vllm-r1-raw") as server:
        reader = reader_of(server)
        early = reader.begin(["q"], 2, TEXT)
        with pytest.raises(
            UnforeseenThoughtsError, match=r"turns out to be the model's thoughts.*call probe\(\)"
        ):
            reader.finish(early)
        reader.generate(["q"], TEXT)
        (begun,) = reader.begin(["q"], 2, TRACED)
        assert begun.partial.text == "Velm lies"


@pytest.mark.parametrize("name", ["vllm-qwen3", "gpt-oss-raw", "cerebras", "gpt-5"])
def test_thoughts_are_counted_apart(name: str) -> None:
    with scripted(name) as server:
        reader = reader_of(server)
        answer = reader.generate(["q"], TEXT if name == "gpt-5" else TRACED)[0][0]
        usage = reader.usage
    assert answer.completion_tokens == len(split(ANSWER))
    assert answer.thinking_tokens >= len(split(THOUGHT))
    assert usage.thinking_tokens >= len(split(THOUGHT))
    assert usage.completion_tokens >= answer.completion_tokens


def test_an_error_inside_an_answer_is_one_like_any_other() -> None:
    with scripted("openrouter") as server:
        reader = reader_of(server)
        assert reader.generate(["q"], TEXT)[0][0].text == ANSWER
        assert list(reader_of(server).stream("q", TEXT))[-1].text == ""
        server.fail(200, body=b'{"error": {"code": 401, "message": "No auth credentials found"}}')
        server.fault = lambda wire: wire.body(
            b'{"error": {"code": 401, "message": "No auth credentials found"}}'
        )
        with pytest.raises(RefusedError, match=r"\(401\).*No auth credentials.*OPENAI_API_KEY"):
            reader.generate(["q"], TEXT)


def test_the_responses_api_is_asked_in_its_own_words() -> None:
    sampling = SamplingParams(max_tokens=3, temperature=0.0)
    with provider("responses") as server:
        reader = reader_of(server, top_logprobs=4)
        answer = reader.generate(["q"], sampling)[0][0]
        body = dict(server.requests[0].body)
        several = reader.generate(["q"], SamplingParams(n=3, temperature=1.0, trace="none", stop=(" the",)))[
            0
        ]
    assert server.requests[0].path == "/v1/responses"
    assert body == {
        "model": "gpt-4o",
        "input": [{"role": "user", "content": "q"}],
        "store": False,
        "max_output_tokens": 16,
        "temperature": 0.0,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 4,
    }
    assert (answer.completion_tokens, answer.finish) == (3, "length")
    assert len(several) == 3
    assert len(server.requests) == 4


def test_an_empty_list_of_log_probabilities_is_an_error_with_the_reason() -> None:
    with scripted("responses") as server:
        reader = reader_of(server, extra_body={"include": []})
        with pytest.raises(LogprobsError, match=r"no log-probabilities.*probe"):
            reader.generate(["q"], TRACED)


def test_azures_new_address_is_asked_as_any_other() -> None:
    with scripted("azure-v1") as server:
        reader = reader_of(server)
        assert reader.generate(["q"], TRACED)[0][0].trace is not None
        assert server.requests[0].path == "/openai/v1/chat/completions"
        assert "max_tokens" not in server.requests[-1].body
