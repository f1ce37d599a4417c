"""The core's own parts over the same corpus, to hold LlamaIndex's against."""

from __future__ import annotations

from typing import Any

from llama_index_surerag import EmbeddingEncoder
from surerag import LazyRAG
from surerag.messages import Passage
from surerag.retrieval import PassageIndex, SummaryIndex
from tests.llama_index import corpus
from tests.llama_index.corpus import HashEmbedding

SETTINGS: dict[str, Any] = {"top_n": 2, "n_summaries": 1, "gate_tokens": 4, "max_tokens": 8}


def core(reader: object, **settings: Any) -> LazyRAG:
    """Return the core's L-RAG over the corpus."""
    encoder = EmbeddingEncoder(HashEmbedding())
    passages = [Passage(node.text, id=node.node_id) for node in corpus.nodes()]
    summaries = [Passage(text, id=f"{name}:summary") for name, text in corpus.LEADS.items()]
    return LazyRAG(
        reader,
        PassageIndex.from_passages(passages, encoder),
        SummaryIndex.from_passages(summaries, encoder),
        **{**SETTINGS, **settings},
    )
