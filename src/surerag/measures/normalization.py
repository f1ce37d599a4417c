"""Normalise answers before they are compared."""

from __future__ import annotations

import re
import string
import unicodedata

_ARTICLES = re.compile(r"\b(?:an|the)\b|\ba\b(?=\s+\w)")
"""Pattern of English articles; an "a" without a following word is a letter, as in "hepatitis A"."""
UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])"
)
"""Pattern of a letter in a script without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
MARKS = re.compile(
    rf"[{re.escape(string.punctuation)}¿¡«»\u2018\u2019\u201c-\u201e\u2026\u0589\u060c\u061b\u061f\u06d4\u0964\u0965"
    "\u104a\u104b\u1362-\u1368\u17d4-\u17d6\u3001-\u3003\u3008-\u3011\u3014-\u301f\u30fb]"
)
"""Pattern of punctuation: ASCII, quotes, the ellipsis, and Spanish, Armenian, Arabic, Hindi, Burmese,
Ethiopic, Khmer and East Asian punctuation. Dashes do not match, as in SQuAD's evaluation script."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_SIGNED_LETTER = re.compile(r"(?<!\w)([^\W\d_])([+#-]+)(?!\w)")
"""Pattern of a letter with a sign that changes its meaning: C++, C#, A+, O-."""
_SIGNS = str.maketrans("\ue000\ue001\ue002", "+#-")
_KEPT_SIGNS = str.maketrans("+#-", "\ue000\ue001\ue002")
_WIDE_FORMS = re.compile("[\uff00-\uffef]+")
_SPELLINGS = str.maketrans({"\u0130": "i", "\u2212": "-", "\u066b": ".", "\u066c": ","})
"""Replacements for the minus sign, for the decimal and thousands separators of Arabic numbers, and for the
Turkish İ (whose lower case has two characters)."""


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without punctuation, English articles and repeated white space.

    This is SQuAD's normalisation (L-RAG, section IV-E) with exceptions that keep different answers different.
    Punctuation inside a number and the sign of a number are kept, so that times, dates, decimals and negative
    numbers differ from whole numbers; commas between thousands are removed. The sign of a single letter is
    kept (C++, A+). Articles are kept if the text has no other words, and punctuation other than full stops is
    kept if the text has no words. Punctuation of other languages is removed, digits of all scripts become 0
    to 9, and accents are composed (Unicode NFC).

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
    """Return a text in which letters, accents, digits and minus signs have uniform characters.

    Signs behind a single letter, as in C++, become private-use characters, so that they are not punctuation.
    """
    narrow = _WIDE_FORMS.sub(lambda wide: unicodedata.normalize("NFKC", wide[0]), text).translate(_SPELLINGS)
    composed = unicodedata.normalize("NFC", narrow)
    digits = re.sub(r"\d", lambda digit: str(unicodedata.decimal(digit[0])), composed)
    return _SIGNED_LETTER.sub(lambda letter: letter[1] + letter[2].translate(_KEPT_SIGNS), digits)


def _keep_in_number(match: re.Match[str]) -> str:
    text, at = match.string, match.start()
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    if not after.isdigit():
        return ""
    if before.isdigit():
        return match[0] if match[0] in ".:,/-" else ""
    return match[0] if match[0] in "-." and not before.isalnum() and before != "." else ""


def words_of(text: str) -> list[str]:
    """Return the words of a text after normalisation; in scripts without spaces, each letter is a word."""
    return UNSPACED.sub(r" \1 ", normalize_answer(text)).split()
