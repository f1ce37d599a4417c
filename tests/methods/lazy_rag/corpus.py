"""A corpus of a few passages that counts how often it is asked."""

from __future__ import annotations

from collections.abc import Sequence

from surerag import Passage


class Corpus:
    """Finds always the same passages, and counts how often it was asked."""

    def __init__(self, *texts: str) -> None:
        self.passages = [Passage(text, id=f"p{i}") for i, text in enumerate(texts)]
        self.asked: list[tuple[str, int]] = []

    def retrieve(self, query: str, k: int) -> Sequence[Passage]:
        self.asked.append((query, k))
        return self.passages[:k]
