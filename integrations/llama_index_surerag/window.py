"""What an engine shows its LLM of what was retrieved: as much as the LLM's window holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.schema import MetadataMode, NodeWithScore

from llama_index_surerag.events import warn
from llama_index_surerag.nodes import copy_of
from llama_index_surerag.services import NodeRetriever
from surerag import Passage
from surerag.errors import InputError
from surerag.readers import BaseReader

_MARGIN, _LEAST = 256, 32
"""Tokens of the window for the prompt's own words and a chat template; and for a passage, in any case."""


class EmptyIndexError(InputError):
    """There is nothing to answer from; raised and caught inside one query."""


class Window:
    """What is left of a reader's window for the passages of one query, in tokens."""

    def __init__(self, reader: BaseReader, window: int, question: str, *, max_tokens: int) -> None:
        self._count = reader.count_tokens
        self._left = window - max_tokens - self._count(question) - _MARGIN

    def fit(self, passages: list[Passage], *, stay: bool) -> list[Passage]:
        """Leave out the last passages until all fit, or cut one; those that ``stay`` take up room later."""
        total, fitting = 0, list[Passage]()
        for passage in passages:
            tokens = self._count(passage.text) + 5
            if total + tokens > self._left:
                if not fitting:
                    fitting.append(self._cut(passage, max(self._left - 5, _LEAST)))
                    total = self._left
                if len(passages) > len(fitting):
                    shown = len(fitting)
                    warn("window.passages_dropped", retrieved=len(passages), shown=shown, tokens=self._left)
                break
            total += tokens
            fitting.append(passage)
        self._left -= total if stay else 0
        return fitting

    def _cut(self, passage: Passage, room: int) -> Passage:
        """Return the beginning of a passage, and of the node that it was made from."""
        text, tokens = passage.text, self._count(passage.text)
        before = tokens
        while tokens > room:
            text = text[: min(len(text) - 1, len(text) * room // tokens)].rstrip()
            tokens = self._count(text)
        warn("window.passage_cut", id=passage.id, tokens=before, shown=tokens)
        origin = passage.origin
        if isinstance(origin, NodeWithScore):
            origin = copy_of(origin)
            content = origin.node.get_content(metadata_mode=MetadataMode.NONE)
            # Metadata stand before the text, unless a template of the user's puts them elsewhere.
            origin.node.set_content(content[: max(len(content) - len(passage.text) + len(text), 0)])
            text = origin.node.get_content(metadata_mode=MetadataMode.LLM)
        return replace(passage, text=text, origin=origin)


class QueryRetriever:
    """Retrieves for a query and fits passages into the LLM's window; ``others`` retrieve in a later tier."""

    def __init__(
        self, retriever: NodeRetriever, window: Window | None, *others: NodeRetriever, required: bool
    ) -> None:
        self._retriever = retriever
        self._window = window
        self._others = others
        self._required = required

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return passages, best first; an EmptyIndexError where nothing is there to answer from."""
        passages = self._retriever.retrieve(query, k)
        return self._fitting(passages, passages or [one.retrieve(query, 1) for one in self._others])

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        passages = await self._retriever.aretrieve(query, k)
        return self._fitting(passages, passages or [await one.aretrieve(query, 1) for one in self._others])

    def _fitting(self, passages: list[Passage], found: Sequence[Any]) -> list[Passage]:
        if self._required and not any(found):
            raise EmptyIndexError("nothing was retrieved")
        self._required = False
        return passages if self._window is None else self._window.fit(passages, stay=bool(self._others))
