"""Normalises answers before they are compared."""

from __future__ import annotations

import re
import string
import unicodedata

_ARTICLES = re.compile(r"\b(?:an|the)\b|\ba\b(?=\s+\w)")
"""English articles; an "a" without a following word is a letter, as in "hepatitis A"."""
UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])"
)
"""A letter of a script that puts no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
MARKS = re.compile(
    rf"[{re.escape(string.punctuation)}¿¡«»\u2018\u2019\u201c-\u201e\u2026\u0589\u060c\u061b\u061f\u06d4\u0964\u0965"
    "\u104a\u104b\u1362-\u1368\u17d4-\u17d6\u3001-\u3003\u3008-\u3011\u3014-\u301f\u30fb]"
)
"""ASCII punctuation, quotes, the ellipsis, and marks of Spanish, Armenian, Arabic, Hindi, Burmese, Ethiopic,
Khmer and East Asian texts; dashes stay, as in SQuAD's own script."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_SIGNED_LETTER = re.compile(r"(?<!\w)([^\W\d_])([+#-]+)(?!\w)")
"""A letter with a sign that changes its meaning: C++, C#, A+, O-."""
_SIGNS = str.maketrans("\ue000\ue001\ue002", "+#-")
_KEPT_SIGNS = str.maketrans("+#-", "\ue000\ue001\ue002")
_WIDE_FORMS = re.compile("[\uff00-\uffef]+")
_SPELLINGS = str.maketrans({"\u0130": "i", "\u2212": "-", "\u066b": ".", "\u066c": ","})
"""The Turkish İ, whose own lower case would keep a dot; the minus sign; the marks of Arabic numbers."""


def normalize_answer(text: str) -> str:
    """Lower-case, drop punctuation and English articles, collapse white space (L-RAG, section IV-E).

    This is SQuAD's normalisation, except where it would lose a difference. ASCII punctuation, quotes and the
    marks of other languages are dropped. Marks inside a number, and its sign, are kept, so that times, dates,
    decimals and negative numbers differ from whole numbers; commas between thousands are dropped. The sign of
    a single letter is kept (C++, A+). If a text has only articles or marks, they are kept (except full
    stops). Digits of all scripts become 0 to 9. Accents are composed with their letters (Unicode NFC).

    Example:
        >>> normalize_answer("The  City of Velm."), normalize_answer("「维尔姆」。")
        ('city of velm', '维尔姆')
        >>> normalize_answer("4:51, 3:08"), normalize_answer("$1,500.50"), normalize_answer("−3.")
        ('4:51 3:08', '1500.50', '-3')
        >>> normalize_answer("A."), normalize_answer("the"), normalize_answer("C++"), normalize_answer("٤٢")
        ('a', 'the', 'c++', '42')
        >>> normalize_answer("İstanbul")
        'istanbul'
    """
    written = unify_characters(text).lower()
    bare = MARKS.sub(_keep_in_number, _THOUSANDS.sub("", written)).translate(_SIGNS)
    return " ".join(_ARTICLES.sub(" ", bare).split() or bare.split() or written.strip(" .").split())


def unify_characters(text: str) -> str:
    """Return a text in which equal letters, accents, digits and minus signs have the same characters.

    The signs of single letters (C++) become private-use characters, which are not punctuation.
    """
    narrow = _WIDE_FORMS.sub(lambda wide: unicodedata.normalize("NFKC", wide[0]), text).translate(_SPELLINGS)
    composed = unicodedata.normalize("NFC", narrow)
    digits = re.sub(r"\d", lambda digit: str(unicodedata.decimal(digit[0])), composed)
    return _SIGNED_LETTER.sub(lambda letter: letter[1] + letter[2].translate(_KEPT_SIGNS), digits)


def _keep_in_number(match: re.Match[str]) -> str:
    """Keep a mark between two digits, and a minus or point before a number; drop any other."""
    text, at = match.string, match.start()
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    if not after.isdigit():
        return ""
    if before.isdigit():
        return match[0] if match[0] in ".:,/-" else ""
    return match[0] if match[0] in "-." and not before.isalnum() and before != "." else ""


def words_of(text: str) -> list[str]:
    """Return the words of a normalised text; in a script without spaces, each letter is a word."""
    return UNSPACED.sub(r" \1 ", normalize_answer(text)).split()
