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
_FOREIGN_MARK = re.compile(
    "[¿¡«»\u2018\u2019\u201c-\u201e\u2026\u0589\u060c\u061b\u061f\u06d4\u0964\u0965\u104a\u104b\u1362-\u1368\u17d4-\u17d6"
    "\u3001-\u3003\u3008-\u3011\u3014-\u301f\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff3d\uff5b-\uff65]"
)
"""Quotes, the ellipsis, and marks of Spanish, Armenian, Arabic, Hindi, Burmese, Ethiopic, Khmer and East
Asian texts; dashes stay, as in SQuAD's own script."""


def normalize_answer(text: str) -> str:
    """Lower-case, drop punctuation and English articles, collapse white space (L-RAG, section IV-E).

    Punctuation is that of ASCII, as in SQuAD's own script, and quotes and marks of other languages. An accent
    is one with its letter, however it is encoded (Unicode's form C).

    Example:
        >>> normalize_answer("The  City of Velm."), normalize_answer("「维尔姆」。")
        ('city of velm', '维尔姆')
    """
    composed = unicodedata.normalize("NFC", text.lower())
    bare = "".join(letter for letter in composed if not _is_punctuation(letter))
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether an answer equals one of the gold answers after normalisation (L-RAG, section IV-E).

    Example:
        >>> exact_match("the Orun", ["Orun", "river Orun"])
        True
    """
    return normalize_answer(answer) in {normalize_answer(gold) for gold in golds}


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
    starts = range(len(longer) - len(shorter) + 1)
    return any(longer[start : start + len(shorter)] == shorter for start in starts)


def token_f1(answer: str, golds: Sequence[str]) -> float:
    """Largest harmonic mean of token precision and recall over the gold answers, in [0, 1].

    Where no spaces are put between words, each letter is a token (as in CMRC 2018 and MLQA).

    Example:
        >>> token_f1("river Orun", ["Orun"])
        0.6666666666666666
    """
    return max((_f1(_words(answer), _words(gold)) for gold in golds), default=0.0)


def _is_punctuation(letter: str) -> bool:
    return letter in string.punctuation or bool(_FOREIGN_MARK.match(letter))


def _words(text: str) -> list[str]:
    return _UNSPACED.sub(r" \1 ", normalize_answer(text)).split()


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold))
