"""A corpus of a few passages that records its queries."""

from __future__ import annotations

from collections.abc import Sequence

from surerag import Passage


class Corpus:
    """Returns always the same passages, and records the queries."""

    def __init__(self, *texts: str) -> None:
        self.passages = [Passage(text, id=f"p{i}") for i, text in enumerate(texts)]
        self.queries: list[tuple[str, int | None]] = []

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        self.queries.append((query, k))
        return self.passages[:k]
