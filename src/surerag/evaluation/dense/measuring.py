"""DENSE of every question's context, and what the same reader says when everything is rephrased."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from surerag import drivers
from surerag.components import Dense
from surerag.drivers.progress import Progress
from surerag.effects import Program, generate
from surerag.evaluation.dense.cases import Case
from surerag.evaluation.dense.results import Sameness
from surerag.methods.dense_types import ChunkReading, DensePrompts, DenseResult
from surerag.readers.protocol import Reader
from surerag.types import Sampling
from surerag.world.questions import is_correct

ANSWER = Sampling(max_tokens=24)
REPHRASE_TOKENS = 64
AT_ONCE = 64
"""Questions whose prompts are read as one batch."""

PROMPTS = DensePrompts()
_MIXED = 7
"""Prompts of a batch that is not all of them; no multiple of anything."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One question's context of k passages, measured.

    Attributes:
        case: The question.
        result: What DENSE says.
        correct: Whether the answer from the context is right.
        edited: Whether each of the k answers is right that are given with one passage rephrased.
        rephrased: Whether the answer is right that is given with all of them rephrased.
    """

    case: Case
    result: DenseResult
    correct: bool
    edited: tuple[bool, ...]
    rephrased: bool

    @property
    def score(self) -> float:
        """DENSE, in nats."""
        return self.result.score

    @property
    def uncertain(self) -> bool:
        """Whether the question is uncertain at the method's threshold."""
        return not self.result.certain


def measured(dense: Dense, cases: Sequence[Case], k: int, progress: Progress) -> tuple[Record, ...]:
    """Measure the first k passages of every question."""
    asked = [(case.question.text, case.pool[:k]) for case in cases]
    results = dense.run_many(asked, at_once=AT_ONCE, progress=progress)
    programs = [_all_rephrased(result) for result in results]
    answers = drivers.run_many(programs, dense.services, at_once=AT_ONCE)
    return tuple(
        Record(
            case,
            result,
            is_correct(case.question, result.answer),
            tuple(is_correct(case.question, answer) for answer in result.answers[1:]),
            is_correct(case.question, answer),
        )
        for case, result, answer in zip(cases, results, answers, strict=True)
    )


def _all_rephrased(result: DenseResult) -> Program[str]:
    """Answer from a context that says everything in other words."""
    texts = [chunk.rephrased.text for chunk in result.chunks]
    [[answer]] = yield from generate([PROMPTS.asking(result.question, texts)], ANSWER)
    return answer.text


def same_answers(reader: Reader, records: Sequence[Record], most: int) -> Sameness:
    """Ask alone, in one batch, and in batches of seven in reverse order (the premise of appendix C).

    Args:
        reader: As it is: nothing may be remembered.
        records: Measured questions; contexts of the first ``most`` are asked about.
        most: Questions.
    """
    prompts = []
    for record in records[:most]:
        texts = [passage.text for passage in record.result.passages]
        edits = [[*texts[:at], chunk.rephrased.text, *texts[at + 1 :]] for at, chunk in _edit(record)]
        prompts += [PROMPTS.asking(record.case.question.text, shown) for shown in (texts, *edits)]
    alone = [reader.generate([prompt], ANSWER)[0][0].text for prompt in prompts]
    together = [row[0].text for row in reader.generate(prompts, ANSWER)]
    back = prompts[::-1]
    mixed = [
        row[0].text
        for start in range(0, len(back), _MIXED)
        for row in reader.generate(back[start : start + _MIXED], ANSWER)
    ][::-1]
    return Sameness(
        len(prompts),
        sum(a == b for a, b in zip(alone, together, strict=True)),
        sum(a == b for a, b in zip(alone, mixed, strict=True)),
    )


def _edit(record: Record) -> list[tuple[int, ChunkReading]]:
    """Return the last passage that could be rephrased, with its place."""
    usable = [
        (at, chunk) for at, chunk in enumerate(record.result.chunks) if chunk.rephrased.outcome == "rephrased"
    ]
    return usable[-1:]
