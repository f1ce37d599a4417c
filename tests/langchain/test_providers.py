"""Other providers' classes, against servers in the shapes that their own client libraries read."""

from __future__ import annotations

import json
import time
import warnings
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda

from langchain_surerag import LazyRetrievalChain, OverruledWarning, reader_from_model
from surerag.errors import CapabilityError, LogprobsError, LogprobsRefusedError
from surerag.messages import SamplingParams
from surerag.readers import BaseReader
from surerag.readers.refusals import LeftOutWarning
from tests.langchain.conftest import KEY, chat
from tests.servers.anthropic import FakeAnthropic, no_temperature, one_of_two
from tests.servers.fake_openai import FakeOpenAI, Wire
from tests.servers.gemini import FakeGemini
from tests.servers.ollama import FakeOllama
from tests.servers.providers import provider
from tests.servers.refusing import Refusing, Rule
from tests.servers.toy_model import Script, ToyModel, split

QUESTION = "Where does Velm lie?"
PLAIN = SamplingParams(max_tokens=6, trace="none")
MEASURED = SamplingParams(max_tokens=6, trace="entropy")
DRAWN = SamplingParams(n=3, temperature=1.0, max_tokens=6, trace="logprobs")


@pytest.fixture
def expected() -> Any:
    """What a reader over OpenAI's API says of the same model."""
    with FakeOpenAI(ToyModel(sharpness=2.0)) as server:
        reader = reader_from_model(chat(server), vocabulary_size=ToyModel.vocabulary_size)
        yield reader.generate([QUESTION], MEASURED)[0][0]


async def check_all_verbs(reader: BaseReader, expected: Any) -> None:
    """Check that a reader gives the expected answer and trace in all its ways."""
    assert reader.capabilities.logprobs
    assert reader.capabilities.entropy == "bounded"
    answers = [*reader.generate([QUESTION], MEASURED)[0], *(await reader.agenerate([QUESTION], MEASURED))[0]]
    for begun in (reader.begin([QUESTION], 2, MEASURED), await reader.abegin([QUESTION], 2, MEASURED)):
        assert begun[0].partial.trace.tokens == expected.trace.tokens[:2]
        assert begun[0].partial.trace.logprobs == pytest.approx(expected.trace.logprobs[:2])
        sync = "Async" not in type(begun[0].state).__name__
        answers += reader.finish(begun) if sync else await reader.afinish(begun)
    for chunks in (
        list(reader.stream(QUESTION, MEASURED)),
        [chunk async for chunk in reader.astream(QUESTION, MEASURED)],
    ):
        assert "".join(chunk.text for chunk in chunks) == expected.text
        answers.append(chunks[-1].generation)
    for answer in answers:
        assert answer.text == expected.text
        assert answer.trace.tokens == expected.trace.tokens
        assert answer.trace.logprobs == pytest.approx(expected.trace.logprobs)
        assert answer.trace.entropy.middle == pytest.approx(expected.trace.entropy.middle)
    [samples] = reader.generate([QUESTION], DRAWN)
    assert len({sample.text for sample in samples}) > 1
    assert all(sample.trace is not None and sample.trace.entropy is None for sample in samples)


# Ollama


@pytest.mark.parametrize("kind", ["ChatOllama", "OllamaLLM"])
async def test_ollama_gives_log_probabilities_and_settings_go_into_its_options(
    kind: str, expected: Any
) -> None:
    ollama = pytest.importorskip("langchain_ollama")
    with FakeOllama(ToyModel(sharpness=2.0)) as server:
        model = getattr(ollama, kind)(model="toy", base_url=server.url, num_ctx=512)
        await check_all_verbs(reader_from_model(model, vocabulary_size=ToyModel.vocabulary_size), expected)
        first, drawn = server.bodies[0], server.bodies[-1]
        assert {name: value for name, value in first["options"].items() if value is not None} == {
            "num_ctx": 512,
            "num_predict": 6,
            "temperature": 0.0,
        }
        assert (first["logprobs"], first["top_logprobs"]) == (True, 20)
        options = drawn["options"]
        assert (options["temperature"], options["top_p"], options["top_k"]) == (1.0, 1.0, 0)
        assert "top_logprobs" not in drawn or drawn["top_logprobs"] is None


def test_ollama_is_asked_for_text_alone_where_that_is_all() -> None:
    ollama = pytest.importorskip("langchain_ollama")
    with FakeOllama(Script(lambda _: "In Velm. Question: what?")) as server:
        model = ollama.ChatOllama(model="toy", base_url=server.url, temperature=0.3, stop=["##"])
        sampling = SamplingParams(max_tokens=9, stop=("Question:",), trace="none")
        assert reader_from_model(model).generate([QUESTION], sampling)[0][0].text == "In Velm."
        [body] = server.bodies
        assert not body.get("logprobs")
        assert body["options"] == {"temperature": 0.3, "num_predict": 9, "stop": ["##", "Question:"]}


def test_options_that_are_bound_to_ollama_hold() -> None:
    ollama = pytest.importorskip("langchain_ollama")
    with FakeOllama(Script(lambda _: "In Velm")) as server:
        model = ollama.ChatOllama(model="toy", base_url=server.url)
        model = model.bind(options={"num_predict": 3, "num_ctx": 512, "temperature": 0.3})
        reader_from_model(model).generate([QUESTION], PLAIN)
        assert server.bodies[0]["options"] == {"num_predict": 3, "num_ctx": 512, "temperature": 0.3}


def test_an_old_ollama_server_that_ignores_log_probabilities_is_told_of() -> None:
    ollama = pytest.importorskip("langchain_ollama")
    with FakeOllama(logprobs=False) as server:
        reader = reader_from_model(ollama.ChatOllama(model="toy", base_url=server.url))
        with pytest.raises(LogprobsError, match=r"^ChatOllama: .*0\.12\.11"):
            reader.generate([QUESTION], MEASURED)
        assert reader.generate([QUESTION], PLAIN)[0][0].text


@pytest.mark.parametrize("reasoning", [None, True, False])
def test_ollamas_thinking_is_told_from_the_answer(reasoning: bool | None) -> None:
    ollama = pytest.importorskip("langchain_ollama")
    with FakeOllama(Script(lambda _: "In Velm"), thought="Tarn? No.") as server:
        model = ollama.ChatOllama(model="toy", base_url=server.url, reasoning=reasoning)
        reader = reader_from_model(model)
        assert (reader.capabilities.thinking == "off") == (reasoning is False)
        [[answer]] = reader.generate([QUESTION], SamplingParams(max_tokens=20))
        assert (answer.text, answer.trace.tokens) == ("In Velm", ("In", " Velm"))
        assert (answer.thinking_tokens > 0) == (reasoning is not False)


# Google


async def test_gemini_gives_log_probabilities(expected: Any) -> None:
    google = pytest.importorskip("langchain_google_genai")
    with FakeGemini(ToyModel(sharpness=2.0)) as server:
        model = google.ChatGoogleGenerativeAI(
            model="gemini-2.5-flash", base_url=server.url, api_key="x", max_retries=1
        )
        await check_all_verbs(reader_from_model(model, vocabulary_size=ToyModel.vocabulary_size), expected)
        asked = {"temperature": 0.0, "maxOutputTokens": 6, "responseLogprobs": True, "logprobs": 20}
        assert {name: server.configs[0][name] for name in asked} == asked
        assert "logprobs" not in server.configs[-1]
        reader_from_model(model).generate([QUESTION], PLAIN)
        assert not {"responseLogprobs", "logprobs", "seed"} & server.configs[-1].keys()


def test_a_gemini_model_without_log_probabilities_says_so_and_gives_text() -> None:
    google = pytest.importorskip("langchain_google_genai")
    with FakeGemini(Script(lambda _: "In Velm"), logprobs=False) as server:
        model = google.ChatGoogleGenerativeAI(
            model="gemini-3.5-flash", base_url=server.url, api_key="x", max_retries=1
        )
        reader = reader_from_model(model)
        with pytest.raises(
            LogprobsRefusedError, match=r"not supported for this model.*gate=\"disagreement\""
        ):
            reader.generate([QUESTION], MEASURED)
        assert reader.generate([QUESTION], PLAIN)[0][0].text == "In Velm"


def test_geminis_thoughts_get_tokens_of_their_own() -> None:
    google = pytest.importorskip("langchain_google_genai")
    with FakeGemini(Script(lambda _: "In Velm"), thought=" ".join(["Hm."] * 30)) as server:
        model = google.ChatGoogleGenerativeAI(
            model="gemini-2.5-flash", base_url=server.url, api_key="x", max_retries=1
        )
        reader = reader_from_model(model)
        [[answer]] = reader.generate([QUESTION], PLAIN)
        assert (answer.text, answer.thinking_tokens) == ("In Velm", 30)
        assert [config["maxOutputTokens"] for config in server.configs] == [6, 6 + 4096]


class ChatVertexAI(BaseChatModel):
    """In the shape of langchain-google-vertexai's class, whose client needs a cloud project."""

    @property
    def _llm_type(self) -> str:
        return "vertex"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        assert kwargs == {"max_output_tokens": 6, "temperature": 0.0, "logprobs": 20}
        entry = {"token": "Velm", "logprob": -0.1}
        listed = [{**entry, "top_logprobs": [entry, {"token": "Tarn", "logprob": -2.4}]}]
        message = AIMessage(
            "Velm", response_metadata={"logprobs_result": listed, "finish_reason": "MAX_TOKENS"}
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_vertex_gives_log_probabilities() -> None:
    [[answer]] = reader_from_model(ChatVertexAI()).generate([QUESTION], MEASURED)
    assert (answer.text, answer.finish) == ("Velm", "length")
    assert answer.trace.logprobs == (-0.1,)


# Anthropic


@pytest.fixture
def claude() -> Any:
    anthropic = pytest.importorskip("langchain_anthropic")

    def model(server: FakeAnthropic, **settings: Any) -> Any:
        return anthropic.ChatAnthropic(
            **{"model": "claude-sonnet-4-5", "base_url": server.url, "api_key": "x", "max_retries": 0}
            | settings
        )

    return model


async def test_claude_answers_and_is_never_sent_what_it_does_not_know(claude: Any) -> None:
    with FakeAnthropic(ToyModel(sharpness=2.0)) as server:
        reader = reader_from_model(claude(server))
        [[answer]] = reader.generate([QUESTION], PLAIN)
        assert answer.finish == "length"
        assert (await reader.agenerate([QUESTION], PLAIN))[0][0].text == answer.text
        chunks = [chunk async for chunk in reader.astream(QUESTION, PLAIN)]
        assert "".join(chunk.text for chunk in chunks) == answer.text
        assert len(reader.generate([QUESTION], DRAWN)[0]) == 3
        assert len(server.answered) == len(server.requests)
        assert server.bodies[0].keys() == {"model", "messages", "max_tokens", "temperature"}


async def test_what_claude_had_in_its_cache_is_counted(claude: Any) -> None:
    with FakeAnthropic(Script(lambda _: "In Velm")) as server:
        server.cached = 3
        reader = reader_from_model(claude(server))
        [[answer]] = reader.generate([QUESTION], PLAIN)
        assert (answer.prompt_tokens, answer.cached_tokens) == (len(split(QUESTION)), 3)
        *_, last = [chunk async for chunk in reader.astream(QUESTION, PLAIN)]
        assert last.generation.cached_tokens == 3
        assert reader.usage.cached_tokens == 6


def test_claude_takes_temperature_or_top_p(claude: Any) -> None:
    with FakeAnthropic(Script(lambda _: "In Velm"), one_of_two) as server:
        reader = reader_from_model(claude(server, top_p=0.9))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeftOutWarning)
            assert reader.generate([QUESTION], PLAIN)[0][0].text == "In Velm"
            # The temperature is needed to draw several; the user's nucleus gives way.
            warnings.simplefilter("ignore", OverruledWarning)
            drawn = SamplingParams(n=2, temperature=0.5, max_tokens=6, trace="none")
            assert len(reader.generate([QUESTION], drawn)[0]) == 2
        assert server.answered[-1]["temperature"] == 0.5
        assert "top_p" not in server.answered[-1]


def test_claude_without_a_temperature_is_asked_without(claude: Any) -> None:
    with FakeAnthropic(Script(lambda _: "In Velm"), no_temperature) as server:
        reader = reader_from_model(claude(server))
        with pytest.warns(LeftOutWarning, match="ChatAnthropic.* refuses temperature"):
            reader.generate([QUESTION], PLAIN)
        reader.generate([QUESTION], PLAIN)
        assert len(server.requests) == 3
        assert "temperature" not in server.bodies[-1]


def test_a_claude_that_thinks_has_room_for_thought_and_answer(claude: Any) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with FakeAnthropic(Script(lambda _: "In Velm")) as server:
        reader = reader_from_model(claude(server, thinking=thinking, max_tokens=3000))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeftOutWarning)
            [[answer]] = reader.generate([QUESTION], PLAIN)
        assert answer.text == "In Velm"
        assert server.answered[0]["max_tokens"] == 6 + 1024
        assert reader.capabilities.thinking == "apart"
        chunks = list(reader.stream(QUESTION, PLAIN))
        assert "".join(chunk.text for chunk in chunks) == "In Velm"


def test_a_gate_over_claude_is_refused_with_what_to_do(claude: Any) -> None:
    with FakeAnthropic() as server:
        documents = RunnableLambda(lambda _: [Document(page_content="Velm lies on the Orun.")])
        with pytest.raises(CapabilityError, match=r"Anthropic's API gives none.*gate=\"disagreement\""):
            LazyRetrievalChain(claude(server), documents, "A city.")
        assert server.requests == []
        plain = LazyRetrievalChain(claude(server), documents, "A city.", mode="standard")
        assert plain.invoke("Where does Velm lie?")["context"]
        gated = LazyRetrievalChain(claude(server), documents, "A city.", gate="disagreement")
        assert gated.invoke("Where does Velm lie?")["decision"]["calls"] == 5


# OpenAI's Responses API


async def test_the_responses_api_gives_log_probabilities(expected: Any) -> None:
    with provider("responses", ToyModel(sharpness=2.0)) as server:
        model = chat(server, base_url=server.url, model="gpt-4o", use_responses_api=True)
        reader = reader_from_model(model, vocabulary_size=ToyModel.vocabulary_size)
        sampling = SamplingParams(max_tokens=16, trace="entropy")
        [[whole]] = reader.generate([QUESTION], sampling)
        assert whole.trace.tokens[:6] == expected.trace.tokens
        assert whole.trace.entropy.middle[:6] == pytest.approx(expected.trace.entropy.middle)
        assert server.requests[0].body.keys() - {"stream", "model"} == {
            "input",
            "max_output_tokens",
            "temperature",
            "include",
            "top_logprobs",
        }
        assert (await reader.agenerate([QUESTION], sampling))[0][0].trace == whole.trace
        [begun] = reader.begin([QUESTION], 2, sampling)
        assert begun.partial.trace.tokens == whole.trace.tokens[:2]
        assert reader.finish([begun])[0].trace == whole.trace
        chunks = [chunk async for chunk in reader.astream(QUESTION, sampling)]
        assert chunks[-1].generation.trace == whole.trace


def test_the_responses_api_takes_no_short_length_and_the_answer_is_cut_here() -> None:
    with provider("responses", Script(lambda _: "In Velm on the river Orun")) as server:
        model = chat(server, base_url=server.url, model="gpt-4o", use_responses_api=True)
        reader = reader_from_model(model)
        [[answer]] = reader.generate([QUESTION], SamplingParams(max_tokens=2))
        assert (answer.text, answer.finish, len(answer.trace)) == ("In Velm", "length", 2)
        [[text]] = reader.generate([QUESTION], SamplingParams(max_tokens=2, trace="none"))
        assert (text.finish, text.completion_tokens) == ("length", 2)
        assert [request.body["max_output_tokens"] for request in server.requests] == [16, 16]


def test_text_alone_works_over_the_responses_api_also_of_models_that_reason() -> None:
    for name in ("responses", "responses-gpt-5"):
        with provider(name, Script(lambda _: "In Velm. Question: what?")) as server:
            model = chat(
                server,
                base_url=server.url,
                model=server.personality.model,
                use_responses_api=True,
                temperature=None,
            )
            reader = reader_from_model(model)
            sampling = SamplingParams(max_tokens=20, stop=("Question:",), trace="none")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LeftOutWarning)
                assert reader.generate([QUESTION], sampling)[0][0].text == "In Velm."
            assert not {"include", "top_logprobs", "n", "seed"} & server.requests[-1].body.keys()
            if name == "responses-gpt-5":
                with pytest.raises(LogprobsRefusedError, match=r"use_responses_api=False"):
                    reader.generate([QUESTION], MEASURED)


# OpenAI's keywords in other classes


def test_groq_gives_text_and_says_that_it_gives_no_more() -> None:
    groq = pytest.importorskip("langchain_groq")
    rules = [
        Rule(lambda body: bool(body.get("logprobs")), "`logprobs` is not supported with this model"),
        Rule(lambda body: body.get("n", 1) > 1, "'n' : number must be at most 1"),
    ]
    with Refusing(rules, Script(lambda _: "In Velm")) as server:
        model = groq.ChatGroq(
            model="llama", base_url=server.base_url.removesuffix("/v1"), api_key=KEY, max_retries=0
        )
        reader = reader_from_model(model)
        assert not reader.capabilities.logprobs
        assert [answer.text for answer in reader.generate([QUESTION], DRAWN)[0]] == ["In Velm"] * 3
        assert server.refused == 0
        with pytest.raises(CapabilityError, match="Groq's API gives none"):
            LazyRetrievalChain(model, RunnableLambda(lambda _: []), "A city.")
        forced = reader_from_model(model, logprobs=True)
        with pytest.raises(LogprobsRefusedError, match="is not supported with this model"):
            forced.generate([QUESTION], MEASURED)


def test_deepseeks_reasoner_thinks_apart_and_refuses_log_probabilities() -> None:
    deepseek = pytest.importorskip("langchain_deepseek")
    with provider("deepseek-reasoner", Script(lambda _: "In Velm")) as server:
        model = deepseek.ChatDeepSeek(
            model="deepseek-reasoner", api_base=server.url, api_key=KEY, max_retries=0
        )
        reader = reader_from_model(model)
        [[answer]] = reader.generate([QUESTION], PLAIN)
        assert answer.text == "In Velm"
        assert answer.thinking_tokens > 0
        assert server.requests[0].body["max_tokens"] == 6
        with pytest.raises(LogprobsRefusedError, match="does not support logprobs"):
            reader.generate([QUESTION], MEASURED)


async def test_together_is_asked_with_a_number(expected: Any) -> None:
    together = pytest.importorskip("langchain_together")
    with FakeOpenAI(ToyModel(sharpness=2.0)) as server:
        model = together.ChatTogether(model="toy", base_url=server.base_url, api_key=KEY, max_retries=0)
        reader_from_model(model, logprobs=False).generate([QUESTION], MEASURED)
        assert "logprobs" not in server.requests[-1].body
        with pytest.raises(LogprobsError, match="ChatTogether"):
            reader_from_model(model).generate([QUESTION], MEASURED)
        assert server.requests[-1].body["logprobs"] == 20
        assert server.requests[-1].body["max_tokens"] == 6


def complete(wire: Wire) -> None:
    """Answer with the fields that OpenRouter's client insists on."""
    answer = {**wire.honest(), "id": "gen-1", "created": 1, "model": "toy", "system_fingerprint": None}
    listed = (answer["choices"][0]["logprobs"] or {}).get("content", [])
    for entry in listed:
        for token in (entry, *entry["top_logprobs"]):
            token["bytes"] = list(token["token"].encode())
    wire.body(json.dumps(answer).encode())


def test_openrouter_gives_what_its_route_gives(expected: Any) -> None:
    openrouter = pytest.importorskip("langchain_openrouter")
    with FakeOpenAI(ToyModel(sharpness=2.0)) as server:
        server.fault = complete
        model = openrouter.ChatOpenRouter(model="toy", base_url=server.base_url, api_key=KEY, max_retries=0)
        reader = reader_from_model(model)
        assert reader.generate([QUESTION], PLAIN)[0][0].text == expected.text
        assert not {"logprobs", "top_logprobs", "seed"} & server.requests[-1].body.keys()
        assert reader.generate([QUESTION], MEASURED)[0][0].trace.logprobs == expected.trace.logprobs
        server.become(no_logprobs=True)
        with pytest.raises(LogprobsError, match="require_parameters"):
            reader.generate([QUESTION], MEASURED)


# llama.cpp in the process


class Llama:
    """In place of ``llama_cpp.Llama``: answers one question at a time, and breaks if asked two."""

    def __init__(self, model: ToyModel) -> None:
        self.model = model
        self.asked: list[dict[str, Any]] = []
        self._busy = False

    def create_chat_completion(self, messages: list[dict[str, Any]], **arguments: Any) -> dict[str, Any]:
        assert not self._busy, "two at a time"
        self._busy = True
        self.asked.append(arguments)
        time.sleep(0.01)
        said = self.model.say(messages[-1]["content"], arguments["temperature"], 0, arguments["max_tokens"])
        listed = None
        if arguments.get("logprobs"):
            listed = {
                "content": [
                    {
                        "token": token.text,
                        "logprob": token.logprob,
                        "top_logprobs": [
                            {"token": word, "logprob": value}
                            for word, value in token.top(arguments["top_logprobs"]).items()
                        ],
                    }
                    for token in said.tokens
                ]
            }
        self._busy = False
        text = "".join(token.text for token in said.tokens)
        message = {"role": "assistant", "content": text}
        return {"choices": [{"message": message, "finish_reason": said.finish, "logprobs": listed}]}


async def test_llama_cpp_in_the_process_answers_one_question_at_a_time(expected: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        llamacpp = pytest.importorskip("langchain_community.chat_models.llamacpp")
    llama = Llama(ToyModel(sharpness=2.0))
    model = llamacpp.ChatLlamaCpp.model_construct(client=llama, model_path="toy.gguf", temperature=0.8)
    reader = reader_from_model(model, vocabulary_size=ToyModel.vocabulary_size)
    assert (reader.capabilities.begin, reader.capabilities.stream) == ("whole", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverruledWarning)
        found = reader.generate([QUESTION] * 4, MEASURED) + await reader.agenerate([QUESTION] * 4, MEASURED)
    for [answer] in found:
        assert (answer.text, answer.trace.tokens) == (expected.text, expected.trace.tokens)
        assert answer.trace.entropy.middle == pytest.approx(expected.trace.entropy.middle)
    assert [chunk.text for chunk in reader.stream(QUESTION, MEASURED)] == [expected.text]
