"""The services that people use, behind LlamaIndex's classes: what is sent to them, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.llms import LLM
from llama_index.llms.openai import OpenAI, OpenAIResponses
from llama_index.llms.openai_like import OpenAILike

from llama_index_surerag import LazyRetrievalQueryEngine, reader_from_llm
from surerag.errors import LogprobsRefusedError, RefusedError, ThinkingBudgetError
from surerag.messages import Generation, SamplingParams
from surerag.readers import BaseReader
from surerag.readers.hosted import OpenAIReader
from tests.llama_index import corpus
from tests.llama_index.conftest import KEY
from tests.servers.fake_openai import FakeOpenAI, Json, Wire
from tests.servers.providers import PERSONALITIES, THOUGHT, ProviderServer
from tests.servers.toy_model import Script, ToyModel

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
SILENT = [name for name in PERSONALITIES if name not in LISTING]

pytestmark = [
    pytest.mark.filterwarnings("ignore::surerag.readers.refusals.LeftOutWarning"),
    pytest.mark.filterwarnings("ignore::llama_index_surerag.LLMSettingWarning"),
]


class Service(ProviderServer):
    """Takes a single user turn as a text, too, as OpenAI's Responses API does and LlamaIndex sends it."""

    def fault_for(self, body: Json) -> Callable[[Wire], None] | None:
        if isinstance(body.get("input"), str):
            body["input"] = [{"role": "user", "content": body["input"]}]
        return super().fault_for(body)


def provider(name: str, model: ToyModel | Script | None = None, *, thought: str = THOUGHT) -> Service:
    return Service(PERSONALITIES[name], model, thought)


def scripted(name: str) -> Service:
    return provider(name, Script(lambda _: ANSWER))


def llm_of(server: ProviderServer, **settings: Any) -> LLM:
    """Return the LlamaIndex class that people use for a service."""
    name = server.personality.name
    given = {
        "model": server.personality.model,
        "api_base": server.url,
        "api_key": KEY,
        "max_retries": 0,
        **settings,
    }
    if name.startswith("responses"):
        return OpenAIResponses(**given)
    if name in ("gpt-4o", "gpt-5", "gpt-5.1", "o-series"):
        effort = {"reasoning_effort": "none"} if name == "gpt-5.1" else {}
        return OpenAI(**{**effort, **given})
    return OpenAILike(is_chat_model=True, **given)


def reader_of(server: ProviderServer, **settings: Any) -> BaseReader:
    return reader_from_llm(llm_of(server, **settings), vocabulary_size=ToyModel.vocabulary_size)


def every_way(reader: BaseReader, sampling: SamplingParams) -> list[Generation]:
    """One answer, asked for in every way that there is."""

    async def ways() -> list[Generation]:
        found = (await reader.agenerate(["q"], sampling))[0]
        found += await reader.afinish(await reader.abegin(["q"], 2, sampling))
        chunks = [chunk async for chunk in reader.astream("q", sampling)]
        assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text
        return [*found, chunks[-1].generation]

    found = reader.generate(["q"], sampling)[0]
    found += reader.finish(reader.begin(["q"], 2, sampling))
    chunks = list(reader.stream("q", sampling))
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
        if name != "gpt-5.1":
            assert reader.capabilities.thinking == ("apart" if name in THINKING else "none")
        asked = {field for request in server.requests for field in request.body}
        assert not asked & {"logprobs", "top_logprobs", "seed", "n", "stop"}


@pytest.mark.parametrize("name", LISTING)
def test_entropies_are_those_of_the_answer_alone(name: str) -> None:
    with FakeOpenAI() as plain:
        core = OpenAIReader("toy", base_url=plain.base_url, vocabulary_size=ToyModel.vocabulary_size)
        sampling = SamplingParams(max_tokens=12)
        expected = core.generate(["q"], sampling)[0][0]
    with provider(name) as server:
        reader = reader_of(server)
        if name == "vllm-r1-raw":
            reader.generate(["q"], sampling)
        for answer in every_way(reader, sampling):
            assert answer.text == expected.text
            assert answer.trace == expected.trace
            assert answer.completion_tokens == expected.completion_tokens
        [begun] = reader.begin(["q"], 3, sampling)
        reader.cancel([begun])
        assert begun.partial.trace.tokens == expected.trace.tokens[:3]


@pytest.mark.parametrize("name", SILENT)
def test_where_there_are_no_log_probabilities_the_error_says_why(name: str) -> None:
    with scripted(name) as server:
        for attempt in (
            lambda: reader_of(server).generate(["q"], TRACED),
            lambda: reader_of(server).begin(["q"], 2, TRACED),
        ):
            with pytest.raises(LogprobsRefusedError, match=r"logprobs.*HuggingFaceLLM"):
                attempt()
        assert len(server.requests) <= 12


@pytest.mark.parametrize("name", LISTING)
def test_several_answers_are_several_however_they_have_to_be_asked_for(name: str) -> None:
    with provider(name) as server:
        sampling = SamplingParams(n=3, temperature=1.0, max_tokens=12, trace="logprobs")
        reader = reader_of(server)
        [samples] = reader.generate(["q"], sampling)
    assert len(samples) == 3
    assert all(sample.trace is not None and sample.trace.entropy is None for sample in samples)


@pytest.mark.parametrize("name", ["gpt-5", "o-series", "openrouter"])
def test_a_temperature_that_sampling_depends_on_is_an_error(name: str) -> None:
    with scripted(name) as server, pytest.raises(RefusedError, match="temperature"):
        reader_of(server).generate(["q"], SamplingParams(n=2, temperature=0.5, max_tokens=20, trace="none"))


@pytest.mark.parametrize("name", ["gpt-5", "o-series", "vllm-qwen3", "vllm-qwen3-raw", "cerebras"])
def test_a_methods_limit_is_for_the_answer_and_not_for_the_thoughts(name: str) -> None:
    with scripted(name) as server:
        reader = reader_of(server)
        short = SamplingParams(max_tokens=8, trace="none")
        for answer in every_way(reader, short):
            assert answer.text == ANSWER
        bodies = [request.body for request in server.requests]
        limits = {"max_tokens", "max_completion_tokens"}
        # Asked with a limit until the thoughts were seen to use it up.
        assert not limits & bodies[-1].keys()


@pytest.mark.parametrize("name", ["gpt-5", "vllm-qwen3", "vllm-qwen3-raw", "responses-gpt-5"])
def test_a_users_own_limit_that_the_thoughts_use_up_is_an_error_that_says_so(name: str) -> None:
    limit = {"max_output_tokens": 16} if name.startswith("responses") else {"max_tokens": 7}
    with provider(name, Script(lambda _: ANSWER), thought="word " * 30) as server:
        reader = reader_of(server, **limit)
        with pytest.raises(ThinkingBudgetError, match="still thinking"):
            reader.generate(["q"], TEXT)


@pytest.mark.parametrize("name", ["gpt-4o", "vllm-qwen3", "vllm-qwen3-raw", "gpt-oss-raw", "responses"])
def test_a_gate_decides_alike_whether_a_model_thinks_or_not(name: str) -> None:
    def sure(word: str) -> float:
        return -3.0 if word.strip() == "perhaps" else -0.01

    with provider(name, Script(corpus.answer, logprob=sure)) as server:
        engine = LazyRetrievalQueryEngine.from_args(
            corpus.index(), llm_of(server), top_n=2, n_summaries=1, gate_tokens=4, max_tokens=8, threshold=0.3
        )
        known, unknown = engine.query(corpus.KNOWN), engine.query(corpus.UNKNOWN)
    assert [known.metadata["retrieve"], unknown.metadata["retrieve"]] == [False, True]
    assert known.response.startswith("She was born in Velm")
    assert unknown.response.startswith("In the lake of Mir")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("groq", "Groq"),
        ("deepseek", "DeepSeek"),
        ("together", "TogetherLLM"),
        ("openrouter", "OpenRouter"),
        ("fireworks", "Fireworks"),
    ],
)
def test_classes_of_services_in_openais_form_are_known_as_such(module: str, name: str) -> None:
    kind = getattr(pytest.importorskip(f"llama_index.llms.{module}"), name)
    with scripted("vllm-qwen3") as server:
        llm = kind(model="deepseek-chat", api_key=KEY, api_base=server.url, max_retries=0)
        reader = reader_from_llm(llm)
        [begun] = reader.begin(["q"], 2, TRACED)
        reader.cancel([begun])
    assert reader.capabilities.logprobs
    assert begun.partial.trace.tokens == ("Velm", " lies")
