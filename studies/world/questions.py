"""Questions with exact ground truth, and the judgement whether an answer is right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from studies.world.lexicon import Kind, kind_of
from studies.world.spec import QuestionKind, Source


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a world.

    Attributes:
        id: Identifier, unique within a world.
        text: The question as asked.
        answers: Accepted answers: a word, a phrase, a sentence. Empty if unanswerable.
        kind: How it is put.
        source: Where its answer is to be had.
        gold_passages: Ids of the passages that tell the facts it needs, one for each fact.
        utilities: What passages are worth to a reader that knows the taught core and nothing else, by
            id; others are worth 0. A passage that suffices has 1, each half of a two-hop 0.5.
        taught: Whether the embedded reader was taught the answer.
        rewrite: The same question in clear words, if it is under-specified.
        hops: Number of facts needed.
        entity: The entity that it names, or whose nickname it uses.
        value_kind: Kind of the answer.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    kind: QuestionKind
    source: Source
    gold_passages: tuple[str, ...]
    utilities: Mapping[str, float]
    taught: bool
    rewrite: str | None
    hops: int
    entity: str
    value_kind: Kind


def normalise(text: str) -> str:
    """Lower-case words, separated by single spaces."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def is_correct(question: Question, answer: str) -> bool:
    """Judge an answer, in whatever form it comes.

    It is right if it is one of the accepted forms, or if it names the right value and no other value
    of that kind, the entity asked about excepted.

    Args:
        question: What was asked.
        answer: What was answered.

    Returns:
        Whether the answer is right; always False for an unanswerable question.
    """
    if not question.answers:
        return False
    given = normalise(answer)
    if given in {normalise(accepted) for accepted in question.answers}:
        return True
    kinds = kind_of()
    named = {word for word in given.split() if kinds.get(word) is question.value_kind}
    return named - {question.entity.lower()} == {question.answers[0].lower()}
