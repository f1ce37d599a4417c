"""What a retriever asks of models by itself is counted with the answer, asked through the core or a chain."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.retrievers import BaseRetriever

from langchain_surerag import LazyRetrievalChain
from surerag import FakeReader, compare

MODEL = FakeListChatModel(responses=["Where is Ada's town of birth?"])


class Rewriting(BaseRetriever):
    """Has a model say the question in other words, as LangChain's multi-query retriever does."""

    model: Any = MODEL

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        said: AIMessage = self.model.invoke(query, config={"callbacks": run_manager.get_child()})
        return [Document(f"Ada was born in Velm. {said.text}")]


class Plain(BaseRetriever):
    """Asks nobody."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(f"Ada was born in Velm. {MODEL.responses[0]}")]


def chain(retriever: BaseRetriever) -> LazyRetrievalChain:
    return LazyRetrievalChain(FakeReader(lambda _: "Velm"), retriever, mode="standard", return_details=True)


async def test_through_the_core_the_chain_and_their_async() -> None:
    question = "Where was Ada born?"
    told, plain = chain(Rewriting()), chain(Plain())
    found, without = told.core.run(question).spent, plain.core.run(question).spent
    assert found is not None and without is not None
    assert (without.calls, found.calls) == (1, 2)
    assert found.prompt_tokens > without.prompt_tokens
    assert found.completion_tokens > without.completion_tokens
    assert (await told.core.arun(question)).spent == found
    assert told.core.run_many([question, question])[1].spent == found
    spent = told.invoke({"input": question})["spent"]
    assert (spent["calls"], spent["prompt_tokens"]) == (2, found.prompt_tokens)
    assert (await told.ainvoke({"input": question}))["spent"] == spent


@pytest.mark.parametrize("retriever", [Rewriting(), Plain()])
def test_a_comparison_counts_it(retriever: BaseRetriever) -> None:
    report = compare({"one": chain(retriever), "two": chain(retriever)}, [("Where was Ada born?", ["Velm"])])
    assert report.systems[0].costs["calls"] == (2 if isinstance(retriever, Rewriting) else 1)
