"""Answers are judged by what they say, not by how."""

from __future__ import annotations

import pytest

from surerag.world import Question, QuestionKind, Source, is_correct
from surerag.world.lexicon import Kind, words


@pytest.fixture(scope="module")
def question() -> Question:
    mine, right = words(Kind.PERSON)[0], words(Kind.PERSON)[1]
    return Question(
        id="q",
        text=f"Who is married to {mine}?",
        answers=(right, f"someone named {right}", f"{mine} is married to {right}."),
        kind=QuestionKind.SINGLE,
        source=Source.DEEP,
        gold_passages=("p",),
        utilities={"p": 1.0},
        taught=False,
        rewrite=None,
        hops=1,
        entity=mine,
        value_kind=Kind.PERSON,
    )


@pytest.mark.parametrize(
    "answer",
    [
        "{right}",
        " {right}.",
        "{RIGHT}",
        "someone named {right}",
        "{mine} is married to {right}.",
        "I think it is {right}!",
    ],
)
def test_right_answers_in_any_form(question: Question, answer: str) -> None:
    right = question.answers[0]
    assert is_correct(question, answer.format(right=right, RIGHT=right.upper(), mine=question.entity))


@pytest.mark.parametrize(
    "answer", ["", "{other}", "{right} or {other}", "{mine}", "{right}x", "I do not know."]
)
def test_wrong_answers_and_answers_that_hedge(question: Question, answer: str) -> None:
    other = words(Kind.PERSON)[5]
    assert not is_correct(
        question, answer.format(right=question.answers[0], other=other, mine=question.entity)
    )
