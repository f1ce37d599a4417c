"""Did an answer match? The string measures of open-domain question answering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from surerag.measures.closed import is_closed, says
from surerag.measures.normalization import normalize_answer, words_of


def exact_match(answer: str, references: Sequence[str]) -> bool:
    """Whether an answer equals one of the references after normalisation (L-RAG, section IV-E).

    Example:
        >>> exact_match("the Orun", ["Orun", "river Orun"]), exact_match("1.5", ["15"])
        (True, False)
    """
    return normalize_answer(answer) in {normalize_answer(reference) for reference in references}


def contains(answer: str, references: Sequence[str]) -> bool:
    """Whether an answer contains the words of one of the references, in a row; for answers in sentences.

    A reference of yes or no, true or false, a single letter, an article or "I do not know." is compared by
    what the answer says (:func:`surerag.measures.closed.says`).

    Example:
        >>> contains("It was built in 1889.", ["1889"]), contains("At 4:51, 3:08 later", ["308"])
        (True, False)
        >>> contains("Yes, both were.", ["yes"]), contains("There is no information.", ["no"])
        (True, False)
        >>> contains("The answer is A.", ["A"]), contains("It is a river.", ["A"])
        (True, False)
    """
    words = words_of(answer)
    return any(
        says(answer, reference) if is_closed(reference) else _in_a_row(words_of(reference), words)
        for reference in references
    )


def same_answer(first: str, second: str) -> bool:
    """Whether two short answers say the same: one contains the words of the other, in a row.

    Words are compared as in :func:`contains`. No model is needed, but synonyms and denials are not
    recognised. For answers of a few words, this replaces entailment (Farquhar et al. 2024). Two answers
    without words are the same.

    Example:
        >>> same_answer("Velm.", "in the town of Velm"), same_answer("Velm", "Orun"), same_answer("", "Velm")
        (True, False, False)
    """
    shorter, longer = sorted((first, second), key=lambda answer: len(words_of(answer)))
    if not words_of(shorter):
        return not words_of(longer)
    return contains(longer, [shorter])


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Largest harmonic mean of token precision and recall over the references, in [0, 1].

    In scripts without spaces between words, each letter is a token (as in CMRC 2018 and MLQA). If a reference
    is yes, no, a single letter or "I do not know.", and the answer does not say it, the result is 0, as in
    HotpotQA.

    Example:
        >>> token_f1("river Orun", ["Orun"]), token_f1("no one", ["no"])
        (0.6666666666666666, 0.0)
    """
    return max((_f1_of(answer, reference) for reference in references), default=0.0)


def _in_a_row(words: list[str], text: list[str]) -> bool:
    starts = range(len(text) - len(words) + 1)
    return bool(words) and any(text[start : start + len(words)] == words for start in starts)


def _f1_of(answer: str, reference: str) -> float:
    words, right = words_of(answer), words_of(reference)
    if is_closed(reference):
        if not says(answer, reference):
            return 0.0
        words += [word for word in right if word not in words]  # "an A" lost its letter as an article
    return _f1(words, right)


def _f1(answer: list[str], reference: list[str]) -> float:
    if not answer or not reference:
        return float(answer == reference)
    common = sum((Counter(answer) & Counter(reference)).values())
    return 2 * common / (len(answer) + len(reference))
