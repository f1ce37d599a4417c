"""ChatOpenAI and OpenAI as readers, against a server that counts."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.runnables import ConfigurableField

from langchain_surerag import reader_from_model
from surerag.errors import ConfigurationError, LogprobsError, ServiceError
from surerag.messages import Generation, Message, SamplingParams
from surerag.readers import BaseReader
from surerag.readers.hosted import OpenAIReader
from tests.langchain.conftest import KEY, chat, completions
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script, ToyModel

GREEDY = SamplingParams(max_tokens=12)
SAMPLED = SamplingParams(n=4, temperature=1.0, max_tokens=6, seed=4)
WORDS = "one two three four five six seven"


def model_of(server: FakeOpenAI, kind: str, **settings: Any) -> Any:
    return chat(server, **settings) if kind == "chat" else completions(server, **settings)


def reader_over(server: FakeOpenAI, kind: str = "chat", **settings: Any) -> BaseReader:
    return reader_from_model(model_of(server, kind, **settings), vocabulary_size=ToyModel.vocabulary_size)


def reference(server: FakeOpenAI, kind: str) -> OpenAIReader:
    return OpenAIReader(
        "toy",
        base_url=server.base_url,
        api_key=KEY,
        api="chat" if kind == "chat" else "completions",
        vocabulary_size=ToyModel.vocabulary_size,
        top_logprobs=20 if kind == "chat" else 5,
    )


def uncounted(generation: Generation) -> Generation:
    """Completions streams of LangChain drop the server's count of prompt tokens."""
    return replace(generation, prompt_tokens=0)


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_every_verb_gives_what_the_core_reader_gives(server: FakeOpenAI, kind: str) -> None:
    reader, core = reader_over(server, kind), reference(server, kind)
    prompts = ["Where does Velm lie?", "Who was born in Tarn?"]
    whole = core.generate(prompts, GREEDY)
    first = [uncounted(row[0]) for row in whole]
    assert [list(row) for row in reader.generate(prompts, GREEDY)] == whole
    assert await reader.agenerate(prompts, GREEDY) == whole
    assert list(map(uncounted, reader.finish(reader.begin(prompts, 2, GREEDY)))) == first
    assert list(map(uncounted, await reader.afinish(await reader.abegin(prompts, 2, GREEDY)))) == first
    for chunks in (
        list(reader.stream(prompts[0], GREEDY)),
        [chunk async for chunk in reader.astream(prompts[0], GREEDY)],
    ):
        assert uncounted(chunks[-1].generation) == first[0]
        assert "".join(chunk.text for chunk in chunks) == first[0].text
        assert sum(bool(chunk.text) for chunk in chunks) > 1


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_a_conversation_is_passed_on(server: FakeOpenAI, kind: str) -> None:
    reader = reader_over(server, kind)
    reader.generate([(Message("system", "Be brief."), Message("user", "Where?"))], GREEDY)
    body = server.requests[0].body
    if kind == "chat":
        assert [turn["role"] for turn in body["messages"]] == ["system", "user"]
    else:
        assert body["prompt"] == ["System: Be brief.\nHuman: Where?"]


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_all_samples_are_one_request(server: FakeOpenAI, kind: str) -> None:
    reader = reader_over(server, kind)
    [samples] = reader.generate(["Velm"], SAMPLED)
    assert [request.body["n"] for request in server.requests] == [4]
    assert len({sample.text for sample in samples}) > 1
    assert await reader.agenerate(["Velm"], SAMPLED) == [samples]
    for sample in samples:
        assert sample.trace is not None
        assert sample.trace.entropy is not None
        assert not sample.trace.entropy.exact


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_a_streaming_model_keeps_its_samples_apart(server: FakeOpenAI, kind: str) -> None:
    expected = reader_over(server, kind).generate(["Velm"], SAMPLED)
    assert reader_over(server, kind, streaming=True).generate(["Velm"], SAMPLED) == expected


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_a_server_that_ignores_n_is_asked_for_the_rest(server: FakeOpenAI, kind: str) -> None:
    server.become(ignores_n=True)
    reader = reader_over(server, kind)
    [samples] = reader.generate(["Velm"], SAMPLED)
    assert sorted(request.body.get("n", 1) for request in server.requests) == [1, 1, 1, 4]
    assert len({request.body["seed"] for request in server.requests}) == 4
    assert len({sample.text for sample in samples}) > 1
    assert await reader.agenerate(["Velm"], SAMPLED) == [samples]


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_the_llm_cache_does_not_collapse_samples(server: FakeOpenAI, kind: str) -> None:
    set_llm_cache(InMemoryCache())
    server.become(ignores_n=True)
    reader = reader_over(server, kind)
    samples = reader.generate(["Velm"], SAMPLED)
    again = await reader.agenerate(["Velm"], SAMPLED)
    assert len(server.requests) == 8
    assert len({sample.text for sample in samples[0]}) > 1
    assert again == samples


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_the_llm_cache_answers_greedy_requests_with_their_log_probabilities(
    server: FakeOpenAI, kind: str
) -> None:
    set_llm_cache(InMemoryCache())
    reader = reader_over(server, kind)
    [[first]] = reader.generate(["Velm"], GREEDY)
    [[second]] = reader.generate(["Velm"], GREEDY)
    assert len(server.requests) == 1
    assert (first.text, first.trace) == (second.text, second.trace)


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_a_gate_reads_n_tokens_and_hangs_up(kind: str) -> None:
    with FakeOpenAI(Script(lambda _: WORDS), hold_after=3) as server:
        reader = reader_over(server, kind)
        # Begin returns although the server sends no fourth token: it did not wait for one.
        [begun] = reader.begin(["?"], 3, GREEDY)
        assert begun.partial.trace.tokens == ("one", " two", " three")
        assert (begun.partial.finish, begun.done) == ("partial", False)
        reader.cancel([begun])
        record = server.streams[0].wait()
        assert (record.sent, record.closed_early) == (3, True)
        with pytest.raises(ServiceError, match="cancelled"):
            reader.finish([begun])
        reader.cancel([begun])


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("wrapped", [False, True])
async def test_an_async_gate_reads_n_tokens_and_hangs_up(kind: str, wrapped: bool) -> None:
    with FakeOpenAI(Script(lambda _: WORDS), hold_after=3) as server:
        model = model_of(server, kind)
        if wrapped:
            model = model.bind(user="me").with_retry().with_fallbacks([model_of(server, kind)])
        reader = reader_from_model(model)
        [begun] = await reader.abegin(["?"], 3, GREEDY)
        await reader.acancel([begun])
        record = await asyncio.to_thread(server.streams[0].wait)
        assert (record.sent, record.closed_early) == (3, True)


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_an_accepted_answer_is_one_request(server: FakeOpenAI, kind: str) -> None:
    reader = reader_over(server, kind)
    [begun] = reader.begin(["Velm"], 2, GREEDY)
    chunks = list(reader.finish_stream(begun))
    assert len(server.requests) == 1
    assert chunks[-1].generation.finish in ("stop", "length")
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text
    with pytest.raises(ServiceError, match="finished"):
        reader.finish([begun])


def test_a_short_answer_is_done_at_the_gate() -> None:
    with FakeOpenAI(Script(["In Velm"])) as server:
        reader = reader_over(server)
        [begun] = reader.begin(["?"], 8, GREEDY)
        assert begun.done
        assert begun.partial.text == "In Velm"
        assert reader.finish([begun]) == [begun.partial]


def test_an_abandoned_stream_is_closed() -> None:
    with FakeOpenAI(Script(lambda _: WORDS), hold_after=2) as server:
        chunks = reader_over(server).stream("?", GREEDY)
        assert next(chunks).text
        chunks.close()
        assert server.streams[0].wait().closed_early


def test_when_one_stream_fails_the_others_are_closed() -> None:
    def say(prompt: str) -> str:
        if prompt == "c":
            # It breaks off when the other two have begun.
            while sum(record.sent == 2 for record in server.streams) < 2:
                time.sleep(0.01)
            raise ConnectionResetError
        return WORDS

    with FakeOpenAI(Script(say), hold_after=2) as server:
        with pytest.raises(Exception, match=r"peer closed connection|Connection error"):
            reader_over(server).begin(["a", "b", "c"], 2, GREEDY)
        assert [record.wait().closed_early for record in server.streams] == [True, True, True]


async def test_a_stream_that_was_never_opened_is_not_counted(server: FakeOpenAI) -> None:
    reader = reader_from_model(chat(server), max_concurrency=1)
    server.fail(400)
    with pytest.raises(Exception, match="not now"):
        reader.begin(["a", "b", "c"], 2, GREEDY)
    # The first one failed, and the others were not asked for any more.
    assert len(server.requests) == reader.usage.requests == 1
    server.fail(400)
    with pytest.raises(Exception, match="not now"):
        await reader.abegin(["a", "b", "c"], 2, GREEDY)
    assert len(server.requests) == reader.usage.requests == 2


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_requests_of_one_call_are_concurrent_up_to_the_limit(server: FakeOpenAI, kind: str) -> None:
    reader = reader_from_model(model_of(server, kind), max_concurrency=3)
    server.pause()
    prompts = [f"question {number}" for number in range(6)]
    task = asyncio.create_task(reader.agenerate(prompts, GREEDY))
    await asyncio.to_thread(server.wait_for, 3)
    server.release()
    found = await task
    assert server.peak == 3
    server.pause()
    thread = asyncio.create_task(asyncio.to_thread(reader.generate, prompts, GREEDY))
    await asyncio.to_thread(server.wait_for, 3)
    server.release()
    assert await thread == found
    assert server.peak == 3


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_async_calls_use_no_sync_method(
    server: FakeOpenAI, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(server, kind)
    for name in ("_generate", "_stream", "generate", "invoke", "stream"):
        monkeypatch.setattr(type(model), name, lambda *_, **__: pytest.fail("a sync method was called"))
    reader = reader_from_model(model)
    await reader.agenerate(["Velm"], SAMPLED)
    [begun] = await reader.abegin(["Velm"], 1, GREEDY)
    await reader.acancel([begun])


async def test_what_began_in_one_way_ends_in_it(server: FakeOpenAI) -> None:
    reader = reader_over(server)
    [begun] = await reader.abegin(["Velm"], 1, GREEDY)
    with pytest.raises(ServiceError, match="afinish"):
        reader.finish([begun])
    await reader.acancel([begun])


# What the user built and bound.


@pytest.mark.parametrize(
    ("built", "bound", "said", "asked"),
    [(None, None, None, 20), (7, None, None, 7), (7, 5, None, 5), (7, 5, 3, 3)],
)
def test_the_number_of_alternatives_is_the_users(
    server: FakeOpenAI, built: int | None, bound: int | None, said: int | None, asked: int
) -> None:
    model: Any = chat(server, top_logprobs=built)
    if bound is not None:
        model = model.bind(top_logprobs=bound)
    reader_from_model(model, top_logprobs=said).generate(["Velm"], GREEDY)
    assert server.requests[0].body["top_logprobs"] == asked


def test_without_alternatives_there_are_no_entropies(server: FakeOpenAI) -> None:
    reader = reader_from_model(chat(server), top_logprobs=0)
    assert reader.capabilities.entropy is None
    [[answer]] = reader.generate(["Velm"], GREEDY)
    assert answer.trace is not None
    assert answer.trace.entropy is None


def test_retries_retry_and_fallbacks_fall_back(server: FakeOpenAI) -> None:
    expected = reader_over(server).generate(["Velm"], GREEDY)[0][0].text
    retried = chat(server).with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    server.fail(500)
    assert reader_from_model(retried).generate(["Velm"], GREEDY)[0][0].text == expected
    server.fail(500)
    spare = chat(server, model="spare").with_config(tags=["spare"])
    reader = reader_from_model(chat(server).with_fallbacks([spare]))
    assert reader.generate(["Velm"], GREEDY)[0][0].text == expected
    assert server.requests[-1].body["model"] == "spare"
    server.fail(500)
    [begun] = reader.begin(["Velm"], 1, GREEDY)
    assert reader.finish([begun])[0].text == expected
    where = server.base_url.removeprefix("http://")
    assert reader.name == f"ChatOpenAI(toy@{where})|ChatOpenAI(spare@{where})"


def test_two_paths_of_one_host_are_two_readers(server: FakeOpenAI) -> None:
    models = [chat(server, base_url=f"http://u:p@host:81/{path}/v1") for path in "ab"]
    names = [reader_from_model(model).name for model in models]
    assert names == ["ChatOpenAI(toy@host:81/a/v1)", "ChatOpenAI(toy@host:81/b/v1)"]


def test_config_reaches_a_configurable_model(server: FakeOpenAI) -> None:
    model = chat(server).configurable_fields(model_name=ConfigurableField(id="which"))
    reader = reader_from_model(model)
    reader.generate(["Velm"], GREEDY)
    chosen = reader_from_model(model.with_config(configurable={"which": "other"}))
    chosen.generate(["Velm"], GREEDY)
    assert [request.body["model"] for request in server.requests] == ["toy", "other"]
    assert reader.capabilities == reader_over(server).capabilities


def test_of_several_models_the_reader_promises_what_all_can(server: FakeOpenAI) -> None:
    chat_reader = reader_from_model(chat(server))
    both = reader_from_model(chat(server).with_fallbacks([completions(server)]))
    assert reader_from_model(completions(server), scoring="echo").capabilities.score
    assert both.capabilities == chat_reader.capabilities
    assert not both.capabilities.score
    slow = reader_from_model(chat(server, disable_streaming=True))
    assert (slow.capabilities.begin, slow.capabilities.stream) == ("whole", False)
    [begun] = slow.begin(["Velm"], 1, GREEDY)
    assert begun.partial.finish == "partial"
    assert slow.finish([begun]) == chat_reader.generate(["Velm"], GREEDY)[0]


def test_the_users_model_is_not_changed(server: FakeOpenAI) -> None:
    set_llm_cache(InMemoryCache())
    model = chat(server)
    before = model.model_dump()
    reader = reader_from_model(model)
    reader.generate(["Velm"], SAMPLED)
    assert model.model_dump() == before
    assert KEY not in repr(reader)
    assert KEY not in str(vars(reader))


# Servers as they are.


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("quirk", ["no_logprobs", "null_token_logprob", "positive_logprobs"])
def test_bad_log_probabilities_name_the_model_and_the_fix(server: FakeOpenAI, kind: str, quirk: str) -> None:
    server.become(**{quirk: True})
    reader = reader_over(server, kind)
    name = "ChatOpenAI" if kind == "chat" else "OpenAI"
    for call in (
        lambda: reader.generate(["Velm"], GREEDY),
        lambda: reader.begin(["Velm"], 2, GREEDY),
        lambda: list(reader.stream("Velm", GREEDY)),
    ):
        with pytest.raises(LogprobsError, match=rf"^{name}: .*local model"):
            call()


def test_a_stream_without_log_probabilities_is_closed_at_once() -> None:
    with FakeOpenAI(Script(lambda _: WORDS)) as server:
        server.become(no_stream_logprobs=True)
        with pytest.raises(LogprobsError):
            reader_over(server).begin(["?"], 3, GREEDY)
        assert server.streams[0].wait().sent <= len(WORDS.split())


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("quirk", ["counts_end_token", "adds_sampled_to_top"])
def test_what_servers_add_changes_nothing(server: FakeOpenAI, kind: str, quirk: str) -> None:
    expected = reader_over(server, kind).generate(["Velm", "Tarn"], SAMPLED)
    server.become(**{quirk: True})
    found = reader_over(server, kind).generate(["Velm", "Tarn"], SAMPLED)
    for mine, theirs in zip(chain(*found), chain(*expected), strict=True):
        assert mine.trace.tokens == theirs.trace.tokens
        assert mine.trace.logprobs == theirs.trace.logprobs
        assert mine.trace.entropy.lower == pytest.approx(theirs.trace.entropy.lower)


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize(
    ("status", "body"), [(429, b"{}"), (500, b"oops"), (200, b""), (200, b"{not json"), (200, b"{}")]
)
def test_failures_are_errors_not_answers(server: FakeOpenAI, kind: str, status: int, body: bytes) -> None:
    server.fail(status, body=body)
    with pytest.raises(Exception) as caught:  # noqa: PT011 (the classes are asserted below)
        reader_over(server, kind).generate(["Velm"], GREEDY)
    if status == 200:
        assert isinstance(caught.value, ServiceError)
    else:
        assert caught.value.status_code == status
    assert KEY not in str(caught.value)


def test_a_bound_keyword_does_not_switch_to_the_responses_api(server: FakeOpenAI) -> None:
    reader_from_model(chat(server).bind(tools=[{"type": "web_search"}])).generate(["Velm"], GREEDY)
    assert server.requests[0].path.endswith("/chat/completions")


def test_impossible_settings_are_refused(server: FakeOpenAI) -> None:
    with pytest.raises(ConfigurationError, match="max_concurrency"):
        reader_from_model(chat(server), max_concurrency=0)
    with pytest.raises(ConfigurationError, match="top_logprobs"):
        reader_from_model(chat(server), top_logprobs=-1)


def test_usage_is_counted(server: FakeOpenAI) -> None:
    reader = reader_over(server)
    [[whole]] = reader.generate(["Where does Velm lie?"], GREEDY)
    reader.finish(reader.begin(["Where does Velm lie?"], 1, GREEDY))
    assert reader.usage.requests == 2
    assert reader.usage.prompt_tokens == 2 * whole.prompt_tokens == 8
    assert reader.usage.completion_tokens == 2 * len(whole.trace)
    assert math.isfinite(whole.trace.logprobs[0])
