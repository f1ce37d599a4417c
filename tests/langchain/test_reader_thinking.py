"""Models that think before they answer: text, trace, gates and lengths are the answer's alone."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda

from langchain_surerag import DeltaSePerEvaluator, LazyRetrievalChain, reader_from_model
from surerag.entailment import ExactEntailer
from surerag.errors import LogprobsRefusedError, ThinkingBudgetError
from surerag.messages import SamplingParams
from surerag.readers.refusals import LeftOutWarning
from tests.langchain.conftest import KEY, chat
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.providers import THOUGHT, ProviderServer, provider
from tests.servers.toy_model import Script, ToyModel

MEASURED = SamplingParams(max_tokens=6, trace="entropy")
PLAIN = SamplingParams(max_tokens=6, trace="none")
ALL_IN_ONE_LIST = ["vllm-qwen3", "vllm-qwen3-raw", "vllm-r1-raw", "gpt-oss-raw"]


def model_of(server: ProviderServer, **settings: Any) -> Any:
    return chat(server, base_url=server.url, model=server.personality.model, **settings)


@pytest.fixture
def plain() -> Any:
    with FakeOpenAI(ToyModel(sharpness=2.0)) as server:
        yield server


@pytest.mark.parametrize("name", ALL_IN_ONE_LIST)
async def test_what_is_measured_is_the_answer_after_the_thoughts(name: str, plain: FakeOpenAI) -> None:
    expected = reader_from_model(chat(plain)).generate(["Where does Velm lie?"], MEASURED)[0][0]
    with provider(name, ToyModel(sharpness=2.0)) as server:
        reader = reader_from_model(model_of(server), thinking=True if name == "vllm-r1-raw" else None)
        for [[found]] in (
            reader.generate(["Where does Velm lie?"], MEASURED),
            await reader.agenerate(["Where does Velm lie?"], MEASURED),
        ):
            assert (found.text, found.trace) == (expected.text, expected.trace)
            assert found.thinking_tokens > 5
        assert reader.capabilities.thinking == "apart"
        [begun] = reader.begin(["Where does Velm lie?"], 2, MEASURED)
        assert begun.partial.trace.tokens == expected.trace.tokens[:2]
        assert begun.partial.trace.entropy.lower == expected.trace.entropy.lower[:2]
        assert reader.finish([begun])[0].text == expected.text


@pytest.mark.parametrize("name", [*ALL_IN_ONE_LIST, "deepseek-reasoner"])
def test_a_stream_shows_no_thoughts(name: str) -> None:
    with provider(name, Script(lambda _: "In Velm, on the Orun")) as server:
        reader = reader_from_model(model_of(server))
        # That R1 begins inside its thoughts shows from a whole answer.
        reader.generate(["?"], SamplingParams(max_tokens=40, trace="none"))
        chunks = list(reader.stream("?", SamplingParams(max_tokens=20, trace="none")))
        assert "".join(chunk.text for chunk in chunks) == "In Velm, on the Orun"
        assert chunks[-1].generation.text == "In Velm, on the Orun"


@pytest.mark.parametrize("name", [*ALL_IN_ONE_LIST[:2], "gpt-oss-raw"])
async def test_a_gate_that_ends_inside_the_thoughts_is_opened_again_with_tokens_to_think(name: str) -> None:
    with provider(name, Script(lambda _: "In Velm")) as server:
        for reader in (reader_from_model(model_of(server)), reader_from_model(model_of(server))):
            [begun] = reader.begin(["?"], 1, MEASURED)
            assert begun.partial.trace.tokens == ("In",)
            reader.cancel([begun])
            [begun] = await reader.abegin(["?"], 1, MEASURED)
            assert begun.partial.text == "In"
            await reader.acancel([begun])
        lengths = [request.body["max_tokens"] for request in server.requests]
        assert lengths == [6, 6 + 4096, 6 + 4096] * 2


def test_a_hidden_thought_gets_tokens_of_its_own() -> None:
    with provider("gpt-5", Script(lambda _: "In Velm")) as server:
        reader = reader_from_model(model_of(server))
        with pytest.warns(LeftOutWarning, match="temperature"):
            [[answer]] = reader.generate(["?"], PLAIN)
        assert answer.text == "In Velm"
        assert answer.thinking_tokens > 0
        assert reader.usage.thinking_tokens > answer.thinking_tokens
        assert server.requests[-1].body.keys() == {"model", "messages", "max_completion_tokens", "stream"}
        with pytest.raises(LogprobsRefusedError, match=r'reasoning_effort="none"'):
            reader.generate(["?"], MEASURED)


def test_gpt_5_1_that_was_told_not_to_think_gives_log_probabilities() -> None:
    with provider("gpt-5.1", ToyModel(sharpness=2.0)) as server:
        reader = reader_from_model(model_of(server, reasoning_effort="none"))
        assert reader.capabilities.thinking == "off"
        assert reader.generate(["?"], MEASURED)[0][0].trace.entropy is not None
        thinking = reader_from_model(model_of(server, reasoning_effort="high"))
        with pytest.raises(LogprobsRefusedError):
            thinking.generate(["?"], MEASURED)


def test_a_budget_that_ends_inside_the_thoughts_is_an_error_that_says_so() -> None:
    with provider("vllm-qwen3-raw", thought=" ".join(["Hm."] * 400)) as server:
        reader = reader_from_model(model_of(server), thinking_tokens=100)
        for call in (
            lambda: reader.generate(["?"], PLAIN),
            lambda: reader.generate(["?"], MEASURED),
            lambda: reader.begin(["?"], 2, MEASURED),
            lambda: list(reader.stream("?", PLAIN)),
        ):
            with pytest.raises(
                ThinkingBudgetError, match=r"^ChatOpenAI: .*still thinking.*thinking_tokens=…"
            ):
                call()


def test_a_template_option_of_the_users_switches_thinking_off() -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    with provider("vllm-qwen3", Script(lambda _: "In Velm")) as server:
        reader = reader_from_model(model_of(server, extra_body=off))
        assert reader.capabilities.thinking == "off"
        assert reader.generate(["?"], MEASURED)[0][0].trace.tokens == ("In", " Velm")
        assert server.requests[0].body["chat_template_kwargs"] == {"enable_thinking": False}


def test_stop_texts_are_kept_to_in_the_answer_and_not_in_the_thoughts() -> None:
    with provider("vllm-qwen3-raw", Script(lambda _: "In Velm. Question: what?")) as server:
        reader = reader_from_model(model_of(server))
        for _ in range(2):
            sampling = SamplingParams(max_tokens=20, stop=("Tarn", "Question:"), trace="entropy")
            [[answer]] = reader.generate(["?"], sampling)
            assert answer.text == "In Velm."
            assert answer.trace.tokens == ("In", " Velm.")


class Blocks(BaseChatModel):
    """Answers in blocks, as ChatAnthropic and the Responses API do."""

    kind: str = "thinking"

    @property
    def _llm_type(self) -> str:
        return "blocks"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        thought: dict[str, Any] = {"type": self.kind, self.kind: THOUGHT}
        message = AIMessage(
            [thought, {"type": "text", "text": "In Velm"}],
            usage_metadata={
                "input_tokens": 5,
                "output_tokens": 14,
                "total_tokens": 19,
                "output_token_details": {"reasoning": 12},
            },
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


@pytest.mark.parametrize("kind", ["thinking", "reasoning"])
def test_thoughts_in_blocks_are_no_part_of_the_answer(kind: str) -> None:
    reader = reader_from_model(Blocks(kind=kind))
    [[answer]] = reader.generate(["?"], PLAIN)
    assert (answer.text, answer.completion_tokens, answer.thinking_tokens) == ("In Velm", 2, 12)
    assert reader.capabilities.thinking == "apart"
    assert (reader.usage.completion_tokens, reader.usage.thinking_tokens) == (2, 12)


@pytest.mark.parametrize("name", ["vllm-qwen3", "vllm-qwen3-raw"])
def test_decisions_and_scores_are_those_of_the_same_model_that_does_not_think(
    name: str, plain: FakeOpenAI
) -> None:
    documents = [Document(page_content="Velm lies on the river Orun.")]
    given: dict[str, Any] = {
        "inputs": {"question": "Where does Velm lie?"},
        "outputs": {"documents": documents},
        "reference_outputs": {"answer": "on the Orun"},
    }

    def found(model: Any) -> tuple[Any, Any]:
        chain = LazyRetrievalChain(model, RunnableLambda(lambda _: documents), "A city.", max_tokens=6)
        decisions = [chain.invoke(question)["decision"] for question in ("Velm?", "Tarn?", "Orun?")]
        evaluator = DeltaSePerEvaluator(model, ExactEntailer(), n_samples=4, max_tokens=4)
        return decisions, evaluator(**given)["results"][0]["score"]

    expected = found(chat(plain, api_key=KEY))
    with provider(name, ToyModel(sharpness=2.0)) as server:
        assert found(model_of(server)) == expected
