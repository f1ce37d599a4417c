"""The kinds of models that people have: which class of theirs, and what stands for the provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any

from tests.models.parts import House, reply
from tests.models.trying import Model, Served
from tests.servers.anthropic import FakeAnthropic, one_of_two
from tests.servers.gemini import FakeGemini
from tests.servers.ollama import FakeOllama
from tests.servers.providers import PERSONALITIES, THOUGHT, provider
from tests.servers.toy_model import Script

_KEY = "sk-none"
_NOTES = {
    "gpt-5": "always thinks",
    "gpt-5.1": "thinks unless the effort is none",
    "o-series": "always thinks",
    "azure-v1": "Azure's v1 address, gpt-4o",
    "vllm-qwen3": "vLLM with a reasoning parser: thoughts in a field of their own, one list of tokens",
    "vllm-qwen3-raw": "vLLM without a reasoning parser: `<think>` in the text",
    "vllm-r1-raw": "the template opens `<think>`, the text only closes it",
    "gpt-oss-raw": "harmony's channels in the text",
    "openrouter": "errors come with status 200",
    "cerebras": "log-probabilities of thoughts and answer in two lists",
    "ollama": "Ollama's OpenAI-compatible address",
    "responses": "the Responses API, gpt-4o",
    "responses-gpt-5": "the Responses API, gpt-5",
}
_OPENAI = ("gpt-4o", "gpt-5", "gpt-5.1", "o-series")
_RESPONSES = ("responses", "responses-gpt-5")


def models(house: House) -> list[Model]:
    """Return every kind of model of a house whose client library is installed."""
    return {"core": _core, "LlamaIndex": _llama_index, "LangChain": _langchain}[house]()


class _Logged:
    """A running server and what was sent to it."""

    def __init__(self, url: str, requests: Sequence[Any]) -> None:
        self.url = url
        self._requests = requests

    def bodies(self) -> Sequence[Mapping[str, Any]]:
        """What was sent so far."""
        return [request.body for request in self._requests]


def _speaking(name: str) -> Callable[[], AbstractContextManager[Served]]:
    """Return what starts a service that speaks OpenAI's language."""
    return lambda: _running(provider(name, Script(reply)))


@contextmanager
def _running(server: Any) -> Iterator[Served]:
    with server as running:
        yield _Logged(running.url, running.requests)


@contextmanager
def _nowhere() -> Iterator[Served]:
    yield _Logged("", ())


def _core() -> list[Model]:
    from surerag import OpenAIReader
    from surerag.world import embedded_reader

    def reader(name: str, **settings: Any) -> Callable[[str], Any]:
        api: Any = "responses" if name in _RESPONSES else "chat"
        return lambda url: OpenAIReader(
            PERSONALITIES[name].model, base_url=url, api_key=_KEY, api=api, **settings
        )

    found = [
        Model(f"OpenAIReader: {name}", "core", _speaking(name), reader(name), _NOTES.get(name, ""))
        for name in PERSONALITIES
    ]
    found += [
        Model(
            f"OpenAIReader(thinking=False): {name}",
            "core",
            _speaking(name),
            reader(name, thinking=False),
            "thinking switched off",
        )
        for name in ("gpt-5.1", "vllm-qwen3", "ollama")
    ]
    return [
        *found,
        Model(
            "TransformersReader: the embedded reader",
            "core",
            _nowhere,
            lambda _: embedded_reader(),
            "real: in this process",
        ),
    ]


def _llama_index() -> list[Model]:
    from llama_index.llms.huggingface import HuggingFaceLLM
    from llama_index.llms.openai import OpenAI, OpenAIResponses
    from llama_index.llms.openai_like import OpenAILike

    from surerag.world import embedded_reader_path

    def named(name: str) -> Callable[[str], Any]:
        if name in _OPENAI:
            return lambda url: OpenAI(
                model=PERSONALITIES[name].model, api_base=url, api_key=_KEY, max_retries=0
            )
        if name in _RESPONSES:
            return lambda url: OpenAIResponses(
                model=PERSONALITIES[name].model, api_base=url, api_key=_KEY, max_retries=0
            )
        return lambda url: OpenAILike(
            model=PERSONALITIES[name].model, api_base=url, api_key=_KEY, is_chat_model=True, max_retries=0
        )

    kinds = dict.fromkeys(_OPENAI, "OpenAI") | dict.fromkeys(_RESPONSES, "OpenAIResponses")
    found = [
        Model(
            f"{kinds.get(name, 'OpenAILike')}: {name}",
            "LlamaIndex",
            _speaking(name),
            named(name),
            _NOTES.get(name, ""),
        )
        for name in PERSONALITIES
    ]
    if find_spec("llama_index.llms.ollama"):
        from llama_index.llms.ollama import Ollama

        found.append(
            Model(
                "Ollama",
                "LlamaIndex",
                lambda: _running(FakeOllama(Script(reply))),
                lambda url: Ollama(model="toy", base_url=url, context_window=4096),
            )
        )
    if find_spec("llama_index.llms.anthropic"):
        from llama_index.llms.anthropic import Anthropic

        found.append(
            Model(
                "Anthropic",
                "LlamaIndex",
                lambda: _running(FakeAnthropic(Script(reply), one_of_two)),
                lambda url: Anthropic(model="claude-sonnet-4-5", base_url=url, api_key=_KEY, max_retries=0),
            )
        )
    if find_spec("llama_index.llms.google_genai"):
        from llama_index.llms.google_genai import GoogleGenAI

        found.append(
            Model(
                "GoogleGenAI",
                "LlamaIndex",
                lambda: _running(FakeGemini(Script(reply))),
                lambda url: GoogleGenAI(
                    model="gemini-2.5-flash",
                    api_key=_KEY,
                    max_tokens=256,
                    context_window=4096,
                    http_options={"base_url": url},
                    max_retries=0,
                    file_mode="inline",
                ),
            )
        )
    path = str(embedded_reader_path())
    return [
        *found,
        Model(
            "HuggingFaceLLM: the embedded reader",
            "LlamaIndex",
            _nowhere,
            lambda _: HuggingFaceLLM(model_name=path, tokenizer_name=path, device_map="cpu"),
            "real: in this process",
        ),
    ]


def _langchain() -> list[Model]:
    from langchain_huggingface import HuggingFacePipeline
    from langchain_openai import ChatOpenAI

    from surerag.world import embedded_reader_path

    def named(name: str) -> Callable[[str], Any]:
        more: dict[str, Any] = {"use_responses_api": True} if name in _RESPONSES else {}
        return lambda url: ChatOpenAI(
            model=PERSONALITIES[name].model, base_url=url, api_key=_KEY, max_retries=0, **more
        )

    found = [
        Model(f"ChatOpenAI: {name}", "LangChain", _speaking(name), named(name), _NOTES.get(name, ""))
        for name in PERSONALITIES
    ]
    if find_spec("langchain_ollama"):
        from langchain_ollama import ChatOllama

        found += [
            Model(
                "ChatOllama",
                "LangChain",
                lambda: _running(FakeOllama(Script(reply))),
                lambda url: ChatOllama(model="toy", base_url=url),
            ),
            Model(
                "ChatOllama: a server before 0.12.11",
                "LangChain",
                lambda: _running(FakeOllama(Script(reply), logprobs=False)),
                lambda url: ChatOllama(model="toy", base_url=url),
                "leaves log-probabilities out without a word",
            ),
        ]
    if find_spec("langchain_anthropic"):
        from langchain_anthropic import ChatAnthropic

        thinking = {"type": "enabled", "budget_tokens": 1024}
        found += [
            Model(
                "ChatAnthropic",
                "LangChain",
                lambda: _running(FakeAnthropic(Script(reply), one_of_two)),
                lambda url: ChatAnthropic(
                    model="claude-sonnet-4-5", base_url=url, api_key=_KEY, max_retries=0
                ),
            ),
            Model(
                "ChatAnthropic, thinking",
                "LangChain",
                lambda: _running(FakeAnthropic(Script(reply), one_of_two, thought=THOUGHT)),
                lambda url: ChatAnthropic(
                    model="claude-sonnet-4-5",
                    base_url=url,
                    api_key=_KEY,
                    max_retries=0,
                    max_tokens=4096,
                    thinking=thinking,
                ),
            ),
        ]
    if find_spec("langchain_google_genai"):
        from langchain_google_genai import ChatGoogleGenerativeAI

        found += [
            Model(
                "ChatGoogleGenerativeAI" + ("" if logprobs else ": a model without log-probabilities"),
                "LangChain",
                lambda logprobs=logprobs: _running(FakeGemini(Script(reply), logprobs=logprobs)),
                lambda url: ChatGoogleGenerativeAI(
                    model="gemini-2.5-flash", base_url=url, api_key=_KEY, max_retries=1
                ),
            )
            for logprobs in (True, False)
        ]
    return [
        *found,
        Model(
            "HuggingFacePipeline: the embedded reader",
            "LangChain",
            _nowhere,
            lambda _: HuggingFacePipeline.from_model_id(str(embedded_reader_path()), task="text-generation"),
            "real: in this process",
        ),
    ]
