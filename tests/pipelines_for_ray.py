"""Factories that actors of the Ray tests import."""

from __future__ import annotations

from surerag import ClusterCompressor, FakeReader, LazyRAG, Passage
from surerag.encoders import HashingEncoder
from surerag.readers.fake import reply


class Search:
    """Finds one passage for every question."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage(f"Found for {query}", id="p")]


def lazy(threshold: float) -> LazyRAG:
    def answer(prompt: str) -> object:
        return reply("yes" if "Found" in prompt else "no", entropy=len(prompt) % 3)

    return LazyRAG(FakeReader(answer), Search(), "A summary.", threshold=threshold)


def compressor() -> ClusterCompressor:
    return ClusterCompressor(
        FakeReader(lambda prompt: "Ada was born in Velm."), HashingEncoder(), variant="copy", min_tokens=0
    )


def no_method() -> str:
    return "nothing"
