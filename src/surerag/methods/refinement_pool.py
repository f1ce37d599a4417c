"""Where refilled chunks come from: what was retrieved and not yet shown, or what a retriever adds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Program, embed, retrieve
from surerag.errors import ServiceError
from surerag.methods.refinement_types import Addition
from surerag.types import Passage

_DECIMALS = 6
"""Similarities are compared to this many decimals; ties go to what was ranked higher."""


class Pool:
    """The candidates of one question. A text that was in a context once is never taken again.

    Args:
        question: What a retriever is asked.
        passages: What was retrieved, best first.
        more: Passages to ask the retriever for when no candidate is left; 0 asks for none.

    Attributes:
        retrievals: How often the retriever was asked.
    """

    def __init__(self, question: str, passages: Sequence[Passage], more: int) -> None:
        self._question = question
        self._passages = list(passages)
        self._more = more
        self._visited: set[str] = set()
        self._vectors: dict[str, NDArray[np.float64]] = {}
        self._carried = False
        self.retrievals = 0

    def visit(self, passages: Iterable[Passage]) -> None:
        """Note what was shown to the reader."""
        self._visited.update(passage.text for passage in passages)

    def nearest(self, anchors: Sequence[Passage], room: int) -> Program[list[Addition]]:
        """Take the candidate nearest to each anchor, in order, as long as there is room."""
        if not self._candidates() and self._more and not self.retrievals:
            self.retrievals += 1
            found = yield from retrieve(self._question, self._more)
            self._passages += [passage for passage in found if passage.text.strip()]
        candidates = self._candidates()
        if not candidates:
            return []
        yield from self._embed([*anchors, *candidates])
        taken: list[Addition] = []
        for anchor in anchors[:room]:
            similarities = [self._similarity(anchor, candidate) for candidate in candidates]
            place = int(np.argmax(similarities))
            chosen = candidates.pop(place)
            taken.append(Addition(chosen, anchor, similarities[place]))
            if not candidates:
                break
        self.visit(addition.passage for addition in taken)
        return taken

    def replace(self, passages: Sequence[Passage]) -> Program[list[Passage]]:
        """Put other passages in the place of all, and return them ranked by likeness to the question."""
        if not passages:
            return []
        # Documents that quote one another yield equal chunks; one of them will do.
        self._passages = list({passage.text: passage for passage in reversed(passages)}.values())[::-1]
        yield from self._embed(self._passages)
        rows = yield from embed([self._question], "query")
        query = _unit(rows, 1)[0]
        scores = [_cosine(self._vectors[passage.text], query) for passage in self._passages]
        order = np.argsort(-np.asarray(scores), kind="stable")
        self._passages = [self._passages[place] for place in order]
        return list(self._passages)

    def _candidates(self) -> list[Passage]:
        unseen: dict[str, Passage] = {}
        for passage in self._passages:
            if passage.text not in self._visited:
                unseen.setdefault(passage.text, passage)
        return list(unseen.values())

    def _embed(self, passages: Sequence[Passage]) -> Program[None]:
        """Learn the vectors that are not known: those that passages carry, if all do, else the encoder's.

        The two are never mixed: they need not be of one model.
        """
        carried = all(passage.embedding for passage in self._passages)
        if carried != self._carried:
            self._vectors.clear()
            self._carried = carried
        wanted = {passage.text: passage for passage in passages if passage.text not in self._vectors}
        if wanted:
            rows = (
                [passage.embedding for passage in wanted.values()]
                if carried
                else (yield from embed(list(wanted), "document"))
            )
            self._vectors.update(zip(wanted, _unit(rows, len(wanted)), strict=True))

    def _similarity(self, one: Passage, other: Passage) -> float:
        return _cosine(self._vectors[one.text], self._vectors[other.text])


def _cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    if one.shape != other.shape:
        raise ServiceError(
            f"vectors have {len(one)} and {len(other)} dimensions",
            hint="encode all passages and the question with one encoder",
        )
    return round(float(one @ other), _DECIMALS)


def _unit(rows: Any, count: int) -> NDArray[np.float64]:
    try:
        vectors = np.asarray(rows, dtype=np.float64)
    except ValueError:
        # Vectors of different lengths make no array.
        vectors = np.empty(0)
    if vectors.ndim != 2 or len(vectors) != count or not np.isfinite(vectors).all():
        raise ServiceError(
            f"expected {count} vectors of finite numbers, got an array of shape {vectors.shape}",
            hint="let the encoder return one vector for each text",
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float64] = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return unit
