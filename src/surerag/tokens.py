"""Counting tokens where there is no tokenizer."""

from __future__ import annotations

import math
import re

_LATIN = "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"
_WORD = re.compile(f"[{_LATIN}]+")
_DIGITS = re.compile(r"[0-9]{1,3}")
_MARK = re.compile(r"[!-/:-@\[-`{-~]")
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Japanese, Chinese
)
"""Letters, as a class of a regular expression, of scripts that put no spaces between words."""

_WHOLE = 9
"""Letters of a Latin word that tokenizers know as one piece; what is longer comes in pieces of about four."""

_WEIGHTS = {
    "\u0400-\u052f": 0.4,  # Cyrillic
    "\u0370-\u03ff\u1f00-\u1fff": 0.6,  # Greek
    "\u0590-\u05ff": 0.6,  # Hebrew
    "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufeff": 0.5,  # Arabic
    "\u0900-\u0dff": 0.65,  # Devanagari and its relatives
    "\u0e00-\u0e7f": 0.65,  # Thai
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af": 0.8,  # Hangul
}
"""Tokens a character of scripts whose letters tokenizers join: between those of cl100k and of o200k."""

_JOINED = {re.compile(f"[{letters}]"): weight for letters, weight in _WEIGHTS.items()}
_ALONE = re.compile(rf"[^\x00-\x7f\s{_LATIN}{''.join(_WEIGHTS)}]")
"""Any other character that is not ASCII (Chinese, Japanese, Khmer, a symbol) is about one token each."""


def estimated_tokens(text: str) -> int:
    """Estimate how many tokens a text has, by its scripts: for budgets, where there is no tokenizer.

    A Latin word and a mark are one token each, longer words and numbers are several; of other scripts each
    character counts, spaces or not. The tokenizers of GPT-4 (cl100k) and GPT-4o (o200k) differ by a factor of
    two in Arabic or Thai; prose in seventeen languages is within a factor of 2.2 of both.

    Example:
        >>> estimated_tokens("Ada was born in Velm.")
        6
        >>> estimated_tokens("艾达出生在维尔姆。")
        9
    """
    words = _WORD.findall(text)
    count: float = len(words) + len(_DIGITS.findall(text)) + len(_MARK.findall(text))
    for word in words:
        count += max(math.ceil((len(word) - _WHOLE) / 4), 0) + (len(word) > 1 and not word.isascii())
    if not text.isascii():
        count += len(_ALONE.findall(text))
        count += sum(weight * len(letters.findall(text)) for letters, weight in _JOINED.items())
    # Sums of weights are not exact: what is whole stays whole.
    return math.ceil(round(count, 6))
