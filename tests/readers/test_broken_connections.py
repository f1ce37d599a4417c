"""A connection that breaks while nothing was shown yet is asked again, whole, within max_retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike

from langchain_surerag import LazyRetrievalChain, reader_from_model
from llama_index_surerag import reader_from_llm
from surerag import LazyRAG, OpenAIReader, Passage, SamplingParams
from surerag.errors import TransientServiceError
from surerag.readers.protocol import BaseReader
from tests.servers.fake_openai import FakeOpenAI

ANSWER = "Ada was born in Velm, by the river Orun, long ago."
SAMPLING = SamplingParams(max_tokens=32, trace="logprobs")
BREAKS = ("hangs up midway", "no end")


def _langchain(server: FakeOpenAI, retries: int) -> BaseReader:
    return reader_from_model(_chat(server, retries))


def _chat(server: FakeOpenAI, retries: int) -> Any:
    return ChatOpenAI(model="toy", base_url=server.base_url, api_key="k", max_retries=retries)  # type: ignore[arg-type]


def _llama_index(server: FakeOpenAI, retries: int) -> BaseReader:
    settings: Any = {"is_chat_model": True, "max_retries": retries, "context_window": 8000}
    return reader_from_llm(OpenAILike(model="toy", api_base=server.base_url, api_key="k", **settings))


CLIENTS: dict[str, Callable[[FakeOpenAI, int], BaseReader]] = {
    "hosted": lambda server, retries: OpenAIReader(
        "toy", base_url=server.base_url, api_key="k", max_retries=retries
    ),
    "langchain": _langchain,
    "llama_index": _llama_index,
}


def whole(reader: BaseReader) -> str:
    return reader.generate(["Where?"], SAMPLING)[0][0].text


def begun(reader: BaseReader) -> str:
    """Breaks behind the tokens that the gate reads."""
    return reader.begin(["Where?"], 2, SAMPLING)[0].rest().text


def gate(reader: BaseReader) -> str:
    """Breaks before the gate has read its tokens."""
    return reader.begin(["Where?"], 8, SAMPLING)[0].rest().text


async def awaited(reader: BaseReader) -> str:
    return (await (await reader.abegin(["Where?"], 2, SAMPLING))[0].arest()).text


WAYS: dict[str, Callable[[BaseReader], str]] = {
    "whole": whole,
    "begun": begun,
    "gate": gate,
    "awaited": lambda reader: asyncio.run(awaited(reader)),
}


@pytest.mark.parametrize("fault", BREAKS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_what_breaks_is_asked_again(client: str, way: str, fault: str) -> None:
    with FakeOpenAI(lambda _: ANSWER) as server:
        server.fail(fault)
        assert WAYS[way](CLIENTS[client](server, 1)) == ANSWER
        assert len(server.requests) == (1 if (way, fault) == ("whole", "no end") else 2)


@pytest.mark.parametrize("way", ["begun", "gate"])
@pytest.mark.parametrize("client", CLIENTS)
def test_no_more_often_than_allowed(client: str, way: str) -> None:
    with FakeOpenAI(lambda _: ANSWER) as server:
        server.fail("no end", times=9)
        with pytest.raises(TransientServiceError):
            WAYS[way](CLIENTS[client](server, 2))
        assert len(server.requests) == 3


@pytest.mark.parametrize("client", CLIENTS)
def test_what_was_shown_is_not_taken_back(client: str) -> None:
    with FakeOpenAI(lambda _: ANSWER) as server:
        server.fail("no end")
        shown: list[str] = []
        with pytest.raises(TransientServiceError):
            shown.extend(chunk.text for chunk in CLIENTS[client](server, 3).stream("Where?", SAMPLING))
        assert len(server.requests) == 1


def test_a_gate_decides_as_if_nothing_had_broken() -> None:
    class Library:
        def retrieve(self, query: str, k: int | None) -> list[Passage]:
            return [Passage("Velm", id="1")]

    with FakeOpenAI(lambda _: ANSWER) as server:
        for fault in BREAKS:
            server.fail(fault)
            result = LazyRAG(CLIENTS["hosted"](server, 1), Library(), summaries="Ada").run("Where?")
            assert (result.answer, result.decision.retrieve) == (ANSWER, False)
            search = RunnableLambda(lambda _: [Document("Velm")])
            server.fail(fault)
            output = LazyRetrievalChain(_chat(server, 1), search, "Ada").invoke("Where?")
            assert (output["answer"], output["decision"]["retrieve"]) == (ANSWER, False)
