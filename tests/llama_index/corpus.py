"""A small corpus, a deterministic embedding, and models that know part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.llms.openai_like import OpenAILike
from pydantic import Field

from surerag import FakeReader
from surerag.encoders import HashingEncoder
from surerag.readers.fake import reply
from tests.servers.fake_openai import FakeOpenAI

KEY = "sk-very-secret"
KNOWN = "Where was Ada born?"
UNKNOWN = "Where does the Orun end?"
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
    """Words hashed onto axes; the same in every process. Counts the texts that it embeds."""

    embedded: list[str] = Field(default_factory=list)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        self.embedded += texts
        return self._vectors(texts)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vectors([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = HashingEncoder(256).encode(list(texts), "document").tolist()
        return vectors


def nodes(**tenants: str) -> list[TextNode]:
    """Each document's two paragraphs; ``tenants`` says whose a document is."""
    return [
        TextNode(
            id_=f"{name}-{place}",
            text=text,
            metadata={"tenant": tenants.get(name, "all"), "size": len(name)},
            excluded_llm_metadata_keys=["tenant", "size"],
            excluded_embed_metadata_keys=["tenant", "size"],
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=name)},
        )
        for name in LEADS
        for place, text in enumerate((LEADS[name], DETAILS[name]))
    ]


def scored(*texts: str) -> list[NodeWithScore]:
    """Nodes as a retriever returns them."""
    return [
        NodeWithScore(node=TextNode(id_=f"n{place}", text=text), score=1 - place / 10)
        for place, text in enumerate(texts)
    ]


def index(**tenants: str) -> VectorStoreIndex:
    return VectorStoreIndex(nodes(**tenants), embed_model=HashEmbedding())


def documents() -> list[Document]:
    return [Document(id_=name, text=f"{LEADS[name]}\n\n{DETAILS[name]}") for name in LEADS]


def answer(prompt: str) -> str:
    """What a reader says that knows only what it is shown."""
    if "Mir" in prompt and "Orun end" in prompt:
        return "In the lake of Mir, says the atlas of rivers, and nowhere else"
    if "Ada was born in Velm" in prompt and KNOWN in prompt:
        return "She was born in Velm, as everyone in the old city knows"
    return "perhaps somewhere in a far land that nobody has ever seen"


def knowing() -> FakeReader:
    """A reader that is sure of what it is shown, and unsure of the rest."""

    def reply_to(prompt: str) -> Any:
        text = answer(prompt)
        return reply(text, entropy=2.0 if text.startswith("perhaps") else 0.1)

    return FakeReader(reply_to)


def like(server: FakeOpenAI, *, chat: bool = True, **settings: Any) -> OpenAILike:
    """Return an OpenAILike that talks to the fake server."""
    defaults = {"model": "toy", "api_base": server.base_url, "api_key": KEY, "max_retries": 0}
    return OpenAILike(is_chat_model=chat, **{**defaults, **settings})
