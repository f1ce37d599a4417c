"""LangChain's official tests of retrievers, on every part that is one or goes into one."""

from __future__ import annotations

from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_surerag import ClusterCompressor, DenseRefiner, UncertaintyRewriteRetriever
from surerag import FakeReader
from surerag.entailment import ExactEntailer
from tests.clean_process import loaded_by
from tests.langchain.conftest import HashEmbeddings

TEXTS = ["Ada was born in Velm.", "Bo sang in Tarn.", "The Orun is a river.", "Tin melts.", "Cy is new."]


def retriever() -> Any:
    return InMemoryVectorStore.from_texts(TEXTS, HashEmbeddings()).as_retriever()


def reply(prompt: str) -> str:
    return "It is said otherwise." if prompt.startswith("Rewrite") else "Velm"


class Compressing(BaseRetriever):
    """A ContextualCompressionRetriever that takes ``k``, as the official tests want it."""

    compressor: Any
    k: int = 4

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, k: int | None = None
    ) -> list[Document]:
        around = ContextualCompressionRetriever(
            base_compressor=self.compressor,
            base_retriever=retriever().vectorstore.as_retriever(search_kwargs={"k": k or self.k}),
        )
        return around.invoke(query)


class _Standard(RetrieversIntegrationTests):
    @property
    def retriever_query_example(self) -> str:
        return "Where was Ada born?"


class TestRewriting(_Standard):
    @property
    def retriever_constructor(self) -> Any:
        return UncertaintyRewriteRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"llm": FakeReader(reply), "retriever": retriever()}

    @property
    def num_results_arg_name(self) -> str:
        return "top_n"


class TestClusters(_Standard):
    @property
    def retriever_constructor(self) -> Any:
        return Compressing

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        # All that comes in passes as it is, so that the number of documents is that of the retriever.
        return {
            "compressor": ClusterCompressor(
                FakeReader(reply), HashEmbeddings(), variant="copy", min_tokens=99
            )
        }


class TestRefining(_Standard):
    @property
    def retriever_constructor(self) -> Any:
        return Compressing

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"compressor": DenseRefiner(FakeReader(reply), HashEmbeddings(), entailer=ExactEntailer())}


HEAVY = (
    "torch",
    "transformers",
    "openai",
    "langchain",
    "langchain_classic",
    "langchain_community",
    "langgraph",
)


def test_imports_are_light() -> None:
    for name in (
        "LazyRetrievalChain",
        "ClusterCompressor",
        "UncertaintyRewriteRetriever",
        "DeltaSePerEvaluator",
    ):
        assert loaded_by(f"from langchain_surerag import {name}", *HEAVY, "jinja2") == []
    assert loaded_by("import langchain_surerag", *HEAVY, "jinja2") == []


def test_a_part_is_imported_without_warnings() -> None:
    assert (
        loaded_by("import warnings; warnings.simplefilter('error'); from langchain_surerag import *", "x")
        == []
    )


def test_names() -> None:
    import langchain_surerag

    assert all(getattr(langchain_surerag, name) for name in langchain_surerag.__all__)
    assert isinstance(RunnableLambda(str), object)
