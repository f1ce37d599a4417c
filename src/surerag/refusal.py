"""An answer that says that there is none, and the words that ask a model for it.

One notion for all: methods with the option ``refusal`` ask for it and recognise it, and
:class:`surerag.decisions.SelectiveAnswer` puts it in the place of answers that are not safe to show.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Protocol

from surerag.errors import ConfigurationError
from surerag.messages import Message, Prompt
from surerag.tokens import UNSPACED

REFUSAL = "I do not know."
_UNSPACED_LETTER = re.compile(f"[{UNSPACED}]")


class Wording(Protocol):
    """How an answer is to be worded: the options of a method that answers."""

    @property
    def refusal(self) -> str | None:
        """What to say where nothing supports an answer."""

    @property
    def same_language(self) -> bool:
        """Whether to answer in the language of the question."""


def check_refusal(refusal: str | None) -> None:
    """Refuse a refusal without words.

    Raises:
        ConfigurationError: If there is not one letter in it.
    """
    if refusal is not None and not _letters(refusal):
        raise ConfigurationError("the refusal is empty", hint="say that there is no answer")


def refuses(answer: str, refusal: str | None = REFUSAL) -> bool:
    """Whether an answer is the refusal, or begins with it as a sentence; marks, case and spaces are nothing.

    Example:
        >>> refuses("i do not know"), refuses("I do not know. No passage says so."), refuses("Velm")
        (True, True, False)
        >>> refuses("我不知道", "我不知道。"), refuses("ไม่ทราบ เพราะไม่มีข้อมูล", "ไม่ทราบ")
        (True, True)
    """
    if refusal is None:
        return False
    wanted = _letters(refusal)
    return wanted in (_letters(answer), _letters(_first_sentence(answer)))


def begins_to_refuse(beginning: str, refusal: str | None) -> bool:
    """Whether the beginning of an answer is at least half of the refusal, and nothing else.

    Example:
        >>> begins_to_refuse("I do not", REFUSAL), begins_to_refuse("I", REFUSAL)
        (True, False)
    """
    if refusal is None:
        return False
    said, wanted = _letters(beginning), _letters(refusal)
    return refuses(beginning, refusal) or (wanted.startswith(said) and 2 * len(said) >= len(wanted))


def worded(prompt: Prompt, wording: Wording) -> Prompt:
    r"""Put what is asked of the answer's words before a prompt: in front of a text, or of the last turn.

    Example:
        >>> from surerag import LazyRAGOptions
        >>> worded("Question: Where?", LazyRAGOptions(refusal="I do not know.", same_language=True))
        'Answer in the language of the question.\nWhere nothing supports an answer, reply only: I do not know.\nQuestion: Where?'
        >>> worded("Question: Where?", LazyRAGOptions())
        'Question: Where?'
    """  # noqa: E501
    wishes = []
    if wording.same_language:
        wishes.append("Answer in the language of the question.")
    if wording.refusal is not None:
        wishes.append(f"Where nothing supports an answer, reply only: {wording.refusal}")
    if not wishes:
        return prompt
    if isinstance(prompt, str):
        return "\n".join([*wishes, prompt])
    return _before_last(prompt, "\n".join(wishes))


def _first_sentence(text: str) -> str:
    """Cut a text at its first mark; where spaces are put between clauses alone (Thai), at its first space."""
    for at, letter in enumerate(text):
        if letter == "\n" or (unicodedata.category(letter) == "Po" and letter not in "'\""):
            return text[:at]
        if letter == " " and _UNSPACED_LETTER.match(text, at - 1):
            return text[:at]
    return text


def _before_last(turns: Sequence[Message], words: str) -> tuple[Message, ...]:
    *earlier, last = turns
    return (*earlier, Message(last.role, f"{words}\n{last.content}"))


def _letters(text: str) -> str:
    composed = unicodedata.normalize("NFC", text.casefold())
    return "".join(letter for letter in composed if letter.isalnum())
