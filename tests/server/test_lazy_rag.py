"""L-RAG against the real server, through every way in; the same answers and decisions as on this machine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from langchain_openai import ChatOpenAI, OpenAI
from llama_index.llms.openai_like import OpenAILike

from langchain_surerag import LazyRetrievalChain, reader_from_model
from llama_index_surerag import LazyRetrievalQueryEngine, reader_from_llm
from surerag import LazyRAG, OpenAIReader, Passage, TransformersReader
from surerag.errors import CapabilityError
from surerag.readers import BaseReader
from surerag.readers.conformance import check_reader
from tests.server.agreement import AGREEMENT, largest_difference
from tests.server.conftest import PLAIN
from tests.server.world_rag import BM25, DOCUMENTS, LIMITS, QUESTIONS, RETRIEVER, SUMMARY, K


def llama_index_llm(root: str, *, chat: bool) -> OpenAILike:
    return OpenAILike(
        model="embedded",
        api_base=root,
        api_key="none",
        is_chat_model=chat,
        additional_kwargs={"extra_body": PLAIN},
    )


def langchain_model(kind: Any, root: str) -> Any:
    return kind(model="embedded", base_url=root, api_key="none", extra_body=PLAIN)


def rag(reader: BaseReader, **settings: Any) -> LazyRAG:
    return LazyRAG(reader, RETRIEVER, SUMMARY, top_n=K, **LIMITS, **settings)


@pytest.fixture(scope="module")
def threshold(chat: OpenAIReader) -> float:
    """Some questions pass the gate: those below the widest gap, which no longer list of tokens moves."""
    entropies = sorted(
        result.decision.signal or 0.0 for result in rag(chat, threshold=1e9).run_many(QUESTIONS)
    )
    low, high = max(pairwise(entropies), key=lambda pair: pair[1] - pair[0])
    return (low + high) / 2


@pytest.fixture(scope="module")
def expected(chat: OpenAIReader, threshold: float) -> list[tuple[str, bool]]:
    results = rag(chat, threshold=threshold).run_many(QUESTIONS)
    return [(result.answer, result.decision.retrieve) for result in results]


@pytest.fixture(scope="module")
def chat_llm(server: str) -> OpenAILike:
    return llama_index_llm(server, chat=True)


@pytest.fixture(scope="module")
def chat_model(server: str) -> ChatOpenAI:
    return langchain_model(ChatOpenAI, server)


def test_both_branches_are_taken(expected: list[tuple[str, bool]]) -> None:
    assert {retrieved for _, retrieved in expected} == {True, False}


def test_the_model_in_this_process_answers_the_same(chat: OpenAIReader, local: TransformersReader) -> None:
    for mode in ("none", "standard", "strong"):
        ours, theirs = (rag(reader, mode=mode).run_many(QUESTIONS) for reader in (local, chat))
        assert [result.answer for result in ours] == [result.answer for result in theirs]
    ours, theirs = (rag(reader, threshold=1e9).run_many(QUESTIONS) for reader in (local, chat))
    for one, other in zip(ours, theirs, strict=True):
        exact, low, high = one.decision.signal, other.decision.lower, other.decision.upper
        assert exact is not None
        assert low is not None
        assert high is not None
        assert low - AGREEMENT <= exact <= high + AGREEMENT


async def test_async_and_streamed_core(
    chat: OpenAIReader, threshold: float, expected: list[tuple[str, bool]]
) -> None:
    lazy = rag(chat, threshold=threshold)
    for question, (answer, retrieved) in zip(QUESTIONS[:4], expected, strict=False):
        result = await lazy.arun(question)
        assert (result.answer, result.decision.retrieve) == (answer, retrieved)
        assert "".join(lazy.stream(question)) == answer
    await chat.aclose()


def test_through_llama_index(
    chat_llm: OpenAILike, threshold: float, expected: list[tuple[str, bool]]
) -> None:
    engine = LazyRetrievalQueryEngine.from_args(
        BM25(), chat_llm, summaries=SUMMARY, threshold=threshold, **LIMITS
    )
    responses = [engine.query(question) for question in QUESTIONS]
    assert [str(response) for response in responses] == [answer for answer, _ in expected]
    assert [response.metadata["retrieve"] for response in responses] == [opened for _, opened in expected]


def test_streamed_through_llama_index(
    chat_llm: OpenAILike, threshold: float, expected: list[tuple[str, bool]]
) -> None:
    engine = LazyRetrievalQueryEngine.from_args(
        BM25(), chat_llm, summaries=SUMMARY, threshold=threshold, streaming=True, **LIMITS
    )
    assert [str(engine.query(question)) for question in QUESTIONS] == [answer for answer, _ in expected]


def test_through_langchain(
    chat_model: ChatOpenAI, threshold: float, expected: list[tuple[str, bool]]
) -> None:
    chain = LazyRetrievalChain(chat_model, DOCUMENTS, SUMMARY, threshold=threshold, **LIMITS)
    outputs = [chain.invoke(question) for question in QUESTIONS]
    assert [(output["answer"], output["decision"]["retrieve"]) for output in outputs] == expected


async def test_async_through_langchain(
    chat_model: ChatOpenAI, threshold: float, expected: list[tuple[str, bool]]
) -> None:
    chain = LazyRetrievalChain(chat_model, DOCUMENTS, SUMMARY, threshold=threshold, **LIMITS)
    outputs = await chain.abatch(list(QUESTIONS))
    assert [output["answer"] for output in outputs] == [answer for answer, _ in expected]


READERS: dict[str, Callable[[str], BaseReader]] = {
    "OpenAILike chat": lambda root: reader_from_llm(llama_index_llm(root, chat=True)),
    "OpenAILike completions": lambda root: reader_from_llm(llama_index_llm(root, chat=False)),
    "ChatOpenAI": lambda root: reader_from_model(langchain_model(ChatOpenAI, root)),
    "OpenAI": lambda root: reader_from_model(langchain_model(OpenAI, root)),
}


@pytest.fixture(scope="module", params=READERS)
def framework_reader(request: pytest.FixtureRequest, server: str) -> tuple[BaseReader, bool]:
    """A reader made of a framework's model, and whether it applies the chat template itself."""
    return READERS[request.param](server), "completions" not in request.param and request.param != "OpenAI"


def test_framework_readers_see_the_same_logprobs(
    framework_reader: tuple[BaseReader, bool],
    local: TransformersReader,
    questions: list[str],
    rendered: list[str],
) -> None:
    reader, templated = framework_reader
    assert largest_difference(local, questions, reader, questions if templated else rendered) <= AGREEMENT


def test_framework_readers_conform(
    framework_reader: tuple[BaseReader, bool], questions: list[str], rendered: list[str]
) -> None:
    reader, templated = framework_reader
    prompts = (questions if templated else rendered)[3:9:2]
    report = check_reader(reader, prompts=prompts, tolerance=AGREEMENT, seeded=False)
    assert report.passed, str(report)


def test_an_echo_that_is_one_place_off_is_found_out(server: str) -> None:
    """This server's is, for a model without a start token."""
    reader = reader_from_model(langchain_model(OpenAI, server), scoring="probe")
    assert not reader.capabilities.score
    with pytest.raises(CapabilityError, match="same words when said"):
        reader.score(["The river"], [" Orun"])


def test_passages_of_the_open_branch_are_the_retrievers(chat: OpenAIReader) -> None:
    result = rag(chat, threshold=0.0).run(QUESTIONS[0])
    assert result.passages == tuple(RETRIEVER.retrieve(QUESTIONS[0], K))
    assert all(isinstance(passage, Passage) for passage in result.passages)
