"""What is written down of any part, or shown, holds no key."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.load import dumps, loads
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

import langchain_surerag as lc
from surerag import AbstentionPolicy, AreYouSure
from tests.langchain.conftest import KEY

ADDRESS = f"http://ada:{KEY}@localhost:1/v1?api_key={KEY}"
HEADERS = {"x-api-key": KEY, "x-team": "search"}


def model() -> Any:
    return ChatOpenAI(model="toy", base_url=ADDRESS, api_key=KEY, default_headers=HEADERS)  # type: ignore[arg-type]  # a str


def embeddings() -> Any:
    return OpenAIEmbeddings(base_url=ADDRESS, api_key=KEY, default_headers=HEADERS)  # type: ignore[arg-type]  # a str


def retriever() -> Any:
    return InMemoryVectorStore(embeddings()).as_retriever()


PARTS: dict[str, Callable[[], Any]] = {
    "CertaintyChain": lambda: lc.CertaintyChain(model(), second_opinion=AreYouSure(model())),
    "CertaintyHandler": lambda: lc.CertaintyHandler(),
    "ChatReader": lambda: lc.ChatReader(lc.reader_from_model(model())),
    "ClusterCompressor": lambda: lc.ClusterCompressor(model(), embeddings()),
    "DeltaSePerEvaluator": lambda: lc.DeltaSePerEvaluator(model(), model()),
    "DenseEvaluator": lambda: lc.DenseEvaluator(model(), model()),
    "DenseRefiner": lambda: lc.DenseRefiner(model(), embeddings()),
    "EmbeddingEncoder": lambda: lc.EmbeddingEncoder(embeddings()),
    "LazyRetrievalChain": lambda: lc.LazyRetrievalChain(
        model().with_config(tags=["a"]).with_fallbacks([model().bind(extra_headers=HEADERS)]),
        retriever(),
        "Towns.",
    ),
    "LazyRetrievalMiddleware": lambda: lc.LazyRetrievalMiddleware(retriever()),
    "SelectiveAnswer": lambda: lc.SelectiveAnswer(
        model(), AbstentionPolicy(1.0, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
    ),
    "SemanticTextSplitter": lambda: lc.SemanticTextSplitter(embeddings()),
    "SummaryStore": lambda: lc.SummaryStore(embeddings()),
    "UncertaintyRewriteRetriever": lambda: lc.UncertaintyRewriteRetriever(model(), retriever()),
    "UncertaintyRewriter": lambda: lc.UncertaintyRewriter(model(), retriever()),
    "reader_from_model": lambda: lc.reader_from_model(model()),
    "create_lazy_retrieval_tool": lambda: lc.create_lazy_retrieval_tool(
        lc.LazyRetrievalChain(model(), retriever(), "Towns."), "search", "Searches."
    ),
}


def test_all_that_holds_services_is_among_the_parts() -> None:
    assert set(lc.__all__) - set(PARTS) == {"summaries_of", "with_certainty"}


@pytest.mark.parametrize("name", PARTS)
def test_no_part_shows_its_keys(name: str) -> None:
    part = PARTS[name]()
    forms = [repr(part), str(part), dumps(part)]
    if isinstance(part, BaseModel):
        forms += [part.model_dump_json(), repr(part.model_dump())]
    with suppress(TypeError, pickle.PicklingError, AttributeError):
        # Not where there is a client of OpenAI's in it.
        forms.append(repr(pickle.dumps(part)))
    assert not any(KEY in form for form in forms)


def test_what_is_no_key_is_written_down() -> None:
    part = lc.LazyRetrievalChain(model(), RunnableLambda(lambda question: []), "Towns.")
    loaded: Any = loads(
        dumps(part),
        allowed_objects=[lc.LazyRetrievalChain, ChatOpenAI],
        valid_namespaces=["langchain_surerag", "langchain_openai"],
        secrets_map={"OPENAI_API_KEY": KEY},
    )
    assert loaded.llm.default_headers == {"x-team": "search"}
    assert loaded.llm.openai_api_base == "http://localhost:1/v1"
    assert part.llm.default_headers == HEADERS
