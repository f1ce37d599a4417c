"""llama.cpp in this process, through each framework's own class: the same answers and decisions."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from langchain_surerag import LazyRetrievalChain, reader_from_model
from llama_index_surerag import LazyRetrievalQueryEngine, reader_from_llm
from surerag import LazyRAG, Sampling, TransformersReader
from surerag.readers.conformance import Trial, check_reader
from tests.server.agreement import AGREEMENT, largest_difference
from tests.server.conftest import MODEL
from tests.server.llama_server import PYTHON
from tests.server.world_rag import BM25, DOCUMENTS, LIMITS, QUESTIONS, RETRIEVER, SUMMARY, K

# A cache in float32, so that values can be compared.
EXACT = {"type_k": 0, "type_v": 0}
LLAMA: dict[str, Any] = {"n_ctx": 2048, "n_batch": 2048, "n_threads": 2, "verbose": False}


@pytest.fixture(scope="module", autouse=True)
def llama_cpp() -> Any:
    """The module that was built for the server's interpreter, which is the same."""
    told = subprocess.run(
        [PYTHON, "-c", "import llama_cpp; print(llama_cpp.__file__)"], capture_output=True, text=True
    )
    sys.path.append(str(Path(told.stdout.strip()).parents[1]))
    return pytest.importorskip("llama_cpp")


def rendered(question: str) -> str:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    return str(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
    )


@pytest.fixture(scope="module")
def langchain_model(gguf: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from langchain_community.chat_models.llamacpp import ChatLlamaCpp

    # Its defaults for the positions overrule what the model's file says; 0 leaves them to the file.
    positions = {"rope_freq_base": 0.0, "rope_freq_scale": 0.0}
    return ChatLlamaCpp(
        model_path=str(gguf),
        logits_all=True,
        temperature=0.0,
        repeat_penalty=1.0,
        max_tokens=64,
        model_kwargs=EXACT,
        **positions,
        **LLAMA,
    )


@pytest.fixture(scope="module")
def llama_index_llm(gguf: Path) -> Any:
    """The class sends what it is given, so it is told how a question is put to this model."""
    kind = pytest.importorskip("llama_index.llms.llama_cpp").LlamaCPP
    return kind(
        model_path=str(gguf),
        context_window=2048,
        generate_kwargs={"repeat_penalty": 1.0},
        model_kwargs={"logits_all": True, "n_batch": 2048, "n_threads": 2, **EXACT},
        completion_to_prompt=rendered,
        messages_to_prompt=lambda messages: rendered(str(messages[-1].content)),
        verbose=False,
    )


@pytest.fixture(scope="module")
def expected(local: TransformersReader) -> list[tuple[str, bool]]:
    results = LazyRAG(local, RETRIEVER, SUMMARY, top_n=K, **LIMITS).run_many(QUESTIONS)
    assert {result.decision.retrieve for result in results} == {True, False}
    return [(result.answer, result.decision.retrieve) for result in results]


def test_answers_and_log_probabilities_through_langchain(
    langchain_model: Any, local: TransformersReader, questions: list[str]
) -> None:
    reader = reader_from_model(langchain_model)
    assert largest_difference(local, questions[:6], reader, questions[:6]) < AGREEMENT


def test_answers_and_log_probabilities_through_llama_index(
    llama_index_llm: Any, local: TransformersReader, questions: list[str]
) -> None:
    reader = reader_from_llm(llama_index_llm)
    assert largest_difference(local, questions[:6], reader, questions[:6]) < AGREEMENT


def test_the_chain_decides_the_same(langchain_model: Any, expected: list[tuple[str, bool]]) -> None:
    chain = LazyRetrievalChain(langchain_model, DOCUMENTS, SUMMARY, **LIMITS)
    found = [chain.invoke(question) for question in QUESTIONS]
    assert [(out["answer"], out["decision"]["retrieve"]) for out in found] == expected


def test_the_engine_decides_the_same(llama_index_llm: Any, expected: list[tuple[str, bool]]) -> None:
    engine = LazyRetrievalQueryEngine.from_args(BM25(), llama_index_llm, summaries=SUMMARY, **LIMITS)
    found = [engine.query(question) for question in QUESTIONS]
    assert [(str(out), out.metadata["retrieve"]) for out in found] == expected


def test_positions_that_overrule_the_models_own_are_told_of(gguf: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from langchain_community.chat_models.llamacpp import ChatLlamaCpp

        model = ChatLlamaCpp(model_path=str(gguf), logits_all=True, max_tokens=4, **LLAMA)
    with pytest.warns(UserWarning, match=r"rope_freq_base=10000\) overrules the model's own"):
        reader_from_model(model).generate(["Where?"], Sampling(max_tokens=2))


@pytest.mark.parametrize("house", ["langchain", "llama_index"])
def test_conformance(house: str, request: pytest.FixtureRequest, questions: list[str]) -> None:
    if house == "langchain":
        reader = reader_from_model(request.getfixturevalue("langchain_model"))
    else:
        reader = reader_from_llm(request.getfixturevalue("llama_index_llm"))
    report = check_reader(reader, Trial(prompts=questions[3:9:2], tolerance=AGREEMENT, seeded=False))
    assert report.passed, str(report)
