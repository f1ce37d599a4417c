"""What a method is given, checked before anything is asked."""

from __future__ import annotations

from collections.abc import Sequence

from surerag.errors import InputError
from surerag.messages import Passage


def check_question(question: object) -> None:
    """Refuse what is no question.

    Raises:
        InputError: If it is no text, or an empty one.

    Example:
        >>> check_question("Where was Ada born?")
    """
    if not isinstance(question, str):
        raise InputError(
            f"a question is a text, and this is a {type(question).__name__}",
            hint="ask one at a time, or several with run_many",
        )
    if not question.strip():
        raise InputError("the question is empty", hint="ask something")


def check_passages(passages: object) -> None:
    """Refuse what is no list of passages.

    Raises:
        InputError: If it is no list, or one of them is a text, a framework's document, or whatever else.

    Example:
        >>> check_passages([Passage("Ada plays the harp.")])
    """
    if not isinstance(passages, Sequence):  # what can be gone through once would be empty after this
        raise InputError(
            f"a context is a list of passages, and this is a {type(passages).__name__}",
            hint="pass list(passages), or [] where nothing was found, if the method takes that",
        )
    for one in passages:
        if not isinstance(one, Passage):
            raise InputError(
                f"a context is a list of passages, and there is a {type(one).__name__} in it",
                hint="make one of a text with surerag.Passage(text); "
                "a framework's documents go to its own parts",
            )


def check_golds(golds: object) -> None:
    """Refuse what are no gold answers.

    Raises:
        InputError: If these are no list of texts, or one is missing or empty.

    Example:
        >>> check_golds(["Velm"])
    """
    if golds is not None and (isinstance(golds, str) or not isinstance(golds, Sequence)):
        kind = "text" if isinstance(golds, str) else type(golds).__name__
        raise InputError(
            f"gold answers are a list, and this is a {kind}", hint="pass all that are right, or [answer]"
        )
    for gold in golds or ():
        if not isinstance(gold, str):
            raise InputError(f"gold answers are texts, and one is a {type(gold).__name__}")
    if not golds or not all(gold.strip() for gold in golds):
        raise InputError("SePer measures belief in gold answers, and one is missing or empty")


def check_cut(items: Sequence[object], kind: type) -> None:
    """Refuse to cut what is no text, or no passage.

    Raises:
        InputError: If one of them is something else.

    Example:
        >>> check_cut(["Ada plays the harp."], str)
    """
    for one in items:
        if not isinstance(one, kind):
            raise InputError(
                f"expected a {kind.__name__} to cut, got a {type(one).__name__}",
                hint="run cuts one text, passages cuts documents: surerag.Passage(text, id=…)",
            )
