"""A reader that answers from its context, and a library in which only the clear question finds the answer."""

from __future__ import annotations

from collections.abc import Sequence

from surerag.messages import Generation, Passage
from surerag.readers.fake import FakeReader, reply

VAGUE = "Where was the painter born?"
CLEAR = "Where was Ada born?"
OTHER = "Who was the painter?"
TELLING = Passage("Ada was born in Velm.", id="ada", score=0.9, metadata={"page": 1})
COMMON = Passage("Painters are born everywhere. {question}", id="common")
VAGUELY = Passage("The painter left early.", id="vague")
SURE, UNSURE = -0.05, -1.5


class Library:
    """Finds by the words of a query, and records the queries."""

    def __init__(self) -> None:
        self.queries: list[tuple[str, int | None]] = []

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        self.queries.append((query, k))
        if "poison" in query:
            raise ConnectionError("the index is gone")
        return ([TELLING, COMMON] if "Ada" in query else [VAGUELY, COMMON] if "painter" in query else [])[:k]


def knowing(prompt: str) -> Generation:
    """Answer from what is shown; rewrite the vague question well."""
    if prompt.startswith("Rewrite the query"):
        return reply(CLEAR)
    if "Ada was born in Velm" in prompt:
        return reply("In Velm", logprobs=SURE)
    return reply("perhaps Orun", logprobs=UNSURE)


def reader() -> FakeReader:
    return FakeReader(knowing)
