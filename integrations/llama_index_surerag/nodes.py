"""LlamaIndex nodes as passages, and back."""

from __future__ import annotations

from collections.abc import Iterable

from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)

from surerag.types import Passage


def copy_of(node: NodeWithScore) -> NodeWithScore:
    """Return a node that may be changed without changing the one in the store."""
    own = {
        "metadata": dict(node.node.metadata),
        "relationships": dict(node.node.relationships),
        "excluded_llm_metadata_keys": list(node.node.excluded_llm_metadata_keys),
        "excluded_embed_metadata_keys": list(node.node.excluded_embed_metadata_keys),
    }
    inner = node.node.model_copy(update=own)
    return NodeWithScore(node=inner, score=node.score)


def passage_of(node: NodeWithScore) -> Passage:
    """Return a node as a passage: its text as a LlamaIndex pipeline shows it to its LLM.

    Metadata stands in that text as the node's own templates and excluded keys say.
    """
    return Passage(
        text=node.node.get_content(metadata_mode=MetadataMode.LLM),
        id=node.node.node_id,
        score=node.score,
        metadata=dict(node.node.metadata),
        origin=node,
    )


def passages_of(nodes: Iterable[NodeWithScore]) -> list[Passage]:
    """Return nodes as passages; those without any text (an image alone) are left out."""
    return [passage for passage in map(passage_of, nodes) if passage.text.strip()]


def nodes_of(passages: Iterable[Passage]) -> list[NodeWithScore]:
    """Return passages as nodes: copies of those they came from, where they came from nodes."""
    return [_node_of(passage) for passage in passages]


def _node_of(passage: Passage) -> NodeWithScore:
    origin = passage.origin
    if isinstance(origin, NodeWithScore):
        return copy_of(NodeWithScore(node=origin.node, score=passage.score))
    if isinstance(origin, BaseNode):
        return copy_of(NodeWithScore(node=origin, score=passage.score))
    return NodeWithScore(
        node=TextNode(id_=passage.id, text=passage.text, metadata=dict(passage.metadata)), score=passage.score
    )


def summary_node(summary: Passage) -> TextNode:
    """Return a document's summary as a node whose source is that document.

    Its id is the document's with ``:summary`` behind it; its metadata are left out of what an LLM sees.
    """
    return TextNode(
        id_=f"{summary.id}:summary",
        text=summary.text,
        metadata=dict(summary.metadata),
        excluded_llm_metadata_keys=list(summary.metadata),
        excluded_embed_metadata_keys=list(summary.metadata),
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=summary.id)},
    )
