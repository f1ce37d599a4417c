"""Models without log-probabilities as readers, and models that hide them in OpenAI's way."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel, FakeListChatModel, FakeListLLM, GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from langchain_surerag import reader_from_model
from surerag.errors import CapabilityError, ConfigurationError, LogprobsError, ServiceError
from surerag.messages import SamplingParams

GREEDY = SamplingParams()


class Heated(BaseChatModel):
    """Tells the settings that it was asked with."""

    temperature: float = 0.7
    max_tokens: int | None = None
    logprobs_sent: Any = None

    @property
    def _llm_type(self) -> str:
        return "heated"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        metadata = {"logprobs": self.logprobs_sent} if self.logprobs_sent else {}
        message = AIMessage(
            f"t={self.temperature} max={self.max_tokens} kwargs={sorted(kwargs)}", response_metadata=metadata
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


class Silent(Heated):
    """Answers nothing at all."""

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[])


@pytest.mark.parametrize(
    "model",
    [FakeListChatModel(responses=["In Velm, I think"]), FakeListLLM(responses=["In Velm, I think"])],
    ids=["chat", "llm"],
)
async def test_any_model_gives_text(model: Any) -> None:
    reader = reader_from_model(model)
    assert not reader.capabilities.logprobs
    assert reader.capabilities.entropy is None
    for [[answer]] in (reader.generate(["?"], GREEDY), await reader.agenerate(["?"], GREEDY)):
        assert (answer.text, answer.trace) == ("In Velm, I think", None)
    assert [len(samples) for samples in reader.generate(["a", "b"], SamplingParams(n=3, temperature=1))] == [
        3,
        3,
    ]
    for begun in (*reader.begin(["?"], 2, GREEDY), *(await reader.abegin(["?"], 2, GREEDY))):
        assert begun.done
        assert reader.finish([begun])[0].text == "In Velm, I think"
    chunks = [chunk async for chunk in reader.astream("?", GREEDY)]
    assert chunks[-1].generation.text == "".join(chunk.text for chunk in chunks) == "In Velm, I think"
    with pytest.raises(CapabilityError):
        reader.score(["?"], ["Velm"])


def test_a_stop_text_is_kept_to_by_models_that_ignore_it() -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("In Velm. Question: what?")] * 3))
    reader = reader_from_model(model)
    sampling = SamplingParams(stop=("Question:",))
    assert reader.generate(["?"], sampling)[0][0].text == "In Velm."
    chunks = list(reader.stream("?", sampling))
    assert "".join(chunk.text for chunk in chunks) == "In Velm."
    assert chunks[-1].generation.finish == "stop"


def test_sampling_sets_the_fields_that_a_model_has() -> None:
    model = Heated()
    [[answer]] = reader_from_model(model).generate(["?"], SamplingParams(max_tokens=9))
    assert answer.text == "t=0.0 max=9 kwargs=[]"
    assert model.temperature == 0.7


def test_a_class_that_is_not_known_may_speak_openai() -> None:
    content = [{"token": "t", "logprob": -0.5, "top_logprobs": [{"token": "t", "logprob": -0.5}]}]
    # The tokens have to cover the text: this one does not.
    with pytest.raises(LogprobsError, match=r"^Heated: "):
        reader_from_model(Heated(logprobs_sent={"content": content}), logprobs=True).generate(["?"], GREEDY)
    text = "t=0.7 max=None kwargs=['logprobs', 'max_tokens', 'temperature', 'top_logprobs']"
    content[0]["token"] = text
    reader = reader_from_model(Heated(logprobs_sent={"content": content}), logprobs=True, top_logprobs=1)
    assert (reader.capabilities.logprobs, reader.capabilities.begin) == (True, "whole")
    [[answer]] = reader.generate(["?"], GREEDY)
    assert answer.text == text
    assert answer.trace is not None
    assert answer.trace.logprobs == (-0.5,)
    with pytest.raises(LogprobsError, match=r"^Heated: .*local model"):
        reader_from_model(Heated(), logprobs=True).generate(["?"], GREEDY)


def test_no_answer_at_all_is_an_error() -> None:
    with pytest.raises(ServiceError, match="no answer"):
        reader_from_model(Silent()).generate(["?"], GREEDY)


@pytest.mark.parametrize("strange", [None, "gpt", FakeListLLM(responses=["x"]) | str])
def test_what_is_no_model_is_refused(strange: Any) -> None:
    with pytest.raises(ConfigurationError, match="chat model or an LLM"):
        reader_from_model(strange)
