"""Rows from a sample of questions, which is checked before its answers are paid for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from surerag.decisions.rows import DecisionRow
from surerag.errors import InputError

IsCorrect = Callable[[str, Sequence[str]], bool | float]
"""Whether an answer matches one of the gold answers, or a score in [0, 1]."""


def check_sample(questions: Sequence[str], golds: Sequence[Sequence[str]] | None) -> None:
    """Refuse a sample that is empty, or gold answers of another number.

    Raises:
        InputError: Naming both numbers.
    """
    if not questions:
        raise InputError("the sample holds no questions", hint="the papers take 100 or more")
    if golds is not None and len(golds) != len(questions):
        raise InputError(
            f"expected gold answers for each of {len(questions)} questions, got {len(golds)}",
            hint="pass golds=…, one list a question, in the order of the questions",
        )


def judged_rows(
    questions: Sequence[str],
    signals: Sequence[dict[str, float]],
    golds: Sequence[Sequence[str]] | None = None,
    without: Sequence[str] = (),
    with_: Sequence[str] = (),
    is_correct: IsCorrect | None = None,
) -> list[DecisionRow]:
    """Return a row a question; without gold answers the rows are not labelled.

    Args:
        questions: They name the rows.
        signals: Of each question, by name.
        golds: Gold answers of each question, if they are known.
        without: Answers without acting.
        with_: Answers after acting.
        is_correct: Judges an answer.

    Example:
        >>> judged_rows(["Who?"], [{"p": 1.0}], [["Bo"]], ["Ada"], ["Bo"], lambda a, g: a in g)[0].benefit
        1.0
    """
    if golds is None or is_correct is None:
        pairs = zip(questions, signals, strict=True)
        return [DecisionRow(values, id=question) for question, values in pairs]
    return [
        DecisionRow(values, is_correct(first, gold), is_correct(second, gold), id=question)
        for question, values, gold, first, second in zip(
            questions, signals, golds, without, with_, strict=True
        )
    ]
