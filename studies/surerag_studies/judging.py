"""Who judges whether two answers mean the same on the closed world.

Answers come as a word, a phrase or a sentence. A reader that judges entailment well is what the method is
meant to be used with, and shows what the soft kernel is good for. A reader that does not would make a study
of ΔSePer a study of its judgement; for it there is the world's own list of accepted forms, which is never
wrong but knows no degrees, so that the soft and the hard kernel are one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.entailment import JudgeEntailer
from surerag.entailment.labels import CONTRADICTION, ENTAILMENT, LABELS, NEUTRAL
from surerag.evaluation.statistics import Proportion, share
from surerag.readers.protocol import Reader
from surerag.services import Entailer
from surerag.types import Pair
from surerag.world.lexicon import kind_of, words
from surerag.world.questions import Question, normalise

Entailment = Literal["judge", "exact"]

BAR = 0.95
"""Share of pairs that a judge has to get right to be the default: the aim of the embedded reader's card."""

_PAIRS = 200


class AliasEntailer:
    """Judges by the world's own accepted forms: answers that name the same value mean the same.

    Two answers that name different values of the kind asked for contradict each other; one that names none is
    neutral to all but itself.

    Args:
        questions: What will be asked; pairs about other questions are compared as normalised text.
    """

    local = True
    name = "the world's accepted forms"

    def __init__(self, questions: Iterable[Question]) -> None:
        self._questions = {question.text: question for question in questions}

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return one-hot rows [pairs, 3]: contradiction, neutral, entailment."""
        rows = np.zeros((len(pairs), len(LABELS)))
        for row, pair in zip(rows, pairs, strict=True):
            row[self._label(pair)] = 1.0
        return rows

    def _label(self, pair: Pair) -> int:
        question = self._questions.get(pair.question)
        first, second = (_values(question, text) for text in (pair.premise, pair.hypothesis))
        if first and second:
            return ENTAILMENT if first == second else CONTRADICTION
        return ENTAILMENT if normalise(pair.premise) == normalise(pair.hypothesis) else NEUTRAL


def _values(question: Question | None, text: str) -> frozenset[str]:
    """Return the values that an answer names, of the kind that the question asks for."""
    if question is None:
        return frozenset()
    given = normalise(text)
    if given in {normalise(accepted) for accepted in question.answers}:
        return frozenset({question.answers[0].lower()})
    kinds = kind_of()
    named = {word for word in given.split() if kinds.get(word) is question.value_kind}
    return frozenset(named - {question.entity.lower()})


class Chosen(NamedTuple):
    """The entailer of a study, and how often the reader's own judgement is right.

    Attributes:
        entailer: Who judges.
        kind: Which of the two.
        accuracy: Of the reader as a judge, on pairs of answers whose relation is known.
    """

    entailer: Entailer
    kind: Entailment
    accuracy: Proportion


def choose(reader: Reader, questions: Sequence[Question], wanted: Entailment | None) -> Chosen:
    """Return the entailer that was asked for; by default the reader itself, if it judges well.

    Args:
        reader: Whose belief is measured.
        questions: Of one world; answers to them are what it is tried on.
        wanted: ``"judge"``, ``"exact"``, or None: the judge where it gets at least 95 % of pairs right.
    """
    judge = JudgeEntailer(reader)
    accuracy = judge_accuracy(judge, questions)
    kind: Entailment = wanted or ("judge" if accuracy.value >= BAR else "exact")
    return Chosen(judge if kind == "judge" else AliasEntailer(questions), kind, accuracy)


def judge_accuracy(entailer: Entailer, questions: Sequence[Question]) -> Proportion:
    """Try an entailer on pairs of different forms, half of them of one answer, half of two answers.

    This is the task of the model card's row on entailment, without pairs of equal texts: those need no judge.
    """
    pairs, expected = [], []
    for number, question in enumerate(questions[:_PAIRS]):
        rng = random.Random(f"surerag seper judge {question.id}")
        premise, hypothesis = rng.sample(question.answers, 2)
        if number % 2:
            taken = (question.answers[0], question.entity)
            other = rng.choice([value for value in words(question.value_kind) if value not in taken])
            hypothesis = hypothesis.replace(question.answers[0], other)
        pairs.append(Pair(premise, hypothesis, question.text))
        expected.append(CONTRADICTION if number % 2 else ENTAILMENT)
    return share(entailer.entail(pairs).argmax(axis=1) == np.array(expected))
