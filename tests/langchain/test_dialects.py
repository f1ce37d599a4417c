"""Dialects of users' own, and models wrapped in whatever LangChain has for it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import pytest
from langchain.chat_models import init_chat_model
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, Generation
from langchain_core.runnables import ConfigurableField, RunnableLambda
from pydantic import BaseModel

from langchain_surerag import Dialect, LazyRetrievalChain, reader_from_model, register_dialect
from langchain_surerag.dialects import registry
from surerag.errors import CapabilityError, ConfigurationError
from surerag.messages import SamplingParams
from tests.langchain.conftest import KEY, chat
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script

GREEDY = SamplingParams(max_tokens=12)


class Oracle(BaseChatModel):
    """A class of a user's own: other keywords, scores in a place of its own, streams."""

    sureness: float = 0.9

    @property
    def _llm_type(self) -> str:
        return "oracle"

    def _say(self, budget: int, scores: int) -> list[AIMessageChunk]:
        words = ["In", " the", " city", " of", " Velm"][:budget]
        rest = math.log1p(-self.sureness)
        likely = {"yes": math.log(self.sureness), "no": rest}
        return [
            AIMessageChunk(word, response_metadata={"scores": [(word, likely)]} if scores else {})
            for word in words
        ]

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: Any = None,
        *,
        budget: int = 99,
        scores: int = 0,
        **unknown: Any,
    ) -> ChatResult:
        assert not unknown
        pieces = self._say(budget, scores)
        found = [entry for piece in pieces for entry in piece.response_metadata.get("scores", [])]
        message = AIMessage("".join(piece.text for piece in pieces), response_metadata={"scores": found})
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: Any = None,
        run_manager: Any = None,
        *,
        budget: int = 99,
        scores: int = 0,
        **unknown: Any,
    ) -> Iterator[ChatGenerationChunk]:
        assert not unknown
        for piece in self._say(budget, scores):
            yield ChatGenerationChunk(message=piece)


class OracleDialect(Dialect):
    """All that is needed to teach it."""

    takes = frozenset({"max_tokens", "logprobs", "top_logprobs"})
    most_top_logprobs = 2

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {"budget": settings["max_tokens"], "scores": int("logprobs" in settings)}

    def logprobs_of(self, answer: Generation) -> Any:
        scores = self.metadata(answer).get("scores") or []
        return {
            "content": [
                {
                    "token": token,
                    "logprob": likely["yes"],
                    "top_logprobs": [{"token": word, "logprob": value} for word, value in likely.items()],
                }
                for token, likely in scores
            ]
        }


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_dialect(Oracle, OracleDialect)


def test_a_class_of_ones_own_is_text_alone_until_it_is_registered() -> None:
    reader = reader_from_model(Oracle())
    assert not reader.capabilities.logprobs
    assert reader.generate(["?"], GREEDY)[0][0].text == "In the city of Velm"
    with pytest.raises(CapabilityError, match="register_dialect"):
        LazyRetrievalChain(Oracle(), RunnableLambda(lambda _: []), "Ada was born in Velm.")


@pytest.mark.usefixtures("registered")
def test_a_registered_class_gives_log_probabilities_and_entropies() -> None:
    reader = reader_from_model(Oracle(), vocabulary_size=2)
    [[answer]] = reader.generate(["?"], SamplingParams(max_tokens=3))
    assert (answer.text, answer.trace.tokens) == ("In the city", ("In", " the", " city"))
    assert answer.trace.logprobs == pytest.approx([math.log(0.9)] * 3)
    entropy = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    assert answer.trace.entropy.middle == pytest.approx([entropy] * 3)
    [begun] = reader.begin(["?"], 2, GREEDY)
    assert begun.partial.text == "In the"
    assert reader.finish([begun])[0].text == "In the city of Velm"
    assert reader.generate(["?"], SamplingParams(trace="none"))[0][0].trace is None


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("sureness", "retrieves"), [(0.99, False), (0.6, True)])
def test_a_registered_class_and_its_children_serve_l_rag(sureness: float, retrieves: bool) -> None:
    class Child(Oracle):
        pass

    documents = [Document(page_content="Ada was born in Velm.")]
    for kind in (Oracle, Child):
        chain = LazyRetrievalChain(
            kind(sureness=sureness), RunnableLambda(lambda _: documents), "A town.", threshold=0.3
        )
        output = chain.invoke("Where was Ada born?")
        assert (output["answer"], output["decision"]["retrieve"]) == ("In the city of Velm", retrieves)
        assert len(output["context"]) == 1 + retrieves * len(documents)


def test_what_is_no_class_of_models_or_no_dialect_is_not_registered() -> None:
    with pytest.raises(ConfigurationError, match="class of chat models"):
        register_dialect(Oracle(), OracleDialect)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ConfigurationError, match="derives from Dialect"):
        register_dialect(Oracle, Oracle)  # type: ignore[arg-type]  # that is the test


# What is wrapped around models.


class Answer(BaseModel):
    """What a structured output is made of."""

    text: str


def test_what_with_structured_output_returns_is_refused_with_what_to_pass(server: FakeOpenAI) -> None:
    structured = chat(server).with_structured_output(Answer)
    for model in (structured, chat(server).with_retry() | (lambda message: message)):
        with pytest.raises(ConfigurationError, match=r"begins with ChatOpenAI.*Pass the model itself"):
            reader_from_model(model)


@pytest.fixture
def environment(server: FakeOpenAI) -> Iterator[None]:
    with mock.patch.dict(os.environ, {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.base_url}):
        yield


@pytest.mark.usefixtures("environment")
def test_what_init_chat_model_makes_configurable_is_a_model(server: FakeOpenAI) -> None:
    model = init_chat_model(
        "openai:toy", base_url=server.base_url, configurable_fields=("model", "max_tokens")
    )
    reader = reader_from_model(model)
    expected = reader_from_model(chat(server)).generate(["Velm"], GREEDY)
    assert reader.generate(["Velm"], GREEDY) == expected
    assert reader.capabilities == reader_from_model(chat(server)).capabilities
    [begun] = reader.begin(["Velm"], 1, GREEDY)
    assert reader.finish([begun])[0].text == expected[0][0].text
    other = reader_from_model(model.with_config(configurable={"model": "openai:other", "max_tokens": 2}))
    other.generate(["Velm"], GREEDY)
    assert (server.requests[-1].body["model"], server.requests[-1].body["max_tokens"]) == ("other", 2)


@pytest.mark.usefixtures("environment")
async def test_what_was_declared_on_a_configurable_model_holds(server: FakeOpenAI) -> None:
    model = init_chat_model("openai:toy", base_url=server.base_url, configurable_fields="any").bind(user="me")
    await reader_from_model(model).agenerate(["Velm"], GREEDY)
    assert server.requests[-1].body["user"] == "me"


def test_a_configurable_model_without_a_default_says_so() -> None:
    with pytest.raises(ConfigurationError, match="Name a default"):
        reader_from_model(init_chat_model())


def test_alternatives_keep_their_own_dialects(server: FakeOpenAI) -> None:
    model = chat(server).configurable_alternatives(
        ConfigurableField(id="which"), fake=FakeListChatModel(responses=["In Velm"])
    )
    assert not reader_from_model(model).capabilities.logprobs
    fake = reader_from_model(model.with_config(configurable={"which": "fake"}))
    assert fake.generate(["?"], GREEDY)[0][0].text == "In Velm"


def test_each_fallback_is_asked_as_it_was_built() -> None:
    with FakeOpenAI(Script(lambda _: "Velm")) as server:
        model = chat(server).bind(max_tokens=3).with_fallbacks([chat(server, max_tokens=2)])
        server.fail(500)
        reader_from_model(model).generate(["?"], GREEDY)
        assert [request.body["max_tokens"] for request in server.requests] == [3, 2]
