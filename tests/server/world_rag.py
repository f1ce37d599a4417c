"""Questions of the closed world, and its search in each framework's own form."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from surerag.world import World
from surerag.world.retrievers import BM25Retriever

WORLD = World(seed=2001)
QUESTIONS = [question.text for question in WORLD.questions(8)]
SUMMARY = " ".join(passage.text for passage in WORLD.passages[:3])
RETRIEVER = BM25Retriever(WORLD.passages)
K = 3
LIMITS: dict[str, Any] = {"gate_tokens": 4, "max_tokens": 10}


class BM25(BaseRetriever):
    """The world's BM25 as LlamaIndex's retriever."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = RETRIEVER.retrieve(query_bundle.query_str, K)
        return [NodeWithScore(node=TextNode(text=p.text, id_=p.id), score=p.score) for p in found]


DOCUMENTS: RunnableLambda[str, list[Document]] = RunnableLambda(
    lambda question: [Document(p.text, id=p.id) for p in RETRIEVER.retrieve(question, K)]
)
