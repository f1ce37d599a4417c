"""The engine over a user's OpenAILike, against a server that counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.llms.openai_like import OpenAILike

from llama_index_surerag import EmbeddingEncoder, LazyRetrievalQueryEngine
from surerag import LazyRAG
from surerag.messages import Passage
from surerag.readers.hosted import OpenAIReader
from surerag.retrieval import PassageIndex, SummaryIndex
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, UNKNOWN
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script

SETTINGS: dict[str, Any] = {"top_n": 2, "n_summaries": 1, "gate_tokens": 4, "max_tokens": 8, "threshold": 0.3}


def over(server: FakeOpenAI, **settings: Any) -> LazyRetrievalQueryEngine:
    llm = OpenAILike(
        model="toy", api_base=server.base_url, api_key="sk-secret", is_chat_model=True, max_retries=0
    )
    return LazyRetrievalQueryEngine.from_args(corpus.index(), llm, **SETTINGS, **settings)


def sure(word: str) -> float:
    return -3.0 if word.strip() == "perhaps" else -0.01


async def test_a_shut_gate_is_one_request_and_an_open_one_hangs_up_after_n_tokens() -> None:
    with FakeOpenAI(Script(corpus.answer, logprob=sure)) as server:
        lazy = over(server)
        for ask in (lazy.query, lambda question: asyncio.run(lazy.aquery(question))):
            server.requests.clear()
            response = await asyncio.to_thread(ask, KNOWN)
            assert response.metadata["retrieve"] is False
            assert len(server.requests) == 1
    with FakeOpenAI(Script(corpus.answer, logprob=sure), hold_after=4) as server:
        lazy = over(server)
        # A held stream ends only when the client closes it, with 4 tokens read and no more.
        response = await lazy.aquery(UNKNOWN)
        record = await asyncio.to_thread(server.streams[0].wait)
        assert (record.sent, record.closed_early) == (4, True)
        assert len(server.requests) == 2
        assert response.metadata["retrieve"] is True
        assert not response.metadata["exact"]
        assert response.metadata["lower"] <= response.metadata["signal"] <= response.metadata["upper"]
        assert str(response).startswith("In the lake of Mir")


async def test_streaming_over_a_server_on_both_branches() -> None:
    with FakeOpenAI(Script(corpus.answer, logprob=sure)) as server:
        lazy = over(server, streaming=True)
        for question, start in ((KNOWN, "She was born in Velm"), (UNKNOWN, "In the lake of Mir")):
            response = lazy.query(question)
            assert response.metadata["retrieve"] == (question == UNKNOWN)
            assert "".join(response.response_gen).startswith(start)
            later = await lazy.aquery(question)
            assert "".join([piece async for piece in later.async_response_gen()]).startswith(start)


def test_an_llm_and_the_core_reader_decide_alike() -> None:
    with FakeOpenAI(Script(corpus.answer, logprob=sure)) as server:
        encoder = EmbeddingEncoder(corpus.HashEmbedding())
        passages = [Passage(node.text, id=node.node_id) for node in corpus.nodes()]
        summaries = [Passage(text, id=f"{name}:summary") for name, text in corpus.LEADS.items()]
        theirs = LazyRAG(
            OpenAIReader("toy", base_url=server.base_url, api_key="sk-secret"),
            PassageIndex.from_passages(passages, encoder),
            SummaryIndex.from_passages(summaries, encoder),
            **SETTINGS,
        )
        mine = over(server)
        questions = [KNOWN, UNKNOWN]
        assert theirs.reader.name == mine.core.reader.name
        for result, response in zip(theirs.run_many(questions), map(mine.query, questions), strict=True):
            assert response.response == result.answer
            assert response.metadata["signal"] == pytest.approx(result.decision.signal, abs=1e-5)


def test_no_key_is_in_what_an_engine_tells() -> None:
    with FakeOpenAI(Script(corpus.answer)) as server:
        lazy = over(server)
        assert "sk-secret" not in f"{lazy!r} {lazy.to_dict()} {lazy.core!r} {lazy.core.reader!r}"
