"""Converts LlamaIndex nodes to surerag's passages, and passages to nodes."""

from __future__ import annotations

from collections.abc import Iterable

from llama_index.core.node_parser.node_utils import build_nodes_from_splits
from llama_index.core.schema import BaseNode, ImageNode, MetadataMode, NodeWithScore, TextNode

from surerag import SOURCES_KEY, Passage


def copy_of(node: NodeWithScore) -> NodeWithScore:
    """Return a copy of a node; changes of the copy do not change the node in the store."""
    inner = node.node.model_copy(
        update={
            "metadata": dict(node.node.metadata),
            "relationships": dict(node.node.relationships),
            "excluded_llm_metadata_keys": list(node.node.excluded_llm_metadata_keys),
            "excluded_embed_metadata_keys": list(node.node.excluded_embed_metadata_keys),
        }
    )
    return node.model_copy(update={"node": inner})


def has_text(node: NodeWithScore) -> bool:
    """Whether a node has text; an image node may have none."""
    return bool(node.node.get_content(metadata_mode=MetadataMode.NONE).strip())


def has_media(node: NodeWithScore) -> bool:
    """Whether a node holds an image, audio or video."""
    inner = node.node
    if isinstance(inner, ImageNode):
        return True
    media = ("image_resource", "audio_resource", "video_resource")
    return any(getattr(inner, name, None) is not None for name in media)


def passages_of(nodes: Iterable[NodeWithScore], *, vectors: bool = False) -> list[Passage]:
    """Return nodes as passages, without nodes that have no text.

    The text of a passage is the text that an LLM sees, with metadata as the node's template arranges them.
    With ``vectors``, passages keep the embeddings of their nodes.
    """
    return [
        Passage(
            text=node.node.get_content(metadata_mode=MetadataMode.LLM),
            id=node.node.node_id,
            score=node.score,
            metadata=dict(node.node.metadata),
            embedding=tuple(node.node.embedding) if vectors and node.node.embedding is not None else None,
            origin=node,
        )
        for node in nodes
        if has_text(node)
    ]


def nodes_of(passages: Iterable[Passage]) -> list[NodeWithScore]:
    """Return passages as nodes: copies of the original nodes, or new nodes if there are no original nodes."""
    return [node_of(passage) for passage in passages]


def node_of(passage: Passage) -> NodeWithScore:
    """Return a passage as a node: a copy of its original node, a chunk of its document, or a new node.

    If the passage was merged from several passages (its sources), the node has the id, score, relationships
    and metadata of the best source. The node's metadata also name all sources. An LLM sees only the metadata
    that all sources share.
    """
    origin = passage.origin
    if isinstance(origin, BaseNode):
        return NodeWithScore(node=_chunk_of(origin, passage), score=passage.score)
    if not isinstance(origin, NodeWithScore):
        text = TextNode(id_=passage.id, text=passage.text, metadata=dict(passage.metadata))
        return NodeWithScore(node=text, score=passage.score)
    copied = copy_of(origin)
    copied.score = passage.score
    sources = passage.metadata.get(SOURCES_KEY)
    if sources is None or sources is origin.node.metadata.get(SOURCES_KEY):
        return copied
    node = copied.node
    node.embedding = None
    node.set_content(passage.text)
    node.metadata = dict(passage.metadata)
    mine = origin.node.metadata
    shared = {key for key in mine if all(source["metadata"].get(key) == mine[key] for source in sources)}
    hidden = [key for key in passage.metadata if key not in shared]
    node.excluded_llm_metadata_keys = list(dict.fromkeys([*node.excluded_llm_metadata_keys, *hidden]))
    node.excluded_embed_metadata_keys = list(dict.fromkeys([*node.excluded_embed_metadata_keys, *hidden]))
    if isinstance(node, TextNode):
        # The merged text has no position in the document.
        node.start_char_idx = node.end_char_idx = None
    return copied


def _chunk_of(document: BaseNode, passage: Passage) -> TextNode:
    """Convert a passage, which was cut from ``document``, to a node that contains the passage's offsets."""
    [node] = build_nodes_from_splits([passage.text], document, id_func=lambda *_: passage.id)
    node.embedding = None
    node.metadata = dict(document.metadata)
    node.start_char_idx, node.end_char_idx = passage.metadata["start"], passage.metadata["end"]
    return node


def text_for_llm(passage: Passage) -> str:
    """Return a passage's text as the pipeline's LLM sees it, with the metadata of its node."""
    return node_of(passage).node.get_content(metadata_mode=MetadataMode.LLM) if passage.text else ""
