"""Ollama, Claude, Gemini and llama.cpp through LlamaIndex's own classes and their makers' own clients."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM
from pydantic import Field, PrivateAttr

from llama_index_surerag import LazyRetrievalQueryEngine, LLMSettingWarning, reader_from_llm
from surerag.errors import LogprobsError, LogprobsRefusedError, RefusedError, ThinkingBudgetError
from surerag.messages import Generation, SamplingParams
from surerag.readers import BaseReader
from surerag.readers.conformance import check_reader
from surerag.readers.refusals import LeftOutWarning
from tests.llama_index import corpus
from tests.servers.anthropic import FakeAnthropic, no_temperature, one_of_two
from tests.servers.gemini import FakeGemini
from tests.servers.ollama import FakeOllama
from tests.servers.toy_model import Script, ToyModel, split

TEXT = SamplingParams(max_tokens=20, trace="none")
TRACED = SamplingParams(max_tokens=12)
SAMPLED = SamplingParams(n=3, temperature=1.0, max_tokens=6, seed=4, trace="logprobs")
THOUGHT = "Perhaps Tarn? No."


def ollama(server: FakeOllama, **settings: Any) -> Any:
    module = pytest.importorskip("llama_index.llms.ollama")
    return module.Ollama(model="toy", base_url=server.url, context_window=4096, **settings)


def claude(server: FakeAnthropic, **settings: Any) -> Any:
    module = pytest.importorskip("llama_index.llms.anthropic")
    given = {"model": "claude-sonnet-4-5", "base_url": server.url, "api_key": "x", "max_retries": 0}
    return module.Anthropic(**{**given, **settings})


def gemini(server: FakeGemini, **settings: Any) -> Any:
    module = pytest.importorskip("llama_index.llms.google_genai")
    given = {"model": "gemini-2.5-flash", "api_key": "x", "max_tokens": 64, "context_window": 4096}
    return module.GoogleGenAI(
        http_options={"base_url": server.url}, max_retries=0, file_mode="inline", **{**given, **settings}
    )


class LlamaCPP(CustomLLM):
    """Stands in for LlamaIndex's class, whose library is built for each machine: the same calls."""

    temperature: float = 0.75
    generate_kwargs: dict[str, Any] = Field(default_factory=dict)
    logits_all: bool = True
    _model: Any = PrivateAttr(default_factory=ToyModel)
    _asked: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="toy.gguf", num_output=64)

    def _generate(self, prompt: str, asked: dict[str, Any]) -> dict[str, Any]:
        self._asked.append(asked)
        if asked.get("logprobs") is not None and not self.logits_all:
            raise ValueError("logprobs is not supported for models created with logits_all=False")
        said = self._model.say(prompt, asked["temperature"], asked.get("seed", 0), asked["max_tokens"])
        choice: dict[str, Any] = {
            "text": "".join(token.text for token in said.tokens),
            "finish_reason": said.finish,
            "logprobs": None,
        }
        if asked.get("logprobs"):
            choice["logprobs"] = {
                "tokens": [token.text for token in said.tokens],
                "token_logprobs": [token.logprob for token in said.tokens],
                "top_logprobs": [
                    {token.text: token.logprob} | token.top(asked["logprobs"]) for token in said.tokens
                ],
            }
        return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": len(said.tokens)}}

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.generate_kwargs.update({"stream": False})
        raw = self._generate(prompt, self.generate_kwargs)
        return CompletionResponse(text=raw["choices"][0]["text"], raw=raw)

    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> Iterator[CompletionResponse]:
        raw = self._generate(prompt, self.generate_kwargs)
        text = raw["choices"][0]["text"]
        return iter([CompletionResponse(text=text, delta=text, raw=raw)])


LlamaCPP.__module__ = "llama_index.llms.llama_cpp.base"


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
    return [*found, chunks[-1].generation, *asyncio.run(ways()), *asyncio.run(ways())]


def expected() -> tuple[str, tuple[str, ...], tuple[float, ...]]:
    """What the toy model says, and how sure it is."""
    tokens = ToyModel().say("q", 0.0, 0, 12).tokens
    text = "".join(token.text for token in tokens).strip()
    return text, tuple(token.text for token in tokens), tuple(token.logprob for token in tokens)


def hold(reader: BaseReader) -> None:
    """Check that answers carry the model's own numbers, whichever way they are asked for."""
    text, tokens, logprobs = expected()
    for answer in every_way(reader, TRACED):
        assert answer.text == text
        assert answer.trace.tokens == tokens
        assert answer.trace.logprobs == pytest.approx(logprobs)
        assert answer.trace.entropy is not None
        assert not answer.trace.entropy.exact


def test_ollama_gives_log_probabilities_in_every_way() -> None:
    with FakeOllama() as server:
        reader = reader_from_llm(ollama(server), vocabulary_size=20)
        hold(reader)
        assert server.bodies[0]["options"] == {"num_ctx": 4096, "temperature": 0.0, "num_predict": 12}
        assert (server.bodies[0]["logprobs"], server.bodies[0]["top_logprobs"]) == (True, 20)
        reader.generate(["q"], TEXT)
        assert not {"logprobs", "top_logprobs"} & {name for name, value in server.bodies[-1].items() if value}


def test_ollama_samples_from_the_whole_distribution() -> None:
    with FakeOllama() as server:
        [samples] = reader_from_llm(ollama(server), vocabulary_size=20).generate(["q"], SAMPLED)
        asked = [body["options"] for body in server.bodies]
    assert len(samples) == 3
    assert all(options["top_k"] == 0 and options["top_p"] == 1.0 for options in asked)
    assert len({options["seed"] for options in asked}) == 3


def test_ollama_keeps_what_its_user_built_in() -> None:
    with FakeOllama() as server:
        llm = ollama(server, temperature=0.7, additional_kwargs={"num_predict": 5, "repeat_penalty": 1.0})
        reader = reader_from_llm(llm)
        [[answer]] = reader.generate(["q"], TEXT)
        assert server.bodies[-1]["options"] == {
            "num_ctx": 4096, "temperature": 0.7, "num_predict": 5, "repeat_penalty": 1.0
        }  # fmt: skip
        assert answer.finish == "length"
        with pytest.warns(LLMSettingWarning, match=r"temperature=0\.7"):
            reader.generate(["q"], TRACED)
        assert llm.additional_kwargs == {"num_predict": 5, "repeat_penalty": 1.0}


@pytest.mark.parametrize("think", [True, None])
def test_ollamas_thoughts_are_no_part_of_an_answer(think: bool | None) -> None:
    with FakeOllama(thought=THOUGHT) as server:
        reader = reader_from_llm(ollama(server, thinking=think), vocabulary_size=20)
        text, tokens, _ = expected()
        for sampling in (TRACED, TEXT):
            for answer in every_way(reader, sampling):
                assert answer.text == text
                assert answer.thinking_tokens > 0
                assert answer.trace is None or answer.trace.tokens == tokens
        assert reader.capabilities.thinking == "apart"


def test_an_older_ollama_that_says_nothing_is_an_error_that_says_what_to_do() -> None:
    with FakeOllama(logprobs=False) as server:
        reader = reader_from_llm(ollama(server))
        with pytest.raises(LogprobsError, match=r"[Uu]pdate Ollama.*OpenAILike\(api_base="):
            reader.generate(["q"], TRACED)


def test_ollama_passes_what_every_reader_passes() -> None:
    with FakeOllama() as server:
        report = check_reader(reader_from_llm(ollama(server), vocabulary_size=20))
    assert report.passed, str(report)


def test_a_gate_over_ollama_decides() -> None:
    def sure(word: str) -> float:
        return -3.0 if word.strip() == "perhaps" else -0.01

    with FakeOllama(Script(corpus.answer, logprob=sure), thought=THOUGHT) as server:
        engine = LazyRetrievalQueryEngine.from_args(
            corpus.index(),
            ollama(server),
            top_n=2,
            n_summaries=1,
            gate_tokens=4,
            max_tokens=16,
            threshold=0.3,
        )
        known, unknown = engine.query(corpus.KNOWN), engine.query(corpus.UNKNOWN)
    assert [known.metadata["retrieve"], unknown.metadata["retrieve"]] == [False, True]
    assert unknown.response.startswith("In the lake of Mir")


async def test_what_claude_had_in_its_cache_is_counted() -> None:
    with FakeAnthropic(Script(lambda _: "in Velm")) as server:
        server.cached = 3
        reader = reader_from_llm(claude(server))
        [[answer]] = reader.generate([THOUGHT], TEXT)
        assert (answer.prompt_tokens, answer.cached_tokens) == (len(split(THOUGHT)), 3)
        [[answer]] = await reader.agenerate([THOUGHT], TEXT)
        assert reader.usage.cached_tokens == 6


def test_claude_answers_in_every_way() -> None:
    with FakeAnthropic(Script(lambda _: "in Velm"), one_of_two) as server:
        reader = reader_from_llm(claude(server))
        assert [answer.text for answer in every_way(reader, TEXT)] == ["in Velm"] * 9
        assert {body["max_tokens"] for body in server.bodies} == {512}
        assert len(server.answered) == len(server.bodies)
        [samples] = reader.generate(["q"], SamplingParams(n=3, temperature=0.8, trace="none"))
        assert len(samples) == 3
        assert [body["temperature"] for body in server.bodies[-3:]] == [0.8] * 3
        assert not any("top_p" in body for body in server.bodies)


async def test_a_temperature_that_claude_no_longer_takes_is_left_out() -> None:
    with FakeAnthropic(Script(lambda _: "in Velm"), no_temperature) as server:
        reader = reader_from_llm(claude(server, temperature=0.4))
        with pytest.warns(LeftOutWarning, match="temperature"):
            assert reader.generate(["q"], TEXT)[0][0].text == "in Velm"
        assert len(server.bodies) == 2
        assert (await reader.agenerate(["q"], TEXT))[0][0].text == "in Velm"
        assert list(reader.stream("q", TEXT))[-1].generation.text == "in Velm"
        assert len(server.bodies) == 4
        with pytest.raises(RefusedError, match=r"temperature.*deprecated"):
            reader_from_llm(claude(server)).generate(
                ["q"], SamplingParams(n=2, temperature=0.5, trace="none")
            )


def test_claudes_thoughts_and_their_budget_are_its_own() -> None:
    with FakeAnthropic(Script(lambda _: "in Velm")) as server:
        llm = claude(server, max_tokens=2000, thinking_dict={"type": "enabled", "budget_tokens": 1024})
        reader = reader_from_llm(llm)
        with warnings.catch_warnings():
            warnings.simplefilter("error", LeftOutWarning)
            assert [answer.text for answer in every_way(reader, TEXT)] == ["in Velm"] * 9
        assert reader.capabilities.thinking == "apart"
        assert len(server.answered) == len(server.bodies)
        with pytest.raises(RefusedError, match="thinking is enabled"):
            reader.generate(["q"], SamplingParams(n=2, temperature=0.5, trace="none"))


def test_claude_has_no_log_probabilities_and_says_so() -> None:
    with FakeAnthropic() as server:
        assert not reader_from_llm(claude(server)).capabilities.logprobs


def test_gemini_gives_log_probabilities() -> None:
    with FakeGemini() as server:
        reader = reader_from_llm(gemini(server), vocabulary_size=20)
        text, tokens, logprobs = expected()
        [[answer]] = reader.generate(["q"], TRACED)
        assert answer.trace.tokens[: len(tokens)] == tokens
        assert answer.trace.logprobs[: len(tokens)] == pytest.approx(logprobs)
        assert answer.text.startswith(text)
        asked = {"temperature": 0.0, "responseLogprobs": True, "logprobs": 20, "maxOutputTokens": 64}
        assert server.configs[-1] == asked
        reader.generate(["q"], TEXT)
        assert server.configs[-1] == {"temperature": 0.0, "maxOutputTokens": 64}
        [samples] = reader.generate(["q"], SAMPLED)
        assert len({config["seed"] for config in server.configs[-3:]}) == len(samples) == 3


def test_a_gemini_without_log_probabilities_says_so() -> None:
    with FakeGemini(logprobs=False) as server:
        reader = reader_from_llm(gemini(server))
        with pytest.raises(LogprobsRefusedError, match=r"Logprobs is not supported.*Gemini model that gives"):
            reader.generate(["q"], TRACED)
        assert reader.generate(["q"], TEXT)[0][0].text


def test_geminis_thoughts_are_counted_apart() -> None:
    with FakeGemini(Script(lambda _: "in Velm"), thought=THOUGHT) as server:
        [[answer]] = reader_from_llm(gemini(server)).generate(["q"], TEXT)
    assert (answer.text, answer.completion_tokens, answer.thinking_tokens) == ("in Velm", 2, 3)


def test_llama_cpp_in_this_process_gives_log_probabilities() -> None:
    llm = LlamaCPP(generate_kwargs={"temperature": 0.75, "max_tokens": 64, "repeat_penalty": 1.1})
    reader = reader_from_llm(llm, vocabulary_size=20)
    hold(reader)
    kept = {"repeat_penalty": 1.1, "stream": False}
    assert llm._asked[0] == {**kept, "temperature": 0.0, "max_tokens": 12, "logprobs": 20}
    reader.generate(["q"], SAMPLED)
    uncut = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    asked = {**kept, **uncut, "temperature": 1.0, "max_tokens": 6, "seed": 0, "logprobs": 1}
    assert llm._asked[-1] | {"seed": 0} == asked
    assert llm.generate_kwargs == {"temperature": 0.75, "max_tokens": 64, "repeat_penalty": 1.1}


def test_llama_cpp_without_all_logits_says_how_to_build_it() -> None:
    with pytest.raises(LogprobsRefusedError, match=r'model_kwargs=\{"logits_all": True\}'):
        reader_from_llm(LlamaCPP(logits_all=False)).generate(["q"], TRACED)


def test_llama_cpp_passes_what_every_reader_passes() -> None:
    report = check_reader(reader_from_llm(LlamaCPP(), vocabulary_size=20))
    assert report.passed, str(report)


def test_a_limit_of_the_users_own_that_thoughts_use_up_is_an_error() -> None:
    with FakeOllama(thought="word " * 20) as server:
        llm = ollama(server, thinking=True, additional_kwargs={"num_predict": 9})
        with pytest.raises(ThinkingBudgetError, match="still thinking"):
            reader_from_llm(llm).generate(["q"], TEXT)
