"""Nodes of single letters, a judge and an embedding: what DENSE's tests in LlamaIndex share."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import CustomLLM
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode

from llama_index_surerag import DenseRefinerPostprocessor, ProgressEvent
from surerag.entailment import ExactEntailer
from tests.llama_index.watching import EVENTS
from tests.methods.dense_rag.script import MENDED, ROWS, script


def letter_nodes(letters: str = "abcdef", **changes: Any) -> list[NodeWithScore]:
    return [
        NodeWithScore(
            node=TextNode(
                id_=f"id-{letter}",
                text=letter,
                metadata={"file": f"{letter}.txt", "more": {"page": place}},
                excluded_llm_metadata_keys=["file", "more"],
                excluded_embed_metadata_keys=["file", "more"],
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc-{letter}")},
                start_char_idx=place,
                end_char_idx=place + 1,
                **changes,
            ),
            score=None if letter == "c" else 0.9 - place / 10,
        )
        for place, letter in enumerate(letters)
    ]


def texts(nodes: list[NodeWithScore]) -> str:
    return "".join(node.text for node in nodes)


def dumped(nodes: list[NodeWithScore]) -> list[str]:
    return [node.model_dump_json() for node in nodes]


class LetterEmbedding(BaseEmbedding):
    """The vectors of the core's tests: c is most like e, and a like d. Keeps what it was asked."""

    asked: list[str] = Field(default_factory=list)

    def _get_text_embedding(self, text: str) -> list[float]:
        self.asked.append(text)
        return [float(value) for value in ROWS.get(text, [1, 1])]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


class Found(BaseRetriever):
    """Finds what it was given, and keeps what it was asked."""

    def __init__(self, nodes: list[NodeWithScore]) -> None:
        super().__init__()
        self.nodes = nodes
        self.asked: list[QueryBundle] = []

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.asked.append(query_bundle)
        return self.nodes


class Saying(CustomLLM):
    """Says what a function of the prompt says."""

    say: Any

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="saying")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self.say(prompt))

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


def tool(reader: Any = None, **settings: Any) -> DenseRefinerPostprocessor:
    """A refiner to whom b is noise, c is needed and not understood, and e is what c lacks."""
    chosen = {"entailer": ExactEntailer(), "embed_model": LetterEmbedding(), "top_n": 3, **settings}
    return DenseRefinerPostprocessor(reader or script(MENDED), **chosen)


def warnings() -> list[ProgressEvent]:
    """What was warned of while the fixture ``spans`` is there."""
    return [event for event in EVENTS if isinstance(event, ProgressEvent) and event.warning]
