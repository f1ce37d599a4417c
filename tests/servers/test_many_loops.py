"""One reader in many event loops at the same time: each has connections of its own, and takes them along."""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from surerag.readers.openai.loops import client_of_this_loop
from surerag.types import Sampling
from tests.servers.abandoning import chat_model, completions_model, core_reader, llama_llm, settled, sockets
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script

THREADS, LOOPS, AT_ONCE = 8, 4, 6


def of_llm(url: str, **settings: Any) -> Any:
    from llama_index_surerag import reader_from_llm

    return reader_from_llm(llama_llm(url), **settings)


def of_model(model: Any, **settings: Any) -> Any:
    from langchain_surerag import reader_from_model

    return reader_from_model(model, **settings)


READERS: dict[str, Callable[[str], Any]] = {
    "core": core_reader,
    "llama-index": lambda url: of_llm(url, top_logprobs=2),
    "llama-index, text": lambda url: of_llm(url, logprobs=False),
    "langchain": lambda url: of_model(chat_model(url), top_logprobs=2),
    "langchain, text": lambda url: of_model(chat_model(url), logprobs=False),
    "langchain, completions": lambda url: of_model(completions_model(url), top_logprobs=2),
}


@pytest.mark.parametrize("kind", READERS)
def test_no_loop_waits_for_another_one(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with FakeOpenAI(Script(lambda prompt: prompt)) as server:
        reader = READERS[kind](server.base_url)
        before = sockets()
        found: list[str] = []

        async def together(name: str) -> None:
            wanted = [f"{name} {number}" for number in range(AT_ONCE)]
            asked = (reader.agenerate([prompt], Sampling()) for prompt in wanted)
            rows = await asyncio.wait_for(asyncio.gather(*asked), 30)
            assert [row[0][0].text for row in rows] == wanted
            found.extend(wanted)

        def loops(name: str) -> None:
            for number in range(LOOPS):
                asyncio.run(together(f"{name} {number}"))

        threads = [threading.Thread(target=loops, args=(f"t{number}",)) for number in range(THREADS)]
        with caplog.at_level(logging.ERROR, "asyncio"):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            gc.collect()
        assert len(found) == THREADS * LOOPS * AT_ONCE
        assert settled(before + 2) <= before + 2
        assert not caplog.messages


def test_a_loop_keeps_its_connections_and_closes_them_when_it_ends() -> None:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=7)

    async def copies() -> tuple[Any, Any]:
        return client_of_this_loop(client), client_of_this_loop(client)

    first, again = asyncio.run(copies())
    other, _ = asyncio.run(copies())
    assert first._client is again._client
    assert len({first._client, other._client, client._client}) == 3
    assert first.max_retries == 7 and first.base_url == client.base_url
    assert first.is_closed() and other.is_closed() and not client.is_closed()


@pytest.mark.parametrize("kind", ["core", "llama-index", "langchain"])
def test_certificates_are_not_read_for_each_loop(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI(Script(lambda _: "yes")) as server:
        reader = READERS[kind](server.base_url)
        asyncio.run(reader.agenerate(["q"], Sampling()))
        read: list[str] = []
        load = ssl.SSLContext.load_verify_locations
        monkeypatch.setattr(
            ssl.SSLContext, "load_verify_locations", lambda *given: read.append("once") or load(*given)
        )
        for _ in range(3):
            asyncio.run(reader.agenerate(["q"], Sampling()))
        assert not read


async def test_a_client_over_the_users_own_http_client_stays_as_it_is() -> None:
    from openai import AsyncOpenAI

    async with httpx.AsyncClient() as http:
        client = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", http_client=http)
        assert client_of_this_loop(client) is client
