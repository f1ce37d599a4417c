"""Semantic chunking (DENSE-RAG, Algorithm 2) as a LlamaIndex node parser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.node_parser.node_utils import build_nodes_from_splits
from llama_index.core.schema import BaseNode, Document, ImageDocument, ImageNode, MetadataMode, TextNode
from llama_index.core.settings import Settings
from llama_index.core.utils import get_tqdm_iterable
from pydantic import PrivateAttr, model_validator

from llama_index_surerag.events import dispatcher
from llama_index_surerag.pickles import WithoutKeys
from llama_index_surerag.services import encoder_of
from surerag import SemanticChunk, SemanticChunker, SemanticChunkerOptions
from surerag.component import Function, Service
from surerag.drivers import arun, maybe_await, run, run_blocking
from surerag.errors import ConfigurationError
from surerag.services import Encoder

_BATCH = 64
"""Number of documents whose sentences are embedded together."""


class SemanticNodeParser(WithoutKeys, SemanticChunkerOptions, NodeParser):
    """Cuts documents between dissimilar sentences, into chunks of at most ``chunk_size`` tokens.

    Chunks are unchanged parts of the text, in order; together they cover the whole text except for white
    space. Nodes have ids, metadata, relationships and offsets as from LlamaIndex's own parsers; the offsets
    are right even if a sentence occurs twice. A document without words has no chunks. ``chunk_size`` limits
    the text of a chunk, without the metadata that a pipeline may put before the text.

    ``to_dict`` returns all settings and the embedding model's name, for the cache of ingestion pipelines.

    Raises:
        ConfigurationError: If an option is unknown or out of bounds, or ``embed_model`` has a wrong type.
    """

    embed_model: Service[BaseEmbedding | Encoder | None] = None
    """A LlamaIndex embedding model, or an encoder of surerag; ``Settings.embed_model`` if None."""

    tokenizer: Function[Callable[[str], Sequence[Any]] | None] = None
    """Function that splits a text into tokens, to count them; ``Settings.tokenizer`` if None."""

    _core: SemanticChunker = PrivateAttr()

    def __init__(self, embed_model: BaseEmbedding | Encoder | None = None, **options: Any) -> None:
        if "breakpoint_percentile_threshold" in options:
            raise ConfigurationError(
                "this parser takes no breakpoint_percentile_threshold",
                hint="derive the threshold from your documents: parser.with_quantile(documents, 0.75)",
            )
        super().__init__(**{"embed_model": embed_model, **options})

    @classmethod
    def from_defaults(cls, embed_model: BaseEmbedding | Encoder | None = None, **options: Any) -> Self:
        """Build a parser, as calling the class does. LlamaIndex's own parsers have this method, too."""
        return cls(embed_model, **options)

    @classmethod
    def class_name(cls) -> str:
        """Return the class name for serialised settings."""
        return "SemanticNodeParser"

    @model_validator(mode="after")
    def _connect(self) -> Self:
        self._core = SemanticChunker(encoder_of(self.embed_model), count_tokens=self._count, **self.options())
        return self

    def _count(self, text: str) -> int:
        return len((self.tokenizer or Settings.tokenizer)(text))

    @property
    def core(self) -> SemanticChunker:
        """The chunker that this parser wraps, with its options and services."""
        return self._core

    def with_quantile(self, documents: Sequence[BaseNode], quantile: float = 0.75) -> Self:
        """Return a copy whose similarity threshold is a quantile of the similarities of adjacent sentences.

        Args:
            documents: A sample of the corpus; a few dozen documents are enough.
            quantile: A number in [0, 1]; with 0.75, about every fourth sentence joins the sentence before it.

        Raises:
            ConfigurationError: If ``quantile`` is out of range.
            InputError: If no document has two sentences.
        """
        fitted = self._core.with_quantile([_text(document) for document in documents], quantile)
        return self.with_options(similarity_threshold=fitted.similarity_threshold)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the settings, and the names of the embedding model and the tokenizer, as plain values."""
        tokenizer = self.tokenizer or Settings.tokenizer
        name = getattr(tokenizer, "__qualname__", type(tokenizer).__qualname__)
        return {
            **super().to_dict(**kwargs),
            "encoder": encoder_of(self.embed_model).name,
            "counted_by": f"{getattr(tokenizer, '__module__', '')}.{name}",
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Build a parser from the plain values that :meth:`to_dict` returned.

        The values contain no models and functions: pass these as keyword arguments, such as ``embed_model``.
        """
        excluded = ("encoder", "counted_by", "class_name", "id_func", "callback_manager")
        return cls(**{**{name: value for name, value in data.items() if name not in excluded}, **kwargs})

    def _parse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        return run_blocking(self._parse_by(nodes, show_progress, run))

    @dispatcher.span
    async def _aparse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        return await self._parse_by(nodes, show_progress, arun)

    async def _parse_by(
        self, nodes: Sequence[BaseNode], show_progress: bool, run: Callable[..., Any]
    ) -> list[BaseNode]:
        chunks: list[BaseNode] = []
        for start in get_tqdm_iterable(range(0, len(nodes), _BATCH), show_progress, "Parsing nodes"):
            batch = nodes[start : start + _BATCH]
            program = self._core.joint_program([_text(node) for node in batch])
            chunks += self._nodes(batch, await maybe_await(run(program, self._core.services)))
        return chunks

    def _nodes(
        self, nodes: Sequence[BaseNode], chunked: Sequence[Sequence[SemanticChunk]]
    ) -> Iterator[TextNode]:
        for node, chunks in zip(nodes, chunked, strict=True):
            # An image without words still gets a node.
            empty = [""] if isinstance(node, ImageDocument) else []
            parts = build_nodes_from_splits(
                [chunk.text for chunk in chunks] or empty, node, id_func=self.id_func
            )
            for part, chunk in zip(parts, chunks, strict=False):
                part.start_char_idx, part.end_char_idx = chunk.start, chunk.end
                if not isinstance(part, ImageNode):
                    # Each part is a copy of the document, but the document's vector is not the part's vector.
                    part.embedding = None
            yield from parts

    def _postprocess_parsed_nodes(
        self, nodes: list[BaseNode], parent_doc_map: dict[str, Document]
    ) -> list[BaseNode]:
        """Fill in the nodes' fields as LlamaIndex does, but keep our exact offsets."""
        offsets = [(node.start_char_idx, node.end_char_idx) for node in nodes if isinstance(node, TextNode)]
        nodes = super()._postprocess_parsed_nodes(nodes, parent_doc_map)
        texts = [node for node in nodes if isinstance(node, TextNode)]
        for node, (start, end) in zip(texts, offsets, strict=True):
            node.start_char_idx, node.end_char_idx = start, end
        return nodes


def _text(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.NONE)
