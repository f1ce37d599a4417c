"""Ways to ask a reader which passages help, and rules for the number of passages to keep.

By default, EDC²-RAG judges every passage in its own call and keeps a third of the passages. The other ways
are cheaper, or keep as many passages as a question needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.real.systems import Meter, share_of_gold
from surerag import Passage
from surerag.evaluation import EvaluationAnswer, Question
from surerag.evaluation.systems import System
from surerag.methods.edc2.clusters import fuse_ranks
from surerag.methods.shared import yes_probability
from surerag.prompts import RELEVANT, PromptTemplate, format_passages
from surerag.readers.protocol import BaseReader
from surerag.services import Encoder

TOGETHER = PromptTemplate(
    "relevant_together",
    "Context: {context}\nQuestion: {question}\n"
    "Which of these passages help to answer the question? Reply only with their numbers, the one that helps "
    "most first.",
)
IN_CONTEXT = PromptTemplate(
    "relevant_in_context",
    "Context: {context}\nQuestion: {question}\n"
    "Does passage [{number}] help to answer the question? Reply only with yes or no.",
)
QUESTION_FIRST = PromptTemplate(
    "relevant_question_first",
    "A passage helps if it says something that the answer to a question needs.\nQuestion: {question}\n"
    "Passage: {passage}\nDoes the passage help to answer the question? Reply only with yes or no.",
)


class Judged(NamedTuple):
    """A reader's judgement: how much each passage helps (larger is more), and the places that it names."""

    helps: list[float]
    named: list[int]


Judge = Callable[[Meter, str, Sequence[Passage]], Judged]
Choose = Callable[[Meter, str], list[int]]
"""Returns the places of the passages to keep for a question."""
Keep = Callable[[Judged, NDArray[np.float64]], list[int]]
"""Returns the places of the passages to keep, from the judgement and the similarities."""


def _probabilities(meter: Meter, prompts: Sequence[str]) -> Judged:
    replies = meter.generate_all(prompts, 2, "logprobs")
    helps = [0.5 if (yes := yes_probability(one)) is None else yes for one in replies]
    return Judged(helps, [at for at, yes in enumerate(helps) if yes >= 0.5])


def each(meter: Meter, question: str, passages: Sequence[Passage]) -> Judged:
    """Judge each passage in its own call, as the component does."""
    return _probabilities(meter, [RELEVANT.render(passage=one.text, question=question) for one in passages])


def question_first(meter: Meter, question: str, passages: Sequence[Passage]) -> Judged:
    """Judge each passage in its own call; all calls share their beginning."""
    return _probabilities(
        meter, [QUESTION_FIRST.render(passage=one.text, question=question) for one in passages]
    )


def in_context(meter: Meter, question: str, passages: Sequence[Passage]) -> Judged:
    """Judge each passage in a call that shows all passages and begins as plain RAG's prompt."""
    context = format_passages(one.text for one in passages)
    numbers = map(str, range(1, len(passages) + 1))
    return _probabilities(
        meter, [IN_CONTEXT.render(context=context, question=question, number=one) for one in numbers]
    )


def together(meter: Meter, question: str, passages: Sequence[Passage]) -> Judged:
    """Judge all passages in one call; the reply names the passages that help."""
    context = format_passages(one.text for one in passages)
    [reply] = meter.generate_all([TOGETHER.render(context=context, question=question)], 4 * len(passages))
    named = numbers_in(reply.text, len(passages))
    helps = [1 / (2 + named.index(at)) if at in named else 0.0 for at in range(len(passages))]
    return Judged(helps, named)


_RANGE = re.compile(r"(\d+)\]?\s*(?:-|–|to)\s*\[?(\d+)")


def numbers_in(reply: str, n: int) -> list[int]:
    """Return the places, from 0, of the passages that a reply names by number, in the order of the reply.

    If some numbers are in brackets, the others are ignored, because they may belong to a text.

    Example:
        >>> numbers_in("[3], [1]", 4), numbers_in("Passages 2-4 help.", 4), numbers_in("[2] Born in 3 BC.", 4)
        ([2, 0], [1, 2, 3], [1])
    """
    spans = [(int(a), int(b)) for a, b in _RANGE.findall(reply)]
    reply = _RANGE.sub(" ", reply)
    found = re.findall(r"\[([\d, ]+)\]", reply) or [reply]
    spans += [(int(one), int(one)) for part in found for one in re.findall(r"\d+", part)]
    places = (at - 1 for a, b in spans if b - a < n for at in range(a, b + 1))
    return list(dict.fromkeys(at for at in places if 0 <= at < n))


def the_first(n: int) -> Keep:
    """Return a rule that keeps the n best passages."""
    return lambda judged, similarity: fuse_ranks(judged.helps, similarity)[:n].tolist()


def those_named(judged: Judged, similarity: NDArray[np.float64]) -> list[int]:
    """Keep all passages that help according to the reader, or the best passage if none helps."""
    return judged.named or fuse_ranks(judged.helps, similarity)[:1].tolist()


WAYS: Mapping[str, tuple[Judge, Keep | None]] = {
    "each": (each, None),
    "each question first": (question_first, None),
    "each in sight": (in_context, None),
    "together": (together, None),
    "each that helps": (each, those_named),
    "each in sight that helps": (in_context, those_named),
    "together that help": (together, those_named),
}
"""Each way to judge passages with its rule to keep some; None keeps a fixed number, as the component does."""


def ways_to_choose(encoder: Encoder, shown: Mapping[str, Sequence[Passage]], n: int) -> dict[str, Choose]:
    """Return the ways to choose passages by name; ways with a fixed number keep n passages."""

    def similarities(question: str) -> NDArray[np.float64]:
        vectors = encoder.encode([one.text for one in shown[question]], "document")
        return np.asarray(vectors @ encoder.encode([question], "query")[0], dtype=np.float64)

    def nearest(meter: Meter, question: str) -> list[int]:
        return _descending(similarities(question))[:n]

    def judged(judge: Judge, keep: Keep) -> Choose:
        def choose(meter: Meter, question: str) -> list[int]:
            said = judge(meter, question, shown[question])
            meter.noted |= {f"passage {at}": one for at, one in enumerate(said.helps, start=1)}
            return keep(said, similarities(question))

        return choose

    def in_rounds(most: int, *, until_enough: bool) -> Choose:
        """Judge n passages in each round, the nearest first, up to a limit or until n passages help."""

        def choose(meter: Meter, question: str) -> list[int]:
            passages, similarity = shown[question], similarities(question)
            order, helps = _descending(similarity)[:most], dict[int, float]()
            while len(helps) < len(order) and not (until_enough and _count_yes(helps.values()) >= n):
                some = order[len(helps) :][:n]
                helps |= zip(some, each(meter, question, [passages[at] for at in some]).helps, strict=True)
            read = list(helps)
            return [read[at] for at in fuse_ranks(list(helps.values()), similarity[read])[:n]]

        return choose

    ways = {name: judged(judge, keep or the_first(n)) for name, (judge, keep) in WAYS.items()}
    most = max(map(len, shown.values()), default=0)
    ways[f"each until {n} help"] = in_rounds(most, until_enough=True)
    ways[f"each of the nearest {2 * n}"] = in_rounds(2 * n, until_enough=False)
    return {"nearest": nearest, **ways}


def judging_systems(
    reader: BaseReader, shown: Mapping[str, Sequence[Passage]], ways: Mapping[str, Choose]
) -> dict[str, System]:
    """Return systems that choose passages without answering, and score the share of gold passages kept."""

    def system(name: str, choose: Choose) -> System:
        def answer(question: Question) -> EvaluationAnswer:
            meter = Meter(reader)
            places = choose(meter, question.text)
            gold = share_of_gold([shown[question.text][at] for at in places], question)
            scores = {"gold_shown": gold, "all_gold_shown": float(gold == 1), "kept": float(len(places))}
            return EvaluationAnswer("", (), meter.usage, scores=scores | {"read": float(meter.read)})

        return System(name, answer, {"system": name, "reader": reader.name})

    return {name: system(name, choose) for name, choose in ways.items()}


def _count_yes(helps: Iterable[float]) -> int:
    return sum(yes >= 0.5 for yes in helps)


def _descending(values: NDArray[np.float64]) -> list[int]:
    places: list[int] = np.argsort(-values, kind="stable").tolist()
    return places
