"""OpenAI and OpenAILike as readers, against a server that counts."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.llms import MockLLM
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike

from llama_index_surerag import LLMSettingWarning, reader_from_llm
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    LogprobsError,
    ServiceError,
    TransientServiceError,
)
from surerag.messages import Generation, Message, PartialGeneration, SamplingParams
from surerag.readers import BaseReader
from surerag.readers.hosted import OpenAIReader
from tests.llama_index.conftest import KEY, like
from tests.servers.fake_openai import FakeOpenAI, Quirks
from tests.servers.toy_model import Script, ToyModel

GREEDY = SamplingParams(max_tokens=12)
SAMPLED = SamplingParams(n=3, temperature=1.0, max_tokens=6, seed=4)


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(ToyModel(sharpness=2.0)) as running:
        yield running


def reader_over(server: FakeOpenAI, *, chat: bool = True, **settings: object) -> BaseReader:
    return reader_from_llm(like(server, chat=chat, **settings), vocabulary_size=ToyModel.vocabulary_size)


def reference(server: FakeOpenAI, *, chat: bool) -> OpenAIReader:
    return OpenAIReader(
        "toy",
        base_url=server.base_url,
        api_key=KEY,
        api="chat" if chat else "completions",
        vocabulary_size=ToyModel.vocabulary_size,
        top_logprobs=20 if chat else 5,
    )


@pytest.mark.parametrize("chat", [True, False])
async def test_every_verb_gives_what_the_core_reader_gives(server: FakeOpenAI, chat: bool) -> None:
    reader, core = reader_over(server, chat=chat), reference(server, chat=chat)
    prompts = ["Where does Velm lie?", "Who was born in Tarn?"]
    whole = core.generate(prompts, GREEDY)
    assert reader.generate(prompts, GREEDY) == whole
    assert await reader.agenerate(prompts, GREEDY) == whole
    assert reader.finish(reader.begin(prompts, 2, GREEDY)) == [row[0] for row in whole]
    assert await reader.afinish(await reader.abegin(prompts, 2, GREEDY)) == [row[0] for row in whole]
    assert _streamed(list(reader.stream(prompts[0], GREEDY))) == whole[0][0]
    assert _streamed([chunk async for chunk in reader.astream(prompts[0], GREEDY)]) == whole[0][0]


def _streamed(chunks: list) -> Generation:
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text
    return chunks[-1].generation


def test_traces_hold_the_sampled_token_and_an_interval(server: FakeOpenAI) -> None:
    [samples] = reader_over(server).generate(["Velm"], SAMPLED)
    model = server.model
    for sample in samples:
        context = "Velm"
        for token, logprob, low, high in zip(
            sample.trace.tokens,
            sample.trace.logprobs,
            sample.trace.entropy.lower,
            sample.trace.entropy.upper,
            strict=True,
        ):
            distribution = model.distribution(context)
            exact = -sum(math.exp(value) * value for value in distribution.values())
            assert logprob == pytest.approx(distribution[token])
            assert low - 1e-6 <= exact <= high + 1e-6
            context += token
        assert not sample.trace.entropy.exact
    assert len({sample.text for sample in samples}) > 1


def test_n_samples_are_one_request(server: FakeOpenAI) -> None:
    [samples] = reader_over(server).generate(["Velm"], SAMPLED)
    assert [request.body.get("n") for request in server.requests] == [3]
    assert len(samples) == 3


async def test_a_server_that_ignores_n_is_asked_again(server: FakeOpenAI) -> None:
    server.become(ignores_n=True)
    reader = reader_over(server)
    [samples] = reader.generate(["Velm"], SAMPLED)
    assert [request.body.get("n", 1) for request in server.requests] == [3, 2, 1]
    assert len({request.body["seed"] for request in server.requests}) == 3
    assert await reader.agenerate(["Velm"], SAMPLED) == [samples]


def test_greedy_samples_are_asked_for_once(server: FakeOpenAI) -> None:
    [samples] = reader_over(server).generate(["Velm"], replace(GREEDY, n=3))
    assert len(samples) == 3
    assert len(server.requests) == 1
    assert "n" not in server.requests[0].body
    assert "seed" not in server.requests[0].body


@pytest.mark.parametrize("chat", [True, False])
def test_a_gate_reads_n_tokens_and_hangs_up(chat: bool) -> None:
    with FakeOpenAI(Script(lambda _: "one two three four five six seven"), hold_after=3) as server:
        reader = reader_over(server, chat=chat)
        # Begin returns although the server sends no fourth token: it did not wait for one.
        [begun] = reader.begin(["?"], 3, GREEDY)
        assert begun.partial.trace.tokens == ("one", " two", " three")
        assert begun.partial.finish == "partial"
        assert not begun.done
        reader.cancel([begun])
        record = server.streams[0].wait()
        assert (record.sent, record.closed_early) == (3, True)
        with pytest.raises(ServiceError, match="cancelled before"):
            reader.finish([begun])
        reader.cancel([begun])


async def test_an_async_gate_reads_n_tokens_and_hangs_up() -> None:
    with FakeOpenAI(Script(lambda _: "one two three four five six seven"), hold_after=3) as server:
        reader = reader_over(server)
        [begun] = await reader.abegin(["?"], 3, GREEDY)
        await reader.acancel([begun])
        record = await asyncio.to_thread(server.streams[0].wait)
        assert (record.sent, record.closed_early) == (3, True)


def test_hanging_up_is_no_error_in_the_trace() -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    with FakeOpenAI(Script(lambda _: "one two three four five"), hold_after=2) as server:
        reader = reader_over(server, callback_manager=CallbackManager([debug]))
        [begun] = reader.begin(["?"], 2, GREEDY)
        reader.cancel([begun])
        # The debug handler keeps every payload; the connection must be closed all the same.
        assert server.streams[0].wait().closed_early
    [(_, end)] = debug.get_llm_inputs_outputs()
    assert "exception" not in {str(key) for key in end.payload}


def test_an_accepted_answer_is_one_request(server: FakeOpenAI) -> None:
    reader = reader_over(server)
    [begun] = reader.begin(["Velm"], 2, GREEDY)
    chunks = list(reader.finish_stream(begun))
    assert chunks[-1].generation == reader_over(server).generate(["Velm"], GREEDY)[0][0]
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text
    assert len(server.streams) == 1


def test_a_short_answer_is_done_at_once() -> None:
    with FakeOpenAI(Script(lambda _: "Velm")) as server:
        reader = reader_over(server)
        [begun] = reader.begin(["?"], 8, GREEDY)
        assert begun.done
        assert reader.finish([begun]) == [begun.partial]


async def test_what_began_in_a_loop_is_not_finished_outside(server: FakeOpenAI) -> None:
    reader = reader_over(server)
    [begun] = await reader.abegin(["Velm"], 1, GREEDY)
    with pytest.raises(ServiceError, match="event loop"):
        reader.finish([begun])
    await reader.acancel([begun])
    with pytest.raises(ConfigurationError, match="not begun"):
        reader.finish([PartialGeneration(begun.partial, done=False)])


@pytest.mark.parametrize("chat", [True, False])
def test_where_a_result_depends_on_it_a_method_wins_over_the_constructor_and_says_so(
    server: FakeOpenAI, chat: bool
) -> None:
    extra = {"seed": 99, "top_logprobs": 1, "presence_penalty": 0.5}
    llm = like(server, chat=chat, max_tokens=90, temperature=0.9, additional_kwargs=extra)
    before = llm.model_dump()
    sampling = SamplingParams(temperature=0.5, max_tokens=7, seed=3, stop=(" near",), top_p=0.8)
    reader = reader_from_llm(llm)
    with pytest.warns(LLMSettingWarning, match=r"temperature=0\.9, .* temperature=0\.5") as warned:
        reader.generate(["Velm", "Velm"], sampling)
    assert len(warned) == 2
    assert "seed=99" in str(warned[1].message)
    body = server.requests[0].body
    assert body["max_tokens"] == 7
    assert (body["temperature"], body["seed"], body["top_p"]) == (0.5, 3, 0.8)
    assert body["stop"] == [" near"]
    assert body["presence_penalty"] == 0.5
    assert llm.model_dump() == before


def test_the_completions_limit_is_not_the_window_minus_the_prompt(server: FakeOpenAI) -> None:
    class Words:
        def encode(self, text: str) -> list[int]:
            return [0] * len(text.split())

    llm = like(server, chat=False, tokenizer=Words())
    reader_from_llm(llm).generate(["Velm"], SamplingParams(max_tokens=5))
    assert server.requests[0].body["max_tokens"] == 5


def test_the_llms_own_prompting_applies(server: FakeOpenAI) -> None:
    reader_over(server, system_prompt="Be brief.").generate(["Velm?"], GREEDY)
    assert server.requests[-1].body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Velm?"},
    ]
    completing = reader_over(server, chat=False, completion_to_prompt=lambda text: f"<q>{text}</q>")
    completing.generate(["Velm?"], GREEDY)
    assert server.requests[-1].body["prompt"] == "<q>Velm?</q>"
    conversation = (Message("system", "Be brief."), Message("user", "Velm?"))
    completing = reader_over(
        server, chat=False, messages_to_prompt=lambda m: "|".join(str(x.content) for x in m)
    )
    completing.generate([conversation], GREEDY)
    assert server.requests[-1].body["prompt"] == "Be brief.|Velm?"


def test_stop_texts_are_in_neither_text_nor_trace() -> None:
    with FakeOpenAI(Script(lambda _: "Velm lies. Question: next")) as server:
        [[answer]] = reader_over(server).generate(["?"], SamplingParams(stop=(" Question",)))
    assert answer.text == "Velm lies."
    assert answer.trace.tokens == ("Velm", " lies.")


@pytest.mark.parametrize("counting", [True, False])
def test_the_end_token_is_not_counted(counting: bool) -> None:
    with FakeOpenAI(Script(lambda _: "in Velm"), Quirks(counts_end_token=counting)) as server:
        [[answer]] = reader_over(server).generate(["?"], GREEDY)
        [begun] = reader_over(server).begin(["?"], 8, GREEDY)
    assert answer.trace.tokens == begun.partial.trace.tokens == ("in", " Velm")
    assert answer.completion_tokens == 2


@pytest.mark.parametrize(
    "quirk", ["no_logprobs", "null_logprobs", "null_token_logprob", "positive_logprobs", "no_stream_logprobs"]
)
async def test_missing_logprobs_are_an_error_that_names_the_llm(server: FakeOpenAI, quirk: str) -> None:
    server.become(**{quirk: True})
    reader = reader_over(server)
    for attempt in (lambda: reader.begin(["Velm"], 2, GREEDY), lambda: list(reader.stream("Velm", GREEDY))):
        with pytest.raises(LogprobsError, match=r"OpenAILike.*logprobs=False"):
            attempt()
    with pytest.raises(LogprobsError, match="OpenAILike"):
        await reader.abegin(["Velm"], 2, GREEDY)
    if quirk != "no_stream_logprobs":
        with pytest.raises(LogprobsError, match="OpenAILike"):
            reader.generate(["Velm"], GREEDY)


@pytest.mark.parametrize(
    ("status", "kind"), [(429, TransientServiceError), (500, TransientServiceError), (401, ServiceError)]
)
async def test_a_failing_server_is_an_error_that_names_the_llm(
    server: FakeOpenAI, status: int, kind: type[ServiceError]
) -> None:
    reader = reader_over(server)
    server.fail(status, times=2)
    with pytest.raises(kind, match="OpenAILike failed"):
        reader.generate(["Velm"], GREEDY)
    with pytest.raises(kind, match="OpenAILike failed") as raised:
        await reader.abegin(["Velm"], 2, GREEDY)
    assert raised.value.retryable == (kind is TransientServiceError)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize("body", [b"", b"{not json", b'{"choices": []}', b'{"choices": null}', b"[]"])
def test_nonsense_from_a_server_is_an_error(server: FakeOpenAI, body: bytes) -> None:
    server.fail(200, body=body)
    with pytest.raises(ServiceError, match="OpenAILike"):
        reader_over(server).generate(["Velm"], GREEDY)


@pytest.mark.parametrize("n_tokens", [1, 8])
async def test_a_stream_that_breaks_off_is_no_answer(n_tokens: int) -> None:
    with FakeOpenAI(Script(lambda _: "one two three"), Quirks(breaks_stream_after=2)) as server:
        reader = reader_over(server)
        with pytest.raises(TransientServiceError, match="OpenAILike"):
            reader.finish(reader.begin(["?"], n_tokens, GREEDY))
        with pytest.raises(TransientServiceError, match="OpenAILike"):
            await reader.afinish(await reader.abegin(["?"], n_tokens, GREEDY))


def test_a_failed_prompt_closes_the_streams_of_the_others() -> None:
    with FakeOpenAI(Script(lambda _: "one two three"), hold_after=1) as server:
        reader = reader_from_llm(like(server), max_concurrency=1)
        fine = reader._source.open

        def second_fails(prompt: str, sampling: SamplingParams) -> object:
            if prompt == "b":
                server.fail(400)
            return fine(prompt, sampling)

        reader._source.open = second_fails
        with pytest.raises(ServiceError, match="OpenAILike failed"):
            reader.begin(["a", "b"], 1, GREEDY)
        assert server.streams[0].wait().closed_early


def test_one_reader_serves_two_event_loops_and_threads(server: FakeOpenAI) -> None:
    reader = reader_over(server)
    expected = reader.generate(["Velm"], GREEDY)
    for _ in range(2):
        assert asyncio.run(reader.agenerate(["Velm", "Velm"], GREEDY)) == expected * 2
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(asyncio.run(reader.agenerate(["Velm"], GREEDY))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_an_llm_that_was_used_in_another_loop_still_works(server: FakeOpenAI) -> None:
    llm = like(server)
    asyncio.run(llm.acomplete("Velm"))
    reader = reader_from_llm(llm)
    assert asyncio.run(reader.agenerate(["Velm"], GREEDY)) == reader.generate(["Velm"], GREEDY)


async def test_requests_overlap_up_to_the_limit(server: FakeOpenAI) -> None:
    reader = reader_from_llm(like(server), max_concurrency=3)
    server.pause()
    task = asyncio.create_task(reader.agenerate([f"prompt {i}" for i in range(7)], GREEDY))
    await asyncio.to_thread(server.wait_for, 3)
    assert server.peak == 3
    server.release()
    assert len(await task) == 7
    assert server.peak == 3


def test_two_paths_of_one_host_are_two_readers() -> None:
    llms = [OpenAILike(model="toy", api_key="k", api_base=f"http://u:p@host:81/{path}/v1") for path in "ab"]
    assert [reader_from_llm(llm).name for llm in llms] == ["toy@host:81/a/v1", "toy@host:81/b/v1"]


def test_no_key_in_any_text(server: FakeOpenAI) -> None:
    reader = reader_over(server)
    assert KEY not in repr(reader) + str(reader) + reader.name + repr(reader.capabilities)
    assert reader.name == reference(server, chat=True).name


def test_usage_counts_requests_and_tokens(server: FakeOpenAI) -> None:
    reader = reader_over(server)
    answers = reader.generate(["Velm lies", "on the Orun"], GREEDY)
    assert reader.usage.requests == 2
    assert reader.usage.prompt_tokens == 2 + 3
    assert reader.usage.completion_tokens == sum(row[0].completion_tokens for row in answers)


def test_capabilities_are_told_truly(server: FakeOpenAI) -> None:
    told = reader_over(server).capabilities
    assert (told.logprobs, told.entropy, told.begin, told.local) == (True, "bounded", "native", False)
    text = reader_from_llm(like(server), logprobs=False)
    assert (text.capabilities.logprobs, text.capabilities.entropy) == (False, None)
    assert text.generate(["Velm"], GREEDY)[0][0].trace is None
    assert server.requests[-1].body.get("logprobs") is None
    with pytest.raises(CapabilityError, match="of MockLLM, surerag knows no log-probabilities"):
        reader_from_llm(MockLLM(), logprobs=True)
    with pytest.raises(CapabilityError, match="top_k"):
        reader_over(server).generate(["Velm"], replace(SAMPLED, top_k=3))


def test_the_openai_class_itself(server: FakeOpenAI) -> None:
    llm = OpenAI(model="gpt-4o-mini", api_base=server.base_url, api_key=KEY, max_retries=0)
    reader = reader_from_llm(llm)
    assert reader.capabilities.entropy == "bounded"
    assert reader.generate(["Velm"], GREEDY)[0][0].trace.entropy is not None
    assert server.requests[0].body["top_logprobs"] == 20


def test_a_tokenizer_tells_size_and_lengths(server: FakeOpenAI) -> None:
    class Words:
        vocab_size = 20

        def encode(self, text: str) -> list[str]:
            return text.split()

    narrow = reader_from_llm(like(server, chat=False), tokenizer=Words())
    wide = reader_from_llm(like(server, chat=False))
    [begun] = narrow.begin(["Velm lies on"], 1, GREEDY)
    assert begun.partial.prompt_tokens == 3
    upper = wide.begin(["Velm lies on"], 1, GREEDY)[0].partial.trace.entropy.upper
    assert begun.partial.trace.entropy.upper[0] < upper[0]
    with pytest.raises(ConfigurationError, match="does not tell its size"):
        reader_from_llm(like(server), tokenizer=object())
