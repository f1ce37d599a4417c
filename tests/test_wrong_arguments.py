"""Arguments of the wrong kind: every public part says what it expected, at construction."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_openai import ChatOpenAI
from llama_index.core.settings import Settings

import langchain_surerag as langchain
import llama_index_surerag as llama_index
import surerag
from surerag.encoders import CachedEncoder, HashingEncoder
from surerag.entailment import ExactEntailer, JudgeEntailer
from surerag.errors import ConfigurationError, PromptError, SureragError
from surerag.retrieval import PassageIndex
from tests.langchain.conftest import HashEmbeddings
from tests.llama_index import corpus
from tests.llama_index.llms import Own

READER, ENCODER, VELM = surerag.FakeReader(), HashingEncoder(), "Ada was born in Velm."
PASSAGES = [surerag.Passage(VELM)]
INDEX = PassageIndex.from_passages(PASSAGES, ENCODER)
NODES = corpus.index()
SEARCH: Any = RunnableLambda(lambda question: [Document(VELM)])
POLICY = surerag.AbstentionPolicy(1.0, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
JUDGED = {"llm": READER, "entailer": ExactEntailer()}
PARTS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (surerag.LazyRAG, {"reader": READER, "retriever": INDEX, "summaries": VELM}),
    (surerag.ClusterCompressor, {"reader": READER, "encoder": ENCODER}),
    (surerag.DenseRefiner, {"reader": READER, "entailer": ExactEntailer(), "encoder": ENCODER}),
    (surerag.SePer, {"reader": READER, "entailer": ExactEntailer()}),
    (surerag.UncertaintyRewriter, {"reader": READER, "retriever": INDEX}),
    (surerag.SemanticChunker, {"encoder": ENCODER}),
    (surerag.OpenAIReader, {"model": "toy", "base_url": "http://localhost:1/v1", "api_key": "k"}),
    (surerag.SamplingParams, {}),
    (JudgeEntailer, {"reader": READER}),
    (CachedEncoder, {"encoder": ENCODER}),
    (PassageIndex.from_passages, {"passages": PASSAGES, "encoder": ENCODER}),
    (llama_index.LazyRetrievalQueryEngine.from_args, {"retriever": NODES, "llm": READER}),
    (llama_index.UncertaintyRewriteQueryEngine.from_args, {"retriever": NODES, "llm": READER}),
    (llama_index.UncertaintyRewriteRetriever, {"retriever": NODES, "llm": READER}),
    (llama_index.UncertaintyRewriteTransform, {"retriever": NODES, "llm": READER}),
    (llama_index.ClusterCompressorPostprocessor, {"llm": READER}),
    (llama_index.DenseRefinerPostprocessor, JUDGED),
    (llama_index.DeltaSePerEvaluator, JUDGED),
    (llama_index.DenseEvaluator, JUDGED),
    (llama_index.SemanticNodeParser, {}),
    (llama_index.EmbeddingEncoder, {}),
    (llama_index.NodeRetriever, {"retriever": NODES}),
    (llama_index.reader_from_llm, {"llm": Own()}),
    (llama_index.summary_index, {"source": NODES}),
    (langchain.LazyRetrievalChain, {"llm": READER, "retriever": SEARCH, "summaries": VELM}),
    (langchain.LazyRetrievalMiddleware, {"retriever": SEARCH}),
    (langchain.UncertaintyRewriter, {"llm": READER, "retriever": SEARCH}),
    (langchain.UncertaintyRewriteRetriever, {"llm": READER, "retriever": SEARCH}),
    (langchain.ClusterCompressor, {"llm": READER, "embeddings": HashEmbeddings()}),
    (langchain.DenseRefiner, {**JUDGED, "embeddings": HashEmbeddings()}),
    (langchain.DeltaSePerEvaluator, JUDGED),
    (langchain.DenseEvaluator, JUDGED),
    (langchain.EmbeddingEncoder, {"embeddings": HashEmbeddings()}),
    (langchain.SemanticTextSplitter, {"embeddings": HashEmbeddings()}),
    (langchain.summaries_of, {"documents": [Document(VELM)], "embeddings": HashEmbeddings()}),
    (langchain.SummaryStore, {"store": HashEmbeddings()}),
    (langchain.reader_from_model, {"model": FakeListChatModel(responses=["x"])}),
    (langchain.CertaintyHandler, {}),
    (langchain.SelectiveAnswer, {"chain": SEARCH, "policy": POLICY}),
    (langchain.CertaintyChain, {"chain": SEARCH}),
    (langchain.with_certainty, {"llm": ChatOpenAI(model="toy", api_key="k")}),  # type: ignore[arg-type]
    (llama_index.AbstainingQueryEngine, {"engine": NODES.as_query_engine(llm=Own()), "policy": POLICY}),
    (langchain.create_lazy_retrieval_tool, {"chain": SEARCH, "name": "n", "description": "d"}),
    (llama_index.DocumentSummarizer, {}),
]
FRAMEWORKS_OWN: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (langchain.ChatReader, {"reader": READER}),
    (llama_index.ReaderLLM, {"reader": READER}),
    (llama_index.MethodEvaluationResult, {}),
    (llama_index.MethodEvent, {"name": "n", "data": {}}),
]
"""Classes whose framework takes more arguments than ours, and would ignore the names it does not know."""
WRONG: list[Any] = [3, 2.5, "x", [3], {"a": 3}, object(), None]
SWITCHES = {"streaming", "logprobs", "thinking", "replace", "add_start_index", "progress"}
NOT_CHECKED = {*SWITCHES, "callback_manager", "rephrasings"}
"""Besides switches, what LlamaIndex's own base classes take as it is, and a cache."""


def _name(value: object) -> str:
    return str(getattr(value, "__qualname__", ""))


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Settings, "_embed_model", corpus.HashEmbedding())
    monkeypatch.setattr(Settings, "_llm", Own())
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "arguments"), PARTS, ids=_name)
def test_an_argument_of_the_wrong_kind_is_an_error_of_ours(
    make: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    make(**arguments)
    names = {*inspect.signature(make).parameters, *getattr(make, "model_fields", ())}
    if "options" in names:
        names = names - {"options"} | {"prompts"}
    for name in names - NOT_CHECKED:
        refused = 0
        for value in WRONG:
            try:
                make(**{**arguments, name: value})
            except SureragError:
                refused += 1
        assert refused, f"{name} can be anything"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "arguments"), [*PARTS, *FRAMEWORKS_OWN], ids=_name)
def test_a_misspelt_name_is_refused(make: Callable[..., Any], arguments: dict[str, Any]) -> None:
    make(**arguments)
    with pytest.raises((ConfigurationError, TypeError), match="max_token'"):
        make(**arguments, max_token=64)


MODELS: list[Callable[..., Any]] = [langchain.ChatReader, llama_index.ReaderLLM]


@pytest.mark.parametrize("model", MODELS)
def test_models_name_the_option_that_was_meant(model: Callable[..., Any]) -> None:
    for name, value in {"max_token": 64, "max_tokens": -1}.items():
        with pytest.raises(ConfigurationError, match="max_tokens"):
            model(READER, **{name: value})


def test_models_are_still_copied_configured_and_written() -> None:
    chat = langchain.ChatReader(surerag.FakeReader(default="Velm"), max_tokens=9)
    assert chat.model_copy(update={"temperature": 0.5}).max_tokens == 9
    configurable = chat.configurable_fields(max_tokens=ConfigurableField(id="n"))
    assert configurable.with_config(configurable={"n": 3}).invoke("Where?").text == "Velm"
    written = llama_index.ReaderLLM(READER, max_tokens=9).to_dict()
    assert llama_index.ReaderLLM.from_dict(written, reader=READER).max_tokens == 9


@pytest.mark.parametrize(
    ("model", "call"),
    [
        *product(MODELS[:1], ("invoke", "ainvoke", "stream", "astream")),
        *product(MODELS[1:], ("complete", "acomplete", "stream_complete", "astream_complete")),
    ],
)
async def test_a_misspelt_name_in_a_call_is_refused(model: Callable[..., Any], call: str) -> None:
    async def ask(**settings: Any) -> Any:
        answer = getattr(model(surerag.FakeReader(default="Velm")), call)("Where?", **settings)
        answer = await answer if inspect.isawaitable(answer) else answer
        if hasattr(answer, "__aiter__"):
            return [piece async for piece in answer]
        return list(answer) if isinstance(answer, Iterator) else answer

    assert await ask(max_tokens=3)
    with pytest.raises(ConfigurationError, match=r"no option 'max_token'\. Did you mean max_tokens\?"):
        await ask(max_token=3)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (surerag.LazyRAG, {**PARTS[0][1], "prompts": {"closed_book": 3}}),
        (langchain.LazyRetrievalMiddleware, {"retriever": SEARCH, "prompts": {"closed_book": [3]}}),
        (llama_index.LazyRetrievalQueryEngine.from_args, {"retriever": NODES, "callback_manager": "x"}),
        (llama_index.UncertaintyRewriteRetriever, {"retriever": NODES, "callback_manager": 3}),
        (llama_index.NodeRetriever, {"retriever": NODES, "postprocessors": [3]}),
    ],
    ids=_name,
)
def test_what_would_fail_at_the_first_question_is_refused(
    make: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    with pytest.raises((ConfigurationError, PromptError)):
        make(**arguments)


def test_an_embedding_model_may_be_named_as_in_llama_index(monkeypatch: pytest.MonkeyPatch) -> None:
    model = corpus.HashEmbedding()
    monkeypatch.setattr("llama_index_surerag.summaries.resolve_embed_model", {"local:here": model}.get)
    index = llama_index.summary_index(NODES, embed_model="local:here")
    assert index._embed_model is model
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match="local"):
        llama_index.summary_index(NODES, embed_model="no model")


@pytest.mark.parametrize(
    "part", [surerag.SePer, langchain.DeltaSePerEvaluator, llama_index.DeltaSePerEvaluator]
)
def test_a_reader_judges_wherever_an_entailer_does(part: Callable[..., Any]) -> None:
    part(READER, READER)


@pytest.mark.parametrize("part", [langchain.DenseRefiner, langchain.ClusterCompressor])
def test_an_entailer_in_the_place_of_embeddings_is_named(part: Callable[..., Any]) -> None:
    with pytest.raises(
        ConfigurationError, match="embeddings must be an embedding model, got an ExactEntailer"
    ):
        part(READER, ExactEntailer())


def test_embeddings_in_the_place_of_an_entailer_are_named_before_others_are_looked_for() -> None:
    with pytest.raises(ConfigurationError, match="entailer must be an LLM"):
        llama_index.DenseRefinerPostprocessor(READER, HashEmbeddings())
