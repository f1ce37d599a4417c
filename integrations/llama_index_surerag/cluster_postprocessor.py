"""EDC²-RAG as a LlamaIndex node postprocessor: similar nodes together, each cluster compressed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixin
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.settings import Settings

from llama_index_surerag.encoders import encoder_of
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.nodes import copy_of, passage_of
from llama_index_surerag.prompts import TemplatePrompt, plain_template, template_from_plain
from llama_index_surerag.readers import reader_from_llm
from surerag import ClusterCompressor
from surerag.methods.compression_options import (
    MODES,
    PLAIN_SETTINGS,
    CompressorOptions,
    check_prompt_names,
)
from surerag.methods.compression_types import (
    SOURCES_KEY,
    UNSUPPORTED_KEY,
    CompressionPrompts,
    CompressionResult,
)
from surerag.types import Event, Passage, Template


class ClusterCompressorPostprocessor(  # type: ignore[misc]  # pydantic's fields can be set
    BaseNodePostprocessor, PromptMixin, CompressorOptions
):
    """Puts similar nodes together and compresses each cluster for the query, in one call a cluster.

    A compressed node has its best source's id, score, relationships and metadata; ``compressed_from`` in its
    metadata lists all sources with their ids, scores and metadata. What an LLM is shown of the metadata is
    what all sources share. Nodes that are not compressed come back as copies. No node that goes in is
    changed.

    Clusters for which the LLM fails go through as they are, with a warning and a ``ProgressEvent``; without
    a query all nodes do.

    What it does to clusters is set by the fields of
    :class:`~surerag.methods.compression_options.CompressorOptions`: ``mode``, ``tau``, ``budget`` …

    Args:
        llm: A LlamaIndex LLM (its log-probabilities are not needed), or a reader of surerag; ``Settings.llm``
            if left out.
        embed_model: An embedding model, or an encoder of surerag, for nodes that carry no embeddings and for
            the query; ``Settings.embed_model`` if left out.
        entailer: For ``guard="entailment"``.
        tokenizer: Counts tokens, for ``budget`` and reports: from a text to a sequence. By default the
            reader's own, where it has one, else words and punctuation marks.
        templates: Prompts in place of ours, by mode: texts or LlamaIndex templates with the slots
            ``examples``, ``question`` (or ``query_str``; ``statement`` in ``"fact_check"``), ``passages``.
        **settings: Fields of ``CompressorOptions``.

    Raises:
        ConfigurationError: If a setting is out of range, or the LLM is none.
        PromptError: If a template's slots do not fit.

    Example:
        >>> from surerag import ScriptedReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = ScriptedReader(["Ada was born in Velm."])
        >>> compressor = ClusterCompressorPostprocessor(reader, HashingEncoder(), pass_below=0)
        >>> texts = ["Ada, a painter, was born in Velm.", "Bo came later."]
        >>> nodes = [NodeWithScore(node=TextNode(text=text, id_=text[:2])) for text in texts]
        >>> [node.text for node in compressor.postprocess_nodes(nodes, query_str="Where was Ada born?")]
        ['Ada was born in Velm.']
    """

    llm: Any = Field(default=None, exclude=True, repr=False)
    embed_model: Any = Field(default=None, exclude=True, repr=False)
    entailer: Any = Field(default=None, exclude=True, repr=False)
    tokenizer: Any = Field(default=None, exclude=True, repr=False)
    templates: dict[str, Any] = Field(default_factory=dict)
    _compressor: ClusterCompressor | None = PrivateAttr(default=None)

    def __init__(
        self,
        llm: Any = None,
        embed_model: Any = None,
        entailer: Any = None,
        *,
        tokenizer: Callable[[str], Sequence[Any]] | None = None,
        templates: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        own: dict[str, Any] = {
            "llm": Settings.llm if llm is None else llm,
            "embed_model": embed_model,
            "entailer": entailer,
            "tokenizer": tokenizer,
            "templates": {name: _plain(given) for name, given in (templates or {}).items()},
        }
        super().__init__(**own, **settings)
        self._compressor = self._built(self.templates)

    @classmethod
    def class_name(cls) -> str:
        """Name in serialised settings."""
        return "ClusterCompressorPostprocessor"

    @property
    def compressor(self) -> ClusterCompressor:
        """The method with its settings and services."""
        if self._compressor is None:
            self._compressor = self._built(self.templates)
        return self._compressor

    def compress(self, nodes: Sequence[NodeWithScore], query: str | QueryBundle) -> CompressionResult:
        """Return the whole result for one query: what became of each cluster, calls, tokens and cost."""
        bundle = QueryBundle(query) if isinstance(query, str) else query
        passages = _passages(nodes)
        return self.compressor.run(
            bundle.query_str, passages, query_vector=_vector(bundle, passages), on_event=dispatch
        )

    async def acompress(self, nodes: Sequence[NodeWithScore], query: str | QueryBundle) -> CompressionResult:
        """Like ``compress``, without blocking the event loop."""
        bundle = QueryBundle(query) if isinstance(query, str) else query
        passages = _passages(nodes)
        return await self.compressor.arun(
            bundle.query_str, passages, query_vector=_vector(bundle, passages), on_event=dispatch
        )

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or _is_blank(query_bundle):
            return _unchanged(nodes)
        bundle = cast("QueryBundle", query_bundle)
        with self.callback_manager.event(CBEventType.RERANKING, payload=_payload(nodes, bundle)) as event:
            found = [_node_of(passage) for passage in self.compress(nodes, bundle).passages]
            event.on_end(payload={EventPayload.NODES: found})
        return found

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes or _is_blank(query_bundle):
            return _unchanged(nodes)
        bundle = cast("QueryBundle", query_bundle)
        with self.callback_manager.event(CBEventType.RERANKING, payload=_payload(nodes, bundle)) as event:
            found = [_node_of(passage) for passage in (await self.acompress(nodes, bundle)).passages]
            event.on_end(payload={EventPayload.NODES: found})
        return found

    def _get_prompts(self) -> PromptDictType:
        return {
            mode: template_from_plain(self.templates[mode])
            if mode in self.templates
            else PromptTemplate(getattr(CompressionPrompts(), mode).text)
            for mode in MODES
        }

    def _update_prompts(self, prompts: PromptDictType) -> None:
        templates = self.templates | {name: _plain(template) for name, template in prompts.items()}
        # Built before anything is changed: a template that does not fit leaves all as it was.
        self._compressor = self._built(templates)
        self.templates = templates

    def _built(self, templates: Mapping[str, Any]) -> ClusterCompressor:
        check_prompt_names(templates)
        prompts: dict[str, Template] = {
            mode: TemplatePrompt(mode, template_from_plain(template)) for mode, template in templates.items()
        }
        tokenizer = self.tokenizer
        settings: dict[str, Any] = {name: getattr(self, name) for name in PLAIN_SETTINGS}
        return ClusterCompressor(
            reader_from_llm(self.llm) if isinstance(self.llm, LLM) else self.llm,
            encoder_of(self.embed_model),
            self.entailer,
            count_tokens=None if tokenizer is None else lambda text: len(tokenizer(text)),
            show=_shown,
            examples=self.examples,
            prompts=CompressionPrompts(**prompts),
            **settings,
        )


def _plain(given: Any) -> Any:
    return plain_template(given) if isinstance(given, BasePromptTemplate) else given


def _is_blank(bundle: QueryBundle | None) -> bool:
    return bundle is None or not bundle.query_str.strip()


def _unchanged(nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    if nodes:
        dispatch(Event("cluster_compression.no_query", {"nodes": len(nodes)}, warning=True))
    return [copy_of(node) for node in nodes]


def _payload(nodes: Sequence[NodeWithScore], bundle: QueryBundle) -> dict[str, Any]:
    return {EventPayload.NODES: list(nodes), EventPayload.QUERY_STR: bundle.query_str}


def _passages(nodes: Sequence[NodeWithScore]) -> list[Passage]:
    """Return nodes as passages with their vectors; one without a text of its own (an image) has none."""
    found = []
    for node in nodes:
        passage = passage_of(node)
        if not node.node.get_content(metadata_mode=MetadataMode.NONE).strip():
            passage = replace(passage, text="")
        elif node.node.embedding is not None:
            passage = replace(passage, embedding=tuple(node.node.embedding))
        found.append(passage)
    return found


def _vector(bundle: QueryBundle, passages: Sequence[Passage]) -> list[float] | None:
    """Return the query's own vector, if the nodes bring theirs: both are of the index's model."""
    carried = all(passage.embedding is not None or not passage.text for passage in passages)
    return bundle.embedding if carried else None


def _node_of(passage: Passage) -> NodeWithScore:
    """Return a copy of the node that a passage was, or the node of a compression."""
    origin: NodeWithScore = passage.origin
    best = origin.node
    # A compression may say what its best source says, and is one all the same: it names its sources anew.
    sources = passage.metadata.get(SOURCES_KEY)
    if sources is None or sources is best.metadata.get(SOURCES_KEY):
        return copy_of(origin)
    differing = [
        key
        for key, value in best.metadata.items()
        if any(source["metadata"].get(key) != value for source in sources)
    ]
    hidden = [SOURCES_KEY, UNSUPPORTED_KEY, *differing]
    look = {
        name: getattr(best, name)
        for name in ("text_template", "metadata_template", "metadata_separator")
        if hasattr(best, name)
    }
    return NodeWithScore(
        node=TextNode(
            id_=best.node_id,
            text=passage.text,
            metadata=dict(passage.metadata),
            excluded_llm_metadata_keys=[*best.excluded_llm_metadata_keys, *hidden],
            excluded_embed_metadata_keys=[*best.excluded_embed_metadata_keys, *hidden],
            relationships=dict(best.relationships),
            **look,
        ),
        score=passage.score,
    )


def _shown(passage: Passage) -> str:
    """Return what a pipeline shows of a passage to its LLM; of an image, no text."""
    return _node_of(passage).node.get_content(metadata_mode=MetadataMode.LLM) if passage.text else ""
