"""LlamaIndex nodes as passages and back."""

from __future__ import annotations

from collections.abc import Iterable

from llama_index.core.node_parser.node_utils import build_nodes_from_splits
from llama_index.core.schema import BaseNode, ImageNode, MetadataMode, NodeWithScore, TextNode

from surerag import SOURCES_KEY, Passage


def copy_of(node: NodeWithScore) -> NodeWithScore:
    """Return a copy of a node that may be changed without changing the node in the store."""
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
    """Whether a node has its own text; an image has none."""
    return bool(node.node.get_content(metadata_mode=MetadataMode.NONE).strip())


def has_picture(node: NodeWithScore) -> bool:
    """Whether a node carries an image, a sound or a film beside its text."""
    inner = node.node
    if isinstance(inner, ImageNode):
        return True
    media = ("image_resource", "audio_resource", "video_resource")
    return any(getattr(inner, name, None) is not None for name in media)


def passages_of(nodes: Iterable[NodeWithScore], *, vectors: bool = False) -> list[Passage]:
    """Return the nodes that have text as passages, in the text that their templates show to an LLM."""
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
    """Return passages as nodes: copies of their original nodes, or new nodes."""
    return [node_of(passage) for passage in passages]


def node_of(passage: Passage) -> NodeWithScore:
    """Return a passage as a node; a passage merged from several lists its sources in the metadata.

    A merged node has the id, score, relationships and metadata of its best source; an LLM sees only the
    metadata that all sources share.
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
    """Return a chunk of a document as LlamaIndex's own parsers make it, with its offsets."""
    [node] = build_nodes_from_splits([passage.text], document, id_func=lambda *_: passage.id)
    node.embedding = None
    node.metadata = dict(document.metadata)
    node.start_char_idx, node.end_char_idx = passage.metadata["start"], passage.metadata["end"]
    return node


def text_for_llm(passage: Passage) -> str:
    """Return the text of a passage that a pipeline's LLM sees."""
    return node_of(passage).node.get_content(metadata_mode=MetadataMode.LLM) if passage.text else ""
