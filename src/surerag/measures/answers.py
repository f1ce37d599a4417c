"""Did an answer match? The string measures of open-domain question answering."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])"
)
"""A letter of a script that puts no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_MARKS = re.compile(
    rf"[{re.escape(string.punctuation)}¿¡«»\u2018\u2019\u201c-\u201e\u2026\u0589\u060c\u061b\u061f\u06d4\u0964\u0965"
    "\u104a\u104b\u1362-\u1368\u17d4-\u17d6\u3001-\u3003\u3008-\u3011\u3014-\u301f\u30fb\uff01-\uff0f\uff1a-\uff20"
    "\uff3b-\uff3d\uff5b-\uff65]"
)
"""ASCII punctuation, quotes, the ellipsis, and marks of Spanish, Armenian, Arabic, Hindi, Burmese, Ethiopic,
Khmer and East Asian texts; dashes stay, as in SQuAD's own script."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def normalize_answer(text: str) -> str:
    """Lower-case, drop punctuation and English articles, collapse white space (L-RAG, section IV-E).

    Punctuation is that of ASCII, as in SQuAD's own script, and quotes and marks of other languages. Unlike
    there, marks inside a number and its sign stay, so that times, dates, decimals and negative numbers differ
    from whole ones; commas between thousands go. An accent is one with its letter (Unicode's form C).

    Example:
        >>> normalize_answer("The  City of Velm."), normalize_answer("「维尔姆」。")
        ('city of velm', '维尔姆')
        >>> normalize_answer("4:51, 3:08"), normalize_answer("$1,500.50"), normalize_answer("−3.")
        ('4:51 3:08', '1500.50', '-3')
        >>> normalize_answer("İstanbul")
        'istanbul'
    """
    lower = unicodedata.normalize("NFC", text).replace("\u0130", "i").lower()  # İ, whose own would keep a dot
    composed = unicodedata.normalize("NFC", lower).replace("\u2212", "-")
    bare = _MARKS.sub(_keep_in_number, _THOUSANDS.sub("", composed))
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, references: Sequence[str]) -> bool:
    """Whether an answer equals one of the references after normalisation (L-RAG, section IV-E).

    Example:
        >>> exact_match("the Orun", ["Orun", "river Orun"]), exact_match("1.5", ["15"])
        (True, False)
    """
    return normalize_answer(answer) in {normalize_answer(reference) for reference in references}


def contains(answer: str, references: Sequence[str]) -> bool:
    """Whether the words of one of the references stand, in a row, in an answer; for answers in sentences.

    Example:
        >>> contains("It was built in 1889.", ["1889"]), contains("At 4:51, 3:08 later", ["308"])
        (True, False)
    """
    words = _words(answer)
    return any(_in_a_row(_words(reference), words) for reference in references)


def same_answer(first: str, second: str) -> bool:
    """Whether two short answers say the same by their words: the words of one stand, in a row, in the other.

    Words are compared as exact match compares them. It takes no model, and knows neither synonyms nor
    denials; it is made for answers of a few words, where it stands in for entailment (Farquhar et al. 2024).
    An answer without a word says the same as another one without, only.

    Example:
        >>> same_answer("Velm.", "in the town of Velm"), same_answer("Velm", "Orun"), same_answer("", "Velm")
        (True, False, False)
    """
    shorter, longer = sorted((_words(first), _words(second)), key=len)
    if not shorter:
        return not longer
    return _in_a_row(shorter, longer)


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Largest harmonic mean of token precision and recall over the references, in [0, 1].

    Where no spaces are put between words, each letter is a token (as in CMRC 2018 and MLQA).

    Example:
        >>> token_f1("river Orun", ["Orun"])
        0.6666666666666666
    """
    return max((_f1(_words(answer), _words(reference)) for reference in references), default=0.0)


def _keep_in_number(match: re.Match[str]) -> str:
    """Keep a mark between two digits, and a minus or point before a number; drop any other."""
    text, at = match.string, match.start()
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    if not after.isdigit():
        return ""
    if before.isdigit():
        return match[0] if match[0] in ".:,/-" else ""
    return match[0] if match[0] in "-." and not before.isalnum() and before != "." else ""


def _words(text: str) -> list[str]:
    return _UNSPACED.sub(r" \1 ", normalize_answer(text)).split()


def _in_a_row(words: list[str], text: list[str]) -> bool:
    starts = range(len(text) - len(words) + 1)
    return bool(words) and any(text[start : start + len(words)] == words for start in starts)


def _f1(answer: list[str], reference: list[str]) -> float:
    if not answer or not reference:
        return float(answer == reference)
    common = sum((Counter(answer) & Counter(reference)).values())
    return 2 * common / (len(answer) + len(reference))
