"""A server without log-probabilities: the first question settles it, and the gate of the text decides."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from llama_index.core import Document as LlamaDocument
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.llms.openai_like import OpenAILike

from langchain_surerag import LazyRetrievalChain
from llama_index_surerag import LazyRetrievalQueryEngine
from surerag import AbstentionGate, EntropyGate, LazyRAG, MarginGate, OpenAIReader
from surerag.errors import CapabilityError, LogprobsRefusedError, TransientServiceError
from surerag.readers.parameters import LeftOutWarning
from tests.methods.lazy_rag.corpus import Corpus
from tests.servers.fake_openai import FakeOpenAI

SUMMARY = "Ada was born in Velm."
SECRETS = ("127.0.0.1", "api_key", "OpenAIReader", "TransformersReader", "raise max", "check ")


def answer(prompt: str) -> str:
    return (
        "I do not know." if "refund" in prompt and "days" not in prompt else "Ada lived in Velm all her life."
    )


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(answer, no_logprobs=True) as running:
        yield running


def reader_of(server: FakeOpenAI, **settings: Any) -> OpenAIReader:
    return OpenAIReader("toy", base_url=server.base_url, api_key="k", max_retries=0, **settings)


def core(server: FakeOpenAI) -> Callable[[str], dict[str, Any]]:
    rag = LazyRAG(reader_of(server), Corpus("Money comes back in 30 days."), summaries=SUMMARY)

    def ask(question: str) -> dict[str, Any]:
        result = rag.run(question)
        return {**result.decision.to_dict(), "requests": result.usage.requests, "answer": result.answer}

    return ask


def langchain(server: FakeOpenAI) -> Callable[[str], dict[str, Any]]:
    model = ChatOpenAI(model="toy", base_url=server.base_url, api_key="k", max_retries=0)  # type: ignore[arg-type]
    search = RunnableLambda(lambda _: [Document("Money comes back in 30 days.")])
    chain = LazyRetrievalChain(model, search, SUMMARY, return_details=True)

    def ask(question: str) -> dict[str, Any]:
        output: Any = chain.invoke(question)
        return {**output["decision"], "requests": output["usage"]["requests"], "answer": output["answer"]}

    return ask


def llama_index(server: FakeOpenAI) -> Callable[[str], dict[str, Any]]:
    settings: Any = {"is_chat_model": True, "max_retries": 0, "context_window": 8000}
    llm = OpenAILike(model="toy", api_base=server.base_url, api_key="k", **settings)
    encoder = MockEmbedding(4)
    document = LlamaDocument(text="Money comes back in 30 days.")
    index = VectorStoreIndex.from_documents([document], embed_model=encoder)
    engine = LazyRetrievalQueryEngine.from_args(index, llm, summaries=SUMMARY, embed_model=encoder)

    def ask(question: str) -> dict[str, Any]:
        before = len(server.requests)
        response: Any = engine.query(question)
        return {
            **response.metadata,
            "requests": len(server.requests) - before,
            "answer": str(response),
        }

    return ask


EACH = pytest.mark.parametrize("framework", [core, langchain, llama_index])


@EACH
@pytest.mark.parametrize("option", ["no_logprobs", "ignores"])
def test_the_first_question_settles_it(
    server: FakeOpenAI, framework: Callable[[FakeOpenAI], Callable[[str], dict[str, Any]]], option: str
) -> None:
    server.options |= {"no_logprobs": option == "no_logprobs"}
    server.options["ignores"] = ("logprobs", "top_logprobs") if option == "ignores" else ()
    ask = framework(server)
    with pytest.warns(LeftOutWarning) as warned:
        outcomes = [ask(question) for question in ("Where was Ada?", "What is the refund?", "Where was Ada?")]
    [warning] = [str(one.message) for one in warned if one.category is LeftOutWarning]
    assert "the gate abstention in place of entropy" in warning
    assert "Ada" not in warning
    assert ". " not in warning.strip()
    assert [(one["retrieve"], one["gate"], one["requests"]) for one in outcomes] == [
        (False, "abstention", 1),
        (True, "abstention", 2),
        (False, "abstention", 1),
    ]
    assert [bool(body.get("logprobs")) for body in server.requests] == [True, False, False, False]
    for outcome in outcomes:
        assert not any(secret in str(outcome) for secret in SECRETS)


def test_which_gate_is_in_use_can_be_asked(server: FakeOpenAI) -> None:
    reader = reader_of(server)
    rag = LazyRAG(reader, Corpus("a"), summaries=SUMMARY)
    assert isinstance(rag.gate_in_use, EntropyGate)
    with pytest.warns(LeftOutWarning):
        rag.run("Where?")
    assert isinstance(rag.gate_in_use, AbstentionGate)
    assert not reader.gives_logprobs
    other = LazyRAG(reader, Corpus("a"), summaries=SUMMARY, gate=MarginGate())
    assert isinstance(other.gate_in_use, AbstentionGate)
    strict = LazyRAG(reader, Corpus("a"), summaries=SUMMARY, abstention=False)
    assert isinstance(strict.gate_in_use, EntropyGate)


def test_an_answer_without_them_settles_nothing_where_others_had_them(server: FakeOpenAI) -> None:
    server.options["no_logprobs"] = False
    reader = reader_of(server)
    rag = LazyRAG(reader, Corpus("a"), summaries=SUMMARY)
    gates = []
    for fault in (None, "logprobs are null", None):
        server.fault = fault
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gates.append(rag.run("Where?").decision.gate)
    assert gates == ["entropy", "abstention", "entropy"]
    assert reader.gives_logprobs


def test_without_an_abstention_there_is_no_gate_of_the_text(server: FakeOpenAI) -> None:
    rag = LazyRAG(reader_of(server), Corpus("a"), summaries=SUMMARY, abstention=False)
    with pytest.raises(CapabilityError, match="abstention"):
        rag.run("Where?")


def test_a_server_that_refuses_them_raises() -> None:
    with FakeOpenAI(answer, refuses=("logprobs",)) as server:
        rag = LazyRAG(reader_of(server), Corpus("a"), summaries=SUMMARY)
        with pytest.raises(LogprobsRefusedError):
            rag.run("Where?")


def test_a_probe_tells_at_construction(server: FakeOpenAI) -> None:
    reader = reader_of(server)
    reader.probe()
    with pytest.raises(CapabilityError, match="log-probabilities"):
        LazyRAG(reader, Corpus("a"), summaries=SUMMARY)


@EACH
def test_a_decision_holds_no_address_and_no_advice(
    server: FakeOpenAI, framework: Callable[[FakeOpenAI], Callable[[str], dict[str, Any]]]
) -> None:
    ask = framework(server)
    server.options["no_logprobs"] = False
    for fault in ("hangs up", "500", "too long", "not JSON"):
        server.fail(fault)
        outcome = ask("Where was Ada?")
        assert outcome["retrieve"], fault
        assert "the first pass failed" in outcome["reason"]
        assert not any(secret in str(outcome) for secret in SECRETS), outcome
    server.fault = "500"
    with pytest.raises(TransientServiceError, match=r"127\.0\.0\.1"):
        ask("Where was Ada?")
