"""Whole answers over an API: samples, log-probabilities, intervals of entropy, usage."""

import asyncio
import math
import threading

import pytest
from tests.servers.fake_openai import FakeOpenAI, Quirks
from tests.servers.toy_model import Script, ToyModel

from surerag.errors import ConfigurationError, InputError
from surerag.measures import token_entropy
from surerag.messages import Message, SamplingParams, Usage
from surerag.readers.hosted import OpenAIReader
from surerag.readers.hosted.parse import Api

APIS: list[Api] = ["chat", "completions"]
SAMPLED = SamplingParams(n=5, temperature=1.0, max_tokens=6, seed=3)


def reader_of(server: FakeOpenAI, api: Api = "chat", **settings: object) -> OpenAIReader:
    settings = {"vocabulary_size": ToyModel.vocabulary_size, "top_logprobs": 4, **settings}
    return OpenAIReader("toy", base_url=server.base_url, api=api, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("api", APIS)
def test_text_logprobs_and_entropy_are_those_of_the_model(server: FakeOpenAI, api: Api) -> None:
    sampling = SamplingParams(temperature=1.0, max_tokens=8, seed=11)
    generation = reader_of(server, api).generate(["Where is Velm?"], sampling)[0][0]
    assert generation.trace is not None
    assert generation.trace.entropy is not None
    context = "Where is Velm?"
    for position, token in enumerate(generation.trace.tokens):
        distribution = ToyModel().distribution(context)
        exact = float(token_entropy(list(distribution.values())))
        assert generation.trace.logprobs[position] == pytest.approx(distribution[token])
        assert generation.trace.entropy.lower[position] <= exact + 1e-9
        assert generation.trace.entropy.upper[position] >= exact - 1e-9
        context += token
    assert generation.text == context.removeprefix("Where is Velm?").strip()


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("api", APIS)
def test_an_unlikely_token_does_not_narrow_the_interval(api: Api, adds: bool) -> None:
    # Taken for one of the k likeliest, it would claim that no unlisted token is likelier than itself.
    with FakeOpenAI(quirks=Quirks(adds_sampled_to_top=adds)) as server:
        reader = reader_of(server, api, top_logprobs=2)
        prompts = [f"Question {number}?" for number in range(20)]
        answers = reader.generate(prompts, SamplingParams(temperature=3.0, seed=5, max_tokens=1))
    for prompt, (generation,) in zip(prompts, answers, strict=True):
        assert generation.trace is not None
        assert generation.trace.entropy is not None
        exact = float(token_entropy(list(ToyModel().distribution(prompt).values())))
        for lower, upper in zip(generation.trace.entropy.lower, generation.trace.entropy.upper, strict=True):
            assert lower <= exact + 1e-9 <= upper + 2e-9


@pytest.mark.parametrize("api", APIS)
def test_a_server_that_ignores_n_is_asked_again_with_other_seeds(api: Api) -> None:
    with FakeOpenAI(quirks=Quirks(ignores_n=True)) as server:
        reader = reader_of(server, api)
        answers = reader.generate(["one", "two"], SAMPLED)
        assert [len(row) for row in answers] == [5, 5]
        seeds = [request.body["seed"] for request in server.requests if _prompt(request.body) == "one"]
        assert len(set(seeds)) == len(seeds) == 5
        assert len({generation.text for generation in answers[0]}) > 1
        # What it learnt it remembers: the next samples are asked for one by one at once.
        server.requests.clear()
        reader.generate(["three"], SAMPLED)
        assert ["n" in request.body for request in server.requests] == [False] * 5


def _prompt(body: dict[str, object]) -> object:
    return body["prompt"] if "prompt" in body else body["messages"][0]["content"]  # type: ignore[index]


def test_a_server_that_honours_n_is_asked_once(server: FakeOpenAI) -> None:
    answers = reader_of(server).generate(["one"], SAMPLED)
    assert len(answers[0]) == 5
    assert len(server.requests) == 1


def test_greedy_samples_are_asked_for_once(server: FakeOpenAI) -> None:
    (row,) = reader_of(server).generate(["one"], SamplingParams(n=4))
    assert len(row) == 4
    assert len(set(row)) == 1
    assert len(server.requests) == 1


def test_seeds_repeat_and_differ(server: FakeOpenAI) -> None:
    reader = reader_of(server)
    first, again, other = (
        reader.generate(["one"], SamplingParams(n=3, temperature=1.0, seed=seed))[0] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_sampling_reaches_the_server_in_its_words(server: FakeOpenAI) -> None:
    sampling = SamplingParams(temperature=0.7, top_p=0.9, top_k=40, max_tokens=7, stop=("\n",), seed=2)
    reader_of(server, extra_body={"min_p": 0.1}).generate(["one"], sampling)
    body = server.requests[0].body
    expected = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "max_tokens": 7, "stop": ["\n"], "min_p": 0.1}
    assert expected.items() <= body.items()
    assert (body["logprobs"], body["top_logprobs"]) == (True, 4)


def test_conversations_go_to_chat_and_not_to_completions(server: FakeOpenAI) -> None:
    conversation = (Message("system", "Be brief."), Message("user", "Where?"))
    reader_of(server).generate([conversation], SamplingParams())
    assert server.requests[0].body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where?"},
    ]
    with pytest.raises(InputError, match='api="chat"'):
        reader_of(server, "completions").generate([conversation], SamplingParams())


def test_stop_texts_end_the_answer_and_its_trace() -> None:
    with FakeOpenAI(Script(lambda _: "one two three four")) as server:
        generation = reader_of(server, vocabulary_size=1000).generate(
            ["q"], SamplingParams(stop=(" three",))
        )[0][0]
    assert (generation.text, generation.finish) == ("one two", "stop")
    assert generation.trace is not None
    assert generation.trace.tokens == ("one", " two")


@pytest.mark.parametrize("api", APIS)
def test_the_end_token_is_not_counted(api: Api) -> None:
    with FakeOpenAI(Script(lambda _: "one two"), Quirks(counts_end_token=True)) as server:
        reader = reader_of(server, api, vocabulary_size=1000)
        whole = reader.generate(["q"], SamplingParams())[0][0]
        *_, last = reader.stream("q", SamplingParams())
    assert last.generation is not None
    for generation in (whole, last.generation):
        assert generation.trace is not None
        assert generation.trace.tokens == ("one", " two")
        assert generation.completion_tokens == 2


def test_usage_is_the_servers_count(server: FakeOpenAI) -> None:
    reader = reader_of(server)
    generations = [row[0] for row in reader.generate(["one two", "three"], SamplingParams(max_tokens=4))]
    assert reader.usage.requests == 2
    assert reader.usage.prompt_tokens == 3
    assert reader.usage.completion_tokens == sum(g.completion_tokens for g in generations)
    assert [g.prompt_tokens for g in generations] == [2, 1]


def test_without_logprobs_nothing_is_asked_for_and_nothing_claimed(server: FakeOpenAI) -> None:
    reader = reader_of(server, logprobs=False)
    generation = reader.generate(["one"], SamplingParams())[0][0]
    assert generation.trace is None
    assert "logprobs" not in server.requests[0].body
    assert not reader.capabilities.logprobs
    assert reader.capabilities.entropy is None


def test_top_logprobs_zero_gives_logprobs_without_entropies(server: FakeOpenAI) -> None:
    reader = reader_of(server, top_logprobs=0)
    trace = reader.generate(["one"], SamplingParams())[0][0].trace
    assert trace is not None
    assert trace.entropy is None
    assert reader.capabilities.logprobs
    assert reader.capabilities.entropy is None


def test_no_more_requests_at_once_than_allowed(server: FakeOpenAI) -> None:
    server.pause()
    reader = reader_of(server, max_concurrency=3)
    answers: list[object] = []
    callers = [
        threading.Thread(
            target=lambda: answers.extend(reader.generate(["a", "b", "c", "d"], SamplingParams()))
        )
        for _ in range(2)
    ]
    for caller in callers:
        caller.start()
    server.wait_for(in_flight=3)
    server.release()
    for caller in callers:
        caller.join()
    assert len(answers) == 8
    assert server.peak == 3


async def test_async_requests_run_at_once_up_to_the_limit(server: FakeOpenAI) -> None:
    server.pause()
    reader = reader_of(server, max_concurrency=3)
    task = asyncio.create_task(reader.agenerate([f"q{i}" for i in range(7)], SamplingParams()))
    await asyncio.to_thread(server.wait_for, 3)
    server.release()
    assert [len(row) for row in await task] == [1] * 7
    assert server.peak == 3
    await reader.aclose()


def test_one_reader_works_in_several_event_loops(server: FakeOpenAI) -> None:
    reader = reader_of(server)

    async def ask() -> str:
        answer = (await reader.agenerate(["one"], SamplingParams(max_tokens=3)))[0][0].text
        await reader.aclose()
        return answer

    assert (
        asyncio.run(ask())
        == asyncio.run(ask())
        == reader.generate(["one"], SamplingParams(max_tokens=3))[0][0].text
    )


def test_results_are_in_order_whatever_answers_first(server: FakeOpenAI) -> None:
    prompts = [f"Question {i}?" for i in range(12)]
    reader = reader_of(server)
    together = reader.generate(prompts, SamplingParams(max_tokens=4))
    assert together == [reader.generate([prompt], SamplingParams(max_tokens=4))[0] for prompt in prompts]


async def test_async_equals_sync(server: FakeOpenAI) -> None:
    reader = reader_of(server, "completions")
    assert await reader.agenerate(["one", "two"], SAMPLED) == reader.generate(["one", "two"], SAMPLED)
    await reader.aclose()


def test_own_clients_are_used_and_left_open(server: FakeOpenAI) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=server.base_url, api_key="mine", default_headers={"x-mine": "yes"})
    with OpenAIReader("toy", client=client) as reader:
        reader.generate(["one"], SamplingParams())
    assert server.requests[0].headers["x-mine"] == "yes"
    assert not client.is_closed()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"api": "assistants"}, "api must be"),
        ({"scoring": "echo"}, "chat API has no echo"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1"),
        ({"retries": -1}, "retries must be at least 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        OpenAIReader("toy", base_url="http://localhost:1/v1", **settings)  # type: ignore[arg-type]


def test_empty_answers_are_answers() -> None:
    with FakeOpenAI(Script(lambda _: "")) as server:
        generation = reader_of(server).generate(["q"], SamplingParams())[0][0]
    assert generation.text == ""
    assert generation.trace is not None
    assert len(generation.trace) == 0


def test_usage_adds_up_over_threads(server: FakeOpenAI) -> None:
    reader = reader_of(server)
    reader.generate(["one two three"] * 30, SamplingParams(max_tokens=1))
    assert reader.usage.requests == 30
    assert reader.usage + Usage() == Usage(30, 90, reader.usage.completion_tokens)


def test_intervals_close_where_all_tokens_are_listed(server: FakeOpenAI) -> None:
    trace = reader_of(server, top_logprobs=20).generate(["one"], SamplingParams(max_tokens=3))[0][0].trace
    assert trace is not None
    assert trace.entropy is not None
    assert trace.entropy.upper == pytest.approx(trace.entropy.lower)
    assert max(trace.entropy.upper) <= math.log(ToyModel.vocabulary_size)
