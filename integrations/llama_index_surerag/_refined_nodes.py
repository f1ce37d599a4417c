"""Nodes as candidates of a refinement, and its result as nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.node_parser.node_utils import build_nodes_from_splits
from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, NodeWithScore, TextNode

from llama_index_surerag.nodes import copy_of, passage_of
from surerag.methods.refinement_types import RefinementResult
from surerag.types import Passage

DENSE_KEY = "dense"
"""Where a refined node's metadata tells what was found out; neither LLM nor embedding model is shown it."""


def candidates_of(nodes: Sequence[NodeWithScore]) -> list[Passage]:
    """Return nodes as passages, their text as an LLM is shown it, with their vectors."""
    return [
        replace(
            passage_of(node),
            embedding=None if node.node.embedding is None else tuple(node.node.embedding),
        )
        for node in nodes
    ]


def has_text(node: NodeWithScore) -> bool:
    """Whether a node has a text of its own; an image has none."""
    return bool(node.node.get_content(metadata_mode=MetadataMode.NONE).strip())


def refined_nodes(result: RefinementResult, given: Sequence[NodeWithScore], k: int) -> list[NodeWithScore]:
    """Return the context that a refinement found, as copies of nodes; the first k where it found none.

    Nodes without a text, among the first k, come last, as they are: nothing was found out about them.
    """
    if result.best is None:
        return [copy_of(node) for node in given[:k]]
    facts = {
        "score": result.best.measured.score,
        "certain": result.best.measured.certain,
        "rounds": len(result.rounds),
        "stopped": result.stopped,
    }
    found = [
        _told(_node_of(passage), {**facts, "label": label})
        for passage, label in zip(result.passages, result.best.measured.labels, strict=True)
    ]
    return found + [copy_of(node) for node in given[:k] if not has_text(node)]


def _told(node: NodeWithScore, facts: dict[str, Any]) -> NodeWithScore:
    inner = node.node
    inner.metadata[DENSE_KEY] = facts
    for hidden in (inner.excluded_llm_metadata_keys, inner.excluded_embed_metadata_keys):
        if DENSE_KEY not in hidden:
            hidden.append(DENSE_KEY)
    return node


def _node_of(passage: Passage) -> NodeWithScore:
    origin = passage.origin
    if isinstance(origin, NodeWithScore):
        return copy_of(origin)
    return NodeWithScore(node=_cut(origin, passage), score=passage.score)


def _cut(document: BaseNode, passage: Passage) -> TextNode:
    """Return a chunk as a node, as LlamaIndex's own parsers make it, with its offsets in the document."""
    [node] = build_nodes_from_splits([passage.text], document, id_func=lambda *_: passage.id)
    node.embedding = None
    node.metadata = dict(document.metadata)
    node.start_char_idx, node.end_char_idx = passage.metadata["start"], passage.metadata["end"]
    if document.source_node is not None:
        node.relationships[NodeRelationship.SOURCE] = document.source_node
    return node
