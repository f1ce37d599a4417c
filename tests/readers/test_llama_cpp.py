"""The methods of both frameworks over a llama.cpp server: a real one, and one that behaves as it does.

The real one, with a real model, runs where ``make test-server`` has built it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike

import langchain_surerag as lc
import llama_index_surerag as li
from surerag import LazyRAG, OpenAIReader, Passage, SamplingParams, SePer, UncertaintyRewriter
from surerag.cli import doctor
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.methods.lazy_rag.component import FixedSummary
from surerag.readers.conformance import check_reader
from surerag.readers.hosted.wire import Api
from surerag.readers.protocol import BaseReader
from tests.llama_index import corpus
from tests.servers import llama_cpp
from tests.servers.fake_openai import FakeOpenAI

QUESTION = "When was the Eiffel Tower opened?"
TEXT = "The Eiffel Tower was opened in 1889."
OTHER = "Tin melts at 232 degrees."
ENCODER, ENTAILER = HashingEncoder(), ExactEntailer()
LIKE_LLAMA_CPP = {"needs_top": True, "ignores_n": True, "ignores": ("max_completion_tokens",)}
NEEDED = pytest.mark.skipif(not llama_cpp.PYTHON, reason="make test-server runs it")


@pytest.fixture(scope="module")
def real_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_cpp.llama_cpp_server(tmp_path_factory.mktemp("server") / "log.txt") as root:
        yield root


@pytest.fixture(params=["like it", pytest.param("real", marks=NEEDED)])
def root(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "real":
        yield request.getfixturevalue("real_root")
        return
    with FakeOpenAI(**LIKE_LLAMA_CPP) as server:
        yield server.base_url


def chat_model(root: str) -> ChatOpenAI:
    return ChatOpenAI(model="toy", base_url=root, api_key="k", max_retries=0)  # type: ignore[arg-type]  # a str


def llm(root: str) -> OpenAILike:
    return OpenAILike(model="toy", api_base=root, api_key="k", is_chat_model=True, max_retries=0)


def hosted(root: str) -> OpenAIReader:
    return OpenAIReader("toy", base_url=root, api_key="k", max_retries=0)


READERS: dict[str, Callable[[str], BaseReader]] = {
    "hosted": hosted,
    "LangChain": lambda root: lc.reader_from_model(chat_model(root)),
    "LlamaIndex": lambda root: li.reader_from_llm(llm(root)),
}


@NEEDED
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_probed_reader_passes_the_conformance_suite(real_root: str, api: Api) -> None:
    reader = OpenAIReader("smollm2", base_url=real_root, api=api)
    reader.probe()
    assert reader.capabilities.logprobs
    # In four bits its figures depend on what is read at once, and samples of one seed with them; so do greedy
    # answers that hang on a tie, which answers from a context do not.
    prompts = [f"Context: {text}\nQuestion: {QUESTION}\nAnswer:" for text in (TEXT, f"{OTHER} {TEXT}")]
    report = check_reader(reader, prompts=prompts, tolerance=0.5, seeded=False)
    assert report.passed, str(report)


@pytest.mark.parametrize("probed", [False, True])
@pytest.mark.parametrize("name", READERS)
def test_log_probabilities_alone_come_however_they_are_requested(name: str, probed: bool) -> None:
    sampling = SamplingParams(max_tokens=4, trace="logprobs")
    for streamed in (False, True):
        with FakeOpenAI(**LIKE_LLAMA_CPP) as server:
            reader = READERS[name](server.base_url)
            if probed and isinstance(reader, OpenAIReader):
                assert reader.probe().logprobs
            before = len(server.requests)
            for _ in range(2):
                if streamed:
                    answer = reader.begin(["Where?"], 2, sampling)[0].rest()
                else:
                    answer = reader.generate(["Where?"], sampling)[0][0]
                assert answer.text and answer.trace is not None and len(answer.trace) > 0
            assert len(server.requests) - before == 2


class Search:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage(TEXT, id="tower"), Passage(OTHER, id="tin")][:k]


def search(query: str) -> list[Document]:
    return [Document(TEXT), Document(OTHER)]


def measured_in_langchain(evaluator: Any) -> float | None:
    feedback = evaluator(
        inputs={"question": QUESTION},
        outputs={"documents": search(QUESTION)},
        reference_outputs={"answer": "1889"},
    )
    score: float | None = feedback["results"][0]["score"]
    return score


METHODS: dict[str, Callable[[str], Any]] = {
    "core: L-RAG": lambda root: LazyRAG(hosted(root), Search(), "Towers.").run(QUESTION).decision.score,
    "core: DynQR": lambda root: UncertaintyRewriter(hosted(root), Search()).run(QUESTION).uncertainty,
    "core: ΔSePer": lambda root: (
        SePer(hosted(root), ENTAILER, n_samples=2).run(QUESTION, ["1889"], [Passage(TEXT)]).delta
    ),
    "LangChain: L-RAG": lambda root: lc.LazyRetrievalChain(
        chat_model(root), RunnableLambda(search), "Towers."
    ).invoke(QUESTION)["decision"]["score"],
    "LangChain: DynQR": lambda root: (
        lc.UncertaintyRewriteRetriever(chat_model(root), RunnableLambda(search))
        .invoke(QUESTION)[0]
        .metadata["uncertainty_rewrite"]["uncertainty"]
    ),
    "LangChain: EDC²-RAG": lambda root: lc.ClusterCompressor(
        chat_model(root), ENCODER, top_n=1
    ).compress_documents(search(QUESTION), QUESTION),
    "LangChain: DENSE-RAG": lambda root: measured_in_langchain(lc.DenseEvaluator(chat_model(root), ENTAILER)),
    "LangChain: ΔSePer": lambda root: measured_in_langchain(
        lc.DeltaSePerEvaluator(chat_model(root), ENTAILER, n_samples=2)
    ),
    "LlamaIndex: L-RAG": lambda root: (
        li.LazyRetrievalQueryEngine.from_args(corpus.index(), llm(root), embed_model=corpus.HashEmbedding())
        .query(QUESTION)
        .metadata["score"]
    ),
    "LlamaIndex: DynQR": lambda root: (
        li.UncertaintyRewriteQueryEngine.from_args(corpus.index().as_retriever(), llm(root))
        .query(QUESTION)
        .metadata["uncertainty"]
    ),
    "LlamaIndex: EDC²-RAG": lambda root: li.ClusterCompressorPostprocessor(
        llm(root), ENCODER, top_n=1
    ).postprocess_nodes(corpus.scored(TEXT, OTHER), query_str=QUESTION),
    "LlamaIndex: DENSE-RAG": lambda root: (
        li.DenseEvaluator(llm(root), ENTAILER).evaluate(QUESTION, contexts=[TEXT, OTHER]).score
    ),
    "LlamaIndex: ΔSePer": lambda root: (
        li.DeltaSePerEvaluator(llm(root), ENTAILER, n_samples=2)
        .evaluate(QUESTION, contexts=[TEXT], reference="1889")
        .score
    ),
}
"""What each returns is not None where the method could measure, or compress."""


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_both_frameworks_runs(
    root: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    found = METHODS[method](root)
    # A model of 135 M parameters may copy what it should reword, and DENSE says that this shows nothing.
    assert found is not None or (method.endswith("DENSE-RAG") and "dense.not_conclusive" in caplog.text)
    # Where a server lists no end token, ΔSePer counts answers, and says so.
    assert "no log-prob" not in caplog.text
    assert "failed" not in caplog.text


def test_doctor_says_of_each_method_what_the_probe_shows(root: str) -> None:
    reader = hosted(root)
    reader.probe()
    verdicts = doctor.check_methods(reader, judges=False)
    assert all(runs for runs, _ in verdicts.values()), verdicts
    assert verdicts["L-RAG"][1] == 'gate="entropy"'
    assert verdicts["DynQR"][1] == 'metric="perplexity"'
    lazy = LazyRAG(reader, Search(), FixedSummary("Towers."), max_tokens=16)
    result = lazy.run(QUESTION)
    assert result.answer and result.decision.score is not None and result.decision.score > 0
