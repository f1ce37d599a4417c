"""What a retriever asks of models by itself is counted with the answer, through the core or an engine."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from llama_index_surerag import LazyRetrievalQueryEngine
from llama_index_surerag.systems import as_system
from surerag import FakeReader


class Rewriting(BaseRetriever):
    """Has a model say the question in other words, as LlamaIndex's fusion retriever does."""

    def __init__(self, *, asks: bool) -> None:
        super().__init__()
        self._asks = asks

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        said = (
            MockLLM(max_tokens=4).complete(query_bundle.query_str).text
            if self._asks
            else "Where was Ada born?"
        )
        return [NodeWithScore(node=TextNode(text=f"Ada was born in Velm. {said}", id_="a"), score=1.0)]


def engine(*, asks: bool) -> Any:
    reader = FakeReader(lambda _: "Velm")
    return LazyRetrievalQueryEngine.from_args(llm=reader, retriever=Rewriting(asks=asks), mode="standard")


async def test_through_the_core_the_engine_and_their_async() -> None:
    question = "Where was Ada born?"
    told, plain = engine(asks=True), engine(asks=False)
    found, without = told.core.run(question).spent, plain.core.run(question).spent
    assert (without.calls, found.calls) == (1, 2)
    assert found.prompt_tokens > without.prompt_tokens
    assert found.completion_tokens > without.completion_tokens
    assert (await told.core.arun(question)).spent == found
    assert told.core.run_many([question, question])[1].spent == found
    assert told.query(question).metadata["spent"]["calls"] == 2
    assert (await told.aquery(question)).metadata["spent"]["calls"] == 2


def test_an_engine_around_such_a_retriever_is_counted_as_a_whole() -> None:
    synthesizer = get_response_synthesizer(llm=MockLLM(max_tokens=4))
    whole = RetrieverQueryEngine(Rewriting(asks=True), synthesizer)
    assert as_system(whole)("Where was Ada born?").costs.calls == 2
