"""Did an answer match? The string measures of open-domain question answering."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-case, drop punctuation and English articles, collapse white space (L-RAG, section IV-E).

    Example:
        >>> normalize_answer("The  City of Velm.")
        'city of velm'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


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
    shorter, longer = sorted((normalize_answer(first).split(), normalize_answer(second).split()), key=len)
    if not shorter:
        return not longer
    starts = range(len(longer) - len(shorter) + 1)
    return any(longer[start : start + len(shorter)] == shorter for start in starts)


def token_f1(answer: str, golds: Sequence[str]) -> float:
    """Largest harmonic mean of token precision and recall over the gold answers, in [0, 1].

    Example:
        >>> token_f1("river Orun", ["Orun"])
        0.6666666666666666
    """
    return max(
        (_f1(normalize_answer(answer).split(), normalize_answer(gold).split()) for gold in golds), default=0.0
    )


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold))
