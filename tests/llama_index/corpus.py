"""A small corpus, a deterministic embedding, and readers that know part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import (
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
)

from surerag.encoders import HashingEncoder
from surerag.readers.fake import FakeReader

KNOWN = "Where was Ada born?"
UNKNOWN = "Where does the Orun end?"
VAGUE = "It is long and cold, and where is its rest?"
LEADS = {
    "ada": "Ada was born in Velm. She paints rivers.",
    "orun": "The Orun is a river. It is long and cold.",
    "tarn": "Tarn is an old city. It has seven gates.",
}
DETAILS = {
    "ada": "Her first picture hangs in Tarn.",
    "orun": "The Orun does end in the lake of Mir.",
    "tarn": "The gates of Tarn are made of copper.",
}


class HashEmbedding(BaseEmbedding):
    """Words hashed onto axes; the same in every process."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vectors([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vectors([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = HashingEncoder(256).encode(texts, "document").tolist()
        return vectors


def documents() -> list[Document]:
    return [
        Document(
            id_=name,
            text=f"{LEADS[name]}\n\n{DETAILS[name]}",
            metadata={"abstract": f"All about {name}.", "page": 1},
            excluded_llm_metadata_keys=["abstract", "page"],
            excluded_embed_metadata_keys=["abstract", "page"],
        )
        for name in LEADS
    ]


def nodes() -> list[TextNode]:
    """Each document's paragraphs."""
    return [
        TextNode(
            id_=f"{document.node_id}-{place}",
            text=text,
            metadata=dict(document.metadata),
            excluded_llm_metadata_keys=list(document.metadata),
            excluded_embed_metadata_keys=list(document.metadata),
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document.node_id)},
        )
        for document in documents()
        for place, text in enumerate(document.text.split("\n\n"))
    ]


def index() -> VectorStoreIndex:
    return VectorStoreIndex(nodes(), embed_model=HashEmbedding())


def answer(prompt: str) -> str:
    """What a reader says that knows only what it is shown."""
    if "Mir" in prompt and "Orun end" in prompt:
        return "In the lake of Mir, says the atlas of rivers, and nowhere else"
    if "Ada was born in Velm" in prompt:
        return "She was born in Velm, as everyone in the old city knows"
    return "perhaps somewhere in a far land that nobody has ever seen"


def entropy(prompt: str) -> float:
    """How unsure that reader is, in nats."""
    return 2.0 if answer(prompt).startswith("perhaps") else 0.1


class Knowing(FakeReader):
    """Sure of what it is shown, unsure of the rest."""

    def _next(self, prompt: str, sampling: Any) -> Any:
        self._entropy = entropy(prompt)
        return super()._next(prompt, sampling)
