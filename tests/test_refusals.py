"""What a service refuses for good raises in every part and house; what may pass leaves the originals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import langchain_core.documents
import openai
import pytest
from langchain_core.retrievers import BaseRetriever as ChainRetriever
from llama_index.core.base.base_retriever import BaseRetriever as IndexRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

import langchain_surerag
import llama_index_surerag
from surerag import ClusterCompressor, DenseRefiner, FakeReader, OpenAIReader, UncertaintyRewriter
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import (
    MISCONFIGURED,
    ContextLengthError,
    LogprobsError,
    RefusedError,
    ServiceError,
    TransientServiceError,
)
from surerag.messages import Passage, SamplingParams
from surerag.readers.failures import kind_of
from surerag.readers.fake import reply
from tests.langchain.conftest import chat
from tests.llama_index.conftest import like
from tests.servers.fake_openai import FakeOpenAI

QUESTION = "Where was Ada born?"
TEXTS = [
    "Ada was born in Velm, a town of painters and of rain.",
    "Velm stands on the Orun, which is a river.",
]
UNSURE = FakeReader(lambda _: reply("Velm", entropy=5.0))


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as running:
        yield running


def passages() -> list[Passage]:
    return [Passage(text, id=str(at)) for at, text in enumerate(TEXTS)]


def nodes() -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=text, id_=str(at)), score=0.5) for at, text in enumerate(TEXTS)]


def documents() -> list[langchain_core.documents.Document]:
    return [langchain_core.documents.Document(text, id=str(at)) for at, text in enumerate(TEXTS)]


class Core:
    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        return passages()[:k]


class Nodes(IndexRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return nodes()


class Documents(ChainRetriever):
    def _get_relevant_documents(self, query: str, **_: Any) -> list[langchain_core.documents.Document]:
        return documents()


def core_reader(server: FakeOpenAI) -> OpenAIReader:
    return OpenAIReader("toy", base_url=server.base_url, api_key="sk-x", retries=0)


EDC2: dict[str, Any] = {"min_tokens": 0, "first_cluster_size": 1}
Ask = Callable[[FakeOpenAI], list[str]]
"""Runs a part whose reader is the server; returns the texts that it hands on."""


def compress_core(server: FakeOpenAI) -> list[str]:
    tool = ClusterCompressor(core_reader(server), HashingEncoder(), **EDC2)
    return [passage.text for passage in tool.run(QUESTION, passages()).passages]


def compress_nodes(server: FakeOpenAI) -> list[str]:
    tool = llama_index_surerag.ClusterCompressorPostprocessor(like(server), HashingEncoder(), **EDC2)
    return [node.text for node in tool.postprocess_nodes(nodes(), query_str=QUESTION)]


def compress_documents(server: FakeOpenAI) -> list[str]:
    tool = langchain_surerag.ClusterCompressor(chat(server), HashingEncoder(), **EDC2)
    return [document.page_content for document in tool.compress_documents(documents(), QUESTION)]


def refine_core(server: FakeOpenAI) -> list[str]:
    tool = DenseRefiner(core_reader(server), ExactEntailer())
    return [passage.text for passage in tool.run(QUESTION, passages()).passages]


def refine_nodes(server: FakeOpenAI) -> list[str]:
    tool = llama_index_surerag.DenseRefinerPostprocessor(like(server), entailer=ExactEntailer())
    return [node.text for node in tool.postprocess_nodes(nodes(), query_str=QUESTION)]


def refine_documents(server: FakeOpenAI) -> list[str]:
    tool = langchain_surerag.DenseRefiner(chat(server), HashingEncoder(), entailer=ExactEntailer())
    return [document.page_content for document in tool.compress_documents(documents(), QUESTION)]


def rewrite_core(server: FakeOpenAI) -> list[str]:
    tool = UncertaintyRewriter(UNSURE, Core(), core_reader(server), threshold=1.0)
    return [passage.text for passage in tool.run(QUESTION).passages]


def rewrite_nodes(server: FakeOpenAI) -> list[str]:
    engine = llama_index_surerag.UncertaintyRewriteQueryEngine.from_args(
        Nodes(), UNSURE, rewriter=like(server), threshold=1.0
    )
    return [node.text for node in engine.query(QUESTION).source_nodes]


def rewrite_documents(server: FakeOpenAI) -> list[str]:
    tool = langchain_surerag.UncertaintyRewriteRetriever(
        UNSURE, Documents(), rewriter=chat(server), threshold=1.0
    )
    return [document.page_content for document in tool.invoke(QUESTION)]


PARTS: list[Ask] = [
    compress_core,
    compress_nodes,
    compress_documents,
    refine_core,
    refine_nodes,
    refine_documents,
    rewrite_core,
    rewrite_nodes,
    rewrite_documents,
]
REFUSALS = [
    (401, {"message": "Incorrect API key provided", "code": "invalid_api_key"}),
    (404, {"message": "The model 'toy' does not exist", "code": "model_not_found"}),
    (400, {"message": "Unknown parameter: 'colour'", "code": "unknown_parameter", "param": "colour"}),
]
PASSING = [
    (503, {"message": "overloaded"}),
    (429, {"message": "slow down"}),
    (400, {"message": "too long", "code": "context_length_exceeded"}),
    (400, {"message": "The response was filtered", "code": "content_filter"}),
]


def fail(server: FakeOpenAI, status: int, error: dict[str, str]) -> None:
    server.fail(status, times=50, body=json.dumps({"error": error}).encode())


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
@pytest.mark.parametrize(("status", "error"), REFUSALS, ids=["401", "404", "400"])
def test_what_is_refused_for_good_raises_at_the_first_call(
    server: FakeOpenAI, part: Ask, status: int, error: dict[str, str]
) -> None:
    fail(server, status, error)
    with pytest.raises(RefusedError, match=error["message"]) as caught:
        part(server)
    assert caught.value.hint
    assert not caught.value.retryable
    assert len(server.requests) <= len(TEXTS), "nothing was asked again"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
@pytest.mark.parametrize(("status", "error"), PASSING, ids=["503", "429", "too long", "withheld"])
def test_what_may_pass_leaves_the_originals_with_a_warning(
    server: FakeOpenAI, part: Ask, status: int, error: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    fail(server, status, error)
    assert sorted(part(server)) == sorted(TEXTS)
    assert [record for record in caplog.records if record.name == "surerag" and record.levelname == "WARNING"]


class Web(Exception):
    """A client's error with a status where the client puts it."""

    def __init__(self, message: str = "", **carried: Any) -> None:
        super().__init__(message)
        self.__dict__.update(carried)


class ThrottlingException(Web):
    """As Bedrock names it, with a status of 400."""


def wrapped(cause: Exception) -> Exception:
    error = Web("the framework's own words")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Web(status_code=401), RefusedError),
        (Web(code=403), RefusedError),
        (Web(response=httpx.Response(404)), RefusedError),
        (Web(response={"ResponseMetadata": {"HTTPStatusCode": 403}}), RefusedError),
        (wrapped(Web(status_code=404)), RefusedError),
        (Web("insufficient_quota", status_code=429), RefusedError),
        (TypeError("create() got an unexpected keyword argument 'colour'"), RefusedError),
        (ModuleNotFoundError("no module named 'anthropic'"), RefusedError),
        (Web(status_code=429), TransientServiceError),
        (Web(status_code=529), TransientServiceError),
        (ThrottlingException(response={"ResponseMetadata": {"HTTPStatusCode": 400}}), TransientServiceError),
        (ConnectionResetError("gone"), TransientServiceError),
        (Web("maximum context length is 8 tokens", status_code=400), ContextLengthError),
        (Web(status_code=413), ContextLengthError),
        (Web("your input was flagged", status_code=403), ServiceError),
        (TypeError("'NoneType' object is not subscriptable"), ServiceError),
        (ValueError("no JSON"), ServiceError),
        (Web(status_code=200), ServiceError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
def test_kinds_of_failure(error: Exception, kind: type[ServiceError]) -> None:
    assert kind_of(error) is kind


def test_refused_log_probabilities_are_both_a_refusal_and_missing_log_probabilities(
    server: FakeOpenAI,
) -> None:
    server.become(refuses=("logprobs",))
    with pytest.raises(LogprobsError) as caught:
        core_reader(server).generate(["q"], SamplingParams())
    assert isinstance(caught.value, MISCONFIGURED)
    server.become(refuses=(), null_logprobs=True)
    with pytest.raises(LogprobsError) as caught:
        core_reader(server).generate(["q"], SamplingParams())
    assert not isinstance(caught.value, MISCONFIGURED), "one bad answer"


async def test_langchains_errors_stay_langchains_but_for_refusals(server: FakeOpenAI) -> None:
    reader = langchain_surerag.reader_from_model(chat(server))

    async def stream() -> None:
        async for _ in reader.astream("q", SamplingParams()):
            pass

    for status, error in ((401, RefusedError), (503, openai.InternalServerError)):
        server.fail(status, times=6)
        for ask in (
            lambda: reader.generate(["q"], SamplingParams()),
            lambda: reader.begin(["q"], 2, SamplingParams()),
            lambda: list(reader.stream("q", SamplingParams())),
        ):
            with pytest.raises(error):
                ask()
        with pytest.raises(error):
            await reader.agenerate(["q"], SamplingParams())
        with pytest.raises(error):
            await reader.abegin(["q"], 2, SamplingParams())
        with pytest.raises(error):
            await stream()
