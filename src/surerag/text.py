"""Text: its tokens, its sentences, answers that abstain, and control codes in it."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import NamedTuple

from sentencex import get_sentence_boundaries

from surerag.errors import ConfigurationError

ABSTENTION = "I do not know."
"""The usual text of an answer that gives none."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Japanese, Chinese
)
"""Letters, as a class of a regular expression, of scripts that put no spaces between words."""

_UNSPACED_LETTER = re.compile(f"[{UNSPACED}]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    r"""Replace lone surrogates, which no encoding and no tokenizer can hold, by ``�``.

    Example:
        >>> replace_surrogates("Velm \udcff")
        'Velm �'
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


# Tokens

_LATIN = "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"
_WORD = re.compile(f"[{_LATIN}]+")
_DIGITS = re.compile(r"[0-9]{1,3}")
_MARK = re.compile(r"[!-/:-@\[-`{-~]")
_WHOLE = 9
"""Letters of a Latin word that is one token; longer words have a token more for about four letters."""

_WEIGHTS = {
    "\u0400-\u052f": 0.4,  # Cyrillic
    "\u0370-\u03ff\u1f00-\u1fff": 0.6,  # Greek
    "\u0590-\u05ff": 0.6,  # Hebrew
    "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufeff": 0.5,  # Arabic
    "\u0900-\u0dff": 0.65,  # Devanagari and related scripts
    "\u0e00-\u0e7f": 0.65,  # Thai
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af": 0.8,  # Hangul
}
"""Tokens a character, between those of cl100k and of o200k."""

_WEIGHTED = {re.compile(f"[{letters}]"): weight for letters, weight in _WEIGHTS.items()}
_OTHER = re.compile(rf"[^\x00-\x7f\s{_LATIN}{''.join(_WEIGHTS)}]")


def estimated_tokens(text: str) -> int:
    """Estimate how many tokens a text has, by its scripts; for models without a tokenizer at hand.

    Prose in seventeen languages is within a factor of 2.2 of the tokenizers of GPT-4 and GPT-4o.

    Example:
        >>> estimated_tokens("Ada was born in Velm."), estimated_tokens("艾达出生在维尔姆。")
        (6, 9)
    """
    words = _WORD.findall(text)
    count: float = len(words) + len(_DIGITS.findall(text)) + len(_MARK.findall(text))
    for word in words:
        count += max(math.ceil((len(word) - _WHOLE) / 4), 0) + (len(word) > 1 and not word.isascii())
    if not text.isascii():
        count += len(_OTHER.findall(text))
        count += sum(weight * len(letters.findall(text)) for letters, weight in _WEIGHTED.items())
    return math.ceil(round(count, 6))  # sums of weights are not exact


# Sentences


class Sentence(NamedTuple):
    """A sentence of a text: ``text[start:end]``, without surrounding white space."""

    text: str
    start: int
    end: int


def split_sentences(text: str, language: str = "en") -> list[Sentence]:
    """Split a text into its sentences, verbatim, with offsets in characters.

    Args:
        text: Any text; a blank line ends a sentence too.
        language: ISO 639 code, for its abbreviations and marks.

    Example:
        >>> [s.text for s in split_sentences("Dr. Voss left. She was tired!")]
        ['Dr. Voss left.', 'She was tired!']
    """
    sentences: list[Sentence] = []
    for boundary in get_sentence_boundaries(language, replace_surrogates(text)):
        piece: str = boundary["text"]
        stripped = piece.strip()
        if stripped:
            start = boundary["start_index"] + len(piece) - len(piece.lstrip())
            end = start + len(stripped)
            sentences.append(Sentence(text[start:end], start, end))
    return sentences


# Abstention


def check_abstention(abstention: str | None) -> None:
    """Check that the option ``abstention`` has a letter in it.

    Raises:
        ConfigurationError: If it has none.
    """
    if abstention is not None and not _letters(abstention):
        raise ConfigurationError("abstention is empty", hint="give a sentence, such as 'I do not know.'")


def is_abstention(answer: str, abstention: str | None = ABSTENTION) -> bool:
    """Whether an answer is the abstention, or has it as its first sentence; marks and case do not count.

    Example:
        >>> is_abstention("i do not know"), is_abstention("I do not know. No passage says so.")
        (True, True)
        >>> is_abstention("我不知道", "我不知道。"), is_abstention("ไม่ทราบ เพราะไม่มีข้อมูล", "ไม่ทราบ")
        (True, True)
    """
    if abstention is None:
        return False
    return _letters(abstention) in (_letters(answer), _letters(_first_sentence(answer)))


def begins_abstention(beginning: str, abstention: str | None) -> bool:
    """Whether the beginning of an answer is at least half of the abstention, and nothing else.

    Example:
        >>> begins_abstention("I do not", ABSTENTION), begins_abstention("I", ABSTENTION)
        (True, False)
    """
    if abstention is None:
        return False
    begun, whole = _letters(beginning), _letters(abstention)
    half = whole.startswith(begun) and 2 * len(begun) >= len(whole)
    return half or is_abstention(beginning, abstention)


def may_become_abstention(beginning: str, abstention: str | None) -> bool:
    """Whether an answer that begins so can still turn out to be the abstention.

    Example:
        >>> may_become_abstention("I", ABSTENTION), may_become_abstention("In Velm", ABSTENTION)
        (True, False)
    """
    return abstention is not None and _letters(abstention).startswith(_letters(beginning))


def _first_sentence(text: str) -> str:
    """Cut a text at its first mark; in scripts without spaces between words, at its first space."""
    for position, letter in enumerate(text):
        if letter == "\n" or (unicodedata.category(letter) == "Po" and letter not in "'\""):
            return text[:position]
        if letter == " " and _UNSPACED_LETTER.match(text, position - 1):
            return text[:position]
    return text


def _letters(text: str) -> str:
    composed = unicodedata.normalize("NFC", text.casefold())
    return "".join(letter for letter in composed if letter.isalnum())


# Control codes

_SEQUENCE = re.compile(
    # Colours, cursor and screen; titles, links and the clipboard; all others.
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\^-~]"
)
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"
    # Changes of the direction of writing can make a text read as another.
    r"\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    r"""Remove terminal control codes from untrusted text; line ends and tabs stay.

    Example:
        >>> printable("Velm\x1b[2J\x1b]0;owned\x07 lies\r on the \u202eOrun")
        'Velm lies on the Orun'
    """
    return replace_surrogates(_CONTROL.sub("", _SEQUENCE.sub("", text)))
