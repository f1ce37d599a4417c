"""An LLM class of a user's own, told about in a page, serves every part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.llms import CustomLLM, MockLLM
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, PrivateAttr

from llama_index_surerag import (
    LazyRetrievalQueryEngine,
    LLMAnswer,
    LLMDialect,
    LLMSettingWarning,
    LLMToken,
    reader_from_llm,
    register_llm,
)
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    LogprobsError,
    LogprobsRefusedError,
    RefusedError,
)
from surerag.messages import SamplingParams
from surerag.readers.conformance import check_reader
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, UNKNOWN
from tests.servers.toy_model import Script, Token, ToyModel, split


class House(CustomLLM):
    """A class that surerag cannot know: settings go in a ``tuning`` of each call, tokens come as steps."""

    temperature: float = 0.3
    refuses: tuple[str, ...] = ()
    forgets: bool = False
    _model: Any = PrivateAttr(default_factory=ToyModel)
    _asked: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, model_name="house-1")

    def _tokens(self, messages: Sequence[ChatMessage], tuning: dict[str, Any]) -> tuple[str, list[Token]]:
        self._asked.append(tuning)
        refused = [name for name in self.refuses if name in tuning]
        if refused:
            raise ValueError(f"parameter {refused[0]} is not supported by house-1")
        prompt = "\n".join(message.content or "" for message in messages)
        said = self._model.say(
            prompt, tuning.get("temperature", 0.3), tuning.get("seed", 0), tuning.get("length", 32)
        )
        return "".join(token.text for token in said.tokens), said.tokens

    def _steps(self, tokens: list[Token], tuning: dict[str, Any]) -> list[dict[str, Any]] | None:
        if self.forgets or not tuning.get("logprobs"):
            return None
        top = tuning.get("top_logprobs", 0)
        return [
            {
                "piece": token.text,
                "logp": token.logprob,
                "top": dict(sorted(token.everything.items(), key=lambda item: -item[1])[:top]),
            }
            for token in tokens
        ]

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        tuning = kwargs.get("tuning", {})
        text, tokens = self._tokens(messages, tuning)
        return ChatResponse(
            message=ChatMessage(role=MessageRole.ASSISTANT, content=text),
            raw={"steps": self._steps(tokens, tuning)},
        )

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Iterator[ChatResponse]:
        tuning = kwargs.get("tuning", {})

        def pieces() -> Iterator[ChatResponse]:
            for token in self._tokens(messages, tuning)[1]:
                yield ChatResponse(
                    message=ChatMessage(role=MessageRole.ASSISTANT, content=token.text),
                    delta=token.text,
                    raw={"steps": self._steps([token], tuning)},
                )

        return pieces()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        raise NotImplementedError

    stream_complete = complete  # type: ignore[assignment]  # it is a chat model


class HouseDialect(LLMDialect):
    """What a user writes."""

    takes = frozenset({"temperature", "seed", "max_tokens", "logprobs", "top_logprobs"})
    names = {"max_tokens": "length"}  # noqa: RUF012  # as users write it
    top_logprobs = 5
    streams = True

    def options(self, llm: Any, parameters: Any) -> dict[str, Any]:
        return {"tuning": dict(parameters)}

    def read(self, response: Any) -> LLMAnswer:
        return LLMAnswer(response.message.content, self._tokens(response))

    def piece(self, response: Any) -> LLMAnswer:
        return LLMAnswer(response.delta, self._tokens(response))

    def _tokens(self, response: Any) -> tuple[LLMToken, ...] | None:
        steps = response.raw["steps"]
        if steps is None:
            return None
        return tuple(LLMToken(step["piece"], step["logp"], tuple(step["top"].items())) for step in steps)


class WholeHouse(House):
    """Answers in one piece."""


class WholeHouseDialect(HouseDialect):
    streams = False


register_llm(House, HouseDialect())
register_llm(WholeHouse, WholeHouseDialect())


@pytest.mark.parametrize("kind", [House, WholeHouse])
def test_a_registered_class_passes_what_every_reader_passes(kind: type[House]) -> None:
    report = check_reader(reader_from_llm(kind(), vocabulary_size=ToyModel.vocabulary_size))
    assert report.passed, str(report)


@pytest.mark.parametrize("kind", [House, WholeHouse])
async def test_its_traces_hold_the_models_own_numbers(kind: type[House]) -> None:
    reader = reader_from_llm(kind(), vocabulary_size=ToyModel.vocabulary_size)
    sampling = SamplingParams(n=3, temperature=1.0, max_tokens=5, seed=2)
    [samples] = reader.generate(["Velm"], sampling)
    assert await reader.agenerate(["Velm"], sampling) == [samples]
    assert len({sample.text for sample in samples}) > 1
    for sample in samples:
        context = "Velm"
        steps = zip(sample.trace.tokens, sample.trace.logprobs, sample.trace.entropy.upper, strict=True)
        for token, logprob, upper in steps:
            distribution = ToyModel().distribution(context)
            assert logprob == pytest.approx(distribution[token])
            assert upper >= -sum(math.exp(value) * value for value in distribution.values()) - 1e-6
            context += token


def test_it_is_asked_for_what_is_used_and_in_its_own_words() -> None:
    llm = House()
    reader = reader_from_llm(llm)
    reader.generate(["Velm"], SamplingParams(max_tokens=4, trace="none"))
    reader.generate(["Velm"], SamplingParams(max_tokens=4, trace="logprobs"))
    reader.generate(["Velm"], SamplingParams(max_tokens=4))
    plain = {"temperature": 0.0, "length": 4}
    assert llm._asked == [
        plain,
        {**plain, "logprobs": True},
        {**plain, "logprobs": True, "top_logprobs": 5},
    ]


def test_its_users_temperature_holds_for_text_and_gives_way_for_a_gate() -> None:
    llm = House(temperature=0.8)
    reader = reader_from_llm(llm)
    reader.generate(["Velm"], SamplingParams(trace="none"))
    with pytest.warns(LLMSettingWarning, match=r"House\('house-1'\) was built with temperature=0\.8"):
        reader.generate(["Velm"], SamplingParams())
    assert [asked["temperature"] for asked in llm._asked] == [0.8, 0.0]


def test_what_it_refuses_is_left_out() -> None:
    llm = House(refuses=("seed", "length"))
    reader = reader_from_llm(llm)
    reader.generate(["Velm"], SamplingParams(temperature=1.0, trace="none"))
    reader.generate(["Tarn"], SamplingParams(temperature=1.0, trace="none"))
    assert [list(asked) for asked in llm._asked[2:]] == [["temperature"], ["temperature"]]


def test_log_probabilities_that_it_refuses_or_forgets_are_errors() -> None:
    with pytest.raises(LogprobsRefusedError, match="house-1"):
        reader_from_llm(House(refuses=("logprobs",))).generate(["Velm"], SamplingParams())
    with pytest.raises(LogprobsError, match="House"):
        reader_from_llm(House(forgets=True)).generate(["Velm"], SamplingParams())
    with pytest.raises(RefusedError, match="refuses temperature"):
        reader_from_llm(House(refuses=("temperature",))).generate(
            ["Velm"], SamplingParams(n=2, temperature=0.5)
        )


def sure(word: str) -> float:
    return -3.0 if word.strip() == "perhaps" else -0.01


@pytest.mark.parametrize("kind", [House, WholeHouse])
async def test_its_gate_decides_in_the_lazy_engine(kind: type[House]) -> None:
    llm = kind()
    llm._model = Script(corpus.answer, logprob=sure)
    engine = LazyRetrievalQueryEngine.from_args(
        corpus.index(), llm, top_n=2, n_summaries=1, gate_tokens=4, max_tokens=8, threshold=0.3
    )
    for question, retrieves in ((KNOWN, False), (UNKNOWN, True)):
        asked = len(llm._asked)
        response = engine.query(question)
        assert response.metadata["retrieve"] is retrieves
        assert not response.metadata["exact"]
        assert len(llm._asked) == asked + 1 + retrieves
        later = await engine.aquery(question)
        assert (later.response, later.metadata["retrieve"]) == (response.response, retrieves)
    assert response.response.startswith("In the lake of Mir")


def test_a_stop_text_ends_an_answer_of_a_class_that_knows_none() -> None:
    llm = House()
    llm._model = Script(lambda _: "Velm lies. Question: next")
    reader = reader_from_llm(llm)
    sampling = SamplingParams(stop=(" Question",))
    [[answer]] = reader.generate(["?"], sampling)
    chunks = list(reader.stream("?", sampling))
    assert (
        answer.text == chunks[-1].generation.text == "".join(chunk.text for chunk in chunks) == "Velm lies."
    )
    assert answer.trace.tokens == chunks[-1].generation.trace.tokens == ("Velm", " lies.")


def test_text_alone_may_be_registered_too() -> None:
    class Warm(MockLLM):
        pass

    class WarmDialect(LLMDialect):
        def read(self, response: Any) -> LLMAnswer:
            return LLMAnswer(f"{response.text}!", prompt_tokens=len(split(response.text)))

    register_llm(Warm, WarmDialect())
    [[answer]] = reader_from_llm(Warm()).generate(["Where is Velm?"], SamplingParams())
    assert (answer.text, answer.prompt_tokens, answer.trace) == ("Where is Velm?!", 3, None)
    with pytest.raises(CapabilityError, match="register_llm"):
        reader_from_llm(Warm(), logprobs=True)


def test_the_nearest_class_counts() -> None:
    class Mine(OpenAILike):
        pass

    class Yours(OpenAILike):
        pass

    register_llm(Yours, LLMDialect())
    settings = {"model": "toy", "api_base": "http://localhost:1/v1", "api_key": "x"}
    assert reader_from_llm(Mine(**settings)).capabilities.logprobs
    assert not reader_from_llm(Yours(**settings)).capabilities.logprobs


def test_what_is_registered_has_to_fit() -> None:
    with pytest.raises(ConfigurationError, match="expected a class of LlamaIndex LLMs"):
        register_llm(MockLLM(), LLMDialect())  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ConfigurationError, match=r"MyDialect\(\)"):
        register_llm(MockLLM, LLMDialect)  # type: ignore[arg-type]  # what is tested


def test_a_structured_llm_names_what_to_pass_instead() -> None:
    class City(BaseModel):
        name: str

    with pytest.raises(ConfigurationError, match=r"JSON of City.*Pass the MockLLM .*llm\.llm"):
        reader_from_llm(MockLLM().as_structured_llm(City))


def test_several_answers_of_an_unknown_class_name_both_temperatures() -> None:
    class Cold(MockLLM):
        temperature: float = 0.0

    reader = reader_from_llm(Cold())
    with pytest.warns(LLMSettingWarning, match=r"temperature=1\.0, .* temperature=0\.0.*call_options"):
        reader.generate(["?"], SamplingParams(n=2, temperature=1.0, trace="none"))
