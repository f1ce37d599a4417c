"""A small corpus and a reader of it, for tests of traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from surerag import ClusterCompressor, LazyRAG, SePer, UncertaintyRewriter
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.readers.protocol import BaseReader
from surerag.retrieval import PassageIndex
from surerag.types import Passage
from tests.evaluation.noting import NotingReader

TOWNS = ("Velm", "Orun", "Toren", "Sarl")


def questions(n: int) -> list[tuple[str, list[str]]]:
    """Return questions with their gold answers."""
    return [(f"Where was Person {at} born?", [TOWNS[at % 4]]) for at in range(n)]


def corpus(n: int) -> PassageIndex:
    """Return an index of what there is to know."""
    passages = [Passage(f"Person {at} was born in {TOWNS[at % 4]}.", id=f"p{at}") for at in range(n)]
    return PassageIndex.from_passages(passages, HashingEncoder())


def pipeline(reader: BaseReader, n: int, **settings: Any) -> list[Any]:
    """Return all methods over one corpus."""
    found = corpus(n)
    return [
        LazyRAG(reader, found, mode="standard", top_n=2, max_tokens=8, **settings),
        UncertaintyRewriter(reader, found, top_n=2, max_tokens=8),
        ClusterCompressor(reader, HashingEncoder(), pass_below=0),
        SePer(reader, ExactEntailer(), n_samples=3, max_tokens=8),
    ]


class Dying(NotingReader):
    """Dies, as if the process were killed, when it is asked for the ``last``-th time."""

    def __init__(self, last: int, **more: Any) -> None:
        super().__init__(**more)
        self.left = last

    def generate(self, prompts: Sequence[Any], sampling: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().generate(prompts, sampling)
