"""What a method is given, checked before anything is asked."""

from __future__ import annotations

from collections.abc import Iterable

from surerag.errors import InputError
from surerag.types import Passage


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


def check_passages(passages: Iterable[object]) -> None:
    """Refuse what is no list of passages.

    Raises:
        InputError: If it is no list, or one of them is a text, a framework's document, or whatever else.

    Example:
        >>> check_passages([Passage("Ada plays the harp.")])
    """
    if not isinstance(passages, Iterable):
        raise InputError(
            f"a context is a list of passages, and this is a {type(passages).__name__}",
            hint="pass [] where nothing was found, if the method takes that",
        )
    strange = [one for one in passages if not isinstance(one, Passage)]
    if strange:
        raise InputError(
            f"a context is a list of passages, and there is a {type(strange[0]).__name__} in it",
            hint="make one of a text with surerag.Passage(text); a framework's documents go to its own parts",
        )
