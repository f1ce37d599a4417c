"""A summary of each document, searched by vectors, as the documents are at this moment."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.schema import Document as LlamaDocument
from numpy.typing import NDArray

from llama_index_surerag._fanout import PerLoop
from llama_index_surerag._living import Held, Living
from llama_index_surerag.nodes import summary_node
from llama_index_surerag.services import Asked, encoder_of
from surerag.documents import Document
from surerag.errors import InputError
from surerag.messages import Passage
from surerag.readers.threads import in_thread
from surerag.retrieval.index import MAX_IN_MEMORY, too_many, top_places
from surerag.services import Encoder

logger = logging.getLogger("surerag")

USUAL_K = 3
"""Summaries that are found where nobody asks for another number."""


class Whole(NamedTuple):
    """A document, whole or put together from its nodes.

    Attributes:
        node: The document, or the first of its nodes.
        plain: It as the core has documents.
    """

    node: BaseNode
    plain: Document


Summarizing = Callable[[Sequence[Whole]], list[str]]


class _Ask(NamedTuple):
    """What is asked while a tier is brought up to date."""

    what: Literal["held", "nodes", "summaries", "vectors"]
    of: Any = ()


@dataclass(frozen=True)
class _Tier:
    """The summaries as they were at one moment.

    Attributes:
        held: The nodes that there were.
        owners: The document of each node with text.
        parts: The nodes of each document, in order.
        summaries: Of each document.
        vectors: Of each summary, as far as they were needed.
    """

    held: Held = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    summaries: Mapping[str, Passage] = field(default_factory=dict)
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @cached_property
    def rows(self) -> NDArray[np.float32]:
        """The vectors of all summaries [summaries, dimensions], in order."""
        return np.stack([self.vectors[name] for name in self.summaries])

    def behind(self, found: Sequence[Passage]) -> Held:
        """Return the nodes of the documents that some summaries are of."""
        documents = [summary.origin.ref_doc_id for summary in found]
        return {name: self.held[name] for document in documents for name in self.parts[document]}

    def best(self, query: NDArray[np.float32], k: int) -> list[Passage]:
        """Return the summaries nearest to a query [1, dimensions], best first."""
        found = list(self.summaries.values())
        scores = self.rows @ query[0]
        return [replace(found[place], score=float(scores[place])) for place in top_places(scores, k)]


class SummaryTier:
    """Finds the documents whose summaries are nearest to a query, among those that are there now.

    Before each search it is compared with the index that it belongs to: what is new is summarized and
    embedded then, what is gone cannot be found. In a store of this process that comparison reads ids and
    hashes, and of a large one seldom all of them; of a store elsewhere it costs one request a query, so for a
    large one, keep the summaries in a vector store of your own instead.

    Args:
        living: Tells what is there.
        summarize: Makes summaries of documents.
        embed_model: Searches them: an embedding model, or an encoder of surerag.
        calls: Whether ``summarize`` asks a model, and so has to wait for the first question.
        max_summaries: More are refused where the tier is made, before any is. An index that grows beyond it
            later is followed, with a warning.

    Raises:
        InputError: If there is a document with text, and its summary has none.
        ConfigurationError: If there are more documents than ``max_summaries``.
    """

    def __init__(
        self,
        living: Living,
        summarize: Summarizing,
        embed_model: BaseEmbedding | Encoder | None,
        *,
        calls: bool = False,
        max_summaries: int = MAX_IN_MEMORY,
    ) -> None:
        self._living = living
        self._most = max_summaries
        self._summarize = summarize
        self._model = embed_model
        self._encoder = encoder_of(embed_model)
        self._tier = _Tier()
        self._lock = threading.Lock()
        self._turns = PerLoop(asyncio.Lock)
        if living.at_hand and not calls:
            # Whatever is wrong with documents or summaries is said at construction; nothing is embedded yet.
            self._tier = self._driven(self._described(self._tier))

    def __len__(self) -> int:
        """Return the number of documents as it was when last looked at."""
        return len(self._tier.summaries)

    def refresh(self) -> None:
        """Summarize and embed what is new, ahead of the next question."""
        self._current()

    async def arefresh(self) -> None:
        """Like ``refresh``, without blocking the event loop."""
        await self._acurrent()

    def bound_to(self, asked: Asked) -> BoundSummaryTier:
        """Return a tier that is asked for this very query."""
        return BoundSummaryTier(self, asked)

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return the ``k`` best summaries, best first; none if there is no document."""
        return self.found(Asked.of(query), k)

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        return await self.afound(Asked.of(query), k)

    def found(self, asked: Asked, k: int | None) -> list[Passage]:
        """Like ``retrieve``, for a query whose vector may be known."""
        tier = self._current()
        if not tier.summaries:
            return []
        query = asked.vector(self._model, self._encoder)
        best = tier.best(query, k or USUAL_K)
        if self._living.still(tier.behind(best)):
            return best
        tier = self._current()
        return tier.best(query, k or USUAL_K) if tier.summaries else []

    async def afound(self, asked: Asked, k: int | None) -> list[Passage]:
        """Like ``found``."""
        tier = await self._acurrent()
        if not tier.summaries:
            return []
        query = await asked.avector(self._model, self._encoder)
        best = tier.best(query, k or USUAL_K)
        if self._living.still(tier.behind(best)):
            return best
        tier = await self._acurrent()
        return tier.best(query, k or USUAL_K) if tier.summaries else []

    def _current(self) -> _Tier:
        with self._lock:
            self._tier = self._driven(self._renewed(self._tier))
            return self._tier

    async def _acurrent(self) -> _Tier:
        # One task of a loop does what is to be done for all; another loop's, or a thread's, may do it twice.
        async with self._turns.get():
            self._tier = await self._adriven(self._renewed(self._tier))
            return self._tier

    def _driven(self, steps: Generator[_Ask, Any, _Tier]) -> _Tier:
        answer: Any = None
        try:
            while True:
                what, of = steps.send(answer)
                match what:
                    case "held":
                        answer = self._living.held()
                    case "nodes":
                        answer = self._living.nodes(of) if of else []
                    case "summaries":
                        answer = self._summarize(of) if of else []
                    case "vectors":
                        answer = self._encoder.encode(of, "document") if of else []
        except StopIteration as stop:
            tier: _Tier = stop.value
            return tier

    async def _adriven(self, steps: Generator[_Ask, Any, _Tier]) -> _Tier:
        answer: Any = None
        try:
            while True:
                what, of = steps.send(answer)
                match what:
                    case "held":
                        answer = await self._living.aheld()
                    case "nodes":
                        answer = await self._living.anodes(of) if of else []
                    case "summaries":
                        answer = await in_thread(self._summarize, of) if of else []
                    case "vectors":
                        answer = await _aencoded(self._encoder, of) if of else []
        except StopIteration as stop:
            tier: _Tier = stop.value
            return tier

    def _renewed(self, old: _Tier) -> Generator[_Ask, Any, _Tier]:
        """Bring a tier up to date, vectors included."""
        tier = yield from self._described(old)
        missing = [name for name in tier.summaries if name not in tier.vectors]
        if not missing:
            return tier
        rows = yield _Ask("vectors", [tier.summaries[name].text for name in missing])
        return replace(tier, vectors={**tier.vectors, **dict(zip(missing, rows, strict=True))})

    def _check_number(self, before: int, now: int) -> None:
        if before <= self._most < now:
            if not before:
                raise too_many(self._most)
            logger.warning("%s", too_many(self._most))

    def _described(self, old: _Tier) -> Generator[_Ask, Any, _Tier]:
        """Bring a tier up to date but for the vectors: whose nodes changed is summarized anew."""
        held: Held = yield _Ask("held")
        if held is old.held or held == old.held:
            return old
        fresh = {name for name, digest in held.items() if name not in old.held or old.held[name] != digest}
        read = {node.node_id: node for node in (yield _Ask("nodes", sorted(fresh)))}
        owners = {name: owner for name, owner in old.owners.items() if name in held and name not in fresh} | {
            name: document_id(node) for name, node in read.items() if _text(node).strip()
        }
        parts: dict[str, list[str]] = {}
        for name in held:
            if name in owners:
                parts.setdefault(owners[name], []).append(name)
        self._check_number(len(old.parts), len(parts))
        changed = [
            document
            for document, names in parts.items()
            if tuple(names) != old.parts.get(document) or not fresh.isdisjoint(names)
        ]
        others = [name for document in changed for name in parts[document] if name not in read]
        read |= {node.node_id: node for node in (yield _Ask("nodes", others))}
        wholes = [whole_of([read[name] for name in parts[document] if name in read]) for document in changed]
        texts = yield _Ask("summaries", wholes)
        made = {whole.plain.id: summary_of(whole, text) for whole, text in zip(wholes, texts, strict=True)}
        summaries = {document: made.get(document) or old.summaries[document] for document in parts}
        vectors = {name: row for name, row in old.vectors.items() if name in summaries and name not in made}
        return _Tier(held, owners, {key: tuple(names) for key, names in parts.items()}, summaries, vectors)


class BoundSummaryTier:
    """A tier of summaries that is asked for one query, whose vector tier 2 can use again.

    Args:
        tier: The tier.
        asked: The query.
    """

    def __init__(self, tier: SummaryTier, asked: Asked) -> None:
        self._tier = tier
        self._asked = asked

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return the ``k`` best summaries, best first."""
        return self._tier.found(self._asked.for_text(query), k)

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        return await self._tier.afound(self._asked.for_text(query), k)


def document_id(node: BaseNode) -> str:
    """Return the id of the document that a node is, or comes from."""
    if isinstance(node, LlamaDocument):
        return node.node_id
    return node.ref_doc_id or node.node_id


def whole_of(nodes: Sequence[BaseNode]) -> Whole:
    """Put a document together from its nodes: by their offsets where all tell them, else as they come."""
    placed = [(start, node) for node in nodes if (start := getattr(node, "start_char_idx", None)) is not None]
    if len(placed) < len(nodes):
        text = "\n\n".join(_text(node) for node in nodes)
        first = nodes[0]
    else:
        placed.sort(key=lambda one: one[0])
        first, text = placed[0][1], _joined(placed)
    return Whole(first, Document(id=document_id(first), text=text, metadata=dict(first.metadata)))


def _joined(placed: Sequence[tuple[int, BaseNode]]) -> str:
    """Join pieces in order; what two neighbours share is there once."""
    text, end = "", placed[0][0]
    for start, node in placed:
        piece = _text(node)
        if start <= end:
            text += piece[end - start :]
        else:
            text = f"{text}\n\n{piece}"
        end = max(end, start + len(piece))
    return text


def summary_of(whole: Whole, text: str) -> Passage:
    """Return a document's summary, as a node whose source is the document.

    Raises:
        InputError: If it has no text.
    """
    if not text.strip():
        raise InputError(
            f"the summary of document {whole.plain.id!r} has no text",
            hint="let summarize return some words, or leave the document out",
        )
    summary = Passage(text, id=whole.plain.id, metadata=whole.plain.metadata)
    node = summary_node(summary)
    return replace(summary, id=node.node_id, origin=node)


def _text(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.NONE)


async def _aencoded(encoder: Any, texts: Sequence[str]) -> NDArray[np.float32]:
    rows: NDArray[np.float32]
    if hasattr(encoder, "aencode"):
        rows = await encoder.aencode(texts, "document")
    else:
        rows = await in_thread(encoder.encode, texts, "document")
    return rows
