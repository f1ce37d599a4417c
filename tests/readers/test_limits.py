"""The length of an answer: sent where the client has a name for it, kept always, and no adapter's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, FakeListChatModel, FakeListLLM
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.llms.openai_like import OpenAILike

from langchain_surerag import LazyRetrievalChain, UncertaintyRewriteRetriever, reader_from_model
from langchain_surerag.families import PIPELINE
from llama_index_surerag import reader_from_llm
from surerag import LazyRAG, OpenAIReader, SamplingParams
from surerag.messages import Generation
from surerag.readers.protocol import BaseReader
from surerag.readers.reading import Reading, ReplyPart, usage_of
from surerag.text import TokenEstimate, estimated_tokens, prefix_of_tokens
from tests.methods.lazy_rag.corpus import Corpus
from tests.servers.fake_openai import FakeOpenAI

LONG = " ".join(["word"] * 60)
SHORT = SamplingParams(max_tokens=3, trace="none")


class Chat(BaseChatModel):
    """A chat model that writes sixty words, whatever it is asked for, in pieces of two letters."""

    heard: ClassVar[list[dict[str, Any]]] = []

    @property
    def _llm_type(self) -> str:
        return "chat"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        self.heard.append(kwargs)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(LONG))])

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.heard.append(kwargs)
        for start in range(0, len(LONG), 2):
            yield ChatGenerationChunk(message=AIMessageChunk(content=LONG[start : start + 2]))


class Limited(Chat):
    """One that has a name for a limit, and does not obey."""

    max_output_tokens: int | None = None


class Strict(Chat):
    """One that has a name for a limit, and takes it from its constructor alone."""

    max_tokens: int | None = None

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None) -> ChatResult:  # type: ignore[override]
        return super()._generate(messages)

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None) -> Any:  # type: ignore[override]
        return super()._stream(messages)


class Own(CustomLLM):
    """A LlamaIndex LLM of text alone."""

    heard: ClassVar[list[dict[str, Any]]] = []

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="own")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.heard.append(kwargs)
        return CompletionResponse(text=LONG)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        self.heard.append(kwargs)
        for end in range(2, len(LONG) + 2, 2):
            yield CompletionResponse(text=LONG[:end], delta=LONG[end - 2 : end])


class OwnLimited(Own):
    """One with a name for a limit."""

    max_tokens: int | None = None


def _whole(reader: BaseReader) -> Generation:
    return reader.generate(["?"], SHORT)[0][0]


def _streamed(reader: BaseReader) -> Generation:
    chunks = list(reader.stream("?", SHORT))
    generation = chunks[-1].generation
    assert generation is not None and "".join(chunk.text for chunk in chunks) == generation.text
    return generation


async def _awaited(reader: BaseReader) -> Generation:
    chunks = [chunk async for chunk in reader.astream("?", SHORT)]
    assert chunks[-1].generation is not None
    return chunks[-1].generation


WAYS: dict[str, Callable[[BaseReader], Generation]] = {
    "whole": _whole,
    "stream": _streamed,
    "begin": lambda reader: reader.begin(["?"], 2, SHORT)[0].rest(),
    "async": lambda reader: asyncio.run(_awaited(reader)),
}
TEXT_ONLY: dict[str, Callable[[], BaseReader]] = {
    "chat model": lambda: reader_from_model(Chat()),
    "chat model with a limit": lambda: reader_from_model(Limited()),
    "strict chat model": lambda: reader_from_model(Strict()),
    "list": lambda: reader_from_model(FakeListChatModel(responses=[LONG])),
    "LLM": lambda: reader_from_model(FakeListLLM(responses=[LONG])),
    "LlamaIndex": lambda: reader_from_llm(Own(), logprobs=False),
    "LlamaIndex with a limit": lambda: reader_from_llm(OwnLimited(), logprobs=False),
}


@pytest.mark.filterwarnings("ignore::surerag.readers.parameters.LeftOutWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", TEXT_ONLY)
def test_a_model_of_text_alone_is_cut_at_the_limit(model: str, way: str) -> None:
    answer = WAYS[way](TEXT_ONLY[model]())
    assert (answer.text, answer.finish) == ("word word word", "length")


def test_a_limit_is_sent_by_the_name_that_a_class_has_for_it() -> None:
    for model, expected in ((Chat(), {}), (Limited(), {"max_output_tokens": 3})):
        Chat.heard.clear()
        _whole(reader_from_model(model))
        assert Chat.heard == [expected]
    for llm, sent in ((Own(), {}), (OwnLimited(), {"max_tokens": 3})):
        Own.heard.clear()
        _whole(reader_from_llm(llm, logprobs=False))
        assert Own.heard == [sent]


def test_a_pipeline_is_told_the_limit() -> None:
    class Held:
        pipeline_kwargs: ClassVar[dict[str, Any]] = {"top_k": 3}

    assert PIPELINE.keywords({"max_tokens": 3}, Held()) == {
        "pipeline_kwargs": {"top_k": 3, "max_new_tokens": 3}
    }
    assert PIPELINE.keywords({}, Held()) == {"pipeline_kwargs": {"top_k": 3}}


def _langchain(server: FakeOpenAI, **settings: Any) -> BaseReader:
    model = ChatOpenAI(model="toy", base_url=server.base_url, api_key="k", max_retries=0, **settings)  # type: ignore[arg-type]
    return reader_from_model(model)


def _llama_index(server: FakeOpenAI, **settings: Any) -> BaseReader:
    settings |= {"is_chat_model": True, "max_retries": 0, "context_window": 8000}
    return reader_from_llm(OpenAILike(model="toy", api_base=server.base_url, api_key="k", **settings))


CLIENTS: dict[str, Callable[..., BaseReader]] = {
    "hosted": lambda server: OpenAIReader("toy", base_url=server.base_url, api_key="k", max_retries=0),
    "langchain": _langchain,
    "llama_index": _llama_index,
}


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_ignores_the_limit_is_cut_alike(client: str, way: str, counts: bool) -> None:
    ignored = ("max_tokens", "max_completion_tokens")
    with FakeOpenAI(lambda _: LONG, ignores=ignored, no_usage=not counts) as server:
        answer = WAYS[way](CLIENTS[client](server))
    assert (answer.text, answer.finish) == ("word word word", "length")


@pytest.mark.filterwarnings("ignore::surerag.readers.parameters.LeftOutWarning")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_limit_that_is_refused_is_kept_all_the_same(client: str) -> None:
    refused = ("max_tokens", "max_completion_tokens")
    with FakeOpenAI(lambda _: LONG, refuses=refused, no_usage=True) as server:
        reader = CLIENTS[client](server)
        answers = [way(reader) for way in WAYS.values()]
    assert {(answer.text, answer.finish) for answer in answers} == {("word word word", "length")}


def test_an_answer_that_kept_to_its_limit_is_left_whole() -> None:
    text = "Donaudampfschifffahrtsgesellschaft " * 3  # nine tokens each by the estimate
    for finish, usage in (("stop", 12), ("length", 0)):
        reading = Reading(SamplingParams(max_tokens=12, trace="none"))
        counts = {"completion_tokens": usage, "prompt_tokens": 1}
        reading.feed(ReplyPart(text, finish=finish, usage=usage_of(counts)))
        assert reading.generation().text == text.strip()


@pytest.mark.parametrize("client", ["langchain", "llama_index"])
def test_an_adapter_has_no_length_of_its_own(client: str) -> None:
    with FakeOpenAI(lambda _: LONG) as server:
        reader = CLIENTS[client](server)
        result = LazyRAG(reader, Corpus("Velm"), summaries="Ada").run("Where?")
        limited = CLIENTS[client](server, max_tokens=40)
        cut = LazyRAG(limited, Corpus("Velm"), summaries="Ada").run("Where?")
    assert reader.max_tokens is None and limited.max_tokens == 40
    assert (result.answer, result.finish) == (LONG, "stop")
    assert (len(cut.answer.split()), cut.finish) == (40, "length")
    first, second = server.requests
    assert not {"max_tokens", "max_completion_tokens"} & first.keys()
    assert second.get("max_tokens") or second["max_completion_tokens"] == 40


def test_a_chain_leaves_the_length_of_its_answer_to_the_model_and_limits_its_steps() -> None:
    with FakeOpenAI(lambda _: LONG) as server:
        model = ChatOpenAI(model="toy", base_url=server.base_url, api_key="k", max_retries=0)  # type: ignore[arg-type]
        search = RunnableLambda(lambda _: [Document("Velm")])
        assert LazyRetrievalChain(model, search, "Ada").invoke("Where?")["answer"] == LONG
        UncertaintyRewriteRetriever(model, search, threshold=-1.0).invoke("Where?")
    limits = [body.get("max_completion_tokens") for body in server.requests]
    assert limits[:3] == [None, None, 64]


def test_an_estimate_by_pieces_is_the_whole_one_and_a_prefix_fits() -> None:
    texts = [LONG, "艾达出生在维尔姆。" * 60, "Donaudampfschifffahrtsgesellschaft, 12345!", "", " \n a  b\n"]
    for text in texts:
        estimate = TokenEstimate()
        for start in range(0, len(text), 7):
            estimate.feed(text[start : start + 7])
        assert estimate.total == pytest.approx(estimated_tokens(text), abs=1 + len(text) / 200)
        for tokens in (1, 3, 20):
            end = prefix_of_tokens(text, tokens)
            assert estimated_tokens(text[:end]) <= tokens
            assert (
                end == len(text.rstrip()) or end == len(text) or estimated_tokens(text[: end + 12]) >= tokens
            )
