"""Adaptive semantic chunking (DENSE-RAG, Algorithm 2) as a LlamaIndex node parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Self, cast

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.ingestion.pipeline import remove_unstable_values
from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.node_parser.node_utils import build_nodes_from_splits, default_id_func
from llama_index.core.schema import BaseNode, Document, ImageDocument, ImageNode, MetadataMode, TextNode
from llama_index.core.settings import Settings
from llama_index.core.utils import get_tqdm_iterable
from pydantic import Field
from surerag.adapting import Adapted

from llama_index_surerag._fields import EmbedModel
from llama_index_surerag.events import dispatcher
from llama_index_surerag.services import encoder_of
from surerag import SemanticChunk, SemanticChunker, SemanticChunkerOptions, arun, run
from surerag.errors import ConfigurationError
from surerag.services import Encoder

_TOGETHER = 64
"""Documents whose sentences are embedded together."""

_IDENTITIES = ("encoder", "tokenizer", "class_name")
"""What ``to_dict`` tells of what is alive; a parser is built with the living themselves."""

_NOT_THE_MODEL = re.compile(r"key|secret|password|header|auth|credential|batch|workers|cache|callback")
"""Fields of an embedding model that do not change its vectors, or that nobody should be told."""

Tokenizer = Callable[[str], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Counts tokens with a tokenizer as LlamaIndex has them: from a text to a sequence.

    A class, not a closure, so that it can be pickled for pipelines of several processes.
    """

    tokenizer: Tokenizer

    def __call__(self, text: str) -> int:
        """Return the number of tokens of a text."""
        found: Any = self.tokenizer(text)
        # A tokenizer of transformers, when called, returns several things about the tokens.
        return len(getattr(found, "input_ids", found))


class AdaptiveSemanticNodeParser(Adapted[SemanticChunker], NodeParser, SemanticChunkerOptions):  # type: ignore[misc]  # a frozen base; fields that are set are in force
    """Cuts documents where neighbouring sentences are unlike, and never above a maximum of tokens.

    Chunks are verbatim and in order; together they hold all but white space. Ids, metadata, relationships
    and offsets are those of LlamaIndex's own parsers; offsets are exact where a text repeats itself, too.
    A sentence that alone is too long is cut at line breaks, white space, or between characters. A document
    without words has no chunks.

    ``to_dict`` holds every setting and the identity of embedding model and tokenizer, so that a pipeline's
    cache knows when to cut anew; no model or key is in it.

    The size of a chunk is that of its text; metadata that a pipeline puts before it come on top.

    Attributes:
        embed_model: A LlamaIndex embedding model, or an encoder of surerag; ``Settings.embed_model`` if
            left out.
        tokenizer: Counts tokens: from a text to a sequence, or a tokenizer of transformers, tokenizers or
            tiktoken; LlamaIndex's global one if left out.
        include_metadata: Whether chunks get their document's metadata.
        include_prev_next_rel: Whether chunks know their neighbours.
        callback_manager: Receives LlamaIndex's callbacks.
        id_func: From a chunk's number and its document to its id; random by default.

    Raises:
        ConfigurationError: If an option is unknown or out of bounds, or the model embeds nothing.

    Example:
        >>> from surerag.encoders import HashingEncoder
        >>> parser = AdaptiveSemanticNodeParser(HashingEncoder(), similarity_threshold=0.3)
        >>> document = Document(text="Ada was born in Velm. Ada left Velm in spring. Tin melts easily.")
        >>> [(node.text, node.start_char_idx) for node in parser.get_nodes_from_documents([document])]
        [('Ada was born in Velm. Ada left Velm in spring.', 0), ('Tin melts easily.', 47)]
    """

    embed_model: EmbedModel = Field(default=None, exclude=True, repr=False)
    tokenizer: Any = Field(default=None, exclude=True, repr=False)

    def __init__(self, embed_model: BaseEmbedding | Encoder | None = None, **given: Any) -> None:
        tokenizer, identify = given.get("tokenizer"), given.get("id_func")
        given["tokenizer"] = Settings.tokenizer if tokenizer is None else _called(tokenizer)
        given["id_func"] = default_id_func if identify is None else identify
        given["callback_manager"] = given.get("callback_manager") or CallbackManager([])
        super().__init__(embed_model=Settings.embed_model if embed_model is None else embed_model, **given)

    @classmethod
    def from_defaults(cls, embed_model: BaseEmbedding | Encoder | None = None, **settings: Any) -> Self:
        """Build a parser as LlamaIndex's own are built; the same arguments as the constructor's."""
        return cls(embed_model, **settings)

    @classmethod
    def class_name(cls) -> str:
        """Name in serialised settings."""
        return "AdaptiveSemanticNodeParser"

    def _core(self) -> SemanticChunker:
        return SemanticChunker(encoder_of(self.embed_model), TokenCount(self.tokenizer), **self.chosen())

    def with_quantile(self, documents: Sequence[BaseNode], quantile: float = 0.5) -> Self:
        """Return a copy with the similarity that this share of the neighbouring sentences lies below.

        Args:
            documents: Some dozen of the corpus will do.
            quantile: In [0, 1]; 0.5 leaves every other sentence with the one before.

        Raises:
            ConfigurationError: If ``quantile`` is out of range.
            InputError: If no document has two sentences.
        """
        fitted = self.core.with_quantile([_text(document) for document in documents], quantile)
        return self.with_options(similarity_threshold=fitted.similarity_threshold)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return settings, and the identities of embedding model and tokenizer, as plain values."""
        living = {
            "encoder": _model_identity(self.embed_model),
            "tokenizer": _tokenizer_identity(self.tokenizer),
        }
        return {**super().to_dict(**kwargs), **living}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **kwargs: Any) -> Self:
        """Rebuild from :meth:`to_dict`; what is alive is passed in, as to the constructor.

        Raises:
            ConfigurationError: If there was an ``id_func`` of your own and it is not passed in.
        """
        values = {name: value for name, value in data.items() if name not in _IDENTITIES}
        named = values.pop("id_func", None)
        own = isinstance(named, Mapping) and named.get("id_func_name") != default_id_func.__name__
        if own and "id_func" not in kwargs:
            raise ConfigurationError(f"id_func was {named!r}", hint="pass id_func=… again")
        return cls(**{**values, **kwargs})

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled; what cannot be is missed here, and not replaced by a default elsewhere.

        Raises:
            ConfigurationError: If the embedding model, the tokenizer or ``id_func`` cannot be pickled.
        """
        state = super().__getstate__()
        for name in ("embed_model", "tokenizer", "id_func"):
            if name not in state["__dict__"]:
                raise ConfigurationError(
                    f"{name} cannot be pickled", hint="use a function of a module, or one process"
                )
        return state

    def _parse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        core, found = self.core, list[BaseNode]()
        for batch in _batches(nodes, show_progress):
            program = core.joint_program([_text(node) for node in batch])
            found += self._nodes(batch, run(program, core.services))
        return found

    @dispatcher.span
    async def _aparse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        core, found = self.core, list[BaseNode]()
        for batch in _batches(nodes, show_progress):
            program = core.joint_program([_text(node) for node in batch])
            found += self._nodes(batch, await arun(program, core.services))
        return found

    def _nodes(
        self, nodes: Sequence[BaseNode], chunked: Sequence[Sequence[SemanticChunk]]
    ) -> Iterator[TextNode]:
        for node, chunks in zip(nodes, chunked, strict=True):
            # An image without words is still an image.
            empty = [""] if isinstance(node, ImageDocument) else []
            parts = build_nodes_from_splits(
                [chunk.text for chunk in chunks] or empty, node, id_func=self.id_func
            )
            for part, chunk in zip(parts, chunks, strict=False):
                part.start_char_idx, part.end_char_idx = chunk.start, chunk.end
                if not isinstance(part, ImageNode):
                    # A document's vector is not that of a chunk.
                    part.embedding = None
            yield from parts

    def _postprocess_parsed_nodes(
        self, nodes: list[BaseNode], parent_doc_map: dict[str, Document]
    ) -> list[BaseNode]:
        """Complete nodes as LlamaIndex does, and keep their offsets: a search may find an earlier repeat."""
        known = [(node.start_char_idx, node.end_char_idx) for node in nodes if isinstance(node, TextNode)]
        nodes = super()._postprocess_parsed_nodes(nodes, parent_doc_map)
        texts = [node for node in nodes if isinstance(node, TextNode)]
        for node, (start, end) in zip(texts, known, strict=True):
            node.start_char_idx, node.end_char_idx = start, end
        return nodes


def _text(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.NONE)


def _batches(nodes: Sequence[BaseNode], show_progress: bool) -> Iterator[Sequence[BaseNode]]:
    starts = get_tqdm_iterable(range(0, len(nodes), _TOGETHER), show_progress, "Parsing nodes")
    return (nodes[start : start + _TOGETHER] for start in starts)


def _model_identity(model: BaseEmbedding | Encoder | None) -> str:
    """Return an embedding model's name, and a digest of the settings that its vectors depend on."""
    name = encoder_of(model).name
    if not isinstance(model, BaseEmbedding):
        return name
    settings = {key: value for key, value in model.to_dict().items() if not _NOT_THE_MODEL.search(key)}
    stable = remove_unstable_values(repr(sorted(settings.items())))
    return f"{name}#{sha256(stable.encode()).hexdigest()[:12]}"


def _called(tokenizer: Any) -> Tokenizer:
    """Return a tokenizer as something to call: one of tokenizers or tiktoken encodes.

    Raises:
        ConfigurationError: If it can do neither.
    """
    found = tokenizer if callable(tokenizer) else getattr(tokenizer, "encode", None)
    if not callable(found):
        raise ConfigurationError(
            f"tokenizer must be a function from a text to its tokens, got {type(tokenizer).__name__}",
            hint="pass tokenizer.encode, or a function such as str.split",
        )
    return cast("Tokenizer", found)


def _tokenizer_identity(tokenizer: Any) -> str:
    """Return the name of a tokenizer, or of the function that it is, with what it is bound to."""
    if isinstance(tokenizer, partial):
        bound = [repr(one) for one in tokenizer.args]
        bound += [f"{name}={value!r}" for name, value in sorted(tokenizer.keywords.items())]
        return f"{_tokenizer_identity(tokenizer.func)}({remove_unstable_values(', '.join(bound))})"
    owner = getattr(tokenizer, "__self__", tokenizer)
    for attribute in ("name_or_path", "name"):
        if isinstance(name := getattr(owner, attribute, None), str) and name:
            return f"{type(owner).__name__}:{name}"
    if callable(written := getattr(owner, "to_str", None)):
        # A tokenizer of tokenizers has no name.
        return f"{type(owner).__name__}#{sha256(written().encode()).hexdigest()[:12]}"
    named = tokenizer if hasattr(tokenizer, "__qualname__") else type(tokenizer)
    name = f"{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"
    code = getattr(tokenizer, "__code__", None)
    if code is None or "<" not in name:
        return name
    # Of functions without a name of their own, many have the same one.
    held = [cell.cell_contents for cell in tokenizer.__closure__ or ()]
    told = remove_unstable_values(repr((code.co_names, code.co_consts, tokenizer.__defaults__, held)))
    return f"{name}#{sha256(code.co_code + told.encode()).hexdigest()[:12]}"
