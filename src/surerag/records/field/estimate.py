"""What a recording will ask, before it asks: the same work on a few questions, with a reader for free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from surerag.drivers.progress import counted_not_logged
from surerag.evaluation.inputs import QuestionFile
from surerag.evaluation.rows import Question
from surerag.journal import Memory
from surerag.readers.protocol import BaseReader, Capabilities, ReaderAround
from surerag.records.conditions import Manner, ask_all
from surerag.records.keeping import Kept
from surerag.records.pipeline import Pipeline
from surerag.tokens import estimated_tokens
from surerag.types import EntropyTrace, Generation, Prompt, Sampling, TokenTrace, as_messages

_TRIED = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """What some questions will cost, at most.

    Attributes:
        prompts: To be answered.
        answers: Samples of them.
        read: Tokens of the prompts.
        written: Tokens of the answers, if each were as long as it may be.
    """

    prompts: int
    answers: int
    read: int
    written: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.prompts + other.prompts,
            self.answers + other.answers,
            self.read + other.read,
            self.written + other.written,
        )

    def __str__(self) -> str:
        return (
            f"{self.prompts:,} prompts with {self.answers:,} answers, {self.read:,} tokens to read and at "
            f"most {self.written:,} to write"
        )


def estimated(
    made: Callable[[BaseReader], Sequence[Any]],
    questions: QuestionFile | Sequence[Question],
    reader: BaseReader,
    *,
    n_samples: int,
) -> Cost:
    """Estimate what recording will cost, from its first questions; no model is asked.

    Args:
        made: From a reader to the parts of the pipeline.
        questions: All that will be asked.
        reader: Who will be asked: its name, its capabilities and its way to count tokens are used.
        n_samples: As for recording.
    """
    dry = DryReader(reader)
    tried = list(islice(questions, _TRIED))
    kept = Kept(Memory())
    manner = Manner("contains", n_samples, window=len(tried), key=None)
    with counted_not_logged():
        ask_all(Pipeline.of(made(dry)).keeping(kept), kept, tried, manner)
    times = len(questions) / len(tried)
    found = dry.cost
    return Cost(
        *(round(times * value) for value in (found.prompts, found.answers, found.read, found.written))
    )


class DryReader(ReaderAround):
    """Answers whatever it is asked, differently each time, and counts."""

    def __init__(self, reader: BaseReader) -> None:
        super().__init__(reader)
        self._count: Callable[[str], int] = getattr(reader, "count_tokens", estimated_tokens)
        self.cost = Cost(0, 0, 0, 0)

    @property
    def capabilities(self) -> Capabilities:
        """What that one can do."""
        return replace(self._reader.capabilities, local=True)

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has."""
        return self._count(text)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return made-up answers, and count what they would cost."""
        found = []
        for prompt in prompts:
            read = sum(self._count(turn.content) for turn in as_messages(prompt))
            self.cost += Cost(1, sampling.n, read, sampling.n * sampling.max_tokens)
            found.append([self._answer(read) for _ in range(sampling.n)])
        return found

    def _answer(self, read: int) -> Generation:
        can = self._reader.capabilities
        entropy = None if can.entropy is None else EntropyTrace((1.0,), (1.0,), can.entropy == "exact")
        energy = (1.0,) if can.energy else None
        text = f"answer{self.cost.prompts}"
        trace = TokenTrace((text,), (-1.0,), entropy, energy) if can.logprobs else None
        return Generation(text, read, trace, completion_tokens=1)
