"""A reader that knows what it is shown, and a library in which only the clear question finds the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from surerag.messages import Generation, Passage, Prompt, SamplingParams
from surerag.readers.fake import FakeReader, reply
from surerag.readers.protocol import Capabilities

VAGUE = "Where was the painter born?"
CLEAR = "Where was Ada born?"
OTHER = "Who was the painter?"
TELLING = Passage("Ada was born in Velm.", id="ada", score=0.9, metadata={"page": 1})
COMMON = Passage("Painters are born everywhere. {question}", id="common")
VAGUELY = Passage("The painter left early.", id="vague")
SURE, UNSURE = -0.05, -1.5
QUESTIONS = [f"{VAGUE} {at}" for at in range(10)] + [f"{CLEAR} {at}" for at in range(6)]
LOCAL = Capabilities(logprobs=True, entropy="exact", begin="native", local=True)


class Library:
    """Finds by the words of a query, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int | None]] = []

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        self.asked.append((query, k))
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


class Batches(FakeReader):
    """A local reader that remembers the size of each batch."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(knowing, capabilities=LOCAL, **settings)
        self.sizes: list[int] = []

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        self.sizes.append(len(prompts))
        return super().generate(prompts, sampling)
